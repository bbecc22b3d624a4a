/*
 * Builds a graph for a test: leaves first, then nodes, ids as returned. Aborts the process on
 * misuse, which in a test is a failure. Views and strides can be set on hr_build_tensor() before
 * the finish.
 */
#pragma once

#include "core/graph.h"

struct hr_build;

struct hr_build *hr_build_new(void);
uint32_t hr_build_leaf(struct hr_build *build, hr_leaf_kind kind, uint32_t type, const char *name,
                       int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
/* The bytes of a constant leaf; copied. */
void hr_build_constant(struct hr_build *build, uint32_t leaf, const void *bytes, uint64_t size);
uint32_t hr_build_node(struct hr_build *build, uint32_t op, uint32_t type, int64_t ne0, int64_t ne1,
                       int64_t ne2, int64_t ne3, uint32_t source_count, const uint32_t *sources);
/* Valid until the next leaf or node. */
struct hr_tensor *hr_build_tensor(struct hr_build *build, uint32_t id);
void hr_build_param_f32(struct hr_build *build, uint32_t id, uint32_t word, float value);
/* The graph, not validated; frees the builder. */
struct hr_graph *hr_build_finish(struct hr_build *build);
