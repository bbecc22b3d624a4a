/*
 * Products with few columns, whatever rows begin at, however long they are, and whatever lies
 * between them: each type's own kernel, which reads words and pieces, agrees with the kernel of all
 * the others, which reads bytes and halves; and none reads a byte that is not its own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/kernels/args.h"
#include "core/type.h"
#include "tests/cuda/blocks.h"
#include "tests/cuda/checks.h"
#include "tests/harness.h"

enum { ROWS = 9, K_MAX = 9 * 1024 + 256, COLUMNS_MAX = 8, TENSORS = 5 };

static struct checks_range ranges[TENSORS];
static uint32_t chance;

static unsigned memory_list(struct checks_range *ret_ranges, unsigned room) {
        for (unsigned i = 0; i < TENSORS && i < room; i++)
                ret_ranges[i] = ranges[i];
        return TENSORS;
}

static uint32_t next(void) {
        chance = chance * 1664525 + 1013904223;
        return chance >> 16;
}

static const struct kind {
        const char *kernel;
        uint32_t type;
} kinds[] = {
#define X(name) { "stream_" #name, HR_TYPE_##name },
        CUDA_STREAM_TYPES(X)
#undef X
};

/* Bytes of which no two are a half that is infinite or no number. */
static void rows_fill(const struct kind *kind, uint8_t *rows, uint64_t bytes) {
        for (uint64_t i = 0; i < bytes; i++)
                rows[i] = (uint8_t) (next() & 0xbb);
        for (uint64_t i = 0; kind->type == HR_TYPE_MXFP4 && i < bytes; i++)
                rows[i] = (uint8_t) (118 + next() % 8); /* any may be a scale */
}

static struct cuda_tensor tensor_of(const struct checks_range *range, uint32_t type, int64_t n0,
                                    int64_t n1, int64_t row_bytes) {
        return (struct cuda_tensor) { .data = range->base,
                                      .ne = { n0, n1, 1, 1 },
                                      .nb = { hr_type_info(type)->block_bytes, row_bytes,
                                              n1 * row_bytes, n1 * row_bytes },
                                      .type = type,
                                      .is_present = 1 };
}

static void launch(const char *name, uint32_t blocks, const void *args) {
        const struct cuda_host_kernel *kernel = blocks_find(name);

        HR_EXPECT(kernel);
        HR_EXPECT(blocks_run(kernel, blocks, CUDA_THREADS, args));
        if (checks_findings())
                hr_test_fail(__FILE__, __LINE__, "%s: %s", name, checks_take());
}

enum { A, B, BYTES, SCALES, OUT };

static void *range_take(unsigned i, uint64_t bytes, uint64_t offset) {
        uint8_t *base = aligned_alloc(256, (bytes + offset + 255) / 256 * 256);

        HR_EXPECT(base);
        ranges[i] = (struct checks_range) { (uint64_t) (uintptr_t) (base + offset), bytes };
        return base;
}

/* Both kernels' results for rows that begin `offset` behind a multiple of 256. */
static void compare(const struct kind *kind, int64_t k, int64_t columns, uint64_t offset,
                    uint64_t gap) {
        const struct hr_type_info *info = hr_type_info(kind->type);
        int64_t group = info->block_elements == 256 ? CUDA_ROUNDED_LARGE : CUDA_ROUNDED;
        uint64_t row_bytes = (uint64_t) k / info->block_elements * info->block_bytes;
        uint64_t whole = (ROWS - 1) * (row_bytes + gap) + row_bytes;
        void *bases[] = { range_take(A, whole, offset), range_take(B, 4 * k * columns, 0),
                          range_take(BYTES, (k + group - 1) / group * group * columns, 0),
                          range_take(SCALES, k / 32 * columns * sizeof(struct cuda_activation), 0),
                          range_take(OUT, 4 * ROWS * columns, 0) };
        float *b = bases[B], *out = bases[OUT], first[ROWS * COLUMNS_MAX], most = 0;
        struct cuda_round_args round = { .in = tensor_of(&ranges[B], HR_TYPE_F32, k, columns,
                                                         4 * k),
                                         .bytes = ranges[BYTES].base,
                                         .scales = ranges[SCALES].base,
                                         .is_large = info->block_elements == 256 };
        struct cuda_product_args args = {
                .out = tensor_of(&ranges[OUT], HR_TYPE_F32, ROWS, columns, 4 * ROWS),
                .a = tensor_of(&ranges[A], kind->type, k, ROWS, (int64_t) (row_bytes + gap)),
                .b = round.in,
                .ids = { .ne = { 1, 1, 1, 1 } },
                .bytes = round.bytes,
                .scales = round.scales,
        };

        rows_fill(kind, (uint8_t *) bases[A] + offset, whole);
        for (int64_t i = 0; i < k * columns; i++)
                b[i] = (float) (int) (next() % 2001) / 1000.0f - 1.0f;
        launch("round_columns", 3, &round);
        launch("stream_any", 2, &args);
        memcpy(first, out, 4 * ROWS * (size_t) columns);
        memset(out, 0xff, 4 * ROWS * (size_t) columns);
        launch(kind->kernel, 2, &args);
        for (int64_t i = 0; i < ROWS * columns; i++)
                most = fmaxf(most, fabsf(first[i]));
        for (int64_t i = 0; i < ROWS * columns; i++)
                if (!(fabsf(out[i] - first[i]) <= 1e-4f * most))
                        hr_test_fail(__FILE__, __LINE__,
                                     "%s, %lld elements, offset %llu, gap %llu: %g, not %g",
                                     kind->kernel, (long long) k, (unsigned long long) offset,
                                     (unsigned long long) gap, (double) out[i], (double) first[i]);
        for (unsigned i = 0; i < TENSORS; i++)
                free(bases[i]);
}

static void begin(void) {
        chance = 7;
        checks_begin(memory_list);
        blocks_shuffle(1);
}

/* One block, parts of a chunk, and more chunks than there are places for. */
HR_TEST_LIMIT(rows_of_any_length_are_multiplied, 60) {
        static const int64_t lengths[] = { 256, 1280, 4096, K_MAX };

        begin();
        for (size_t i = 0; i < HR_ARRAY_LENGTH(kinds); i++) {
                for (size_t l = 0; l < HR_ARRAY_LENGTH(lengths); l++)
                        compare(&kinds[i], lengths[l], 1, 0, 0);
                if (hr_type_info(kinds[i].type)->block_elements == 32)
                        compare(&kinds[i], 32 * 21, 1, 0, 0);
                compare(&kinds[i], 2304, 3, 0, 0);
                compare(&kinds[i], 512, COLUMNS_MAX, 0, 0);
        }
}

HR_TEST_LIMIT(rows_anywhere_are_multiplied, 60) {
        static const struct {
                uint64_t offset, gap;
        } places[] = { { 2, 0 }, { 4, 0 }, { 14, 2 }, { 0, 6 }, { 8, 16 }, { 16, 4 } };

        begin();
        for (size_t i = 0; i < HR_ARRAY_LENGTH(kinds); i++)
                for (size_t p = 0; p < HR_ARRAY_LENGTH(places); p++)
                        compare(&kinds[i], 512 + 256 * (int64_t) p, 1 + p % 2, places[p].offset,
                                places[p].gap);
}
