/* The row functions: conversions exhaustively, the exponential's error, sums, and that every
 * instruction set gives the same bits. */
#include <float.h>
#include <math.h>

#include "backends/cpu/vec.h"
#include "tests/harness.h"

static const char *const names[] = { "portable", "avx2", "avx512" };

static const struct cpu_vec *table(size_t i) {
        return cpu_vec_select(names[i]);
}

static uint32_t bits_of(float value) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        return bits;
}

static double half_value(uint16_t half) {
        int exponent = (half >> 10) & 31, fraction = half & 1023;
        double magnitude = exponent == 0    ? ldexp(fraction, -24)
                           : exponent == 31 ? (fraction ? NAN : INFINITY)
                                            : ldexp(1024 + fraction, exponent - 25);

        return half & 0x8000 ? -magnitude : magnitude;
}

HR_TEST(names_are_known) {
        HR_EXPECT(table(0));
        HR_EXPECT(!cpu_vec_select("sse9"));
        HR_EXPECT(cpu_vec_select(NULL) == cpu_vec_select("auto"));
}

HR_TEST(every_f16_expands_to_its_value) {
        static uint16_t in[1 << 16];
        static float out[1 << 16];

        for (uint32_t i = 0; i < 1 << 16; i++)
                in[i] = (uint16_t) i;
        for (size_t t = 0; t < HR_ARRAY_LENGTH(names); t++) {
                if (!table(t))
                        continue;
                table(t)->f16_to_f32(1 << 16, out, in);
                for (uint32_t i = 0; i < 1 << 16; i++) {
                        double expected = half_value((uint16_t) i);

                        if (isnan(expected))
                                HR_EXPECT(isnan(out[i]));
                        else if ((double) out[i] != expected || !signbit(out[i]) != !(i & 0x8000))
                                hr_test_fail(__FILE__, __LINE__, "%s: %#x gives %g", names[t], i,
                                             (double) out[i]);
                }
        }
}

/* Around each f16, its neighbours and the middles between them: to nearest, ties to even. */
HR_TEST(f32_rounds_to_the_nearest_f16) {
        for (size_t t = 0; t < HR_ARRAY_LENGTH(names); t++) {
                if (!table(t))
                        continue;
                for (uint32_t i = 0; i < 0x7c00; i++) {
                        double low = half_value((uint16_t) i);
                        double high = i == 0x7bff ? 65536 : half_value((uint16_t) (i + 1));
                        float middle = (float) ((low + high) / 2);
                        float in[8] = { (float) low, middle, nextafterf(middle, 0),
                                        nextafterf(middle, INFINITY), -(float) low, -middle,
                                        -nextafterf(middle, 0), -nextafterf(middle, INFINITY) };
                        uint16_t even = (uint16_t) (i & 1 ? i + 1 : i), up = (uint16_t) (i + 1);
                        uint16_t expected[8] = { (uint16_t) i, even, (uint16_t) i, up };
                        uint16_t out[8], one;

                        for (int j = 0; j < 4; j++)
                                expected[4 + j] = expected[j] | 0x8000;
                        table(t)->f32_to_f16(8, out, in);
                        for (int j = 0; j < 8; j++) {
                                table(t)->f32_to_f16(1, &one, &in[j]);
                                if (out[j] != expected[j] || one != expected[j])
                                        hr_test_fail(__FILE__, __LINE__,
                                                     "%s: %a gives %#x, not %#x", names[t],
                                                     (double) in[j], out[j], expected[j]);
                        }
                }
        }
}

HR_TEST(extremes_round_to_f16_and_bf16) {
        const float in[8] = { INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 1e-30f, -1e-30f, 65520.0f,
                              65519.996f };
        const uint16_t halves[8] = { 0x7c00, 0xfc00, 0x7c00, 0xfc00, 0, 0x8000, 0x7c00, 0x7bff };
        const float nan = NAN;

        for (size_t t = 0; t < HR_ARRAY_LENGTH(names); t++) {
                uint16_t out[8];
                float back;

                if (!table(t))
                        continue;
                table(t)->f32_to_f16(8, out, in);
                for (int i = 0; i < 8; i++)
                        HR_EXPECT_EQ(out[i], halves[i]);
                table(t)->f32_to_f16(1, out, &nan);
                table(t)->f16_to_f32(1, &back, out);
                HR_EXPECT(isnan(back));
                table(t)->f32_to_bf16(1, out, &nan);
                table(t)->bf16_to_f32(1, &back, out);
                HR_EXPECT(isnan(back));
                table(t)->f32_to_bf16(1, out, &in[0]);
                HR_EXPECT_EQ(out[0], 0x7f80);
        }
}

HR_TEST(bf16_rounds_to_nearest_even) {
        static const struct {
                uint32_t bits;
                uint16_t expected;
        } cases[] = { { 0x3f800000, 0x3f80 }, { 0x3f807fff, 0x3f80 }, { 0x3f808000, 0x3f80 },
                      { 0x3f808001, 0x3f81 }, { 0x3f818000, 0x3f82 }, { 0xbf818000, 0xbf82 },
                      { 0x7f7fffff, 0x7f80 } };

        for (size_t t = 0; t < HR_ARRAY_LENGTH(names); t++)
                for (size_t i = 0; table(t) && i < HR_ARRAY_LENGTH(cases); i++) {
                        uint16_t out;
                        float in;

                        memcpy(&in, &cases[i].bits, sizeof in);
                        table(t)->f32_to_bf16(1, &out, &in);
                        HR_EXPECT_EQ(out, cases[i].expected);
                }
}

static float ulp_of(double value) {
        float nearest = fabsf((float) value);

        return nextafterf(nearest, INFINITY) - nearest;
}

HR_TEST(exp_is_within_three_units_in_the_last_place) {
        double worst = 0;

        for (float x = -87.0f; x < 88.7f; x += 0.00137f) {
                double expected = exp((double) x);
                float actual;

                table(0)->unary[HR_UNARY_EXP](1, &actual, &x);
                worst = fmax(worst, fabs((double) actual - expected) / (double) ulp_of(expected));
        }
        if (worst > 3)
                hr_test_fail(__FILE__, __LINE__, "%g units", worst);
}

HR_TEST(exp_keeps_its_extremes) {
        const float in[] = { -INFINITY, -1e30f, -104.5f, -100.0f, 0.0f, 88.9f, 1e30f, INFINITY };
        const float nan = NAN;

        for (size_t t = 0; t < HR_ARRAY_LENGTH(names); t++) {
                float out[HR_ARRAY_LENGTH(in)], back;

                if (!table(t))
                        continue;
                table(t)->unary[HR_UNARY_EXP](HR_ARRAY_LENGTH(in), out, in);
                HR_EXPECT(out[0] == 0 && out[1] == 0 && out[2] == 0);
                HR_EXPECT(out[3] > 0 && fabs((double) out[3] / exp(-100.0) - 1) < 0.02);
                HR_EXPECT(out[4] == 1.0f);
                HR_EXPECT(isinf(out[5]) && isinf(out[6]) && isinf(out[7]));
                table(t)->unary[HR_UNARY_EXP](1, &back, &nan);
                HR_EXPECT(isnan(back));
        }
}

#define LENGTH 1543

static float *random_values(uint32_t seed, float range) {
        float *values = malloc(LENGTH * sizeof *values);
        uint32_t state = seed * 747796405U + 1;

        HR_EXPECT(values);
        for (int i = 0; i < LENGTH; i++) {
                state = state * 1664525U + 1013904223U;
                values[i] = ((float) (state >> 8) * 0x1p-23f - 1.0f) * range;
        }
        return values;
}

static void expect_same(const char *name, const char *isa, const float *a, const float *b,
                        int64_t n) {
        for (int64_t i = 0; i < n; i++)
                if (bits_of(a[i]) != bits_of(b[i]))
                        hr_test_fail(__FILE__, __LINE__, "%s on %s, element %lld: %a, portable %a",
                                     name, isa, (long long) i, (double) b[i], (double) a[i]);
}

HR_TEST(all_instruction_sets_give_the_same_bits) {
        const struct cpu_vec *base = table(0);
        float *a = random_values(1, 20.0f), *b = random_values(2, 20.0f);
        float *x = malloc(LENGTH * sizeof *x), *y = malloc(LENGTH * sizeof *y);

        HR_EXPECT(x && y);
        for (size_t t = 1; t < HR_ARRAY_LENGTH(names); t++) {
                const struct cpu_vec *vec = table(t);

                if (!vec)
                        continue;
                for (int64_t n = 0; n <= LENGTH; n += n < 70 ? 1 : 491) {
                        for (int f = 0; f < HR_UNARY_COUNT; f++) {
                                if (!base->unary[f])
                                        continue;
                                base->unary[f](n, x, a);
                                vec->unary[f](n, y, a);
                                expect_same("a unary function", vec->isa, x, y, n);
                        }
                        for (int f = 0; f < CPU_VEC_BINARY_COUNT; f++) {
                                base->binary[f](n, x, a, b);
                                vec->binary[f](n, y, a, b);
                                expect_same("a binary function", vec->isa, x, y, n);
                        }
                        HR_EXPECT(base->sum(n, a) == vec->sum(n, a));
                        HR_EXPECT(base->sum_squares(n, a) == vec->sum_squares(n, a));
                        HR_EXPECT(base->max(n, a) == vec->max(n, a));
                        HR_EXPECT(base->exp_sum(n, x, a, 3.5f) == vec->exp_sum(n, y, a, 3.5f));
                        expect_same("exp_sum", vec->isa, x, y, n);
                        HR_EXPECT(base->shift_squares(n, x, a, 0.3f) ==
                                  vec->shift_squares(n, y, a, 0.3f));
                        expect_same("shift_squares", vec->isa, x, y, n);
                        base->swiglu_oai(n, x, a, b, 1.7f, 7.0f);
                        vec->swiglu_oai(n, y, a, b, 1.7f, 7.0f);
                        expect_same("swiglu_oai", vec->isa, x, y, n);
                        base->add_scaled(n, x, a, 0.7f);
                        vec->add_scaled(n, y, a, 0.7f);
                        expect_same("add_scaled", vec->isa, x, y, n);
                }
        }
        free(a);
        free(b);
        free(x);
        free(y);
}

HR_TEST(functions_work_over_their_input) {
        float *a = random_values(3, 5.0f), *expected = malloc(LENGTH * sizeof *expected);

        HR_EXPECT(expected);
        for (size_t t = 0; t < HR_ARRAY_LENGTH(names); t++)
                for (int f = 0; table(t) && f < HR_UNARY_COUNT; f++) {
                        float *over = random_values(3, 5.0f);

                        if (table(t)->unary[f]) {
                                table(t)->unary[f](LENGTH, expected, a);
                                table(t)->unary[f](LENGTH, over, over);
                                expect_same("in place", table(t)->isa, expected, over, LENGTH);
                        }
                        free(over);
                }
        free(a);
        free(expected);
}

HR_TEST(gelu_goes_through_half_precision) {
        const float in[] = { -11.0f, -10.0f, 0.0f, 1.0f, 9.999f, 12.34567f };
        float out[HR_ARRAY_LENGTH(in)];

        table(0)->unary[HR_UNARY_GELU](HR_ARRAY_LENGTH(in), out, in);
        HR_EXPECT(out[0] == 0.0f && out[1] == 0.0f && out[2] == 0.0f);
        HR_EXPECT(fabsf(out[3] - 0.8411920f) < 5e-4f);
        HR_EXPECT(out[4] == 10.0f);
        HR_EXPECT(out[5] == in[5]);
}
