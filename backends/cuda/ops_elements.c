/* Functions of elements: of one, of two, gated; copies and conversions. */
#include "backends/cuda/ops.h"

/* Pieces of CUDA_CHUNK elements of rows. */
static uint64_t chunks_of(const struct cuda_tensor *t) {
        return (uint64_t) ((t->ne[0] + CUDA_CHUNK - 1) / CUDA_CHUNK * t->ne[1] * t->ne[2] *
                           t->ne[3]);
}

/* ---- One source ------------------------------------------------------------------------------ */

static bool map_supports(const struct hr_step *step) {
        return step->source_count == 1 && cuda_is_float(&step->sources[0]) &&
               cuda_is_float(&step->result) && cuda_same_shape(&step->sources[0], &step->result);
}

static bool unary_supports(const struct hr_step *step) {
        return map_supports(step) && step->params[0] >= 0 && step->params[0] < HR_UNARY_COUNT;
}

static void map_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_map_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(&step->sources[0]),
                .op = step->op,
        };
        uint32_t first = 0;

        if (step->op == HR_OP_UNARY) {
                args.function = step->params[0];
                first = 1;
        }
        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(args.p); i++)
                args.p[i] = hr_param_f32(step->params, first + i);
        cuda_join((struct cuda_tensor *[]) { &args.out, &args.in }, 2);
        cuda_builder_launch(builder, CUDA_KERNEL_map_elements, chunks_of(&args.out), &args,
                            sizeof args);
}

/* ---- Two sources ----------------------------------------------------------------------------- */

static bool binary_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];

        return step->source_count == 2 && cuda_is_float(a) && cuda_is_float(b) &&
               cuda_is_float(&step->result) && cuda_same_shape(a, &step->result) &&
               cuda_repeats(b, a);
}

static void binary_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_binary_args args = {
                .out = cuda_tensor_of(&step->result),
                .a = cuda_tensor_of(&step->sources[0]),
                .b = cuda_tensor_of(&step->sources[1]),
                .op = step->op,
        };

        cuda_join((struct cuda_tensor *[]) { &args.out, &args.a, &args.b }, 3);
        cuda_builder_launch(builder, CUDA_KERNEL_binary_elements, chunks_of(&args.out), &args,
                            sizeof args);
}

static bool add_supports(const struct hr_step *step) {
        return binary_supports(step) || cuda_add_supports(step);
}

static void add_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        if (cuda_is_block(&step->result))
                cuda_add_prepare(step, builder);
        else
                binary_prepare(step, builder);
}

/* ---- REPEAT ---------------------------------------------------------------------------------- */

static bool repeat_supports(const struct hr_step *step) {
        return step->source_count == 1 && !cuda_is_block(&step->sources[0]) &&
               step->result.type == step->sources[0].type &&
               cuda_repeats(&step->sources[0], &step->result);
}

static void repeat_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_copy_args args = {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(&step->sources[0]),
        };

        cuda_builder_launch(builder, CUDA_KERNEL_repeat_elements,
                            (uint64_t) cuda_rows(&step->result), &args, sizeof args);
}

/* ---- Gated ----------------------------------------------------------------------------------- */

static bool glu_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0];
        bool has_gate = cuda_has(step, 1);

        if (step->source_count < 1 || step->params[0] < 0 || step->params[0] >= HR_GLU_COUNT)
                return false;
        if (!cuda_is_float(a) || !cuda_is_float(&step->result) ||
            a->ne[0] != step->result.ne[0] * (has_gate ? 1 : 2))
                return false;
        for (int i = 1; i < HR_DIMS; i++)
                if (a->ne[i] != step->result.ne[i])
                        return false;
        return !has_gate ||
               (cuda_is_float(&step->sources[1]) && cuda_same_shape(a, &step->sources[1]));
}

static void glu_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        bool has_gate = cuda_has(step, 1);
        struct cuda_glu_args args = {
                .out = cuda_tensor_of(&step->result),
                .a = cuda_tensor_of(&step->sources[0]),
                .gate = cuda_tensor_of(&step->sources[has_gate ? 1 : 0]),
                .function = step->params[0],
                .alpha = hr_param_f32(step->params, 2),
                .limit = hr_param_f32(step->params, 3),
        };

        if (has_gate)
                cuda_join((struct cuda_tensor *[]) { &args.out, &args.a, &args.gate }, 3);
        else if (step->params[1])
                args.a_first = args.out.ne[0];
        else
                args.gate_first = args.out.ne[0];
        cuda_builder_launch(builder, CUDA_KERNEL_glu_elements, chunks_of(&args.out), &args,
                            sizeof args);
}

const struct cuda_op cuda_ops_elements[] = {
        { HR_OP_UNARY, false, unary_supports, map_prepare, NULL },
        { HR_OP_SQR, false, map_supports, map_prepare, NULL },
        { HR_OP_SQRT, false, map_supports, map_prepare, NULL },
        { HR_OP_LOG, false, map_supports, map_prepare, NULL },
        { HR_OP_SIN, false, map_supports, map_prepare, NULL },
        { HR_OP_COS, false, map_supports, map_prepare, NULL },
        { HR_OP_SCALE, false, map_supports, map_prepare, NULL },
        { HR_OP_CLAMP, false, map_supports, map_prepare, NULL },
        { HR_OP_LEAKY_RELU, false, map_supports, map_prepare, NULL },
        { HR_OP_FILL, false, map_supports, map_prepare, NULL },
        { HR_OP_ADD, false, add_supports, add_prepare, NULL },
        { HR_OP_SUB, false, binary_supports, binary_prepare, NULL },
        { HR_OP_MUL, false, binary_supports, binary_prepare, NULL },
        { HR_OP_DIV, false, binary_supports, binary_prepare, NULL },
        { HR_OP_ADD1, false, binary_supports, binary_prepare, NULL },
        { HR_OP_REPEAT, false, repeat_supports, repeat_prepare, NULL },
        { HR_OP_GLU, false, glu_supports, glu_prepare, NULL },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
