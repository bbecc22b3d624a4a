/* CPY, CONT, DUP as kernels: every pair of types and layouts, in logical order. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/unit/cpu/kernel_case.h"

static const struct cpu_dot *const *dots;
static uint32_t sets;

/* Copies with every set and team; out keeps the last result. */
static void copy(struct hr_operand from, struct hr_operand *out) {
        uint8_t *first = NULL;

        dots = case_sets(&sets);
        for (uint32_t s = 0; s < sets; s++)
                for (uint32_t threads = 1; threads <= 3; threads++) {
                        struct hr_step step = {.op = HR_OP_CPY,
                                               .result = *out,
                                               .source_count = 1,
                                               .sources = &from};

                        memset(out->data, 0, out->room);
                        HR_EXPECT_EQ(case_run(&cpu_kernel_cpy, &step, dots[s], threads), 0);
                        case_check_bands(out);
                        if (!first) {
                                first = malloc(out->room + 1);
                                HR_EXPECT(first != NULL);
                                memcpy(first, out->data, out->room);
                        }
                        HR_EXPECT(memcmp(first, out->data, out->room) == 0);
                }
        free(first);
}

static void place(const struct hr_operand *operand, int64_t index, int64_t ret_at[4]) {
        for (int d = 0; d < 4; d++) {
                ret_at[d] = index % operand->ne[d];
                index /= operand->ne[d];
        }
}

/* Element i of one is element i of the other, up to `step` of rounding. */
static void check_equal(const struct hr_operand *from, const struct hr_operand *out, double step) {
        int64_t count = from->ne[0] * from->ne[1] * from->ne[2] * from->ne[3], a[4], b[4];

        for (int64_t i = 0; i < count; i++) {
                double x, y;

                place(from, i, a);
                place(out, i, b);
                x = case_value(from, a[0], a[1], a[2], a[3]);
                y = case_value(out, b[0], b[1], b[2], b[3]);
                if (!(fabs(x - y) <= step * fmax(1, fabs(x))))
                        hr_test_fail(__FILE__, __LINE__, "%s to %s, element %lld: %g, not %g",
                                     hr_type_name(from->type), hr_type_name(out->type),
                                     (long long) i, y, x);
        }
}

static double rounding(uint32_t from, uint32_t to) {
        if (from == to || to == HR_TYPE_F32)
                return 0;
        return to == HR_TYPE_F16 ? 0x1p-11 : to == HR_TYPE_BF16 ? 0x1p-8 : 1;
}

HR_TEST_LIMIT(plain_types, 120) {
        static const uint32_t types[] = {HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_BF16, HR_TYPE_I32};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(types); i++)
                for (size_t j = 0; j < HR_ARRAY_LENGTH(types); j++) {
                        struct hr_operand from = case_operand(types[i], 13, 7, 5, 11), out;
                        double step = rounding(types[i], types[j]);

                        out = case_result(types[j], 13, 7, 5, 11);
                        copy(from, &out);
                        check_equal(&from, &out, step);
                        /* permuted source, another shape */
                        from = case_swap(case_swap(from, 0, 2), 1, 3);
                        out = case_result(types[j], 11, 65, 7, 1);
                        copy(from, &out);
                        check_equal(&from, &out, step);
                        /* permuted target */
                        out = case_swap(case_result(types[j], 7, 55, 13, 1), 0, 1);
                        copy(from, &out);
                        check_equal(&from, &out, step);
                        case_free_all();
                }
}

HR_TEST(integers_of_every_size) {
        static const uint32_t types[] = {HR_TYPE_I8, HR_TYPE_I16, HR_TYPE_I32, HR_TYPE_I64,
                                         HR_TYPE_F64};

        for (size_t t = 0; t < HR_ARRAY_LENGTH(types); t++) {
                struct hr_operand from = case_swap(case_operand(types[t], 9, 20, 3, 1), 0, 1), out;
                uint64_t size = hr_type_info(types[t])->block_bytes;

                out = case_result(types[t], 20, 9, 3, 1);
                copy(from, &out);
                for (int64_t i = 0; i < 540; i++) {
                        int64_t at[4];

                        place(&from, i, at);
                        HR_EXPECT(!memcmp((uint8_t *) out.data + (uint64_t) i * size,
                                          (uint8_t *) from.data + (uint64_t) at[0] * from.nb[0] +
                                                  (uint64_t) at[1] * from.nb[1] +
                                                  (uint64_t) at[2] * from.nb[2],
                                          size));
                }
        }
        case_free_all();
}

HR_TEST_LIMIT(block_rows, 120) {
        static const uint32_t types[] = {HR_TYPE_Q4_0, HR_TYPE_Q4_1,   HR_TYPE_Q5_0, HR_TYPE_Q5_1,
                                         HR_TYPE_Q8_0, HR_TYPE_IQ4_NL, HR_TYPE_Q4_K, HR_TYPE_Q6_K};

        for (size_t t = 0; t < HR_ARRAY_LENGTH(types); t++) {
                int64_t row = hr_type_info(types[t])->block_elements * 3;
                struct hr_operand from = case_swap(case_operand(types[t], row, 4, 5, 2), 1, 2), out;

                out = case_result(types[t], row, 5, 4, 2); /* bytes */
                copy(from, &out);
                check_equal(&from, &out, 0);
                out = case_result(HR_TYPE_F32, 20, row, 2, 1); /* values */
                copy(from, &out);
                check_equal(&from, &out, 0);
                out = case_swap(case_result(HR_TYPE_F32, 5, row, 4, 2), 0, 1);
                copy(from, &out);
                check_equal(&from, &out, 0);
                case_free_all();
        }
        for (size_t t = 0; t < 6; t++) { /* those that can be written */
                struct hr_operand from = case_swap(case_operand(HR_TYPE_F32, 6, 96, 5, 1), 0, 1),
                                  out;

                out = case_result(types[t], 32, 18, 5, 1);
                copy(from, &out);
                check_equal(&from, &out, 0.25);
                from = case_operand(HR_TYPE_Q8_0, 96, 6, 1, 1);
                out = case_result(types[t], 64, 9, 1, 1);
                copy(from, &out);
                check_equal(&from, &out, 8);
                case_free_all();
        }
}

HR_TEST(float_to_integer) {
        static const float values[] = {1.9f,      -1.9f, 3e9f, -3e9f,    INFINITY,
                                       -INFINITY, NAN,   0.5f, 16777216, -2147483648.0f};
        static const int32_t expected[] = {1,         -1, INT32_MAX, INT32_MIN, INT32_MAX,
                                           INT32_MIN, 0,  0,         16777216,  INT32_MIN};
        enum { N = HR_ARRAY_LENGTH(values) };
        struct hr_operand from = case_operand(HR_TYPE_F32, N, 1, 1, 1);
        struct hr_operand out = case_result(HR_TYPE_I32, N, 1, 1, 1);

        memcpy(from.data, values, sizeof values);
        copy(from, &out);
        for (int i = 0; i < N; i++)
                HR_EXPECT_EQ(((int32_t *) out.data)[i], expected[i]);
        case_free_all();
}

HR_TEST(unsupported_copies) {
        struct hr_operand from = case_operand(HR_TYPE_F32, 256, 2, 1, 1);
        struct hr_step step = {.result = case_result(HR_TYPE_I8, 256, 2, 1, 1),
                               .source_count = 1,
                               .sources = &from};

        HR_EXPECT(!cpu_kernel_cpy.supports(&step));
        from = case_operand(HR_TYPE_I64, 256, 2, 1, 1);
        step.result = case_result(HR_TYPE_F32, 256, 2, 1, 1);
        HR_EXPECT(!cpu_kernel_cpy.supports(&step));
        step.result = case_result(HR_TYPE_Q8_1, 256, 2, 1, 1); /* activations only */
        from = case_operand(HR_TYPE_F32, 256, 2, 1, 1);
        HR_EXPECT(!cpu_kernel_cpy.supports(&step));
}
