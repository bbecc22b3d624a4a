/*
 * Products of bf16 rows with the processor's own instruction for them: AVX-512 with BF16.
 *
 * It multiplies pairs of bf16 and adds both to an f32, twice the work of a fused multiply-add. What
 * else the set "avx512bf16" has is that of "avx512". As in dot_float.c a result is one chain of
 * steps for each chunk of k, whatever the rows and columns around it; columns are bf16, too.
 */
#include <immintrin.h>

#include "backends/cpu/matrix/tables.h"
#include "backends/cpu/matrix/tile_rows.h"
#include "core/thread.h"

#define ROWS 4
#define STEP 32    /* elements of a vector */
#define CHUNK 2048 /* elements of which ROWS rows stay in the first-level cache */
#define MANY 9     /* as in dot_float.c */

LANES_INLINE __m512bh load_pairs(const uint8_t *at, const __mmask32 mask) {
        return (__m512bh) _mm512_maskz_loadu_epi16(mask, at);
}

/* Elements [i, k) of `rows` (1 or ROWS) x `width` results; not the first ones are added to what is
 * there. */
LANES_INLINE void multiply_block(const uint8_t *base, uint64_t stride, const int rows,
                                 const uint8_t *columns, uint64_t column_stride, const int width,
                                 int64_t i, int64_t k, float *ret_out, uint64_t out_stride) {
        const bool first = i == 0;
        lanes_f sum[6][ROWS];

        for (int c = 0; c < width; c++)
                for (int r = 0; r < ROWS; r++)
                        sum[c][r] = lanes_set_f(0);
        for (; i < k; i += STEP) {
                const __mmask32 mask = k - i >= STEP ? 0xffffffffU : (1U << (k - i)) - 1;
                __m512bh w[ROWS];

#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                        if (width <= FEW_AT_ONCE && rows == ROWS)
                                prefetch_row(base + stride * ROWS + 2 * (ROWS * i + r * STEP),
                                             stride * ROWS <= PREFETCH_FAR,
                                             base + stride * (uint64_t) r + 2 * i);
                        w[r] = load_pairs(base + stride * (uint64_t) r + 2 * i, mask);
                }
#pragma GCC unroll 6
                for (int c = 0; c < width; c++) {
                        const __m512bh a =
                                load_pairs(columns + column_stride * (uint64_t) c + 2 * i, mask);

#pragma GCC unroll 4
                        for (int r = 0; r < rows; r++)
                                sum[c][r] = (lanes_f) _mm512_dpbf16_ps((__m512) sum[c][r], w[r], a);
                }
        }
#pragma GCC unroll 6
        for (int c = 0; c < width; c++) {
                float *to = ret_out + out_stride * (uint64_t) c, out[ROWS];

                lanes_sum4(sum[c], out);
                for (int r = 0; r < rows; r++)
                        to[r] = first ? out[r] : to[r] + out[r];
        }
}

LANES_INLINE void multiply_rows(const uint8_t *base, uint64_t stride, const int rows,
                                const uint8_t *columns, uint64_t column_stride, uint32_t width,
                                int64_t i, int64_t k, float *ret_out, uint64_t out_stride) {
        while (width) {
                uint32_t step = width == 8 ? 4 : width >= 6 ? 6 : width >= 4 ? 4 : 1;

                if (step == 6)
                        multiply_block(base, stride, rows, columns, column_stride, 6, i, k, ret_out,
                                       out_stride);
                else if (step == 4)
                        multiply_block(base, stride, rows, columns, column_stride, 4, i, k, ret_out,
                                       out_stride);
                else
                        multiply_block(base, stride, rows, columns, column_stride, 1, i, k, ret_out,
                                       out_stride);
                columns += column_stride * step;
                ret_out += out_stride * step;
                width -= step;
        }
}

static void multiply_four(const uint8_t *base, uint64_t stride, const uint8_t *columns,
                          uint64_t column_stride, uint32_t width, int64_t i, int64_t k,
                          float *ret_out, uint64_t out_stride) {
        multiply_rows(base, stride, ROWS, columns, column_stride, width, i, k, ret_out, out_stride);
}

static void multiply_one(const uint8_t *base, uint64_t stride, const uint8_t *columns,
                         uint64_t column_stride, uint32_t width, int64_t i, int64_t k,
                         float *ret_out, uint64_t out_stride) {
        multiply_rows(base, stride, 1, columns, column_stride, width, i, k, ret_out, out_stride);
}

static void float_dot_bf16(uint32_t type, const uint8_t *base, uint64_t stride, uint32_t rows,
                           const uint8_t *columns, uint64_t column_stride, uint32_t width,
                           int64_t k, float *spare, float *ret_out, uint64_t out_stride) {
        const uint32_t abreast = width > 1 || stride >= LONG_ROW ? ROWS : 1;

        if (type != HR_TYPE_BF16) {
                CPU_ISA(float_dot)(type, base, stride, rows, columns, column_stride, width, k,
                                   spare, ret_out, out_stride);
                return;
        }
        for (uint32_t from = 0, to; from < rows; from = to) {
                int64_t first = 0;

                to = HR_MIN(from + (width >= MANY ? rows : abreast), rows);
                do { /* once when k is 0: zeros */
                        int64_t end = k - first > CHUNK ? first + CHUNK : k;

                        for (uint32_t r = from, step; r < to; r += step) {
                                step = to - r >= ROWS ? ROWS : 1;
                                (step == ROWS ? multiply_four : multiply_one)(
                                        base + stride * r, stride, columns, column_stride, width,
                                        first, end, ret_out + r, out_stride);
                        }
                        first = end;
                } while (first < k);
        }
}

static void float_column_bf16(uint32_t type, const float *values, int64_t k, uint8_t *ret_column) {
        if (type == HR_TYPE_BF16)
                CPU_ISA(quantize_bf16)(values, ret_column, k);
        else
                CPU_ISA(float_column)(type, values, k, ret_column);
}

static struct cpu_dot table;

static void table_fill(void) {
        table = CPU_ISA(cpu_dot);
        table.name = "avx512bf16";
        table.float_dot = float_dot_bf16;
        table.float_column = float_column_bf16;
}

const struct cpu_dot *cpu_dot_avx512bf16(void) {
        static hr_once once = HR_ONCE_INIT;

        hr_once_call(&once, table_fill);
        return &table;
}
