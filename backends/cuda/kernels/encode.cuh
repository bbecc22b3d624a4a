/*
 * Floats to blocks, by the rules that the processor's encoders follow: Q4_0 ... Q8_0 and IQ4_NL
 * have one right answer to the byte; for the others a line of scales is tried, the measure being
 * the plain squared error. One thread writes one block.
 *
 * Numbers that are none (NaN, infinity) give some bytes, never undefined behaviour: every float is
 * compared, or brought into range before it becomes an integer.
 */
#pragma once

#include "backends/cuda/kernels/blocks.cuh"

/* Not unrolled: nothing here is worth the length. */
#ifdef __CUDACC__
#define LOOP _Pragma("unroll 1") for
#else
#define LOOP for
#endif

DEVICE void store_half(byte *at, float value) {
        *(uint16_t *) at = float_to_half(value);
}

DEVICE void clear(byte *at, int bytes) {
        LOOP (int i = 0; i < bytes; i++)
                at[i] = 0;
}

DEVICE uint32_t magnitude_bits(float x) {
        return float_bits(x) & 0x7fffffffU;
}

/* The value of the largest magnitude, the first of equals. */
DEVICE float extreme_of(const float *x, int count) {
        float extreme = 0;

        LOOP (int i = 0; i < count; i++)
                if (fabsf(x[i]) > fabsf(extreme))
                        extreme = x[i];
        return extreme;
}

/* ---- By rounding ----------------------------------------------------------------------------- */

/* (int) value within [0, limit]; what is no number gives 0. */
DEVICE int to_level(float value, float limit) {
        return value > 0 ? (int) (value < limit ? value : limit) : 0;
}

DEVICE void encode_q8_0(byte *block, const float *x) {
        uint32_t largest = 0;
        float most, inverse;

        LOOP (int j = 0; j < 32; j++) {
                uint32_t bits = float_bits(x[j]) & 0x7fffffffu;

                largest = bits > largest ? bits : largest;
        }
        most = bits_float(largest);
        inverse = most != 0 ? 127.0f / most : 0;
        *(uint16_t *) block = float_to_half(most / 127.0f);
        LOOP (int j = 0; j < 32; j++)
                block[2 + j] = (byte) (float_bits(x[j] * inverse + 12582912.0f) & 0xff);
}

DEVICE void encode_q4_0(byte *block, const float *x) {
        float extreme = 0, largest = 0, d, inverse;

        LOOP (int j = 0; j < 32; j++)
                if (largest < fabsf(x[j])) {
                        largest = fabsf(x[j]);
                        extreme = x[j];
                }
        d = extreme / -8;
        inverse = d != 0 ? 1.0f / d : 0;
        *(uint16_t *) block = float_to_half(d);
        LOOP (int j = 0; j < 16; j++)
                block[2 + j] = (byte) (to_level(x[j] * inverse + 8.5f, 15) |
                                       to_level(x[16 + j] * inverse + 8.5f, 15) << 4);
}

DEVICE void encode_q4_1(byte *block, const float *x) {
        float low = x[0], high = x[0], d, inverse;

        LOOP (int j = 1; j < 32; j++) {
                low = x[j] < low ? x[j] : low;
                high = x[j] > high ? x[j] : high;
        }
        d = (high - low) / 15;
        inverse = d != 0 ? 1.0f / d : 0;
        *(uint16_t *) block = float_to_half(d);
        *(uint16_t *) (block + 2) = float_to_half(low);
        LOOP (int j = 0; j < 16; j++)
                block[4 + j] = (byte) (to_level((x[j] - low) * inverse + 0.5f, 15) |
                                       to_level((x[16 + j] - low) * inverse + 0.5f, 15) << 4);
}

/* Levels of five bits: fifth bits, then nibbles. */
DEVICE void write_fives(byte *fifths, byte *nibbles, const int *levels) {
        uint32_t high = 0;

        LOOP (int j = 0; j < 32; j++)
                high |= (uint32_t) (levels[j] >> 4) << j;
        *(uint16_t *) fifths = (uint16_t) high;
        *(uint16_t *) (fifths + 2) = (uint16_t) (high >> 16);
        LOOP (int j = 0; j < 16; j++)
                nibbles[j] = (byte) ((levels[j] & 15) | (levels[16 + j] & 15) << 4);
}

DEVICE void encode_q5_0(byte *block, const float *x) {
        float extreme = 0, largest = 0, d, inverse;
        int levels[32];

        LOOP (int j = 0; j < 32; j++)
                if (largest < fabsf(x[j])) {
                        largest = fabsf(x[j]);
                        extreme = x[j];
                }
        d = extreme / -16;
        inverse = d != 0 ? 1.0f / d : 0;
        *(uint16_t *) block = float_to_half(d);
        LOOP (int j = 0; j < 32; j++)
                levels[j] = to_level(x[j] * inverse + 16.5f, 31);
        write_fives(block + 2, block + 6, levels);
}

DEVICE void encode_q5_1(byte *block, const float *x) {
        float low = x[0], high = x[0], d, inverse;
        int levels[32];

        LOOP (int j = 1; j < 32; j++) {
                low = x[j] < low ? x[j] : low;
                high = x[j] > high ? x[j] : high;
        }
        d = (high - low) / 31;
        inverse = d != 0 ? 1.0f / d : 0;
        *(uint16_t *) block = float_to_half(d);
        *(uint16_t *) (block + 2) = float_to_half(low);
        LOOP (int j = 0; j < 32; j++)
                levels[j] = to_level((x[j] - low) * inverse + 0.5f, 31);
        write_fives(block + 4, block + 8, levels);
}

DEVICE byte nearest_iq4_nl(float x) {
        int level = 0;

        while (level < 15 && !(x - (float) hr_codebook_values_iq4_nl[level] <
                               (float) hr_codebook_values_iq4_nl[level + 1] - x))
                level++;
        return (byte) level;
}

DEVICE void encode_iq4_nl(byte *block, const float *values) {
        float extreme = extreme_of(values, 32), inverse, weighted = 0, squares = 0;
        byte level[32] = {};

        if (fabsf(extreme) < 1e-15f) {
                clear(block, 18);
                return;
        }
        inverse = 1.0f / (extreme / (float) hr_codebook_values_iq4_nl[0]);
        LOOP (int j = 0; j < 32; j++) {
                float x = values[j], weight = x * x, q;

                level[j] = nearest_iq4_nl(x * inverse);
                q = (float) hr_codebook_values_iq4_nl[level[j]];
                weighted += weight * q * x;
                squares += weight * q * q;
        }
        store_half(block, squares > 0 ? weighted / squares : 0);
        LOOP (int j = 0; j < 16; j++)
                block[2 + j] = (byte) (level[j] | level[16 + j] << 4);
}

/* ---- By search: a handful of levels ---------------------------------------------------------- */

/* How many of `middles` (rising) are below x: none for NaN. */
DEVICE int levels_below(float x, const float *middles, int count) {
        int level = 0;

        LOOP (int i = 0; i < count; i++)
                level += x > middles[i];
        return level;
}

/* ---- FP4 ---- */

/* The codes of `count` values in units of `scale`, which counts half steps; returns the error. */
DEVICE float code_fp4(const float *x, int count, float scale, byte *ret_code) {
        static const float middles[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10};
        float error = 0;

        LOOP (int i = 0; i < count; i++) {
                int level = levels_below(fabsf(x[i]) / scale, middles, 7);
                float difference;

                level |= level && x[i] < 0 ? 8 : 0;
                difference = scale * (float) hr_codebook_values_e2m1[level] - x[i];
                ret_code[i] = (byte) level;
                error += difference * difference;
        }
        return error;
}

/* code[j] and code[distance + j] of each 2 * distance share a byte. */
DEVICE void write_codes(const byte *code, int distance, byte *ret_bytes) {
        LOOP (int j = 0; j < distance; j++)
                ret_bytes[j] = (byte) (code[j] | code[distance + j] << 4);
}

DEVICE void encode_mxfp4(byte *block, const float *values) {
        int middle = (int) (magnitude_bits(extreme_of(values, 32)) >> 23) - 2;
        float best = -1;

        LOOP (int e = middle - 1; e <= middle + 1; e++) {
                const byte exponent = (byte) (e < 0 ? 0 : e);
                byte code[32];
                float error = code_fp4(values, 32, e8m0_half(exponent), code);

                if (best >= 0 && !(error < best))
                        continue;
                best = error;
                block[0] = exponent;
                write_codes(code, 16, block + 1);
        }
}

/* The nearest scale of four exponent and three mantissa bits, 1 .. 0x7e. */
DEVICE int code_ue4m3(float value) {
        uint32_t bits = magnitude_bits(value * 0x1p-120f);
        uint32_t code = bits >= 0x7e00000U ? 0x7e : (bits + 0x80000U) >> 20;

        return code ? (int) code : 1;
}

DEVICE void encode_nvfp4(byte *block, const float *values) {
        LOOP (int g = 0; g < 4; g++, values += 16) {
                /* the largest as 6, down to 4 */
                int middle = code_ue4m3(extreme_of(values, 16) / 6);
                float best = -1;

                LOOP (int s = middle - 3; s <= middle + 6; s++) {
                        byte code[16];
                        float error;

                        if (s < 1 || s > 0x7e)
                                continue;
                        error = code_fp4(values, 16, ue4m3_half((byte) s), code);
                        if (best >= 0 && !(error < best))
                                continue;
                        best = error;
                        block[g] = (byte) s;
                        write_codes(code, 8, block + 4 + 8 * g);
                }
        }
}

/* ---- Ternary: the largest magnitudes become one step, the rest zero ---- */

DEVICE void sort_falling(uint32_t *x, int count) {
        LOOP (int gap = count / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11)
                LOOP (int i = gap; i < count; i++) {
                        uint32_t moved = x[i];
                        int j = i;

                        LOOP (; j >= gap && x[j - gap] < moved; j -= gap)
                                x[j] = x[j - gap];
                        x[j] = moved;
                }
}

/* Levels 0, 1, 2 for -d, 0, d, and the d that is best for them. With n of the largest magnitudes at
 * one step, their mean is the best d, and sum^2 / n the error that it takes away. */
DEVICE float fit_ternary(const float *x, byte ret_level[256]) {
        uint32_t magnitude[256], least = UINT32_MAX;
        double sum = 0, best = 0, d = 0;

        LOOP (int i = 0; i < 256; i++)
                magnitude[i] = magnitude_bits(x[i]);
        sort_falling(magnitude, 256);
        LOOP (int n = 1; n <= 256; n++) {
                sum += (double) bits_float(magnitude[n - 1]);
                if (sum * sum / n > best) {
                        best = sum * sum / n;
                        d = sum / n;
                        least = magnitude[n - 1];
                }
        }
        LOOP (int i = 0; i < 256; i++)
                ret_level[i] = magnitude_bits(x[i]) < least ? 1 : x[i] < 0 ? 0 : 2;
        return (float) d;
}

/* `count` levels, `distance` apart, as digits in base 3, made a fraction of 256 rounded up. */
DEVICE byte write_trits(const byte *level, int distance, int count) {
        int number = 0;

        LOOP (int n = 0; n < 5; n++)
                number = 3 * number + (n < count ? level[n * distance] : 0);
        return (byte) ((number * 256 + 242) / 243);
}

DEVICE void encode_tq1_0(byte *block, const float *values) {
        byte level[256];

        store_half(block + 52, fit_ternary(values, level));
        LOOP (int i = 0; i < 32; i++)
                block[i] = write_trits(level + i, 32, 5);
        LOOP (int i = 0; i < 16; i++)
                block[32 + i] = write_trits(level + 160 + i, 16, 5);
        LOOP (int i = 0; i < 4; i++)
                block[48 + i] = write_trits(level + 240 + i, 4, 4);
}

DEVICE void encode_tq2_0(byte *block, const float *values) {
        byte level[256];

        store_half(block + 64, fit_ternary(values, level));
        clear(block, 64);
        LOOP (int i = 0; i < 256; i++)
                block[32 * (i / 128) + i % 32] |=
                        (byte) (level[i] << 2 * (i % 128 / 32));
}

/* ---- One and two bits ---- */

DEVICE void encode_q1_0(byte *block, const float *values) {
        float sum = 0;

        clear(block, 18);
        LOOP (int i = 0; i < 128; i++) {
                sum += fabsf(values[i]);
                block[2 + i / 8] |= (byte) ((values[i] >= 0) << i % 8);
        }
        store_half(block, sum / 128);
}

/* Levels 0 .. 3 for -d .. 2d. */
DEVICE int level_q2_0(float x, float inverse) {
        static const float middles[3] = {-0.5f, 0.5f, 1.5f};

        return levels_below(x * inverse, middles, 3);
}

/* The d of 64 values, of either sign. */
DEVICE float fit_q2_0(const float *x) {
        const float extreme = extreme_of(x, 64);
        float best = 0, d = 0;

        LOOP (int step = 0; step < 40; step++) {
                const float inverse =
                        (step % 2 ? -0.6f : 0.6f) + (step % 2 ? -0.1f : 0.1f) * (float) (step / 2);
                float sum_xl = 0, sum_ll = 0;

                LOOP (int i = 0; i < 64; i++) {
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

DEVICE void encode_q2_0(byte *block, const float *values) {
        float d, inverse;

        store_half(block, fit_q2_0(values));
        d = half_at(block);
        inverse = d != 0 ? 1.0f / d : 0;
        clear(block + 2, 16);
        LOOP (int i = 0; i < 64; i++)
                block[2 + i / 4] |=
                        (byte) (level_q2_0(values[i], inverse) << 2 * (i % 4));
}

/* ---- IQ4_XS: a table of 16 values, eight scales -32 .. 31 in units of d ---- */

DEVICE int level_iq4(float x) {
        static const float middles[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                                          7,       19,     31.5f, 45.5f, 61,  79,     101};

        return levels_below(x, middles, 15);
}

DEVICE float error_iq4(const float *x, float scale, byte *ret_code) {
        float inverse = scale != 0 ? 1.0f / scale : 0, error = 0;

        LOOP (int i = 0; i < 32; i++) {
                int level = level_iq4(x[i] * inverse);
                float difference = scale * (float) hr_codebook_values_iq4_nl[level] - x[i];

                ret_code[i] = (byte) level;
                error += difference * difference;
        }
        return error;
}

/* The scale of a group: its largest magnitude near either end of the table. */
DEVICE float fit_iq4(const float *x) {
        const float extreme = extreme_of(x, 32);
        float best = 0, scale = 0;

        LOOP (int step = -7; extreme != 0 && step <= 22; step++) {
                const float end = step <= 7 ? (float) (step - 127) : (float) (step - 15 + 113);
                const float inverse = end / extreme;
                float sum_xl = 0, sum_ll = 0;

                LOOP (int i = 0; i < 32; i++) {
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
DEVICE int round_scale(float x) {
        x = x > -32 ? x : -32;
        x = x < 31 ? x : 31;
        return (int) (x + 32.5f) - 32;
}

DEVICE void encode_iq4_xs(byte *block, const float *values) {
        float scales[8], d;
        unsigned high = 0;

        clear(block, 136);
        LOOP (int g = 0; g < 8; g++)
                scales[g] = fit_iq4(values + 32 * g);
        store_half(block, extreme_of(scales, 8) / -32);
        d = half_at(block);
        LOOP (int g = 0; g < 8; g++) {
                int middle = round_scale(d != 0 ? scales[g] / d : 0), scale = middle;
                float best = -1;

                LOOP (int s = middle - 1; s <= middle + 1; s++) {
                        byte code[32];
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
                block[4 + g / 2] |= (byte) (((scale + 32) & 15) << 4 * (g % 2));
                high |= (unsigned) (scale + 32) >> 4 << 2 * g;
        }
        block[2] = (byte) high;
        block[3] = (byte) (high >> 8);
}

/* ---- By search: scales of scales ------------------------------------------------------------- */

#define GROUP_MAX 32

/* Nearest integer in [low, high]; `low` for NaN. */
DEVICE int level_of(float value, int low, int high) {
        value = value > (float) low ? value : (float) low;
        value = value < (float) high ? value : (float) high;
        return (int) (int32_t) (float_bits(value + 12582912.0f) & 0x7fffffU) - 0x400000;
}

struct level_fit {
        float scale, minimum; /* value = scale * level - minimum, minimum >= 0 */
};

/* The least squares fit for given levels; false when there is none with a positive scale. */
DEVICE bool fit_levels(const float *x, const int *level, int count, level_fit *ret_fit) {
        float n = (float) count, sum_x = 0, sum_l = 0, sum_xl = 0, sum_ll = 0, determinant;
        level_fit fit;

        LOOP (int i = 0; i < count; i++) {
                float l = (float) level[i];

                sum_x += x[i];
                sum_l += l;
                sum_xl += x[i] * l;
                sum_ll += l * l;
        }
        determinant = n * sum_ll - sum_l * sum_l;
        if (!(determinant > 0))
                return false;
        fit.scale = (n * sum_xl - sum_x * sum_l) / determinant;
        fit.minimum = (sum_l * sum_xl - sum_ll * sum_x) / determinant;
        if (fit.minimum < 0) {
                fit.minimum = 0;
                fit.scale = sum_xl / sum_ll;
        }
        if (!(fit.scale > 0))
                return false;
        *ret_fit = fit;
        return true;
}

/* Squared error of levels 0 .. top under a fit, with the levels that suit it best. */
DEVICE float fit_error(const float *x, int count, level_fit fit, int top, int *ret_level) {
        float inverse = fit.scale > 0 ? 1.0f / fit.scale : 0, error = 0;

        LOOP (int i = 0; i < count; i++) {
                int level = level_of((x[i] + fit.minimum) * inverse, 0, top);
                float difference = fit.scale * (float) level - fit.minimum - x[i];

                ret_level[i] = level;
                error += difference * difference;
        }
        return error;
}

/* Scale and minimum of a group for levels 0 .. top. */
DEVICE level_fit fit_group(const float *x, int count, int top) {
        float low = 0, high = x[0], best;
        int level[GROUP_MAX], spare[GROUP_MAX];
        level_fit fit, result;

        LOOP (int i = 0; i < count; i++) {
                low = x[i] < low ? x[i] : low;
                high = x[i] > high ? x[i] : high;
        }
        if (!(high > low))
                return level_fit{0, -low};
        result = level_fit{(high - low) / (float) top, -low};
        best = fit_error(x, count, result, top, level);
        LOOP (int step = -8; step <= 12; step++) {
                float inverse = ((float) top + 0.1f * (float) step) / (high - low), error;

                LOOP (int i = 0; i < count; i++)
                        level[i] = level_of((x[i] - low) * inverse, 0, top);
                if (!fit_levels(x, level, count, &fit))
                        continue;
                error = fit_error(x, count, fit, top, spare);
                if (error < best) {
                        best = error;
                        result = fit;
                }
        }
        return result;
}

/* Rounds a group's factors to multiples of d and dmin in 0 .. factor_top, trying the neighbours,
 * and writes the levels of the best. */
DEVICE void settle_group(const float *x, int count, level_fit fit, float d, float dmin,
                         int factor_top, int top, int *ret_scale, int *ret_minimum,
                         int *ret_level) {
        int scale = level_of(d > 0 ? fit.scale / d : 0, 0, factor_top);
        int minimum = level_of(dmin > 0 ? fit.minimum / dmin : 0, 0, factor_top);
        float best = -1;

        LOOP (int s = scale - 1; s <= scale + 1; s++)
                LOOP (int m = minimum - 1; m <= minimum + 1; m++) {
                        int level[GROUP_MAX];
                        float error;

                        if (s < 0 || s > factor_top || m < 0 || m > factor_top)
                                continue;
                        error = fit_error(x, count, level_fit{d * (float) s, dmin * (float) m},
                                          top, level);
                        if (best >= 0 && !(error < best))
                                continue;
                        best = error;
                        *ret_scale = s;
                        *ret_minimum = m;
                        LOOP (int i = 0; i < count; i++)
                                ret_level[i] = level[i];
                }
}

/* A block of 256 with minima: factors of each group and 256 levels. */
struct ranged_block {
        int scale[16], minimum[16], level[256];
};

DEVICE void quantize_ranged(const float *x, int count, int factor_top, int top, byte *ret_d,
                            byte *ret_dmin, ranged_block *ret) {
        level_fit fits[16];
        float scale = 0, minimum = 0, d, dmin;

        clear((byte *) ret, (int) sizeof *ret);
        LOOP (int g = 0; g < 256 / count; g++) {
                fits[g] = fit_group(x + count * g, count, top);
                scale = fits[g].scale > scale ? fits[g].scale : scale;
                minimum = fits[g].minimum > minimum ? fits[g].minimum : minimum;
        }
        store_half(ret_d, scale / (float) factor_top);
        store_half(ret_dmin, minimum / (float) factor_top);
        d = half_at(ret_d);
        dmin = half_at(ret_dmin);
        LOOP (int g = 0; g < 256 / count; g++)
                settle_group(x + count * g, count, fits[g], d, dmin, factor_top, top,
                             &ret->scale[g], &ret->minimum[g], ret->level + count * g);
}

/* ---- Without a minimum: levels -bound .. bound - 1, scales of either sign ---- */

DEVICE float signed_error(const float *x, float scale, int bound, int *ret_level) {
        float inverse = scale != 0 ? 1.0f / scale : 0, error = 0;

        LOOP (int i = 0; i < 16; i++) {
                int level = level_of(x[i] * inverse, -bound, bound - 1);
                float difference = scale * (float) level - x[i];

                ret_level[i] = level;
                error += difference * difference;
        }
        return error;
}

DEVICE float signed_scale(const float *x, int bound) {
        float extreme = 0, best = 0, result = 0;

        LOOP (int i = 0; i < 16; i++)
                if (fabsf(x[i]) > fabsf(extreme))
                        extreme = x[i];
        if (extreme == 0)
                return 0;
        LOOP (int step = -9; step <= 9; step++) {
                float inverse = -((float) bound + 0.1f * (float) step) / extreme;
                float sum_xl = 0, sum_ll = 0;

                LOOP (int i = 0; i < 16; i++) {
                        float l = (float) level_of(x[i] * inverse, -bound, bound - 1);

                        sum_xl += x[i] * l;
                        sum_ll += l * l;
                }
                if (sum_ll > 0 && sum_xl * sum_xl > best * sum_ll) {
                        best = sum_xl * sum_xl / sum_ll;
                        result = sum_xl / sum_ll;
                }
        }
        return result;
}

/* 16 groups of 16: scales -scale_bound .. scale_bound - 1 in units of d, and the levels. */
DEVICE void quantize_signed(const float *x, int scale_bound, int bound, byte *ret_d,
                            int ret_scale[16], int ret_level[256]) {
        float scales[16], extreme = 0, d;

        LOOP (int g = 0; g < 16; g++) {
                scales[g] = signed_scale(x + 16 * g, bound);
                if (fabsf(scales[g]) > fabsf(extreme))
                        extreme = scales[g];
        }
        store_half(ret_d, extreme / (float) -scale_bound);
        d = half_at(ret_d);
        LOOP (int g = 0; g < 16; g++) {
                int middle = level_of(d != 0 ? scales[g] / d : 0, -scale_bound, scale_bound - 1);
                float best = -1;

                LOOP (int s = middle - 1; s <= middle + 1; s++) {
                        int level[16];
                        float error;

                        if (s < -scale_bound || s >= scale_bound)
                                continue;
                        error = signed_error(x + 16 * g, d * (float) s, bound, level);
                        if (best >= 0 && !(error < best))
                                continue;
                        best = error;
                        ret_scale[g] = s;
                        LOOP (int i = 0; i < 16; i++)
                                ret_level[16 * g + i] = level[i];
                }
        }
}

/* ---- The layouts ---- */

DEVICE void encode_q2_k(byte *block, const float *values) {
        ranged_block b;

        quantize_ranged(values, 16, 15, 3, block + 80, block + 82, &b);
        clear(block + 16, 64);
        LOOP (int g = 0; g < 16; g++)
                block[g] = (byte) (b.scale[g] | b.minimum[g] << 4);
        LOOP (int i = 0; i < 256; i++)
                block[16 + 32 * (i / 128) + i % 32] |=
                        (byte) (b.level[i] << 2 * (i % 128 / 32));
}

DEVICE void encode_q3_k(byte *block, const float *values) {
        int scale[16], level[256];

        clear(block, 110);
        quantize_signed(values, 32, 4, block + 108, scale, level);
        LOOP (int g = 0; g < 16; g++) {
                int s = scale[g] + 32;

                block[96 + g % 8] |= (byte) ((s & 15) << (g < 8 ? 0 : 4));
                block[104 + g % 4] |= (byte) (s >> 4 << 2 * (g / 4));
        }
        LOOP (int i = 0; i < 256; i++) {
                int l = level[i] + 4;

                block[32 + 32 * (i / 128) + i % 32] |=
                        (byte) ((l & 3) << 2 * (i % 128 / 32));
                block[i % 32] |= (byte) (l >> 2 << i / 32);
        }
}

/* Six-bit scales and minima of eight groups in 12 bytes. */
DEVICE void write_factors(const ranged_block *b, byte *ret_packed) {
        clear(ret_packed, 12);
        LOOP (int g = 0; g < 4; g++) {
                ret_packed[g] = (byte) (b->scale[g] | b->scale[4 + g] >> 4 << 6);
                ret_packed[4 + g] = (byte) (b->minimum[g] | b->minimum[4 + g] >> 4 << 6);
                ret_packed[8 + g] =
                        (byte) ((b->scale[4 + g] & 15) | (b->minimum[4 + g] & 15) << 4);
        }
}

/* Low four bits of 256 levels: 64 elements share 32 bytes. */
DEVICE void write_nibbles(const int *level, byte *ret_bytes) {
        LOOP (int i = 0; i < 128; i++) {
                const int *low = level + 64 * (i / 32) + i % 32;

                ret_bytes[i] = (byte) ((low[0] & 15) | (low[32] & 15) << 4);
        }
}

DEVICE void encode_q4_k(byte *block, const float *values) {
        ranged_block b;

        quantize_ranged(values, 32, 63, 15, block, block + 2, &b);
        write_factors(&b, block + 4);
        write_nibbles(b.level, block + 16);
}

DEVICE void encode_q5_k(byte *block, const float *values) {
        ranged_block b;

        quantize_ranged(values, 32, 63, 31, block, block + 2, &b);
        write_factors(&b, block + 4);
        write_nibbles(b.level, block + 48);
        clear(block + 16, 32);
        LOOP (int i = 0; i < 256; i++)
                block[16 + i % 32] |= (byte) (b.level[i] >> 4 << i / 32);
}

DEVICE void encode_q6_k(byte *block, const float *values) {
        int scale[16], level[256];

        clear(block, 192);
        quantize_signed(values, 128, 32, block + 208, scale, level);
        LOOP (int g = 0; g < 16; g++)
                block[192 + g] = (byte) (int8_t) scale[g];
        LOOP (int i = 0; i < 256; i++) {
                int l = level[i] + 32, half = i / 128, quarter = i % 128 / 32;

                block[64 * half + 32 * (quarter % 2) + i % 32] |=
                        (byte) ((l & 15) << 4 * (quarter / 2));
                block[128 + 32 * half + i % 32] |= (byte) (l >> 4 << 2 * quarter);
        }
}

/* The types that encode() writes. */
#define ENCODED_TYPES(X)                                                                           \
        X(Q8_0, q8_0) X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(IQ4_NL, iq4_nl)    \
        X(MXFP4, mxfp4) X(NVFP4, nvfp4) X(Q1_0, q1_0) X(Q2_0, q2_0) X(Q2_K, q2_k) X(Q3_K, q3_k)    \
        X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k) X(IQ4_XS, iq4_xs) X(TQ1_0, tq1_0)                \
        X(TQ2_0, tq2_0)

/* One block of block_size(type) values. */
OUTLINE void encode(byte *block, uint32_t type, const float *values) {
        switch (type) {
#define X(name, function)                                                                          \
        case HR_TYPE_##name: encode_##function(block, values); break;
                ENCODED_TYPES(X)
#undef X
        default: break;
        }
}
