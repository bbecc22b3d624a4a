/*
 * Products of float rows.
 *
 * float_dot keeps one accumulator vector per result and walks k in order, so that a result's bits
 * depend on its row and column alone. Rows of f16 and bf16 are widened once per block of rows when
 * several columns use them.
 */
#include "backends/cpu/matrix/tables.h"

#define ROWS 4

LANES_INLINE lanes_f load_row(uint32_t type, const uint8_t *row, int64_t i) {
        if (type == HR_TYPE_F16)
                return lanes_load_f16(row + 2 * i);
        if (type == HR_TYPE_BF16)
                return lanes_load_bf16(row + 2 * i);
        return lanes_load_f((const float *) (const void *) (row + 4 * i));
}

LANES_INLINE lanes_f load_row_part(uint32_t type, const uint8_t *row, int64_t i, unsigned count) {
        uint16_t halves[CPU_LANES] = {0};

        if (type == HR_TYPE_F32)
                return lanes_load_part_f((const float *) (const void *) (row + 4 * i), count);
        memcpy(halves, row + 2 * i, count * sizeof halves[0]);
        return load_row(type, (const uint8_t *) halves, 0);
}

/* The rows of the next block come in a line: into the first-level cache when it is their turn soon,
 * into the second from farther away. */
LANES_INLINE void prefetch_row(const uint8_t *next) {
        __builtin_prefetch(next + 16384, 0, 2);
        __builtin_prefetch(next, 0, 3);
}

/* `rows` (1 or ROWS) x `width` results. */
LANES_INLINE void dot_block(uint32_t type, const uint8_t *const *row, const int rows,
                            const uint8_t *columns, uint64_t column_stride, const int width,
                            int64_t k, float *ret_out, uint64_t out_stride) {
        lanes_f sum[CPU_FLOAT_WIDTH][ROWS], w[ROWS];
        const int bytes = type == HR_TYPE_F32 ? 4 : 2;
        const int64_t next = rows == ROWS ? ROWS * (row[1] - row[0]) : 0; /* the next block's rows */
        int64_t i = 0;

        for (int c = 0; c < width; c++)
                for (int r = 0; r < ROWS; r++)
                        sum[c][r] = lanes_set_f(0);
        for (; i + CPU_LANES <= k; i += CPU_LANES) {
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                        if (width == 1 && rows == ROWS && next)
                                prefetch_row(row[0] + next + bytes * (ROWS * i + r * CPU_LANES));
                        w[r] = load_row(type, row[r], i);
                }
#pragma GCC unroll 8
                for (int c = 0; c < width; c++) {
                        const uint8_t *column = columns + column_stride * (uint64_t) c;
                        lanes_f a = load_row(HR_TYPE_F32, column, i);

#pragma GCC unroll 4
                        for (int r = 0; r < rows; r++)
                                sum[c][r] = lanes_fma(w[r], a, sum[c][r]);
                }
        }
        if (i < k) {
                unsigned count = (unsigned) (k - i);

                for (int r = 0; r < rows; r++)
                        w[r] = load_row_part(type, row[r], i, count);
#pragma GCC unroll 8
                for (int c = 0; c < width; c++) {
                        const uint8_t *column = columns + column_stride * (uint64_t) c;
                        lanes_f a = load_row_part(HR_TYPE_F32, column, i, count);

#pragma GCC unroll 4
                        for (int r = 0; r < rows; r++)
                                sum[c][r] = lanes_fma(w[r], a, sum[c][r]);
                }
        }
#pragma GCC unroll 8
        for (int c = 0; c < width; c++) {
                float out[ROWS];

                lanes_sum4(sum[c], out);
                memcpy(ret_out + out_stride * (uint64_t) c, out, (size_t) rows * sizeof out[0]);
        }
}

/* All columns for 1 or ROWS rows. */
LANES_INLINE void dot_columns(uint32_t type, const uint8_t *const *row, const int rows,
                              const uint8_t *columns, uint64_t column_stride, uint32_t width,
                              int64_t k, float *ret_out, uint64_t out_stride) {
        while (width) {
                uint32_t step = width >= CPU_FLOAT_WIDTH ? CPU_FLOAT_WIDTH : width >= 2 ? 2 : 1;

                if (step == CPU_FLOAT_WIDTH)
                        dot_block(type, row, rows, columns, column_stride, CPU_FLOAT_WIDTH, k,
                                  ret_out, out_stride);
                else if (step == 2)
                        dot_block(type, row, rows, columns, column_stride, 2, k, ret_out, out_stride);
                else
                        dot_block(type, row, rows, columns, column_stride, 1, k, ret_out, out_stride);
                columns += column_stride * step;
                ret_out += out_stride * step;
                width -= step;
        }
}

#define X(name, type)                                                                              \
        static void dot_rows4_##name(const uint8_t *const *row, const uint8_t *columns,            \
                                     uint64_t column_stride, uint32_t width, int64_t k,            \
                                     float *ret_out, uint64_t out_stride) {                        \
                dot_columns(type, row, ROWS, columns, column_stride, width, k, ret_out,            \
                            out_stride);                                                           \
        }                                                                                          \
        static void dot_rows1_##name(const uint8_t *const *row, const uint8_t *columns,            \
                                     uint64_t column_stride, uint32_t width, int64_t k,            \
                                     float *ret_out, uint64_t out_stride) {                        \
                dot_columns(type, row, 1, columns, column_stride, width, k, ret_out, out_stride);  \
        }
X(f32, HR_TYPE_F32)
X(f16, HR_TYPE_F16)
X(bf16, HR_TYPE_BF16)
#undef X

void CPU_ISA(float_dot)(uint32_t type, const uint8_t *base, uint64_t stride, uint32_t rows,
                        const uint8_t *columns, uint64_t column_stride, uint32_t width, int64_t k,
                        float *spare, float *ret_out, uint64_t out_stride) {
        typedef void (*rows_fn)(const uint8_t *const *, const uint8_t *, uint64_t, uint32_t, int64_t,
                                float *, uint64_t);
        bool widen = type != HR_TYPE_F32 && width > CPU_FLOAT_WIDTH;
        rows_fn four = dot_rows4_f32, one = dot_rows1_f32;

        if (type == HR_TYPE_F16 && !widen)
                four = dot_rows4_f16, one = dot_rows1_f16;
        else if (type == HR_TYPE_BF16 && !widen)
                four = dot_rows4_bf16, one = dot_rows1_bf16;
        while (rows) {
                uint32_t step = rows >= ROWS ? ROWS : 1;
                const uint8_t *row[ROWS];

                for (uint32_t r = 0; r < step; r++) {
                        row[r] = base + stride * r;
                        if (!widen)
                                continue;
                        if (type == HR_TYPE_F16)
                                CPU_ISA(dequantize_f16)(row[r], spare + k * r, k);
                        else
                                CPU_ISA(dequantize_bf16)(row[r], spare + k * r, k);
                        row[r] = (const uint8_t *) (spare + k * r);
                }
                (step == ROWS ? four : one)(row, columns, column_stride, width, k, ret_out,
                                            out_stride);
                base += stride * step;
                ret_out += step;
                rows -= step;
        }
}
