/* Tensors made from little: ARANGE, DIAG, TRI, TIMESTEP_EMBEDDING. All f32. */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

#include <math.h>
#include <string.h>

static uint32_t make_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 8);
}

static bool is_f32_result(const struct hr_step *step, uint32_t source_count) {
        return step->source_count == source_count && step->result.type == HR_TYPE_F32 &&
               cpu_has_dense_rows(&step->result) &&
               (source_count == 0 || step->sources[0].type == HR_TYPE_F32);
}

static float element(const struct hr_operand *source, const uint8_t *row, int64_t i) {
        float value;

        memcpy(&value, row + (uint64_t) i * source->nb[0], sizeof value);
        return value;
}

/* ---- ARANGE ---------------------------------------------------------------------------------- */

static bool arange_supports(const struct hr_step *step) {
        return is_f32_result(step, 0) && cpu_rows(&step->result) == 1;
}

static void arange_run(const struct cpu_call *call) {
        float start = hr_param_f32(call->step->params, 0),
              step = hr_param_f32(call->step->params, 2);
        float *out = call->step->result.data;
        int64_t first, end;

        cpu_share(call, call->step->result.ne[0], 16, &first, &end);
        for (int64_t i = first; i < end; i++)
                out[i] = start + step * (float) i;
}

const struct cpu_kernel cpu_kernel_arange = {
        .supports = arange_supports,
        .threads_max = make_threads,
        .run = arange_run,
};

/* ---- DIAG: a vector on the diagonal of a matrix ---------------------------------------------- */

static bool diag_supports(const struct hr_step *step) {
        const struct hr_operand *source = &step->sources[0], *result = &step->result;

        return is_f32_result(step, 1) && source->ne[1] == 1 && result->ne[0] == source->ne[0] &&
               result->ne[1] == source->ne[0] && result->ne[2] == source->ne[2] &&
               result->ne[3] == source->ne[3];
}

static void diag_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                float *out = (float *) (void *) cpu_row_at(result, index);

                memset(out, 0, (size_t) result->ne[0] * sizeof *out);
                out[index.i1] = element(source, cpu_row(source, 0, index.i2, index.i3), index.i1);
        }
}

const struct cpu_kernel cpu_kernel_diag = {
        .supports = diag_supports,
        .threads_max = make_threads,
        .run = diag_run,
};

/* ---- TRI: one triangle kept, the rest zero --------------------------------------------------- */

enum { TRI_UPPER_DIAG, TRI_UPPER, TRI_LOWER_DIAG, TRI_LOWER };

static bool tri_supports(const struct hr_step *step) {
        return is_f32_result(step, 1) && cpu_same_shape(&step->sources[0], &step->result) &&
               step->params[0] >= TRI_UPPER_DIAG && step->params[0] <= TRI_LOWER;
}

static bool tri_keeps(int32_t kind, int64_t column, int64_t row) {
        switch (kind) {
        case TRI_UPPER_DIAG:
                return column >= row;
        case TRI_UPPER:
                return column > row;
        case TRI_LOWER_DIAG:
                return column <= row;
        default:
                return column < row;
        }
}

static void tri_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                float *out = (float *) (void *) cpu_row_at(result, index);
                const uint8_t *in = cpu_row_at(source, index);

                for (int64_t i = 0; i < result->ne[0]; i++)
                        out[i] = tri_keeps(call->step->params[0], i, index.i1)
                                         ? element(source, in, i)
                                         : 0.0f;
        }
}

const struct cpu_kernel cpu_kernel_tri = {
        .supports = tri_supports,
        .threads_max = make_threads,
        .run = tri_run,
};

/* ---- TIMESTEP_EMBEDDING: cosines, then sines, of falling frequencies ------------------------- */

static bool timestep_supports(const struct hr_step *step) {
        return is_f32_result(step, 1) && step->params[0] > 0 && step->params[1] > 0 &&
               step->result.ne[0] == step->params[0] &&
               step->result.ne[1] == step->sources[0].ne[0] && step->result.ne[2] == 1 &&
               step->result.ne[3] == 1;
}

static void timestep_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t dim = call->step->params[0], half = dim / 2, first, end;
        float log_period = logf((float) call->step->params[1]);

        cpu_share(call, result->ne[1], 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                float *out = (float *) (void *) cpu_row(result, row, 0, 0);
                float time = element(source, source->data, row);

                for (int64_t i = 0; i < half; i++) {
                        float angle = time * expf(-log_period * (float) i / (float) half);

                        out[i] = cosf(angle);
                        out[i + half] = sinf(angle);
                }
                if (dim % 2)
                        out[dim - 1] = 0.0f;
        }
}

const struct cpu_kernel cpu_kernel_timestep_embedding = {
        .supports = timestep_supports,
        .threads_max = make_threads,
        .run = timestep_run,
};
