/*
 * A table with chains over the digest's own bits, which are as good as random. Another principal's
 * entry is never found: whether somebody else has a graph cannot be asked.
 */
#include "daemon/graphs.h"

#include <stdlib.h>
#include <string.h>

struct hr_graph_entry {
        struct hr_graph_entry *next;
        struct hr_graph *graph;
        uint64_t principal;
        uint32_t refs;
        uint8_t digest[HR_DIGEST_BYTES];
};

struct hr_graphs {
        struct hr_graph_entry **buckets;
        uint64_t bucket_count, count;
};

#define BUCKETS_FIRST 64U

static struct hr_graph_entry **graphs_bucket(const struct hr_graphs *graphs,
                                             const uint8_t *digest) {
        uint64_t word;

        memcpy(&word, digest, sizeof word);
        return &graphs->buckets[word & (graphs->bucket_count - 1)];
}

hr_status hr_graphs_new(struct hr_diag *diag, struct hr_graphs **ret_graphs) {
        struct hr_graphs *graphs = calloc(1, sizeof *graphs);

        if (graphs)
                graphs->buckets = calloc(BUCKETS_FIRST, sizeof *graphs->buckets);
        if (!graphs || !graphs->buckets) {
                free(graphs);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the table of graphs");
        }
        graphs->bucket_count = BUCKETS_FIRST;
        *ret_graphs = graphs;
        return HR_OK;
}

struct hr_graphs *hr_graphs_free(struct hr_graphs *graphs) {
        if (!graphs)
                return NULL;
        HR_ASSERT(graphs->count == 0);
        free(graphs->buckets);
        free(graphs);
        return NULL;
}

struct hr_graph_entry *hr_graphs_find(struct hr_graphs *graphs, uint64_t principal,
                                      const uint8_t digest[HR_DIGEST_BYTES]) {
        struct hr_graph_entry *entry = *graphs_bucket(graphs, digest);

        while (entry && (entry->principal != principal || !hr_digest_equal(entry->digest, digest)))
                entry = entry->next;
        if (entry)
                entry->refs++;
        return entry;
}

/* Without memory the chains just grow longer. */
static void graphs_grow(struct hr_graphs *graphs) {
        uint64_t old_count = graphs->bucket_count;
        struct hr_graph_entry **old = graphs->buckets;
        struct hr_graph_entry **grown = calloc(old_count * 2, sizeof *grown);

        if (!grown)
                return;
        graphs->buckets = grown;
        graphs->bucket_count = old_count * 2;
        for (uint64_t i = 0; i < old_count; i++) {
                while (old[i]) {
                        struct hr_graph_entry *entry = old[i];
                        struct hr_graph_entry **bucket = graphs_bucket(graphs, entry->digest);

                        old[i] = entry->next;
                        entry->next = *bucket;
                        *bucket = entry;
                }
        }
        free(old);
}

hr_status hr_graphs_add(struct hr_graphs *graphs, uint64_t principal,
                        const uint8_t digest[HR_DIGEST_BYTES], struct hr_graph *graph,
                        struct hr_diag *diag, struct hr_graph_entry **ret_entry) {
        struct hr_graph_entry *entry = calloc(1, sizeof *entry);
        struct hr_graph_entry **bucket;

        if (!entry)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a graph's entry");
        if (graphs->count == graphs->bucket_count)
                graphs_grow(graphs);
        entry->graph = hr_graph_ref(graph);
        entry->principal = principal;
        entry->refs = 1;
        memcpy(entry->digest, digest, HR_DIGEST_BYTES);
        bucket = graphs_bucket(graphs, digest);
        entry->next = *bucket;
        *bucket = entry;
        graphs->count++;
        *ret_entry = entry;
        return HR_OK;
}

struct hr_graph_entry *hr_graph_entry_unref(struct hr_graphs *graphs,
                                            struct hr_graph_entry *entry) {
        struct hr_graph_entry **at;

        if (!entry || --entry->refs > 0)
                return NULL;
        at = graphs_bucket(graphs, entry->digest);
        while (*at != entry) {
                HR_ASSERT(*at);
                at = &(*at)->next;
        }
        *at = entry->next;
        graphs->count--;
        (void) hr_graph_unref(entry->graph);
        free(entry);
        return NULL;
}

struct hr_graph *hr_graph_entry_graph(const struct hr_graph_entry *entry) {
        return entry->graph;
}

const uint8_t *hr_graph_entry_digest(const struct hr_graph_entry *entry) {
        return entry->digest;
}

uint64_t hr_graphs_count(const struct hr_graphs *graphs) {
        return graphs->count;
}
