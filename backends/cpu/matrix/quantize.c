/*
 * Rows of f32 to the types that are written by rounding alone. (quantize_k.c has those that
 * search.)
 *
 * The rules are ggml's, so that states written here and there hold the same bytes: Q4_0 and Q5_0
 * scale by the value of the largest magnitude over -8 and -16, Q4_1 and Q5_1 by the range, both
 * rounding half up on the shifted axis; Q8_0 by max|x| / 127 to nearest even; IQ4_NL takes the
 * nearest table value and then fits the scale by weighted least squares, weights x^2. A NaN or
 * infinity in a block gives some bytes, never undefined behaviour.
 */
#include "backends/cpu/matrix/tables.h"

void CPU_ISA(quantize_f32)(const float *values, void *ret_row, int64_t count) {
        memcpy(ret_row, values, (size_t) count * sizeof(float));
}

void CPU_ISA(quantize_f16)(const float *values, void *ret_row, int64_t count) {
        uint8_t *out = ret_row;
        int64_t i = 0;

#if CPU_LANES == 16
        for (; i + 16 <= count; i += 16)
                _mm256_storeu_si256((__m256i *) (out + 2 * i),
                                    _mm512_cvtps_ph(_mm512_loadu_ps(values + i), 0));
#elif CPU_LANES == 8
        for (; i + 8 <= count; i += 8)
                _mm_storeu_si128((__m128i *) (out + 2 * i),
                                 _mm256_cvtps_ph(_mm256_loadu_ps(values + i), 0));
#endif
        for (; i < count; i++)
                cpu_write_half(out + 2 * i, values[i]);
}

void CPU_ISA(quantize_bf16)(const float *values, void *ret_row, int64_t count) {
        uint8_t *out = ret_row;

        for (int64_t i = 0; i < count; i++) {
                uint16_t value = cpu_float_to_bf16(values[i]);

                memcpy(out + 2 * i, &value, sizeof value);
        }
}

/* (int) value, kept within [0, limit]; anything that is no number gives 0. */
static inline uint8_t to_level(float value, float limit) {
        return value > 0 ? (uint8_t) (value < limit ? value : limit) : 0;
}

/* The value of the largest magnitude, the first of equals. */
static float extreme_of(const float *x) {
        float extreme = 0, largest = 0;

        for (int j = 0; j < 32; j++)
                if (largest < __builtin_fabsf(x[j])) {
                        largest = __builtin_fabsf(x[j]);
                        extreme = x[j];
                }
        return extreme;
}

static void range_of(const float *x, float *ret_low, float *ret_high) {
        float low = x[0], high = x[0];

        for (int j = 1; j < 32; j++) {
                low = x[j] < low ? x[j] : low;
                high = x[j] > high ? x[j] : high;
        }
        *ret_low = low;
        *ret_high = high;
}

void CPU_ISA(quantize_q4_0)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 32, block += 18, values += 32) {
                float d = extreme_of(values) / -8, inverse = d != 0 ? 1.0f / d : 0;

                cpu_write_half(block, d);
                for (int j = 0; j < 16; j++)
                        block[2 + j] =
                                (uint8_t) (to_level(values[j] * inverse + 8.5f, 15) |
                                           to_level(values[16 + j] * inverse + 8.5f, 15) << 4);
        }
}

void CPU_ISA(quantize_q4_1)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 32, block += 20, values += 32) {
                float low, high, d, inverse;

                range_of(values, &low, &high);
                d = (high - low) / 15;
                inverse = d != 0 ? 1.0f / d : 0;
                cpu_write_half(block, d);
                cpu_write_half(block + 2, low);
                for (int j = 0; j < 16; j++)
                        block[4 + j] =
                                (uint8_t) (to_level((values[j] - low) * inverse + 0.5f, 15) |
                                           to_level((values[16 + j] - low) * inverse + 0.5f, 15)
                                                   << 4);
        }
}

/* 32 levels of five bits: 16 bytes of low and high nibbles, and the fifth bits. */
static void write_five_bits(const uint8_t *level, uint8_t *ret_high, uint8_t *ret_nibbles) {
        uint32_t high = 0;

        for (int j = 0; j < 16; j++) {
                ret_nibbles[j] = (uint8_t) ((level[j] & 15) | level[16 + j] << 4);
                high |= (uint32_t) (level[j] >> 4) << j;
                high |= (uint32_t) (level[16 + j] >> 4) << (16 + j);
        }
        memcpy(ret_high, &high, sizeof high);
}

void CPU_ISA(quantize_q5_0)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 32, block += 22, values += 32) {
                float d = extreme_of(values) / -16, inverse = d != 0 ? 1.0f / d : 0;
                uint8_t level[32];

                for (int j = 0; j < 32; j++)
                        level[j] = to_level(values[j] * inverse + 16.5f, 31);
                cpu_write_half(block, d);
                write_five_bits(level, block + 2, block + 6);
        }
}

void CPU_ISA(quantize_q5_1)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 32, block += 24, values += 32) {
                float low, high, d, inverse;
                uint8_t level[32];

                range_of(values, &low, &high);
                d = (high - low) / 31;
                inverse = d != 0 ? 1.0f / d : 0;
                for (int j = 0; j < 32; j++)
                        level[j] = to_level((values[j] - low) * inverse + 0.5f, 31);
                cpu_write_half(block, d);
                cpu_write_half(block + 2, low);
                write_five_bits(level, block + 4, block + 8);
        }
}

void CPU_ISA(quantize_q8_0)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 32, block += 34, values += 32) {
                uint32_t quants[8];
                float d;
                struct activation one = {.q = quants, .scale = &d};

                CPU_ISA(activate_q8)(&values, 1, 32, &one);
                cpu_write_half(block, d);
                memcpy(block + 2, quants, sizeof quants);
        }
}

static const float iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

static uint8_t nearest_iq4_nl(float x) {
        int level = 0;

        while (level < 15 && !(x - iq4_nl_values[level] < iq4_nl_values[level + 1] - x))
                level++;
        return (uint8_t) level;
}

void CPU_ISA(quantize_iq4_nl)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 32, block += 18, values += 32) {
                float extreme = extreme_of(values), inverse, weighted = 0, squares = 0;
                uint8_t level[32] = {0};

                if (__builtin_fabsf(extreme) < 1e-15f) {
                        memset(block, 0, 18);
                        continue;
                }
                inverse = 1.0f / (extreme / iq4_nl_values[0]);
                for (int j = 0; j < 32; j++) {
                        float x = values[j], weight = x * x, q;

                        level[j] = nearest_iq4_nl(x * inverse);
                        q = iq4_nl_values[level[j]];
                        weighted += weight * q * x;
                        squares += weight * q * q;
                }
                cpu_write_half(block, squares > 0 ? weighted / squares : 0);
                for (int j = 0; j < 16; j++)
                        block[2 + j] = (uint8_t) (level[j] | level[16 + j] << 4);
        }
}
