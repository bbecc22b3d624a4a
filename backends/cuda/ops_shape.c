/* PAD, PAD_REFLECT_1D, ROLL, TRI, DIAG, DIAG_MASK_INF and _ZERO, ARANGE, TIMESTEP_EMBEDDING,
 * REPEAT_BACK, OUT_PROD: each element by itself. SET and ACC: a copy, and a window of it. */
#include "backends/cuda/ops.h"

#include <string.h>

static void shape_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_shape_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_source_of(step, 0),
                .other = cuda_source_of(step, 1),
                .op = step->op,
                .start = hr_param_f32(step->params, 0),
                .step = hr_param_f32(step->params, 2),
        };

        _Static_assert(HR_OP_PARAM_WORDS >= HR_ARRAY_LENGTH(args.params), "words of parameters");
        memcpy(args.params, step->params, sizeof args.params);
        cuda_builder_launch(builder, CUDA_KERNEL_shape_elements,
                            (uint64_t) cuda_rows(&step->result), &args, sizeof args);
}

static bool is_f32(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == HR_TYPE_F32 &&
               step->result.type == HR_TYPE_F32;
}

static bool same_supports(const struct hr_step *step) {
        return is_f32(step) && cuda_same_shape(&step->sources[0], &step->result);
}

static bool tri_supports(const struct hr_step *step) {
        return same_supports(step) && step->params[0] >= 0 && step->params[0] <= 3;
}

static bool pad_supports(const struct hr_step *step) {
        const struct hr_operand *in = &step->sources[0];

        if (!is_f32(step))
                return false;
        for (int i = 0; i < HR_DIMS; i++) {
                int64_t left = step->params[2 * i], right = step->params[2 * i + 1];

                if (left < 0 || right < 0 || in->ne[i] + left + right != step->result.ne[i] ||
                    in->ne[i] < 1)
                        return false;
        }
        return true;
}

static bool reflect_supports(const struct hr_step *step) {
        const struct hr_operand *in = &step->sources[0];
        int64_t left = step->params[0], right = step->params[1];

        if (!is_f32(step) || left < 0 || right < 0 || left >= in->ne[0] || right >= in->ne[0] ||
            in->ne[0] + left + right != step->result.ne[0])
                return false;
        for (int i = 1; i < HR_DIMS; i++)
                if (in->ne[i] != step->result.ne[i])
                        return false;
        return true;
}

static bool diag_supports(const struct hr_step *step) {
        const struct hr_operand *in = &step->sources[0], *out = &step->result;

        return is_f32(step) && in->ne[1] == 1 && out->ne[0] == in->ne[0] &&
               out->ne[1] == in->ne[0] && out->ne[2] == in->ne[2] && out->ne[3] == in->ne[3];
}

static bool arange_supports(const struct hr_step *step) {
        return step->source_count == 0 && step->result.type == HR_TYPE_F32 &&
               cuda_rows(&step->result) == 1;
}

static bool timestep_supports(const struct hr_step *step) {
        const struct hr_operand *out = &step->result;

        return is_f32(step) && step->params[0] > 0 && step->params[1] > 0 &&
               out->ne[0] == step->params[0] && out->ne[1] == step->sources[0].ne[0] &&
               out->ne[2] == 1 && out->ne[3] == 1;
}

static bool repeat_back_supports(const struct hr_step *step) {
        const struct hr_operand *source = &step->sources[0];

        /* A thread walks over the tiles, of which a tensor of no bytes may have any number. */
        return is_f32(step) && cuda_repeats(&step->result, source) &&
               source->ne[0] * cuda_rows(source) > 0;
}

static bool out_prod_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1],
                                *out = &step->result;

        if (step->source_count != 2 ||
            !(cuda_is_float(a) || (cuda_is_block(a) && cuda_is_dense(a))) ||
            b->type != HR_TYPE_F32 || out->type != HR_TYPE_F32 || a->ne[0] != out->ne[0] ||
            b->ne[0] != out->ne[1] || a->ne[1] != b->ne[1])
                return false;
        return a->ne[2] > 0 && a->ne[3] > 0 && out->ne[2] % a->ne[2] == 0 &&
               out->ne[3] % a->ne[3] == 0 && b->ne[2] == out->ne[2] && b->ne[3] == out->ne[3];
}

/* ---- SET, ACC
 * --------------------------------------------------------------------------------- */

static bool is_contiguous(const struct hr_operand *operand) {
        uint64_t bytes = hr_type_info(operand->type)->block_bytes;

        for (int i = 0; i < HR_DIMS; i++) {
                if (operand->ne[i] > 1 && operand->nb[i] != bytes)
                        return false;
                bytes *= (uint64_t) operand->ne[i];
        }
        return true;
}

/* The window as a tensor without address. False if it leaves the result, or if elements of it share
 * a place, whose order threads do not keep. */
static bool window_of(const struct hr_step *step, struct cuda_tensor *ret_window) {
        const struct hr_operand *part = &step->sources[1], *out = &step->result;
        uint64_t room = (uint64_t) (out->ne[0] * cuda_rows(out)) * 4, end = 4, next;

        *ret_window = cuda_tensor_of(part);
        ret_window->type = out->type;
        ret_window->nb[0] = 4;
        for (int i = 0; i < 4; i++)
                if (step->params[i] < 0 || step->params[i] % 4)
                        return false;
        for (int i = 1; i < HR_DIMS; i++)
                ret_window->nb[i] = step->params[i - 1];
        for (int i = 0; i < HR_DIMS; i++) {
                if (part->ne[i] < 1)
                        return false;
                if (part->ne[i] > 1 && (uint64_t) ret_window->nb[i] < end)
                        return false;
                if (!hr_mul_u64((uint64_t) part->ne[i] - 1, (uint64_t) ret_window->nb[i], &next) ||
                    !hr_add_u64(end, next, &end))
                        return false;
        }
        return hr_add_u64(end, (uint64_t) step->params[3], &end) && end <= room;
}

static bool set_supports(const struct hr_step *step) {
        const struct hr_operand *whole = &step->sources[0], *part = &step->sources[1];
        struct cuda_tensor window;

        return step->source_count == 2 && part->type == whole->type &&
               whole->type == step->result.type && cuda_same_shape(whole, &step->result) &&
               (whole->type == HR_TYPE_F32 ||
                (step->op == HR_OP_SET && whole->type == HR_TYPE_I32)) &&
               is_contiguous(whole) && is_contiguous(&step->result) && window_of(step, &window);
}

static void set_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_tensor out = cuda_tensor_of(&step->result), window;
        struct cuda_tensor part = cuda_tensor_of(&step->sources[1]);
        struct cuda_binary_args args;

        HR_ASSERT(window_of(step, &window));
        if (step->result.data != step->sources[0].data)
                cuda_copy_launch(builder, out, cuda_tensor_of(&step->sources[0]));
        window.data = out.data + (uint64_t) step->params[3];
        if (step->op == HR_OP_SET) {
                cuda_copy_launch(builder, window, part);
                return;
        }
        args = (struct cuda_binary_args) { .out = window, .a = window, .b = part, .op = HR_OP_ADD };
        cuda_builder_launch(builder, CUDA_KERNEL_binary_elements,
                            (uint64_t) ((part.ne[0] + CUDA_CHUNK - 1) / CUDA_CHUNK * part.ne[1] *
                                        part.ne[2] * part.ne[3]),
                            &args, sizeof args);
}

const struct cuda_op cuda_ops_shape[] = {
        { HR_OP_PAD, false, pad_supports, shape_prepare, NULL },
        { HR_OP_PAD_REFLECT_1D, false, reflect_supports, shape_prepare, NULL },
        { HR_OP_ROLL, false, same_supports, shape_prepare, NULL },
        { HR_OP_TRI, false, tri_supports, shape_prepare, NULL },
        { HR_OP_DIAG, false, diag_supports, shape_prepare, NULL },
        { HR_OP_DIAG_MASK_INF, false, same_supports, shape_prepare, NULL },
        { HR_OP_DIAG_MASK_ZERO, false, same_supports, shape_prepare, NULL },
        { HR_OP_ARANGE, false, arange_supports, shape_prepare, NULL },
        { HR_OP_TIMESTEP_EMBEDDING, false, timestep_supports, shape_prepare, NULL },
        { HR_OP_REPEAT_BACK, false, repeat_back_supports, shape_prepare, NULL },
        { HR_OP_OUT_PROD, false, out_prod_supports, shape_prepare, NULL },
        { HR_OP_SET, false, set_supports, set_prepare, NULL },
        { HR_OP_ACC, false, set_supports, set_prepare, NULL },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
