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
        p = lanes_fma(lanes_fma(lanes_set_f(0x1.0e4020p-7f), r, lanes_set_f(0x1.573e2ep-5f)),
                      square,
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
