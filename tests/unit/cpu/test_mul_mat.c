/* MUL_MAT and MUL_MAT_ID as kernels: shapes, broadcasts, permuted operands, teams, bad ids. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/unit/cpu/kernel_case.h"

static const uint32_t types[] = {HR_TYPE_F32,     HR_TYPE_F16,    HR_TYPE_BF16,  HR_TYPE_Q4_0,
                                 HR_TYPE_Q4_1,    HR_TYPE_Q5_0,   HR_TYPE_Q5_1,  HR_TYPE_Q8_0,
                                 HR_TYPE_IQ4_NL,  HR_TYPE_Q2_K,   HR_TYPE_Q3_K,  HR_TYPE_Q4_K,
                                 HR_TYPE_Q5_K,    HR_TYPE_Q6_K,   HR_TYPE_IQ1_S, HR_TYPE_IQ1_M,
                                 HR_TYPE_IQ2_XXS, HR_TYPE_IQ2_XS, HR_TYPE_IQ2_S, HR_TYPE_IQ3_XXS,
                                 HR_TYPE_IQ3_S,   HR_TYPE_IQ4_XS, HR_TYPE_TQ1_0, HR_TYPE_TQ2_0,
                                 HR_TYPE_MXFP4,   HR_TYPE_NVFP4,  HR_TYPE_Q1_0,  HR_TYPE_Q2_0};
static const int32_t no_params[HR_OP_PARAM_WORDS];

/* Rounding activations costs this much against exact sums. */
static double allowed(uint32_t type) {
        switch (cpu_partner_type(type)) {
        case HR_TYPE_F32:
                return 1e-12;
        case HR_TYPE_F16:
                return 1e-6;
        case HR_TYPE_Q8_K:
                return 2e-4;
        default:
                return 1e-4;
        }
}

static struct hr_step product_step(struct hr_operand sources[2], struct hr_operand result) {
        return (struct hr_step){.op = HR_OP_MUL_MAT,
                                .params = no_params,
                                .result = result,
                                .source_count = 2,
                                .sources = sources};
}

/* One exact result, and the sum of the squares of its products. */
static double exact_sum(const struct hr_operand *a, int64_t m, const struct hr_operand *b,
                        int64_t n, int64_t i2, int64_t i3, double *ret_squares) {
        int64_t a2 = i2 / (b->ne[2] / a->ne[2]), a3 = i3 / (b->ne[3] / a->ne[3]);
        double *weights = malloc((size_t) (a->ne[0] + 1) * sizeof *weights), sum = 0;

        HR_EXPECT(weights != NULL);
        case_row(a, m, a2, a3, weights);
        for (int64_t i = 0; i < a->ne[0]; i++) {
                double product = weights[i] * case_value(b, i, n, i2, i3);

                sum += product;
                *ret_squares += product * product;
        }
        free(weights);
        return sum;
}

struct exact {
        double sum, squares;
};

/* Every result, in the order of the result's elements; the caller frees them. */
static struct exact *exact_sums(const struct hr_operand *a, const struct hr_operand *b) {
        const size_t count = (size_t) (a->ne[1] * b->ne[1] * b->ne[2] * b->ne[3]);
        struct exact *sums = calloc(count + 1, sizeof *sums), *at = sums;

        HR_EXPECT(sums != NULL);
        for (int64_t i3 = 0; i3 < b->ne[3]; i3++)
                for (int64_t i2 = 0; i2 < b->ne[2]; i2++)
                        for (int64_t n = 0; n < b->ne[1]; n++)
                                for (int64_t m = 0; m < a->ne[1]; m++, at++)
                                        at->sum = exact_sum(a, m, b, n, i2, i3, &at->squares);
        return sums;
}

static struct case_error product_error(const struct exact *sums, const struct hr_operand *out) {
        struct case_error error = {0};

        for (int64_t i3 = 0; i3 < out->ne[3]; i3++)
                for (int64_t i2 = 0; i2 < out->ne[2]; i2++)
                        for (int64_t n = 0; n < out->ne[1]; n++)
                                for (int64_t m = 0; m < out->ne[0]; m++, sums++) {
                                        case_compare(&error, sums->sum,
                                                     case_value(out, m, n, i2, i3));
                                        /* products may cancel, their errors do not */
                                        error.reference += sums->squares;
                                }
        return error;
}

/* Runs on every set and several teams; all teams must give the same bits, near the exact sums. */
static void check_product(struct hr_operand a, struct hr_operand b) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_product_sets(&sets);
        struct hr_operand sources[2] = {a, b};
        struct exact *sums = exact_sums(&a, &b);

        for (uint32_t s = 0; s < sets; s++) {
                struct hr_operand out[3];
                struct case_error error;

                for (uint32_t threads = 1; threads <= 3; threads++) {
                        struct hr_step step;

                        out[threads - 1] =
                                case_result(HR_TYPE_F32, a.ne[1], b.ne[1], b.ne[2], b.ne[3]);
                        step = product_step(sources, out[threads - 1]);
                        HR_EXPECT_EQ(case_run(&cpu_kernel_mul_mat, &step, dots[s], threads), 0);
                        case_check_bands(&out[threads - 1]);
                        HR_EXPECT(memcmp(out[0].data, out[threads - 1].data, out[0].room) == 0);
                }
                error = product_error(sums, &out[0]);
                if (!(case_nmse(&error) <= allowed(a.type)))
                        hr_test_fail(__FILE__, __LINE__, "%s %s: nmse %g", dots[s]->name,
                                     hr_type_name(a.type), case_nmse(&error));
        }
        free(sums);
}

HR_TEST_LIMIT(products_of_every_type, 120) {
        for (size_t t = 0; t < HR_ARRAY_LENGTH(types); t++) {
                int64_t block = hr_type_info(types[t])->block_elements;
                int64_t k = block == 32 ? 96 : block > 32 ? 2 * block : 77;

                for (int64_t m = 1; m <= 37; m += 9)
                        for (int64_t n = 1; n <= 11; n += 5) {
                                check_product(case_operand(types[t], k, m, 1, 1),
                                              case_operand(HR_TYPE_F32, k, n, 1, 1));
                                case_free_all();
                        }
        }
}

HR_TEST_LIMIT(products_in_batches, 120) {
        for (size_t t = 0; t < 5; t++) { /* weights shared by two and three batches */
                int64_t k = 64;

                check_product(case_operand(types[t], k, 9, 2, 1),
                              case_operand(HR_TYPE_F32, k, 3, 4, 3));
                check_product(case_operand(types[t], k, 9, 1, 2),
                              case_operand(HR_TYPE_F32, k, 1, 3, 2));
                case_free_all();
        }
}

HR_TEST_LIMIT(permuted_operands, 120) {
        static const uint32_t floats[] = {HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_BF16};

        for (size_t t = 0; t < HR_ARRAY_LENGTH(floats); t++) {
                struct hr_operand a = case_swap(case_operand(floats[t], 33, 3, 5, 2), 1, 2);
                struct hr_operand b = case_swap(case_operand(HR_TYPE_F32, 33, 6, 7, 2), 1, 2);

                b.ne[2] = b.ne[2] / a.ne[2] * a.ne[2];
                check_product(a, b);
                /* activations whose elements are not neighbours */
                a = case_operand(floats[t], 33, 4, 1, 1);
                b = case_swap(case_operand(HR_TYPE_F32, 5, 33, 1, 1), 0, 1);
                check_product(a, b);
                /* activations of the weights' own type */
                check_product(a, case_operand(floats[t], 33, 9, 1, 1));
                case_free_all();
        }
        check_product(case_operand(HR_TYPE_Q4_1, 64, 4, 1, 1),
                      case_swap(case_operand(HR_TYPE_F32, 5, 64, 1, 1), 0, 1));
        check_product(case_swap(case_operand(HR_TYPE_Q8_0, 64, 3, 6, 1), 1, 2),
                      case_operand(HR_TYPE_F32, 64, 2, 3, 1));
        case_free_all();
}

/* Column blocks: more columns than one block of the cache holds. */
HR_TEST_LIMIT(wide_products, 120) {
        check_product(case_operand(HR_TYPE_Q8_0, 2048, 5, 1, 1),
                      case_operand(HR_TYPE_F32, 2048, 300, 1, 1));
        check_product(case_operand(HR_TYPE_F32, 2048, 3, 1, 1),
                      case_operand(HR_TYPE_F32, 2048, 61, 1, 1));
        case_free_all();
}

HR_TEST(empty_products) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_product_sets(&sets);
        struct hr_operand sources[2] = {case_operand(HR_TYPE_F32, 0, 3, 1, 1),
                                        case_operand(HR_TYPE_F32, 0, 2, 1, 1)};
        struct hr_operand out = case_result(HR_TYPE_F32, 3, 2, 1, 1);
        struct hr_step step = product_step(sources, out);

        for (uint32_t s = 0; s < sets; s++) {
                case_run(&cpu_kernel_mul_mat, &step, dots[s], 2);
                for (int i = 0; i < 6; i++)
                        HR_EXPECT(((float *) out.data)[i] == 0);
        }
        sources[1] = case_operand(HR_TYPE_F32, 0, 0, 1, 1);
        step.result = case_result(HR_TYPE_F32, 3, 0, 1, 1);
        case_run(&cpu_kernel_mul_mat, &step, dots[0], 2);
        case_check_bands(&step.result);
}

/* A column's bits do not depend on how many others there are. */
HR_TEST_LIMIT(columns_keep_their_bits, 120) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_product_sets(&sets);
        enum { N = 23, M = 21 };

        for (uint32_t s = 0; s < sets; s++)
                for (size_t t = 0; t < HR_ARRAY_LENGTH(types); t++) {
                        int64_t block = hr_type_info(types[t])->block_elements;
                        /* 32-blocks: a stretch of eight, and some left */
                        int64_t k = block > 32 ? 2 * block : 352;
                        struct hr_operand sources[2] = {case_operand(types[t], k, M, 1, 1),
                                                        case_operand(HR_TYPE_F32, k, N, 1, 1)};
                        struct hr_operand all = case_result(HR_TYPE_F32, M, N, 1, 1);
                        struct hr_step step = product_step(sources, all);

                        case_run(&cpu_kernel_mul_mat, &step, dots[s], 2);
                        for (int c = 0; c < N; c++) {
                                struct hr_operand one[2] = {sources[0], sources[1]};

                                one[1].ne[1] = 1;
                                one[1].data = (uint8_t *) one[1].data + one[1].nb[1] * (uint64_t) c;
                                step = product_step(one, case_result(HR_TYPE_F32, M, 1, 1, 1));
                                case_run(&cpu_kernel_mul_mat, &step, dots[s], 1);
                                HR_EXPECT(memcmp(step.result.data, (float *) all.data + M * c,
                                                 M * sizeof(float)) == 0);
                        }
                        case_free_all();
                }
}

/* ---- Experts --------------------------------------------------------------------------------- */

static void check_experts(uint32_t type, int64_t slots, int64_t tokens, bool shared, int bad) {
        enum { K = 256, M = 19, EXPERTS = 5 };
        static double weights[EXPERTS][M][K];
        uint32_t sets;
        const struct cpu_dot *const *dots = case_product_sets(&sets);
        struct hr_operand sources[3] = {case_operand(type, K, M, EXPERTS, 1),
                                        case_operand(HR_TYPE_F32, K, shared ? 1 : slots, tokens, 1),
                                        case_operand(HR_TYPE_I32, slots, tokens, 1, 1)};
        int32_t *ids = sources[2].data;

        for (int64_t i = 0; i < slots * tokens; i++)
                ids[i] = (int32_t) (case_random() % (EXPERTS - 1)); /* the last one stays unused */
        if (bad)
                ids[slots * tokens / 2] = bad;
        for (int64_t e = 0; e < EXPERTS; e++)
                for (int64_t m = 0; m < M; m++)
                        case_row(&sources[0], m, e, 0, weights[e][m]);
        for (uint32_t s = 0; s < sets; s++) {
                struct hr_operand out[2];
                struct case_error error = {0};

                for (uint32_t threads = 1; threads <= 2; threads++) {
                        struct hr_step step = {.op = HR_OP_MUL_MAT_ID,
                                               .params = no_params,
                                               .source_count = 3,
                                               .sources = sources};

                        step.result = out[threads - 1] =
                                case_result(HR_TYPE_F32, M, slots, tokens, 1);
                        HR_EXPECT_EQ(case_run(&cpu_kernel_mul_mat_id, &step, dots[s], threads),
                                     bad ? 1 : 0);
                        case_check_bands(&step.result);
                }
                HR_EXPECT(memcmp(out[0].data, out[1].data, out[0].room) == 0);
                for (int64_t i = 0; i < slots * tokens; i++)
                        for (int64_t m = 0; m < M && ids[i] >= 0 && ids[i] < EXPERTS; m++) {
                                double sum = 0;

                                for (int64_t k = 0; k < K; k++)
                                        sum += weights[ids[i]][m][k] *
                                               case_value(&sources[1], k, shared ? 0 : i % slots,
                                                          i / slots, 0);
                                case_compare(&error, sum,
                                             case_value(&out[0], m, i % slots, i / slots, 0));
                        }
                HR_EXPECT(case_nmse(&error) <= allowed(type));
        }
        case_free_all();
}

HR_TEST_LIMIT(experts, 120) {
        static const uint32_t some[] = {HR_TYPE_F32,  HR_TYPE_F16,   HR_TYPE_Q4_1,   HR_TYPE_Q8_0,
                                        HR_TYPE_Q6_K, HR_TYPE_MXFP4, HR_TYPE_IQ3_XXS};

        for (size_t t = 0; t < HR_ARRAY_LENGTH(some); t++) {
                check_experts(some[t], 1, 1, false, 0);
                check_experts(some[t], 3, 1, true, 0);
                check_experts(some[t], 2, 17, false, 0);
                check_experts(some[t], 4, 33, true, 0);
        }
}

HR_TEST_LIMIT(expert_ids_are_checked, 120) {
        static const int bad[] = {5, -1, INT32_MAX, INT32_MIN};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(bad); i++)
                check_experts(HR_TYPE_Q8_0, 2, 5, false, bad[i]);
}

HR_TEST(unsupported_products) {
        struct hr_operand sources[2] = {case_operand(HR_TYPE_I32, 32, 2, 1, 1),
                                        case_operand(HR_TYPE_F32, 32, 2, 1, 1)};
        struct hr_step step = product_step(sources, case_result(HR_TYPE_F32, 2, 2, 1, 1));

        HR_EXPECT(!cpu_kernel_mul_mat.supports(&step));
        sources[0] = case_swap(case_operand(HR_TYPE_F32, 2, 32, 1, 1), 0, 1);
        HR_EXPECT(!cpu_kernel_mul_mat.supports(&step)); /* weight elements apart */
        sources[0] = case_operand(HR_TYPE_Q8_0, 32, 2, 1, 1);
        sources[1] = case_operand(HR_TYPE_Q8_0, 32, 2, 1, 1);
        HR_EXPECT(!cpu_kernel_mul_mat.supports(&step));
        sources[1] = case_operand(HR_TYPE_F16, 32, 2, 1, 1);
        HR_EXPECT(cpu_kernel_mul_mat.supports(&step));
}
