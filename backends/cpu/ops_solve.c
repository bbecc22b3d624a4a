/*
 * OUT_PROD, sums of outer products, and SOLVE_TRI, forward substitution. Both work on rows: a row
 * of the result takes multiples of rows one after the other, in a fixed order.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/matrix/share.h"
#include "backends/cpu/ops.h"

/* ---- OUT_PROD -------------------------------------------------------------------------------- */

/* result[., n, i2, i3] = sum over k of a[., k, ..] * b[n, k, i2, i3] */

static bool out_prod_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0];

        return step->source_count == 2 && cpu_any_dot()->dequantize[a->type] &&
               (cpu_is_float(a->type) || cpu_has_dense_rows(a)) &&
               step->sources[1].type == HR_TYPE_F32 && step->result.type == HR_TYPE_F32 &&
               cpu_has_dense_rows(&step->result);
}

static uint64_t out_prod_scratch(const struct hr_step *step, uint32_t threads) {
        return cpu_times(cpu_round_up(cpu_times((uint64_t) step->result.ne[0], sizeof(float))),
                         threads);
}

static uint32_t out_prod_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result),
                               (uint32_t) HR_MIN(step->sources[0].ne[1] * 2 + 8, UINT32_MAX));
}

static const float *any_row(const struct cpu_call *call, const struct hr_operand *a,
                            const uint8_t *row, float *spare) {
        if (cpu_is_float(a->type))
                return cpu_float_row(call->dot, a->type, row, a->nb[0], a->ne[0], spare);
        call->dot->dequantize[a->type](row, spare, a->ne[0]);
        return spare;
}

/* Rows first .. end-1 of one matrix of the result. */
static void out_prod_rows(const struct cpu_call *call, struct cpu_index matrix, int64_t first,
                          int64_t end, float *spare) {
        const struct hr_operand *a = &call->step->sources[0], *b = &call->step->sources[1];
        const struct hr_operand *result = &call->step->result;
        int64_t a2 = matrix.i2 / HR_MAX(result->ne[2] / HR_MAX(a->ne[2], 1), 1);
        int64_t a3 = matrix.i3 / HR_MAX(result->ne[3] / HR_MAX(a->ne[3], 1), 1);

        for (int64_t n = first; n < end; n++)
                memset(cpu_row(result, n, matrix.i2, matrix.i3), 0,
                       (size_t) result->ne[0] * sizeof(float));
        for (int64_t k = 0; k < a->ne[1]; k++) {
                const float *row = any_row(call, a, cpu_row(a, k, a2, a3), spare);

                for (int64_t n = first; n < end; n++) {
                        float factor;

                        memcpy(&factor,
                               cpu_row(b, k, matrix.i2, matrix.i3) + (uint64_t) n * b->nb[0],
                               sizeof factor);
                        call->vec->add_scaled(
                                result->ne[0],
                                (float *) (void *) cpu_row(result, n, matrix.i2, matrix.i3), row,
                                factor);
                }
        }
}

static void out_prod_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        uint64_t bytes = cpu_round_up((uint64_t) result->ne[0] * sizeof(float));
        float *spare = (float *) (void *) (call->scratch + call->thread * bytes);
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        while (first < end) {
                struct cpu_index at = cpu_index_of_row(result, first);
                int64_t count = HR_MIN(end - first, result->ne[1] - at.i1);

                out_prod_rows(call, at, at.i1, at.i1 + count, spare);
                first += count;
        }
}

const struct cpu_kernel cpu_kernel_out_prod = {
        .supports = out_prod_supports,
        .scratch = out_prod_scratch,
        .threads_max = out_prod_threads,
        .run = out_prod_run,
};

/* ---- SOLVE_TRI ------------------------------------------------------------------------------- */

/* a x = b with a lower triangle a[column, row]. Columns of b are independent of each other. */

#define SOLVE_COLUMNS 64

static bool solve_supports(const struct hr_step *step) {
        return step->source_count == 2 && step->sources[0].type == HR_TYPE_F32 &&
               step->sources[1].type == HR_TYPE_F32 && step->result.type == HR_TYPE_F32 &&
               cpu_has_dense_rows(&step->sources[0]) && cpu_has_dense_rows(&step->sources[1]) &&
               cpu_has_dense_rows(&step->result);
}

static uint32_t solve_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result),
                               (uint32_t) HR_MIN(step->result.ne[1] + 8, UINT32_MAX));
}

static void solve_block(const struct cpu_call *call, int64_t column, int64_t i2, int64_t i3) {
        const struct hr_operand *a = &call->step->sources[0], *b = &call->step->sources[1];
        const struct hr_operand *result = &call->step->result;
        int64_t n = HR_MIN(result->ne[0] - column, (int64_t) SOLVE_COLUMNS);

        for (int64_t row = 0; row < result->ne[1]; row++) {
                const float *factors = (const float *) (const void *) cpu_row(a, row, i2, i3);
                float *out = (float *) (void *) cpu_row(result, row, i2, i3) + column;

                memcpy(out, (const float *) (const void *) cpu_row(b, row, i2, i3) + column,
                       (size_t) n * sizeof *out);
                for (int64_t known = 0; known < row; known++)
                        call->vec->add_scaled(
                                n, out,
                                (float *) (void *) cpu_row(result, known, i2, i3) + column,
                                -factors[known]);
                for (int64_t i = 0; i < n; i++)
                        out[i] /= factors[row];
        }
}

static void solve_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        int64_t blocks = (result->ne[0] + SOLVE_COLUMNS - 1) / SOLVE_COLUMNS, first, end;

        cpu_share(call, blocks * result->ne[2] * result->ne[3], 1, &first, &end);
        for (int64_t item = first; item < end; item++)
                solve_block(call, item % blocks * SOLVE_COLUMNS, item / blocks % result->ne[2],
                            item / blocks / result->ne[2]);
}

const struct cpu_kernel cpu_kernel_solve_tri = {
        .supports = solve_supports,
        .threads_max = solve_threads,
        .run = solve_run,
};
