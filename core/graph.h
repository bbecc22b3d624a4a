/*
 * The graph IR: what a client submits. Immutable once hr_graph_validate() has accepted it.
 *
 * Tensor ids: leaves are 0 .. leaf_count-1, nodes follow in execution order, so node i has the id
 * leaf_count + i. A source of a node has a smaller id than the node; this makes cycles impossible
 * to write down. (Recorded reference graphs may hold self-sources and `extra` tensors past the
 * nodes; validation refuses both, the scheduler copes with both.)
 *
 * Arrays are sized when the graph is made; there is no limit other than the caller's.
 * Ownership: reference counted; every array belongs to the graph. Thread: any once frozen.
 */
#pragma once

#include <stdatomic.h>

#include "core/tensor.h"

struct hr_graph {
        atomic_uint refs;
        bool frozen;
        uint32_t leaf_count, node_count, extra_count;
        uint32_t source_count;
        struct hr_tensor *tensors;  /* leaf_count + node_count + extra_count */
        uint32_t *sources;          /* ids, HR_TENSOR_NONE for an absent one */
        /* Names: tensor i's is name_bytes[name_offsets[i] .. name_offsets[i + 1]), no
         * terminator. */
        uint64_t *name_offsets;     /* tensor_count + 1 */
        char *names;
        /* Constants: leaf i's bytes are constants[constant_offsets[i] .. [i + 1]). */
        uint64_t *constant_offsets; /* leaf_count + 1 */
        uint8_t *constants;
        /* Filled by validation, in id order. */
        uint32_t *inputs, input_count;   /* leaves of kind INPUT */
        uint32_t *outputs, output_count; /* tensors flagged OUTPUT */
};

struct hr_graph_sizes {
        uint32_t leaf_count, node_count, extra_count, source_count;
        uint64_t name_bytes, constant_bytes;
};

/* Zeroed storage of the given sizes, one reference. HR_E_EXHAUSTED without memory, HR_E_INVALID
 * when a count wraps. The caller fills the arrays, then validates. */
HR_NODISCARD hr_status hr_graph_new(const struct hr_graph_sizes *sizes, struct hr_diag *diag,
                                    struct hr_graph **ret_graph);
struct hr_graph *hr_graph_ref(struct hr_graph *graph);
struct hr_graph *hr_graph_unref(struct hr_graph *graph); /* returns NULL; NULL is a no-op */
HR_DEFINE_CLEANUP(struct hr_graph *, hr_graph_unrefp, hr_graph_unref)

static inline uint32_t hr_graph_tensor_count(const struct hr_graph *graph) {
        return graph->leaf_count + graph->node_count + graph->extra_count;
}

static inline const struct hr_tensor *hr_graph_node(const struct hr_graph *graph, uint32_t node) {
        return &graph->tensors[graph->leaf_count + node];
}

/* Id of source `position` of a tensor; HR_TENSOR_NONE when absent or past its sources. */
static inline uint32_t hr_graph_source(const struct hr_graph *graph,
                                       const struct hr_tensor *tensor, uint32_t position) {
        return position < tensor->source_count ? graph->sources[tensor->source_first + position]
                                               : HR_TENSOR_NONE;
}

/* The source itself, or NULL. */
static inline const struct hr_tensor *hr_graph_source_tensor(const struct hr_graph *graph,
                                                             const struct hr_tensor *tensor,
                                                             uint32_t position) {
        uint32_t id = hr_graph_source(graph, tensor, position);

        return id == HR_TENSOR_NONE ? NULL : &graph->tensors[id];
}

/* What it takes of the host's memory. */
uint64_t hr_graph_memory_bytes(const struct hr_graph *graph);
/* A tensor's name; not terminated. */
const char *hr_graph_name(const struct hr_graph *graph, uint32_t tensor, size_t *ret_bytes);
/* Hash of everything stored (names and constants too): equal before and after any planning. */
uint64_t hr_graph_hash(const struct hr_graph *graph);

struct hr_graph_limits {
        uint64_t tensor_bytes_max; /* of any one tensor */
};

/*
 * Checks everything and freezes the graph: arity, source order, types, shapes and strides of every
 * op by inference (what the client declared must equal what is inferred), parameters, views inside
 * their base, leaf kinds, flags. Nothing the client declared is believed. Linear time, no
 * recursion.
 *
 * HR_E_INVALID with node or tensor, reason (ARITY, SOURCE, DTYPE, BLOCK, SHAPE, STRIDE, SIZE, VIEW,
 * PARAM, FLAG, LEAF, ALIAS, NAME, COLUMN) and words; HR_E_INVALID (reason OP) for a
 * number that is no op; HR_E_EXHAUSTED for a tensor over the limit. On failure the graph stays
 * unfrozen.
 */
HR_NODISCARD hr_status hr_graph_validate(struct hr_graph *graph,
                                         const struct hr_graph_limits *limits,
                                         struct hr_diag *diag);

/*
 * Fills in what validation would demand of tensor `id`, a node whose op, sources and parameters are
 * set: type, extents, strides, view. Extents, type and strides that the op leaves open (RESHAPE,
 * VIEW, CONT, REPEAT, ...) are taken from the node as it is. For who builds graphs; leaves and
 * nodes may be mixed, as long as sources have smaller ids. Failures as of hr_graph_validate().
 */
HR_NODISCARD hr_status hr_graph_infer(struct hr_graph *graph, uint32_t id, struct hr_diag *diag);
