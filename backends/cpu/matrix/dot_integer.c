/*
 * Tiles of block types: unpacking, preparing columns, and the products.
 *
 * Compiled once per instruction set. One body, dot_groups(), is specialised by the compiler for
 * each shape of type (group, span, minimum, signed) and each width. Its chain of float operations
 * per result is the same everywhere: dot_rows, which unpacks into registers, and dot, which reads a
 * tile, give equal bits.
 */
#include "backends/cpu/matrix/tables.h"

#include "backends/cpu/matrix/unpack.h"

struct shape {
        int group, span;
        bool has_minimum, is_signed;
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

/* `groups` groups: into total, or into part when their span has more of them. */
LANES_INLINE void dot_piece(const lanes_u *w, const lanes_f *scale, const lanes_f *minimum,
                            struct columns *at, const int width, const struct shape shape,
                            const int groups, lanes_f *part, lanes_f *total) {
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

                                sum[c] = shape.is_signed ? lanes_dot4_signed(sum[c], dword, a)
                                                         : lanes_dot4(sum[c], dword, a);
                        }
                }
#pragma GCC unroll 8
                for (int c = 0; c < width; c++) {
                        lanes_f value = lanes_from_int(sum[c]), a = lanes_set_f(at->sum[c]);

                        if (shape.span == shape.group) {
                                total[c] = lanes_fma(value * scale[g], lanes_set_f(at->scale[c]),
                                                     total[c]);
                                if (shape.has_minimum)
                                        total[c] = lanes_fma(minimum[g], a, total[c]);
                        } else {
                                part[c] = lanes_fma(value, scale[g], part[c]);
                                if (shape.has_minimum)
                                        part[c] = lanes_fma(minimum[g], a, part[c]);
                        }
                }
                at->q += dwords * width;
                at->bias += width;
                at->sum += width;
        }
}

/* The end of a span: its one activation scale. */
LANES_INLINE void end_span(struct columns *at, const int width, const struct shape shape,
                           const lanes_f *part, lanes_f *total) {
        if (shape.span != shape.group)
#pragma GCC unroll 8
                for (int c = 0; c < width; c++)
                        total[c] = lanes_fma(part[c], lanes_set_f(at->scale[c]), total[c]);
        at->scale += width;
}

LANES_INLINE void dot_span(const lanes_u *w, const lanes_f *scale, const lanes_f *minimum,
                           struct columns *at, const int width, const struct shape shape,
                           lanes_f *total) {
        const int groups = shape.span / shape.group, piece = groups < 2 ? 1 : 2;
        lanes_f part[CPU_WIDTH];

#pragma GCC unroll 8
        for (int c = 0; c < width; c++)
                part[c] = lanes_set_f(0);
        for (int g = 0; g < groups; g += piece)
                dot_piece(w + shape.group / 4 * g, scale + g, minimum + g, at, width, shape, piece,
                          part, total);
        end_span(at, width, shape, part, total);
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
        for (int64_t s = 0; s < k / shape.span; s++) {
                dot_span(w, scale, minimum, &at, width, shape, total);
                w += shape.span / 4;
                scale += shape.span / shape.group;
                minimum += shape.span / shape.group;
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
#define SHAPE(name, group, span, minimum, signed_bytes)                                            \
        static void dot_##name(const uint8_t *tile, const uint8_t *columns, uint32_t width,        \
                               int64_t k, float *ret_out) {                                        \
                dot_width(tile, columns, width, k,                                                 \
                          (struct shape){group, span, minimum, signed_bytes}, ret_out);            \
        }
SHAPE(32_plain, 32, 32, false, false)
SHAPE(32_minimum, 32, 32, true, false)
SHAPE(256_16_plain, 16, 256, false, false)
SHAPE(256_16_minimum, 16, 256, true, false)
SHAPE(256_32_minimum, 32, 256, true, false)
#if CPU_SIGNED_BYTES
SHAPE(32_signed, 32, 32, false, true)
#else
#define dot_32_signed dot_32_plain
#endif
#define dot_q4_0 dot_32_plain
#define dot_q4_1 dot_32_minimum
#define dot_q5_0 dot_32_plain
#define dot_q5_1 dot_32_minimum
#define dot_q8_0 dot_32_signed
#define dot_iq4_nl dot_32_signed
#define dot_q2_K dot_256_16_minimum
#define dot_q3_K dot_256_16_plain
#define dot_q4_K dot_256_32_minimum
#define dot_q5_K dot_256_32_minimum
#define dot_q6_K dot_256_16_plain

/* How far ahead of the next tile the second-level cache is filled. */
#define PREFETCH_FAR 16384

/* Asks for the bytes of the next tile while this one is multiplied, and for those after it from
 * farther away: rows are short, and the processor does not see from one to the next. `at`: where in
 * its rows this tile is, `bytes`: what it goes on by. */
LANES_INLINE void prefetch_next(const uint8_t *base, uint64_t stride, uint64_t at,
                                const uint64_t bytes) {
        const uint8_t *next = base + stride * CPU_LANES + at * CPU_LANES;
        const bool near = stride * CPU_LANES <= PREFETCH_FAR;

        for (uint64_t i = 0; i < bytes * CPU_LANES; i += 64) {
                __builtin_prefetch(next + i + PREFETCH_FAR, 0, 2);
                if (near)
                        __builtin_prefetch(next + i, 0, 3);
        }
}

LANES_INLINE void rows_at(const uint8_t *base, uint64_t stride, uint32_t rows,
                          const uint8_t *ret_row[CPU_LANES]) {
        for (uint32_t i = 0; i < CPU_LANES; i++)
                ret_row[i] = base + stride * (i < rows ? i : rows - 1);
}

/* Quantises column by column and interleaves. offset: what the weights' bytes are too large by. */
static void pack_columns(const float *const *values, uint32_t width, int64_t k,
                         const struct shape shape, int offset, uint8_t *ret_columns) {
        int64_t groups = k / shape.group, spans = k / shape.span;
        uint32_t *q = (uint32_t *) ret_columns;
        int32_t *bias = (int32_t *) (ret_columns + k * width);
        float *sum = (float *) (bias + groups * width);
        float *scale = shape.has_minimum ? sum + groups * width : sum;
        uint32_t quants[64];
        int32_t sums[16];
        float product;

        for (uint32_t c = 0; c < width; c++)
                for (int64_t s = 0; s < spans; s++) {
                        const int64_t g0 = s * shape.span / shape.group;
                        struct activation one = {(int8_t *) quants, sums, &scale[s * width + c],
                                                 shape.has_minimum ? &product : NULL};

                        if (shape.span == 32)
                                CPU_ISA(activate_q8)(values[c] + s * 32, 32, &one);
                        else
                                CPU_ISA(activate_q8_K)(values[c] + s * 256, 256,
                                                       (unsigned) shape.group, &one);
                        for (int j = 0; j < shape.span / 4; j++)
                                q[(s * shape.span / 4 + j) * width + c] = quants[j];
                        for (int g = 0; g < shape.span / shape.group; g++) {
                                bias[(g0 + g) * width + c] = -offset * sums[g];
                                if (shape.has_minimum)
                                        sum[(g0 + g) * width + c] =
                                                shape.span == 32 ? product : (float) sums[g];
                        }
                }
}

/* One column, rows unpacked as they come: blocks of 32, several at a time where a load brings
 * them. */
#define ROWS_32(name, bytes, minimum, signed_bytes, wide)                                          \
        static void rows_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                const uint8_t *column, float *ret_out) {                           \
                const struct shape shape = {32, 32, minimum, signed_bytes};                        \
                struct columns at = columns_at(column, k, 1, shape);                               \
                const uint8_t *row[CPU_LANES];                                                     \
                lanes_u w[8 * (wide)];                                                             \
                lanes_f scale[wide], low[wide], total[1] = {lanes_set_f(0)};                       \
                int64_t b = 0, units = k / 32;                                                     \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                for (; b + wide <= units; b += wide) {                                             \
                        prefetch_next(base, stride, (uint64_t) b * bytes, bytes * wide);           \
                        unpack_wide_##name(row, (uint64_t) b * bytes, w, scale, low);              \
                        _Pragma("GCC unroll 3") for (int i = 0; i < wide; i++)                     \
                                dot_span(w + 8 * i, scale + i, low + i, &at, 1, shape, total);     \
                }                                                                                  \
                for (; b < units; b++) {                                                           \
                        unpack_##name(row, (uint64_t) b * bytes, w, scale, low);                   \
                        dot_span(w, scale, low, &at, 1, shape, total);                             \
                }                                                                                  \
                lanes_store_f(ret_out, total[0]);                                                  \
        }
ROWS_32(q4_0, 18, false, false, CPU_WIDE(3))
ROWS_32(q4_1, 20, true, false, CPU_WIDE(3))
ROWS_32(q5_0, 22, false, false, CPU_WIDE(2))
ROWS_32(q5_1, 24, true, false, CPU_WIDE(2))
ROWS_32(q8_0, 34, false, CPU_SIGNED_BYTES, 1)
ROWS_32(iq4_nl, 18, false, CPU_SIGNED_BYTES, CPU_WIDE(3))

/* The same for blocks of 256, 64 elements at a time. */
#define ROWS_256(name, bytes, g, minimum)                                                          \
        static void rows_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                const uint8_t *column, float *ret_out) {                           \
                const struct shape shape = {g, 256, minimum, false};                               \
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
                                          shape, 64 / (g), part, total);                           \
                        }                                                                          \
                        end_span(&at, 1, shape, part, total);                                      \
                }                                                                                  \
                lanes_store_f(ret_out, total[0]);                                                  \
        }
ROWS_256(q2_K, 84, 16, true)
ROWS_256(q3_K, 110, 16, false)
ROWS_256(q4_K, 144, 32, true)
ROWS_256(q5_K, 176, 32, true)
ROWS_256(q6_K, 210, 16, false)

#define X(name, type, unit, bytes, g, s, offset, minimum, signed_bytes, wide)                      \
        static void pack_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                uint8_t *ret_tile) {                                               \
                lanes_u *w = (lanes_u *) ret_tile;                                                 \
                lanes_f *scale = (lanes_f *) (ret_tile + k * CPU_LANES);                           \
                lanes_f *low = scale + k / (g);                                                    \
                const uint8_t *row[CPU_LANES];                                                     \
                int64_t b = 0, units = k / unit;                                                   \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                for (; b + wide <= units; b += wide) {                                             \
                        unpack_wide_##name(row, (uint64_t) b * bytes, w, scale, low);              \
                        w += unit / 4 * wide;                                                      \
                        scale += unit / (g) * wide;                                                \
                        low += unit / (g) * wide;                                                  \
                }                                                                                  \
                for (; b < units; b++) {                                                           \
                        unpack_##name(row, (uint64_t) b * bytes, w, scale, low);                   \
                        w += unit / 4;                                                             \
                        scale += unit / (g);                                                       \
                        low += unit / (g);                                                         \
                }                                                                                  \
        }                                                                                          \
        static void columns_##name(const float *const *values, uint32_t width, int64_t k,          \
                                   uint8_t *ret_columns) {                                         \
                pack_columns(values, width, k, (struct shape){g, s, minimum, signed_bytes}, offset,\
                             ret_columns);                                                         \
        }                                                                                          \
        const struct cpu_tile CPU_ISA(tile_##name) = {                                             \
                .group = g,                                                                        \
                .span = s,                                                                         \
                .has_minimum = minimum,                                                            \
                .pack = pack_##name,                                                               \
                .columns = columns_##name,                                                         \
                .dot = dot_##name,                                                                 \
                .dot_rows = rows_##name,                                                           \
        };
CPU_BLOCK_TYPES
#undef X
