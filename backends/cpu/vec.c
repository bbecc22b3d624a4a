/*
 * The row functions of vec.h for one instruction set: compiled several times with other flags, the
 * table's name in CPU_VEC_TABLE and its isa in CPU_VEC_ISA.
 *
 * Loops are plain C that the compiler turns into vectors (`omp simd` states that iterations are
 * independent, which holds for equal addresses too). What must not depend on the width of a vector,
 * sums, runs over LANES explicit accumulators that are added up in a fixed order; multiply-adds are
 * fused where the text says fmaf() and nowhere else. So all tables agree bit for bit.
 */
#include "backends/cpu/vec.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#define LANES 16
#define SIMD _Pragma("omp simd")

static inline uint32_t bits_of(float value) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        return bits;
}

static inline float float_of(uint32_t bits) {
        float value;

        memcpy(&value, &bits, sizeof value);
        return value;
}

/* ---- Conversions ----------------------------------------------------------------------------- */

static inline float f16_expand(uint16_t half) {
        uint32_t sign = (uint32_t) (half & 0x8000) << 16, rest = half & 0x7fff;
        /* Normal: shift into place and rebias by 112. Subnormal: the fraction counts 2^-24. */
        float normal = float_of((rest << 13) + (112U << 23));
        float special = float_of((rest << 13) | 0x7f800000U);
        float small = (float) (int32_t) rest * 0x1p-24f;
        float magnitude = rest >= 0x7c00 ? special : rest >= 0x400 ? normal : small;

        return float_of(bits_of(magnitude) | sign);
}

static inline uint16_t f16_round(float value) {
        uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
        /* Adding 0.5 aligns a subnormal's 10 bits with the end of the fraction, rounding to
         * even. */
        uint32_t small = bits_of(float_of(rest) + 0.5f) - bits_of(0.5f);
        uint32_t normal = (rest + 0xfff + ((rest >> 13) & 1) - (112U << 23)) >> 13;
        uint32_t special = rest > 0x7f800000U ? 0x7e00 : 0x7c00;
        uint32_t half = rest >= 0x477ff000U ? special : rest >= 0x38800000U ? normal : small;

        return (uint16_t) (half | sign);
}

static void vec_f16_to_f32(int64_t n, float *out, const uint16_t *in) {
        int64_t i = 0;

#if defined(__F16C__)
        for (; i + 8 <= n; i += 8)
                _mm256_storeu_ps(out + i,
                                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (in + i))));
#endif
        for (; i < n; i++)
                out[i] = f16_expand(in[i]);
}

static void vec_f32_to_f16(int64_t n, uint16_t *out, const float *in) {
        int64_t i = 0;

#if defined(__F16C__)
        for (; i + 8 <= n; i += 8)
                _mm_storeu_si128((__m128i *) (out + i),
                                 _mm256_cvtps_ph(_mm256_loadu_ps(in + i), 0));
#endif
        for (; i < n; i++)
                out[i] = f16_round(in[i]);
}

static void vec_bf16_to_f32(int64_t n, float *out, const uint16_t *in) {
        SIMD for (int64_t i = 0; i < n; i++)
                out[i] = float_of((uint32_t) in[i] << 16);
}

static void vec_f32_to_bf16(int64_t n, uint16_t *out, const float *in) {
        SIMD for (int64_t i = 0; i < n; i++) {
                uint32_t bits = bits_of(in[i]);
                uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
                uint32_t quiet = (bits >> 16) | 64;

                out[i] = (uint16_t) ((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
        }
}

/* ---- The exponential ------------------------------------------------------------------------- */

/*
 * exp(x) = 2^k exp(r), |r| <= ln 2 / 2, by a polynomial of degree 5 with fused steps. Constants and
 * the order of the steps are ggml's, so that a SILU has the bits that models were evaluated with: a
 * unit in the last place decides how an activation is rounded to 8 bits later. 2^k is applied in
 * two factors, so that results may be subnormal.
 */
static inline float exp_one(float x) {
        const float magic = 0x1.8p23f;
        float bounded = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
        float shifted = fmaf(bounded, 0x1.715476p+0f, magic);
        float k = shifted - magic;
        float r = fmaf(-k, 0x1.7f7d1cp-20f, fmaf(-k, 0x1.62e4p-1f, bounded));
        float square = r * r;
        float p = fmaf(fmaf(fmaf(0x1.0e4020p-7f, r, 0x1.573e2ep-5f), square,
                            fmaf(0x1.555e66p-3f, r, 0x1.fffdb6p-2f)),
                       square, fmaf(0x1.ffffecp-1f, r, 1.0f));
        int32_t exponent = (int32_t) (bits_of(shifted) - bits_of(magic));
        int32_t half = exponent >> 1;

        return p * float_of((uint32_t) (half + 127) << 23) *
               float_of((uint32_t) (exponent - half + 127) << 23);
}

static double vec_exp_sum(int64_t n, float *out, const float *in, float shift) {
        double lane[LANES] = { 0 }, total = 0;
        int64_t i = 0;

        for (; i + LANES <= n; i += LANES)
                SIMD for (int j = 0; j < LANES; j++) {
                        out[i + j] = exp_one(in[i + j] - shift);
                        lane[j] += (double) out[i + j];
                }
        for (int j = 0; i < n; i++, j++) {
                out[i] = exp_one(in[i] - shift);
                lane[j] += (double) out[i];
        }
        for (int j = 0; j < LANES; j++)
                total += lane[j];
        return total;
}

/* ---- Sums and extremes ----------------------------------------------------------------------- */

#define DEFINE_SUM(name, first_statement, term)                                                    \
        {                                                                                          \
                double lane[LANES] = { 0 }, total = 0;                                             \
                int64_t i = 0;                                                                     \
                                                                                                   \
                for (; i + LANES <= n; i += LANES)                                                 \
                        SIMD for (int j = 0; j < LANES; j++) {                                     \
                                int64_t k = i + j;                                                 \
                                first_statement;                                                   \
                                lane[j] += term;                                                   \
                        }                                                                          \
                for (int64_t k = i; k < n; k++) {                                                  \
                        first_statement;                                                           \
                        lane[k - i] += term;                                                       \
                }                                                                                  \
                for (int j = 0; j < LANES; j++)                                                    \
                        total += lane[j];                                                          \
                return total;                                                                      \
        }

static double vec_sum(int64_t n, const float *in)
DEFINE_SUM(sum, (void) 0, (double) in[k])

static double vec_sum_squares(int64_t n, const float *in)
DEFINE_SUM(sum_squares, (void) 0, (double) (in[k] * in[k]))

static double vec_shift_squares(int64_t n, float *out, const float *in, float shift)
DEFINE_SUM(shift_squares, out[k] = in[k] - shift, (double) out[k] * (double) out[k])

static float vec_max(int64_t n, const float *in) {
        float lane[LANES], result = -INFINITY;
        int64_t i = 0;

        for (int j = 0; j < LANES; j++)
                lane[j] = -INFINITY;
        for (; i + LANES <= n; i += LANES)
                SIMD for (int j = 0; j < LANES; j++)
                        lane[j] = in[i + j] > lane[j] ? in[i + j] : lane[j];
        for (; i < n; i++)
                result = in[i] > result ? in[i] : result;
        for (int j = 0; j < LANES; j++)
                result = lane[j] > result ? lane[j] : result;
        return result;
}

/* ---- Elementwise ----------------------------------------------------------------------------- */

#define DEFINE_UNARY(name, expression)                                                             \
        static void vec_##name(int64_t n, float *out, const float *in) {                           \
                SIMD for (int64_t i = 0; i < n; i++) {                                             \
                        float x = in[i];                                                           \
                        out[i] = (expression);                                                     \
                }                                                                                  \
        }

/* Calls of the mathematics library, one element at a time. */
#define DEFINE_CALL(name, expression)                                                              \
        static void vec_##name(int64_t n, float *out, const float *in) {                           \
                for (int64_t i = 0; i < n; i++) {                                                  \
                        float x = in[i];                                                           \
                        out[i] = (expression);                                                     \
                }                                                                                  \
        }

#define DEFINE_BINARY(name, expression)                                                            \
        static void vec_##name(int64_t n, float *out, const float *a, const float *b) {            \
                SIMD for (int64_t i = 0; i < n; i++) {                                             \
                        float x = a[i], y = b[i];                                                  \
                        out[i] = (expression);                                                     \
                }                                                                                  \
        }

DEFINE_BINARY(add, x + y)
DEFINE_BINARY(sub, x - y)
DEFINE_BINARY(mul, x * y)
DEFINE_BINARY(div, x / y)

DEFINE_UNARY(abs, fabsf(x))
DEFINE_UNARY(sgn, x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f)
DEFINE_UNARY(neg, -x)
DEFINE_UNARY(step, x > 0 ? 1.0f : 0.0f)
DEFINE_CALL(tanh, tanhf(x))
DEFINE_CALL(elu, x > 0 ? x : expm1f(x))
DEFINE_UNARY(relu, x > 0 ? x : 0.0f)
DEFINE_UNARY(sigmoid, 1.0f / (1.0f + exp_one(-x)))
DEFINE_UNARY(silu, x / (1.0f + exp_one(-x)))
DEFINE_UNARY(hardswish, x * fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f)))
DEFINE_UNARY(hardsigmoid, fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f)))
DEFINE_UNARY(exp, exp_one(x))
DEFINE_CALL(expm1, expm1f(x))
DEFINE_CALL(softplus, x > 20.0f ? x : logf(1.0f + expf(x)))
DEFINE_CALL(gelu_erf, 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f)))
DEFINE_UNARY(floor, floorf(x))
DEFINE_UNARY(ceil, ceilf(x))
DEFINE_CALL(round, roundf(x))
DEFINE_UNARY(trunc, truncf(x))
DEFINE_UNARY(sqr, x * x)
DEFINE_UNARY(sqrt, sqrtf(x))
DEFINE_CALL(log, logf(x))
DEFINE_CALL(sin, sinf(x))
DEFINE_CALL(cos, cosf(x))

static void table_lookup(int64_t n, float *out, const float *in, const uint16_t *table,
                         bool is_bounded) {
        uint16_t half[256];

        while (n > 0) {
                int64_t count = n < 256 ? n : 256;
                float value[256];

                vec_f32_to_f16(count, half, in);
                for (int64_t i = 0; i < count; i++)
                        half[i] = table[half[i]];
                vec_f16_to_f32(count, value, half);
                /* Far from 0 the function is its asymptote, to which the table's rounding adds. */
                SIMD for (int64_t i = 0; i < count; i++) {
                        float x = in[i];
                        float far = x >= 10.0f ? x : x <= -10.0f ? 0.0f : value[i];

                        out[i] = is_bounded ? far : value[i];
                }
                n -= count;
                in += count;
                out += count;
        }
}

static void vec_gelu(int64_t n, float *out, const float *in) {
        table_lookup(n, out, in, cpu_gelu_table, true);
}

static void vec_gelu_quick(int64_t n, float *out, const float *in) {
        table_lookup(n, out, in, cpu_gelu_quick_table, false);
}

static void vec_scale(int64_t n, float *out, const float *in, float scale, float bias) {
        SIMD for (int64_t i = 0; i < n; i++)
                out[i] = in[i] * scale + bias;
}

static void vec_clamp(int64_t n, float *out, const float *in, float low, float high) {
        SIMD for (int64_t i = 0; i < n; i++) {
                float x = in[i] < low ? low : in[i];

                out[i] = x > high ? high : x;
        }
}

static void vec_leaky_relu(int64_t n, float *out, const float *in, float slope) {
        SIMD for (int64_t i = 0; i < n; i++) {
                float x = in[i];

                out[i] = (x > 0 ? x : 0.0f) + slope * (x < 0 ? x : 0.0f);
        }
}

static void vec_xielu(int64_t n, float *out, const float *in, float an, float ap, float beta,
                      float eps) {
        for (int64_t i = 0; i < n; i++) {
                float x = in[i];

                if (x > 0)
                        out[i] = ap * x * x + beta * x;
                else
                        out[i] = (expm1f(fminf(x, eps)) - x) * an + beta * x;
        }
}

static void vec_swiglu_oai(int64_t n, float *out, const float *a, const float *gate, float alpha,
                           float limit) {
        SIMD for (int64_t i = 0; i < n; i++) {
                float x = a[i] < limit ? a[i] : limit;
                float g = gate[i] < -limit ? -limit : gate[i] > limit ? limit : gate[i];

                out[i] = x / (1.0f + exp_one(alpha * -x)) * (g + 1.0f);
        }
}

static void vec_add_scaled(int64_t n, float *out, const float *in, float factor) {
        SIMD for (int64_t i = 0; i < n; i++)
                out[i] = out[i] + in[i] * factor;
}

static void vec_rotate(int64_t pairs, int64_t step, int64_t distance, float *out, const float *in,
                       const float *cosines, const float *sines) {
        if (step == 1) {
                SIMD for (int64_t i = 0; i < pairs; i++) {
                        float x = in[i], y = in[i + distance];

                        out[i] = fmaf(x, cosines[i], -(y * sines[i]));
                        out[i + distance] = fmaf(x, sines[i], y * cosines[i]);
                }
                return;
        }
        for (int64_t i = 0; i < pairs; i++) {
                float x = in[i * step], y = in[i * step + distance];

                out[i * step] = fmaf(x, cosines[i], -(y * sines[i]));
                out[i * step + distance] = fmaf(x, sines[i], y * cosines[i]);
        }
}

extern const struct cpu_vec CPU_VEC_TABLE;

const struct cpu_vec CPU_VEC_TABLE = {
        .isa = CPU_VEC_ISA,
        .f16_to_f32 = vec_f16_to_f32,
        .f32_to_f16 = vec_f32_to_f16,
        .bf16_to_f32 = vec_bf16_to_f32,
        .f32_to_bf16 = vec_f32_to_bf16,
        .binary = { vec_add, vec_sub, vec_mul, vec_div },
        .unary = {
                [HR_UNARY_ABS] = vec_abs,
                [HR_UNARY_SGN] = vec_sgn,
                [HR_UNARY_NEG] = vec_neg,
                [HR_UNARY_STEP] = vec_step,
                [HR_UNARY_TANH] = vec_tanh,
                [HR_UNARY_ELU] = vec_elu,
                [HR_UNARY_RELU] = vec_relu,
                [HR_UNARY_SIGMOID] = vec_sigmoid,
                [HR_UNARY_GELU] = vec_gelu,
                [HR_UNARY_GELU_QUICK] = vec_gelu_quick,
                [HR_UNARY_SILU] = vec_silu,
                [HR_UNARY_HARDSWISH] = vec_hardswish,
                [HR_UNARY_HARDSIGMOID] = vec_hardsigmoid,
                [HR_UNARY_EXP] = vec_exp,
                [HR_UNARY_EXPM1] = vec_expm1,
                [HR_UNARY_SOFTPLUS] = vec_softplus,
                [HR_UNARY_GELU_ERF] = vec_gelu_erf,
                [HR_UNARY_FLOOR] = vec_floor,
                [HR_UNARY_CEIL] = vec_ceil,
                [HR_UNARY_ROUND] = vec_round,
                [HR_UNARY_TRUNC] = vec_trunc,
        },
        .sqr = vec_sqr,
        .sqrt = vec_sqrt,
        .log = vec_log,
        .sin = vec_sin,
        .cos = vec_cos,
        .scale = vec_scale,
        .clamp = vec_clamp,
        .leaky_relu = vec_leaky_relu,
        .xielu = vec_xielu,
        .swiglu_oai = vec_swiglu_oai,
        .add_scaled = vec_add_scaled,
        .exp_sum = vec_exp_sum,
        .shift_squares = vec_shift_squares,
        .sum = vec_sum,
        .sum_squares = vec_sum_squares,
        .max = vec_max,
        .rotate = vec_rotate,
};
