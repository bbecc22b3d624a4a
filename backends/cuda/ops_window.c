/* Windows on planes and volumes: see kernels/windows.cu. */
#include "backends/cuda/ops.h"

#include <string.h>

static uint64_t blocks_of(int64_t elements) {
        return (uint64_t) ((elements + CUDA_THREADS - 1) / CUDA_THREADS);
}

static int64_t element_count(const struct hr_operand *operand) {
        return operand->ne[0] * cuda_rows(operand);
}

static bool is_f32_or_f16(const struct hr_operand *operand) {
        return operand->type == HR_TYPE_F32 || operand->type == HR_TYPE_F16;
}

/* ---- Volumes --------------------------------------------------------------------------------- */

static int axes_of(const struct hr_step *step) {
        if (step->op == HR_OP_IM2COL_3D || step->op == HR_OP_CONV_3D)
                return 3;
        return step->op == HR_OP_IM2COL && !step->params[6] ? 1 : 2;
}

/* Parameters: strides, pads and dilations, at least two of each. */
static void volume_axes(struct cuda_window_args *args, const struct hr_step *step, int axes) {
        const struct hr_operand *kernel = &step->sources[0], *source = &step->sources[1];
        int most = HR_MAX(axes, 2);

        for (int i = 0; i < 3; i++) {
                bool exists = i < axes;

                args->extent[i] = exists ? source->ne[i] : 1;
                args->nb[i] = exists ? (int64_t) source->nb[i] : 0;
                args->kernel[i] = exists ? kernel->ne[i] : 1;
                args->stride[i] = exists ? step->params[i] : 1;
                args->pad[i] = exists ? step->params[most + i] : 0;
                args->dilation[i] = exists ? step->params[2 * most + i] : 1;
                args->places[i] = 1;
        }
}

static struct cuda_window_args volume_of(const struct hr_step *step) {
        const struct hr_operand *source = &step->sources[1], *result = &step->result;
        bool is_unfolded = step->op == HR_OP_IM2COL || step->op == HR_OP_IM2COL_3D;
        int axes = axes_of(step);
        struct cuda_window_args args = {
                .out = cuda_tensor_of(result),
                .filters = cuda_tensor_of(&step->sources[0]),
                .in = cuda_tensor_of(source),
                .is_deep = axes == 3,
        };

        volume_axes(&args, step, axes);
        for (int i = 0; i < axes; i++)
                args.places[i] = result->ne[i + is_unfolded];
        if (axes < 3) {
                args.channels = source->ne[axes];
                args.channel_nb = (int64_t) source->nb[axes];
                args.batch = source->ne[axes + 1];
                args.batch_nb = (int64_t) source->nb[axes + 1];
                args.count = step->sources[0].ne[3];
                return args;
        }
        args.channels = step->params[9];
        args.channel_nb = (int64_t) source->nb[3];
        args.batch_nb = args.channel_nb * args.channels;
        args.batch = is_unfolded ? source->ne[3] / HR_MAX(args.channels, 1) : step->params[10];
        args.count = step->params[11];
        if (is_unfolded && args.batch > 0)
                args.places[2] = result->ne[3] / args.batch;
        return args;
}

static bool unfold_supports(const struct hr_step *step) {
        return step->source_count == 2 && cuda_is_float(&step->sources[1]) &&
               is_f32_or_f16(&step->result) && cuda_is_contiguous(&step->result);
}

static void unfold_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_window_args args = volume_of(step);

        cuda_builder_launch(builder, CUDA_KERNEL_unfold_windows,
                            blocks_of(element_count(&step->result)), &args, sizeof args);
}

static bool convolve_supports(const struct hr_step *step) {
        return step->source_count == 2 && is_f32_or_f16(&step->sources[0]) &&
               step->sources[1].type == HR_TYPE_F32 && step->result.type == HR_TYPE_F32 &&
               cuda_is_contiguous(&step->result);
}

static void convolve_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_window_args args = volume_of(step);

        cuda_builder_launch(builder, CUDA_KERNEL_convolve_windows,
                            blocks_of(element_count(&step->result)), &args, sizeof args);
}

static bool channels_supports(const struct hr_step *step) {
        return step->source_count == 2 && is_f32_or_f16(&step->sources[0]) &&
               step->sources[1].type == HR_TYPE_F32 && step->result.type == HR_TYPE_F32;
}

static void channels_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_window_args args = volume_of(step);

        cuda_builder_launch(builder, CUDA_KERNEL_convolve_channels,
                            blocks_of(element_count(&step->result)), &args, sizeof args);
}

/* ---- Transposed ------------------------------------------------------------------------------ */

static void transposed_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const struct hr_operand *kernel = &step->sources[0], *source = &step->sources[1];
        int axes = step->op == HR_OP_CONV_TRANSPOSE_1D ? 1 : 2;
        bool is_plane = axes == 2;
        struct cuda_window_args args = {
                .out = cuda_tensor_of(&step->result),
                .filters = cuda_tensor_of(kernel),
                .in = cuda_tensor_of(source),
                .extent = { source->ne[0], is_plane ? source->ne[1] : 1, 1 },
                .kernel = { kernel->ne[0], is_plane ? kernel->ne[1] : 1, 1 },
                .stride = { step->params[0], step->params[0], 1 },
                .places = { step->result.ne[0], is_plane ? step->result.ne[1] : 1, 1 },
                .nb = { (int64_t) source->nb[0], is_plane ? (int64_t) source->nb[1] : 0, 0 },
                .channels = source->ne[axes],
                .channel_nb = (int64_t) source->nb[axes],
                .batch = is_plane ? source->ne[3] : 1,
                .batch_nb = (int64_t) source->nb[3],
                .count = kernel->ne[axes],
                .tap_nb = (int64_t) kernel->nb[1],
                .out_nb = (int64_t) kernel->nb[axes],
                .in_nb = (int64_t) kernel->nb[axes + 1],
        };

        cuda_builder_launch(builder, CUDA_KERNEL_convolve_transposed,
                            blocks_of(element_count(&step->result)), &args, sizeof args);
}

/* ---- Of one source --------------------------------------------------------------------------- */

static void plane_launch(const struct hr_step *step, enum cuda_kernel kernel,
                         struct cuda_builder *builder) {
        struct cuda_shape_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(&step->sources[0]),
                .op = step->op,
        };

        memcpy(args.params, step->params, sizeof args.params);
        cuda_builder_launch(builder, kernel, blocks_of(element_count(&step->result)), &args,
                            sizeof args);
}

static bool fold_supports(const struct hr_step *step) {
        return step->source_count == 1 && cuda_is_float(&step->sources[0]) &&
               step->result.type == step->sources[0].type;
}

static void fold_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        plane_launch(step, CUDA_KERNEL_fold_columns, builder);
}

static bool pool_supports(const struct hr_step *step) {
        return step->source_count == 1 && cuda_is_float(&step->sources[0]) &&
               step->result.type == HR_TYPE_F32;
}

static void pool_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        plane_launch(step, CUDA_KERNEL_pool_windows, builder);
}

static bool resize_supports(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == HR_TYPE_F32 &&
               step->result.type == HR_TYPE_F32;
}

static void resize_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        plane_launch(step, CUDA_KERNEL_resize_planes, builder);
}

const struct cuda_op cuda_ops_window[] = {
        { HR_OP_IM2COL, false, unfold_supports, unfold_prepare, NULL },
        { HR_OP_IM2COL_3D, false, unfold_supports, unfold_prepare, NULL },
        { HR_OP_CONV_2D, false, convolve_supports, convolve_prepare, NULL },
        { HR_OP_CONV_3D, false, convolve_supports, convolve_prepare, NULL },
        { HR_OP_CONV_2D_DW, false, channels_supports, channels_prepare, NULL },
        { HR_OP_CONV_TRANSPOSE_1D, false, convolve_supports, transposed_prepare, NULL },
        { HR_OP_CONV_TRANSPOSE_2D, false, convolve_supports, transposed_prepare, NULL },
        { HR_OP_COL2IM_1D, false, fold_supports, fold_prepare, NULL },
        { HR_OP_POOL_1D, false, pool_supports, pool_prepare, NULL },
        { HR_OP_POOL_2D, false, pool_supports, pool_prepare, NULL },
        { HR_OP_UPSCALE, false, resize_supports, resize_prepare, NULL },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
