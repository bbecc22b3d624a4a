/*
 * Products of float rows.
 *
 * float_dot keeps one accumulator vector per result and walks k in order, so that a result's bits
 * depend on its row and column alone. Chunks of k are summed one after the other, so that a block
 * of rows stays in the first-level cache while the columns pass, and with many columns their chunk
 * in the second-level one while all rows do. With a single column short rows go one by one: nobody
 * fetches ahead as well as the processor itself, where it sees one stream. Only f32 is used faster
 * than it sees ahead. Rows of f16 and bf16 are widened while they are loaded; by plain C, where
 * that is slow and many columns use them, before: side by side but not a power of two apart, where
 * they would fall into the same few places of the cache.
 */
#include "backends/cpu/matrix/tables.h"
#include "backends/cpu/matrix/tile_rows.h"

#define ROWS 4
/* Columns up to which rows of 16 bits are widened again and again. */
#define FEW (CPU_LANES > 4 ? UINT32_MAX : 8)
#define MANY 9 /* columns from which on all rows take a chunk of k before the next one */

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

/* Elements [i, k) of `rows` (1 or ROWS) x `width` results; not the first ones are added to what
 * is there. */
LANES_INLINE void dot_block(uint32_t type, const uint8_t *const *row, const int rows,
                            const uint8_t *columns, uint64_t column_stride, const int width,
                            int64_t i, int64_t k, float *ret_out, uint64_t out_stride) {
        lanes_f sum[CPU_FLOAT_WIDTH][ROWS], w[ROWS];
        const int bytes = type == HR_TYPE_F32 ? 4 : 2;
        const int64_t next =
                rows == ROWS ? ROWS * (row[1] - row[0]) : 0; /* the next block's rows */
        const bool first = i == 0;

        for (int c = 0; c < width; c++)
                for (int r = 0; r < ROWS; r++)
                        sum[c][r] = lanes_set_f(0);
        for (; i + CPU_LANES <= k; i += CPU_LANES) {
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                        if (type == HR_TYPE_F32 && rows == 1 && width == 1)
                                __builtin_prefetch(row[r] + bytes * i + ROW_AHEAD, 0, 2);
                        if (width <= FEW_AT_ONCE && rows == ROWS && next)
                                prefetch_row(row[0] + next + bytes * (ROWS * i + r * CPU_LANES),
                                             next <= PREFETCH_FAR, row[r] + bytes * i);
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
                float *to = ret_out + out_stride * (uint64_t) c, out[ROWS];

                lanes_sum4(sum[c], out);
                for (int r = 0; r < rows; r++)
                        to[r] = first ? out[r] : to[r] + out[r];
        }
}

/* How many of `width` columns go into a register block. */
LANES_INLINE uint32_t block_width(uint32_t width) {
        if (CPU_FLOAT_WIDTH > 4 && width == 2 * 4)
                return 4;
        if (width >= CPU_FLOAT_WIDTH)
                return CPU_FLOAT_WIDTH;
        return CPU_FLOAT_WIDTH > 4 && width >= 4 ? 4 : width >= 2 ? 2 : 1;
}

/* All columns for 1 or ROWS rows. */
LANES_INLINE void dot_columns(uint32_t type, const uint8_t *const *row, const int rows,
                              const uint8_t *columns, uint64_t column_stride, uint32_t width,
                              int64_t first, int64_t end, float *ret_out, uint64_t out_stride) {
        while (width) {
                uint32_t step = block_width(width);

                if (step == CPU_FLOAT_WIDTH)
                        dot_block(type, row, rows, columns, column_stride, CPU_FLOAT_WIDTH, first,
                                  end, ret_out, out_stride);
                else if (CPU_FLOAT_WIDTH > 4 && step == 4)
                        dot_block(type, row, rows, columns, column_stride, 4, first, end, ret_out,
                                  out_stride);
                else if (step == 2)
                        dot_block(type, row, rows, columns, column_stride, 2, first, end, ret_out,
                                  out_stride);
                else
                        dot_block(type, row, rows, columns, column_stride, 1, first, end, ret_out,
                                  out_stride);
                columns += column_stride * step;
                ret_out += out_stride * step;
                width -= step;
        }
}

typedef void (*rows_fn)(const uint8_t *const *row, const uint8_t *columns, uint64_t column_stride,
                        uint32_t width, int64_t first, int64_t end, float *ret_out,
                        uint64_t out_stride);

#define X(name, type, count)                                                                       \
        static void dot_##name(const uint8_t *const *row, const uint8_t *columns,                  \
                               uint64_t column_stride, uint32_t width, int64_t first, int64_t end, \
                               float *ret_out, uint64_t out_stride) {                              \
                dot_columns(type, row, count, columns, column_stride, width, first, end, ret_out,  \
                            out_stride);                                                           \
        }
X(4_f32, HR_TYPE_F32, ROWS)
X(4_f16, HR_TYPE_F16, ROWS)
X(4_bf16, HR_TYPE_BF16, ROWS)
X(1_f32, HR_TYPE_F32, 1)
X(1_f16, HR_TYPE_F16, 1)
X(1_bf16, HR_TYPE_BF16, 1)
#undef X

/* Row pointers; widened to f32 in spare (elements [first, end)) when asked. */
static void take_rows(uint32_t type, const uint8_t *base, uint64_t stride, uint32_t rows,
                      bool widen, int64_t first, int64_t end, float *spare,
                      const uint8_t *ret_row[ROWS]) {
        hr_dequantize_fn to_f32 = type == HR_TYPE_F16 ? CPU_ISA(dequantize_f16)
                                                      : CPU_ISA(dequantize_bf16);

        for (uint32_t r = 0; r < rows; r++) {
                ret_row[r] = base + stride * r;
                if (!widen)
                        continue;
                to_f32(ret_row[r] + 2 * first, spare, end - first);
                ret_row[r] = (const uint8_t *) (spare - first);
                spare += CPU_FLOAT_CHUNK + CPU_FLOAT_GAP;
        }
}

/* Rounded to the type, then f32 again. */
void CPU_ISA(float_column)(uint32_t type, const float *values, int64_t k, uint8_t *ret_column) {
        const bool is_half = type == HR_TYPE_F16;
        cpu_quantize_fn narrow = is_half ? CPU_ISA(quantize_f16) : CPU_ISA(quantize_bf16);
        hr_dequantize_fn widen = is_half ? CPU_ISA(dequantize_f16) : CPU_ISA(dequantize_bf16);
        uint16_t halves[256];

        if (type == HR_TYPE_F32) {
                memcpy(ret_column, values, (size_t) k * sizeof(float));
                return;
        }
        for (int64_t i = 0, count; i < k; i += count) {
                count = k - i < 256 ? k - i : 256;
                narrow(values + i, halves, count);
                widen(halves, (float *) (void *) ret_column + i, count);
        }
}

/* Elements [first, end) of all rows and columns. */
struct piece {
        uint32_t type;
        uint64_t stride, column_stride, out_stride;
        const uint8_t *columns;
        uint32_t width, abreast; /* 1: row by row, else ROWS */
        float *spare;
};

static uint32_t multiply_rows(const struct piece *piece, const uint8_t *base, uint32_t rows,
                              int64_t first, int64_t end, float *ret_out) {
        const bool widen = piece->type != HR_TYPE_F32 && piece->width > FEW;
        const uint32_t step = rows >= ROWS && piece->abreast > 1 ? ROWS : 1;
        rows_fn four = dot_4_f32, one = dot_1_f32;
        const uint8_t *row[ROWS];

        if (piece->type == HR_TYPE_F16 && !widen)
                four = dot_4_f16, one = dot_1_f16;
        else if (piece->type == HR_TYPE_BF16 && !widen)
                four = dot_4_bf16, one = dot_1_bf16;
        take_rows(piece->type, base, piece->stride, step, widen, first, end, piece->spare, row);
        (step == ROWS ? four : one)(row, piece->columns, piece->column_stride, piece->width, first,
                                    end, ret_out, piece->out_stride);
        return step;
}

void CPU_ISA(float_dot)(uint32_t type, const uint8_t *base, uint64_t stride, uint32_t rows,
                        const uint8_t *columns, uint64_t column_stride, uint32_t width, int64_t k,
                        float *spare, float *ret_out, uint64_t out_stride) {
        const uint32_t abreast = width > 1 || stride >= LONG_ROW ? ROWS : 1;
        const struct piece piece = {type,    stride, column_stride, out_stride,
                                    columns, width,  abreast,       spare};
        const uint32_t together = width >= MANY ? rows : abreast;

        for (uint32_t from = 0, to; from < rows; from = to) {
                int64_t first = 0;

                to = HR_MIN(from + together, rows);
                do { /* once when k is 0: zeros */
                        int64_t end = k - first > CPU_FLOAT_CHUNK ? first + CPU_FLOAT_CHUNK : k;

                        for (uint32_t r = from; r < to;)
                                r += multiply_rows(&piece, base + stride * r, to - r, first, end,
                                                   ret_out + r);
                        first = end;
                } while (first < k);
        }
}
