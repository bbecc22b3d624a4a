/* See ops_check.h. */
#include "tests/unit/cpu/ops_check.h"

#include "backends/cpu/vec.h"

#include <string.h>

struct hr_step ops_step(uint32_t op, const int32_t *params, uint32_t source_count,
                        const struct hr_operand *sources, struct hr_operand result) {
        return (struct hr_step) { .op = op,
                                  .params = params,
                                  .result = result,
                                  .source_count = source_count,
                                  .sources = sources };
}

int ops_run(const struct cpu_kernel *kernel, const struct hr_step *step, const char *isa,
            uint32_t threads) {
        const struct cpu_dot *dot = cpu_dot_select(isa);

        case_vec = cpu_vec_select(isa);
        HR_EXPECT(dot && case_vec);
        return case_run(kernel, step, dot, threads);
}

static void compare(const struct hr_step *step, ops_reference_fn reference, double limit) {
        const int64_t *ne = step->result.ne;
        struct case_error error = { 0 };

        for (int64_t i3 = 0; i3 < ne[3]; i3++)
                for (int64_t i2 = 0; i2 < ne[2]; i2++)
                        for (int64_t i1 = 0; i1 < ne[1]; i1++)
                                for (int64_t i0 = 0; i0 < ne[0]; i0++)
                                        case_compare(&error, reference(step, i0, i1, i2, i3),
                                                     case_value(&step->result, i0, i1, i2, i3));
        if (!(case_nmse(&error) <= limit))
                hr_test_fail(__FILE__, __LINE__, "%s: nmse %g, at most %g", hr_op_name(step->op),
                             case_nmse(&error), limit);
}

void ops_check(const struct cpu_kernel *kernel, struct hr_step *step, ops_reference_fn reference,
               double limit) {
        static const uint32_t threads[] = { 1, 2, 3, 5 };
        const struct hr_operand shape = step->result;
        const struct cpu_dot *const *sets;
        uint32_t count;

        sets = case_sets(&count);
        for (uint32_t set = 0; set < count; set++) {
                const void *first = NULL;

                for (size_t i = 0; i < HR_ARRAY_LENGTH(threads); i++) {
                        struct hr_operand fresh = case_result(shape.type, shape.ne[0], shape.ne[1],
                                                              shape.ne[2], shape.ne[3]);

                        memcpy(fresh.nb, shape.nb, sizeof fresh.nb);
                        step->result = fresh;
                        HR_EXPECT_EQ(ops_run(kernel, step, sets[set]->name, threads[i]), 0);
                        case_check_bands(&step->result);
                        if (!first) {
                                first = fresh.data;
                                compare(step, reference, limit);
                        } else if (memcmp(first, fresh.data, fresh.room) != 0) {
                                hr_test_fail(__FILE__, __LINE__, "%s, %s: other bits, %u threads",
                                             hr_op_name(step->op), sets[set]->name, threads[i]);
                        }
                }
        }
}
