/*
 * Types with blocks of 32, each block added up whole: with `arithmetic = fast` all of them, and
 * always those that llama.cpp multiplies like this, since it interleaves them when it loads a model
 * (table.c).
 *
 * All 32 products of a block are added up as integers, exactly, before there is a float:
 *
 *   total = fma(d_w * d_a, w.q over 32 elements, total), then fma(m_w, s_a, total) with a minimum
 *
 * An eighth of the float steps of dot_body32.h, and as near to the true value; but not its bits.
 * Tiles, their packing and the rounding of activations are the same.
 */
#include "backends/cpu/matrix/tables.h"
#include "backends/cpu/matrix/tile_rows.h"
#include "backends/cpu/matrix/unpack.h"
#if CPU_LANES == 16
#include "backends/cpu/matrix/whole_avx512.h"
#endif

#define BLOCK 32
#define DWORDS 8

struct shape {
        bool has_minimum, is_signed;
        int offset; /* what the weights' bytes are too large by; only whether there is one matters
                     * here */
};

struct columns {
        const uint32_t *q;
        const int32_t *bias; /* -offset times the sum of a block */
        const float *sum, *scale;
};

LANES_INLINE struct columns columns_at(const uint8_t *bytes, int64_t k, int width,
                                       const struct shape shape) {
        struct columns at;

        at.q = (const uint32_t *) bytes;
        at.bias = (const int32_t *) (bytes + k * width);
        at.sum = (const float *) at.bias;
        if (!shape.has_minimum)
                at.sum += k / BLOCK * width;
        at.scale = shape.has_minimum ? at.sum + k / BLOCK * width : at.sum;
        return at;
}

/* One block times `width` columns. */
LANES_INLINE void add_block(const lanes_u *w, lanes_f scale, lanes_f minimum,
                            const struct columns *at, int64_t block, const int width,
                            const struct shape shape, lanes_f *total) {
        const uint32_t *q = at->q + block * DWORDS * width;
        lanes_u sum[CPU_WIDTH];

#pragma GCC unroll 8
        for (int c = 0; c < width; c++)
                sum[c] = lanes_set_u(shape.offset ? (uint32_t) at->bias[block * width + c] : 0);
#pragma GCC unroll 8
        for (int j = 0; j < DWORDS; j++)
#pragma GCC unroll 8
                for (int c = 0; c < width; c++)
                        sum[c] = shape.is_signed
                                         ? lanes_dot4_signed(sum[c], w[j], &q[j * width + c])
                                         : lanes_dot4(sum[c], w[j], &q[j * width + c]);
#pragma GCC unroll 8
        for (int c = 0; c < width; c++) {
                lanes_f a = lanes_set_f(at->scale[block * width + c]);

                total[c] = lanes_fma(scale * a, lanes_from_int(sum[c]), total[c]);
                if (shape.has_minimum)
                        total[c] = lanes_fma(minimum, lanes_set_f(at->sum[block * width + c]),
                                             total[c]);
        }
}

LANES_INLINE void dot_group(const uint8_t *tile, const uint8_t *columns, const int width, int64_t k,
                            const struct shape shape, float *ret_out) {
        const struct columns at = columns_at(columns, k, width, shape);
        const lanes_u *w = (const lanes_u *) tile;
        const lanes_f *scale = (const lanes_f *) (tile + k * CPU_LANES);
        const lanes_f *minimum = scale + k / BLOCK;
        lanes_f total[CPU_WIDTH];

        for (int c = 0; c < width; c++)
                total[c] = lanes_set_f(0);
        for (int64_t b = 0; b < k / BLOCK; b++)
                add_block(w + b * DWORDS, scale[b],
                          shape.has_minimum ? minimum[b] : lanes_set_f(0), &at, b, width, shape,
                          total);
        for (int c = 0; c < width; c++)
                lanes_store_f(ret_out + c * CPU_LANES, total[c]);
}

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

static void pack_columns(const float *const *values, uint32_t width, int64_t k,
                         const struct shape shape, uint8_t *ret_columns) {
        struct columns at = columns_at(ret_columns, k, (int) width, shape);
        const struct activation to = {.q = (uint32_t *) at.q,
                                .sums = shape.has_minimum ? NULL : (int32_t *) at.bias,
                                .factor = -shape.offset,
                                .scale = (float *) at.scale,
                                .product = shape.has_minimum ? (float *) at.sum : NULL};

        CPU_ISA(activate_q8)(values, width, k, &to);
}

#define HAS_MINIMUM_plain false
#define HAS_MINIMUM_minimum true
#define HAS_MINIMUM_signed false

static const struct shape shape_plain = {false, false, 1};
static const struct shape shape_minimum = {true, false, 0};
static const struct shape shape_signed = {false, CPU_SIGNED_BYTES, !CPU_SIGNED_BYTES};

#define SHAPE(name)                                                                                \
        static void dot_##name(const uint8_t *tile, const uint8_t *columns, uint32_t width,        \
                               int64_t k, float *ret_out) {                                        \
                dot_width(tile, columns, width, k, shape_##name, ret_out);                         \
        }
SHAPE(plain)
SHAPE(minimum)
SHAPE(signed)

/* A full tile row by row; false where that is not known. */
#if CPU_LANES == 16
LANES_INLINE bool stream_tile(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t blocks,
                              const struct columns *at, const uint32_t of_type, const int size,
                              float *ret_out) {
        const struct whole type = {of_type == HR_TYPE_IQ4_NL ? iq4_nl_bytes[1] : NULL, size};
        const struct whole_column column = {at->q, at->bias, at->scale};

        if (rows < CPU_LANES)
                return false;
        stream_whole(base, stride, blocks, column, type, ret_out);
        return true;
}
#else
#define stream_tile(...) false
#endif

/* X(name, type, bytes of a block, offset, shape, blocks that unpack_wide_<name>() takes,
 * whether one column is multiplied as in whole_avx512.h where that can be) */
#define BLOCK_TYPES                                                                                \
        X(q4_0, Q4_0, 18, 8, plain, CPU_WIDE(3), true)                                             \
        X(q4_1, Q4_1, 20, 0, minimum, CPU_WIDE(3), false)                                          \
        X(q5_0, Q5_0, 22, 16, plain, CPU_WIDE(2), false)                                           \
        X(q5_1, Q5_1, 24, 0, minimum, CPU_WIDE(2), false)                                          \
        X(q8_0, Q8_0, 34, CPU_FULL_OFFSET, signed, 1, false)                                       \
        X(iq4_nl, IQ4_NL, 18, CPU_FULL_OFFSET, signed, CPU_WIDE(3), true)                          \
        X(mxfp4, MXFP4, 17, 12, plain, CPU_WIDE(2), false)

#define X(name, type, size, above, shape_name, units, is_streamed)                                 \
        static void columns_##name(const float *const *values, uint32_t width, int64_t k,          \
                                   uint8_t *ret_columns) {                                         \
                struct shape shape = shape_##shape_name;                                           \
                                                                                                   \
                shape.offset = above;                                                              \
                pack_columns(values, width, k, shape, ret_columns);                                \
        }                                                                                          \
                                                                                                   \
        static void rows_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                const uint8_t *column, float *ret_out) {                           \
                const struct shape shape = shape_##shape_name;                                     \
                const struct columns at = columns_at(column, k, 1, shape);                         \
                lanes_f total[1] = {lanes_set_f(0)}, scale[units], minimum[units];                 \
                const uint8_t *row[CPU_LANES];                                                     \
                lanes_u w[DWORDS * (units)];                                                       \
                int64_t b = 0, blocks = k / BLOCK;                                                 \
                                                                                                   \
                if ((is_streamed) && stream_tile(base, stride, rows, blocks, &at, HR_TYPE_##type,  \
                                                 size, ret_out))                                   \
                        return;                                                                    \
                rows_at(base, stride, rows, row);                                                  \
                for (; b + (units) <= blocks; b += (units)) {                                      \
                        prefetch_next(base, stride, (uint64_t) b *size, (size) * (units));         \
                        unpack_wide_##name(row, (uint64_t) b *size, w, scale, minimum);            \
                        _Pragma("GCC unroll 3") for (int i = 0; i < (units); i++)                  \
                                add_block(w + DWORDS * i, scale[i], minimum[i], &at, b + i, 1,     \
                                          shape, total);                                           \
                }                                                                                  \
                for (; b < blocks; b++) {                                                          \
                        unpack_##name(row, (uint64_t) b *size, w, scale, minimum);                 \
                        add_block(w, scale[0], minimum[0], &at, b, 1, shape, total);               \
                }                                                                                  \
                lanes_store_f(ret_out, total[0]);                                                  \
        }                                                                                          \
                                                                                                   \
        const struct cpu_tile CPU_ISA(whole_##name) = {                                            \
                .group = BLOCK,                                                                    \
                .span = BLOCK,                                                                     \
                .bias_group = HAS_MINIMUM_##shape_name ? 0 : BLOCK,                                \
                .has_minimum = HAS_MINIMUM_##shape_name,                                           \
                .pack = CPU_ISA(pack_##name),                                                      \
                .columns = columns_##name,                                                         \
                .dot = dot_##shape_name,                                                           \
                .dot_rows = rows_##name,                                                           \
        };
BLOCK_TYPES
#undef X

void CPU_ISA(make_fast)(struct cpu_dot *table) {
#define X(name, type, size, above, shape_name, units, is_streamed)                                 \
        table->tile[HR_TYPE_##type] = table->key_tile[HR_TYPE_##type] = &CPU_ISA(whole_##name);
        BLOCK_TYPES
#undef X
}
