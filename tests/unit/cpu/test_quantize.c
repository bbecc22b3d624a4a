/* Conversions: half floats bit by bit, block types against their rules, instruction sets against
 * each other. */
#include <math.h>
#include <string.h>

#include "backends/cpu/matrix/half.h"
#include "tests/harness.h"
#include "tests/unit/cpu/kernel_case.h"

HR_TEST(halves_come_back) {
        for (uint32_t h = 0; h < 65536; h++) {
                float value = cpu_half_to_float((uint16_t) h);

                if ((h & 0x7fff) > 0x7c00)
                        HR_EXPECT(isnan(value));
                else
                        HR_EXPECT_EQ(cpu_float_to_half(value), h);
        }
        HR_EXPECT(cpu_half_to_float(0x0001) == 0x1p-24f);
        HR_EXPECT(cpu_half_to_float(0x3c01) == 1.0f + 0x1p-10f);
        HR_EXPECT(cpu_half_to_float(0xfbff) == -65504.0f);
}

HR_TEST_LIMIT(halves_round_to_even, 120) {
        for (uint32_t h = 0; h < 0x7bff; h++) {
                double low = cpu_half_to_float((uint16_t) h);
                double high = cpu_half_to_float((uint16_t) (h + 1));
                float middle = (float) ((low + high) / 2);

                HR_EXPECT_EQ(cpu_float_to_half(middle), h % 2 ? h + 1 : h);
                HR_EXPECT_EQ(cpu_float_to_half(nextafterf(middle, 1e9f)), h + 1);
                HR_EXPECT_EQ(cpu_float_to_half(-nextafterf(middle, 0)), 0x8000 | h);
        }
        HR_EXPECT_EQ(cpu_float_to_half(65519.99f), 0x7bff);
        HR_EXPECT_EQ(cpu_float_to_half(65520.0f), 0x7c00);
        HR_EXPECT_EQ(cpu_float_to_half(-INFINITY), 0xfc00);
        HR_EXPECT(isnan(cpu_half_to_float(cpu_float_to_half(NAN))));
        HR_EXPECT_EQ(cpu_float_to_bf16(1.00390625f), 0x3f80); /* tie, to even */
        HR_EXPECT_EQ(cpu_float_to_bf16(1.01171875f), 0x3f82); /* tie, to even upwards */
        HR_EXPECT_EQ(cpu_float_to_bf16(3.4e38f), 0x7f80);
        HR_EXPECT(isnan(cpu_bf16_to_float(cpu_float_to_bf16(NAN))));
}

/* Every instruction set's rows of f16 and bf16 are those of the scalar rules. */
HR_TEST(sets_agree_on_halves) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        enum { N = 4099 };
        float *values = case_memory(N * sizeof *values);
        uint16_t *halves = case_memory(N * sizeof *halves);

        for (int i = 0; i < N; i++) {
                uint32_t bits = case_random() ^ case_random() << 9;

                memcpy(&values[i], &bits, sizeof bits);
                if (isnan(values[i]))
                        values[i] = 0.1f;
        }
        for (uint32_t s = 0; s < sets; s++) {
                dots[s]->quantize[HR_TYPE_F16](values, halves, N);
                for (int i = 0; i < N; i++)
                        HR_EXPECT_EQ(halves[i], cpu_float_to_half(values[i]));
                dots[s]->quantize[HR_TYPE_BF16](values, halves, N);
                for (int i = 0; i < N; i++)
                        HR_EXPECT_EQ(halves[i], cpu_float_to_bf16(values[i]));
        }
        for (uint32_t s = 0; s < sets; s++)
                for (uint32_t h = 0; h + N <= 65536; h += N) {
                        for (uint32_t i = 0; i < N; i++)
                                halves[i] = (uint16_t) (h + i);
                        dots[s]->dequantize[HR_TYPE_F16](halves, values, N);
                        for (int i = 0; i < N; i++)
                                HR_EXPECT(values[i] == cpu_half_to_float(halves[i]) ||
                                          isnan(values[i]));
                }
        case_free_all();
}

/* Largest step of a block type over its range of values, as a share of the largest magnitude. */
static const struct {
        uint32_t type;
        float step;
} written[] = {
        {HR_TYPE_Q8_0, 1.0f / 127}, {HR_TYPE_Q4_0, 1.0f / 8},  {HR_TYPE_Q4_1, 2.0f / 15},
        {HR_TYPE_Q5_0, 1.0f / 16},  {HR_TYPE_Q5_1, 2.0f / 31}, {HR_TYPE_IQ4_NL, 24.0f / 113},
};

HR_TEST_LIMIT(blocks_are_near_their_source, 120) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        float values[32], back[32];
        uint8_t row[64];

        for (int round = 0; round < 2000; round++) {
                float size = 0, scale = powf(2, (float) (round % 20) - 10);

                for (int i = 0; i < 32; i++) {
                        values[i] = case_uniform() * scale;
                        size = fmaxf(size, fabsf(values[i]));
                }
                for (size_t t = 0; t < HR_ARRAY_LENGTH(written); t++)
                        for (uint32_t s = 0; s < sets; s++) {
                                uint32_t type = written[t].type;

                                dots[s]->quantize[type](values, row, 32);
                                dots[s]->dequantize[type](row, back, 32);
                                for (int i = 0; i < 32; i++) /* half a step, but a whole at the
                                                              * short end of Q4_0 and Q5_0 */
                                        HR_EXPECT(fabsf(back[i] - values[i]) <=
                                                  size * written[t].step * 1.01f);
                        }
        }
}

HR_TEST(sets_write_the_same_blocks) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        enum { N = 32 * 37 };
        float values[N];
        uint8_t first[N * 2], other[N * 2];

        for (int i = 0; i < N; i++)
                values[i] = case_uniform() * powf(2, (float) (i / 32) - 20);
        memset(values, 0, 32 * sizeof values[0]);
        for (int i = 32; i < 64; i++)
                values[i] = -0.25f;
        for (size_t t = 0; t < HR_ARRAY_LENGTH(written); t++) {
                uint64_t bytes;

                HR_EXPECT(hr_type_row_bytes(written[t].type, N, &bytes));
                dots[0]->quantize[written[t].type](values, first, N);
                for (uint32_t s = 1; s < sets; s++) {
                        memset(other, 0x77, sizeof other);
                        dots[s]->quantize[written[t].type](values, other, N);
                        HR_EXPECT(memcmp(first, other, bytes) == 0);
                        HR_EXPECT_EQ(other[bytes], 0x77);
                }
        }
}

/* NaN, infinities and extremes are bytes like any other: no trap, no overrun. */
HR_TEST(blocks_of_anything) {
        static const float odd[] = {0, -0.0f, 1e38f, -3e38f, 1e-45f, 1e-39f};
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        float values[32], back[32];
        uint8_t row[66];

        for (int round = 0; round < 500; round++) {
                for (int i = 0; i < 32; i++) {
                        uint32_t pick = case_random() % 10;

                        values[i] = pick < HR_ARRAY_LENGTH(odd) ? odd[pick]
                                    : pick == 6                 ? NAN
                                    : pick == 7                 ? INFINITY
                                                                : -INFINITY;
                }
                for (size_t t = 0; t < HR_ARRAY_LENGTH(written); t++)
                        for (uint32_t s = 0; s < sets; s++) {
                                uint32_t type = written[t].type,
                                         bytes = hr_type_info(type)->block_bytes;

                                row[bytes] = 0x5a;
                                dots[s]->quantize[type](values, row, 32);
                                HR_EXPECT_EQ(row[bytes], 0x5a);
                                dots[s]->dequantize[type](row, back, 32);
                        }
        }
}

/* Types whose scales are searched for: near the source, the same bytes everywhere, anything goes
 * in. */
HR_TEST_LIMIT(searched_blocks, 120) {
        static const struct {
                uint32_t type;
                double nmse; /* of uniform numbers; a plain encoder stays above */
        } searched[] = {{HR_TYPE_Q2_K, 0.062},  {HR_TYPE_Q3_K, 0.017},   {HR_TYPE_Q4_K, 0.0035},
                        {HR_TYPE_Q5_K, 0.0009}, {HR_TYPE_Q6_K, 0.00022}, {HR_TYPE_IQ4_XS, 0.0043},
                        {HR_TYPE_MXFP4, 0.011},  {HR_TYPE_NVFP4, 0.007},   {HR_TYPE_Q2_0, 0.105},
                        {HR_TYPE_Q1_0, 0.27},   {HR_TYPE_TQ1_0, 0.125},   {HR_TYPE_TQ2_0, 0.125}};
        enum { N = 256 * 8 };
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        float values[N], back[N];
        uint8_t first[N], other[N];

        for (size_t t = 0; t < HR_ARRAY_LENGTH(searched); t++) {
                uint32_t type = searched[t].type;
                struct case_error error = {0};
                uint64_t bytes;

                HR_EXPECT(hr_type_row_bytes(type, N, &bytes));
                for (int i = 0; i < N; i++)
                        values[i] = case_uniform();
                dots[0]->quantize[type](values, first, N);
                dots[0]->dequantize[type](first, back, N);
                for (int i = 0; i < N; i++)
                        case_compare(&error, values[i], back[i]);
                if (!(case_nmse(&error) <= searched[t].nmse))
                        hr_test_fail(__FILE__, __LINE__, "%s: nmse %g", hr_type_name(type),
                                     case_nmse(&error));
                for (int i = 0; i < 256; i++) { /* zeros, constants, then no numbers at all */
                        values[i] = 0;
                        values[256 + i] = -3;
                        values[512 + i] = 2;
                        values[768 + i] = i % 7 ? case_uniform() : i % 2 ? NAN : -INFINITY;
                        values[1024 + i] = 1e38f * case_uniform();
                        values[1280 + i] = 1e-44f * (float) (i % 3);
                }
                for (uint32_t s = 0; s < sets; s++) {
                        memset(other, 0x5a, sizeof other);
                        dots[s]->quantize[type](values, other, N);
                        HR_EXPECT_EQ(other[bytes], 0x5a);
                        if (s == 0)
                                memcpy(first, other, sizeof first);
                        HR_EXPECT(memcmp(first, other, bytes) == 0);
                        dots[s]->dequantize[type](other, back, N);
                        for (int i = 0; i < 256; i++)
                                HR_EXPECT(back[i] == 0 && fabsf(back[256 + i] + 3) < 0.02f &&
                                          fabsf(back[512 + i] - 2) < 0.02f);
                }
        }
}

static const uint32_t read_types[] = {
        HR_TYPE_Q4_0,   HR_TYPE_Q4_1,    HR_TYPE_Q5_0,  HR_TYPE_Q5_1,    HR_TYPE_Q8_0,
        HR_TYPE_Q2_K,   HR_TYPE_Q3_K,    HR_TYPE_Q4_K,  HR_TYPE_Q5_K,    HR_TYPE_Q6_K,
        HR_TYPE_IQ4_NL, HR_TYPE_IQ1_S,   HR_TYPE_IQ1_M, HR_TYPE_IQ2_XXS, HR_TYPE_IQ2_XS,
        HR_TYPE_IQ2_S,  HR_TYPE_IQ3_XXS, HR_TYPE_IQ3_S, HR_TYPE_IQ4_XS,  HR_TYPE_TQ1_0,
        HR_TYPE_TQ2_0,  HR_TYPE_MXFP4,   HR_TYPE_NVFP4, HR_TYPE_Q1_0,    HR_TYPE_Q2_0};

HR_TEST_LIMIT(sets_read_the_same_values, 120) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        enum { N = 256 * 3 };
        float *first = case_memory(N * sizeof *first), *other = case_memory(N * sizeof *other);

        for (size_t t = 0; t < HR_ARRAY_LENGTH(read_types); t++)
                for (int round = 0; round < 50; round++) {
                        struct hr_operand row = case_operand(read_types[t], N, 1, 1, 1);

                        dots[0]->dequantize[row.type](row.data, first, N);
                        for (uint32_t s = 1; s < sets; s++) {
                                dots[s]->dequantize[row.type](row.data, other, N);
                                HR_EXPECT(memcmp(first, other, N * sizeof *first) == 0);
                        }
                }
        case_free_all();
}

/* Hand-made blocks: one known value at a time. */
HR_TEST(known_blocks) {
        const struct cpu_dot *dot = cpu_dot_select("portable");
        uint8_t block[210] = {0};
        float out[256];

        cpu_write_half(block, 0.5f); /* Q4_0: byte 3 holds elements 3 and 19 */
        block[2 + 3] = 0x9f;
        dot->dequantize[HR_TYPE_Q4_0](block, out, 32);
        HR_EXPECT(out[3] == 3.5f && out[19] == 0.5f && out[0] == -4.0f);

        memset(block, 0, sizeof block); /* Q6_K: element 70 = low nibble of byte 6, scale 4 */
        cpu_write_half(block + 208, 1.0f);
        block[192 + 4] = 3;
        block[6] = 0x50;
        block[128 + 6] = 2 << 4;
        dot->dequantize[HR_TYPE_Q6_K](block, out, 256);
        HR_EXPECT(out[70] == 3.0f * ((5 | 2 << 4) - 32));
        HR_EXPECT(out[71] == 3.0f * -32 && out[80] == 0.0f);

        memset(block, 0, sizeof block); /* Q4_K: group 5 has its factors in the packed half */
        cpu_write_half(block, 1.0f);
        cpu_write_half(block + 2, 2.0f);
        block[4 + 1] = 2 << 6;     /* high bits of scale 5 */
        block[4 + 5] = 1 << 6;     /* high bits of minimum 5 */
        block[4 + 9] = 7 | 3 << 4; /* low bits of both */
        block[16 + 64 + 8] = 0x60; /* element 160 + 8 */
        dot->dequantize[HR_TYPE_Q4_K](block, out, 256);
        HR_EXPECT(out[168] == (7 + 32) * 6.0f - 2.0f * (3 + 16));
}

/* Codebooks, odd scales, and the order of few bits. */
HR_TEST(known_blocks_of_few_levels) {
        const struct cpu_dot *dot = cpu_dot_select("portable");
        uint8_t block[256] = {0};
        float out[256];

        block[0] = 0; /* MXFP4: 2^-127; byte 5 holds elements 5 and 21 */
        block[1 + 5] = 0x7a;
        dot->dequantize[HR_TYPE_MXFP4](block, out, 32);
        HR_EXPECT(out[5] == -0x1p-127f && out[21] == 6 * 0x1p-127f && out[6] == 0);
        block[0] = 254;
        dot->dequantize[HR_TYPE_MXFP4](block, out, 32);
        HR_EXPECT(out[21] == INFINITY || out[21] == 6 * 0x1p127f);

        memset(block, 0, sizeof block); /* NVFP4: group 1 and its high nibbles */
        block[0] = 0x7f;
        block[1] = 0xb8; /* 1, with a bit that does not count */
        block[2] = 0x01; /* 2^-9 */
        block[4] = block[4 + 8 + 3] = block[4 + 16] = 0x57;
        dot->dequantize[HR_TYPE_NVFP4](block, out, 64);
        HR_EXPECT(out[0] == 0 && out[16 + 3] == 6 && out[16 + 8 + 3] == 3);
        HR_EXPECT(out[32] == 6 * 0x1p-9f);

        memset(block, 0, sizeof block); /* Q1_0: bit 3 of byte 9 is element 75 */
        cpu_write_half(block, 2);
        block[2 + 9] = 8;
        dot->dequantize[HR_TYPE_Q1_0](block, out, 128);
        HR_EXPECT(out[75] == 2 && out[74] == -2 && out[3] == -2);

        memset(block, 0, sizeof block); /* Q2_0: byte 2 holds elements 8 .. 11 */
        cpu_write_half(block, 2);
        block[2 + 2] = 0xe4;
        dot->dequantize[HR_TYPE_Q2_0](block, out, 64);
        HR_EXPECT(out[8] == -2 && out[9] == 0 && out[10] == 2 && out[11] == 4 && out[12] == -2);

        memset(block, 0, sizeof block); /* IQ1_M: scale 1 in pieces, an octet that goes down */
        block[48 + 5] = 0xc0;
        block[48 + 7] = 0x30;
        block[32] = 0x80;
        dot->dequantize[HR_TYPE_IQ1_M](block, out, 256);
        HR_EXPECT(out[0] == -0.875f && out[8] == -1.125f && out[255] == -0.875f);

        memset(block, 0, sizeof block); /* IQ2_XXS: sign index 1 negates elements 0 and 7 */
        cpu_write_half(block, 1);
        block[2 + 4] = 1;
        block[2 + 7] = 1 << 4;
        dot->dequantize[HR_TYPE_IQ2_XXS](block, out, 256);
        HR_EXPECT(out[0] == -3 && out[7] == -3 && out[1] == 3 && out[32] == 1);
}

/* All words of five digits, four at the end; both ternary types find the same levels. */
HR_TEST(ternary_digits) {
        const struct cpu_dot *dot = cpu_dot_select("portable");
        float values[256], back[256];
        uint8_t block[66];

        for (int number = 0; number < 243; number++) {
                for (int i = 0; i < 256; i++) {
                        int place = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
                        int rest = (number + i) % 243;

                        for (; place > 0; place--)
                                rest /= 3;
                        values[i] = 0.375f * (float) (rest % 3 - 1);
                }
                dot->quantize[HR_TYPE_TQ1_0](values, block, 256);
                dot->dequantize[HR_TYPE_TQ1_0](block, back, 256);
                HR_EXPECT(memcmp(values, back, sizeof values) == 0);
                dot->quantize[HR_TYPE_TQ2_0](values, block, 256);
                dot->dequantize[HR_TYPE_TQ2_0](block, back, 256);
                HR_EXPECT(memcmp(values, back, sizeof values) == 0);
        }
}
