/*
 * Rows of f32 to the types whose scales have scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
 *
 * There is no one right answer. For each group a line of candidate scales is tried, each with the
 * least squares fit of scale and minimum to the levels it gives. The group's factors are then
 * rounded to the few bits that the block has for them; neighbours of the rounded factors are tried
 * too, and levels are taken anew. The measure is the plain squared error.
 *
 * Numbers that are none (NaN, infinity) give some bytes, never undefined behaviour: every float is
 * brought into range before it becomes an integer.
 */
#include "backends/cpu/matrix/tables.h"

#define GROUP_MAX 32

/* Nearest integer in [low, high]; `low` for NaN. */
static inline int level_of(float value, int low, int high) {
        value = value > (float) low ? value : (float) low;
        value = value < (float) high ? value : (float) high;
        return (int) (int32_t) (cpu_float_bits(value + 12582912.0f) & 0x7fffffU) - 0x400000;
}

struct fit {
        float scale, minimum; /* value = scale * level - minimum, minimum >= 0 */
};

/* The least squares fit for given levels; false when there is none with a positive scale. */
static bool fit_levels(const float *x, const int *level, int count, struct fit *ret_fit) {
        float n = (float) count, sum_x = 0, sum_l = 0, sum_xl = 0, sum_ll = 0, determinant;
        struct fit fit;

        for (int i = 0; i < count; i++) {
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
static float fit_error(const float *x, int count, struct fit fit, int top, int *ret_level) {
        float inverse = fit.scale > 0 ? 1.0f / fit.scale : 0, error = 0;

        for (int i = 0; i < count; i++) {
                int level = level_of((x[i] + fit.minimum) * inverse, 0, top);
                float difference = fit.scale * (float) level - fit.minimum - x[i];

                ret_level[i] = level;
                error += difference * difference;
        }
        return error;
}

/* Scale and minimum of a group for levels 0 .. top. */
static struct fit fit_group(const float *x, int count, int top) {
        float low = 0, high = x[0], best;
        int level[GROUP_MAX], spare[GROUP_MAX];
        struct fit fit, result;

        for (int i = 0; i < count; i++) {
                low = x[i] < low ? x[i] : low;
                high = x[i] > high ? x[i] : high;
        }
        if (!(high > low))
                return (struct fit){0, -low};
        result = (struct fit){(high - low) / (float) top, -low};
        best = fit_error(x, count, result, top, level);
        for (int step = -8; step <= 12; step++) {
                float inverse = ((float) top + 0.1f * (float) step) / (high - low), error;

                for (int i = 0; i < count; i++)
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
static void settle_group(const float *x, int count, struct fit fit, float d, float dmin,
                         int factor_top, int top, int *ret_scale, int *ret_minimum,
                         int *ret_level) {
        int scale = level_of(d > 0 ? fit.scale / d : 0, 0, factor_top);
        int minimum = level_of(dmin > 0 ? fit.minimum / dmin : 0, 0, factor_top);
        float best = -1;

        for (int s = scale - 1; s <= scale + 1; s++)
                for (int m = minimum - 1; m <= minimum + 1; m++) {
                        int level[GROUP_MAX];
                        float error;

                        if (s < 0 || s > factor_top || m < 0 || m > factor_top)
                                continue;
                        error = fit_error(x, count, (struct fit){d * (float) s, dmin * (float) m},
                                          top, level);
                        if (best >= 0 && !(error < best))
                                continue;
                        best = error;
                        *ret_scale = s;
                        *ret_minimum = m;
                        memcpy(ret_level, level, (size_t) count * sizeof level[0]);
                }
}

/* A block of 256 with minima: factors of each group and 256 levels. */
struct ranged_block {
        int scale[16], minimum[16], level[256];
};

static void quantize_ranged(const float *x, int count, int factor_top, int top, uint8_t *ret_d,
                            uint8_t *ret_dmin, struct ranged_block *ret) {
        struct fit fits[16];
        float scale = 0, minimum = 0, d, dmin;

        memset(ret, 0, sizeof *ret);
        for (int g = 0; g < 256 / count; g++) {
                fits[g] = fit_group(x + count * g, count, top);
                scale = fits[g].scale > scale ? fits[g].scale : scale;
                minimum = fits[g].minimum > minimum ? fits[g].minimum : minimum;
        }
        cpu_write_half(ret_d, scale / (float) factor_top);
        cpu_write_half(ret_dmin, minimum / (float) factor_top);
        d = cpu_read_half(ret_d);
        dmin = cpu_read_half(ret_dmin);
        for (int g = 0; g < 256 / count; g++)
                settle_group(x + count * g, count, fits[g], d, dmin, factor_top, top,
                             &ret->scale[g], &ret->minimum[g], ret->level + count * g);
}

/* ---- Without a minimum: levels -bound .. bound - 1, scales of either sign ---- */

static float signed_error(const float *x, float scale, int bound, int *ret_level) {
        float inverse = scale != 0 ? 1.0f / scale : 0, error = 0;

        for (int i = 0; i < 16; i++) {
                int level = level_of(x[i] * inverse, -bound, bound - 1);
                float difference = scale * (float) level - x[i];

                ret_level[i] = level;
                error += difference * difference;
        }
        return error;
}

static float signed_scale(const float *x, int bound) {
        float extreme = 0, best = 0, result = 0;

        for (int i = 0; i < 16; i++)
                if (__builtin_fabsf(x[i]) > __builtin_fabsf(extreme))
                        extreme = x[i];
        if (extreme == 0)
                return 0;
        for (int step = -9; step <= 9; step++) {
                float inverse = -((float) bound + 0.1f * (float) step) / extreme;
                float sum_xl = 0, sum_ll = 0;

                for (int i = 0; i < 16; i++) {
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
static void quantize_signed(const float *x, int scale_bound, int bound, uint8_t *ret_d,
                            int ret_scale[16], int ret_level[256]) {
        float scales[16], extreme = 0, d;

        for (int g = 0; g < 16; g++) {
                scales[g] = signed_scale(x + 16 * g, bound);
                if (__builtin_fabsf(scales[g]) > __builtin_fabsf(extreme))
                        extreme = scales[g];
        }
        cpu_write_half(ret_d, extreme / (float) -scale_bound);
        d = cpu_read_half(ret_d);
        for (int g = 0; g < 16; g++) {
                int middle = level_of(d != 0 ? scales[g] / d : 0, -scale_bound, scale_bound - 1);
                float best = -1;

                for (int s = middle - 1; s <= middle + 1; s++) {
                        int level[16];
                        float error;

                        if (s < -scale_bound || s >= scale_bound)
                                continue;
                        error = signed_error(x + 16 * g, d * (float) s, bound, level);
                        if (best >= 0 && !(error < best))
                                continue;
                        best = error;
                        ret_scale[g] = s;
                        memcpy(ret_level + 16 * g, level, sizeof level);
                }
        }
}

/* ---- The layouts ---- */

void CPU_ISA(quantize_q2_K)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;
        struct ranged_block b;

        for (; count > 0; count -= 256, block += 84, values += 256) {
                quantize_ranged(values, 16, 15, 3, block + 80, block + 82, &b);
                memset(block + 16, 0, 64);
                for (int g = 0; g < 16; g++)
                        block[g] = (uint8_t) (b.scale[g] | b.minimum[g] << 4);
                for (int i = 0; i < 256; i++)
                        block[16 + 32 * (i / 128) + i % 32] |=
                                (uint8_t) (b.level[i] << 2 * (i % 128 / 32));
        }
}

void CPU_ISA(quantize_q3_K)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;
        int scale[16], level[256];

        for (; count > 0; count -= 256, block += 110, values += 256) {
                memset(block, 0, 110);
                quantize_signed(values, 32, 4, block + 108, scale, level);
                for (int g = 0; g < 16; g++) {
                        int s = scale[g] + 32;

                        block[96 + g % 8] |= (uint8_t) ((s & 15) << (g < 8 ? 0 : 4));
                        block[104 + g % 4] |= (uint8_t) (s >> 4 << 2 * (g / 4));
                }
                for (int i = 0; i < 256; i++) {
                        int l = level[i] + 4;

                        block[32 + 32 * (i / 128) + i % 32] |=
                                (uint8_t) ((l & 3) << 2 * (i % 128 / 32));
                        block[i % 32] |= (uint8_t) (l >> 2 << i / 32);
                }
        }
}

/* Six-bit scales and minima of eight groups in 12 bytes. */
static void write_factors(const struct ranged_block *b, uint8_t *ret_packed) {
        memset(ret_packed, 0, 12);
        for (int g = 0; g < 4; g++) {
                ret_packed[g] = (uint8_t) (b->scale[g] | b->scale[4 + g] >> 4 << 6);
                ret_packed[4 + g] = (uint8_t) (b->minimum[g] | b->minimum[4 + g] >> 4 << 6);
                ret_packed[8 + g] =
                        (uint8_t) ((b->scale[4 + g] & 15) | (b->minimum[4 + g] & 15) << 4);
        }
}

/* Low four bits of 256 levels: 64 elements share 32 bytes. */
static void write_nibbles(const int *level, uint8_t *ret_bytes) {
        for (int i = 0; i < 128; i++) {
                const int *low = level + 64 * (i / 32) + i % 32;

                ret_bytes[i] = (uint8_t) ((low[0] & 15) | (low[32] & 15) << 4);
        }
}

void CPU_ISA(quantize_q4_K)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;
        struct ranged_block b;

        for (; count > 0; count -= 256, block += 144, values += 256) {
                quantize_ranged(values, 32, 63, 15, block, block + 2, &b);
                write_factors(&b, block + 4);
                write_nibbles(b.level, block + 16);
        }
}

void CPU_ISA(quantize_q5_K)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;
        struct ranged_block b;

        for (; count > 0; count -= 256, block += 176, values += 256) {
                quantize_ranged(values, 32, 63, 31, block, block + 2, &b);
                write_factors(&b, block + 4);
                write_nibbles(b.level, block + 48);
                memset(block + 16, 0, 32);
                for (int i = 0; i < 256; i++)
                        block[16 + i % 32] |= (uint8_t) (b.level[i] >> 4 << i / 32);
        }
}

void CPU_ISA(quantize_q6_K)(const float *values, void *ret_row, int64_t count) {
        uint8_t *block = ret_row;
        int scale[16], level[256];

        for (; count > 0; count -= 256, block += 210, values += 256) {
                memset(block, 0, 192);
                quantize_signed(values, 128, 32, block + 208, scale, level);
                for (int g = 0; g < 16; g++)
                        block[192 + g] = (uint8_t) (int8_t) scale[g];
                for (int i = 0; i < 256; i++) {
                        int l = level[i] + 32, half = i / 128, quarter = i % 128 / 32;

                        block[64 * half + 32 * (quarter % 2) + i % 32] |=
                                (uint8_t) ((l & 15) << 4 * (quarter / 2));
                        block[128 + 32 * half + i % 32] |= (uint8_t) (l >> 4 << 2 * quarter);
                }
        }
}
