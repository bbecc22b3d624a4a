/* PAD (zeros or circular), PAD_REFLECT_1D, ROLL: rows of f32 moved to other places. */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

#include <string.h>

static uint32_t pad_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 8);
}

static bool is_f32_pair(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == HR_TYPE_F32 &&
               step->result.type == HR_TYPE_F32 && cpu_has_dense_rows(&step->result);
}

/* index modulo extent, also for negative ones. */
static int64_t wrap(int64_t index, int64_t extent) {
        int64_t rest = index % extent;

        return rest < 0 ? rest + extent : rest;
}

static float element(const struct hr_operand *source, const uint8_t *row, int64_t i) {
        float value;

        memcpy(&value, row + (uint64_t) i * source->nb[0], sizeof value);
        return value;
}

/* ---- PAD ------------------------------------------------------------------------------------- */

static bool pad_supports(const struct hr_step *step) {
        const struct hr_operand *source = &step->sources[0];

        if (!is_f32_pair(step))
                return false;
        for (int i = 0; i < HR_DIMS; i++) {
                int64_t left = step->params[2 * i], right = step->params[2 * i + 1];

                if (left < 0 || right < 0 || source->ne[i] + left + right != step->result.ne[i])
                        return false;
        }
        return step->params[8] == 0 || !cpu_is_empty(source) || cpu_is_empty(&step->result);
}

/* Where position `i` of the result comes from, or -1 for padding. */
static int64_t pad_origin(const struct hr_step *step, int dim, int64_t i) {
        int64_t at = i - step->params[2 * dim], extent = step->sources[0].ne[dim];

        if (at >= 0 && at < extent)
                return at;
        return step->params[8] ? wrap(at, extent) : -1;
}

static void pad_run(const struct cpu_call *call) {
        const struct hr_step *step = call->step;
        const struct hr_operand *result = &step->result, *source = &step->sources[0];
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                float *out = (float *) (void *) cpu_row_at(result, index);
                int64_t i1 = pad_origin(step, 1, index.i1), i2 = pad_origin(step, 2, index.i2);
                int64_t i3 = pad_origin(step, 3, index.i3);
                const uint8_t *in;

                if (i1 < 0 || i2 < 0 || i3 < 0) {
                        memset(out, 0, (size_t) result->ne[0] * sizeof *out);
                        continue;
                }
                in = cpu_row(source, i1, i2, i3);
                for (int64_t i = 0; i < result->ne[0]; i++) {
                        int64_t at = pad_origin(step, 0, i);

                        out[i] = at < 0 ? 0.0f : element(source, in, at);
                }
        }
}

const struct cpu_kernel cpu_kernel_pad = {
        .supports = pad_supports,
        .threads_max = pad_threads,
        .run = pad_run,
};

/* ---- PAD_REFLECT_1D: mirrored at the ends, which are not repeated ---------------------------- */

static bool pad_reflect_supports(const struct hr_step *step) {
        const struct hr_operand *source = &step->sources[0];
        int64_t left = step->params[0], right = step->params[1];

        if (!is_f32_pair(step) || left < 0 || right < 0 || left >= source->ne[0] ||
            right >= source->ne[0] || source->ne[0] + left + right != step->result.ne[0])
                return false;
        for (int i = 1; i < HR_DIMS; i++)
                if (source->ne[i] != step->result.ne[i])
                        return false;
        return true;
}

static void pad_reflect_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t n = source->ne[0], left = call->step->params[0], first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                float *out = (float *) (void *) cpu_row_at(result, index);
                const uint8_t *in = cpu_row_at(source, index);

                for (int64_t i = 0; i < result->ne[0]; i++) {
                        int64_t at = i < left ? left - i : i - left;

                        out[i] = element(source, in, at < n ? at : 2 * (n - 1) - at);
                }
        }
}

const struct cpu_kernel cpu_kernel_pad_reflect_1d = {
        .supports = pad_reflect_supports,
        .threads_max = pad_threads,
        .run = pad_reflect_run,
};

/* ---- ROLL: element i moves to i + shift, wrapping
 * --------------------------------------------- */

static bool roll_supports(const struct hr_step *step) {
        return is_f32_pair(step) && cpu_same_shape(&step->sources[0], &step->result);
}

static void roll_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        const int32_t *shift = call->step->params;
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                float *out = (float *) (void *) cpu_row_at(result, index);
                const uint8_t *in = cpu_row(source, wrap(index.i1 - shift[1], source->ne[1]),
                                            wrap(index.i2 - shift[2], source->ne[2]),
                                            wrap(index.i3 - shift[3], source->ne[3]));
                int64_t at = wrap(-(int64_t) shift[0], source->ne[0]);

                for (int64_t i = 0; i < result->ne[0]; i++) {
                        out[i] = element(source, in, at);
                        at = at + 1 == source->ne[0] ? 0 : at + 1;
                }
        }
}

const struct cpu_kernel cpu_kernel_roll = {
        .supports = roll_supports,
        .threads_max = pad_threads,
        .run = roll_run,
};
