/*
 * Graphs and manifests in columns.
 *
 * Decoding a graph is four steps: scan (where are the columns), count (lengths against each other
 * and against the limits, all in 64 bits, before any memory is taken), fill (one pass over
 * tensors), views (one pass that replaces each base by the root of its chain). What results is
 * well-formed as data (every id in it names a tensor, every count holds), and otherwise just what
 * the client said: whether it is a sensible graph is hr_graph_validate()'s question.
 *
 * Lists that name tensors (views, strides) need not be sorted; a tensor named twice is refused.
 * The columns flags, name_length, source_count and param_count may be absent: zeros then.
 */
#include "core/tensor.h"
#include "proto/columns.h"

enum {
        GRAPH_LEAF_COUNT = 1,
        GRAPH_OP,
        GRAPH_TYPE,
        GRAPH_FLAGS,
        GRAPH_NE,
        GRAPH_LEAF_KIND,
        GRAPH_SOURCE_COUNT,
        GRAPH_SOURCE,
        GRAPH_PARAM_COUNT,
        GRAPH_PARAM,
        GRAPH_VIEW_TENSOR,
        GRAPH_VIEW_BASE,
        GRAPH_VIEW_OFFSET,
        GRAPH_STRIDE_TENSOR,
        GRAPH_STRIDE,
        GRAPH_NAME_LENGTH,
        GRAPH_NAMES,
        GRAPH_CONSTANT_BYTES,
        GRAPH_CONSTANTS,
};

static const uint8_t graph_widths[HR_COLUMN_TAGS] = {
        UINT8_MAX, 0, 4, 4, 4, 8, 4, 4, 4, 4, 4, 4, 4, 8, 4, 8, 4, 1, 8, 1,
};

/* ---- decoding -------------------------------------------------------------------------------- */

struct graph_counts {
        uint64_t leaves, nodes, tensors;
        uint64_t sources, params, views, strides, constants;
        uint64_t name_bytes, constant_bytes;
};

static hr_status over_limit(struct hr_diag *diag, const char *field, uint64_t limit,
                            uint64_t actual) {
        hr_status status =
                hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT", "%s: %llu, at most %llu", field,
                               (unsigned long long) actual, (unsigned long long) limit);

        if (diag) {
                diag->field = field;
                diag->limit = limit;
                diag->actual = actual;
        }
        return status;
}

static hr_status column_fail(struct hr_diag *diag, const char *field, uint64_t tensor,
                             const char *words) {
        hr_status status = hr_fail_reason(diag, HR_E_INVALID, "COLUMN", "%s of tensor %llu: %s",
                                          field, (unsigned long long) tensor, words);

        if (diag) {
                diag->field = field;
                diag->has_tensor = true;
                diag->tensor = (uint32_t) tensor;
        }
        return status;
}

/* Absent, or one element for each of `count`. */
static hr_status expect_or_absent(const struct hr_column *column, const char *name, uint64_t count,
                                  struct hr_diag *diag) {
        return column->bytes == 0 ? HR_OK : hr_column_expect(column, name, count, diag);
}

static uint64_t sum_u64_saturated(const struct hr_column *column) {
        uint64_t count = hr_column_count(column);
        uint64_t sum = 0;

        for (uint64_t i = 0; i < count; i++)
                if (!hr_add_u64(sum, hr_column_u64(column, i), &sum))
                        return UINT64_MAX;
        return sum;
}

/* The counts that the columns themselves define, and the limits on them. */
static hr_status graph_count(const struct hr_columns *columns,
                             const struct hr_wire_graph_limits *limits, struct hr_diag *diag,
                             struct graph_counts *counts) {
        const struct hr_column *at = columns->at;

        counts->leaves = at[GRAPH_LEAF_COUNT].value;
        counts->nodes = hr_column_count(&at[GRAPH_OP]);
        if (counts->nodes > limits->nodes_max)
                return over_limit(diag, "nodes", limits->nodes_max, counts->nodes);
        if (counts->leaves > limits->leaves_max)
                return over_limit(diag, "leaf_count", limits->leaves_max, counts->leaves);
        if (!hr_add_u64(counts->leaves, counts->nodes, &counts->tensors) ||
            counts->tensors >= HR_TENSOR_NONE)
                return over_limit(diag, "tensors", HR_TENSOR_NONE - 1, counts->tensors);
        counts->sources = hr_column_count(&at[GRAPH_SOURCE]);
        counts->params = hr_column_count(&at[GRAPH_PARAM]);
        counts->views = hr_column_count(&at[GRAPH_VIEW_TENSOR]);
        counts->strides = hr_column_count(&at[GRAPH_STRIDE_TENSOR]);
        counts->constants = hr_column_count(&at[GRAPH_CONSTANT_BYTES]);
        counts->name_bytes = at[GRAPH_NAMES].bytes;
        counts->constant_bytes = at[GRAPH_CONSTANTS].bytes;
        return HR_OK;
}

/* Every column against the counts. A leaf count that lies is found here, for `type` has one element
 * per tensor and is on the wire; so the memory of the result is a small multiple of the message. */
static hr_status graph_cross_check(const struct hr_columns *columns,
                                   const struct graph_counts *counts, struct hr_diag *diag) {
        const struct hr_column *at = columns->at;

        HR_TRY(hr_column_expect(&at[GRAPH_TYPE], "type", counts->tensors, diag));
        HR_TRY(expect_or_absent(&at[GRAPH_FLAGS], "flags", counts->tensors, diag));
        HR_TRY(hr_column_expect(&at[GRAPH_NE], "ne", counts->tensors * HR_DIMS, diag));
        HR_TRY(hr_column_expect(&at[GRAPH_LEAF_KIND], "leaf_kind", counts->leaves, diag));
        HR_TRY(expect_or_absent(&at[GRAPH_SOURCE_COUNT], "source_count", counts->nodes, diag));
        HR_TRY(hr_column_expect(&at[GRAPH_SOURCE], "source",
                                hr_column_sum_u32(&at[GRAPH_SOURCE_COUNT]), diag));
        HR_TRY(expect_or_absent(&at[GRAPH_PARAM_COUNT], "param_count", counts->nodes, diag));
        HR_TRY(hr_column_expect(&at[GRAPH_PARAM], "param",
                                hr_column_sum_u32(&at[GRAPH_PARAM_COUNT]), diag));
        HR_TRY(hr_column_expect(&at[GRAPH_VIEW_BASE], "view_base", counts->views, diag));
        HR_TRY(hr_column_expect(&at[GRAPH_VIEW_OFFSET], "view_offset", counts->views, diag));
        HR_TRY(hr_column_expect(&at[GRAPH_STRIDE], "stride", counts->strides * HR_DIMS, diag));
        HR_TRY(expect_or_absent(&at[GRAPH_NAME_LENGTH], "name_length", counts->tensors, diag));
        HR_TRY(hr_column_expect(&at[GRAPH_NAMES], "names",
                                hr_column_sum_u32(&at[GRAPH_NAME_LENGTH]), diag));
        HR_TRY(hr_column_expect(&at[GRAPH_CONSTANTS], "constants",
                                sum_u64_saturated(&at[GRAPH_CONSTANT_BYTES]), diag));
        return HR_OK;
}

/* Types, extents, contiguous strides, flags, kinds of all tensors. */
static hr_status graph_fill_tensors(const struct hr_columns *columns, struct hr_graph *graph,
                                    struct hr_diag *diag) {
        const struct hr_column *at = columns->at;
        uint32_t count = hr_graph_tensor_count(graph);
        bool has_flags = at[GRAPH_FLAGS].bytes > 0;

        for (uint32_t i = 0; i < count; i++) {
                struct hr_tensor *tensor = &graph->tensors[i];

                tensor->type = hr_column_u32(&at[GRAPH_TYPE], i);
                tensor->flags = has_flags ? hr_column_u32(&at[GRAPH_FLAGS], i) : 0;
                tensor->view_base = HR_TENSOR_NONE;
                memcpy(tensor->ne, at[GRAPH_NE].data + (size_t) i * sizeof tensor->ne,
                       sizeof tensor->ne);
                if (hr_tensor_set_contiguous(tensor, diag) != HR_OK) {
                        if (diag) {
                                diag->has_tensor = true;
                                diag->tensor = i;
                        }
                        return HR_E_INVALID;
                }
        }
        for (uint32_t i = 0; i < graph->leaf_count; i++)
                graph->tensors[i].leaf_kind = hr_column_u32(&at[GRAPH_LEAF_KIND], i);
        return HR_OK;
}

/* Ops, sources and parameters of the nodes. */
static hr_status graph_fill_nodes(const struct hr_columns *columns, struct hr_graph *graph,
                                  struct hr_diag *diag) {
        const struct hr_column *at = columns->at;
        uint32_t tensors = hr_graph_tensor_count(graph);
        bool has_sources = at[GRAPH_SOURCE_COUNT].bytes > 0;
        bool has_params = at[GRAPH_PARAM_COUNT].bytes > 0;
        uint64_t param_first = 0;
        uint32_t source_first = 0;

        if (graph->source_count > 0)
                memcpy(graph->sources, at[GRAPH_SOURCE].data, at[GRAPH_SOURCE].bytes);
        for (uint32_t i = 0; i < graph->source_count; i++)
                if (graph->sources[i] >= tensors && graph->sources[i] != HR_TENSOR_NONE)
                        return hr_fail_reason(diag, HR_E_INVALID, "COLUMN",
                                              "source %u names tensor %u of %u", i,
                                              graph->sources[i], tensors);
        for (uint32_t i = 0; i < graph->node_count; i++) {
                struct hr_tensor *node = &graph->tensors[graph->leaf_count + i];
                uint32_t params = has_params ? hr_column_u32(&at[GRAPH_PARAM_COUNT], i) : 0;

                node->op = hr_column_u32(&at[GRAPH_OP], i);
                node->source_first = source_first;
                node->source_count = has_sources ? hr_column_u32(&at[GRAPH_SOURCE_COUNT], i) : 0;
                source_first += node->source_count;
                if (params > HR_OP_PARAM_WORDS)
                        return column_fail(diag, "param_count", graph->leaf_count + i,
                                           "more words than an op has");
                if (params > 0)
                        memcpy(node->params, at[GRAPH_PARAM].data + param_first * 4,
                               params * sizeof(uint32_t));
                param_first += params;
        }
        HR_ASSERT(source_first == graph->source_count);
        HR_ASSERT(param_first == hr_column_count(&at[GRAPH_PARAM]));
        return HR_OK;
}

/* Strides where the client gave them. The mark that finds a tensor named twice is its `reserved`.
 */
static hr_status graph_fill_strides(const struct hr_columns *columns, struct hr_graph *graph,
                                    struct hr_diag *diag) {
        const struct hr_column *at = columns->at;
        uint64_t count = hr_column_count(&at[GRAPH_STRIDE_TENSOR]);
        uint32_t tensors = hr_graph_tensor_count(graph);

        for (uint64_t i = 0; i < count; i++) {
                uint32_t id = hr_column_u32(&at[GRAPH_STRIDE_TENSOR], i);

                if (id >= tensors)
                        return column_fail(diag, "stride_tensor", id, "no such tensor");
                if (graph->tensors[id].reserved)
                        return column_fail(diag, "stride_tensor", id, "named twice");
                graph->tensors[id].reserved = 1;
                memcpy(graph->tensors[id].nb, at[GRAPH_STRIDE].data + i * sizeof(uint64_t[HR_DIMS]),
                       sizeof(uint64_t[HR_DIMS]));
        }
        for (uint64_t i = 0; i < count; i++)
                graph->tensors[hr_column_u32(&at[GRAPH_STRIDE_TENSOR], i)].reserved = 0;
        return HR_OK;
}

static hr_status view_fail(struct hr_diag *diag, uint32_t tensor, const char *words) {
        hr_status status = hr_fail_reason(diag, HR_E_INVALID, "VIEW", "view %u: %s", tensor, words);

        if (diag) {
                diag->has_tensor = true;
                diag->tensor = tensor;
        }
        return status;
}

/* Bases as given, then replaced by the root of their chain. A base is earlier than its view, hence
 * in order of ids the base of a view has been flattened before the view itself: no recursion, no
 * loop. */
static hr_status graph_fill_views(const struct hr_columns *columns, struct hr_graph *graph,
                                  struct hr_diag *diag) {
        const struct hr_column *at = columns->at;
        uint64_t count = hr_column_count(&at[GRAPH_VIEW_TENSOR]);
        uint32_t tensors = hr_graph_tensor_count(graph), before = 0;
        bool in_order = true; /* else all tensors are walked over: slow where they are many */

        for (uint64_t i = 0; i < count; i++) {
                uint32_t id = hr_column_u32(&at[GRAPH_VIEW_TENSOR], i);
                uint32_t base = hr_column_u32(&at[GRAPH_VIEW_BASE], i);

                if (id >= tensors)
                        return column_fail(diag, "view_tensor", id, "no such tensor");
                if (base >= id)
                        return view_fail(diag, id, "its base is no earlier tensor");
                if (graph->tensors[id].view_base != HR_TENSOR_NONE)
                        return column_fail(diag, "view_tensor", id, "named twice");
                graph->tensors[id].view_base = base;
                graph->tensors[id].view_offset = hr_column_u64(&at[GRAPH_VIEW_OFFSET], i);
                in_order = in_order && id >= before;
                before = id;
        }
        for (uint64_t i = 0; count > 0 && i < (in_order ? count : tensors); i++) {
                uint32_t id = in_order ? hr_column_u32(&at[GRAPH_VIEW_TENSOR], i) : (uint32_t) i;
                struct hr_tensor *view = &graph->tensors[id];
                const struct hr_tensor *base;

                if (view->view_base == HR_TENSOR_NONE)
                        continue;
                base = &graph->tensors[view->view_base];
                if (base->view_base == HR_TENSOR_NONE)
                        continue;
                if (!hr_add_u64(view->view_offset, base->view_offset, &view->view_offset))
                        return view_fail(diag, id, "its offset wraps");
                view->view_base = base->view_base;
        }
        return HR_OK;
}

static hr_status graph_fill_names(const struct hr_columns *columns, struct hr_graph *graph,
                                  struct hr_diag *diag) {
        const struct hr_column *at = columns->at;
        uint32_t count = hr_graph_tensor_count(graph);
        const char *names = (const char *) at[GRAPH_NAMES].data;
        uint64_t offset = 0;

        if (at[GRAPH_NAME_LENGTH].bytes == 0)
                return HR_OK; /* all offsets are zero */
        for (uint32_t i = 0; i < count; i++) {
                uint32_t length = hr_column_u32(&at[GRAPH_NAME_LENGTH], i);

                graph->name_offsets[i] = offset;
                if (length > 0 && !hr_codec_text_is_valid(names + offset, length)) {
                        if (diag) {
                                diag->has_tensor = true;
                                diag->tensor = i;
                        }
                        return hr_fail_reason(diag, HR_E_INVALID, "UTF8",
                                              "name of tensor %u is no valid UTF-8", i);
                }
                offset += length;
        }
        graph->name_offsets[count] = offset;
        if (offset > 0)
                memcpy(graph->names, names, offset);
        return HR_OK;
}

/* Hands out the constant bytes to the leaves of that kind, in order. Their sizes are checked
 * against their types, so that no lying length survives; a contiguous leaf is all a constant can
 * be. */
static hr_status graph_fill_constants(const struct hr_columns *columns, struct hr_graph *graph,
                                      struct hr_diag *diag) {
        const struct hr_column *at = columns->at;
        uint64_t count = hr_column_count(&at[GRAPH_CONSTANT_BYTES]);
        uint64_t offset = 0;
        uint64_t next = 0;

        for (uint32_t i = 0; i < graph->leaf_count; i++) {
                uint64_t bytes, span;

                graph->constant_offsets[i] = offset;
                if (graph->tensors[i].leaf_kind != HR_LEAF_CONSTANT)
                        continue;
                if (next == count)
                        return column_fail(diag, "constant_bytes", i, "no entry for this constant");
                bytes = hr_column_u64(&at[GRAPH_CONSTANT_BYTES], next++);
                HR_TRY(hr_tensor_span(&graph->tensors[i], diag, &span));
                if (span != bytes)
                        return column_fail(diag, "constant_bytes", i, "not the size of its tensor");
                offset += bytes;
        }
        graph->constant_offsets[graph->leaf_count] = offset;
        HR_TRY(hr_column_expect(&at[GRAPH_CONSTANT_BYTES], "constant_bytes", next, diag));
        HR_ASSERT(offset == at[GRAPH_CONSTANTS].bytes);
        if (offset > 0)
                memcpy(graph->constants, at[GRAPH_CONSTANTS].data, offset);
        return HR_OK;
}

static hr_status graph_build(struct hr_columns *columns, struct hr_wire_span message,
                             const struct hr_wire_graph_limits *limits, struct hr_diag *diag,
                             struct hr_graph **ret_graph) {
        HR_CLEANUP(hr_graph_unrefp) struct hr_graph *graph = NULL;
        struct graph_counts counts = {0};
        struct hr_graph_sizes sizes;

        HR_TRY(hr_columns_scan(columns, message, diag));
        HR_TRY(graph_count(columns, limits, diag, &counts));
        HR_TRY(hr_columns_gather(columns, message, diag));
        HR_TRY(graph_cross_check(columns, &counts, diag));
        sizes = (struct hr_graph_sizes){
                .leaf_count = (uint32_t) counts.leaves,
                .node_count = (uint32_t) counts.nodes,
                .source_count = (uint32_t) counts.sources,
                .name_bytes = counts.name_bytes,
                .constant_bytes = counts.constant_bytes,
        };
        HR_TRY(hr_graph_new(&sizes, diag, &graph));
        HR_TRY(graph_fill_tensors(columns, graph, diag));
        HR_TRY(graph_fill_nodes(columns, graph, diag));
        HR_TRY(graph_fill_strides(columns, graph, diag));
        HR_TRY(graph_fill_views(columns, graph, diag));
        HR_TRY(graph_fill_names(columns, graph, diag));
        HR_TRY(graph_fill_constants(columns, graph, diag));
        *ret_graph = HR_STEAL(graph);
        return HR_OK;
}

hr_status hr_wire_graph_decode(struct hr_wire_span message,
                               const struct hr_wire_graph_limits *limits, struct hr_diag *diag,
                               struct hr_graph **ret_graph) {
        struct hr_columns columns = {0};
        hr_status status;

        if (message.size > limits->bytes_max)
                return over_limit(diag, "graph_bytes", limits->bytes_max, message.size);
        for (uint32_t i = 0; i < HR_COLUMN_TAGS; i++)
                columns.at[i].width = graph_widths[i];
        status = graph_build(&columns, message, limits, diag, ret_graph);
        hr_columns_deinit(&columns);
        return status;
}
