/*
 * The graphs that somebody holds, by principal and digest of their encoded form, so that an equal
 * graph is decoded and validated once and can be submitted again by its digest alone.
 *
 * An entry lives as long as a bound graph refers to it. Thread: engine.
 */
#pragma once

#include "core/graph.h"
#include "daemon/digest.h"

struct hr_graphs;
struct hr_graph_entry;

HR_NODISCARD hr_status hr_graphs_new(struct hr_diag *diag, struct hr_graphs **ret_graphs);
/* After the last entry. NULL is a no-op. Returns NULL. */
struct hr_graphs *hr_graphs_free(struct hr_graphs *graphs);

/* A further reference to the entry, or NULL. */
struct hr_graph_entry *hr_graphs_find(struct hr_graphs *graphs, uint64_t principal,
                                      const uint8_t digest[HR_DIGEST_BYTES]);
/* A new entry with one reference; takes one on the graph. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_graphs_add(struct hr_graphs *graphs, uint64_t principal,
                                     const uint8_t digest[HR_DIGEST_BYTES], struct hr_graph *graph,
                                     struct hr_diag *diag, struct hr_graph_entry **ret_entry);
struct hr_graph_entry *hr_graph_entry_unref(struct hr_graphs *graphs, struct hr_graph_entry *entry);
struct hr_graph *hr_graph_entry_graph(const struct hr_graph_entry *entry);
const uint8_t *hr_graph_entry_digest(const struct hr_graph_entry *entry);
uint64_t hr_graphs_count(const struct hr_graphs *graphs);
