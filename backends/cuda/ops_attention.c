/*
 * FLASH_ATTN_EXT: on the matrix units where keys and values are F16 or blocks that fit, else key by
 * key. With few rows the keys are shared out over several blocks, whose parts lie in scratch.
 */
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

/* ---- Ways ------------------------------------------------------------------------------------ */

/* Blocks of threads that a GPU is to have at least, and keys that are worth one. */
#define BLOCKS_WANTED 264
#define KEYS_WORTH 128

static bool is_short(const struct hr_operand *operand) {
        return (operand->type == HR_TYPE_F16 || cuda_is_block(operand)) &&
               operand->ne[0] <= CUDA_ATTENTION_SIZE;
}

/* Do heads of q fall into groups that share heads of both? */
static bool attention_has_tiles(const struct hr_step *step) {
        const struct hr_operand *q = &step->sources[0], *k = &step->sources[1],
                                *v = &step->sources[2];

        return is_short(k) && is_short(v) && q->ne[2] % k->ne[2] == 0 && k->ne[2] % v->ne[2] == 0;
}

static int64_t tile_count(const struct hr_step *step) {
        const struct hr_operand *q = &step->sources[0], *k = &step->sources[1];
        int64_t rows = q->ne[1] * (q->ne[2] / k->ne[2]);

        return (rows + CUDA_ATTENTION_ROWS - 1) / CUDA_ATTENTION_ROWS * k->ne[2] * q->ne[3];
}

static int64_t split_count(const struct hr_step *step) {
        int64_t keys = (step->sources[1].ne[1] + KEYS_WORTH - 1) / KEYS_WORTH;
        int64_t wanted = BLOCKS_WANTED / HR_MAX(tile_count(step), 1);

        return HR_MAX(1, HR_MIN(keys, wanted));
}

static uint64_t attention_scratch(const struct hr_step *step, const struct cuda_options *options) {
        if (!attention_has_tiles(step) || split_count(step) == 1)
                return 0;
        return (uint64_t) (split_count(step) * cuda_rows(&step->sources[0]) *
                           (step->sources[2].ne[0] + 2)) *
               sizeof(float);
}

/* ---- Launches -------------------------------------------------------------------------------- */

static void attention_launch(const struct hr_step *step, struct cuda_attention_args *args,
                             struct cuda_builder *builder) {
        uint64_t rows = (uint64_t) cuda_rows(&step->sources[0]);

        if (!attention_has_tiles(step)) {
                cuda_builder_launch(builder, CUDA_KERNEL_attention_walk, rows, args, sizeof *args);
                return;
        }
        args->splits = split_count(step);
        args->parts = cuda_builder_scratch(builder);
        cuda_builder_launch(builder, CUDA_KERNEL_attention_tiles,
                            (uint64_t) (tile_count(step) * args->splits), args, sizeof *args);
        if (args->splits > 1)
                cuda_builder_launch(builder, CUDA_KERNEL_attention_join, rows, args, sizeof *args);
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
        attention_launch(step, &args, builder);
}

const struct cuda_op cuda_ops_attention[] = {
        { HR_OP_FLASH_ATTN_EXT, false, attention_supports, attention_prepare, attention_scratch },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
