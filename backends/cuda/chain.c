/* See chain.h. */
#include "backends/cuda/chain.h"

#include "core/chains.h"

static bool is_function(uint32_t op) {
        switch (op) {
        case HR_OP_UNARY:
        case HR_OP_SQR:
        case HR_OP_SQRT:
        case HR_OP_LOG:
        case HR_OP_SIN:
        case HR_OP_COS:
        case HR_OP_SCALE:
        case HR_OP_CLAMP:
        case HR_OP_LEAKY_RELU:
                return true;
        default:
                return false;
        }
}

static bool is_pair(uint32_t op) {
        return op == HR_OP_ADD || op == HR_OP_SUB || op == HR_OP_MUL || op == HR_OP_DIV;
}

static bool is_norm_op(uint32_t op) {
        return op == HR_OP_NORM || op == HR_OP_RMS_NORM || op == HR_OP_L2_NORM;
}

/* ---- Choosing -------------------------------------------------------------------------------- */

static bool is_float_type(uint32_t type) {
        return type == HR_TYPE_F32 || type == HR_TYPE_F16 || type == HR_TYPE_BF16;
}

static bool is_link(const struct hr_tensor *t) {
        return is_float_type(t->type) && (is_function(t->op) || is_pair(t->op));
}

static bool is_norm(const struct hr_tensor *t) {
        return is_norm_op(t->op);
}

/* The kernel reads rows twice and writes what each thread alone reads: no order matters. */
static bool norm_may_lead(const struct hr_graph *graph, const struct hr_tensor *norm,
                          const struct hr_tensor *reader) {
        return norm->type == HR_TYPE_F32 && norm->source_count == 1;
}

static const struct hr_chain_rules rules = {
        .most = CUDA_CHAIN_MAX, /* with a norm before them one fewer than there could be */
        .links = is_link,
        .leads = is_norm,
        .may_lead = norm_may_lead,
};

void cuda_optimize(const struct hr_device *device, const struct hr_split_view *view,
                   uint32_t *order, bool *joined) {
        hr_chains_join(view, &rules, order, joined);
}

/* ---- Launching ------------------------------------------------------------------------------- */

bool cuda_chain_supports(const struct hr_step *step) {
        uint32_t links = step->joined + !is_norm_op(step->op);

        for (uint32_t i = 0; i <= step->joined; i++)
                if (!cuda_op_find(&step[i]) || (i > 0 && is_norm_op(step[i].op)) ||
                    (!is_norm_op(step[i].op) && !is_function(step[i].op) && !is_pair(step[i].op)))
                        return false;
        return links > 0 && links <= CUDA_CHAIN_MAX;
}

/* `before` is the step whose result this one goes on with, NULL for the first. */
static struct cuda_link link_of(const struct hr_step *step, const struct hr_step *before) {
        struct cuda_link link = { .op = step->op,
                                  .type = step->result.type,
                                  .other = { .ne = { 1, 1, 1, 1 } } };
        uint32_t first = step->op == HR_OP_UNARY;

        if (is_pair(step->op)) {
                link.other_first = before && step->sources[0].id != before->result.id;
                link.other = cuda_tensor_of(&step->sources[link.other_first ? 0 : 1]);
                return link;
        }
        if (first)
                link.function = step->params[0];
        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(link.p); i++)
                link.p[i] = hr_param_f32(step->params, first + i);
        return link;
}

/* As few and as long rows as memory allows. */
static void join_rows(struct cuda_chain_args *args) {
        struct cuda_tensor *tensors[CUDA_CHAIN_MAX + 2] = { &args->out, &args->in };
        uint32_t count = 2;

        for (uint32_t i = 0; i < args->count; i++)
                if (args->links[i].other.is_present)
                        tensors[count++] = &args->links[i].other;
        cuda_join(tensors, count);
}

void cuda_chain_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        const struct hr_step *last = &step[step->joined];
        bool has_norm = is_norm_op(step->op);
        struct cuda_chain_args args = {
                .out = cuda_tensor_of(&last->result),
                .in = cuda_tensor_of(&step->sources[0]),
                .op = step->op,
        };
        uint64_t rows = (uint64_t) cuda_rows(&last->result), chunks;

        for (uint32_t i = has_norm; i <= step->joined; i++)
                args.links[args.count++] = link_of(&step[i], i ? &step[i - 1] : NULL);
        if (has_norm) {
                args.eps = hr_param_f32(step->params, 0);
                cuda_builder_launch(builder, CUDA_KERNEL_chain_rows, rows, &args, sizeof args);
                return;
        }
        join_rows(&args);
        chunks = (uint64_t) ((args.out.ne[0] + CUDA_CHUNK - 1) / CUDA_CHUNK * args.out.ne[1] *
                             args.out.ne[2] * args.out.ne[3]);
        cuda_builder_launch(builder, CUDA_KERNEL_chain_elements, chunks, &args, sizeof args);
}
