/*
 * Tiles of the types with blocks of 256: unpacking, preparing columns, and the products.
 *
 * Compiled once per instruction set. One body, dot_groups(), is specialised by the compiler for
 * each shape of type (group, minimum) and each width. Its chain of float operations
 * per result is the same everywhere: dot_rows, which unpacks into registers, and dot, which reads a
 * tile, give equal bits.
 */
#include "backends/cpu/matrix/tables.h"

#include "backends/cpu/matrix/tile_rows.h"
#include "backends/cpu/matrix/unpack.h"

#define BLOCK 256

struct shape {
        int group;
        bool has_minimum;
};

/* Where the arrays of a column group start. */
struct columns {
        const uint32_t *q;
        const int32_t *bias;
        const float *sum, *scale;
};

LANES_INLINE struct columns columns_at(const uint8_t *bytes, int64_t k, int width,
                                       struct shape shape) {
        int64_t groups = k / shape.group;
        struct columns at;

        at.q = (const uint32_t *) bytes;
        at.bias = (const int32_t *) (bytes + k * width);
        at.sum = (const float *) (at.bias + groups * width);
        at.scale = shape.has_minimum ? at.sum + groups * width : at.sum;
        return at;
}

/* `groups` groups of a block, into part. */
LANES_INLINE void dot_piece(const lanes_u *w, const lanes_f *scale, const lanes_f *minimum,
                            struct columns *at, const int width, const struct shape shape,
                            const int groups, lanes_f *part) {
        const int dwords = shape.group / 4;

#pragma GCC unroll 4
        for (int g = 0; g < groups; g++) {
                lanes_u sum[CPU_WIDTH];

#pragma GCC unroll 8
                for (int c = 0; c < width; c++)
                        sum[c] = lanes_set_u((uint32_t) at->bias[c]);
#pragma GCC unroll 8
                for (int j = 0; j < dwords; j++) {
                        lanes_u dword = w[g * dwords + j];

#pragma GCC unroll 8
                        for (int c = 0; c < width; c++) {
                                uint32_t a = at->q[j * width + c];

                                sum[c] = lanes_dot4(sum[c], dword, a);
                        }
                }
#pragma GCC unroll 8
                for (int c = 0; c < width; c++) {
                        lanes_f value = lanes_from_int(sum[c]), a = lanes_set_f(at->sum[c]);

                        part[c] = lanes_fma(value, scale[g], part[c]);
                        if (shape.has_minimum)
                                part[c] = lanes_fma(minimum[g], a, part[c]);
                }
                at->q += dwords * width;
                at->bias += width;
                at->sum += width;
        }
}

/* The end of a block: its one activation scale. */
LANES_INLINE void end_block(struct columns *at, const int width, const lanes_f *part,
                            lanes_f *total) {
#pragma GCC unroll 8
        for (int c = 0; c < width; c++)
                total[c] = lanes_fma(part[c], lanes_set_f(at->scale[c]), total[c]);
        at->scale += width;
}

LANES_INLINE void dot_block(const lanes_u *w, const lanes_f *scale, const lanes_f *minimum,
                            struct columns *at, const int width, const struct shape shape,
                            lanes_f *total) {
        lanes_f part[CPU_WIDTH];

#pragma GCC unroll 8
        for (int c = 0; c < width; c++)
                part[c] = lanes_set_f(0);
        for (int g = 0; g < BLOCK / shape.group; g += 2)
                dot_piece(w + shape.group / 4 * g, scale + g, minimum + g, at, width, shape, 2,
                          part);
        end_block(at, width, part, total);
}

LANES_INLINE void dot_groups(const uint8_t *tile, const uint8_t *columns, const int width,
                             int64_t k, const struct shape shape, float *ret_out) {
        const lanes_u *w = (const lanes_u *) tile;
        const lanes_f *scale = (const lanes_f *) (tile + k * CPU_LANES);
        const lanes_f *minimum = scale + k / shape.group;
        struct columns at = columns_at(columns, k, width, shape);
        lanes_f total[CPU_WIDTH];

        for (int c = 0; c < width; c++)
                total[c] = lanes_set_f(0);
        for (int64_t b = 0; b < k / BLOCK; b++) {
                dot_block(w, scale, minimum, &at, width, shape, total);
                w += BLOCK / 4;
                scale += BLOCK / shape.group;
                minimum += BLOCK / shape.group;
        }
        for (int c = 0; c < width; c++)
                lanes_store_f(ret_out + c * CPU_LANES, total[c]);
}

LANES_INLINE void dot_width(const uint8_t *tile, const uint8_t *columns, uint32_t width, int64_t k,
                            const struct shape shape, float *ret_out) {
        switch (width) {
#if CPU_WIDTH >= 8
        case 8:
                dot_groups(tile, columns, 8, k, shape, ret_out);
                break;
#endif
        case 4:
                dot_groups(tile, columns, 4, k, shape, ret_out);
                break;
        case 3:
                dot_groups(tile, columns, 3, k, shape, ret_out);
                break;
        case 2:
                dot_groups(tile, columns, 2, k, shape, ret_out);
                break;
        default:
                dot_groups(tile, columns, 1, k, shape, ret_out);
                break;
        }
}

/* Types of one shape share their products. */
#define SHAPE(name, group, minimum)                                                                \
        static void dot_##name(const uint8_t *tile, const uint8_t *columns, uint32_t width,        \
                               int64_t k, float *ret_out) {                                        \
                dot_width(tile, columns, width, k, (struct shape){group, minimum}, ret_out);       \
        }
SHAPE(16_plain, 16, false)
SHAPE(16_minimum, 16, true)
SHAPE(32_minimum, 32, true)
#define dot_q2_K dot_16_minimum
#define dot_q3_K dot_16_plain
#define dot_q4_K dot_32_minimum
#define dot_q5_K dot_32_minimum
#define dot_q6_K dot_16_plain

/* Quantises column by column and interleaves. offset: what the weights' bytes are too large by. */
static void pack_columns(const float *const *values, uint32_t width, int64_t k,
                         const struct shape shape, int offset, uint8_t *ret_columns) {
        struct columns at = columns_at(ret_columns, k, (int) width, shape);
        uint32_t *q = (uint32_t *) at.q, quants[BLOCK / 4];
        int32_t *bias = (int32_t *) at.bias, sums[16];
        float *sum = (float *) at.sum, *scale = (float *) at.scale;

        for (uint32_t c = 0; c < width; c++)
                for (int64_t b = 0; b < k / BLOCK; b++) {
                        const int64_t g0 = b * BLOCK / shape.group;
                        struct activation one = {(int8_t *) quants, sums, &scale[b * width + c],
                                                 NULL};

                        CPU_ISA(activate_q8_K)(values[c] + b * BLOCK, BLOCK,
                                               (unsigned) shape.group, &one);
                        for (int j = 0; j < BLOCK / 4; j++)
                                q[(b * BLOCK / 4 + j) * width + c] = quants[j];
                        for (int g = 0; g < BLOCK / shape.group; g++) {
                                bias[(g0 + g) * width + c] = -offset * sums[g];
                                if (shape.has_minimum)
                                        sum[(g0 + g) * width + c] = (float) sums[g];
                        }
                }
}

/* One column, rows unpacked as they come, 64 elements at a time. */
#define ROWS_256(name, bytes, g, minimum)                                                          \
        static void rows_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                const uint8_t *column, float *ret_out) {                           \
                const struct shape shape = {g, minimum};                                           \
                struct columns at = columns_at(column, k, 1, shape);                               \
                const uint8_t *row[CPU_LANES];                                                     \
                lanes_f scale[256 / (g)], low[256 / (g)], total[1] = {lanes_set_f(0)};             \
                lanes_u extra[24], raw[16], w[16];                                                 \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                for (uint64_t b = 0; b < (uint64_t) k / 256; b++) {                                \
                        lanes_f part[1] = {lanes_set_f(0)};                                        \
                                                                                                   \
                        prefetch_next(base, stride, b * bytes, bytes);                             \
                        head_##name(row, b * bytes, extra, scale, low);                            \
                        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {                      \
                                if (i % 2 == 0)                                                    \
                                        half_##name(row, b * bytes, i / 2, raw);                   \
                                quarter_##name(extra, raw, i / 2, i % 2, w);                       \
                                dot_piece(w, scale + 64 / (g) * i, low + 64 / (g) * i, &at, 1,     \
                                          shape, 64 / (g), part);                                  \
                        }                                                                          \
                        end_block(&at, 1, part, total);                                            \
                }                                                                                  \
                lanes_store_f(ret_out, total[0]);                                                  \
        }
ROWS_256(q2_K, 84, 16, true)
ROWS_256(q3_K, 110, 16, false)
ROWS_256(q4_K, 144, 32, true)
ROWS_256(q5_K, 176, 32, true)
ROWS_256(q6_K, 210, 16, false)

/* X(name, block bytes, group, offset, minimum) */
#define BLOCK_TYPES                                                                                \
        X(q2_K, 84, 16, 0, true)                                                                   \
        X(q3_K, 110, 16, 4, false)                                                                 \
        X(q4_K, 144, 32, 0, true)                                                                  \
        X(q5_K, 176, 32, 0, true)                                                                  \
        X(q6_K, 210, 16, 32, false)

#define X(name, bytes, g, offset, minimum)                                                         \
        static void pack_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                uint8_t *ret_tile) {                                               \
                lanes_u *w = (lanes_u *) ret_tile;                                                 \
                lanes_f *scale = (lanes_f *) (ret_tile + k * CPU_LANES);                           \
                lanes_f *low = scale + k / (g);                                                    \
                const uint8_t *row[CPU_LANES];                                                     \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                for (int64_t b = 0; b < k / BLOCK; b++)                                            \
                        unpack_##name(row, (uint64_t) b * (bytes), w + b * (BLOCK / 4),            \
                                      scale + b * (BLOCK / (g)), low + b * (BLOCK / (g)));         \
        }                                                                                          \
                                                                                                   \
        static void columns_##name(const float *const *values, uint32_t width, int64_t k,          \
                                   uint8_t *ret_columns) {                                         \
                pack_columns(values, width, k, (struct shape){g, minimum}, offset, ret_columns);   \
        }                                                                                          \
                                                                                                   \
        const struct cpu_tile CPU_ISA(tile_##name) = {                                             \
                .group = g,                                                                        \
                .span = BLOCK,                                                                     \
                .bias_group = g,                                                                   \
                .has_minimum = minimum,                                                            \
                .pack = pack_##name,                                                               \
                .columns = columns_##name,                                                         \
                .dot = dot_##name,                                                                 \
                .dot_rows = rows_##name,                                                           \
        };
BLOCK_TYPES
#undef X
