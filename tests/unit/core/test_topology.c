#include "core/topology.h"
#include "tests/build.h"
#include "tests/harness.h"

static struct hr_graph *make(int64_t width, const char *name, float constant) {
        struct hr_build *build = hr_build_new();
        float values[4] = { constant, constant, constant, constant };
        uint32_t a = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, name, width, 2, 1, 1);
        uint32_t c = hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_F32, "c", 4, 1, 1, 1);
        struct hr_graph *graph;
        struct hr_diag diag = { 0 };

        hr_build_constant(build, c, values, sizeof values);
        (void) hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, width, 2, 1, 1, 2,
                             (const uint32_t[]) { a, c });
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(graph, &(struct hr_graph_limits) { 0 }, &diag), &diag);
        return graph;
}

static struct hr_topology key_of(struct hr_graph *graph, const char *suffix) {
        struct hr_topology topology;
        struct hr_topology_key key;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_topology_init(&topology, graph, suffix, strlen(suffix), &diag), &diag);
        key = hr_topology_key_of(graph, suffix, strlen(suffix));
        HR_EXPECT(key.high == topology.key.high && key.low == topology.key.low);
        HR_EXPECT(hr_topology_matches(&topology, graph, suffix, strlen(suffix)));
        HR_EXPECT(!hr_topology_matches(&topology, graph, "another suffix", 14));
        hr_graph_unref(graph);
        return topology;
}

HR_TEST(topology_ignores_names_and_constants) {
        struct hr_topology a = key_of(make(4, "x", 1), ""), b = key_of(make(4, "longer", 2), "");

        HR_EXPECT(hr_topology_equal(&a, &b));
        hr_topology_deinit(&a);
        hr_topology_deinit(&b);
}

HR_TEST(topology_counts_shapes_and_suffix) {
        struct hr_topology a = key_of(make(4, "x", 1), ""), b = key_of(make(8, "x", 1), "");
        struct hr_topology c = key_of(make(4, "x", 1), "s");
        uint32_t first;

        HR_EXPECT(!hr_topology_equal(&a, &b));
        HR_EXPECT(!hr_topology_equal(&a, &c));
        HR_EXPECT(hr_topology_same_ops(&a, &b, &first));
        HR_EXPECT_EQ(first, 0);
        HR_EXPECT(hr_topology_same_ops(&a, &c, &first));
        HR_EXPECT_EQ(first, HR_TENSOR_NONE);
        hr_topology_deinit(&a);
        hr_topology_deinit(&b);
        hr_topology_deinit(&c);
}
