/* GET_ROWS and SET_ROWS as kernels: types, broadcasts, bad indices. */
#include <string.h>

#include "tests/harness.h"
#include "tests/unit/cpu/kernel_case.h"

static const uint32_t types[] = {HR_TYPE_F32,  HR_TYPE_F16,  HR_TYPE_BF16,
                                 HR_TYPE_Q4_0, HR_TYPE_Q4_1, HR_TYPE_Q5_0,
                                 HR_TYPE_Q5_1, HR_TYPE_Q8_0, HR_TYPE_IQ4_NL};

static int run_step(const struct cpu_kernel *kernel, const struct cpu_dot *dot,
                    struct hr_operand *sources, uint32_t count, struct hr_operand result,
                    uint32_t threads) {
        struct hr_step step = {.result = result, .source_count = count, .sources = sources};
        int refused = case_run(kernel, &step, dot, threads);

        case_check_bands(&result);
        return refused;
}

static void get(uint32_t type, int64_t columns, int32_t bad) {
        enum { ROWS = 7, PICKS = 5, B1 = 2, B2 = 3 };
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        struct hr_operand sources[2] = {case_operand(type, columns, ROWS, B1, B2),
                                        case_operand(HR_TYPE_I32, PICKS, B1, B2, 1)};
        uint32_t to = type == HR_TYPE_I32 ? HR_TYPE_I32 : HR_TYPE_F32;
        int32_t *ids = sources[1].data;

        for (int i = 0; i < PICKS * B1 * B2; i++)
                ids[i] = (int32_t) (case_random() % ROWS);
        if (bad)
                ids[13] = bad;
        for (uint32_t s = 0; s < sets; s++)
                for (uint32_t threads = 1; threads <= 3; threads++) {
                        struct hr_operand out = case_result(to, columns, PICKS, B1, B2);

                        HR_EXPECT_EQ(
                                run_step(&cpu_kernel_get_rows, dots[s], sources, 2, out, threads),
                                bad ? 1 : 0);
                        for (int64_t i = 0; i < PICKS * B1 * B2; i++)
                                for (int64_t c = 0; c < columns && ids[i] >= 0 && ids[i] < ROWS;
                                     c++)
                                        HR_EXPECT(case_value(&out, c, i % PICKS, i / PICKS % B1,
                                                             i / PICKS / B1) ==
                                                  case_value(&sources[0], c, ids[i], i / PICKS % B1,
                                                             i / PICKS / B1));
                }
        case_free_all();
}

HR_TEST_LIMIT(get_rows_of_every_type, 120) {
        for (size_t t = 0; t < HR_ARRAY_LENGTH(types); t++)
                get(types[t], hr_type_info(types[t])->is_block ? 96 : 5, 0);
        get(HR_TYPE_Q4_K, 256, 0);
        get(HR_TYPE_Q6_K, 512, 0);
        get(HR_TYPE_IQ2_S, 512, 0);
        get(HR_TYPE_NVFP4, 192, 0);
        get(HR_TYPE_Q1_0, 128, 0);
        get(HR_TYPE_I32, 3, 0);
}

HR_TEST(get_rows_checks_ids) {
        static const int32_t bad[] = {7, -1, INT32_MAX, INT32_MIN};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(bad); i++)
                get(HR_TYPE_Q8_0, 64, bad[i]);
}

/* Rows set, then read back through what a single row quantised alone gives. */
static void set(uint32_t from, uint32_t to, uint32_t id_type, int64_t bad) {
        enum { COLUMNS = 64, ROWS = 11, VALUES = 4, D2 = 4, D3 = 2 };
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        struct hr_operand sources[3] = {case_operand(from, COLUMNS, VALUES, D2, D3),
                                        case_operand(id_type, VALUES, D2 / 2, 1, 1),
                                        {.type = to}};
        int64_t wanted[VALUES * D2 / 2];
        uint64_t row_bytes;

        HR_EXPECT(hr_type_row_bytes(to, COLUMNS, &row_bytes));
        for (int i = 0; i < VALUES * D2 / 2; i++) {
                wanted[i] = (i * 5 + 3) % ROWS; /* distinct within each group of VALUES */
                if (bad && i == 6)
                        wanted[i] = bad;
                if (id_type == HR_TYPE_I32)
                        ((int32_t *) sources[1].data)[i] = (int32_t) wanted[i];
                else
                        ((int64_t *) sources[1].data)[i] = wanted[i];
        }
        for (uint32_t s = 0; s < sets; s++)
                for (uint32_t threads = 1; threads <= 3; threads++) {
                        struct hr_operand out = case_result(to, COLUMNS, ROWS, D2, D3);
                        int written = 0, kept = 0;
                        uint8_t row[COLUMNS * 4], untouched[COLUMNS * 4];

                        memset(untouched, 0xa5, sizeof untouched);
                        sources[2] = out;
                        run_step(&cpu_kernel_set_rows, dots[s], sources, 3, out, threads);
                        for (int64_t i3 = 0; i3 < D3; i3++)
                                for (int64_t i2 = 0; i2 < D2; i2++)
                                        for (int64_t r = 0; r < ROWS; r++) {
                                                const uint8_t *at = (uint8_t *) out.data +
                                                                    (uint64_t) r * out.nb[1] +
                                                                    (uint64_t) i2 * out.nb[2] +
                                                                    (uint64_t) i3 * out.nb[3];
                                                float values[COLUMNS];
                                                int64_t pick = -1;

                                                for (int64_t i = 0; i < VALUES; i++)
                                                        if (wanted[i2 % 2 * VALUES + i] == r)
                                                                pick = i;
                                                if (pick < 0) {
                                                        HR_EXPECT(
                                                                !memcmp(at, untouched, row_bytes));
                                                        kept++;
                                                        continue;
                                                }
                                                for (int64_t c = 0; c < COLUMNS; c++)
                                                        values[c] = (float) case_value(
                                                                &sources[0], c, pick, i2, i3);
                                                dots[0]->quantize[to](values, row, COLUMNS);
                                                HR_EXPECT(!memcmp(at, row, row_bytes));
                                                written++;
                                        }
                        HR_EXPECT_EQ(written, VALUES * D2 * D3 - (bad ? D2 / 2 * D3 : 0));
                        HR_EXPECT_EQ(written + kept, ROWS * D2 * D3);
                }
        case_free_all();
}

HR_TEST_LIMIT(set_rows_of_every_type, 120) {
        for (size_t t = 0; t < HR_ARRAY_LENGTH(types); t++) {
                set(HR_TYPE_F32, types[t], HR_TYPE_I64, 0);
                set(HR_TYPE_F16, types[t], HR_TYPE_I32, 0);
        }
}

HR_TEST_LIMIT(set_rows_checks_ids, 120) {
        static const int64_t bad[] = {11, -1, INT64_MAX, INT64_MIN};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(bad); i++)
                set(HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_I64, bad[i]);
        set(HR_TYPE_F32, HR_TYPE_Q8_0, HR_TYPE_I32, INT32_MIN);
}

/* A row named twice holds the later value, for any team. */
HR_TEST(set_rows_named_twice) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        struct hr_operand sources[3] = {case_operand(HR_TYPE_F32, 300, 40, 1, 1),
                                        case_operand(HR_TYPE_I64, 40, 1, 1, 1)};

        for (int i = 0; i < 40; i++)
                ((int64_t *) sources[1].data)[i] = i % 3;
        for (uint32_t s = 0; s < sets; s++)
                for (uint32_t threads = 1; threads <= 4; threads++) {
                        sources[2] = case_result(HR_TYPE_F32, 300, 3, 1, 1);
                        run_step(&cpu_kernel_set_rows, dots[s], sources, 3, sources[2], threads);
                        for (int r = 0; r < 3; r++) {
                                int last = r == 0 ? 39 : 36 + r;

                                HR_EXPECT(!memcmp((float *) sources[2].data + 300 * r,
                                                  (float *) sources[0].data + 300 * last,
                                                  300 * sizeof(float)));
                        }
                        case_free_all();
                        sources[0] = case_operand(HR_TYPE_F32, 300, 40, 1, 1);
                        sources[1] = case_operand(HR_TYPE_I64, 40, 1, 1, 1);
                        for (int i = 0; i < 40; i++)
                                ((int64_t *) sources[1].data)[i] = i % 3;
                }
}

/* Rows of one element, as a transposed cache is written. */
HR_TEST(rows_of_one_element) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        struct hr_operand sources[3] = {case_operand(HR_TYPE_F32, 1, 50, 1, 1),
                                        case_operand(HR_TYPE_I64, 50, 1, 1, 1)};

        for (int i = 0; i < 50; i++)
                ((int64_t *) sources[1].data)[i] = 97 - i;
        for (uint32_t s = 0; s < sets; s++) {
                sources[2] = case_result(HR_TYPE_F16, 1, 100, 1, 1);
                run_step(&cpu_kernel_set_rows, dots[s], sources, 3, sources[2], 2);
                for (int i = 0; i < 50; i++) {
                        double difference = case_value(&sources[2], 0, 97 - i, 0, 0) -
                                            case_value(&sources[0], 0, i, 0, 0);

                        HR_EXPECT(difference * difference < 1e-6);
                }
        }
}
