/*
 * The canonical bytes: a header, then one record per tensor, then the sources.
 *
 * A record is the tensor itself, which holds ops, parameters, types, extents, strides, view and flags
 * in fixed-width fields without padding; source_first follows from the counts. So the canonical form
 * is two bulk copies, and names and constants, which live in other arrays, never get in.
 */
#include "core/topology.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

_Static_assert(sizeof(struct hr_tensor) == 8 * 4 + 8 + HR_DIMS * 16 + HR_OP_PARAM_WORDS * 4,
               "a tensor has no padding, so that its bytes are canonical");

struct canonical_header {
        uint32_t leaf_count, node_count, source_count, suffix_bytes;
};

hr_status hr_topology_init(struct hr_topology *topology, const struct hr_graph *graph,
                           const void *suffix, size_t suffix_bytes, struct hr_diag *diag) {
        size_t tensors_bytes =
                ((size_t) graph->leaf_count + graph->node_count) * sizeof *graph->tensors;
        size_t sources_bytes = graph->source_count * sizeof *graph->sources;
        struct canonical_header header = {
                .leaf_count = graph->leaf_count,
                .node_count = graph->node_count,
                .source_count = graph->source_count,
                .suffix_bytes = (uint32_t) suffix_bytes,
        };
        XXH128_hash_t hash;
        uint8_t *cursor;

        HR_ASSERT(graph->frozen);
        HR_ASSERT(suffix_bytes <= UINT32_MAX);
        topology->size = sizeof header + tensors_bytes + sources_bytes + suffix_bytes;
        topology->bytes = malloc(topology->size);
        if (!topology->bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the key of a graph");
        cursor = topology->bytes;
        memcpy(cursor, &header, sizeof header);
        cursor += sizeof header;
        memcpy(cursor, graph->tensors, tensors_bytes);
        cursor += tensors_bytes;
        memcpy(cursor, graph->sources, sources_bytes);
        cursor += sources_bytes;
        if (suffix_bytes)
                memcpy(cursor, suffix, suffix_bytes);
        hash = XXH3_128bits(topology->bytes, topology->size);
        topology->key = (struct hr_topology_key) { .high = hash.high64, .low = hash.low64 };
        return HR_OK;
}

void hr_topology_deinit(struct hr_topology *topology) {
        free(topology->bytes);
        *topology = (struct hr_topology) { 0 };
}

bool hr_topology_equal(const struct hr_topology *a, const struct hr_topology *b) {
        return a->key.high == b->key.high && a->key.low == b->key.low && a->size == b->size &&
               memcmp(a->bytes, b->bytes, a->size) == 0;
}

static const struct hr_tensor *topology_tensors(const struct hr_topology *topology) {
        return (const void *) (topology->bytes + sizeof(struct canonical_header));
}

bool hr_topology_same_ops(const struct hr_topology *a, const struct hr_topology *b,
                          uint32_t *ret_first_different_tensor) {
        struct canonical_header header, other;
        const struct hr_tensor *tensors = topology_tensors(a), *others = topology_tensors(b);
        uint32_t count, first = HR_TENSOR_NONE;

        memcpy(&header, a->bytes, sizeof header);
        memcpy(&other, b->bytes, sizeof other);
        if (header.leaf_count != other.leaf_count || header.node_count != other.node_count ||
            header.source_count != other.source_count)
                return false;
        count = header.leaf_count + header.node_count;
        for (uint32_t i = 0; i < count; i++) {
                const struct hr_tensor *tensor = &tensors[i], *twin = &others[i];

                if (tensor->op != twin->op || tensor->source_count != twin->source_count ||
                    tensor->leaf_kind != twin->leaf_kind || tensor->view_base != twin->view_base)
                        return false;
                if (first == HR_TENSOR_NONE && memcmp(tensor, twin, sizeof *tensor) != 0)
                        first = i;
        }
        if (memcmp(&tensors[count], &others[count],
                   header.source_count * sizeof *((struct hr_graph *) NULL)->sources) != 0)
                return false;
        *ret_first_different_tensor = first;
        return true;
}
