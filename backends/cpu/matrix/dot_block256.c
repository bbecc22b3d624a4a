/*
 * Tiles of Q2_K .. Q6_K: unpacking, preparing columns, and the products.
 *
 * Compiled once per instruction set. dot_rows, which unpacks into registers, and dot, which reads a
 * tile, give equal bits.
 */
#include "backends/cpu/matrix/dot_body256.h"
#if CPU_LANES == 16
#include "backends/cpu/matrix/dot_apart_avx512.h"
#endif
#include "backends/cpu/matrix/tile_rows.h"
#include "backends/cpu/matrix/unpack.h"

/* Types of one shape share their products. */
#define SHAPE(name, group, minimum)                                                                \
        static void dot_##name(const uint8_t *tile, const uint8_t *columns, uint32_t width,        \
                               int64_t k, float *ret_out) {                                        \
                dot_width(tile, columns, width, k, (struct shape){group, minimum, false},          \
                          ret_out);                                                                \
        }
SHAPE(16_plain, 16, false)
SHAPE(16_minimum, 16, true)
SHAPE(32_minimum, 32, true)
#define dot_q2_K dot_16_minimum
#define dot_q3_K dot_16_plain
#define dot_q4_K dot_32_minimum
#define dot_q5_K dot_32_minimum
#define dot_q6_K dot_16_plain

/* Elements 64 * i on of a block of one column: unpacked first, */
#define UNPACKED(name, g)                                                                          \
        {                                                                                          \
                lanes_u w[16];                                                                     \
                                                                                                   \
                quarter_##name(extra, raw, i / 2, i % 2, w);                                       \
                dot_piece(w, scale + 64 / (g) * i, low + 64 / (g) * i, &at, 1, shape, 64 / (g),    \
                          part);                                                                   \
        }
/* or not. */
#if CPU_LANES == 16
#define APART(name, g)                                                                             \
        dot_apart(extra, raw, i, HAS_FIFTH_BIT_##name, scale + 2 * i, low + 2 * i, &at, part);
#else
#define APART UNPACKED
#endif

/* One column, rows taken apart as they come, 64 elements at a time. A whole tile's rows are where
 * the stride says: their addresses are made for each block, since so many are kept nowhere. */
#define ROWS_256(name, bytes, g, minimum, piece)                                                   \
        LANES_INLINE void some_##name(const uint8_t *base, uint64_t stride, const uint32_t rows,   \
                                      int64_t k, const uint8_t *column, float *ret_out) {          \
                const struct shape shape = {g, minimum, false};                                    \
                struct columns at = columns_at(column, k, 1, shape);                               \
                const uint8_t *row[CPU_LANES];                                                     \
                lanes_f scale[256 / (g)], low[256 / (g)], total[1] = {lanes_set_f(0)};             \
                lanes_u extra[24], raw[16];                                                        \
                                                                                                   \
                for (uint64_t b = 0; b < (uint64_t) k / 256; b++) {                                \
                        lanes_f part[1] = {lanes_set_f(0)};                                        \
                                                                                                   \
                        __asm__("" : "+r"(stride));                                                \
                        rows_at(base + b * (bytes), stride, rows, row);                            \
                        head_##name(row, 0, extra, scale, low);                                    \
                        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {                      \
                                prefetch_next(base, stride, b * (bytes) + ((bytes) + 3) / 4 * i,   \
                                              ((bytes) + 3) / 4);                                  \
                                if (i % 2 == 0)                                                    \
                                        half_##name(row, 0, i / 2, raw);                           \
                                piece(name, g)                                                     \
                        }                                                                          \
                        end_block(&at, 1, part, total);                                            \
                }                                                                                  \
                lanes_store_f(ret_out, total[0]);                                                  \
        }                                                                                          \
                                                                                                   \
        static void rows_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                const uint8_t *column, float *ret_out) {                           \
                if (rows == CPU_LANES)                                                             \
                        some_##name(base, stride, CPU_LANES, k, column, ret_out);                  \
                else                                                                               \
                        some_##name(base, stride, rows, k, column, ret_out);                       \
        }
ROWS_256(q2_K, 84, 16, true, UNPACKED)
ROWS_256(q3_K, 110, 16, false, UNPACKED)
ROWS_256(q4_K, 144, 32, true, APART)
ROWS_256(q5_K, 176, 32, true, APART)
ROWS_256(q6_K, 210, 16, false, UNPACKED)

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
                for (int64_t b = 0; b < k / BLOCK; b++) {                                          \
                        prefetch_next(base, stride, (uint64_t) b *bytes, bytes);                   \
                        unpack_##name(row, (uint64_t) b *bytes, w + b * (BLOCK / 4),               \
                                      scale + b * (BLOCK / (g)), low + b * (BLOCK / (g)));         \
                }                                                                                  \
        }                                                                                          \
                                                                                                   \
        static void columns_##name(const float *const *values, uint32_t width, int64_t k,          \
                                   uint8_t *ret_columns) {                                         \
                const struct shape shape = {g, minimum, false};                                    \
                                                                                                   \
                pack_columns(values, width, k, shape, offset, ret_columns);                        \
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
