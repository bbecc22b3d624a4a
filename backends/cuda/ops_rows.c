/* CPY, CONT, DUP, CONCAT: elements in logical order. GET_ROWS, SET_ROWS, ADD_ID: rows picked by
 * index. */
#include "backends/cuda/ops.h"

static bool is_plain(const struct hr_operand *operand) {
        return cuda_is_float(operand) || operand->type == HR_TYPE_I32;
}

static bool copy_supports(const struct hr_step *step) {
        const struct hr_operand *from = &step->sources[0], *to = &step->result;

        if (step->source_count < 1 || (cuda_is_block(from) && !cuda_is_dense(from)) ||
            (cuda_is_block(to) && !cuda_is_dense(to)))
                return false;
        if (from->type == to->type)
                return true;
        return (is_plain(from) || cuda_is_block(from)) && (is_plain(to) || cuda_is_encoded(to));
}

/* To blocks of another type than the source's. */
static void encode_launch(struct cuda_builder *builder, struct cuda_tensor out,
                          struct cuda_tensor in) {
        struct cuda_encode_args args = {
                .rows = { .out = out, .in = in, .ids = { .ne = { 1, 1, 1, 1 } } },
                .addend = { .ne = { 1, 1, 1, 1 } },
        };

        cuda_builder_launch(builder, CUDA_KERNEL_encode_rows,
                            (uint64_t) (out.ne[1] * out.ne[2] * out.ne[3]), &args, sizeof args);
}

void cuda_copy_launch(struct cuda_builder *builder, struct cuda_tensor out, struct cuda_tensor in) {
        const struct hr_type_info *from = hr_type_info(in.type), *to = hr_type_info(out.type);
        bool expands = from->is_block && from != to;
        struct cuda_copy_args args = { .out = out, .in = in };

        if (to->is_block && from != to) {
                encode_launch(builder, out, in);
                return;
        }
        args.unit = expands ? 32 : to->block_elements;
        args.units = in.ne[0] * in.ne[1] * in.ne[2] * in.ne[3] / args.unit;
        cuda_builder_launch(builder,
                            expands ? CUDA_KERNEL_expand_blocks : CUDA_KERNEL_copy_elements,
                            (uint64_t) ((args.units + CUDA_THREADS - 1) / CUDA_THREADS), &args,
                            sizeof args);
}

static void copy_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        cuda_copy_launch(builder, cuda_tensor_of(&step->result), cuda_tensor_of(&step->sources[0]));
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
        struct cuda_encode_args args = {
                .rows = rows_args(step, &step->sources[0], builder),
                .addend = { .ne = { 1, 1, 1, 1 } },
        };
        uint64_t rows = (uint64_t) cuda_rows(&step->sources[0]);

        if (cuda_is_block(&step->result))
                cuda_builder_launch(builder, CUDA_KERNEL_encode_rows, rows, &args, sizeof args);
        else
                cuda_builder_launch(builder, CUDA_KERNEL_set_rows, rows, &args.rows,
                                    sizeof args.rows);
}

/* ---- ADD to blocks, encoded anew ------------------------------------------------------------- */

bool cuda_add_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];

        return step->source_count == 2 && cuda_is_encoded(a) && cuda_is_dense(a) &&
               step->result.type == a->type && cuda_is_dense(&step->result) && cuda_is_float(b) &&
               cuda_same_shape(a, &step->result) && cuda_repeats(b, a);
}

void cuda_add_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_encode_args args = {
                .rows = { .out = cuda_tensor_of(&step->result),
                          .in = cuda_tensor_of(&step->sources[0]),
                          .ids = { .ne = { 1, 1, 1, 1 } } },
                .addend = cuda_tensor_of(&step->sources[1]),
        };

        cuda_builder_launch(builder, CUDA_KERNEL_encode_rows,
                            (uint64_t) cuda_rows(&step->result), &args, sizeof args);
}

/* ---- CONCAT: two copies into windows --------------------------------------------------------- */

static bool concat_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];

        return step->source_count == 2 && a->type == b->type && a->type == step->result.type &&
               cuda_is_dense(a) && cuda_is_dense(b) && cuda_is_dense(&step->result) &&
               step->params[0] >= 0 && step->params[0] < HR_DIMS;
}

static void concat_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        struct cuda_tensor whole = cuda_tensor_of(&step->result);
        int64_t block = hr_type_info(whole.type)->block_elements, first = 0;
        int axis = step->params[0];

        for (uint32_t i = 0; i < 2; i++) {
                struct cuda_tensor from = cuda_tensor_of(&step->sources[i]), out = whole;

                out.data += (uint64_t) ((axis == 0 ? first / block : first) * whole.nb[axis]);
                out.ne[axis] = from.ne[axis];
                cuda_copy_launch(builder, out, from);
                first += from.ne[axis];
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
        { HR_OP_CONCAT, false, concat_supports, concat_prepare, NULL },
        { HR_OP_ADD_ID, true, add_id_supports, add_id_prepare, NULL },
        { HR_OP_CPY, false, copy_supports, copy_prepare, NULL },
        { HR_OP_CONT, false, copy_supports, copy_prepare, NULL },
        { HR_OP_DUP, false, copy_supports, copy_prepare, NULL },
        { HR_OP_GET_ROWS, true, get_rows_supports, get_rows_prepare, NULL },
        { HR_OP_SET_ROWS, true, set_rows_supports, set_rows_prepare, NULL },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
