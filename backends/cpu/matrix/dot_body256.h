/*
 * The products of types with blocks of 256, for the files that instantiate them.
 *
 * One body, dot_groups(), is specialised by the compiler for each shape of type (group, minimum,
 * sign) and each width. Its chain of float operations per result is the same everywhere.
 */
#pragma once

#include "backends/cpu/matrix/tables.h"

#define BLOCK 256

struct shape {
        int group;
        bool has_minimum, is_signed; /* bytes of types with a minimum have no offset */
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
                        sum[c] = lanes_set_u(shape.has_minimum ? 0 : (uint32_t) at->bias[c]);
#pragma GCC unroll 8
                for (int j = 0; j < dwords; j++) {
                        lanes_u dword = w[g * dwords + j];

#pragma GCC unroll 8
                        for (int c = 0; c < width; c++) {
                                const uint32_t *a = &at->q[j * width + c];

                                sum[c] = shape.is_signed ? lanes_dot4_signed(sum[c], dword, a)
                                                         : lanes_dot4(sum[c], dword, a);
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

/* offset: what the weights' bytes are too large by. */
static void pack_columns(const float *const *values, uint32_t width, int64_t k,
                         const struct shape shape, int offset, uint8_t *ret_columns) {
        struct columns at = columns_at(ret_columns, k, (int) width, shape);
        const struct activation to = {.q = (uint32_t *) at.q,
                                .sums = (int32_t *) at.bias,
                                .factor = -offset,
                                .scale = (float *) at.scale,
                                .product = shape.has_minimum ? (float *) at.sum : NULL};

        CPU_ISA(activate_q8_K)(values, width, k, (uint32_t) shape.group, &to);
}
