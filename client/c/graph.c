/*
 * Graphs under construction. Tensors are numbered as they are made, leaves and nodes mixed; on the
 * wire leaves come first, which the encoding sees to. What a node is (type, extents, view) follows
 * from what it is made of, by the daemon's own rules.
 */
#include "client/c/client_priv.h"

#include <stdlib.h>
#include <string.h>

struct headrace_graph {
        struct hr_graph graph; /* tensors and sources, leaves and nodes mixed */
        uint32_t count, tensor_capacity;
        uint64_t source_capacity;
        struct graph_text {
                char *name; /* may be NULL */
                uint8_t *constant;
                uint64_t constant_bytes;
        } *texts; /* one per tensor */
};

struct headrace_graph *headrace_graph_new(void) {
        return calloc(1, sizeof(struct headrace_graph));
}

void headrace_graph_free(struct headrace_graph *graph) {
        if (!graph)
                return;
        for (uint32_t i = 0; i < graph->count; i++) {
                free(graph->texts[i].name);
                free(graph->texts[i].constant);
        }
        free(graph->texts);
        free(graph->graph.tensors);
        free(graph->graph.sources);
        free(graph);
}

/* Room for one more tensor with so many sources. */
static bool graph_reserve(struct headrace_graph *graph, size_t sources) {
        if (graph->count == graph->tensor_capacity) {
                uint32_t capacity = graph->tensor_capacity ? graph->tensor_capacity * 2 : 64;
                void *tensors, *texts;

                if (capacity < graph->count)
                        return false;
                tensors = realloc(graph->graph.tensors, capacity * sizeof *graph->graph.tensors);
                if (!tensors)
                        return false;
                graph->graph.tensors = tensors;
                texts = realloc(graph->texts, capacity * sizeof *graph->texts);
                if (!texts)
                        return false;
                graph->texts = texts;
                graph->tensor_capacity = capacity;
        }
        if (graph->graph.source_count + (uint64_t) sources > graph->source_capacity) {
                uint64_t capacity = HR_MAX(graph->source_capacity * 2,
                                           graph->graph.source_count + (uint64_t) sources);
                void *grown;

                if (capacity > UINT32_MAX)
                        return false;
                grown = realloc(graph->graph.sources, capacity * sizeof *graph->graph.sources);
                if (!grown)
                        return false;
                graph->graph.sources = grown;
                graph->source_capacity = capacity;
        }
        return true;
}

static enum headrace_status type_find(const char *name, struct headrace_error *error,
                                      uint32_t *ret_type) {
        int type = name ? hr_type_from_name(name) : -1;

        if (type < 0)
                return hr_client_fail(error, HEADRACE_INVALID, "DTYPE", "no type %.64s",
                                      name ? name : "(null)");
        *ret_type = (uint32_t) type;
        return HEADRACE_OK;
}

/* Appends a tensor; its name is copied. */
static enum headrace_status graph_append(struct headrace_graph *graph,
                                         const struct hr_tensor *tensor, const char *name,
                                         struct headrace_error *error, uint32_t *ret_tensor) {
        char *copy = name ? strdup(name) : NULL;

        if (name && !copy)
                return hr_client_fail_memory(error);
        graph->graph.tensors[graph->count] = *tensor;
        graph->texts[graph->count] = (struct graph_text){.name = copy};
        graph->graph.source_count += tensor->source_count;
        *ret_tensor = graph->count++;
        return HEADRACE_OK;
}

static enum headrace_status leaf_append(struct headrace_graph *graph, uint32_t kind,
                                        const char *type, const int64_t ne[4], const char *name,
                                        struct headrace_error *error, uint32_t *ret_tensor) {
        struct hr_tensor leaf = {
                .leaf_kind = kind,
                .source_first = graph->graph.source_count,
                .view_base = HR_TENSOR_NONE,
        };
        struct hr_diag diag = {0};
        enum headrace_status status = type_find(type, error, &leaf.type);

        if (status != HEADRACE_OK)
                return status;
        memcpy(leaf.ne, ne, sizeof leaf.ne);
        if (hr_tensor_set_contiguous(&leaf, &diag) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        if (!graph_reserve(graph, 0))
                return hr_client_fail_memory(error);
        return graph_append(graph, &leaf, name, error, ret_tensor);
}

enum headrace_status headrace_graph_leaf(struct headrace_graph *graph, enum headrace_leaf kind,
                                         const char *type, const int64_t ne[4], const char *name,
                                         struct headrace_error *error, uint32_t *ret_tensor) {
        if (kind != HEADRACE_WEIGHT && kind != HEADRACE_STATE && kind != HEADRACE_INPUT)
                return hr_client_fail(error, HEADRACE_INVALID, "LEAF", "leaf kind %d", (int) kind);
        if (kind != HEADRACE_INPUT && (!name || !*name))
                return hr_client_fail(error, HEADRACE_INVALID, "NAME",
                                      "a weight or state without a name");
        return leaf_append(graph, kind, type, ne, name, error, ret_tensor);
}

enum headrace_status headrace_graph_constant(struct headrace_graph *graph, const char *type,
                                             const int64_t ne[4], const void *data,
                                             struct headrace_error *error, uint32_t *ret_tensor) {
        uint32_t tensor = graph->count;
        uint64_t bytes;
        uint8_t *copy;
        enum headrace_status status =
                leaf_append(graph, HR_LEAF_CONSTANT, type, ne, NULL, error, &tensor);

        if (status != HEADRACE_OK)
                return status;
        bytes = headrace_graph_bytes(graph, tensor);
        copy = malloc(bytes ? bytes : 1);
        if (!copy) {
                graph->count--;
                return hr_client_fail_memory(error);
        }
        if (bytes)
                memcpy(copy, data, bytes);
        graph->texts[tensor].constant = copy;
        graph->texts[tensor].constant_bytes = bytes;
        *ret_tensor = tensor;
        return HEADRACE_OK;
}

/* What inference takes from the node itself: a shape that the op leaves open, a place. */
static void node_declare(const struct headrace_graph *graph, const struct headrace_node *wanted,
                         struct hr_tensor *node) {
        const struct hr_tensor *first =
                wanted->source_count && wanted->sources[0] < graph->count
                        ? &graph->graph.tensors[wanted->sources[0]]
                        : NULL;
        bool has_strides = wanted->nb[0] || wanted->nb[1] || wanted->nb[2] || wanted->nb[3];
        bool has_extents = wanted->ne[0] || wanted->ne[1] || wanted->ne[2] || wanted->ne[3];

        if (has_extents)
                memcpy(node->ne, wanted->ne, sizeof node->ne);
        else if (first)
                memcpy(node->ne, first->ne, sizeof node->ne);
        if (!wanted->type && first)
                node->type = first->type;
        if (hr_tensor_set_contiguous(node, NULL) != HR_OK)
                memset(node->nb, 0, sizeof node->nb); /* inference says what is wrong */
        if (has_strides)
                memcpy(node->nb, wanted->nb, sizeof node->nb);
        if (node->op == HR_OP_VIEW && first)
                node->view_offset = hr_param_u64(node->params, 0) +
                                    (first->view_base == HR_TENSOR_NONE ? 0 : first->view_offset);
}

/* Lays the result over source 0. */
static enum headrace_status node_place(struct headrace_graph *graph, uint32_t id,
                                       struct headrace_error *error) {
        struct hr_tensor *node = &graph->graph.tensors[id];
        uint32_t first = graph->graph.sources[node->source_first];
        const struct hr_tensor *source = &graph->graph.tensors[first];

        if (hr_op_info(node->op)->kind != HR_OP_KIND_INPLACE)
                return hr_client_fail(error, HEADRACE_INVALID, "VIEW", "%s does not work in place",
                                      hr_op_name(node->op));
        node->view_base = source->view_base == HR_TENSOR_NONE ? first : source->view_base;
        node->view_offset = source->view_base == HR_TENSOR_NONE ? 0 : source->view_offset;
        memcpy(node->nb, source->nb, sizeof node->nb);
        return HEADRACE_OK;
}

/* Inference numbers nodes by their ids here; the caller knows them as tensors. */
static enum headrace_status fail_node(struct headrace_error *error, const struct hr_diag *diag,
                                      uint32_t id) {
        enum headrace_status status = hr_client_fail_diag(error, diag);

        if (error) {
                error->has_node = false;
                error->has_tensor = true;
                error->tensor = id;
        }
        return status;
}

enum headrace_status headrace_graph_node(struct headrace_graph *graph,
                                         const struct headrace_node *wanted,
                                         struct headrace_error *error, uint32_t *ret_tensor) {
        int op = wanted->op ? hr_op_from_name(wanted->op) : -1;
        struct hr_tensor node = {
                .op = (uint32_t) op,
                .source_first = graph->graph.source_count,
                .source_count = (uint32_t) wanted->source_count,
                .view_base = HR_TENSOR_NONE,
        };
        struct hr_diag diag = {0};
        enum headrace_status status;
        uint32_t id = graph->count;

        if (op < 0)
                return hr_client_fail(error, HEADRACE_INVALID, "OP", "no operator %.64s",
                                      wanted->op ? wanted->op : "(null)");
        if (wanted->param_count > HR_OP_PARAM_WORDS || wanted->source_count > 64)
                return hr_client_fail(error, HEADRACE_INVALID, "ARITY", "%zu sources, %zu words",
                                      wanted->source_count, wanted->param_count);
        if (wanted->type && (status = type_find(wanted->type, error, &node.type)) != HEADRACE_OK)
                return status;
        if (!graph_reserve(graph, wanted->source_count))
                return hr_client_fail_memory(error);
        if (wanted->param_count)
                memcpy(node.params, wanted->params, wanted->param_count * sizeof *node.params);
        if (wanted->source_count)
                memcpy(graph->graph.sources + node.source_first, wanted->sources,
                       wanted->source_count * sizeof *wanted->sources);
        node_declare(graph, wanted, &node);
        status = graph_append(graph, &node, wanted->name, error, &id);
        if (status != HEADRACE_OK)
                return status;
        if (hr_graph_infer(&graph->graph, id, &diag) != HR_OK)
                status = fail_node(error, &diag, id);
        else if (wanted->in_place)
                status = node_place(graph, id, error);
        if (status != HEADRACE_OK) {
                free(graph->texts[id].name);
                graph->graph.source_count -= node.source_count;
                graph->count--;
                return status;
        }
        *ret_tensor = id;
        return HEADRACE_OK;
}

void headrace_graph_output(struct headrace_graph *graph, uint32_t tensor) {
        if (tensor < graph->count)
                graph->graph.tensors[tensor].flags |= HR_TENSOR_OUTPUT;
}

uint64_t headrace_graph_bytes(const struct headrace_graph *graph, uint32_t tensor) {
        uint64_t bytes;

        return tensor < graph->count &&
                               hr_tensor_span(&graph->graph.tensors[tensor], NULL, &bytes) == HR_OK
                       ? bytes
                       : 0;
}

void headrace_graph_extents(const struct headrace_graph *graph, uint32_t tensor,
                            int64_t ret_ne[4]) {
        for (int i = 0; i < HR_DIMS; i++)
                ret_ne[i] = tensor < graph->count ? graph->graph.tensors[tensor].ne[i] : 0;
}

/* ---- the wire's order ------------------------------------------------------------------------ */

static bool is_leaf(const struct headrace_graph *graph, uint32_t tensor) {
        return graph->graph.tensors[tensor].leaf_kind != HR_LEAF_NOT;
}

/* The id of each tensor on the wire: leaves, then nodes. Free with free(). */
static uint32_t *wire_ids(const struct headrace_graph *graph, uint32_t *ret_leaves) {
        uint32_t *ids = calloc(graph->count + (size_t) 1, sizeof *ids), leaves = 0, nodes = 0;

        if (!ids)
                return NULL;
        for (uint32_t i = 0; i < graph->count; i++)
                leaves += is_leaf(graph, i);
        *ret_leaves = leaves;
        leaves = 0;
        for (uint32_t i = 0; i < graph->count; i++)
                ids[i] = is_leaf(graph, i) ? leaves++ : *ret_leaves + nodes++;
        return ids;
}

/* Fills the arrays of `to`, which are large enough, in the wire's order. */
static void graph_arrange(const struct headrace_graph *graph, const uint32_t *ids,
                          const uint32_t *order, struct hr_graph *to) {
        uint64_t names = 0, constants = 0;
        uint32_t sources = 0;

        for (uint32_t id = 0; id < graph->count; id++) {
                const struct hr_tensor *from = &graph->graph.tensors[order[id]];
                const struct graph_text *text = &graph->texts[order[id]];
                struct hr_tensor *tensor = &to->tensors[id];
                size_t length = text->name ? strlen(text->name) : 0;

                *tensor = *from;
                tensor->source_first = sources;
                for (uint32_t i = 0; i < from->source_count; i++) {
                        uint32_t source = graph->graph.sources[from->source_first + i];

                        to->sources[sources++] =
                                source == HEADRACE_NONE ? HR_TENSOR_NONE : ids[source];
                }
                if (from->view_base != HR_TENSOR_NONE)
                        tensor->view_base = ids[from->view_base];
                if (length)
                        memcpy(to->names + names, text->name, length);
                to->name_offsets[id] = names;
                names += length;
                if (id < to->leaf_count) {
                        if (text->constant_bytes)
                                memcpy(to->constants + constants, text->constant,
                                       text->constant_bytes);
                        to->constant_offsets[id] = constants;
                        constants += text->constant_bytes;
                }
        }
        to->name_offsets[graph->count] = names;
        to->constant_offsets[to->leaf_count] = constants;
}

enum headrace_status hr_client_graph_taps(const struct headrace_graph *graph, const uint32_t *taps,
                                          size_t count, struct headrace_error *error,
                                          uint32_t *ret_ids, uint32_t *ret_numbers) {
        uint32_t leaves = 0, *ids = wire_ids(graph, &leaves);
        size_t found = 0;

        if (!ids)
                return hr_client_fail_memory(error);
        for (uint32_t number = 0; number < graph->count; number++) /* nodes keep their order */
                for (size_t i = 0; i < count; i++)
                        if (taps[i] == number && !is_leaf(graph, number)) {
                                ret_ids[found] = ids[number];
                                ret_numbers[found++] = number;
                                break;
                        }
        free(ids);
        return found == count ? HEADRACE_OK
                              : hr_client_fail(error, HEADRACE_INVALID, "TAP",
                                               "a tap that is no node, or twice");
}

enum headrace_status hr_client_graph_numbers(const struct headrace_graph *graph,
                                             struct headrace_error *error,
                                             uint32_t **ret_numbers, uint32_t *ret_count) {
        uint32_t leaves = 0, *ids = wire_ids(graph, &leaves);
        uint32_t *numbers = calloc(graph->count + (size_t) 1, sizeof *numbers);

        for (uint32_t number = 0; ids && numbers && number < graph->count; number++)
                numbers[ids[number]] = number;
        if (!ids || !numbers) {
                free(ids);
                free(numbers);
                return hr_client_fail_memory(error);
        }
        free(ids);
        *ret_numbers = numbers;
        *ret_count = graph->count;
        return HEADRACE_OK;
}

static enum headrace_status graph_order(const struct headrace_graph *graph,
                                        struct headrace_error *error, struct hr_graph **ret_graph) {
        struct hr_graph_sizes sizes = {.source_count = graph->graph.source_count};
        struct hr_diag diag = {0};
        uint32_t *ids = wire_ids(graph, &sizes.leaf_count);
        uint32_t *order = calloc(graph->count + (size_t) 1, sizeof *order);
        enum headrace_status status = HEADRACE_OK;

        if (!ids || !order) {
                status = hr_client_fail_memory(error);
                goto out;
        }
        sizes.node_count = graph->count - sizes.leaf_count;
        for (uint32_t i = 0; i < graph->count; i++) {
                order[ids[i]] = i;
                sizes.name_bytes += graph->texts[i].name ? strlen(graph->texts[i].name) : 0;
                sizes.constant_bytes += graph->texts[i].constant_bytes;
        }
        if (hr_graph_new(&sizes, &diag, ret_graph) == HR_OK)
                graph_arrange(graph, ids, order, *ret_graph);
        else
                status = hr_client_fail_diag(error, &diag);
out:
        free(ids);
        free(order);
        return status;
}

enum headrace_status hr_client_graph_encode(const struct headrace_graph *graph,
                                            struct headrace_error *error, uint8_t **ret_bytes,
                                            size_t *ret_size) {
        HR_CLEANUP(hr_graph_unrefp) struct hr_graph *ordered = NULL;
        struct hr_diag diag = {0};
        enum headrace_status status = graph_order(graph, error, &ordered);
        uint8_t *bytes;
        size_t size;

        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_graph_encode(ordered, NULL, 0, &diag, &size) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        bytes = malloc(size + 1);
        if (!bytes)
                return hr_client_fail_memory(error);
        if (hr_wire_graph_encode(ordered, bytes, size, &diag, &size) != HR_OK) {
                free(bytes);
                return hr_client_fail_diag(error, &diag);
        }
        *ret_bytes = bytes;
        *ret_size = size;
        return HEADRACE_OK;
}
