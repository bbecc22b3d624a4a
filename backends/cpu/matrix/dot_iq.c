/*
 * Tiles of the IQ types with blocks of 256 and of the ternary types.
 *
 * Compiled once per instruction set. A block is unpacked whole, then multiplied: the look-ups cost
 * more than the way through the first-level cache. dot_rows and dot give equal bits.
 */
#include "backends/cpu/matrix/dot_body256.h"
#include "backends/cpu/matrix/tile_rows.h"
#include "backends/cpu/matrix/unpack_iq.h"

#define SHAPE(name, group, is_signed)                                                              \
        static const struct shape shape_##name = {group, false, is_signed};                        \
                                                                                                   \
        static void dot_##name(const uint8_t *tile, const uint8_t *columns, uint32_t width,        \
                               int64_t k, float *ret_out) {                                        \
                dot_width(tile, columns, width, k, shape_##name, ret_out);                         \
        }
SHAPE(of_16, 16, CPU_SIGNED_BYTES)
SHAPE(of_32, 32, CPU_SIGNED_BYTES)
#if CPU_SIGNED_BYTES
SHAPE(ternary, 32, false)
#else
#define dot_ternary dot_of_32
#define shape_ternary shape_of_32
#endif

/* X(name, block bytes, group, shape, offset) */
#define BLOCK_TYPES                                                                                \
        X(iq1_s, 50, 32, of_32, CPU_FULL_OFFSET)                                                   \
        X(iq1_m, 56, 16, of_16, CPU_FULL_OFFSET)                                                   \
        X(iq2_xxs, 66, 32, of_32, CPU_FULL_OFFSET)                                                 \
        X(iq2_xs, 74, 16, of_16, CPU_FULL_OFFSET)                                                  \
        X(iq2_s, 82, 16, of_16, CPU_FULL_OFFSET)                                                   \
        X(iq3_xxs, 98, 32, of_32, CPU_FULL_OFFSET)                                                 \
        X(iq3_s, 110, 32, of_32, CPU_FULL_OFFSET)                                                  \
        X(iq4_xs, 136, 32, of_32, CPU_FULL_OFFSET)                                                 \
        X(tq1_0, 54, 32, ternary, 1)                                                               \
        X(tq2_0, 66, 32, ternary, 1)

#define X(name, bytes, g, shape_name, offset)                                                      \
        static void pack_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                uint8_t *ret_tile) {                                               \
                lanes_u *w = (lanes_u *) ret_tile;                                                 \
                lanes_f *scale = (lanes_f *) (ret_tile + k * CPU_LANES);                           \
                const uint8_t *row[CPU_LANES];                                                     \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                for (int64_t b = 0; b < k / BLOCK; b++)                                            \
                        unpack_##name(row, (uint64_t) b *bytes, w + b * (BLOCK / 4),               \
                                      scale + b * (BLOCK / (g)));                                  \
        }                                                                                          \
                                                                                                   \
        static void columns_##name(const float *const *values, uint32_t width, int64_t k,          \
                                   uint8_t *ret_columns) {                                         \
                pack_columns(values, width, k, shape_##shape_name, offset, ret_columns);           \
        }                                                                                          \
                                                                                                   \
        static void rows_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                const uint8_t *column, float *ret_out) {                           \
                struct columns at = columns_at(column, k, 1, shape_##shape_name);                  \
                const uint8_t *row[CPU_LANES];                                                     \
                lanes_f scale[BLOCK / (g)], total[1] = {lanes_set_f(0)};                           \
                lanes_u w[BLOCK / 4];                                                              \
                                                                                                   \
                rows_at(base, stride, rows, row);                                                  \
                for (uint64_t b = 0; b < (uint64_t) k / BLOCK; b++) {                              \
                        prefetch_next(base, stride, b *bytes, bytes);                              \
                        unpack_##name(row, b *bytes, w, scale);                                    \
                        dot_block(w, scale, scale, &at, 1, shape_##shape_name, total);             \
                }                                                                                  \
                lanes_store_f(ret_out, total[0]);                                                  \
        }                                                                                          \
                                                                                                   \
        const struct cpu_tile CPU_ISA(tile_##name) = {                                             \
                .group = g,                                                                        \
                .span = BLOCK,                                                                     \
                .bias_group = g,                                                                   \
                .pack = pack_##name,                                                               \
                .columns = columns_##name,                                                         \
                .dot = dot_##shape_name,                                                           \
                .dot_rows = rows_##name,                                                           \
        };
BLOCK_TYPES
#undef X
