/* Host memory as buffers: what is given, and what lies around it. */
#include <errno.h>
#include <unistd.h>

#include "core/host.h"
#include "tests/harness.h"

/* Where a sanitizer guards the ends of what the allocator gives, only the large is mapped. */
#if defined(__SANITIZE_ADDRESS__)
#define MAPPED_FROM (UINT64_C(1) << 20)
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MAPPED_FROM (UINT64_C(1) << 20)
#endif
#endif
#ifndef MAPPED_FROM
#define MAPPED_FROM (UINT64_C(16) << 10)
#endif

static struct hr_device device = {.props = {.name = "host"}};
static const struct hr_buffer_kind kind = {.name = "memory", .alignment = 64, .host = true};

static struct hr_buffer *take(uint64_t bytes, hr_buffer_usage usage) {
        struct hr_buffer *buffer = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_EQ(hr_host_buffer_new(&device, &kind, bytes, usage, &diag, &buffer), HR_OK);
        return buffer;
}

static void give(struct hr_buffer *buffer) {
        buffer->ops->destroy(buffer);
}

/* The system is asked to read a byte: it refuses what a thread would die of. */
static bool can_read(const uint8_t *address) {
        bool ended_well;
        int ends[2];

        HR_EXPECT_EQ(pipe(ends), 0);
        ended_well = write(ends[1], address, 1) == 1;
        HR_EXPECT(ended_well || errno == EFAULT);
        (void) close(ends[0]);
        (void) close(ends[1]);
        return ended_well;
}

/* One mapping lies right below the one before: without a gap the bytes of two devices would be
 * neighbours. */
HR_TEST(host_memory_of_computations_has_a_gap_on_either_side) {
        static const uint64_t sizes[] = {20000, 64 << 10, 36864, (2 << 20) + 1, 9 << 20};
        const uint64_t page = (uint64_t) sysconf(_SC_PAGESIZE);
        struct hr_buffer *buffers[HR_ARRAY_LENGTH(sizes)];

        for (size_t i = 0; i < HR_ARRAY_LENGTH(sizes); i++)
                buffers[i] = take(sizes[i], HR_USAGE_COMPUTE);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(sizes); i++) {
                const uint8_t *base = buffers[i]->base;
                uint64_t room = (sizes[i] + page - 1) / page * page;

                HR_EXPECT(can_read(base) && can_read(base + sizes[i] - 1));
                if (sizes[i] < MAPPED_FROM)
                        continue;
                for (uint64_t far = 1; far <= 64 << 10; far += page - 1) {
                        HR_EXPECT(!can_read(base - far));
                        HR_EXPECT(!can_read(base + room + far - 1));
                }
        }
        for (size_t i = 0; i < HR_ARRAY_LENGTH(sizes); i++)
                give(buffers[i]);
}

HR_TEST(host_memory_is_zero_aligned_and_can_be_written) {
        static const uint64_t sizes[] = {0, 1, 100, 16 << 10, 1 << 20, 5 << 20};
        static const hr_buffer_usage usages[] = {HR_USAGE_ANY, HR_USAGE_WEIGHTS, HR_USAGE_COMPUTE};

        for (size_t u = 0; u < HR_ARRAY_LENGTH(usages); u++)
                for (size_t i = 0; i < HR_ARRAY_LENGTH(sizes); i++) {
                        struct hr_buffer *buffer = take(sizes[i], usages[u]);
                        uint8_t *bytes = buffer->base;

                        HR_EXPECT_EQ((uintptr_t) bytes % 64, 0);
                        HR_EXPECT_EQ(buffer->bytes, sizes[i]);
                        for (uint64_t k = 0; k < sizes[i]; k++)
                                HR_EXPECT_EQ(bytes[k], 0);
                        if (sizes[i])
                                memset(bytes, 0xff, (size_t) sizes[i]);
                        give(buffer);
                }
}
