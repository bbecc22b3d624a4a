/*
 * The canonical bytes: a header, then one record per tensor, then the sources.
 *
 * A record is the tensor itself, which holds ops, parameters, types, extents, strides, view and
 * flags in fixed-width fields without padding; source_first follows from the counts. So the
 * canonical form is two bulk copies, and names and constants, which live in other arrays, never get
 * in.
 */
#include "core/topology.h"

#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the state on the stack */
#include <xxhash.h>

_Static_assert(sizeof(struct hr_tensor) == 8 * 4 + 8 + HR_DIMS * 16 + HR_OP_PARAM_WORDS * 4,
               "a tensor has no padding, so that its bytes are canonical");

struct canonical_header {
        uint32_t leaf_count, node_count, source_count, suffix_bytes;
};

/* The canonical bytes in the pieces they are made of. */
struct piece {
        const void *bytes;
        size_t size;
};

enum { HEADER, TENSORS, SOURCES, SUFFIX, PIECES };

static void pieces_init(struct piece pieces[PIECES], struct canonical_header *header,
                        const struct hr_graph *graph, const void *suffix, size_t suffix_bytes) {
        HR_ASSERT(graph->frozen);
        HR_ASSERT(suffix_bytes <= UINT32_MAX);
        *header = (struct canonical_header) {
                .leaf_count = graph->leaf_count,
                .node_count = graph->node_count,
                .source_count = graph->source_count,
                .suffix_bytes = (uint32_t) suffix_bytes,
        };
        pieces[HEADER] = (struct piece) { header, sizeof *header };
        pieces[TENSORS] = (struct piece) {
                graph->tensors,
                ((size_t) graph->leaf_count + graph->node_count) * sizeof *graph->tensors,
        };
        pieces[SOURCES] =
                (struct piece) { graph->sources, graph->source_count * sizeof *graph->sources };
        pieces[SUFFIX] = (struct piece) { suffix, suffix_bytes };
}

static struct hr_topology_key key_of(XXH128_hash_t hash) {
        return (struct hr_topology_key) { .high = hash.high64, .low = hash.low64 };
}

struct hr_topology_key hr_topology_key_of(const struct hr_graph *graph, const void *suffix,
                                          size_t suffix_bytes) {
        struct canonical_header header;
        struct piece pieces[PIECES];
        XXH3_state_t state;

        pieces_init(pieces, &header, graph, suffix, suffix_bytes);
        XXH3_128bits_reset(&state);
        for (int i = 0; i < PIECES; i++)
                if (pieces[i].size)
                        XXH3_128bits_update(&state, pieces[i].bytes, pieces[i].size);
        return key_of(XXH3_128bits_digest(&state));
}

bool hr_topology_matches(const struct hr_topology *topology, const struct hr_graph *graph,
                         const void *suffix, size_t suffix_bytes) {
        struct canonical_header header;
        struct piece pieces[PIECES];
        const uint8_t *cursor = topology->bytes;
        size_t size = 0;

        pieces_init(pieces, &header, graph, suffix, suffix_bytes);
        for (int i = 0; i < PIECES; i++)
                size += pieces[i].size;
        if (size != topology->size)
                return false;
        for (int i = 0; i < PIECES; cursor += pieces[i].size, i++)
                if (pieces[i].size && memcmp(cursor, pieces[i].bytes, pieces[i].size) != 0)
                        return false;
        return true;
}

hr_status hr_topology_init(struct hr_topology *topology, const struct hr_graph *graph,
                           const void *suffix, size_t suffix_bytes, struct hr_diag *diag) {
        struct canonical_header header;
        struct piece pieces[PIECES];
        uint8_t *cursor;

        pieces_init(pieces, &header, graph, suffix, suffix_bytes);
        topology->size = 0;
        for (int i = 0; i < PIECES; i++)
                topology->size += pieces[i].size;
        topology->bytes = malloc(topology->size);
        if (!topology->bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the key of a graph");
        cursor = topology->bytes;
        for (int i = 0; i < PIECES; cursor += pieces[i].size, i++)
                if (pieces[i].size)
                        memcpy(cursor, pieces[i].bytes, pieces[i].size);
        topology->key = key_of(XXH3_128bits(topology->bytes, topology->size));
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
