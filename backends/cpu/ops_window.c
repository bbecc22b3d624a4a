/*
 * Windows of images and relative positions. WIN_PART and WIN_UNPART move whole rows of channels
 * between an image and its square windows; what lies past the image is 0. The result is dense.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

#include <string.h>

static uint32_t window_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 8);
}

static bool win_supports(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == HR_TYPE_F32 &&
               step->result.type == HR_TYPE_F32 && cpu_has_dense_rows(&step->result) &&
               step->sources[0].ne[0] == step->result.ne[0];
}

static void row_copy(const struct hr_operand *source, const uint8_t *from, uint8_t *out) {
        size_t bytes = cpu_element_bytes(source->type);

        if (cpu_has_dense_rows(source)) {
                memcpy(out, from, (size_t) source->ne[0] * bytes);
                return;
        }
        for (int64_t i = 0; i < source->ne[0]; i++)
                memcpy(out + (size_t) i * bytes, from + (uint64_t) i * source->nb[0], bytes);
}

static void win_part_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t across = call->step->params[0], window = call->step->params[2], first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index at = cpu_index_of_row(result, row);
                int64_t x = at.i3 % across * window + at.i1, y = at.i3 / across * window + at.i2;
                uint8_t *out = cpu_row_at(result, at);

                if (x < source->ne[1] && y < source->ne[2])
                        row_copy(source, cpu_row(source, x, y, 0), out);
                else
                        memset(out, 0, (size_t) result->ne[0] * sizeof(float));
        }
}

static void win_unpart_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t window = call->step->params[0], first, end;
        int64_t across = (result->ne[1] + window - 1) / window;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index at = cpu_index_of_row(result, row);

                row_copy(source,
                         cpu_row(source, at.i1 % window, at.i2 % window,
                                 at.i2 / window * across + at.i1 / window),
                         cpu_row_at(result, at));
        }
}

const struct cpu_kernel cpu_kernel_win_part = {
        .supports = win_supports,
        .threads_max = window_threads,
        .run = win_part_run,
};

const struct cpu_kernel cpu_kernel_win_unpart = {
        .supports = win_supports,
        .threads_max = window_threads,
        .run = win_unpart_run,
};

/* ---- GET_REL_POS, ADD_REL_POS ---------------------------------------------------------------- */

static bool get_rel_pos_supports(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == HR_TYPE_F16 &&
               step->result.type == HR_TYPE_F16 && cpu_has_dense_rows(&step->result) &&
               step->sources[0].ne[0] == step->result.ne[0];
}

/* result[., k, q] = source[., K - 1 - k + q] */
static void get_rel_pos_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index at = cpu_index_of_row(result, row);

                row_copy(source, cpu_row(source, result->ne[1] - 1 - at.i1 + at.i2, 0, 0),
                         cpu_row_at(result, at));
        }
}

const struct cpu_kernel cpu_kernel_get_rel_pos = {
        .supports = get_rel_pos_supports,
        .threads_max = window_threads,
        .run = get_rel_pos_run,
};

static bool add_rel_pos_supports(const struct hr_step *step) {
        if (step->source_count != 3 || step->result.type != HR_TYPE_F32 ||
            !cpu_has_dense_rows(&step->result) ||
            !cpu_same_shape(&step->result, &step->sources[0]))
                return false;
        for (int i = 0; i < 3; i++)
                if (step->sources[i].type != HR_TYPE_F32 || !cpu_has_dense_rows(&step->sources[i]))
                        return false;
        return true;
}

/* Each row is a K x K matrix to whose columns `width` and to whose rows `height` is added. */
static void add_rel_pos_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        const struct hr_operand *width = &call->step->sources[1];
        const struct hr_operand *height = &call->step->sources[2];
        int64_t extent = width->ne[0], first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index at = cpu_index_of_row(result, row);
                int64_t q1 = at.i1 % width->ne[1], q2 = at.i1 / width->ne[1];
                const float *in = (const float *) (const void *) cpu_row_at(source, at);
                const float *w = (const float *) (const void *) cpu_row(width, q1, q2, at.i2);
                const float *h = (const float *) (const void *) cpu_row(height, q1, q2, at.i2);
                float *out = (float *) (void *) cpu_row_at(result, at);

                for (int64_t i = 0; i < extent; i++)
                        for (int64_t j = 0; j < extent; j++)
                                out[i * extent + j] = in[i * extent + j] + w[j] + h[i];
        }
}

const struct cpu_kernel cpu_kernel_add_rel_pos = {
        .supports = add_rel_pos_supports,
        .threads_max = window_threads,
        .run = add_rel_pos_run,
};
