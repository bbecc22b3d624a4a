/*
 * The canonical form of a graph: every byte that planning can depend on, and nothing else.
 *
 * Ops, parameters, types, extents, strides, sources, views, flags and leaf kinds count. Names and
 * the values of constants do not. The caller appends what else its decision depends on (placement,
 * pins, options, capability epoch) before taking the key. A hit is confirmed by comparing the
 * bytes.
 */
#pragma once

#include "core/graph.h"

struct hr_topology_key {
        uint64_t high, low; /* XXH3-128 of the canonical bytes */
};

struct hr_topology {
        struct hr_topology_key key;
        uint8_t *bytes; /* owned */
        size_t size;
};

/* Builds the canonical bytes of a frozen graph, followed by `suffix` (may be NULL with 0 bytes),
 * and their key. HR_E_EXHAUSTED without memory. */
HR_NODISCARD hr_status hr_topology_init(struct hr_topology *topology, const struct hr_graph *graph,
                                        const void *suffix, size_t suffix_bytes,
                                        struct hr_diag *diag);
/* The key alone, without making the bytes: for looking up. */
struct hr_topology_key hr_topology_key_of(const struct hr_graph *graph, const void *suffix,
                                          size_t suffix_bytes);
/* Are the canonical bytes of the graph, followed by the suffix, those of the topology? */
bool hr_topology_matches(const struct hr_topology *topology, const struct hr_graph *graph,
                         const void *suffix, size_t suffix_bytes);
void hr_topology_deinit(struct hr_topology *topology);
bool hr_topology_equal(const struct hr_topology *a, const struct hr_topology *b);
/* True when both have the same ops, sources and leaf kinds and differ in shapes, types or
 * parameters only; then the first differing tensor id. "Other shapes at node N" against "new
 * topology". Both without suffix. */
bool hr_topology_same_ops(const struct hr_topology *a, const struct hr_topology *b,
                          uint32_t *ret_first_different_tensor);
