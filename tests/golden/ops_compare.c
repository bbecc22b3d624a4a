/* See ops_compare.h. Block types are expanded with the portable kernels, which the recorded
 * expansions of random bits check. */
#include "tests/golden/ops_compare.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/matrix/dot.h"

static double f16_value(uint16_t half) {
        int exponent = (half >> 10) & 31, fraction = half & 1023;
        double magnitude = exponent == 0    ? ldexp(fraction, -24)
                           : exponent == 31 ? (fraction ? NAN : INFINITY)
                                            : ldexp(1024 + fraction, exponent - 25);

        return half & 0x8000 ? -magnitude : magnitude;
}

static bool expand_blocks(uint32_t type, const uint8_t *content, int64_t elements,
                          double *values) {
        const struct cpu_dot *dot = cpu_dot_select("portable");
        float *expanded;

        if (!dot || type >= HR_TYPE_LIMIT || !dot->dequantize[type])
                return false;
        expanded = malloc(((size_t) elements + 1) * sizeof *expanded);
        if (!expanded)
                return false;
        dot->dequantize[type](content, expanded, elements);
        for (int64_t i = 0; i < elements; i++)
                values[i] = (double) expanded[i];
        free(expanded);
        return true;
}

#define EXPAND(c_type, conversion)                                                                 \
        for (int64_t i = 0; i < elements; i++) {                                                   \
                c_type value;                                                                      \
                                                                                                   \
                memcpy(&value, content + (size_t) i * sizeof value, sizeof value);                 \
                ret_values[i] = (double) (conversion);                                             \
        }                                                                                          \
        return true

bool ops_expand(uint32_t type, const uint8_t *content, int64_t elements, double *ret_values) {
        switch (type) {
        case HR_TYPE_F32: {
                EXPAND(float, value);
        }
        case HR_TYPE_F16: {
                EXPAND(uint16_t, f16_value(value));
        }
        case HR_TYPE_BF16:
                for (int64_t i = 0; i < elements; i++) {
                        uint32_t bits = (uint32_t) content[2 * i] << 16 |
                                        (uint32_t) content[2 * i + 1] << 24;
                        float value;

                        memcpy(&value, &bits, sizeof value);
                        ret_values[i] = (double) value;
                }
                return true;
        case HR_TYPE_I8: {
                EXPAND(int8_t, value);
        }
        case HR_TYPE_I16: {
                EXPAND(int16_t, value);
        }
        case HR_TYPE_I32: {
                EXPAND(int32_t, value);
        }
        case HR_TYPE_I64: {
                EXPAND(int64_t, value);
        }
        default:
                return expand_blocks(type, content, elements, ret_values);
        }
}

static double as_infinite(double value) {
        return fabs(value) >= (double) FLT_MAX ? copysign(INFINITY, value) : value;
}

double ops_nmse(uint32_t type, const uint8_t *expected, const uint8_t *actual, int64_t elements) {
        double *g = malloc(((size_t) elements + 1) * sizeof *g);
        double *x = malloc(((size_t) elements + 1) * sizeof *x);
        double error = 0, power = 0, result = INFINITY;

        if (!g || !x || !ops_expand(type, expected, elements, g) ||
            !ops_expand(type, actual, elements, x))
                goto out;
        for (int64_t i = 0; i < elements; i++) {
                double a = as_infinite(g[i]), b = as_infinite(x[i]);

                if (isnan(a) || isnan(b) || isinf(a) != isinf(b) || (isinf(a) && a != b))
                        goto out;
                if (isinf(a))
                        continue;
                error += (a - b) * (a - b);
                power += a * a;
        }
        if (power > 0)
                result = error / power;
        else
                result = error > 0 ? INFINITY : 0;
out:
        free(g);
        free(x);
        return result;
}

bool ops_exact(uint32_t type, const uint8_t *expected, const uint8_t *actual, int64_t elements) {
        uint64_t bytes = 0;

        if (!hr_type_row_bytes(type, elements, &bytes))
                return false;
        return memcmp(expected, actual, (size_t) bytes) == 0 ||
               (hr_type_info(type)->is_float && ops_nmse(type, expected, actual, elements) == 0);
}

static int compare_i32(const void *a, const void *b) {
        int32_t x = *(const int32_t *) a, y = *(const int32_t *) b;

        return x < y ? -1 : x > y;
}

bool ops_same_sets(const uint8_t *expected, const uint8_t *actual, int64_t row_elements,
                   int64_t rows) {
        size_t bytes = (size_t) row_elements * sizeof(int32_t);
        int32_t *g = malloc(bytes + 1), *x = malloc(bytes + 1);
        bool is_same = g && x;

        for (int64_t row = 0; row < rows && is_same; row++) {
                memcpy(g, expected + (size_t) row * bytes, bytes);
                memcpy(x, actual + (size_t) row * bytes, bytes);
                qsort(g, (size_t) row_elements, sizeof *g, compare_i32);
                qsort(x, (size_t) row_elements, sizeof *x, compare_i32);
                is_same = memcmp(g, x, bytes) == 0;
        }
        free(g);
        free(x);
        return is_same;
}

bool ops_is_searched(uint32_t type) {
        const struct hr_type_info *info = hr_type_info(type);

        if (!info || !info->is_block)
                return false;
        switch (type) {
        case HR_TYPE_Q8_0:
        case HR_TYPE_Q4_0:
        case HR_TYPE_Q4_1:
        case HR_TYPE_Q5_0:
        case HR_TYPE_Q5_1:
        case HR_TYPE_IQ4_NL:
                return false;
        default:
                return true;
        }
}
