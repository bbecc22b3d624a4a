/*
 * SUM, SUM_ROWS, MEAN, CUMSUM, ARGMAX, COUNT_EQUAL. Sums run in f64; the order of additions depends
 * on the shape alone.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

#include <math.h>
#include <string.h>

static uint32_t one_thread(const struct hr_step *step) {
        return 1;
}

static uint32_t row_threads(const struct hr_step *step) {
        uint32_t threads = cpu_threads_for(cpu_elements(&step->sources[0]), 4);
        int64_t rows = cpu_rows(&step->sources[0]);

        return rows < (int64_t) threads ? (uint32_t) HR_MAX(rows, 1) : threads;
}

static double row_sum(const struct cpu_vec *vec, const struct hr_operand *source,
                      const uint8_t *row) {
        float buffer[CPU_CHUNK];
        double sum = 0;

        for (int64_t first = 0; first < source->ne[0]; first += CPU_CHUNK) {
                int64_t n = HR_MIN(source->ne[0] - first, (int64_t) CPU_CHUNK);

                sum += vec->sum(n, cpu_load(vec, source, row, first, n, buffer));
        }
        return sum;
}

/* ---- SUM ------------------------------------------------------------------------------------- */

static bool sum_supports(const struct hr_step *step) {
        return step->source_count == 1 && cpu_is_float(step->sources[0].type) &&
               cpu_is_float(step->result.type) && cpu_elements(&step->result) == 1;
}

static void sum_run(const struct cpu_call *call) {
        const struct hr_operand *source = &call->step->sources[0];
        double sum = 0;
        float value;

        if (call->thread != 0)
                return;
        for (int64_t row = 0; row < cpu_rows(source); row++)
                sum += row_sum(call->vec, source,
                               cpu_row_at(source, cpu_index_of_row(source, row)));
        value = (float) sum;
        cpu_store(call->vec, &call->step->result, call->step->result.data, 0, 1, &value);
}

const struct cpu_kernel cpu_kernel_sum = {
        .supports = sum_supports,
        .threads_max = one_thread,
        .run = sum_run,
};

/* ---- SUM_ROWS, MEAN -------------------------------------------------------------------------- */

static bool outer_extents_match(const struct hr_step *step) {
        for (int i = 1; i < HR_DIMS; i++)
                if (step->result.ne[i] != step->sources[0].ne[i])
                        return false;
        return true;
}

static bool row_sum_supports(const struct hr_step *step) {
        return step->source_count == 1 && cpu_is_float(step->sources[0].type) &&
               cpu_is_float(step->result.type) && step->result.ne[0] == 1 &&
               outer_extents_match(step);
}

static void row_sum_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        bool is_mean = call->step->op == HR_OP_MEAN;
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                double sum = row_sum(call->vec, source, cpu_row_at(source, index));
                float value = (float) (is_mean ? sum / (double) source->ne[0] : sum);

                cpu_store(call->vec, result, cpu_row_at(result, index), 0, 1, &value);
        }
}

const struct cpu_kernel cpu_kernel_row_sum = {
        .supports = row_sum_supports,
        .threads_max = row_threads,
        .run = row_sum_run,
};

/* ---- CUMSUM ---------------------------------------------------------------------------------- */

static bool cumsum_supports(const struct hr_step *step) {
        return step->source_count == 1 && cpu_is_float(step->sources[0].type) &&
               cpu_is_float(step->result.type) &&
               cpu_same_shape(&step->sources[0], &step->result);
}

static void cumsum_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        float in_buffer[CPU_CHUNK], out_buffer[CPU_CHUNK];
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                double sum = 0;

                for (int64_t at = 0; at < source->ne[0]; at += CPU_CHUNK) {
                        int64_t n = HR_MIN(source->ne[0] - at, (int64_t) CPU_CHUNK);
                        const float *in = cpu_load(call->vec, source, cpu_row_at(source, index),
                                                   at, n, in_buffer);

                        for (int64_t i = 0; i < n; i++) {
                                sum += (double) in[i];
                                out_buffer[i] = (float) sum;
                        }
                        cpu_store(call->vec, result, cpu_row_at(result, index), at, n,
                                  out_buffer);
                }
        }
}

const struct cpu_kernel cpu_kernel_cumsum = {
        .supports = cumsum_supports,
        .threads_max = row_threads,
        .run = cumsum_run,
};

/* ---- ARGMAX: the first of the largest; NaN never is ------------------------------------------ */

static bool argmax_supports(const struct hr_step *step) {
        const struct hr_operand *source = &step->sources[0];

        return step->source_count == 1 && cpu_is_float(source->type) &&
               step->result.type == HR_TYPE_I32 && source->ne[0] <= INT32_MAX &&
               step->result.ne[0] == source->ne[1] && source->ne[2] == 1 && source->ne[3] == 1;
}

static int32_t row_argmax(const struct cpu_vec *vec, const struct hr_operand *source,
                          const uint8_t *row) {
        float buffer[CPU_CHUNK], most = -INFINITY;
        int64_t best = 0;

        for (int64_t first = 0; first < source->ne[0]; first += CPU_CHUNK) {
                int64_t n = HR_MIN(source->ne[0] - first, (int64_t) CPU_CHUNK);
                const float *in = cpu_load(vec, source, row, first, n, buffer);
                float most_here = vec->max(n, in);

                if (!(most_here > most))
                        continue;
                most = most_here;
                for (int64_t i = 0; i < n; i++)
                        if (in[i] == most) {
                                best = first + i;
                                break;
                        }
        }
        return (int32_t) best;
}

static void argmax_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t first, end;

        cpu_share(call, source->ne[1], 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                int32_t best = row_argmax(call->vec, source, cpu_row(source, row, 0, 0));

                memcpy((uint8_t *) result->data + (uint64_t) row * result->nb[0], &best,
                       sizeof best);
        }
}

const struct cpu_kernel cpu_kernel_argmax = {
        .supports = argmax_supports,
        .threads_max = row_threads,
        .run = argmax_run,
};

/* ---- COUNT_EQUAL ----------------------------------------------------------------------------- */

static bool count_equal_supports(const struct hr_step *step) {
        return step->source_count == 2 && step->sources[0].type == HR_TYPE_I32 &&
               step->sources[1].type == HR_TYPE_I32 && step->result.type == HR_TYPE_I64 &&
               cpu_same_shape(&step->sources[0], &step->sources[1]) &&
               cpu_elements(&step->result) == 1;
}

static void count_equal_run(const struct cpu_call *call) {
        const struct hr_operand *a = &call->step->sources[0], *b = &call->step->sources[1];
        int64_t count = 0;

        if (call->thread != 0)
                return;
        for (int64_t row = 0; row < cpu_rows(a); row++) {
                struct cpu_index index = cpu_index_of_row(a, row);
                const uint8_t *x = cpu_row_at(a, index), *y = cpu_row_at(b, index);

                for (int64_t i = 0; i < a->ne[0]; i++)
                        count += memcmp(x + (uint64_t) i * a->nb[0], y + (uint64_t) i * b->nb[0],
                                        sizeof(int32_t)) == 0;
        }
        memcpy(call->step->result.data, &count, sizeof count);
}

const struct cpu_kernel cpu_kernel_count_equal = {
        .supports = count_equal_supports,
        .threads_max = one_thread,
        .run = count_equal_run,
};
