/*
 * Tiles of NVFP4, Q2_0 and Q1_0: types with a handful of levels whose partner is Q8_0.
 *
 * Compiled once per instruction set. A block is a whole number of groups of 32, which are summed
 * like the types with blocks of 32 (dot_body32.h); NVFP4's have two scales. Bytes are unsigned and
 * small everywhere: the levels and an offset.
 */
#include "backends/cpu/matrix/dot_body32.h"
#include "backends/cpu/matrix/tile_rows.h"
#include "backends/cpu/matrix/unpack.h"

static const struct shape shape_plain = {false, false, false, 1};
static const struct shape shape_halved = {false, false, true, 1};

#define dot_plain CPU_ISA(dot_plain)
static void dot_halved(const uint8_t *tile, const uint8_t *columns, uint32_t width, int64_t k,
                       float *ret_out) {
        dot_width(tile, columns, width, k, shape_halved, ret_out);
}

LANES_INLINE void unpack_nvfp4(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale) {
        lanes_u s = lanes_load1(row, at), q[8];

        lanes_load4(row, at + 4, q);
        lanes_load4(row, at + 20, q + 4);
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
                lanes_u bits = s >> 8 * g & 0x7fU;

                bits &= ~(lanes_u) (bits == 0x7fU);
                scale[g] = (lanes_f) (bits << 20) * 0x1p119f;
#pragma GCC unroll 2
                for (int j = 0; j < 2; j++) {
                        lanes_u both = q[2 * g + j];

                        w[4 * g + j] = lanes_table16(both & NIBBLES, e2m1_bytes);
                        w[4 * g + 2 + j] = lanes_table16(both >> 4 & NIBBLES, e2m1_bytes);
                }
        }
}

LANES_INLINE void unpack_q2_0(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale) {
        lanes_u q[4];

        lanes_load4(row, at + 2, q);
        scale[0] = scale[1] = lanes_load_half(row, at);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) {
                lanes_u four = q[j / 4] >> 8 * (j % 4) & 255U;

                four |= four << 12;
                w[j] = (four | four << 6) & 0x03030303U;
        }
}

LANES_INLINE void unpack_q1_0(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale) {
        lanes_u q[4];

        lanes_load4(row, at + 2, q);
        scale[0] = scale[1] = scale[2] = scale[3] = lanes_load_half(row, at);
#pragma GCC unroll 32
        for (int j = 0; j < 32; j++)
                w[j] = spread_bits(q[j / 8] >> 4 * (j % 8)) << 1;
}

/* X(name, block bytes, groups of 32 in a block, scales of a group, offset, shape) */
#define BLOCK_TYPES                                                                                \
        X(nvfp4, 36, 2, 2, 12, halved)                                                             \
        X(q2_0, 18, 2, 1, 1, plain)                                                                \
        X(q1_0, 18, 4, 1, 1, plain)

#define X(name, size, units, scales, above, shape_name)                                            \
        static void pack_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                uint8_t *ret_tile) {                                               \
                lanes_u *w = (lanes_u *) ret_tile;                                                 \
                lanes_f *scale = (lanes_f *) (ret_tile + k * CPU_LANES);                           \
                const uint8_t *row[CPU_LANES];                                                     \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                for (int64_t b = 0; b < k / (BLOCK * (units)); b++)                                \
                        unpack_##name(row, (uint64_t) b *size, w + b * DWORDS * (units),           \
                                      scale + b * (units) * (scales));                             \
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
        static void rows_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                const uint8_t *column, float *ret_out) {                           \
                const struct shape shape = shape_##shape_name;                                     \
                const struct columns at = columns_at(column, k, 1, shape);                         \
                lanes_f part[DWORDS], low = lanes_set_f(0), scale[(units) * (scales)];             \
                const uint8_t *row[CPU_LANES];                                                     \
                lanes_u w[DWORDS * (units)];                                                       \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                _Pragma("GCC unroll 8") for (int i = 0; i < DWORDS; i++) part[i] = low;            \
                for (int64_t b = 0; b < k / (BLOCK * (units)); b++) {                              \
                        prefetch_next(base, stride, (uint64_t) b *size, size);                     \
                        unpack_##name(row, (uint64_t) b *size, w, scale);                          \
                        _Pragma("GCC unroll 4") for (int i = 0; i < (units); i++)                  \
                                dot_block(w + DWORDS * i, scale + scales * i, low, &at,            \
                                          b * (units) + i, shape, part, &low);                     \
                }                                                                                  \
                lanes_store_f(ret_out, add_parts(part));                                           \
        }                                                                                          \
                                                                                                   \
        const struct cpu_tile CPU_ISA(tile_##name) = {                                             \
                .group = BLOCK / (scales),                                                         \
                .span = BLOCK,                                                                     \
                .bias_group = 4,                                                                   \
                .pack = pack_##name,                                                               \
                .columns = columns_##name,                                                         \
                .dot = dot_##shape_name,                                                           \
                .dot_rows = rows_##name,                                                           \
        };
BLOCK_TYPES
#undef X
