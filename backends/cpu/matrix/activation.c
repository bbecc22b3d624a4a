/*
 * Activations to the partner types Q8_0, Q8_1 and Q8_K, in the arrays that column groups are made
 * of.
 *
 * The rules are ggml's. Q8_0 and Q8_1: d = max|x| / 127 is kept as f16, but the quants come from
 * 127 / max|x| in f32; Q8_1 also keeps d * sum(q) as f16, with the unrounded d. Q8_K: 256 elements
 * share d = 1 / (-127 / x of the largest magnitude), in f32. Rounding is to nearest, ties to even,
 * done by adding 1.5 * 2^23, whose low mantissa bits then hold the integer; a NaN gives some byte.
 */
#include "backends/cpu/matrix/tables.h"

#define ROUND_MAGIC 12582912.0f

/* Bits of the largest magnitude; magnitudes order like their bits, NaN above all. */
static int32_t largest_bits(const float *values, int count) {
        int32_t largest = 0;

        for (int i = 0; i < count; i++) {
                int32_t bits = (int32_t) (cpu_float_bits(values[i]) & 0x7fffffffU);

                largest = bits > largest ? bits : largest;
        }
        return largest;
}

void CPU_ISA(activate_q8)(const float *values, int64_t k, const struct activation *ret) {
        for (int64_t b = 0; b < k / 32; b++) {
                const float *x = values + 32 * b;
                int8_t *q = ret->q + 32 * b;
                float largest = cpu_bits_float((uint32_t) largest_bits(x, 32));
                float d = largest / 127.0f, inverse = largest != 0 ? 127.0f / largest : 0;
                int32_t sum = 0;

                for (int i = 0; i < 32; i++) {
                        float moved = x[i] * inverse + ROUND_MAGIC;

                        q[i] = (int8_t) (cpu_float_bits(moved) & 0xffU);
                }
                for (int i = 0; i < 32; i++)
                        sum += q[i];
                ret->sums[b] = sum;
                ret->scale[b] = cpu_half_to_float(cpu_float_to_half(d));
                if (ret->product)
                        ret->product[b] = cpu_half_to_float(cpu_float_to_half(d * (float) sum));
        }
}

void CPU_ISA(activate_q8_K)(const float *values, int64_t k, unsigned group,
                            const struct activation *ret) {
        for (int64_t b = 0; b < k / 256; b++) {
                const float *x = values + 256 * b;
                int8_t *q = ret->q + 256 * b;
                uint32_t largest = (uint32_t) largest_bits(x, 256);
                float extreme = cpu_bits_float(largest), inverse;

                for (int i = 255; i >= 0; i--)
                        if ((cpu_float_bits(x[i]) & 0x7fffffffU) == largest)
                                extreme = x[i];
                inverse = extreme != 0 ? -127.0f / extreme : 0;
                ret->scale[b] = extreme != 0 ? 1.0f / inverse : 0;
                for (int i = 0; i < 256; i++) {
                        float moved = inverse * x[i] + ROUND_MAGIC;
                        int32_t value = (int32_t) (cpu_float_bits(moved) & 0xffU);

                        value = (value ^ 128) - 128;
                        q[i] = (int8_t) value;
                }
                for (unsigned g = 0; g < 256 / group; g++) {
                        int32_t sum = 0;

                        for (unsigned i = 0; i < group; i++)
                                sum += q[g * group + i];
                        ret->sums[256 / group * (unsigned) b + g] = sum;
                }
        }
}
