/*
 * Storage of a graph: one block per array, sized once. Nothing here judges the contents; that is
 * validate.c.
 */
#include "core/graph.h"

#include <stdlib.h>
#include <xxhash.h>

/* calloc that treats 0 elements as one, so that NULL always means "no memory". */
static void *array_new(uint64_t count, size_t element_bytes) {
        return calloc(count ? count : 1, element_bytes);
}

hr_status hr_graph_new(const struct hr_graph_sizes *sizes, struct hr_diag *diag,
                       struct hr_graph **ret_graph) {
        HR_CLEANUP(hr_graph_unrefp) struct hr_graph *graph = NULL;
        uint64_t tensor_count =
                (uint64_t) sizes->leaf_count + sizes->node_count + sizes->extra_count;

        /* Ids are 32 bits and the last one means "none". */
        if (tensor_count >= HR_TENSOR_NONE)
                return hr_fail_reason(diag, HR_E_INVALID, "SIZE", "too many tensors to number");
        graph = calloc(1, sizeof *graph);
        if (!graph)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a graph");
        atomic_init(&graph->refs, 1);
        graph->leaf_count = sizes->leaf_count;
        graph->node_count = sizes->node_count;
        graph->extra_count = sizes->extra_count;
        graph->source_count = sizes->source_count;
        graph->tensors = array_new(tensor_count, sizeof *graph->tensors);
        graph->sources = array_new(sizes->source_count, sizeof *graph->sources);
        graph->name_offsets = array_new(tensor_count + 1, sizeof *graph->name_offsets);
        graph->names = array_new(sizes->name_bytes, 1);
        graph->constant_offsets =
                array_new((uint64_t) sizes->leaf_count + 1, sizeof *graph->constant_offsets);
        graph->constants = array_new(sizes->constant_bytes, 1);
        if (!graph->tensors || !graph->sources || !graph->name_offsets || !graph->names ||
            !graph->constant_offsets || !graph->constants)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a graph of %llu tensors",
                               (unsigned long long) tensor_count);
        for (uint64_t i = 0; i < tensor_count; i++)
                graph->tensors[i].view_base = HR_TENSOR_NONE;
        *ret_graph = HR_STEAL(graph);
        return HR_OK;
}

uint64_t hr_graph_memory_bytes(const struct hr_graph *graph) {
        const uint64_t tensors = (uint64_t) graph->leaf_count + graph->node_count +
                                 graph->extra_count;

        return sizeof *graph + tensors * sizeof *graph->tensors +
               graph->source_count * sizeof *graph->sources +
               (tensors + 1) * sizeof *graph->name_offsets + graph->name_offsets[tensors] +
               ((uint64_t) graph->leaf_count + 1) * sizeof *graph->constant_offsets +
               graph->constant_offsets[graph->leaf_count];
}

struct hr_graph *hr_graph_ref(struct hr_graph *graph) {
        HR_ASSERT(atomic_load(&graph->refs) > 0);
        atomic_fetch_add(&graph->refs, 1);
        return graph;
}

struct hr_graph *hr_graph_unref(struct hr_graph *graph) {
        if (!graph || atomic_fetch_sub(&graph->refs, 1) != 1)
                return NULL;
        free(graph->tensors);
        free(graph->sources);
        free(graph->name_offsets);
        free(graph->names);
        free(graph->constant_offsets);
        free(graph->constants);
        free(graph->inputs);
        free(graph->outputs);
        free(graph);
        return NULL;
}

const char *hr_graph_name(const struct hr_graph *graph, uint32_t tensor, size_t *ret_bytes) {
        HR_ASSERT(tensor < hr_graph_tensor_count(graph));
        *ret_bytes = graph->name_offsets[tensor + 1] - graph->name_offsets[tensor];
        return graph->names + graph->name_offsets[tensor];
}

uint64_t hr_graph_hash(const struct hr_graph *graph) {
        uint32_t tensor_count = hr_graph_tensor_count(graph);
        const struct {
                const void *bytes;
                size_t size;
        } parts[] = {
                { graph->tensors, tensor_count * sizeof *graph->tensors },
                { graph->sources, graph->source_count * sizeof *graph->sources },
                { graph->name_offsets, (tensor_count + 1) * sizeof *graph->name_offsets },
                { graph->names, graph->name_offsets[tensor_count] },
                { graph->constant_offsets,
                  (graph->leaf_count + (size_t) 1) * sizeof *graph->constant_offsets },
                { graph->constants, graph->constant_offsets[graph->leaf_count] },
        };
        uint64_t hash = graph->leaf_count;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(parts); i++)
                hash = XXH3_64bits_withSeed(parts[i].bytes, parts[i].size, hash);
        return hash;
}
