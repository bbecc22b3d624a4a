/* FLASH_ATTN_EXT. */
#include "backends/cuda/ops.h"

#include <math.h>

#define KEY_MAX 576 /* as in kernels/attention.cu */
#define VALUE_MAX 512

static bool is_weight(const struct hr_operand *operand) {
        return (cuda_is_float(operand) || cuda_is_block(operand)) && cuda_is_dense(operand);
}

static bool attention_supports(const struct hr_step *step) {
        const struct hr_operand *q = &step->sources[0], *k = &step->sources[1],
                                *v = &step->sources[2], *mask = &step->sources[3],
                                *sinks = &step->sources[4];

        if (step->source_count < 3 || q->type != HR_TYPE_F32 || !cuda_is_dense(q) ||
            !is_weight(k) || !is_weight(v) || k->ne[0] > KEY_MAX || v->ne[0] > VALUE_MAX ||
            step->result.type != HR_TYPE_F32 || !cuda_is_dense(&step->result))
                return false;
        if (cuda_has(step, 3) && (mask->type != HR_TYPE_F16 || !cuda_is_dense(mask) ||
                                  mask->ne[0] < k->ne[1] || mask->ne[1] < q->ne[1]))
                return false;
        return !cuda_has(step, 4) || (sinks->type == HR_TYPE_F32 && cuda_is_dense(sinks) &&
                                      sinks->ne[0] >= q->ne[2]);
}

static void attention_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_attention_args args = {
                .out = cuda_tensor_of(&step->result),
                .q = cuda_tensor_of(&step->sources[0]),
                .k = cuda_tensor_of(&step->sources[1]),
                .v = cuda_tensor_of(&step->sources[2]),
                .mask = cuda_source_of(step, 3),
                .sinks = cuda_source_of(step, 4),
                .scale = hr_param_f32(step->params, 0),
                .max_bias = hr_param_f32(step->params, 1),
                .cap = hr_param_f32(step->params, 2),
                .slope_power = 1,
        };

        while (args.slope_power * 2 <= args.q.ne[2])
                args.slope_power *= 2;
        args.slope_base = powf(2.0f, -args.max_bias / (float) args.slope_power);
        args.slope_half = powf(2.0f, -args.max_bias / 2.0f / (float) args.slope_power);
        cuda_builder_launch(builder, CUDA_KERNEL_attention_walk,
                            (uint64_t) cuda_rows(&step->sources[0]), &args, sizeof args);
}

const struct cuda_op cuda_ops_attention[] = {
        { HR_OP_FLASH_ATTN_EXT, false, attention_supports, attention_prepare, NULL },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
