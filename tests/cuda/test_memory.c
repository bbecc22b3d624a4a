/* Memory that grows without moving: what was there stays, what comes is zero, caps and the GPU's
 * own bounds hold, and no call whose failure leaks or changes what was there. */
#include <stdlib.h>

#include "backends/cuda/backend.h"
#include "core/clock.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/harness.h"

enum { FIRST = 100 << 10, MORE = 700 << 10, TIMEOUT_S = 20 };

struct shed {
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
        struct hr_buffer *buffer;
        struct hr_diag diag;
};

static hr_status shed_open(struct shed *shed, uint64_t cap, hr_buffer_usage usage) {
        struct hr_cuda_config config = { .name = "shed", .gpu = 0, .memory_cap = cap };

        *shed = (struct shed) { 0 };
        HR_TRY(hr_cuda_device_new(&config, &shed->diag, &shed->device));
        HR_TRY(hr_queue_new(shed->device, &shed->diag, &shed->queue));
        HR_TRY(hr_event_new(shed->device, &shed->diag, &shed->event));
        return hr_buffer_new(shed->device, FIRST, usage, &shed->diag, &shed->buffer);
}

static void shed_close(struct shed *shed) {
        shed->queue = hr_queue_free(shed->queue);
        shed->event = hr_event_free(shed->event);
        shed->buffer = hr_buffer_unref(shed->buffer);
        if (shed->device)
                HR_EXPECT_EQ(atomic_load(&shed->device->used_bytes), 0);
        shed->device = hr_device_unref(shed->device);
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}

static hr_status shed_move(struct shed *shed, uint8_t *bytes, uint64_t count, bool out) {
        struct hr_outcome outcome = { 0 };

        if (out)
                HR_TRY(hr_queue_read(shed->queue, shed->buffer->base, bytes, count, &outcome,
                                     &shed->diag));
        else
                HR_TRY(hr_queue_write(shed->queue, shed->buffer->base, bytes, count, &outcome,
                                      &shed->diag));
        HR_TRY(hr_queue_record(shed->queue, shed->event, &shed->diag));
        HR_TRY(hr_event_synchronize(shed->event, TIMEOUT_S * HR_NS_PER_S, &shed->diag));
        return hr_outcome_failed(&outcome) ? hr_outcome_diag(&outcome)->status : HR_OK;
}

/* Fills it, lets it grow, looks at it. What fails is returned, and has left things as they were. */
static hr_status shed_grow(struct shed *shed, uint64_t bytes) {
        const void *base = shed->buffer->base;
        uint64_t had = shed->buffer->bytes;
        uint8_t *values = malloc(bytes);
        hr_status status, grown;

        HR_EXPECT(values && bytes >= had);
        for (uint64_t i = 0; i < had; i++)
                values[i] = (uint8_t) (i * 7 + 1);
        status = shed_move(shed, values, had, false);
        grown = hr_buffer_grow(shed->buffer, bytes, &shed->diag);
        HR_EXPECT(shed->buffer->base == base);
        HR_EXPECT_EQ(shed->buffer->bytes, grown == HR_OK ? bytes : had);
        HR_EXPECT_EQ(atomic_load(&shed->device->used_bytes), shed->buffer->bytes);
        if (status == HR_OK) {
                memset(values, 0xee, bytes);
                status = shed_move(shed, values, shed->buffer->bytes, true);
        }
        for (uint64_t i = 0; status == HR_OK && i < shed->buffer->bytes; i++)
                HR_EXPECT(values[i] == (i < had ? (uint8_t) (i * 7 + 1) : 0));
        free(values);
        return grown != HR_OK ? grown : status;
}

HR_TEST(memory_grows_where_it_is) {
        struct shed shed;

        fake_begin(1);
        HR_EXPECT_OK(shed_open(&shed, 0, HR_USAGE_COMPUTE), &shed.diag);
        HR_EXPECT_OK(shed_grow(&shed, FIRST + 1), &shed.diag); /* the piece that it has is larger */
        HR_EXPECT_OK(shed_grow(&shed, MORE), &shed.diag);
        HR_EXPECT_OK(shed_grow(&shed, MORE), &shed.diag);
        HR_EXPECT_OK(shed_grow(&shed, 3 * MORE + 5), &shed.diag);
        shed_close(&shed);
}

HR_TEST(it_grows_as_far_as_it_may) {
        struct shed shed;

        fake_begin(1);
        fake_set_memory(1 << 20);
        HR_EXPECT_OK(shed_open(&shed, 0, HR_USAGE_COMPUTE), &shed.diag);
        HR_EXPECT_EQ(shed_grow(&shed, 2 << 20), HR_E_UNSUPPORTED); /* more than the GPU has */
        HR_EXPECT_OK(shed_grow(&shed, MORE), &(struct hr_diag) { 0 });
        shed_close(&shed);
        fake_begin(1);
        HR_EXPECT_OK(shed_open(&shed, MORE, HR_USAGE_COMPUTE), &shed.diag);
        HR_EXPECT_EQ(shed_grow(&shed, MORE + 1), HR_E_EXHAUSTED); /* than the device may have */
        HR_EXPECT_STREQ(hr_diag_reason(&shed.diag), "DEVICE_MEMORY");
        HR_EXPECT_OK(shed_grow(&shed, MORE), &(struct hr_diag) { 0 });
        shed_close(&shed);
}

/* Weights have no addresses to grow into, nor has a GPU without virtual memory. */
HR_TEST(what_cannot_grow_says_so) {
        static const char *const names[] = { "cuMemGetAllocationGranularity", "cuMemAddressReserve",
                                             "cuMemCreate", "cuMemMap", "cuMemSetAccess" };
        struct shed shed;

        fake_begin(1);
        HR_EXPECT_OK(shed_open(&shed, 0, HR_USAGE_WEIGHTS), &shed.diag);
        HR_EXPECT_EQ(shed_grow(&shed, MORE), HR_E_UNSUPPORTED);
        shed_close(&shed);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++) {
                fake_begin(1);
                fake_fail_name(names[i], CUDA_ERROR_NOT_SUPPORTED);
                HR_EXPECT_OK(shed_open(&shed, 0, HR_USAGE_COMPUTE), &shed.diag);
                HR_EXPECT_EQ(shed_grow(&shed, MORE), HR_E_UNSUPPORTED);
                shed_close(&shed);
        }
}

static void fail_every_call(CUresult result) {
        uint64_t call = 0;

        do {
                struct shed shed;
                hr_status status;

                fake_begin((uint32_t) call + 1);
                fake_fail_call(call, result);
                status = shed_open(&shed, 0, HR_USAGE_COMPUTE);
                if (status == HR_OK)
                        status = shed_grow(&shed, MORE);
                if (status == HR_E_DEVICE_LOST)
                        HR_EXPECT(cuda_result_is_sticky(result));
                HR_EXPECT(status == HR_OK || hr_status_scope(status) == HR_SCOPE_REQUEST ||
                          hr_status_scope(status) == HR_SCOPE_DEVICE);
                shed_close(&shed);
        } while (fake_calls() > call++);
        HR_EXPECT(call > 50);
}

HR_TEST_LIMIT(every_call_fails_without_memory, 60) {
        fail_every_call(CUDA_ERROR_OUT_OF_MEMORY);
}

HR_TEST_LIMIT(every_call_ends_its_context, 60) {
        fail_every_call(CUDA_ERROR_ILLEGAL_ADDRESS);
}
