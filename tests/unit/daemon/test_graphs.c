/* The table of graphs by principal and digest. */
#include "daemon/graphs.h"

#include "tests/harness.h"

static struct hr_graph *graph_new(void) {
        const struct hr_graph_sizes sizes = {.leaf_count = 1};
        struct hr_graph *graph = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_graph_new(&sizes, &diag, &graph), &diag);
        return graph;
}

static void digest_fill(uint8_t digest[HR_DIGEST_BYTES], uint32_t number) {
        memset(digest, 0, HR_DIGEST_BYTES);
        memcpy(digest, &number, sizeof number);
}

HR_TEST(entries_live_as_long_as_somebody_holds_them) {
        struct hr_graphs *graphs = NULL;
        struct hr_graph_entry *entry = NULL, *again;
        struct hr_graph *graph = graph_new();
        uint8_t digest[HR_DIGEST_BYTES];
        struct hr_diag diag = {0};

        digest_fill(digest, 7);
        HR_EXPECT_OK(hr_graphs_new(&diag, &graphs), &diag);
        HR_EXPECT(!hr_graphs_find(graphs, 1, digest));
        HR_EXPECT_OK(hr_graphs_add(graphs, 1, digest, graph, &diag, &entry), &diag);
        again = hr_graphs_find(graphs, 1, digest);
        HR_EXPECT(again == entry && hr_graph_entry_graph(again) == graph);
        HR_EXPECT(!hr_graphs_find(graphs, 2, digest)); /* another principal's is not found */
        entry = hr_graph_entry_unref(graphs, entry);
        HR_EXPECT_EQ(hr_graphs_count(graphs), 1);
        again = hr_graph_entry_unref(graphs, again);
        HR_EXPECT_EQ(hr_graphs_count(graphs), 0);
        HR_EXPECT(!hr_graphs_find(graphs, 1, digest));
        HR_EXPECT_EQ(atomic_load(&graph->refs), 1);
        graph = hr_graph_unref(graph);
        graphs = hr_graphs_free(graphs);
}

HR_TEST(many_entries_are_all_found) {
        enum { COUNT = 1000 };
        struct hr_graphs *graphs = NULL;
        static struct hr_graph_entry *entries[COUNT];
        struct hr_graph *graph = graph_new();
        uint8_t digest[HR_DIGEST_BYTES];
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_graphs_new(&diag, &graphs), &diag);
        for (uint32_t i = 0; i < COUNT; i++) {
                digest_fill(digest, i * 64); /* all in one bucket at first */
                HR_EXPECT_OK(hr_graphs_add(graphs, 0, digest, graph, &diag, &entries[i]), &diag);
        }
        for (uint32_t i = 0; i < COUNT; i++) {
                struct hr_graph_entry *found;

                digest_fill(digest, i * 64);
                found = hr_graphs_find(graphs, 0, digest);
                HR_EXPECT(found == entries[i]);
                HR_EXPECT_EQ(memcmp(hr_graph_entry_digest(found), digest, sizeof digest), 0);
                found = hr_graph_entry_unref(graphs, found);
                entries[i] = hr_graph_entry_unref(graphs, entries[i]);
        }
        HR_EXPECT_EQ(hr_graphs_count(graphs), 0);
        graph = hr_graph_unref(graph);
        graphs = hr_graphs_free(graphs);
}
