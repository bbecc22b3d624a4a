/* Recurrences along time: see kernels/recurrent.cu. All of f32. */
#include "backends/cuda/ops.h"

static uint64_t blocks_of(int64_t lines) {
        return (uint64_t) ((lines + CUDA_THREADS - 1) / CUDA_THREADS);
}

static bool are_f32(const struct hr_step *step, uint32_t count) {
        if (step->source_count < count || step->result.type != HR_TYPE_F32)
                return false;
        for (uint32_t i = 0; i < count; i++)
                if (step->sources[i].type != HR_TYPE_F32 || !cuda_is_dense(&step->sources[i]))
                        return false;
        return true;
}

static struct cuda_recurrent_args args_of(const struct hr_step *step) {
        struct cuda_recurrent_args args = { .out = cuda_tensor_of(&step->result), .op = step->op };

        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(args.sources); i++)
                args.sources[i] = cuda_source_of(step, i);
        return args;
}

/* ---- State spaces ---------------------------------------------------------------------------- */

static bool ssm_conv_supports(const struct hr_step *step) {
        return step->source_count == 2 && are_f32(step, 2);
}

static void ssm_conv_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const int64_t *ne = step->result.ne;
        struct cuda_recurrent_args args = args_of(step);

        cuda_builder_launch(builder, CUDA_KERNEL_convolve_time, blocks_of(ne[0] * ne[1] * ne[2]),
                            &args, sizeof args);
}

enum { STATE, X, DT, DECAY, B, C, IDS, SCAN_SOURCES };

/* A thread walks over all snapshots, of which states without elements may have any number. */
static bool ssm_scan_supports(const struct hr_step *step) {
        return step->source_count == SCAN_SOURCES && are_f32(step, IDS) &&
               step->sources[IDS].type == HR_TYPE_I32 && step->sources[STATE].ne[0] > 0 &&
               cuda_is_contiguous(&step->sources[STATE]) && cuda_is_contiguous(&step->result);
}

static void ssm_scan_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const int64_t *ne = step->sources[X].ne;
        struct cuda_recurrent_args args = args_of(step);

        args.snapshots = step->params[0];
        args.fault = cuda_builder_fault(builder);
        args.step = cuda_builder_step(builder);
        cuda_builder_launch(builder, CUDA_KERNEL_scan_states, blocks_of(ne[0] * ne[1] * ne[3]),
                            &args, sizeof args);
}

/* ---- Linear attention ------------------------------------------------------------------------ */

static uint32_t linear_sources(uint32_t op) {
        return op == HR_OP_RWKV_WKV7 ? 7 : op == HR_OP_RWKV_WKV6 ? 6 : 5;
}

static bool linear_supports(const struct hr_step *step) {
        uint32_t count = linear_sources(step->op);

        if (step->source_count != count || !are_f32(step, count) ||
            !cuda_is_contiguous(&step->result))
                return false;
        for (uint32_t i = 0; i < count; i++)
                if (!cuda_is_contiguous(&step->sources[i]))
                        return false;
        return true;
}

static void linear_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const int64_t *ne = step->sources[0].ne;
        int64_t sequences = step->sources[linear_sources(step->op) - 1].ne[1];
        struct cuda_recurrent_args args = args_of(step);

        args.scale = hr_param_f32(step->params, 0);
        cuda_builder_launch(builder, CUDA_KERNEL_attend_linear,
                            blocks_of(ne[0] * ne[1] * sequences), &args, sizeof args);
}

enum { Q, K, V, GATE, BETA, DELTA_STATE, DELTA_SOURCES };

static bool delta_supports(const struct hr_step *step) {
        return step->source_count == DELTA_SOURCES && are_f32(step, DELTA_SOURCES) &&
               cuda_is_contiguous(&step->sources[DELTA_STATE]) && cuda_is_contiguous(&step->result);
}

static void delta_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const int64_t *ne = step->sources[V].ne;
        struct cuda_recurrent_args args = args_of(step);

        args.snapshots = step->params[0];
        cuda_builder_launch(builder, CUDA_KERNEL_attend_delta, blocks_of(ne[0] * ne[1] * ne[3]),
                            &args, sizeof args);
}

const struct cuda_op cuda_ops_recurrent[] = {
        { HR_OP_SSM_CONV, false, ssm_conv_supports, ssm_conv_prepare, NULL },
        { HR_OP_SSM_SCAN, true, ssm_scan_supports, ssm_scan_prepare, NULL },
        { HR_OP_RWKV_WKV6, false, linear_supports, linear_prepare, NULL },
        { HR_OP_RWKV_WKV7, false, linear_supports, linear_prepare, NULL },
        { HR_OP_GATED_LINEAR_ATTN, false, linear_supports, linear_prepare, NULL },
        { HR_OP_GATED_DELTA_NET, false, delta_supports, delta_prepare, NULL },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
