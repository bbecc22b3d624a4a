/*
 * Attention key by key: scores of keys and weighted sums of values for few queries.
 *
 * Every result is the chain of operations that ggml has for one query alone, bit for bit, however
 * many rows (a query of a head) go over the same keys and values together: scores are sums of 64
 * products at a time in the order of a tree, totals go on value by value. Rows that share keys
 * share what it costs to read them; keys then lie side by side in the lanes, as in a tile, and the
 * tree needs no step across lanes.
 */
#include "backends/cpu/matrix/load_key.h"
#include "backends/cpu/matrix/tables.h"
#if CPU_LANES == 16
#include "backends/cpu/matrix/score_avx512.h"
#endif

#define AHEAD 32                /* keys by which memory is asked for before it is needed */
#define HALVES (16 / CPU_LANES) /* vectors that 16 floats take */

/* Wide vectors have a tree of their own for each number of rows; narrow ones one for all, which
 * takes the compiler a fraction of the time. */
#define ROWS_APART (CPU_LANES > 4)
#if CPU_LANES > 4
#define TREE_INLINE LANES_INLINE
#else
#define TREE_INLINE static __attribute__((noinline))
#endif

/* ---- One row --------------------------------------------------------------------------------- */

static float load_one(uint32_t type, const uint8_t *key, int64_t at) {
        if (type == HR_TYPE_F32)
                return cpu_bits_float(cpu_read_u32(key + 4 * at));
        return type == HR_TYPE_F16 ? cpu_read_half(key + 2 * at)
                                   : cpu_bf16_to_float(cpu_read_u16(key + 2 * at));
}

/* Four accumulators of 16 floats take the elements in turn; what is left of 64 is added in f64. */
LANES_INLINE void score_four(uint32_t type, const uint8_t *const *key, const float *query,
                             int64_t size, float *ret_scores) {
        const int64_t whole = size / 64 * 64;
        lanes_f sum[4][4 * HALVES], total[4];

#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
#pragma GCC unroll 16
                for (int j = 0; j < 4 * HALVES; j++)
                        sum[r][j] = lanes_set_f(0);
        for (int64_t i = 0; i < whole; i += 64)
#pragma GCC unroll 16
                for (int j = 0; j < 4 * HALVES; j++) {
                        lanes_f q = lanes_load_f(query + i + CPU_LANES * j);

#pragma GCC unroll 4
                        for (int r = 0; r < 4; r++)
                                sum[r][j] = lanes_fma_once(
                                        load_key(type, key[r], i + CPU_LANES * j), q, sum[r][j]);
                }
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
                lanes_f v[HALVES];

                for (int j = 0; j < HALVES; j++)
                        v[j] = (sum[r][j] + sum[r][2 * HALVES + j]) +
                               (sum[r][HALVES + j] + sum[r][3 * HALVES + j]);
                for (int half = HALVES / 2; half > 0; half /= 2)
                        for (int j = 0; j < half; j++)
                                v[j] = v[j] + v[j + half];
                total[r] = v[0];
        }
        lanes_sum4(total, ret_scores);
        for (int r = 0; r < 4 && whole < size; r++) {
                double left = (double) ret_scores[r];

                for (int64_t i = whole; i < size; i++)
                        left += (double) (load_one(type, key[r], i) * query[i]);
                ret_scores[r] = (float) left;
        }
}

#define SCORE_KEYS(name, type)                                                                     \
        static void score_##name(const uint8_t *keys, uint64_t stride, uint32_t count,             \
                                 const float *query, int64_t size, float *ret_scores) {            \
                for (uint32_t i = 0; i < count; i += 4) {                                          \
                        const uint8_t *key[4];                                                     \
                        float out[4];                                                              \
                                                                                                   \
                        for (uint32_t r = 0; r < 4; r++)                                           \
                                key[r] = keys + stride * (i + r < count ? i + r : count - 1);      \
                        score_four(type, key, query, size, out);                                   \
                        for (uint32_t r = 0; r < 4 && i + r < count; r++)                          \
                                ret_scores[i + r] = out[r];                                        \
                }                                                                                  \
        }
SCORE_KEYS(f32, HR_TYPE_F32)
SCORE_KEYS(f16, HR_TYPE_F16)
SCORE_KEYS(bf16, HR_TYPE_BF16)

void CPU_ISA(score_keys)(uint32_t type, const uint8_t *keys, uint64_t stride, uint32_t count,
                         const float *query, int64_t size, float *ret_scores) {
        if (type == HR_TYPE_F32)
                score_f32(keys, stride, count, query, size, ret_scores);
        else if (type == HR_TYPE_F16)
                score_f16(keys, stride, count, query, size, ret_scores);
        else
                score_bf16(keys, stride, count, query, size, ret_scores);
}

#if CPU_LANES == 16
void CPU_ISA(score_few)(uint32_t type, const uint8_t *keys, uint64_t stride,
                        const float *const *query, uint32_t rows, int64_t size, float *ret_scores,
                        uint64_t score_stride) {
        if (type == HR_TYPE_F32)
                some_f32(keys, stride, query, rows, size, ret_scores, score_stride);
        else if (type == HR_TYPE_F16)
                some_f16(keys, stride, query, rows, size, ret_scores, score_stride);
        else
                some_bf16(keys, stride, query, rows, size, ret_scores, score_stride);
}
#endif

/* `vectors` vectors of the total, all keys; `part` floats of the last one. */
LANES_INLINE void walk_block(const struct cpu_key_walk *walk, const bool is_half, uint32_t first,
                             const int vectors, const unsigned part, float *total) {
        lanes_f sum[4];

#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
                sum[j] =
                        part ? lanes_load_part_f(total, part) : lanes_load_f(total + CPU_LANES * j);
        for (uint32_t i = 0; i < walk->count; i++) {
                const uint8_t *value = walk->values + walk->stride * walk->key[i];
                lanes_f weight = lanes_set_f(walk->weight[i]);

                if (walk->factor[i] != 1.0f)
#pragma GCC unroll 4
                        for (int j = 0; j < vectors; j++) {
                                sum[j] = sum[j] * walk->factor[i];
                                if (is_half)
                                        sum[j] = lanes_round_half(sum[j]);
                        }
#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++) {
                        uint32_t at = first + CPU_LANES * (uint32_t) j;
                        lanes_f v;

                        if (part) {
                                float spare[CPU_LANES] = {0};

                                for (unsigned e = 0; e < part; e++)
                                        spare[e] = load_one(is_half ? HR_TYPE_F16 : HR_TYPE_F32,
                                                            value, at + e);
                                v = lanes_load_f(spare);
                        } else {
                                v = load_key(is_half ? HR_TYPE_F16 : HR_TYPE_F32, value, at);
                        }
                        sum[j] = lanes_fma_once(v, weight, sum[j]);
                        if (is_half)
                                sum[j] = lanes_round_half(sum[j]);
                }
        }
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
                if (part)
                        lanes_store_part_f(total, sum[j], part);
                else
                        lanes_store_f(total + CPU_LANES * j, sum[j]);
}

LANES_INLINE void walk_all(const struct cpu_key_walk *walk, const bool is_half, uint32_t size,
                           float *total) {
        uint32_t d = 0;

        for (; d + 4 * CPU_LANES <= size; d += 4 * CPU_LANES)
                walk_block(walk, is_half, d, 4, 0, total + d);
        for (; d + CPU_LANES <= size; d += CPU_LANES)
                walk_block(walk, is_half, d, 1, 0, total + d);
        if (d < size)
                walk_block(walk, is_half, d, 1, size - d, total + d);
}

void CPU_ISA(walk_values)(const struct cpu_key_walk *walk, bool is_half, uint32_t size,
                          float *total) {
        if (is_half)
                walk_all(walk, true, size, total);
        else
                walk_all(walk, false, size, total);
}

/* ---- Keys in the lanes, several rows
 * ---------------------------------------------------------- */

/* Rows that are scored together, and where their queries are. */
struct scored {
        const lanes_f *w; /* element i of the keys */
        const float *const *query;
        int64_t size;
};

/* Products of elements i, i + 64, ... added up. */
TREE_INLINE void tree_leaf(const struct scored *s, const int rows, const int i, lanes_f *ret) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
                ret[r] = lanes_set_f(0);
        for (int64_t at = i; at < s->size; at += 64)
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++)
                        ret[r] = lanes_fma_once(s->w[at], lanes_set_f(s->query[r][at]), ret[r]);
}

#define TREE_NODE(name, below, apart)                                                              \
        TREE_INLINE void tree_##name(const struct scored *s, const int rows, const int i,         \
                                      lanes_f *ret) {                                              \
                lanes_f more[4];                                                                   \
                                                                                                   \
                tree_##below(s, rows, i, ret);                                                     \
                tree_##below(s, rows, i + (apart), more);                                          \
                _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) ret[r] = ret[r] + more[r];  \
        }
TREE_NODE(64, leaf, 32)
TREE_NODE(32, 64, 16)
TREE_NODE(16, 32, 8)
TREE_NODE(8, 16, 4)
TREE_NODE(4, 8, 2)
TREE_NODE(2, 4, 1)

LANES_INLINE void score_rows(const struct scored *s, const int rows, float *ret_scores,
                             uint64_t score_stride) {
        lanes_f score[4];

        tree_2(s, rows, 0, score);
        for (int r = 0; r < rows; r++)
                lanes_store_f(ret_scores + score_stride * (uint64_t) r, score[r]);
}

static void score_some(const struct scored *s, uint32_t rows, float *ret_scores,
                       uint64_t score_stride) {
        if (!ROWS_APART)
                score_rows(s, (int) rows, ret_scores, score_stride);
        else if (rows == 4)
                score_rows(s, 4, ret_scores, score_stride);
        else if (rows == 3)
                score_rows(s, 3, ret_scores, score_stride);
        else if (rows == 2)
                score_rows(s, 2, ret_scores, score_stride);
        else
                score_rows(s, 1, ret_scores, score_stride);
}

void CPU_ISA(score_tile)(const uint8_t *tile, const float *const *query, uint32_t rows,
                         int64_t size, float *ret_scores, uint64_t score_stride) {
        for (uint32_t r = 0; r < rows; r += 4) {
                const struct scored s = {(const lanes_f *) tile, query + r, size};
                const uint32_t some = rows - r < 4 ? rows - r : 4;

                score_some(&s, some, ret_scores + score_stride * r, score_stride);
        }
}

/* ---- All keys of a block, several rows
 * -------------------------------------------------------- */

/* `vectors` vectors from element `at` on of the totals of `rows` rows. */
LANES_INLINE void weigh_slice(const struct cpu_key_rows *walk, const bool is_half, const int rows,
                              const uint32_t at, const int vectors) {
        lanes_f sum[4][4], v[4];

#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++)
                        sum[r][j] = lanes_load_f(walk->total[r] + at + CPU_LANES * j);
        for (uint32_t i = 0; i < walk->count; i++) {
                const uint8_t *value = walk->values + walk->stride * i;

                if (at == 0) /* all of the row; rows are short pieces, apart from each other */
                        for (uint64_t byte = 0; byte < walk->ahead_bytes; byte += 64)
                                __builtin_prefetch(value + AHEAD * walk->stride + byte, 0, 3);
#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++)
                        v[j] = load_key(is_half ? HR_TYPE_F16 : HR_TYPE_F32, value,
                                        at + CPU_LANES * (uint32_t) j);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                        const lanes_f weight = lanes_set_f(walk->weight[r][i]);
                        const float factor = walk->factor[r][i];

                        if (factor != 1.0f)
#pragma GCC unroll 4
                                for (int j = 0; j < vectors; j++) {
                                        sum[r][j] = sum[r][j] * factor;
                                        if (is_half)
                                                sum[r][j] = lanes_round_half(sum[r][j]);
                                }
#pragma GCC unroll 4
                        for (int j = 0; j < vectors; j++) {
                                sum[r][j] = lanes_fma_once(v[j], weight, sum[r][j]);
                                if (is_half)
                                        sum[r][j] = lanes_round_half(sum[r][j]);
                        }
                }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++)
                        lanes_store_f(walk->total[r] + at + CPU_LANES * j, sum[r][j]);
}

#define SLICE (CPU_LANES == 16 ? 4 : 2) /* vectors whose sums of four rows have registers */

LANES_INLINE void weigh_all(const struct cpu_key_rows *walk, const bool is_half, const int rows,
                            uint32_t size) {
        uint32_t at = 0;

        for (; at + SLICE * CPU_LANES <= size; at += SLICE * CPU_LANES)
                weigh_slice(walk, is_half, rows, at, SLICE);
        for (; at < size; at += CPU_LANES)
                weigh_slice(walk, is_half, rows, at, 1);
}

LANES_INLINE void weigh_some(const struct cpu_key_rows *walk, const bool is_half, uint32_t size) {
        if (walk->rows == 4)
                weigh_all(walk, is_half, 4, size);
        else if (walk->rows == 3)
                weigh_all(walk, is_half, 3, size);
        else if (walk->rows == 2)
                weigh_all(walk, is_half, 2, size);
        else
                weigh_all(walk, is_half, 1, size);
}

void CPU_ISA(walk_rows)(const struct cpu_key_rows *walk, bool is_half, uint32_t size) {
        if (is_half)
                weigh_some(walk, true, size);
        else
                weigh_some(walk, false, size);
}
