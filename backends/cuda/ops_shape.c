/* PAD, PAD_REFLECT_1D, ROLL, TRI, DIAG, DIAG_MASK_INF and _ZERO, ARANGE, TIMESTEP_EMBEDDING,
 * REPEAT_BACK, OUT_PROD, WIN_PART, WIN_UNPART, ADD_REL_POS: each element by itself. SET and ACC: a
 * copy, and a window of it. GET_REL_POS: a copy of what is seen another way. */
#include "backends/cuda/ops.h"

#include <string.h>

static void shape_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_shape_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_source_of(step, 0),
                .other = cuda_source_of(step, 1),
                .third = cuda_source_of(step, 2),
                .op = step->op,
                .start = hr_param_f32(step->params, 0),
                .step = hr_param_f32(step->params, 2),
        };

        _Static_assert(HR_OP_PARAM_WORDS >= HR_ARRAY_LENGTH(args.params), "words of parameters");
        if (step->op == HR_OP_REPEAT_BACK)
                args.in = cuda_walked_of(&step->sources[0]);
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

        return is_f32(step) && (cuda_is_empty(source) || cuda_repeats(&step->result, source));
}

/* ---- Windows of images, relative positions --------------------------------------------------- */

static int64_t windows_over(int64_t extent, int64_t window) {
        return (extent + window - 1) / window;
}

static bool win_part_supports(const struct hr_step *step) {
        const struct hr_operand *in = &step->sources[0], *out = &step->result;
        int64_t window = step->params[2];

        return is_f32(step) && window > 0 && in->ne[3] == 1 && out->ne[0] == in->ne[0] &&
               out->ne[1] == window && out->ne[2] == window &&
               step->params[0] == windows_over(in->ne[1], window) &&
               step->params[1] == windows_over(in->ne[2], window) &&
               out->ne[3] == (int64_t) step->params[0] * step->params[1];
}

static bool win_unpart_supports(const struct hr_step *step) {
        const struct hr_operand *in = &step->sources[0], *out = &step->result;
        int64_t window = step->params[0];

        return is_f32(step) && window > 0 && out->ne[3] == 1 && out->ne[0] == in->ne[0] &&
               in->ne[1] == window && in->ne[2] == window &&
               in->ne[3] == windows_over(out->ne[1], window) * windows_over(out->ne[2], window);
}

static bool get_rel_pos_supports(const struct hr_step *step) {
        const struct hr_operand *in = &step->sources[0], *out = &step->result;

        return step->source_count == 1 && in->type == HR_TYPE_F16 && out->type == HR_TYPE_F16 &&
               out->ne[0] == in->ne[0] && out->ne[1] == out->ne[2] && out->ne[3] == 1 &&
               in->ne[1] == 2 * out->ne[1] - 1 && in->ne[2] == 1 && in->ne[3] == 1;
}

/* result[., k, q] = source[., K - 1 - k + q]: rows backwards in one dimension, forwards in the
 * other. */
static void get_rel_pos_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_tensor out = cuda_tensor_of(&step->result), in = out;
        const struct hr_operand *source = &step->sources[0];

        in.data = (uint64_t) (uintptr_t) source->data + (uint64_t) (out.ne[1] - 1) * source->nb[1];
        in.nb[0] = (int64_t) source->nb[0];
        in.nb[1] = -(int64_t) source->nb[1];
        in.nb[2] = (int64_t) source->nb[1];
        in.nb[3] = 0;
        cuda_copy_launch(builder, out, in);
}

static bool add_rel_pos_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *width = &step->sources[1],
                                *height = &step->sources[2];

        if (step->source_count != 3 || a->type != HR_TYPE_F32 || width->type != HR_TYPE_F32 ||
            height->type != HR_TYPE_F32 || step->result.type != HR_TYPE_F32)
                return false;
        return cuda_same_shape(a, &step->result) && cuda_same_shape(width, height) &&
               a->ne[0] == width->ne[0] * width->ne[0] &&
               a->ne[1] == width->ne[1] * width->ne[2] && a->ne[2] == width->ne[3] &&
               a->ne[3] == 1;
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

/* ---- SET, ACC -------------------------------------------------------------------------------- */

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
        { HR_OP_WIN_PART, false, win_part_supports, shape_prepare, NULL },
        { HR_OP_WIN_UNPART, false, win_unpart_supports, shape_prepare, NULL },
        { HR_OP_ADD_REL_POS, false, add_rel_pos_supports, shape_prepare, NULL },
        { HR_OP_GET_REL_POS, false, get_rel_pos_supports, get_rel_pos_prepare, NULL },
        { HR_OP_SET, false, set_supports, set_prepare, NULL },
        { HR_OP_ACC, false, set_supports, set_prepare, NULL },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
