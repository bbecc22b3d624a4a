/*
 * The float parts of attention: tiles of float keys, scores, exponentials, weighted sums of values.
 *
 * Float tiles hold keys side by side in the lanes, one chain of fused steps per result; sums,
 * exponentials and the order of all steps are ggml's, bit for bit (but for processors without a
 * fused multiply-add), for the reason given in dot_block32.c. Every result is a chain of operations
 * that the number of columns and keys around it does not change.
 */
#include "backends/cpu/matrix/tables.h"

/* Dwords of rows as f32 vectors: one or two elements each. Returns where the next ones go. */
LANES_INLINE lanes_f *put_dwords(uint32_t type, const lanes_u *q, const int count, lanes_f *out) {
#pragma GCC unroll 16
        for (int j = 0; j < count; j++) {
                if (type == HR_TYPE_F32) {
                        *out++ = (lanes_f) q[j];
                } else if (type == HR_TYPE_F16) {
                        *out++ = lanes_half(q[j] & 0xffffU);
                        *out++ = lanes_half(q[j] >> 16);
                } else {
                        *out++ = (lanes_f) (q[j] << 16);
                        *out++ = (lanes_f) (q[j] & 0xffff0000U);
                }
        }
        return out;
}

LANES_INLINE void pack_float(uint32_t type, const uint8_t *base, uint64_t stride, uint32_t rows,
                       int64_t k, uint8_t *ret_tile) {
        const int64_t per_load = type == HR_TYPE_F32 ? 4 : 8;
        lanes_f *out = (lanes_f *) ret_tile;
        const uint8_t *row[CPU_LANES];
        lanes_u q[16];
        int64_t i = 0;

        for (uint32_t r = 0; r < CPU_LANES; r++)
                row[r] = base + stride * (r < rows ? r : rows - 1);
        for (; i + 4 * per_load <= k; i += 4 * per_load) {
                lanes_load16(row, (uint64_t) (16 / per_load * i), 64, NULL, q);
                out = put_dwords(type, q, 16, out);
        }
        for (; i + per_load <= k; i += per_load) {
                lanes_load4(row, (uint64_t) (16 / per_load * i), q);
                out = put_dwords(type, q, 4, out);
        }
        for (; i < k; i++, out++)
                for (int r = 0; r < CPU_LANES; r++)
                        if (type == HR_TYPE_F32)
                                (*out)[r] = cpu_bits_float(cpu_read_u32(row[r] + 4 * i));
                        else if (type == HR_TYPE_F16)
                                (*out)[r] = cpu_read_half(row[r] + 2 * i);
                        else
                                (*out)[r] = cpu_bf16_to_float(cpu_read_u16(row[r] + 2 * i));
}

static void columns_float(uint32_t type, const float *const *values, uint32_t width, int64_t k,
                          uint8_t *ret_columns) {
        float *out = (float *) ret_columns;

        for (uint32_t c = 0; c < width; c++)
                for (int64_t i = 0; i < k; i++) {
                        float x = values[c][i];

                        if (type == HR_TYPE_F16)
                                x = cpu_half_to_float(cpu_float_to_half(x));
                        else if (type == HR_TYPE_BF16)
                                x = cpu_bf16_to_float(cpu_float_to_bf16(x));
                        out[i * width + c] = x;
                }
}

LANES_INLINE void dot_lanes(const uint8_t *tile, const uint8_t *columns, const int width, int64_t k,
                            float *ret_out) {
        const lanes_f *w = (const lanes_f *) tile;
        const float *q = (const float *) columns;
        lanes_f sum[CPU_WIDTH];

        for (int c = 0; c < width; c++)
                sum[c] = lanes_set_f(0);
        for (int64_t i = 0; i < k; i++)
#pragma GCC unroll 8
                for (int c = 0; c < width; c++)
                        sum[c] = lanes_fma(w[i], lanes_set_f(q[i * width + c]), sum[c]);
        for (int c = 0; c < width; c++)
                lanes_store_f(ret_out + c * CPU_LANES, sum[c]);
}

static void dot_float(const uint8_t *tile, const uint8_t *columns, uint32_t width, int64_t k,
                      float *ret_out) {
        switch (width) {
#if CPU_WIDTH >= 8
        case 8:
                dot_lanes(tile, columns, 8, k, ret_out);
                break;
#endif
        case 4:
                dot_lanes(tile, columns, 4, k, ret_out);
                break;
        case 3:
                dot_lanes(tile, columns, 3, k, ret_out);
                break;
        case 2:
                dot_lanes(tile, columns, 2, k, ret_out);
                break;
        default:
                dot_lanes(tile, columns, 1, k, ret_out);
                break;
        }
}

#define X(name, type)                                                                              \
        static void pack_##name(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,    \
                                uint8_t *ret_tile) {                                               \
                pack_float(type, base, stride, rows, k, ret_tile);                                 \
        }                                                                                          \
        static void columns_##name(const float *const *values, uint32_t width, int64_t k,          \
                                   uint8_t *ret_columns) {                                         \
                columns_float(type, values, width, k, ret_columns);                                \
        }                                                                                          \
        const struct cpu_tile CPU_ISA(tile_##name) = {                                             \
                .group = 1,                                                                        \
                .span = 1,                                                                         \
                .is_float = true,                                                                  \
                .pack = pack_##name,                                                               \
                .columns = columns_##name,                                                         \
                .dot = dot_float,                                                                  \
        };
X(f32, HR_TYPE_F32)
X(f16, HR_TYPE_F16)
X(bf16, HR_TYPE_BF16)
#undef X

/* e^x for x <= 0 or NaN; 0 below -87.3. The polynomial is that of vec.c. */
LANES_INLINE lanes_f exp_lanes(lanes_f x) {
        const lanes_f magic = lanes_set_f(0x1.8p23f);
        lanes_u keep = ~(lanes_u) (x < -87.3f);
        lanes_f clamped = lanes_max(lanes_set_f(-87.3f), x);
        lanes_f n = lanes_fma(clamped, lanes_set_f(0x1.715476p+0f), magic) - magic;
        lanes_f r = lanes_fma(-n, lanes_set_f(0x1.62e4p-1f), clamped), square, p;

        r = lanes_fma(-n, lanes_set_f(0x1.7f7d1cp-20f), r);
        square = r * r;
        p = lanes_fma(lanes_fma(lanes_set_f(0x1.0e4020p-7f), r, lanes_set_f(0x1.573e2ep-5f)), square,
                      lanes_fma(lanes_set_f(0x1.555e66p-3f), r, lanes_set_f(0x1.fffdb6p-2f)));
        p = lanes_fma(p, square, lanes_fma(lanes_set_f(0x1.ffffecp-1f), r, lanes_set_f(1.0f)));
        return (lanes_f) ((lanes_u) (p * lanes_exp2i(n)) & keep);
}

/* tanh(x): exact to 1e-7 of its range. */
LANES_INLINE lanes_f tanh_lanes(lanes_f x) {
        lanes_u sign = (lanes_u) x & 0x80000000U;
        lanes_f magnitude = (lanes_f) ((lanes_u) x & 0x7fffffffU);
        lanes_f e = exp_lanes(-2.0f * magnitude);

        return (lanes_f) ((lanes_u) ((1.0f - e) / (1.0f + e)) | sign);
}

LANES_INLINE lanes_f score_lanes(lanes_f score, lanes_f mask, float scale, float cap, float slope) {
        lanes_u hidden = (lanes_u) (mask == -__builtin_inff());

        if (cap != 0)
                score = tanh_lanes(score * (scale / cap)) * cap;
        else
                score = score * scale;
        score = score + slope * mask;
        return (lanes_f) (((lanes_u) score & ~hidden) |
                          ((lanes_u) lanes_set_f(-__builtin_inff()) & hidden));
}

float CPU_ISA(score_row)(float *scores, const float *mask, uint32_t count, float scale, float cap,
                         float slope) {
        lanes_f largest = lanes_set_f(-__builtin_inff());
        float out[CPU_LANES], result;
        uint32_t i = 0;

        for (; i + CPU_LANES <= count; i += CPU_LANES) {
                lanes_f bias = mask ? lanes_load_f(mask + i) : lanes_set_f(0);
                lanes_f score = score_lanes(lanes_load_f(scores + i), bias, scale, cap, slope);

                lanes_store_f(scores + i, score);
                largest = lanes_max(largest, score);
        }
        lanes_store_f(out, largest);
        result = out[0];
        for (int j = 1; j < CPU_LANES; j++)
                result = out[j] > result ? out[j] : result;
        if (i < count) {
                lanes_f bias = mask ? lanes_load_part_f(mask + i, count - i) : lanes_set_f(0);

                lanes_store_f(out, score_lanes(lanes_load_part_f(scores + i, count - i), bias,
                                               scale, cap, slope));
                for (uint32_t j = 0; i + j < count; j++) {
                        scores[i + j] = out[j];
                        result = out[j] > result ? out[j] : result;
                }
        }
        return result;
}

void CPU_ISA(scale_row)(float *values, uint32_t count, float factor) {
        for (uint32_t i = 0; i < count; i++)
                values[i] *= factor;
}

#define HALVES (16 / CPU_LANES) /* vectors that 16 floats take */

/* The sum of 16 floats: upper half to lower half, until one is left. */
LANES_INLINE float sum16(const float *values) {
        lanes_f v[HALVES], four[4];
        float out[4];

        for (int i = 0; i < HALVES; i++)
                v[i] = lanes_load_f(values + CPU_LANES * i);
        for (int half = HALVES / 2; half > 0; half /= 2)
                for (int i = 0; i < half; i++)
                        v[i] = v[i] + v[i + half];
        for (int i = 0; i < 4; i++)
                four[i] = v[0];
        lanes_sum4(four, out);
        return out[0];
}

double CPU_ISA(exp_row)(float *scores, uint32_t count, float maximum) {
        double sum = 0;

        for (uint32_t i = 0; i < count; i += 16) {
                float e[16] = {0};
                uint32_t part = count - i < 16 ? count - i : 16;

                memcpy(e, scores + i, part * sizeof e[0]);
                for (uint32_t j = part; j < 16; j++)
                        e[j] = -__builtin_inff();
                for (int j = 0; j < 16; j += CPU_LANES)
                        lanes_store_f(e + j, exp_lanes(lanes_load_f(e + j) - maximum));
                sum += (double) sum16(e);
                memcpy(scores + i, e, part * sizeof e[0]);
        }
        return sum;
}

/* `width` columns x `vectors` vectors of the value rows; `part` floats of the last vector. */
LANES_INLINE void weigh_block(const float *weights, uint64_t weight_stride, const int width,
                              const float *values, uint32_t keys, uint32_t size, const int vectors,
                              unsigned part, float *out, uint64_t out_stride) {
        lanes_f sum[4][4], v[4];

#pragma GCC unroll 4
        for (int c = 0; c < width; c++)
#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++) {
                        float *at = out + out_stride * (uint64_t) c + CPU_LANES * j;

                        sum[c][j] = part ? lanes_load_part_f(at, part) : lanes_load_f(at);
                }
        for (uint32_t key = 0; key < keys; key++, values += size) {
#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++)
                        v[j] = part ? lanes_load_part_f(values, part)
                                    : lanes_load_f(values + CPU_LANES * j);
#pragma GCC unroll 4
                for (int c = 0; c < width; c++) {
                        lanes_f weight = lanes_set_f(weights[weight_stride * (uint64_t) c + key]);

#pragma GCC unroll 4
                        for (int j = 0; j < vectors; j++)
                                sum[c][j] = lanes_fma(weight, v[j], sum[c][j]);
                }
        }
#pragma GCC unroll 4
        for (int c = 0; c < width; c++)
#pragma GCC unroll 4
                for (int j = 0; j < vectors; j++) {
                        float *at = out + out_stride * (uint64_t) c + CPU_LANES * j;

                        if (part)
                                lanes_store_part_f(at, sum[c][j], part);
                        else
                                lanes_store_f(at, sum[c][j]);
                }
}

#define VECTORS (CPU_LANES == 16 ? 4 : 2)

LANES_INLINE void weigh_columns(const float *weights, uint64_t weight_stride, const int width,
                                const float *values, uint32_t keys, uint32_t size, float *out,
                                uint64_t out_stride) {
        uint32_t d = 0;

        for (; d + CPU_LANES * VECTORS <= size; d += CPU_LANES * VECTORS)
                weigh_block(weights, weight_stride, width, values + d, keys, size, VECTORS, 0,
                            out + d, out_stride);
        for (; d + CPU_LANES <= size; d += CPU_LANES)
                weigh_block(weights, weight_stride, width, values + d, keys, size, 1, 0, out + d,
                            out_stride);
        if (d < size)
                weigh_block(weights, weight_stride, width, values + d, keys, size, 1, size - d,
                            out + d, out_stride);
}

void CPU_ISA(weigh_rows)(const float *weights, uint64_t weight_stride, uint32_t columns,
                         const float *values, uint32_t keys, uint32_t size, float *out,
                         uint64_t out_stride) {
        while (columns >= 4) {
                weigh_columns(weights, weight_stride, 4, values, keys, size, out, out_stride);
                weights += 4 * weight_stride;
                out += 4 * out_stride;
                columns -= 4;
        }
        if (columns == 3)
                weigh_columns(weights, weight_stride, 3, values, keys, size, out, out_stride);
        else if (columns == 2)
                weigh_columns(weights, weight_stride, 2, values, keys, size, out, out_stride);
        else if (columns == 1)
                weigh_columns(weights, weight_stride, 1, values, keys, size, out, out_stride);
}

/* ---- Key by key ------------------------------------------------------------------------------ */

/* Element `at` .. of a key as f32. */
LANES_INLINE lanes_f load_key(uint32_t type, const uint8_t *key, int64_t at) {
        if (type == HR_TYPE_F32)
                return lanes_load_f((const float *) (const void *) key + at);
        return type == HR_TYPE_F16 ? lanes_load_f16(key + 2 * at) : lanes_load_bf16(key + 2 * at);
}

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
                                sum[r][j] = lanes_fma(load_key(type, key[r], i + CPU_LANES * j), q,
                                                      sum[r][j]);
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

/* `vectors` vectors of the total, all keys; `part` floats of the last one. */
LANES_INLINE void walk_block(const struct cpu_key_walk *walk, const bool is_half, uint32_t first,
                             const int vectors, const unsigned part, float *total) {
        lanes_f sum[4];

#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
                sum[j] = part ? lanes_load_part_f(total, part)
                              : lanes_load_f(total + CPU_LANES * j);
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
                        sum[j] = lanes_fma(v, weight, sum[j]);
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

void CPU_ISA(walk_values)(const struct cpu_key_walk *walk, bool is_half, uint32_t size, float *total) {
        if (is_half)
                walk_all(walk, true, size, total);
        else
                walk_all(walk, false, size, total);
}
