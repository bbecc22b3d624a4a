/* What the CUDA device says of itself, who it refuses to be, and which ways it takes. */
#include <unistd.h>

#include "backends/cuda/backend.h"
#include "backends/cuda/queue.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/harness.h"

static hr_status open_gpu(uint32_t gpu, struct hr_diag *diag, struct hr_device **ret_device) {
        struct hr_cuda_config config = { .name = "tested", .gpu = gpu };

        return hr_cuda_device_new(&config, diag, ret_device);
}

static struct hr_device *device_of(uint32_t gpu, const char *name, uint64_t cap) {
        struct hr_cuda_config config = { .name = name, .gpu = gpu, .memory_cap = cap };
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_cuda_device_new(&config, &diag, &device), &diag);
        return device;
}

static void expect_refused(uint32_t gpu, hr_status status, const char *reason) {
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_EQ(open_gpu(gpu, &diag, &device), status);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), reason);
        HR_EXPECT(!device);
        HR_EXPECT_EQ(fake_leaks(), 0);
}

HR_TEST(without_a_driver_the_device_is_unavailable) {
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };
        uint32_t count = 99;

        cuda_syms_replace(NULL);
        if (hr_cuda_gpu_count(&diag, &count) == HR_OK)
                hr_test_skip("this machine has a driver");
        HR_EXPECT_EQ(diag.status, HR_E_UNAVAILABLE);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DRIVER");
        HR_EXPECT_EQ(count, 99);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(open_gpu(0, &diag, &device), HR_E_UNAVAILABLE);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DRIVER");
}

HR_TEST(what_cannot_be_used_is_refused) {
        fake_begin(1);
        expect_refused(FAKE_GPUS, HR_E_NOT_FOUND, "GPU");
        expect_refused(1000, HR_E_NOT_FOUND, "GPU");
        expect_refused(FAKE_GPUS - 1, HR_E_UNSUPPORTED, "GPU"); /* too old */
        fake_set_version(12090);
        expect_refused(0, HR_E_UNAVAILABLE, "DRIVER");
        fake_begin(1);
        fake_fail_name("cuInit", CUDA_ERROR_NO_DEVICE);
        expect_refused(0, HR_E_UNAVAILABLE, "DRIVER");
        fake_begin(1);
        fake_break_copies(0, 0);
        fake_fail_name("cuMemcpyHtoDAsync", CUDA_ERROR_NOT_SUPPORTED);
        expect_refused(0, HR_E_UNSUPPORTED, "UNSUPPORTED");
}

HR_TEST(gpus_are_counted) {
        struct hr_diag diag = { 0 };
        uint32_t count = 0;

        fake_begin(1);
        HR_EXPECT_OK(hr_cuda_gpu_count(&diag, &count), &diag);
        HR_EXPECT_EQ(count, FAKE_GPUS);
}

HR_TEST(logical_devices_share_a_gpu_and_have_their_own_memory) {
        struct hr_device *a, *b;
        struct hr_buffer *buffer = NULL, *none = NULL;
        uint64_t free_bytes = 0, total_bytes = 0;
        struct hr_diag diag = { 0 };

        fake_begin(1);
        a = device_of(0, "half0", 1 << 20);
        b = device_of(0, "half1", 2 << 20);
        HR_EXPECT(a->props.kind != b->props.kind);
        HR_EXPECT_EQ(a->props.type, HR_DEVICE_GPU);
        hr_device_memory(a, &free_bytes, &total_bytes);
        HR_EXPECT_EQ(total_bytes, 1 << 20);
        HR_EXPECT_EQ(free_bytes, 1 << 20);
        HR_EXPECT_OK(hr_buffer_new(a, 1 << 20, HR_USAGE_ANY, &diag, &buffer), &diag);
        HR_EXPECT_EQ(hr_buffer_new(a, 1, HR_USAGE_ANY, &diag, &none), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DEVICE_MEMORY");
        hr_diag_clear(&diag);
        HR_EXPECT_OK(hr_buffer_new(b, 2 << 20, HR_USAGE_ANY, &diag, &none), &diag);
        buffer = hr_buffer_unref(buffer);
        none = hr_buffer_unref(none);
        a = hr_device_unref(a);
        b = hr_device_unref(b);
        HR_EXPECT_EQ(fake_leaks(), 0);
}

HR_TEST(memory_that_the_gpu_does_not_have_is_refused_with_numbers) {
        struct hr_buffer *buffer = NULL;
        struct hr_diag diag = { 0 };
        struct hr_device *device;

        fake_begin(1);
        fake_set_memory(1 << 20);
        device = device_of(0, "small", 0);
        HR_EXPECT_EQ(hr_buffer_new(device, 2 << 20, HR_USAGE_ANY, &diag, &buffer), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DEVICE_MEMORY");
        HR_EXPECT_EQ(diag.limit, 1 << 20);
        HR_EXPECT_EQ(diag.actual, 2 << 20);
        HR_EXPECT_EQ(atomic_load(&device->used_bytes), 0);
        device = hr_device_unref(device);
}

/* Bytes that change on their way are noticed when the GPUs are opened, in that direction only. */
HR_TEST(a_pair_that_changes_bytes_goes_through_the_host) {
        struct hr_queue *from_a = NULL, *from_b = NULL;
        struct hr_device *a, *b;
        struct hr_diag diag = { 0 };
        char byte = 0;

        fake_begin(1);
        fake_break_copies(0, 1);
        a = device_of(0, "a", 0);
        b = device_of(1, "b", 0);
        HR_EXPECT_OK(hr_queue_new(a, &diag, &from_a), &diag);
        HR_EXPECT_OK(hr_queue_new(b, &diag, &from_b), &diag);
        HR_EXPECT(!hr_queue_can_copy(from_a, b->props.kind));
        HR_EXPECT(hr_queue_can_copy(from_b, a->props.kind));
        HR_EXPECT_EQ(hr_queue_copy(from_a, &byte, &byte, b->props.kind, 1, NULL, &diag),
                     HR_E_UNSUPPORTED);
        from_a = hr_queue_free(from_a);
        from_b = hr_queue_free(from_b);
        a = hr_device_unref(a);
        /* Whoever is opened after the test says so. */
        a = device_of(0, "a", 0);
        HR_EXPECT(strstr(a->props.description, "copies to GPU 1 go through the host"));
        HR_EXPECT(!strstr(b->props.description, "through the host"));
        a = hr_device_unref(a);
        b = hr_device_unref(b);
        HR_EXPECT_EQ(fake_leaks(), 0);
}

HR_TEST(denied_ops_are_read_as_a_list) {
        struct hr_cuda_config config = { .name = "x", .deny_ops = "MUL_MAT, NO_SUCH" };
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };

        fake_begin(1);
        HR_EXPECT_EQ(hr_cuda_device_new(&config, &diag, &device), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "OP");
        HR_EXPECT_EQ(fake_leaks(), 0);
}

/* Uploads of many pieces wrap round the pinned memory; what the host reads is what it wrote. */
HR_TEST(large_copies_go_in_pieces_and_take_no_memory_twice) {
        const uint64_t bytes = (9 << 20) + 12345;
        struct hr_event *event = NULL;
        struct hr_buffer *buffer = NULL;
        struct hr_queue *queue = NULL;
        struct hr_device *device;
        struct hr_diag diag = { 0 };
        uint8_t *out = malloc(bytes), *in = malloc(bytes);

        HR_EXPECT(out && in);
        for (uint64_t i = 0; i < bytes; i++)
                out[i] = (uint8_t) (i * 131 + i / 4096);
        fake_begin(5);
        device = device_of(0, "large", 0);
        HR_EXPECT_OK(hr_queue_new(device, &diag, &queue), &diag);
        HR_EXPECT_OK(hr_event_new(device, &diag, &event), &diag);
        HR_EXPECT_OK(hr_buffer_new(device, bytes, HR_USAGE_ANY, &diag, &buffer), &diag);
        HR_EXPECT_OK(hr_queue_write(queue, buffer->base, out, bytes, NULL, &diag), &diag);
        HR_EXPECT_OK(hr_queue_read(queue, buffer->base, in, bytes, NULL, &diag), &diag);
        /* The source of this write is what the read brings: it has to wait for it. */
        HR_EXPECT_OK(hr_queue_write(queue, buffer->base, in, bytes, NULL, &diag), &diag);
        HR_EXPECT_OK(hr_queue_read(queue, buffer->base, out, bytes, NULL, &diag), &diag);
        HR_EXPECT_OK(hr_queue_record(queue, event, &diag), &diag);
        HR_EXPECT_OK(hr_event_synchronize(event, UINT64_C(10000000000), &diag), &diag);
        for (uint64_t i = 0; i < bytes; i++)
                HR_EXPECT(out[i] == (uint8_t) (i * 131 + i / 4096));
        HR_EXPECT_EQ(cuda_queue_growths(queue), 0);
        queue = hr_queue_free(queue);
        event = hr_event_free(event);
        buffer = hr_buffer_unref(buffer);
        device = hr_device_unref(device);
        free(out);
        free(in);
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}
