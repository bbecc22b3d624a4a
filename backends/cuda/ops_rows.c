/* CPY, CONT, DUP: elements in logical order. GET_ROWS, SET_ROWS: rows picked by index. */
#include "backends/cuda/ops.h"

static bool is_plain(const struct hr_operand *operand) {
        return cuda_is_float(operand) || operand->type == HR_TYPE_I32;
}

static bool copy_supports(const struct hr_step *step) {
        const struct hr_operand *from = &step->sources[0], *to = &step->result;

        return step->source_count >= 1 && (is_plain(from) || cuda_is_block(from)) &&
               (is_plain(to) || cuda_is_block(to)) &&
               (!cuda_is_block(from) || cuda_is_dense(from)) &&
               (!cuda_is_block(to) || cuda_is_dense(to));
}

static void copy_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const struct hr_operand *from = &step->sources[0], *to = &step->result;
        struct cuda_copy_args args = {
                .out = cuda_tensor_of(to),
                .in = cuda_tensor_of(from),
                .unit = cuda_is_block(from) || cuda_is_block(to) ? 32 : 1,
        };

        args.units = to->ne[0] * cuda_rows(to) / args.unit;
        cuda_builder_launch(builder, CUDA_KERNEL_copy_elements,
                            (uint64_t) ((args.units + CUDA_THREADS - 1) / CUDA_THREADS), &args,
                            sizeof args);
}

static struct cuda_rows_args rows_args(const struct hr_step *step, const struct hr_operand *in,
                                       const struct cuda_builder *builder) {
        return (struct cuda_rows_args) {
                .out = cuda_tensor_of(&step->result),
                .in = cuda_tensor_of(in),
                .ids = cuda_tensor_of(&step->sources[1]),
                .fault = cuda_builder_fault(builder),
                .step = cuda_builder_step(builder),
        };
}

static bool get_rows_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *ids = &step->sources[1];
        uint32_t type = a->type == HR_TYPE_I32 ? HR_TYPE_I32 : HR_TYPE_F32;

        return step->source_count == 2 && (is_plain(a) || cuda_is_block(a)) && cuda_is_dense(a) &&
               ids->type == HR_TYPE_I32 && step->result.type == type &&
               cuda_is_dense(&step->result);
}

static void get_rows_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_rows_args args = rows_args(step, &step->sources[0], builder);

        cuda_builder_launch(builder, CUDA_KERNEL_get_rows, (uint64_t) cuda_rows(&step->result),
                            &args, sizeof args);
}

static bool set_rows_supports(const struct hr_step *step) {
        const struct hr_operand *values = &step->sources[0], *ids = &step->sources[1];

        return step->source_count == 3 &&
               (values->type == HR_TYPE_F32 || values->type == HR_TYPE_F16) &&
               (ids->type == HR_TYPE_I32 || ids->type == HR_TYPE_I64) &&
               (cuda_is_float(&step->result) || cuda_is_block(&step->result)) &&
               cuda_is_dense(&step->result);
}

static void set_rows_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_rows_args args = rows_args(step, &step->sources[0], builder);

        cuda_builder_launch(builder, CUDA_KERNEL_set_rows, (uint64_t) cuda_rows(&step->sources[0]),
                            &args, sizeof args);
}

const struct cuda_op cuda_ops_rows[] = {
        { HR_OP_CPY, false, copy_supports, copy_prepare },
        { HR_OP_CONT, false, copy_supports, copy_prepare },
        { HR_OP_DUP, false, copy_supports, copy_prepare },
        { HR_OP_GET_ROWS, true, get_rows_supports, get_rows_prepare },
        { HR_OP_SET_ROWS, true, set_rows_supports, set_rows_prepare },
        { HR_OP_NONE, false, NULL, NULL },
};
