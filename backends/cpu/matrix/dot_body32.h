/*
 * The products of types with blocks of 32 and of those that are summed like them, in ggml's order,
 * for the files that instantiate them.
 *
 * The order of additions is part of a model's behaviour: activations are rounded to 8 bits again
 * and again, and one unit in the last place of a sum decides how. So every result here is added up
 * as ggml's AVX2 and AVX-512 kernels do it, bit for bit (but for processors without a fused
 * multiply-add):
 *
 *   part[i] (i < 8) holds dword i of each block: part[i] = fma(d_w * d_a, w.q over 4 elements,
 * part[i]) low             = fma(m_w, s_a, low)                            types with a minimum
 *   result          = ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7)) + low
 *
 * Eight sums for each of 16 rows and 8 columns are more than there are registers: a tile is walked
 * several times, PARTS dwords of each block and COLUMNS columns at a time. The processor's units
 * for dot products of bytes are those for fused multiply-adds, too, so that this order leaves at
 * most 8 of 17 of their peak: eight of each for a block, and the product of the scales.
 */
#pragma once

#include "backends/cpu/matrix/tables.h"

#define BLOCK 32
#define DWORDS 8

#if CPU_LANES == 16
#define PARTS 8
#define COLUMNS 3
#else
#define PARTS 2
#define COLUMNS 4
#endif

struct shape {
        bool has_minimum, is_signed;
        bool is_halved; /* 16 elements share a scale, not 32 */
        int offset;     /* what the weights' bytes are too large by */
};

/* Where the arrays of a column group start. */
struct columns {
        const uint32_t *q;
        const int32_t *bias; /* -offset times the sum of each dword of q */
        const float *sum, *scale;
};

LANES_INLINE struct columns columns_at(const uint8_t *bytes, int64_t k, int width,
                                       struct shape shape) {
        struct columns at;

        at.q = (const uint32_t *) bytes;
        bytes += k * width;
        at.bias = (const int32_t *) bytes;
        if (shape.offset)
                bytes += k * width;
        at.sum = (const float *) bytes;
        at.scale = shape.has_minimum ? at.sum + k / BLOCK * width : at.sum;
        return at;
}

/* w.q over one dword of a column, exact. */
LANES_INLINE lanes_f dot_dword(lanes_u w, const struct columns *at, int64_t index,
                               const struct shape shape) {
        lanes_u sum = shape.offset ? lanes_set_u((uint32_t) at->bias[index]) : lanes_set_u(0);

        return lanes_from_int(shape.is_signed ? lanes_dot4_signed(sum, w, &at->q[index])
                                              : lanes_dot4(sum, w, &at->q[index]));
}

/* Parts `first` .. `first + PARTS - 1` of columns `c0` .. `c0 + count - 1` of a group. */
LANES_INLINE void dot_parts(const lanes_u *w, const lanes_f *scale, const struct columns *at,
                            const int width, const int c0, const int count, const int first,
                            int64_t blocks, const struct shape shape, lanes_f (*part)[DWORDS]) {
        lanes_f sum[COLUMNS][PARTS];

        LANES_UNROLL
        for (int c = 0; c < count; c++)
                LANES_UNROLL
                for (int i = 0; i < PARTS; i++)
                        sum[c][i] = lanes_set_f(0);
        for (int64_t b = 0; b < blocks; b++) {
                lanes_f factor[2][COLUMNS];

                LANES_UNROLL
                for (int c = 0; c < count; c++) {
                        const lanes_f a = lanes_set_f(at->scale[b * width + c0 + c]);

                        factor[0][c] = factor[1][c] = scale[shape.is_halved ? 2 * b : b] * a;
                        if (shape.is_halved)
                                factor[1][c] = scale[2 * b + 1] * a;
                }
                LANES_UNROLL
                for (int i = 0; i < PARTS; i++) {
                        const int64_t dword = b * DWORDS + first + i;

                        LANES_UNROLL
                        for (int c = 0; c < count; c++)
                                sum[c][i] = lanes_fma(
                                        factor[(first + i) / 4][c],
                                        dot_dword(w[dword], at, dword * width + c0 + c, shape),
                                        sum[c][i]);
                }
        }
        LANES_UNROLL
        for (int c = 0; c < count; c++)
                LANES_UNROLL
                for (int i = 0; i < PARTS; i++)
                        part[c][first + i] = sum[c][i];
}

LANES_INLINE lanes_f add_parts(const lanes_f *part) {
        lanes_f sum[4];

        LANES_UNROLL
        for (int i = 0; i < 4; i++)
                sum[i] = part[i + 4] + part[i];
        return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* low of `width` columns at once: one chain of steps each. */
LANES_INLINE void add_minimums(const lanes_f *minimum, const struct columns *at, const int width,
                               int64_t blocks, lanes_f *ret_low) {
        lanes_f low[CPU_WIDTH];

        LANES_UNROLL
        for (int c = 0; c < width; c++)
                low[c] = lanes_set_f(0);
        for (int64_t b = 0; b < blocks; b++)
                LANES_UNROLL
                for (int c = 0; c < width; c++)
                        low[c] = lanes_fma(minimum[b], lanes_set_f(at->sum[b * width + c]), low[c]);
        LANES_UNROLL
        for (int c = 0; c < width; c++)
                ret_low[c] = low[c];
}

/* Columns `c0` .. `c0 + count - 1` of a group. low: of each column of the group. */
LANES_INLINE void dot_columns(const uint8_t *tile, const struct columns *at, const int width,
                              const int c0, const int count, int64_t k, const struct shape shape,
                              const lanes_f *low, float *ret_out) {
        const lanes_u *w = (const lanes_u *) tile;
        const lanes_f *scale = (const lanes_f *) (tile + k * CPU_LANES);
        lanes_f part[COLUMNS][DWORDS];

        for (int first = 0; first < DWORDS; first += PARTS)
                dot_parts(w, scale, at, width, c0, count, first, k / BLOCK, shape, part);
        for (int c = 0; c < count; c++) {
                lanes_f result = add_parts(part[c]);

                if (shape.has_minimum)
                        result = result + low[c0 + c];
                lanes_store_f(ret_out + (c0 + c) * CPU_LANES, result);
        }
}

LANES_INLINE void dot_group(const uint8_t *tile, const uint8_t *columns, const int width, int64_t k,
                            const struct shape shape, float *ret_out) {
        const struct columns at = columns_at(columns, k, width, shape);
        const lanes_f *scale = (const lanes_f *) (tile + k * CPU_LANES);
        lanes_f low[CPU_WIDTH];

        if (shape.has_minimum)
                add_minimums(scale + k / BLOCK, &at, width, k / BLOCK, low);
        /* Written out: not every compiler unrolls a loop whose ends are constants only because it
         * has unrolled the one around it. */
        dot_columns(tile, &at, width, 0, HR_MIN(width, COLUMNS), k, shape, low, ret_out);
        if (width > COLUMNS)
                dot_columns(tile, &at, width, COLUMNS, HR_MIN(width - COLUMNS, COLUMNS), k, shape,
                            low, ret_out);
        if (width > 2 * COLUMNS)
                dot_columns(tile, &at, width, 2 * COLUMNS, width - 2 * COLUMNS, k, shape, low,
                            ret_out);
}

_Static_assert(CPU_WIDTH <= 3 * COLUMNS, "a group is at most three calls");

LANES_INLINE void dot_width(const uint8_t *tile, const uint8_t *columns, uint32_t width, int64_t k,
                            const struct shape shape, float *ret_out) {
        switch (width) {
#if CPU_WIDTH >= 8
        case 8:
                dot_group(tile, columns, 8, k, shape, ret_out);
                break;
#endif
        case 4:
                dot_group(tile, columns, 4, k, shape, ret_out);
                break;
        case 3:
                dot_group(tile, columns, 3, k, shape, ret_out);
                break;
        case 2:
                dot_group(tile, columns, 2, k, shape, ret_out);
                break;
        default:
                dot_group(tile, columns, 1, k, shape, ret_out);
                break;
        }
}

/* One block of one column, all parts in registers. */
LANES_INLINE void dot_block(const lanes_u *w, const lanes_f *scale, lanes_f minimum,
                            const struct columns *at, int64_t block, const struct shape shape,
                            lanes_f *part, lanes_f *low) {
        const lanes_f a = lanes_set_f(at->scale[block]);
        const lanes_f factor[2] = {scale[0] * a, shape.is_halved ? scale[1] * a : scale[0] * a};

        LANES_UNROLL
        for (int i = 0; i < DWORDS; i++)
                part[i] = lanes_fma(factor[i / 4], dot_dword(w[i], at, block * DWORDS + i, shape),
                                    part[i]);
        if (shape.has_minimum)
                *low = lanes_fma(minimum, lanes_set_f(at->sum[block]), *low);
}

static void pack_columns(const float *const *values, uint32_t width, int64_t k,
                         const struct shape shape, uint8_t *ret_columns) {
        struct columns at = columns_at(ret_columns, k, (int) width, shape);
        const struct activation to = {.q = (uint32_t *) at.q,
                                .dword_sums = shape.offset ? (int32_t *) at.bias : NULL,
                                .factor = -shape.offset,
                                .scale = (float *) at.scale,
                                .product = shape.has_minimum ? (float *) at.sum : NULL};

        CPU_ISA(activate_q8)(values, width, k, &to);
}
