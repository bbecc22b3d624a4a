/*
 * Rows of f32 to the types with a handful of levels: IQ4_XS, FP4, ternary, two bits, one bit.
 *
 * There is no one right answer; the measure is the plain squared error. Q1_0 and the ternary types
 * have an optimum that is found (all but for the rounding of their scale); the others try a line of
 * scales.
 *
 * Numbers that are none (NaN, infinity) give some bytes, never undefined behaviour: every float is
 * compared, or brought into range before it becomes an integer.
 */
#include "backends/cpu/matrix/tables.h"

#include "backends/cpu/matrix/small_float.h"
#include "core/codebooks.h"

static uint32_t magnitude_bits(float x) {
        return cpu_float_bits(x) & 0x7fffffffU;
}

/* The value of the largest magnitude, the first of equals. */
static float extreme_of(const float *x, int count) {
        float extreme = 0;

        for (int i = 0; i < count; i++)
                if (__builtin_fabsf(x[i]) > __builtin_fabsf(extreme))
                        extreme = x[i];
        return extreme;
}

/* How many of `middles` (rising) are below x: none for NaN. */
static inline int levels_below(float x, const float *middles, int count) {
        int level = 0;

        for (int i = 0; i < count; i++)
                level += x > middles[i];
        return level;
}

/* ---- FP4 ---- */

/* The codes of `count` values in units of `scale`, which counts half steps; returns the error. */
static float code_fp4(const float *x, int count, float scale, uint8_t *ret_code) {
        static const float middles[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10};
        float error = 0;

        for (int i = 0; i < count; i++) {
                int level = levels_below(__builtin_fabsf(x[i]) / scale, middles, 7);
                float difference;

                level |= level && x[i] < 0 ? 8 : 0;
                difference = scale * (float) hr_codebook_values_e2m1[level] - x[i];
                ret_code[i] = (uint8_t) level;
                error += difference * difference;
        }
        return error;
}

/* code[j] and code[distance + j] of each 2 * distance share a byte. */
static void write_codes(const uint8_t *code, int distance, uint8_t *ret_bytes) {
        for (int j = 0; j < distance; j++)
                ret_bytes[j] = (uint8_t) (code[j] | code[distance + j] << 4);
}

void CPU_ISA(quantize_mxfp4)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 32, block += 17, values += 32) {
                int middle = (int) (magnitude_bits(extreme_of(values, 32)) >> 23) - 2;
                float best = -1;

                for (int e = middle - 1; e <= middle + 1; e++) {
                        const uint8_t exponent = (uint8_t) (e < 0 ? 0 : e);
                        uint8_t code[32];
                        float error = code_fp4(values, 32, cpu_e8m0_half(exponent), code);

                        if (best >= 0 && !(error < best))
                                continue;
                        best = error;
                        block[0] = exponent;
                        write_codes(code, 16, block + 1);
                }
        }
}

/* The nearest scale of four exponent and three mantissa bits, 1 .. 0x7e. */
static int code_ue4m3(float value) {
        uint32_t bits = magnitude_bits(value * 0x1p-120f);
        uint32_t code = bits >= 0x7e00000U ? 0x7e : (bits + 0x80000U) >> 20;

        return code ? (int) code : 1;
}

void CPU_ISA(quantize_nvfp4)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 64, block += 36)
                for (int g = 0; g < 4; g++, values += 16) {
                        /* the largest as 6, down to 4 */
                        int middle = code_ue4m3(extreme_of(values, 16) / 6);
                        float best = -1;

                        for (int s = middle - 3; s <= middle + 6; s++) {
                                uint8_t code[16];
                                float error;

                                if (s < 1 || s > 0x7e)
                                        continue;
                                error = code_fp4(values, 16, cpu_ue4m3_half((uint8_t) s), code);
                                if (best >= 0 && !(error < best))
                                        continue;
                                best = error;
                                block[g] = (uint8_t) s;
                                write_codes(code, 8, block + 4 + 8 * g);
                        }
                }
}

/* ---- Ternary: the largest magnitudes become one step, the rest zero ---- */

static void sort_falling(uint32_t *x, int count) {
        for (int gap = count / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11)
                for (int i = gap; i < count; i++) {
                        uint32_t moved = x[i];
                        int j = i;

                        for (; j >= gap && x[j - gap] < moved; j -= gap)
                                x[j] = x[j - gap];
                        x[j] = moved;
                }
}

/* Levels 0, 1, 2 for -d, 0, d, and the d that is best for them. With n of the largest magnitudes at
 * one step, their mean is the best d, and sum^2 / n the error that it takes away. */
static float fit_ternary(const float *x, uint8_t ret_level[256]) {
        uint32_t magnitude[256], least = UINT32_MAX;
        double sum = 0, best = 0, d = 0;

        for (int i = 0; i < 256; i++)
                magnitude[i] = magnitude_bits(x[i]);
        sort_falling(magnitude, 256);
        for (int n = 1; n <= 256; n++) {
                sum += (double) cpu_bits_float(magnitude[n - 1]);
                if (sum * sum / n > best) {
                        best = sum * sum / n;
                        d = sum / n;
                        least = magnitude[n - 1];
                }
        }
        for (int i = 0; i < 256; i++)
                ret_level[i] = magnitude_bits(x[i]) < least ? 1 : x[i] < 0 ? 0 : 2;
        return (float) d;
}

/* `count` levels, `distance` apart, as digits in base 3, made a fraction of 256 rounded up. */
static uint8_t write_trits(const uint8_t *level, int distance, int count) {
        int number = 0;

        for (int n = 0; n < 5; n++)
                number = 3 * number + (n < count ? level[n * distance] : 0);
        return (uint8_t) ((number * 256 + 242) / 243);
}

void CPU_ISA(quantize_tq1_0)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row, level[256];

        for (; count > 0; count -= 256, block += 54, values += 256) {
                cpu_write_half(block + 52, fit_ternary(values, level));
                for (int i = 0; i < 32; i++)
                        block[i] = write_trits(level + i, 32, 5);
                for (int i = 0; i < 16; i++)
                        block[32 + i] = write_trits(level + 160 + i, 16, 5);
                for (int i = 0; i < 4; i++)
                        block[48 + i] = write_trits(level + 240 + i, 4, 4);
        }
}

void CPU_ISA(quantize_tq2_0)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row, level[256];

        for (; count > 0; count -= 256, block += 66, values += 256) {
                cpu_write_half(block + 64, fit_ternary(values, level));
                memset(block, 0, 64);
                for (int i = 0; i < 256; i++)
                        block[32 * (i / 128) + i % 32] |=
                                (uint8_t) (level[i] << 2 * (i % 128 / 32));
        }
}

/* ---- One and two bits ---- */

void CPU_ISA(quantize_q1_0)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 128, block += 18, values += 128) {
                float sum = 0;

                memset(block, 0, 18);
                for (int i = 0; i < 128; i++) {
                        sum += __builtin_fabsf(values[i]);
                        block[2 + i / 8] |= (uint8_t) ((values[i] >= 0) << i % 8);
                }
                cpu_write_half(block, sum / 128);
        }
}

/* Levels 0 .. 3 for -d .. 2d. */
static inline int level_q2_0(float x, float inverse) {
        static const float middles[3] = {-0.5f, 0.5f, 1.5f};

        return levels_below(x * inverse, middles, 3);
}

/* The d of 64 values, of either sign. */
static float fit_q2_0(const float *x) {
        const float extreme = extreme_of(x, 64);
        float best = 0, d = 0;

        for (int step = 0; step < 40; step++) {
                const float inverse =
                        (step % 2 ? -0.6f : 0.6f) + (step % 2 ? -0.1f : 0.1f) * (float) (step / 2);
                float sum_xl = 0, sum_ll = 0;

                for (int i = 0; i < 64; i++) {
                        float l = (float) (level_q2_0(x[i] / extreme, inverse) - 1);

                        sum_xl += x[i] * l;
                        sum_ll += l * l;
                }
                if (sum_ll > 0 && sum_xl * sum_xl > best * sum_ll) {
                        best = sum_xl * sum_xl / sum_ll;
                        d = sum_xl / sum_ll;
                }
        }
        return d;
}

void CPU_ISA(quantize_q2_0)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 64, block += 18, values += 64) {
                float d, inverse;

                cpu_write_half(block, fit_q2_0(values));
                d = cpu_read_half(block);
                inverse = d != 0 ? 1.0f / d : 0;
                memset(block + 2, 0, 16);
                for (int i = 0; i < 64; i++)
                        block[2 + i / 4] |=
                                (uint8_t) (level_q2_0(values[i], inverse) << 2 * (i % 4));
        }
}

/* ---- IQ4_XS: a table of 16 values, eight scales -32 .. 31 in units of d ---- */

static inline int level_iq4(float x) {
        static const float middles[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                                          7,       19,     31.5f, 45.5f, 61,  79,     101};

        return levels_below(x, middles, 15);
}

static float error_iq4(const float *x, float scale, uint8_t *ret_code) {
        float inverse = scale != 0 ? 1.0f / scale : 0, error = 0;

        for (int i = 0; i < 32; i++) {
                int level = level_iq4(x[i] * inverse);
                float difference = scale * (float) hr_codebook_values_iq4_nl[level] - x[i];

                ret_code[i] = (uint8_t) level;
                error += difference * difference;
        }
        return error;
}

/* The scale of a group: its largest magnitude near either end of the table. */
static float fit_iq4(const float *x) {
        const float extreme = extreme_of(x, 32);
        float best = 0, scale = 0;

        for (int step = -7; extreme != 0 && step <= 22; step++) {
                const float end = step <= 7 ? (float) (step - 127) : (float) (step - 15 + 113);
                const float inverse = end / extreme;
                float sum_xl = 0, sum_ll = 0;

                for (int i = 0; i < 32; i++) {
                        float l = (float) hr_codebook_values_iq4_nl[level_iq4(x[i] * inverse)];

                        sum_xl += x[i] * l;
                        sum_ll += l * l;
                }
                if (sum_xl * sum_xl > best * sum_ll) {
                        best = sum_xl * sum_xl / sum_ll;
                        scale = sum_xl / sum_ll;
                }
        }
        return scale;
}

/* Nearest integer to x in [-32, 31]; some number for NaN. */
static int round_scale(float x) {
        x = x > -32 ? x : -32;
        x = x < 31 ? x : 31;
        return (int) (x + 32.5f) - 32;
}

void CPU_ISA(quantize_iq4_xs)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;

        for (; count > 0; count -= 256, block += 136, values += 256) {
                float scales[8], d;
                unsigned high = 0;

                memset(block, 0, 136);
                for (int g = 0; g < 8; g++)
                        scales[g] = fit_iq4(values + 32 * g);
                cpu_write_half(block, extreme_of(scales, 8) / -32);
                d = cpu_read_half(block);
                for (int g = 0; g < 8; g++) {
                        int middle = round_scale(d != 0 ? scales[g] / d : 0), scale = middle;
                        float best = -1;

                        for (int s = middle - 1; s <= middle + 1; s++) {
                                uint8_t code[32];
                                float error;

                                if (s < -32 || s > 31)
                                        continue;
                                error = error_iq4(values + 32 * g, d * (float) s, code);
                                if (best >= 0 && !(error < best))
                                        continue;
                                best = error;
                                scale = s;
                                write_codes(code, 16, block + 8 + 16 * g);
                        }
                        block[4 + g / 2] |= (uint8_t) (((scale + 32) & 15) << 4 * (g % 2));
                        high |= (unsigned) (scale + 32) >> 4 << 2 * g;
                }
                block[2] = (uint8_t) high;
                block[3] = (uint8_t) (high >> 8);
        }
}
