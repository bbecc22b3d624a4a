/* Weights in memory of the host are locked and fetched by the GPU itself; what cannot be locked is
 * copied as ever; nothing stays locked when its memory goes. */
#include <sys/mman.h>
#include <unistd.h>

#include "backends/cuda/backend.h"
#include "backends/cuda/lane.h"
#include "core/clock.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/harness.h"

/* Two pieces of what is locked at once, and the ends that are no whole pages. */
enum { PAGE = 4096, OFFSET = 100, BYTES = (36 << 20) + 5000, TIMEOUT_S = 20 };
#define WHOLE_PAGES ((uint64_t) (OFFSET + BYTES) / PAGE * PAGE - PAGE)

struct home {
        uint8_t *memory;
        struct hr_device *devices[2];
        struct hr_queue *queues[2];
        struct hr_buffer *weights, *copies[2];
        uint8_t *result;
};

static uint8_t byte_of(uint64_t i) {
        return (uint8_t) (i * 131 + i / 4096 + 1);
}

static void gone(void *arg) {
        HR_EXPECT_EQ(munmap(arg, OFFSET + BYTES), 0);
}

static void home_open(struct home *home, uint64_t limit, int protection) {
        struct hr_diag diag = { 0 };

        home->memory = mmap(NULL, OFFSET + BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        HR_EXPECT(home->memory != MAP_FAILED);
        for (uint64_t i = 0; i < BYTES; i++)
                home->memory[OFFSET + i] = byte_of(i);
        HR_EXPECT_EQ(mprotect(home->memory, OFFSET + BYTES, protection), 0);
        for (uint32_t i = 0; i < 2; i++) {
                const struct hr_cuda_config config = { .name = i ? "second" : "first",
                                                       .gpu = i,
                                                       .pin_bytes = limit };

                HR_EXPECT_OK(hr_cuda_device_new(&config, &diag, &home->devices[i]), &diag);
                HR_EXPECT_OK(hr_queue_new(home->devices[i], &diag, &home->queues[i]), &diag);
                HR_EXPECT_OK(hr_buffer_new(home->devices[i], BYTES, HR_USAGE_ANY, &diag,
                                           &home->copies[i]),
                             &diag);
        }
        HR_EXPECT_OK(hr_buffer_wrap(home->devices[0], home->memory + OFFSET, BYTES,
                                    HR_USAGE_WEIGHTS, gone, home->memory, &diag, &home->weights),
                     &diag);
        home->result = malloc(BYTES);
        HR_EXPECT(home->result);
}

static void home_close(struct home *home) {
        home->weights = hr_buffer_unref(home->weights);
        for (uint32_t i = 0; i < 2; i++) {
                home->queues[i] = hr_queue_free(home->queues[i]);
                home->copies[i] = hr_buffer_unref(home->copies[i]);
                home->devices[i] = hr_device_unref(home->devices[i]);
        }
        free(home->result);
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}

/* So much is locked, or (0) it has been given up. */
static void await_pins(struct hr_device *device, uint64_t bytes) {
        for (int i = 0; i < TIMEOUT_S * 1000; i++) {
                if (atomic_load(&device->pins_failed) ||
                    (bytes && atomic_load(&device->pinned_bytes) == bytes))
                        break;
                (void) usleep(1000);
        }
        HR_EXPECT_EQ(atomic_load(&device->pinned_bytes), bytes);
}

/* So much of it went as it is; the piece of the ring that has the first bytes, which are no whole
 * page, reaches into what follows. */
static void expect_locked(uint64_t bytes) {
        HR_EXPECT(fake_locked_copied() <= bytes);
        HR_EXPECT(fake_locked_copied() + CUDA_STAGING_BYTES > bytes);
}

/* The weights go to a GPU and come back. */
static void expect_copied(struct home *home, uint32_t i) {
        struct hr_event *event = NULL;
        struct hr_diag diag = { 0 };

        memset(home->result, 0, BYTES);
        HR_EXPECT_OK(hr_event_new(home->devices[i], &diag, &event), &diag);
        HR_EXPECT_OK(hr_queue_write(home->queues[i], home->copies[i]->base,
                                    home->weights->host_base, BYTES, NULL, &diag),
                     &diag);
        HR_EXPECT_OK(hr_queue_read(home->queues[i], home->copies[i]->base, home->result, BYTES,
                                   NULL, &diag),
                     &diag);
        HR_EXPECT_OK(hr_queue_record(home->queues[i], event, &diag), &diag);
        HR_EXPECT_OK(hr_event_synchronize(event, TIMEOUT_S * HR_NS_PER_S, &diag), &diag);
        event = hr_event_free(event);
        for (uint64_t j = 0; j < BYTES; j++)
                HR_EXPECT(home->result[j] == byte_of(j));
}

HR_TEST_LIMIT(weights_of_the_host_are_fetched_as_they_are, 60) {
        struct home home = { 0 };
        uint64_t first = 0;

        fake_begin(3);
        home_open(&home, UINT64_MAX, PROT_READ | PROT_WRITE);
        expect_copied(&home, 0);
        HR_EXPECT_EQ(fake_locked_copied(), 0);
        for (uint32_t i = 0; i < 4; i++)
                hr_device_pin(home.devices[i % 2], home.weights);
        await_pins(home.devices[0], WHOLE_PAGES);
        HR_EXPECT_EQ(atomic_load(&home.devices[1]->pinned_bytes), 0);
        for (uint32_t i = 0; i < 2; i++) {
                expect_copied(&home, i);
                expect_locked(first * i + WHOLE_PAGES);
                first = fake_locked_copied();
        }
        home_close(&home);
}

HR_TEST_LIMIT(a_limit_leaves_the_rest_to_the_ring, 60) {
        struct home home = { 0 };

        fake_begin(4);
        home_open(&home, (1 << 20) + 5, PROT_READ | PROT_WRITE);
        hr_device_pin(home.devices[0], home.weights);
        await_pins(home.devices[0], 1 << 20);
        expect_copied(&home, 0);
        expect_locked(1 << 20);
        HR_EXPECT_EQ(atomic_load(&home.devices[0]->pins_failed), 0);
        home_close(&home);
        fake_begin(4);
        home = (struct home) { 0 };
        home_open(&home, 0, PROT_READ | PROT_WRITE);
        hr_device_pin(home.devices[0], home.weights);
        expect_copied(&home, 0);
        HR_EXPECT_EQ(fake_locked_copied(), 0);
        HR_EXPECT(!home.weights->pins);
        home_close(&home);
}

/* A mapped file. A GPU that cannot hold such memory is no failure of anything. */
HR_TEST_LIMIT(memory_that_cannot_be_written_is_locked_where_the_gpu_can, 60) {
        struct home home = { 0 };

        fake_begin(5);
        home_open(&home, UINT64_MAX, PROT_READ);
        hr_device_pin(home.devices[0], home.weights);
        await_pins(home.devices[0], WHOLE_PAGES);
        expect_copied(&home, 0);
        expect_locked(WHOLE_PAGES);
        home_close(&home);
        fake_begin(5);
        fake_without_read_only();
        home = (struct home) { 0 };
        home_open(&home, UINT64_MAX, PROT_READ);
        hr_device_pin(home.devices[0], home.weights);
        await_pins(home.devices[0], 0);
        HR_EXPECT_EQ(atomic_load(&home.devices[0]->pins_failed), 1);
        expect_copied(&home, 0);
        HR_EXPECT_EQ(fake_locked_copied(), 0);
        home_close(&home);
}

/* Whatever has been locked by then. */
HR_TEST_LIMIT(a_buffer_may_go_while_it_is_being_locked, 60) {
        for (unsigned pause_us = 0; pause_us < 3000; pause_us += 500) {
                struct home home = { 0 };

                fake_begin(6);
                home_open(&home, UINT64_MAX, PROT_READ | PROT_WRITE);
                hr_device_pin(home.devices[0], home.weights);
                (void) usleep(pause_us);
                home_close(&home);
        }
}

HR_TEST_LIMIT(what_a_lost_gpu_has_locked_is_used_no_more, 60) {
        struct home home = { 0 };
        uint64_t before;

        fake_begin(7);
        home_open(&home, UINT64_MAX, PROT_READ | PROT_WRITE);
        hr_device_pin(home.devices[0], home.weights);
        await_pins(home.devices[0], WHOLE_PAGES);
        fake_lose(0, 0, CUDA_ERROR_ECC_UNCORRECTABLE);
        for (int i = 0; i < TIMEOUT_S * 1000 && !hr_device_is_lost(home.devices[0]); i++) {
                hr_status status = hr_queue_write(home.queues[0], home.copies[0]->base,
                                                  home.weights->host_base, BYTES, NULL, NULL);

                HR_EXPECT(status == HR_OK || status == HR_E_DEVICE_LOST);
                (void) usleep(1000);
        }
        HR_EXPECT(hr_device_is_lost(home.devices[0]));
        home.queues[0] = hr_queue_free(home.queues[0]);
        before = fake_locked_copied();
        expect_copied(&home, 1);
        HR_EXPECT_EQ(fake_locked_copied(), before);
        home_close(&home);
}

/* Of the calls that only locking makes, each fails by itself. */
HR_TEST_LIMIT(locking_that_fails_is_no_failure, 60) {
        static const char *const names[] = { "cuMemHostRegister", "cuMemHostUnregister" };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++) {
                struct home home = { 0 };

                fake_begin(8);
                fake_fail_name(names[i], CUDA_ERROR_OUT_OF_MEMORY);
                home_open(&home, UINT64_MAX, PROT_READ | PROT_WRITE);
                hr_device_pin(home.devices[0], home.weights);
                await_pins(home.devices[0], i == 0 ? 0 : WHOLE_PAGES);
                expect_copied(&home, 0);
                home_close(&home);
        }
}
