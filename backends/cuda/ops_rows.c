/* CPY, CONT, DUP, CONCAT: elements in logical order. GET_ROWS, SET_ROWS, ADD_ID: rows picked by
 * index. */
#include "backends/cuda/ops.h"

static bool is_plain(const struct hr_operand *operand) {
        return cuda_is_float(operand) || operand->type == HR_TYPE_I32;
}

static bool copy_supports(const struct hr_step *step) {
        const struct hr_operand *from = &step->sources[0], *to = &step->result;

        return step->source_count >= 1 && (is_plain(from) || cuda_is_block(from)) &&
               (is_plain(to) || cuda_is_encoded(to) ||
                (cuda_is_block(to) && from->type == to->type)) &&
               (!cuda_is_block(from) || cuda_is_dense(from)) &&
               (!cuda_is_block(to) || cuda_is_dense(to));
}

/* Elements that go together: the larger block of the two. */
static uint32_t copy_unit(const struct hr_operand *from, const struct hr_operand *to) {
        return HR_MAX(hr_type_info(from->type)->block_elements,
                      hr_type_info(to->type)->block_elements);
}

static void copy_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const struct hr_operand *from = &step->sources[0], *to = &step->result;
        struct cuda_copy_args args = {
                .out = cuda_tensor_of(to),
                .in = cuda_tensor_of(from),
                .unit = copy_unit(from, to),
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
               (cuda_is_float(&step->result) || cuda_is_encoded(&step->result)) &&
               cuda_is_dense(&step->result);
}

static void set_rows_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_rows_args args = rows_args(step, &step->sources[0], builder);

        cuda_builder_launch(builder, CUDA_KERNEL_set_rows, (uint64_t) cuda_rows(&step->sources[0]),
                            &args, sizeof args);
}

/* ---- CONCAT: two copies into windows --------------------------------------------------------- */

static bool concat_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];

        return step->source_count == 2 && is_plain(a) && a->type == b->type &&
               a->type == step->result.type && step->params[0] >= 0 && step->params[0] < HR_DIMS;
}

static void concat_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_tensor whole = cuda_tensor_of(&step->result);
        int axis = step->params[0];
        int64_t first = 0;

        for (uint32_t i = 0; i < 2; i++) {
                const struct hr_operand *from = &step->sources[i];
                struct cuda_copy_args args = { .out = whole, .in = cuda_tensor_of(from), .unit = 1 };

                args.out.data += (uint64_t) (first * whole.nb[axis]);
                args.out.ne[axis] = from->ne[axis];
                args.units = from->ne[0] * cuda_rows(from);
                cuda_builder_launch(builder, CUDA_KERNEL_copy_elements,
                                    (uint64_t) ((args.units + CUDA_THREADS - 1) / CUDA_THREADS),
                                    &args, sizeof args);
                first += from->ne[axis];
        }
}

/* ---- ADD_ID: a[e, u, t] + b[e, ids[u, t]] ---------------------------------------------------- */

static bool add_id_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1],
                                *ids = &step->sources[2];

        return step->source_count == 3 && cuda_is_float(a) && cuda_is_float(b) &&
               ids->type == HR_TYPE_I32 && cuda_is_float(&step->result) &&
               cuda_same_shape(a, &step->result) && a->ne[0] == b->ne[0] &&
               ids->ne[0] == a->ne[1] && ids->ne[1] == a->ne[2] && a->ne[3] == 1;
}

static void add_id_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_add_id_args args = {
                .out = cuda_tensor_of(&step->result),
                .a = cuda_tensor_of(&step->sources[0]),
                .b = cuda_tensor_of(&step->sources[1]),
                .ids = cuda_tensor_of(&step->sources[2]),
                .fault = cuda_builder_fault(builder),
                .step = cuda_builder_step(builder),
        };

        cuda_builder_launch(builder, CUDA_KERNEL_add_id_rows, (uint64_t) cuda_rows(&step->result),
                            &args, sizeof args);
}

const struct cuda_op cuda_ops_rows[] = {
        { HR_OP_CONCAT, false, concat_supports, concat_prepare },
        { HR_OP_ADD_ID, true, add_id_supports, add_id_prepare },
        { HR_OP_CPY, false, copy_supports, copy_prepare },
        { HR_OP_CONT, false, copy_supports, copy_prepare },
        { HR_OP_DUP, false, copy_supports, copy_prepare },
        { HR_OP_GET_ROWS, true, get_rows_supports, get_rows_prepare },
        { HR_OP_SET_ROWS, true, set_rows_supports, set_rows_prepare },
        { HR_OP_NONE, false, NULL, NULL },
};
