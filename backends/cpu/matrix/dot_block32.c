/*
 * Tiles of the types with blocks of 32: preparing columns, and the products, in ggml's order.
 *
 * Compiled once per instruction set. How results are added up: dot_body32.h.
 */
#include "backends/cpu/matrix/dot_body32.h"
#include "backends/cpu/matrix/tile_rows.h"
#include "backends/cpu/matrix/unpack.h"
#if CPU_LANES == 16
#include "backends/cpu/matrix/stream_avx512.h"
#endif

/* What a shape is: its products do not depend on how large an offset is. */
static const struct shape shape_plain = {false, false, false, 1};
static const struct shape shape_minimum = {true, false, false, 0};
#if CPU_SIGNED_BYTES
static const struct shape shape_signed = {false, true, false, 0};
#else
#define shape_signed shape_plain
#endif

#define HAS_MINIMUM_plain false
#define HAS_MINIMUM_minimum true
#define HAS_MINIMUM_signed false

/* Types of one shape share their products. */
#define SHAPE(name)                                                                                \
        static void dot_##name(const uint8_t *tile, const uint8_t *columns, uint32_t width,        \
                               int64_t k, float *ret_out) {                                        \
                dot_width(tile, columns, width, k, shape_##name, ret_out);                         \
        }
void CPU_ISA(dot_plain)(const uint8_t *tile, const uint8_t *columns, uint32_t width, int64_t k,
                        float *ret_out) {
        dot_width(tile, columns, width, k, shape_plain, ret_out);
}
#define dot_plain CPU_ISA(dot_plain)
SHAPE(minimum)
#if CPU_SIGNED_BYTES
SHAPE(signed)
#else
#define dot_signed dot_plain
#endif

/* One column: rows side by side in the lanes, unpacked in registers, */
#define IN_LANES(name, size, above, shape_name, units)                                             \
        static void rows_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                const uint8_t *column, float *ret_out) {                           \
                const struct shape shape = shape_##shape_name;                                     \
                const struct columns at = columns_at(column, k, 1, shape);                         \
                lanes_f part[DWORDS], low = lanes_set_f(0), scale[units], minimum[units];          \
                const uint8_t *row[CPU_LANES];                                                     \
                lanes_u w[DWORDS * (units)];                                                       \
                int64_t b = 0, blocks = k / BLOCK;                                                 \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                _Pragma("GCC unroll 8") for (int i = 0; i < DWORDS; i++) part[i] = low;            \
                for (; b + (units) <= blocks; b += (units)) {                                      \
                        prefetch_next(base, stride, (uint64_t) b *size, (size) * (units));         \
                        unpack_wide_##name(row, (uint64_t) b *size, w, scale, minimum);            \
                        _Pragma("GCC unroll 3") for (int i = 0; i < (units); i++)                  \
                                dot_block(w + DWORDS * i, &scale[i], minimum[i], &at, b + i,       \
                                          shape, part, &low);                                      \
                }                                                                                  \
                for (; b < blocks; b++) {                                                          \
                        unpack_##name(row, (uint64_t) b *size, w, scale, minimum);                 \
                        dot_block(w, scale, minimum[0], &at, b, shape, part, &low);                \
                }                                                                                  \
                lanes_store_f(ret_out, add_parts(part) + low);                                     \
        }
/* or each row by itself. */
#if CPU_LANES == 16
#define IN_STREAM_OF(name, bytes, shape_name, sixteenfold)                                         \
        static void rows_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                const uint8_t *column, float *ret_out) {                           \
                const struct streamed type = {open_##name, bytes, sixteenfold,                     \
                                              HAS_MINIMUM_##shape_name};                           \
                                                                                                   \
                stream_rows(base, stride, rows, k, columns_at(column, k, 1, shape_##shape_name),   \
                            type, ret_out);                                                        \
        }
#define IN_STREAM(name, bytes, above, shape_name, units)                                           \
        IN_STREAM_OF(name, bytes, shape_name, false)
#define IN_STREAM_16(name, bytes, above, shape_name, units)                                        \
        IN_STREAM_OF(name, bytes, shape_name, true)
#else
#define IN_STREAM IN_LANES
#define IN_STREAM_16 IN_LANES
#endif

/* Signed bytes need no bias, but its room is there on every instruction set: how large columns are
 * must not depend on the processor, since scratch is asked for before one is chosen.
 *
 * X(name, bytes of a block, offset, shape, blocks that unpack_wide_<name>() takes, how one column
 * is multiplied) */
#define BLOCK_TYPES                                                                                \
        X(q4_0, 18, 8, plain, CPU_WIDE(3), IN_STREAM_16)                                           \
        X(q4_1, 20, 0, minimum, CPU_WIDE(3), IN_STREAM_16)                                         \
        X(q5_0, 22, 16, plain, CPU_WIDE(2), IN_STREAM)                                             \
        X(q5_1, 24, 0, minimum, CPU_WIDE(2), IN_LANES)                                             \
        X(q8_0, 34, CPU_FULL_OFFSET, signed, 1, IN_LANES)                                          \
        X(iq4_nl, 18, CPU_FULL_OFFSET, signed, CPU_WIDE(3), IN_STREAM)                             \
        X(mxfp4, 17, 12, plain, CPU_WIDE(2), IN_LANES)

#define X(name, size, above, shape_name, units, way)                                               \
        void CPU_ISA(pack_##name)(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,  \
                                  uint8_t *ret_tile) {                                             \
                lanes_u *w = (lanes_u *) ret_tile;                                                 \
                lanes_f *scale = (lanes_f *) (ret_tile + k * CPU_LANES);                           \
                lanes_f *low = scale + k / BLOCK;                                                  \
                const uint8_t *row[CPU_LANES];                                                     \
                int64_t b = 0, blocks = k / BLOCK;                                                 \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                for (; b + (units) <= blocks; b += (units)) {                                      \
                        prefetch_next(base, stride, (uint64_t) b *size, (size) * (units));         \
                        unpack_wide_##name(row, (uint64_t) b *size, w + b * DWORDS, scale + b,     \
                                           low + b);                                               \
                }                                                                                  \
                for (; b < blocks; b++)                                                            \
                        unpack_##name(row, (uint64_t) b *size, w + b * DWORDS, scale + b,          \
                                      low + b);                                                    \
        }                                                                                          \
                                                                                                   \
        static void columns_##name(const float *const *values, uint32_t width, int64_t k,          \
                                   uint8_t *ret_columns) {                                         \
                struct shape shape = shape_##shape_name;                                           \
                                                                                                   \
                shape.offset = above;                                                              \
                pack_columns(values, width, k, shape, ret_columns);                                \
        }                                                                                          \
                                                                                                   \
        way(name, size, above, shape_name, units)                                                  \
                                                                                                   \
        const struct cpu_tile CPU_ISA(tile_##name) = {                                             \
                .group = BLOCK,                                                                    \
                .span = BLOCK,                                                                     \
                .bias_group = HAS_MINIMUM_##shape_name ? 0 : 4,                                    \
                .has_minimum = HAS_MINIMUM_##shape_name,                                           \
                .pack = CPU_ISA(pack_##name),                                                      \
                .columns = columns_##name,                                                         \
                .dot = dot_##shape_name,                                                           \
                .dot_rows = rows_##name,                                                           \
        };
BLOCK_TYPES
#undef X
