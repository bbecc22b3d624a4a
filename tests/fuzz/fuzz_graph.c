/*
 * Any bytes as a graph: refused with a reason, or a graph whose every id and count holds, that
 * validation answers about, and that comes back the same from its encoded form.
 */
#include <stdlib.h>

#include "core/op.h"
#include "proto/codec.h"
#include "tests/fuzz/plant.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static const struct hr_wire_graph_limits wire_limits = {
        .nodes_max = 10000,
        .leaves_max = 10000,
        .bytes_max = 1 << 24,
};

static void check_structure(const struct hr_graph *graph) {
        uint32_t tensors = hr_graph_tensor_count(graph);

        for (uint32_t i = 0; i < tensors; i++) {
                const struct hr_tensor *tensor = &graph->tensors[i];

                if (tensor->view_base != HR_TENSOR_NONE) {
                        HR_ASSERT(tensor->view_base < i);
                        HR_ASSERT(graph->tensors[tensor->view_base].view_base == HR_TENSOR_NONE);
                }
                HR_ASSERT((uint64_t) tensor->source_first + tensor->source_count <=
                          graph->source_count);
                for (uint32_t s = 0; s < tensor->source_count; s++) {
                        uint32_t source = hr_graph_source(graph, tensor, s);

                        HR_ASSERT(source < tensors || source == HR_TENSOR_NONE);
                }
                HR_ASSERT(graph->name_offsets[i] <= graph->name_offsets[i + 1]);
        }
        for (uint32_t i = 0; i < graph->leaf_count; i++)
                HR_ASSERT(graph->constant_offsets[i] <= graph->constant_offsets[i + 1]);
}

static void check_round_trip(const struct hr_graph *graph) {
        struct hr_graph *again = NULL;
        struct hr_diag diag = {0};
        uint8_t *memory;
        size_t bytes = 0;

        HR_ASSERT(hr_wire_graph_encode(graph, NULL, 0, &diag, &bytes) == HR_OK);
        memory = malloc(bytes ? bytes : 1);
        HR_ASSERT(memory);
        HR_ASSERT(hr_wire_graph_encode(graph, memory, bytes, &diag, &bytes) == HR_OK);
        HR_ASSERT(hr_wire_graph_decode((struct hr_wire_span){memory, bytes}, &wire_limits, &diag,
                                       &again) == HR_OK);
        HR_ASSERT(hr_graph_hash(graph) == hr_graph_hash(again));
        again = hr_graph_unref(again);
        free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
        static const struct hr_graph_limits limits = {.tensor_bytes_max = UINT64_C(1) << 32};
        struct hr_graph *graph = NULL;
        struct hr_diag diag = {0};

        if (hr_wire_graph_decode((struct hr_wire_span){bytes, size}, &wire_limits, &diag, &graph) !=
            HR_OK) {
                HR_ASSERT(diag.status != HR_OK && diag.words[0] != '\0' && !graph);
                return 0;
        }
        check_structure(graph);
        check_round_trip(graph);
        if (hr_graph_validate(graph, &limits, &diag) == HR_OK) {
                HR_ASSERT(graph->frozen);
                HR_PLANT(graph->node_count > 0 && hr_graph_node(graph, 0)->op == HR_OP_SUB);
        } else {
                HR_ASSERT(diag.status != HR_OK && diag.words[0] != '\0');
        }
        graph = hr_graph_unref(graph);
        return 0;
}
