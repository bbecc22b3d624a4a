/*
 * Conversions and dot products of one instruction set, as a table of functions.
 *
 * Block types go through *tiles*. A tile is `lanes` weight rows unpacked side by side: dword j of a
 * tile holds, for each row, four consecutive elements as bytes, and each group of elements has one
 * float scale (and one minimum) per row. A *column group* is 1 .. `width` columns of activations,
 * quantised to the partner type of the weights and interleaved the same way. Each result of
 * tile x columns is a chain of operations over the groups in order, whatever the width, so that a
 * result's bits depend neither on the number of columns nor on who computes it.
 *
 *   weights   w[k/4][lanes] u8x4   scale[k/group][lanes] f32   minimum[k/group][lanes] f32
 *   columns   q[k/4][width] s8x4   bias[k/bias_group][width] i32   sum[k/group][width] f32
 *             scale[k/span][width] f32
 *   result    sum over groups of  scale_w * scale_a * (bias + w.q) + minimum_w * sum_a
 *
 * The order of that sum is in dot_block32.c, dot_fast32.c and dot_block256.c.
 *
 * The bias takes back the offset that makes weights unsigned. `minimum` and `sum` exist for types
 * with a minimum. `span` elements share one activation scale (32: q8_0 and q8_1, 256: q8_K).
 *
 * Float rows (f32, f16, bf16) are multiplied in place by float_dot, whose results have the same
 * property: one accumulator vector per result and chunk of k, filled in order.
 *
 * All functions are pure and thread-safe; pointers need no alignment unless said.
 */
#pragma once

#include "core/type.h"

#define CPU_FLOAT_CHUNK 1024
#define CPU_FLOAT_GAP 16
#define CPU_FLOAT_SPARE (4 * (CPU_FLOAT_CHUNK + CPU_FLOAT_GAP))

typedef void (*cpu_quantize_fn)(const float *values, void *ret_row, int64_t count);

struct cpu_tile {
        uint16_t group, span;
        uint16_t bias_group; /* elements that share a bias; 0 = no bias at all */
        bool has_minimum;
        bool is_float; /* w[k][lanes] f32 and q[k][width] f32, nothing else */
        /* Unpacks `rows` (1 .. lanes) rows of k elements at base, base + stride, ...; the lanes
         * past them repeat the last row. ret_tile: cpu_tile_bytes(), 64-byte aligned. */
        void (*pack)(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,
                     uint8_t *ret_tile);
        /* Quantises `width` columns of k contiguous floats. ret_columns: width *
         * cpu_column_bytes(), 4-byte aligned. */
        void (*columns)(const float *const *values, uint32_t width, int64_t k,
                        uint8_t *ret_columns);
        /* ret_out[width][lanes]. */
        void (*dot)(const uint8_t *tile, const uint8_t *columns, uint32_t width, int64_t k,
                    float *ret_out);
        /* The same as pack and dot for one column, without a tile in memory. ret_out[lanes]. */
        void (*dot_rows)(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,
                         const uint8_t *column, float *ret_out);
};

/* Keys that attention visits one after the other, for one query and head. */
struct cpu_key_walk {
        const uint8_t *values; /* row of key k at values + stride * k; f16 or f32 */
        uint64_t stride;
        uint32_t count;
        const uint32_t *key;   /* in this order */
        const float *weight;
        const float *factor;   /* the total is multiplied by it before key i is added; mostly 1 */
};

/* The same for all keys of a block and up to four rows that share them. */
struct cpu_key_rows {
        const uint8_t *values; /* of the first key */
        uint64_t stride;
        uint64_t ahead_bytes; /* of each row, that are asked for before they are needed */
        uint32_t count, rows;
        const float *weight[4], *factor[4]; /* of each row, per key */
        float *total[4];
};

struct cpu_dot {
        const char *name;
        uint32_t lanes, width;
        hr_dequantize_fn dequantize[HR_TYPE_LIMIT]; /* type -> f32; NULL = none */
        cpu_quantize_fn quantize[HR_TYPE_LIMIT];     /* f32 -> type; NULL = none */
        const struct cpu_tile *tile[HR_TYPE_LIMIT];     /* of weights; NULL = no such type */
        const struct cpu_tile *key_tile[HR_TYPE_LIMIT]; /* of keys; the same types */
        /* Replaces the tiles whose additions ggml's order makes slow; cpu_dot_fast() calls it. */
        void (*make_fast)(struct cpu_dot *table);
        /* Dot products of `rows` rows of f32, f16 or bf16 with `width` (any) columns of k elements,
         * column_stride bytes apart: out[width][out_stride], `rows` of each written. Columns are as
         * float_column makes them; for rows of f32 the floats themselves will do.
         * spare: CPU_FLOAT_SPARE floats; NULL will do for f32 rows. */
        void (*float_dot)(uint32_t type, const uint8_t *base, uint64_t stride, uint32_t rows,
                          const uint8_t *columns, uint64_t column_stride, uint32_t width, int64_t k,
                          float *spare, float *ret_out, uint64_t out_stride);
        /* A column of k floats, rounded to the rows' type. ret_column: cpu_column_bytes(). */
        void (*float_column)(uint32_t type, const float *values, int64_t k, uint8_t *ret_column);
        /* Attention. scores[count] := scale * scores, squeezed to cap * tanh(./cap) when cap is not
         * 0, plus slope * mask (NULL = none); -inf in the mask gives -inf. Returns the largest. */
        float (*score_row)(float *scores, const float *mask, uint32_t count, float scale, float cap,
                           float slope);
        /* scores[count] := exp(scores - maximum); returns their sum: 16 at a time in f32, those in
         * f64. */
        double (*exp_row)(float *scores, uint32_t count, float maximum);
        /* values[count] *= factor. */
        void (*scale_row)(float *values, uint32_t count, float factor);
        /* out[columns][stride] += sum over keys of weight[column][key] * value[key][size];
         * weights are `weight_stride` floats apart. */
        void (*weigh_rows)(const float *weights, uint64_t weight_stride, uint32_t columns,
                           const float *values, uint32_t keys, uint32_t size, float *out,
                           uint64_t out_stride);
        /* Dot products of `count` keys of f32, f16 or bf16 with a query, which is rounded
         * already. */
        void (*score_keys)(uint32_t type, const uint8_t *keys, uint64_t stride, uint32_t count,
                           const float *query, int64_t size, float *ret_scores);
        /* total[size] over the keys of the walk. is_half: values are f16, and so is the total after
         * each step; else all is f32. */
        void (*walk_values)(const struct cpu_key_walk *walk, bool is_half, uint32_t size,
                            float *total);
        /* What score_keys gives for the `lanes` keys of a packed tile of floats and several
         * queries: ret_scores[rows][score_stride]. size: a multiple of 64. */
        void (*score_tile)(const uint8_t *tile, const float *const *query, uint32_t rows,
                           int64_t size, float *ret_scores, uint64_t score_stride);
        /* The same for `lanes` keys that are not packed, and up to four queries; NULL where packing
         * them first is better. */
        void (*score_few)(uint32_t type, const uint8_t *keys, uint64_t stride,
                          const float *const *query, uint32_t rows, int64_t size,
                          float *ret_scores, uint64_t score_stride);
        /* What walk_values gives for each row; size: a multiple of `lanes`. */
        void (*walk_rows)(const struct cpu_key_rows *walk, bool is_half, uint32_t size);
};

/* The table of "portable", "avx2", "avx512" or "avx512bf16"; NULL or "auto": the best one. NULL
 * when the processor lacks what it needs or there is no such name. */
const struct cpu_dot *cpu_dot_select(const char *isa);

/* The same set with `arithmetic = fast`: all 32-blocks are added up whole (dot_fast32.c), those of
 * keys, too. */
const struct cpu_dot *cpu_dot_fast(const struct cpu_dot *dot);

/* dot_bf16.c, where the compiler knows the instructions: the set "avx512bf16". */
const struct cpu_dot *cpu_dot_avx512bf16(void);

/* The partner type that activations are rounded to: F32, F16, BF16, Q8_0, Q8_1, Q8_K; -1 for a type
 * that is no weight. */
int cpu_partner_type(uint32_t type);

static inline uint64_t cpu_tile_bytes(const struct cpu_tile *tile, uint32_t lanes, int64_t k) {
        uint64_t n = (uint64_t) k;

        if (tile->is_float)
                return n * lanes * 4;
        return lanes * (n + n / tile->group * (tile->has_minimum ? 8 : 4));
}

/* Bytes of one column of a column group. */
static inline uint64_t cpu_column_bytes(const struct cpu_tile *tile, int64_t k) {
        uint64_t n = (uint64_t) k;

        if (tile->is_float)
                return n * 4;
        return n + (tile->bias_group ? n / tile->bias_group * 4 : 0) +
               (tile->has_minimum ? n / tile->group * 4 : 0) + n / tile->span * 4;
}

/* Width of the column group that starts at column `first` of `count`: full ones, then powers of
 * two, three at the end. */
static inline uint32_t cpu_group_width(uint32_t width, int64_t first, int64_t count) {
        if (count - first == 3)
                return 3;
        while ((int64_t) width > count - first)
                width /= 2;
        return width;
}
