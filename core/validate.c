/*
 * Validation: one loop over the leaves, one over the nodes, no recursion. A node is judged after
 * all of its sources, which have smaller ids, so every size met here is already known to fit.
 */
#include "core/infer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define WIRE_FLAGS (HR_TENSOR_INPUT | HR_TENSOR_OUTPUT)

HR_PRINTF(4, 5)
static hr_status refuse_tensor(struct hr_diag *diag, uint32_t id, const char *reason,
                               const char *format, ...) {
        char words[HR_DIAG_WORDS_BYTES];
        va_list args;

        va_start(args, format);
        (void) vsnprintf(words, sizeof words, format, args);
        va_end(args);
        if (diag && diag->status == HR_OK) {
                diag->has_tensor = true;
                diag->tensor = id;
        }
        return hr_fail_reason(diag, HR_E_INVALID, reason, "%s", words);
}

/* What is wrong with a type and extents that cannot be laid out. */
static hr_status refuse_shape(const struct hr_graph *graph, uint32_t id, struct hr_diag *diag) {
        struct hr_tensor dense = graph->tensors[id];
        struct hr_diag own = { 0 };
        hr_status status = hr_tensor_set_contiguous(&dense, &own);

        HR_ASSERT(status != HR_OK);
        return refuse_tensor(diag, id, own.reason, "%s", own.words);
}

/* Type, extents and, where declared, strides: sane in themselves and under the limit. */
static hr_status check_size(const struct hr_graph *graph, const struct hr_graph_limits *limits,
                            uint32_t id, struct hr_diag *diag) {
        struct hr_tensor dense = graph->tensors[id];
        uint64_t bytes;

        if (hr_tensor_set_contiguous(&dense, NULL) != HR_OK)
                return refuse_shape(graph, id, diag);
        bytes = dense.nb[HR_DIMS - 1] * (uint64_t) dense.ne[HR_DIMS - 1];
        if (limits->tensor_bytes_max && bytes > limits->tensor_bytes_max) {
                if (diag && diag->status == HR_OK) {
                        diag->has_tensor = true;
                        diag->tensor = id;
                        diag->limit = limits->tensor_bytes_max;
                        diag->actual = bytes;
                }
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "TENSOR_BYTES",
                                      "a tensor of %" PRIu64 " bytes, the limit is %" PRIu64,
                                      bytes, limits->tensor_bytes_max);
        }
        return HR_OK;
}

/* To the letter, also where an extent of 1 would hide a stride. check_size() has been passed. */
static bool has_dense_strides(const struct hr_tensor *tensor) {
        struct hr_tensor dense = *tensor;

        HR_ASSERT(hr_tensor_set_contiguous(&dense, NULL) == HR_OK);
        return memcmp(dense.nb, tensor->nb, sizeof dense.nb) == 0;
}

static hr_status check_leaf(const struct hr_graph *graph, uint32_t id, struct hr_diag *diag) {
        const struct hr_tensor *leaf = &graph->tensors[id];
        uint64_t constant_bytes = graph->constant_offsets[id + 1] - graph->constant_offsets[id];
        uint64_t name_bytes = graph->name_offsets[id + 1] - graph->name_offsets[id];

        if (leaf->leaf_kind < HR_LEAF_WEIGHT || leaf->leaf_kind > HR_LEAF_CONSTANT)
                return refuse_tensor(diag, id, "LEAF", "leaf kind %" PRIu32, leaf->leaf_kind);
        if (leaf->op != HR_OP_NONE || leaf->source_count)
                return refuse_tensor(diag, id, "LEAF", "a leaf with an op or with sources");
        if (leaf->view_base != HR_TENSOR_NONE || leaf->view_offset || !has_dense_strides(leaf))
                return refuse_tensor(diag, id, "LEAF", "a leaf that is a view or not contiguous");
        for (int i = 0; i < HR_OP_PARAM_WORDS; i++)
                if (leaf->params[i])
                        return refuse_tensor(diag, id, "PARAM", "a leaf with parameters");
        if (leaf->flags & ~WIRE_FLAGS)
                return refuse_tensor(diag, id, "FLAG", "flags %#" PRIx32, leaf->flags);
        if ((leaf->flags & HR_TENSOR_INPUT) && leaf->leaf_kind != HR_LEAF_INPUT)
                return refuse_tensor(diag, id, "FLAG", "flagged input, but of another leaf kind");
        if (leaf->leaf_kind == HR_LEAF_CONSTANT ? constant_bytes != hr_tensor_bytes(leaf)
                                                : constant_bytes != 0)
                return refuse_tensor(diag, id, "SIZE",
                                     "%" PRIu64 " bytes of constant for a tensor of %" PRIu64,
                                     constant_bytes, hr_tensor_bytes(leaf));
        if ((leaf->leaf_kind == HR_LEAF_WEIGHT || leaf->leaf_kind == HR_LEAF_STATE) && !name_bytes)
                return refuse_tensor(diag, id, "NAME", "a weight or state without a name");
        return HR_OK;
}

/* Two state leaves of one name would be two tensors on the same memory, unseen by the scheduler. */
static hr_status check_state_names(const struct hr_graph *graph, struct hr_diag *diag) {
        hr_status status = HR_OK;
        uint64_t mask = 15;
        uint32_t *slots;

        while (mask < graph->leaf_count * UINT64_C(2))
                mask = mask * 2 + 1;
        slots = calloc(mask + 1, sizeof *slots);
        if (!slots)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory to compare names");
        for (uint32_t id = 0; id < graph->leaf_count && status == HR_OK; id++) {
                size_t size, other_size;
                const char *name;
                uint64_t at;

                if (graph->tensors[id].leaf_kind != HR_LEAF_STATE)
                        continue;
                name = hr_graph_name(graph, id, &size);
                at = XXH3_64bits(name, size) & mask;
                for (; slots[at]; at = (at + 1) & mask) {
                        const char *other = hr_graph_name(graph, slots[at] - 1, &other_size);

                        if (size == other_size && memcmp(name, other, size) == 0) {
                                status = refuse_tensor(diag, id, "NAME",
                                                       "a second state of the same name");
                                break;
                        }
                }
                slots[at] = id + 1;
        }
        free(slots);
        return status;
}

static hr_status gather_sources(struct hr_infer *infer) {
        const struct hr_tensor *node = infer->node;
        const struct hr_op_info *info = hr_op_info(node->op);

        HR_INFER_NEED(node->source_count <= info->sources_max, "ARITY",
                      "%" PRIu32 " sources, at most %d", node->source_count, info->sources_max);
        for (uint32_t i = 0; i < HR_MAX(node->source_count, info->sources_min); i++) {
                uint32_t id = hr_graph_source(infer->graph, node, i);

                infer->source_ids[i] = id;
                if (id == HR_TENSOR_NONE) {
                        HR_INFER_NEED(i >= info->sources_min, "ARITY",
                                      "source %" PRIu32 " is missing", i);
                        continue;
                }
                HR_INFER_NEED(id < infer->id, "SOURCE",
                              "source %" PRIu32 " is tensor %" PRIu32
                              ", which does not come before the node",
                              i, id);
                infer->sources[i] = &infer->graph->tensors[id];
        }
        return HR_OK;
}

/* The root whose memory is written must be writable. */
static hr_status check_writable(struct hr_infer *infer, uint32_t base) {
        uint32_t kind = infer->graph->tensors[base].leaf_kind;

        HR_INFER_NEED(kind != HR_LEAF_WEIGHT && kind != HR_LEAF_CONSTANT, "ALIAS",
                      "writes into tensor %" PRIu32 ", which is read-only", base);
        return HR_OK;
}

/* An op that may work in place names its source 0 as base: same memory, same layout. */
static hr_status check_in_place(struct hr_infer *infer) {
        const struct hr_tensor *node = infer->node, *source = infer->sources[0];
        bool is_root = source->view_base == HR_TENSOR_NONE; /* such ops have a source 0 */

        HR_INFER_NEED(hr_op_info(node->op)->kind == HR_OP_KIND_INPLACE, "VIEW",
                      "this op cannot be a view");
        HR_INFER_NEED(node->view_base == (is_root ? infer->source_ids[0] : source->view_base) &&
                              node->view_offset == (is_root ? 0 : source->view_offset),
                      "VIEW", "in place, but not over source 0");
        HR_INFER_NEED((node->type == source->type) & hr_tensor_same_shape(node, source) &
                              (memcmp(node->nb, source->nb, sizeof node->nb) == 0),
                      "VIEW", "in place with another type, shape or strides");
        return check_writable(infer, node->view_base);
}

static hr_status check_view(struct hr_infer *infer) {
        const struct hr_tensor *node = infer->node;
        const struct hr_tensor *base = &infer->graph->tensors[infer->view_base];
        uint64_t span, end;

        HR_INFER_NEED(node->view_base == infer->view_base &&
                              node->view_offset == infer->view_offset,
                      "VIEW", "declared on tensor %" PRIu32 " at %" PRIu64 ", it is on %" PRIu32
                              " at %" PRIu64,
                      node->view_base, node->view_offset, infer->view_base, infer->view_offset);
        HR_INFER_NEED(memcmp(node->nb, infer->nb, sizeof node->nb) == 0, "STRIDE",
                      "declared strides differ from the inferred ones");
        HR_INFER_NEED(hr_tensor_span(node, NULL, &span) == HR_OK, "SIZE",
                      "the strided span does not fit 63 bits");
        HR_INFER_NEED(hr_add_u64(span, node->view_offset, &end) && end <= hr_tensor_bytes(base),
                      "VIEW", "ends past its base");
        if (hr_op_info(node->op)->kind == HR_OP_KIND_WRITER)
                return check_writable(infer, infer->view_base);
        return HR_OK;
}

static hr_status check_memory(struct hr_infer *infer) {
        const struct hr_tensor *node = infer->node;

        if (infer->is_view)
                return check_view(infer);
        if (node->view_base != HR_TENSOR_NONE)
                return check_in_place(infer);
        HR_INFER_NEED(node->view_offset == 0, "VIEW", "an offset without a base");
        if (infer->has_strides)
                HR_INFER_NEED(memcmp(node->nb, infer->nb, sizeof node->nb) == 0, "STRIDE",
                              "declared strides differ from the inferred ones");
        else
                HR_INFER_NEED(has_dense_strides(node), "STRIDE", "the result is not contiguous");
        return HR_OK;
}

static hr_status find_inference(struct hr_infer *infer, hr_infer_fn *ret_fn) {
        uint32_t op = infer->node->op;

        *ret_fn = hr_infer_lookup(op);
        HR_INFER_NEED(*ret_fn, "OP", "%" PRIu32 " is no op of a node", op);
        return HR_OK;
}

static hr_status check_node(const struct hr_graph *graph, const struct hr_graph_limits *limits,
                            uint32_t id, struct hr_diag *diag) {
        const struct hr_tensor *node = &graph->tensors[id];
        struct hr_infer context = { .graph = graph, .id = id, .node = node, .diag = diag };
        struct hr_infer *infer = &context;
        hr_infer_fn fn;

        HR_TRY(find_inference(infer, &fn));
        HR_INFER_NEED(node->leaf_kind == HR_LEAF_NOT, "LEAF", "a node with a leaf kind");
        HR_INFER_NEED(!(node->flags & ~WIRE_FLAGS) && !(node->flags & HR_TENSOR_INPUT), "FLAG",
                      "flags %#" PRIx32, node->flags);
        HR_TRY(check_size(graph, limits, id, diag));
        HR_TRY(gather_sources(infer));
        HR_TRY(fn(infer));
        for (uint32_t i = infer->params_used; i < HR_OP_PARAM_WORDS; i++)
                HR_INFER_NEED(node->params[i] == 0, "PARAM", "unused word %" PRIu32 " is not 0", i);
        HR_INFER_NEED(node->type == infer->type, "DTYPE", "declared %s, it is %s",
                      hr_type_name(node->type), hr_type_name(infer->type));
        HR_INFER_NEED(memcmp(node->ne, infer->ne, sizeof node->ne) == 0, "SHAPE",
                      "declared [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "], it is [%" PRId64
                      ",%" PRId64 ",%" PRId64 ",%" PRId64 "]",
                      node->ne[0], node->ne[1], node->ne[2], node->ne[3], infer->ne[0],
                      infer->ne[1], infer->ne[2], infer->ne[3]);
        return check_memory(infer);
}

/* What is counted while the tensors are looked at: they fill more than the caches of a processor,
 * and are walked over once. */
struct walk {
        uint64_t next_source; /* where the sources of the next tensor begin */
        uint32_t input_count, input_first, input_end;
        uint32_t output_count, output_first, output_end;
};

/* Sources lie one node after the other, so that equal graphs have equal bytes. */
static hr_status walk_take(struct walk *walk, const struct hr_graph *graph, uint32_t id,
                           struct hr_diag *diag) {
        const struct hr_tensor *tensor = &graph->tensors[id];

        if (tensor->source_first != walk->next_source || tensor->reserved)
                return refuse_tensor(diag, id, "COLUMN", "sources are not in node order");
        walk->next_source += tensor->source_count;
        if (walk->next_source > graph->source_count)
                return refuse_tensor(diag, id, "COLUMN", "more sources than the graph has");
        if (tensor->leaf_kind == HR_LEAF_INPUT) {
                if (walk->input_count++ == 0)
                        walk->input_first = id;
                walk->input_end = id + 1;
        }
        if (tensor->flags & HR_TENSOR_OUTPUT) {
                if (walk->output_count++ == 0)
                        walk->output_first = id;
                walk->output_end = id + 1;
        }
        return HR_OK;
}

/* Lists inputs and outputs in id order. */
static hr_status list_ends(struct hr_graph *graph, const struct walk *walk, struct hr_diag *diag) {
        free(graph->inputs);
        free(graph->outputs);
        graph->inputs = calloc(walk->input_count + (size_t) 1, sizeof *graph->inputs);
        graph->outputs = calloc(walk->output_count + (size_t) 1, sizeof *graph->outputs);
        if (!graph->inputs || !graph->outputs)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the lists of a graph");
        graph->input_count = graph->output_count = 0;
        for (uint32_t id = walk->input_first; id < walk->input_end; id++) {
                if (graph->tensors[id].leaf_kind != HR_LEAF_INPUT)
                        continue;
                graph->tensors[id].flags |= HR_TENSOR_INPUT;
                graph->inputs[graph->input_count++] = id;
        }
        for (uint32_t id = walk->output_first; id < walk->output_end; id++)
                if (graph->tensors[id].flags & HR_TENSOR_OUTPUT)
                        graph->outputs[graph->output_count++] = id;
        return HR_OK;
}

hr_status hr_graph_validate(struct hr_graph *graph, const struct hr_graph_limits *limits,
                            struct hr_diag *diag) {
        struct walk walk = { 0 };

        HR_ASSERT(!graph->frozen);
        if (graph->extra_count)
                return hr_fail_reason(diag, HR_E_INVALID, "LEAF", "tensors outside the graph");
        for (uint32_t id = 0; id < graph->leaf_count; id++) {
                HR_TRY(walk_take(&walk, graph, id, diag));
                HR_TRY(check_size(graph, limits, id, diag));
                HR_TRY(check_leaf(graph, id, diag));
        }
        HR_TRY(check_state_names(graph, diag));
        for (uint32_t node = 0; node < graph->node_count; node++) {
                HR_TRY(walk_take(&walk, graph, graph->leaf_count + node, diag));
                HR_TRY(check_node(graph, limits, graph->leaf_count + node, diag));
        }
        if (walk.next_source != graph->source_count)
                return hr_fail_reason(diag, HR_E_INVALID, "COLUMN",
                                      "%" PRIu32 " sources, the nodes name %" PRIu64,
                                      graph->source_count, walk.next_source);
        HR_TRY(list_ends(graph, &walk, diag));
        graph->frozen = true;
        return HR_OK;
}

hr_status hr_graph_infer(struct hr_graph *graph, uint32_t id, struct hr_diag *diag) {
        struct hr_tensor *node = &graph->tensors[id];
        struct hr_infer context = { .graph = graph, .id = id, .node = node, .diag = diag };
        struct hr_infer *infer = &context;
        hr_infer_fn fn;

        HR_ASSERT(!graph->frozen);
        HR_TRY(find_inference(infer, &fn));
        HR_TRY(gather_sources(infer));
        HR_TRY(fn(infer));
        node->type = infer->type;
        memcpy(node->ne, infer->ne, sizeof node->ne);
        if (infer->is_view) {
                node->view_base = infer->view_base;
                node->view_offset = infer->view_offset;
        }
        if (infer->is_view || infer->has_strides)
                memcpy(node->nb, infer->nb, sizeof node->nb);
        else
                HR_TRY(hr_tensor_set_contiguous(node, diag));
        return HR_OK;
}
