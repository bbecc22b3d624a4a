/*
 * NORM, RMS_NORM, L2_NORM over rows and GROUP_NORM over groups of channels, f32. Sums run in f64
 * over a fixed number of lanes; one row, or one group, is one thread's.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

#include <math.h>
#include <string.h>

static bool norm_supports(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == HR_TYPE_F32 &&
               step->result.type == HR_TYPE_F32 &&
               cpu_same_shape(&step->sources[0], &step->result) &&
               cpu_has_dense_rows(&step->result);
}

static uint32_t norm_threads(const struct hr_step *step) {
        uint32_t threads = cpu_threads_for(cpu_elements(&step->result), 8);
        int64_t rows = cpu_rows(&step->result);

        return rows < (int64_t) threads ? (uint32_t) HR_MAX(rows, 1) : threads;
}

/* A row whose elements have gaps is first brought together where the result will be. */
static const float *dense_row(const struct hr_operand *source, const uint8_t *row, float *spare) {
        if (source->nb[0] == sizeof(float))
                return (const float *) (const void *) row;
        for (int64_t i = 0; i < source->ne[0]; i++)
                memcpy(&spare[i], row + (uint64_t) i * source->nb[0], sizeof spare[i]);
        return spare;
}

float cpu_norm_factor(const struct cpu_call *call, int64_t n, float *out, const float *in) {
        const struct cpu_vec *vec = call->vec;
        float eps = hr_param_f32(call->step->params, 0);
        double sum;

        switch (call->step->op) {
        case HR_OP_NORM:
                sum = vec->shift_squares(n, out, in, (float) (vec->sum(n, in) / (double) n));
                return 1.0f / sqrtf((float) (sum / (double) n) + eps);
        case HR_OP_RMS_NORM:
                sum = vec->sum_squares(n, in);
                return 1.0f / sqrtf((float) (sum / (double) n) + eps);
        default:
                return 1.0f / fmaxf((float) sqrt(vec->sum_squares(n, in)), eps);
        }
}

static void row_norm(const struct cpu_call *call, int64_t n, float *out, const float *in) {
        float factor = cpu_norm_factor(call, n, out, in);

        call->vec->scale(n, out, call->step->op == HR_OP_NORM ? out : in, factor, 0.0f);
}

static void norm_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                float *out = (float *) (void *) cpu_row_at(result, index);

                row_norm(call, result->ne[0], out,
                         dense_row(source, cpu_row_at(source, index), out));
        }
}

const struct cpu_kernel cpu_kernel_norm = {
        .supports = norm_supports,
        .threads_max = norm_threads,
        .run = norm_run,
};

/* ---- GROUP_NORM ------------------------------------------------------------------------------ */

static bool group_norm_supports(const struct hr_step *step) {
        return norm_supports(step) && step->params[0] > 0 &&
               (step->params[0] <= step->result.ne[2] || cpu_is_empty(&step->result));
}

static float *norm_row(const struct hr_operand *operand, int64_t i1, int64_t i2, int64_t i3) {
        return (float *) (void *) cpu_row(operand, i1, i2, i3);
}

/* What is to be normalised into the row `out`, which is written over if there are gaps. */
static const float *group_row(const struct cpu_call *call, int64_t i1, int64_t i2, int64_t i3,
                              float *out) {
        const struct hr_operand *source = &call->step->sources[0];

        return dense_row(source, cpu_row(source, i1, i2, i3), out);
}

static void group_norm(const struct cpu_call *call, int64_t first, int64_t end, int64_t i3) {
        const struct hr_operand *result = &call->step->result;
        int64_t n = result->ne[0];
        double count = (double) n * (double) result->ne[1] * (double) (end - first);
        double sum = 0, squares = 0;
        float mean, factor;

        for (int64_t i2 = first; i2 < end; i2++)
                for (int64_t i1 = 0; i1 < result->ne[1]; i1++)
                        sum += call->vec->sum(
                                n, group_row(call, i1, i2, i3, norm_row(result, i1, i2, i3)));
        mean = (float) (sum / count);
        for (int64_t i2 = first; i2 < end; i2++)
                for (int64_t i1 = 0; i1 < result->ne[1]; i1++) {
                        float *out = norm_row(result, i1, i2, i3);

                        squares += call->vec->shift_squares(
                                n, out, group_row(call, i1, i2, i3, out), mean);
                }
        factor = 1.0f / sqrtf((float) (squares / count) + hr_param_f32(call->step->params, 1));
        for (int64_t i2 = first; i2 < end; i2++)
                for (int64_t i1 = 0; i1 < result->ne[1]; i1++) {
                        float *out = norm_row(result, i1, i2, i3);

                        call->vec->scale(n, out, out, factor, 0.0f);
                }
}

static void group_norm_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        int64_t groups = call->step->params[0], channels = result->ne[2];
        int64_t per_group = (channels + groups - 1) / groups;
        int64_t first, end;

        cpu_share(call, groups * result->ne[3], 1, &first, &end);
        for (int64_t item = first; item < end; item++) {
                int64_t i3 = item / groups, channel = item % groups * per_group;
                int64_t channel_end = HR_MIN(channel + per_group, channels);

                /* Rounding up may leave the last groups without channels. */
                if (channel < channel_end)
                        group_norm(call, channel, channel_end, i3);
        }
}

const struct cpu_kernel cpu_kernel_group_norm = {
        .supports = group_norm_supports,
        .threads_max = norm_threads,
        .run = group_norm_run,
};
