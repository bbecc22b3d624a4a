/*
 * Chains: element-wise nodes that feed one another, and a norm before them, in one pass over chunks
 * that stay in the nearest cache. What lies between two nodes exists as one chunk per thread only.
 *
 * Each link does to a chunk what the node's own kernel does, with the same functions and in the
 * same order, rounded to the type that the result between would have: so a chain gives the bits of
 * its nodes computed one after the other. All that a chunk needs is read before its result is
 * written, hence the result may lie over any source of the same layout.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

struct link {
        struct cpu_call call; /* with the link's own step */
        cpu_map_fn map;       /* one of the two */
        cpu_vec_binary_fn binary;
        const struct hr_operand *other; /* of binary */
        bool other_first, other_repeats;
};

struct chain {
        const struct hr_operand *source; /* of the first step */
        const struct hr_operand *result; /* of the last */
        struct link links[CPU_CHAIN_MAX];
        uint32_t count;
        bool is_flat; /* every operand may be taken as one row */
};

bool cpu_is_norm(uint32_t op) {
        return op == HR_OP_NORM || op == HR_OP_RMS_NORM || op == HR_OP_L2_NORM;
}

/* `before` is the step whose result this one goes on with, NULL for the first. */
static struct link link_of(const struct cpu_call *call, const struct hr_step *step,
                           const struct hr_step *before) {
        struct link link = {.call = *call, .map = cpu_map_find(step->op)};

        link.call.step = step;
        if (link.map || cpu_is_norm(step->op))
                return link;
        link.binary = cpu_binary_find(call->vec, step->op);
        link.other_first = before && step->sources[0].id != before->result.id;
        link.other = &step->sources[link.other_first ? 0 : 1];
        return link;
}

static struct chain chain_of(const struct cpu_call *call) {
        const struct hr_step *steps = call->step;
        struct chain chain = {.source = &steps->sources[0],
                              .result = &steps[steps->joined].result,
                              .count = steps->joined + 1};

        chain.is_flat = cpu_is_contiguous(chain.source) && cpu_is_contiguous(chain.result);
        for (uint32_t i = 0; i < chain.count; i++) {
                struct link *link = &chain.links[i];

                *link = link_of(call, &steps[i], i ? &steps[i - 1] : NULL);
                if (link->other)
                        chain.is_flat = chain.is_flat && cpu_is_contiguous(link->other) &&
                                        cpu_same_shape(link->other, chain.result);
        }
        for (uint32_t i = 0; i < chain.count; i++)
                chain.links[i].other_repeats =
                        chain.links[i].other && !chain.is_flat &&
                        chain.links[i].other->ne[0] != chain.result->ne[0];
        return chain;
}

/* As the result would be read again. */
static void round_to(const struct cpu_vec *vec, uint32_t type, int64_t n, float *values) {
        uint16_t halves[CPU_CHUNK];

        if (type == HR_TYPE_F16) {
                vec->f32_to_f16(n, halves, values);
                vec->f16_to_f32(n, values, halves);
        } else if (type == HR_TYPE_BF16) {
                vec->f32_to_bf16(n, halves, values);
                vec->bf16_to_f32(n, values, halves);
        }
}

static void link_apply(const struct link *link, const struct cpu_piece *piece, float *out,
                       const float *in) {
        const struct cpu_vec *vec = link->call.vec;
        const float *other;
        const uint8_t *row;
        float buffer[CPU_CHUNK];

        if (link->map) {
                link->map(&link->call, piece->n, out, in);
                return;
        }
        row = cpu_row_modulo(link->other, piece->index);
        other = link->other_repeats ? cpu_load_repeated(vec, link->other, row, piece->first,
                                                        piece->n, buffer)
                                    : cpu_load(vec, link->other, row, piece->first, piece->n,
                                               buffer);
        link->binary(piece->n, out, link->other_first ? other : in,
                     link->other_first ? in : other);
}

/* Links first .. count - 1 on one piece, which `in` holds; `values` has room for it. */
static void chain_piece(const struct chain *chain, uint32_t first, const struct cpu_piece *piece,
                        const float *in, float *values) {
        const struct cpu_vec *vec = chain->links[0].call.vec;
        uint8_t *row = cpu_row_at(chain->result, piece->index);

        for (uint32_t i = first; i < chain->count; i++) {
                bool is_last = i + 1 == chain->count;
                float *out = is_last ? cpu_target(chain->result, row, piece->first, values)
                                     : values;

                link_apply(&chain->links[i], piece, out, in);
                if (is_last)
                        cpu_store(vec, chain->result, row, piece->first, piece->n, out);
                else
                        round_to(vec, chain->links[i].call.step->result.type, piece->n, values);
                in = values;
        }
}

static void elements_run(const struct cpu_call *call, const struct chain *chain) {
        struct cpu_call whole = *call;
        struct cpu_walk walk;
        struct cpu_piece piece;
        float source[CPU_CHUNK], values[CPU_CHUNK];

        whole.step = &call->step[chain->count - 1]; /* its result is what is cut */
        walk = cpu_walk_start(&whole, chain->is_flat);
        while (cpu_walk_next(&walk, &piece)) {
                const float *in = cpu_load(call->vec, chain->source,
                                           cpu_row_at(chain->source, piece.index), piece.first,
                                           piece.n, source);

                chain_piece(chain, 0, &piece, in, values);
        }
}

/* The norm of a row, then the links after it. NORM needs the row's memory for its second pass over
 * it: no other source may lie there, see cpu_chain_joins(). */
static void norm_row(const struct cpu_call *call, const struct chain *chain,
                     struct cpu_index index) {
        const float *in = (const float *) (const void *) cpu_row_at(chain->source, index);
        float *out = (float *) (void *) cpu_row_at(chain->result, index);
        int64_t n = chain->result->ne[0];
        float values[CPU_CHUNK], factor;

        factor = cpu_norm_factor(call, n, out, in);
        if (call->step->op == HR_OP_NORM)
                in = out;
        for (int64_t first = 0; first < n; first += CPU_CHUNK) {
                struct cpu_piece piece = {
                        .index = index, .first = first, .n = HR_MIN(n - first, CPU_CHUNK)};

                call->vec->scale(piece.n, values, in + first, factor, 0.0f);
                chain_piece(chain, 1, &piece, values, values);
        }
}

static void chain_run(const struct cpu_call *call) {
        struct chain chain = chain_of(call);
        int64_t first, end;

        if (!cpu_is_norm(call->step->op)) {
                elements_run(call, &chain);
                return;
        }
        chain.is_flat = false;
        for (uint32_t i = 1; i < chain.count; i++)
                chain.links[i].other_repeats =
                        chain.links[i].other && chain.links[i].other->ne[0] != chain.result->ne[0];
        cpu_share(call, cpu_rows(chain.result), 1, &first, &end);
        for (int64_t row = first; row < end; row++)
                norm_row(call, &chain, cpu_index_of_row(chain.result, row));
}

/* What all of them cost together. */
static uint32_t chain_threads(const struct hr_step *step) {
        uint64_t threads = 0;

        for (uint32_t i = 0; i <= step->joined; i++)
                threads += cpu_kernel_find(step[i].op)->threads_max(&step[i]);
        if (cpu_is_norm(step->op))
                threads = HR_MIN(threads, (uint64_t) cpu_rows(&step->result));
        return (uint32_t) HR_MIN(threads, (uint64_t) UINT32_MAX);
}

/* Every step of a chain is supported by itself. */
static bool chain_supports(const struct hr_step *step) {
        for (uint32_t i = 0; i <= step->joined; i++)
                if (!cpu_kernel_find(step[i].op) ||
                    !cpu_kernel_find(step[i].op)->supports(&step[i]))
                        return false;
        return step->joined > 0 && step->joined < CPU_CHAIN_MAX;
}

const struct cpu_kernel cpu_kernel_chain = {
        .supports = chain_supports,
        .threads_max = chain_threads,
        .run = chain_run,
};
