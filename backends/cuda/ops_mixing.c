/* SOLVE_TRI, LIGHTNING_INDEXER, DSV4_HC_COMB, _PRE and _POST: see kernels/mixing.cu. */
#include "backends/cuda/ops.h"

#define STREAMS 4

static uint64_t blocks_of(int64_t items, int64_t of_block) {
        return (uint64_t) ((items + of_block - 1) / of_block);
}

static void mixing_launch(const struct hr_step *step, enum cuda_kernel kernel, uint64_t blocks,
                          struct cuda_builder *builder) {
        struct cuda_mixing_args args = { .out = cuda_tensor_of(&step->result) };

        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(args.sources); i++)
                args.sources[i] = cuda_source_of(step, i);
        if (step->op == HR_OP_DSV4_HC_COMB) {
                args.epsilon = hr_param_f32(step->params, 0);
                args.iterations = step->params[1];
        }
        cuda_builder_launch(builder, kernel, blocks, &args, sizeof args);
}

/* A thread each. */
static void elements_launch(const struct hr_step *step, enum cuda_kernel kernel, int64_t items,
                            struct cuda_builder *builder) {
        mixing_launch(step, kernel, blocks_of(items, CUDA_THREADS), builder);
}

/* `count` sources and the result are of f32, their rows without gaps. */
static bool are_floats(const struct hr_step *step, uint32_t count) {
        if (step->source_count != count || step->result.type != HR_TYPE_F32 ||
            !cuda_is_dense(&step->result))
                return false;
        for (uint32_t i = 0; i < count; i++)
                if (step->sources[i].type != HR_TYPE_F32 || !cuda_is_dense(&step->sources[i]))
                        return false;
        return true;
}

static bool has_shape(const struct hr_operand *operand, int64_t n0, int64_t n1, int64_t n2,
                      int64_t n3) {
        return operand->ne[0] == n0 && operand->ne[1] == n1 && operand->ne[2] == n2 &&
               operand->ne[3] == n3;
}

static bool solve_supports(const struct hr_step *step) {
        const int64_t *ne = step->result.ne;

        return are_floats(step, 2) && cuda_same_shape(&step->sources[1], &step->result) &&
               has_shape(&step->sources[0], ne[1], ne[1], ne[2], ne[3]);
}

static void solve_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const int64_t *ne = step->result.ne;

        elements_launch(step, CUDA_KERNEL_solve_columns, ne[0] * ne[2] * ne[3], builder);
}

static bool indexer_supports(const struct hr_step *step) {
        const struct hr_operand *q = &step->sources[0], *k = &step->sources[1],
                                *weights = &step->sources[2], *mask = &step->sources[3];
        const int64_t *ne = step->result.ne;

        if (step->source_count != 4 || q->type != HR_TYPE_F32 || weights->type != HR_TYPE_F32 ||
            mask->type != HR_TYPE_F16 || step->result.type != HR_TYPE_F32 ||
            !(cuda_is_float(k) || cuda_is_block(k)) || !cuda_is_dense(&step->result))
                return false;
        for (uint32_t i = 0; i < 4; i++)
                if (!cuda_is_dense(&step->sources[i]))
                        return false;
        return ne[2] == 1 && has_shape(q, q->ne[0], q->ne[1], ne[1], ne[3]) &&
               has_shape(k, q->ne[0], 1, ne[0], ne[3]) &&
               has_shape(weights, q->ne[1], ne[1], 1, ne[3]) &&
               has_shape(mask, ne[0], ne[1], 1, mask->ne[3]) && mask->ne[3] > 0 &&
               ne[3] % mask->ne[3] == 0;
}

static void indexer_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const int64_t *ne = step->result.ne;

        mixing_launch(step, CUDA_KERNEL_score_keys,
                      blocks_of(ne[0] * ne[1] * ne[3], CUDA_THREADS / 32), builder);
}

static bool comb_supports(const struct hr_step *step) {
        const int64_t *ne = step->result.ne;

        return are_floats(step, 3) && has_shape(&step->result, STREAMS, STREAMS, ne[2], 1) &&
               has_shape(&step->sources[0], (2 + STREAMS) * STREAMS, ne[2], 1, 1) &&
               step->sources[1].ne[0] >= 3 &&
               step->sources[2].ne[0] == (2 + STREAMS) * STREAMS;
}

static void comb_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        elements_launch(step, CUDA_KERNEL_combine_streams, step->result.ne[2], builder);
}

static bool pre_supports(const struct hr_step *step) {
        const struct hr_operand *x = &step->sources[0];

        return are_floats(step, 2) && has_shape(x, x->ne[0], x->ne[1], x->ne[2], 1) &&
               has_shape(&step->result, x->ne[0], x->ne[2], 1, 1) &&
               has_shape(&step->sources[1], x->ne[1], x->ne[2], 1, 1);
}

static void pre_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const int64_t *ne = step->result.ne;

        elements_launch(step, CUDA_KERNEL_mix_streams, ne[0] * ne[1], builder);
}

static bool post_supports(const struct hr_step *step) {
        const struct hr_operand *sources = step->sources;
        const int64_t *ne = step->result.ne;

        return are_floats(step, 4) && ne[3] == 1 && has_shape(&sources[0], ne[0], ne[2], 1, 1) &&
               cuda_same_shape(&sources[1], &step->result) &&
               has_shape(&sources[2], ne[1], ne[2], 1, 1) &&
               has_shape(&sources[3], ne[1], ne[1], ne[2], 1);
}

static void post_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const int64_t *ne = step->result.ne;

        elements_launch(step, CUDA_KERNEL_spread_streams, ne[0] * ne[1] * ne[2], builder);
}

const struct cuda_op cuda_ops_mixing[] = {
        { HR_OP_SOLVE_TRI, false, solve_supports, solve_prepare, NULL },
        { HR_OP_LIGHTNING_INDEXER, false, indexer_supports, indexer_prepare, NULL },
        { HR_OP_DSV4_HC_COMB, false, comb_supports, comb_prepare, NULL },
        { HR_OP_DSV4_HC_PRE, false, pre_supports, pre_prepare, NULL },
        { HR_OP_DSV4_HC_POST, false, post_supports, post_prepare, NULL },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
