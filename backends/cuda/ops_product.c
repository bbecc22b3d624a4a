/*
 * MUL_MAT and MUL_MAT_ID: which kernels make a product, and what scratch they need.
 *
 * Weights in blocks are multiplied with columns rounded to bytes, which the step makes in its
 * scratch first. Columns of experts, when there are many, are gathered by expert there. All of it
 * is decided by types and shapes alone, so that scratch can be told before there are addresses.
 *
 * Large products of floats are the library's, where there is one. It is given halves on both sides,
 * rounded as the own kernels round them, and scratch of its own. So are, from some number of
 * columns on, products of weights in blocks: rows of them are expanded to bf16 in scratch, as many
 * at a time as it holds, and multiplied. Expanding costs the same for any number of columns, and
 * the units for halves are the ones that the library keeps busy.
 */
#include "backends/cuda/blas.h"
#include "backends/cuda/ops.h"

#define ROWS_OF_BLOCK 8 /* a warp each */
#define SCRATCH_ALIGN 256

static bool is_weight(const struct hr_operand *operand) {
        return (cuda_is_float(operand) || cuda_is_block(operand)) && cuda_is_dense(operand);
}

static uint64_t parts_of(int64_t whole, int64_t part) {
        return (uint64_t) ((whole + part - 1) / part);
}

/* ---- Ways ------------------------------------------------------------------------------------ */

static bool has_experts(const struct hr_step *step) {
        return step->op == HR_OP_MUL_MAT_ID;
}

/* Columns that go through one matrix together, as far as shapes tell. */
static bool has_few_columns(const struct hr_step *step) {
        return step->result.ne[has_experts(step) ? 2 : 1] <= CUDA_STREAM_COLUMNS;
}

static bool has_groups(const struct hr_step *step) {
        return has_experts(step) && !has_few_columns(step);
}

/* Experts' columns go one by one. */
static enum cuda_kernel few_kernel(const struct hr_step *step) {
        switch (step->sources[0].type) {
        case HR_TYPE_F32:
        case HR_TYPE_F16:
        case HR_TYPE_BF16:
                return has_experts(step) || step->result.ne[1] == 1 ? CUDA_KERNEL_vector_column
                                                                    : CUDA_KERNEL_vector_floats;
#define X(name)                                                                                    \
        case HR_TYPE_##name:                                                                       \
                return CUDA_KERNEL_stream_##name;
                CUDA_STREAM_TYPES(X)
#undef X
        default:
                return CUDA_KERNEL_stream_any;
        }
}

/* Has the type one scale for 16 elements? */
static bool is_by_halves(uint32_t type) {
        switch (type) {
        case HR_TYPE_NVFP4:
        case HR_TYPE_Q2_K:
        case HR_TYPE_Q3_K:
        case HR_TYPE_Q6_K:
        case HR_TYPE_IQ2_XS:
        case HR_TYPE_IQ2_S:
        case HR_TYPE_IQ1_M:
                return true;
        default:
                return false;
        }
}

static enum cuda_kernel many_kernel(const struct hr_operand *a, const struct hr_operand *b) {
        if (cuda_is_block(a))
                return is_by_halves(a->type) ? CUDA_KERNEL_block_tiles_halves
                                             : CUDA_KERNEL_block_tiles_whole;
        if (a->type == HR_TYPE_F32 || (b->type != HR_TYPE_F32 && b->type != a->type))
                return CUDA_KERNEL_plain_tiles;
        return a->type == HR_TYPE_F16 ? CUDA_KERNEL_half_tiles_f16 : CUDA_KERNEL_half_tiles_bf16;
}

/* A product is large from that many multiplications on. */
#define LARGE ((int64_t) 1 << 21)
#define LARGE_EXTENT 32
#define WORKSPACE (UINT64_C(32) << 20)

/* Bytes of expanded weights that lie in scratch at most, but for a few rows that are very long:
 * what an H200's second-level cache holds, so that the product reads them from there. */
#define EXPANDED (INT64_C(32) << 20)
#define EXPANDED_ROWS 128

/* Columns are then rounded with one scale for as many. */
static bool is_of_256(const struct hr_operand *a) {
        return hr_type_info(a->type)->block_elements == 256;
}

/* Does no row begin before the one in front of it has ended? The rows of a view may overlap. */
static bool has_rows_apart(const struct hr_operand *operand) {
        return operand->nb[1] / operand->nb[0] >= (uint64_t) operand->ne[0];
}

/* Is it the library's? One matrix, whose columns lie as the library wants them. */
static bool is_large(const struct hr_step *step, const struct cuda_options *options) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1],
                                *out = &step->result;
        int64_t most = LARGE_EXTENT;

        if (has_experts(step) || b->type != HR_TYPE_F32 || out->ne[2] * out->ne[3] != 1 ||
            out->nb[1] % 16 || a->ne[0] % 8 ||
            (a->type == HR_TYPE_F32 && (b->nb[1] % 16 || !has_rows_apart(b))) ||
            (cuda_is_block(a) ? out->ne[1] < options->batch_min
                              : a->nb[1] % 16 != 0 || !has_rows_apart(a)))
                return false;
        return out->ne[0] >= most && out->ne[1] >= most && a->ne[0] >= most &&
               out->ne[0] <= INT32_MAX && out->ne[1] <= INT32_MAX && a->ne[0] <= INT32_MAX &&
               out->ne[0] * out->ne[1] >= LARGE / a->ne[0] && cuda_blas_open();
}

/* ---- Scratch --------------------------------------------------------------------------------- */

struct layout {
        uint64_t bytes, scales, group, list, counts, halves, expanded, workspace; /* offsets */
        uint64_t total;
};

static uint64_t layout_take(struct layout *layout, uint64_t bytes) {
        uint64_t offset = layout->total;

        layout->total += (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
        return offset;
}

static int64_t pair_count(const struct hr_step *step) {
        return step->result.ne[1] * step->result.ne[2];
}

/* As many as there can be: one that is not full for each expert. */
static int64_t group_count(const struct hr_step *step) {
        return pair_count(step) / CUDA_TILE_COLUMNS +
               HR_MIN(pair_count(step), step->sources[0].ne[2]);
}

/* Rows of weights that are expanded at a time. */
static int64_t expanded_rows(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0];
        int64_t rows = EXPANDED / (2 * a->ne[0]) / EXPANDED_ROWS * EXPANDED_ROWS;

        return HR_MIN(HR_MAX(rows, EXPANDED_ROWS), a->ne[1]);
}

static struct layout layout_of(const struct hr_step *step, const struct cuda_options *options) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];
        struct layout layout = { 0 };

        if (cuda_is_block(a)) {
                uint64_t columns = (uint64_t) cuda_rows(b);
                int64_t group = is_of_256(a) ? CUDA_ROUNDED_LARGE : CUDA_ROUNDED;

                layout.bytes = layout_take(&layout,
                                           columns * parts_of(b->ne[0], group) * (uint64_t) group);
                layout.scales = layout_take(&layout, columns * (uint64_t) (b->ne[0] / 32) *
                                                             sizeof(struct cuda_activation));
        }
        if (has_groups(step)) {
                layout.group = layout_take(&layout, (uint64_t) group_count(step) *
                                                            sizeof(struct cuda_group));
                layout.list = layout_take(&layout, (uint64_t) pair_count(step) * sizeof(int32_t));
                layout.counts = layout_take(&layout, (uint64_t) a->ne[2] * sizeof(int32_t));
        }
        if (is_large(step, options)) {
                /* First what several products may share, at the same place for all of them. */
                if (a->type != HR_TYPE_F32)
                        layout.halves = layout_take(&layout, (uint64_t) (b->ne[0] * cuda_rows(b)) *
                                                                     sizeof(uint16_t));
                layout.workspace = layout_take(&layout, WORKSPACE);
                if (cuda_is_block(a))
                        layout.expanded = layout_take(&layout, (uint64_t) (expanded_rows(step) *
                                                                           a->ne[0]) *
                                                                       sizeof(uint16_t));
        }
        return layout;
}

static uint64_t product_scratch(const struct hr_step *step, const struct cuda_options *options) {
        return layout_of(step, options).total;
}

/* ---- Launches -------------------------------------------------------------------------------- */

static void round_launch(const struct hr_step *step, const struct cuda_product_args *product,
                         struct cuda_builder *builder) {
        struct cuda_round_args args = {
                .in = product->b,
                .bytes = product->bytes,
                .scales = product->scales,
                .is_large = is_of_256(&step->sources[0]),
        };

        cuda_builder_make(builder, CUDA_KERNEL_round_columns,
                          parts_of(args.in.ne[0], 256 * ROWS_OF_BLOCK) *
                                  (uint64_t) cuda_rows(&step->sources[1]),
                          &args, sizeof args);
}

static void group_launch(const struct cuda_product_args *product, uint64_t counts,
                         struct cuda_builder *builder) {
        struct cuda_group_args args = {
                .ids = product->ids,
                .fault = product->fault,
                .step = product->step,
                .group = product->group,
                .list = product->list,
                .counts = counts,
                .groups = product->groups,
                .experts = product->a.ne[2],
        };

        cuda_builder_launch(builder, CUDA_KERNEL_group_experts, 1, &args, sizeof args);
}

static void few_launch(const struct hr_step *step, const struct cuda_product_args *args,
                       struct cuda_builder *builder) {
        const struct hr_operand *out = &step->result;
        uint64_t columns = has_experts(step) ? (uint64_t) out->ne[1]
                                             : parts_of(out->ne[1], CUDA_STREAM_COLUMNS);

        cuda_builder_launch(builder, few_kernel(step),
                            parts_of(out->ne[0], ROWS_OF_BLOCK) * columns *
                                    (uint64_t) (out->ne[2] * out->ne[3]),
                            args, sizeof *args);
}

static void many_launch(const struct hr_step *step, const struct cuda_product_args *args,
                        struct cuda_builder *builder) {
        const struct hr_operand *out = &step->result;
        enum cuda_kernel kernel = many_kernel(&step->sources[0], &step->sources[1]);
        int64_t rows = kernel == CUDA_KERNEL_plain_tiles ? CUDA_FLOAT_ROWS : CUDA_TILE_ROWS;
        uint64_t columns = parts_of(out->ne[1], CUDA_TILE_COLUMNS) *
                           (uint64_t) (out->ne[2] * out->ne[3]);

        if (has_experts(step))
                columns = (uint64_t) args->groups;
        cuda_builder_launch(builder, kernel, parts_of(out->ne[0], rows) * columns, args,
                            sizeof *args);
}

/* The columns as the library takes them: halves of that type in scratch, or as they are. */
static void columns_launch(const struct hr_step *step, uint32_t type, uint64_t halves,
                           struct cuda_builder *builder, struct cuda_matmul_spec *spec) {
        const struct hr_operand *b = &step->sources[1];
        struct cuda_narrow_args narrow = {
                .in = cuda_tensor_of(b),
                .halves = halves,
                .type = type,
        };

        if (type == HR_TYPE_F32) {
                spec->b = (uint64_t) (uintptr_t) b->data;
                spec->b_stride = (int64_t) b->nb[1] / 4;
                return;
        }
        spec->b = halves;
        spec->b_stride = b->ne[0];
        cuda_builder_make(builder, CUDA_KERNEL_narrow_rows, (uint64_t) cuda_rows(b), &narrow,
                          sizeof narrow);
}

/* Weights in blocks, expanded part by part. False: as large_launch; whoever then makes the product
 * writes over what was. */
static bool expanded_launch(const struct hr_step *step, uint64_t halves,
                            struct cuda_matmul_spec spec, struct cuda_builder *builder) {
        const struct hr_operand *a = &step->sources[0];
        struct cuda_expand_args expand = { .in = cuda_tensor_of(a), .halves = halves };
        const uint64_t out = spec.out;
        bool has_way = true;

        spec.a = halves;
        spec.a_stride = spec.k;
        for (; expand.first < a->ne[1] && has_way; expand.first += expand.rows) {
                expand.rows = HR_MIN(expanded_rows(step), a->ne[1] - expand.first);
                cuda_builder_launch(builder, CUDA_KERNEL_expand_rows,
                                    parts_of(expand.rows * (a->ne[0] / 32), CUDA_THREADS), &expand,
                                    sizeof expand);
                spec.m = expand.rows;
                spec.out = out + (uint64_t) expand.first * sizeof(float);
                has_way = cuda_builder_matmul(builder, &spec);
        }
        return has_way;
}

/* False: the library has no way for it. */
static bool large_launch(const struct hr_step *step, const struct layout *layout,
                         struct cuda_builder *builder) {
        const struct hr_operand *a = &step->sources[0], *out = &step->result;
        uint64_t scratch = cuda_builder_scratch(builder);
        struct cuda_matmul_spec spec = {
                .type = cuda_is_block(a) ? HR_TYPE_BF16 : a->type,
                .m = out->ne[0],
                .n = out->ne[1],
                .k = a->ne[0],
                .a_stride = (int64_t) a->nb[1] / (a->type == HR_TYPE_F32 ? 4 : 2),
                .out_stride = (int64_t) out->nb[1] / 4,
                .a = (uint64_t) (uintptr_t) a->data,
                .out = (uint64_t) (uintptr_t) out->data,
                .workspace = scratch + layout->workspace,
                .workspace_bytes = WORKSPACE,
        };

        columns_launch(step, spec.type, scratch + layout->halves, builder, &spec);
        if (cuda_is_block(a))
                return expanded_launch(step, scratch + layout->expanded, spec, builder);
        return cuda_builder_matmul(builder, &spec);
}

static void product_prepare(const struct hr_step *step, struct cuda_builder *builder) {
        uint64_t scratch = cuda_builder_scratch(builder);
        const struct cuda_options *options = cuda_builder_options(builder);
        struct layout layout = layout_of(step, options);
        struct cuda_product_args args = {
                .out = cuda_tensor_of(&step->result),
                .a = cuda_tensor_of(&step->sources[0]),
                .b = cuda_tensor_of(&step->sources[1]),
                .ids = cuda_source_of(step, 2),
                .bytes = scratch + layout.bytes,
                .scales = scratch + layout.scales,
                .group = scratch + layout.group,
                .list = scratch + layout.list,
        };

        if (is_large(step, options) && large_launch(step, &layout, builder))
                return;
        if (has_experts(step)) {
                args.fault = cuda_builder_fault(builder);
                args.step = cuda_builder_step(builder);
        }
        if (has_groups(step)) {
                args.groups = group_count(step);
                group_launch(&args, scratch + layout.counts, builder);
        }
        if (cuda_is_block(&step->sources[0]))
                round_launch(step, &args, builder);
        if (has_few_columns(step))
                few_launch(step, &args, builder);
        else
                many_launch(step, &args, builder);
}

/* ---- Support --------------------------------------------------------------------------------- */

static bool product_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];

        return step->source_count == 2 && is_weight(a) && cuda_is_float(b) && cuda_is_dense(b) &&
               (b->type == HR_TYPE_F32 || cuda_is_float(a)) && step->result.type == HR_TYPE_F32 &&
               cuda_is_dense(&step->result);
}

static bool experts_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];

        return step->source_count == 3 && is_weight(a) && b->type == HR_TYPE_F32 &&
               cuda_is_dense(b) && step->sources[2].type == HR_TYPE_I32 &&
               step->result.type == HR_TYPE_F32 && cuda_is_dense(&step->result) &&
               pair_count(step) <= INT32_MAX && a->ne[2] <= INT32_MAX;
}

const struct cuda_op cuda_ops_product[] = {
        { HR_OP_MUL_MAT, false, product_supports, product_prepare, product_scratch },
        { HR_OP_MUL_MAT_ID, true, experts_supports, product_prepare, product_scratch },
        { HR_OP_NONE, false, NULL, NULL, NULL },
};
