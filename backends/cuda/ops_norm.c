/* NORM, RMS_NORM, L2_NORM, GROUP_NORM, SUM, SUM_ROWS, MEAN, CUMSUM, ARGMAX, COUNT_EQUAL, ARGSORT,
 * TOP_K, SOFT_MAX; ROPE and its inverse. */
#include "backends/cuda/ops.h"

#include <math.h>

enum { MODE_NEOX = 2, MODE_MROPE = 8, MODE_VISION = 24, MODE_IMROPE = 40 };

/* ---- Norms ----------------------------------------------------------------------------------- */

static bool norm_supports(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == HR_TYPE_F32 &&
               step->result.type == HR_TYPE_F32 &&
               cuda_same_shape(&step->sources[0], &step->result) && cuda_is_dense(&step->result);
}

static void norm_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_norm_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(&step->sources[0]),
                .op = step->op,
                .eps = hr_param_f32(step->params, 0),
        };

        cuda_builder_launch(builder, CUDA_KERNEL_norm_rows, (uint64_t) cuda_rows(&step->result),
                            &args, sizeof args);
}

/* ---- Sums and order of rows ------------------------------------------------------------------ */

static bool rows_to_one(const struct hr_step *step) {
        const struct hr_operand *in = &step->sources[0], *out = &step->result;

        return in->ne[1] == out->ne[1] && in->ne[2] == out->ne[2] && in->ne[3] == out->ne[3];
}

static bool sum_supports(const struct hr_step *step) {
        return step->source_count == 1 && cuda_is_float(&step->sources[0]) &&
               cuda_is_float(&step->result) && step->result.ne[0] == 1 && rows_to_one(step);
}

static void sum_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_norm_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(&step->sources[0]),
                .op = step->op,
        };

        cuda_builder_launch(builder, CUDA_KERNEL_sum_rows, (uint64_t) cuda_rows(&step->result),
                            &args, sizeof args);
}

static bool sort_supports(const struct hr_step *step) {
        const struct hr_operand *in = &step->sources[0];

        return step->source_count == 1 && cuda_is_float(in) && in->ne[0] <= CUDA_SORT_MAX &&
               step->result.type == HR_TYPE_I32 && step->result.ne[0] <= in->ne[0] &&
               rows_to_one(step) &&
               (step->op == HR_OP_TOP_K || step->params[0] == 0 || step->params[0] == 1);
}

static void sort_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_sort_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(&step->sources[0]),
                .is_descending = step->op == HR_OP_TOP_K || step->params[0] == 1,
        };

        cuda_builder_launch(builder, CUDA_KERNEL_sort_rows, (uint64_t) cuda_rows(&step->result),
                            &args, sizeof args);
}

/* ---- Sums of everything, running sums, the largest ------------------------------------------- */

static void norm_launch(const struct hr_step *step, struct cuda_tensor in, enum cuda_kernel kernel,
                        uint64_t items, struct cuda_builder *builder) {
        struct cuda_norm_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = in,
                .op = step->op,
        };

        cuda_builder_launch(builder, kernel, items, &args, sizeof args);
}

static bool sum_all_supports(const struct hr_step *step) {
        return step->source_count == 1 && cuda_is_float(&step->sources[0]) &&
               cuda_is_float(&step->result) && step->result.ne[0] * cuda_rows(&step->result) == 1;
}

static void sum_all_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        norm_launch(step, cuda_walked_of(&step->sources[0]), CUDA_KERNEL_sum_all, 1, builder);
}

static bool running_supports(const struct hr_step *step) {
        return step->source_count == 1 && cuda_is_float(&step->sources[0]) &&
               cuda_is_float(&step->result) && cuda_same_shape(&step->sources[0], &step->result);
}

static void running_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        norm_launch(step, cuda_tensor_of(&step->sources[0]), CUDA_KERNEL_running_sums,
                    (uint64_t) cuda_rows(&step->result), builder);
}

static bool argmax_supports(const struct hr_step *step) {
        const struct hr_operand *in = &step->sources[0];

        return step->source_count == 1 && cuda_is_float(in) && step->result.type == HR_TYPE_I32 &&
               in->ne[0] < INT32_MAX && step->result.ne[0] == in->ne[1] && in->ne[2] == 1 &&
               in->ne[3] == 1;
}

static void argmax_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        norm_launch(step, cuda_tensor_of(&step->sources[0]), CUDA_KERNEL_largest_of_rows,
                    (uint64_t) step->sources[0].ne[1], builder);
}

static bool count_equal_supports(const struct hr_step *step) {
        return step->source_count == 2 && step->sources[0].type == HR_TYPE_I32 &&
               step->sources[1].type == HR_TYPE_I32 && step->result.type == HR_TYPE_I64 &&
               cuda_same_shape(&step->sources[0], &step->sources[1]) &&
               step->result.ne[0] * cuda_rows(&step->result) == 1;
}

static void count_equal_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_binary_args args = {
                .out = cuda_tensor_of(&step->result),
                .a = cuda_walked_of(&step->sources[0]),
                .b = cuda_walked_of(&step->sources[1]),
        };

        cuda_builder_launch(builder, CUDA_KERNEL_count_equal, 1, &args, sizeof args);
}

static bool group_norm_supports(const struct hr_step *step) {
        return norm_supports(step) && cuda_is_dense(&step->sources[0]) && step->params[0] > 0 &&
               step->params[0] <= HR_MAX(step->result.ne[2], 1);
}

static void group_norm_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_group_norm_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(&step->sources[0]),
                .groups = step->params[0],
                .eps = hr_param_f32(step->params, 1),
        };

        cuda_builder_launch(builder, CUDA_KERNEL_norm_groups,
                            (uint64_t) (args.groups * args.in.ne[3]), &args, sizeof args);
}

/* ---- SOFT_MAX -------------------------------------------------------------------------------- */

static bool soft_max_supports(const struct hr_step *step) {
        const struct hr_operand *x = &step->sources[0], *mask = &step->sources[1],
                                *sinks = &step->sources[2];

        if (step->source_count < 1 || x->type != HR_TYPE_F32 || step->result.type != HR_TYPE_F32 ||
            !cuda_same_shape(x, &step->result) || !cuda_is_dense(x) ||
            !cuda_is_dense(&step->result))
                return false;
        if (cuda_has(step, 1) &&
            ((mask->type != HR_TYPE_F32 && mask->type != HR_TYPE_F16) || !cuda_is_dense(mask) ||
             mask->ne[0] != x->ne[0] || mask->ne[1] < x->ne[1] || mask->ne[2] < 1 ||
             mask->ne[3] < 1 || x->ne[2] % mask->ne[2] || x->ne[3] % mask->ne[3]))
                return false;
        return !cuda_has(step, 2) || (sinks->type == HR_TYPE_F32 && sinks->ne[0] == x->ne[2] &&
                                      cuda_is_dense(sinks));
}

static void soft_max_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_soft_max_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(&step->sources[0]),
                .mask = cuda_source_of(step, 1),
                .sinks = cuda_source_of(step, 2),
                .scale = hr_param_f32(step->params, 0),
                .max_bias = hr_param_f32(step->params, 1),
                .slope_power = 1,
        };

        while (args.slope_power * 2 <= step->sources[0].ne[2])
                args.slope_power *= 2;
        args.slope_base = powf(2.0f, -args.max_bias / (float) args.slope_power);
        args.slope_half = powf(2.0f, -args.max_bias / 2.0f / (float) args.slope_power);
        cuda_builder_launch(builder, CUDA_KERNEL_soft_max_rows,
                            (uint64_t) cuda_rows(&step->result), &args, sizeof args);
}

/* ---- ROPE ------------------------------------------------------------------------------------ */

static int64_t rope_pairs(const struct hr_step *step) {
        int64_t dims = step->params[1];

        return step->params[2] == MODE_VISION ? dims : dims / 2;
}

static bool rope_mode_supports(const struct hr_step *step) {
        int32_t mode = step->params[2];

        if (mode == 0 || mode == MODE_NEOX)
                return true;
        /* Sections in which a pair finds its position. */
        for (int i = 0; i < 4; i++)
                if (step->params[11 + i] < 0)
                        return false;
        return (mode == MODE_MROPE || mode == MODE_VISION || mode == MODE_IMROPE) &&
               (int64_t) step->params[11] + step->params[12] + step->params[13] +
                               step->params[14] > 0;
}

static bool rope_supports(const struct hr_step *step) {
        const struct hr_operand *x = &step->sources[0], *positions = &step->sources[1],
                                *factors = &step->sources[2];
        int64_t dims = step->params[1], offset = step->params[15];
        int32_t mode = step->params[2];

        if (step->source_count < 2 || (x->type != HR_TYPE_F32 && x->type != HR_TYPE_F16) ||
            step->result.type != x->type || !cuda_same_shape(x, &step->result) ||
            !cuda_is_dense(x) || !cuda_is_dense(&step->result) || !rope_mode_supports(step))
                return false;
        if (dims < 2 || dims % 2 || offset < 0 || offset + dims > x->ne[0] ||
            (mode == MODE_VISION && (dims * 2 != x->ne[0] || offset)))
                return false;
        if (positions->type != HR_TYPE_I32 ||
            positions->ne[0] < x->ne[2] * (mode & MODE_MROPE ? 4 : 1) || !cuda_is_dense(positions))
                return false;
        return !cuda_has(step, 2) || (factors->type == HR_TYPE_F32 &&
                                      factors->ne[0] >= rope_pairs(step) && cuda_is_dense(factors));
}

/* The pair at which `rotations` turns fit the original context: YaRN's correction. */
static float yarn_pair(int64_t dims, int32_t context, float rotations, float base) {
        return (float) dims *
               logf((float) context / (rotations * 2.0f * (float) M_PI)) / (2.0f * logf(base));
}

static void rope_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const int32_t *params = step->params;
        float base = hr_param_f32(params, 5);
        struct cuda_rope_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(&step->sources[0]),
                .positions = cuda_tensor_of(&step->sources[1]),
                .factors = cuda_source_of(step, 2),
                .dims = params[1],
                .pairs = rope_pairs(step),
                .offset = params[15],
                .mode = params[2],
                .freq_scale = hr_param_f32(params, 6),
                .ext_factor = hr_param_f32(params, 7),
                .magnitude = hr_param_f32(params, 8),
                .theta_scale = powf(base, -2.0f / (float) params[1]),
                .direction = step->op == HR_OP_ROPE_BACK ? -1.0f : 1.0f,
        };
        float low = floorf(yarn_pair(args.dims, params[4], hr_param_f32(params, 9), base));
        float high = ceilf(yarn_pair(args.dims, params[4], hr_param_f32(params, 10), base));

        args.ramp_low = fmaxf(0.0f, low);
        args.ramp_high = fminf((float) (args.dims - 1), high);
        if (args.ext_factor != 0.0f)
                args.magnitude *= 1.0f + 0.1f * logf(1.0f / args.freq_scale);
        for (int i = 0; i < 4; i++)
                args.sections[i] = params[11 + i];
        cuda_builder_launch(builder, CUDA_KERNEL_rope_rows, (uint64_t) cuda_rows(&step->result),
                            &args, sizeof args);
}

const struct cuda_op cuda_ops_norm[] = {
        { HR_OP_NORM, false, norm_supports, norm_prepare, NULL },
        { HR_OP_RMS_NORM, false, norm_supports, norm_prepare, NULL },
        { HR_OP_L2_NORM, false, norm_supports, norm_prepare, NULL },
        { HR_OP_SUM_ROWS, false, sum_supports, sum_prepare, NULL },
        { HR_OP_MEAN, false, sum_supports, sum_prepare, NULL },
        { HR_OP_GROUP_NORM, false, group_norm_supports, group_norm_prepare, NULL },
        { HR_OP_SUM, false, sum_all_supports, sum_all_prepare, NULL },
        { HR_OP_CUMSUM, false, running_supports, running_prepare, NULL },
        { HR_OP_ARGMAX, false, argmax_supports, argmax_prepare, NULL },
        { HR_OP_COUNT_EQUAL, false, count_equal_supports, count_equal_prepare, NULL },
        { HR_OP_ARGSORT, false, sort_supports, sort_prepare, NULL },
        { HR_OP_TOP_K, false, sort_supports, sort_prepare, NULL },
        { HR_OP_SOFT_MAX, false, soft_max_supports, soft_max_prepare, NULL },
        { HR_OP_ROPE, false, rope_supports, rope_prepare, NULL },
        { HR_OP_ROPE_BACK, false, rope_supports, rope_prepare, NULL },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
