/* Graphs of the public builder: the daemon's own validation accepts what comes out of it. */
#include "client/c/client_priv.h"
#include "tests/harness.h"

#define NE(a, b, c, d) ((const int64_t[4]){a, b, c, d})

static uint32_t leaf(struct headrace_graph *graph, enum headrace_leaf kind, const char *type,
                     const int64_t ne[4], const char *name) {
        struct headrace_error error = {0};
        uint32_t tensor = UINT32_MAX;

        HR_EXPECT_EQ(headrace_graph_leaf(graph, kind, type, ne, name, &error, &tensor),
                     HEADRACE_OK);
        return tensor;
}

static uint32_t node(struct headrace_graph *graph, const struct headrace_node *wanted) {
        struct headrace_error error = {0};
        uint32_t tensor = UINT32_MAX;
        enum headrace_status status = headrace_graph_node(graph, wanted, &error, &tensor);

        if (status != HEADRACE_OK)
                hr_test_fail(__FILE__, __LINE__, "%s: %s %s", wanted->op, error.reason,
                             error.words);
        return tensor;
}

static void expect_extents(const struct headrace_graph *graph, uint32_t tensor, int64_t a,
                           int64_t b, int64_t c, int64_t d) {
        int64_t ne[4];

        headrace_graph_extents(graph, tensor, ne);
        HR_EXPECT(ne[0] == a && ne[1] == b && ne[2] == c && ne[3] == d);
}

/* What goes over the wire, decoded and validated as the daemon does it. */
static struct hr_graph *decoded(const struct headrace_graph *graph) {
        const struct hr_wire_graph_limits wire = {1000, 1000, 1 << 20};
        const struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 30};
        struct headrace_error error = {0};
        struct hr_diag diag = {0};
        struct hr_graph *result = NULL;
        uint8_t *bytes = NULL;
        size_t size = 0;

        HR_EXPECT_EQ(hr_client_graph_encode(graph, &error, &bytes, &size), HEADRACE_OK);
        HR_EXPECT_OK(
                hr_wire_graph_decode((struct hr_wire_span){bytes, size}, &wire, &diag, &result),
                &diag);
        HR_EXPECT_OK(hr_graph_validate(result, &limits, &diag), &diag);
        free(bytes);
        return result;
}

HR_TEST(leaves_made_late_come_first_on_the_wire) {
        struct headrace_graph *graph = headrace_graph_new();
        const float table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        struct headrace_error error = {0};
        uint32_t x, w, product, constant, sum;
        struct hr_graph *wire;
        size_t length;

        x = leaf(graph, HEADRACE_INPUT, "f32", NE(64, 8, 1, 1), "x");
        w = leaf(graph, HEADRACE_WEIGHT, "q4_0", NE(64, 8, 1, 1), "w");
        product = node(graph, &(struct headrace_node){.op = "MUL_MAT",
                                                      .sources = (uint32_t[]){w, x},
                                                      .source_count = 2,
                                                      .name = "product"});
        expect_extents(graph, product, 8, 8, 1, 1);
        HR_EXPECT_EQ(headrace_graph_constant(graph, "f32", NE(8, 1, 1, 1), table, &error,
                                             &constant),
                     HEADRACE_OK);
        sum = node(graph, &(struct headrace_node){.op = "ADD",
                                                  .sources = (uint32_t[]){product, constant},
                                                  .source_count = 2});
        headrace_graph_output(graph, sum);
        HR_EXPECT_EQ(headrace_graph_bytes(graph, sum), 256);
        wire = decoded(graph);
        HR_EXPECT_EQ(wire->leaf_count, 3);
        HR_EXPECT_EQ(wire->node_count, 2);
        HR_EXPECT_EQ(wire->input_count, 1);
        HR_EXPECT_EQ(wire->output_count, 1);
        HR_EXPECT_EQ(wire->outputs[0], 4);
        HR_EXPECT_EQ(hr_graph_source(wire, hr_graph_node(wire, 1), 0), 3);
        HR_EXPECT_EQ(hr_graph_source(wire, hr_graph_node(wire, 1), 1), 2);
        HR_EXPECT(memcmp(wire->constants, table, sizeof table) == 0);
        HR_EXPECT(memcmp(hr_graph_name(wire, 3, &length), "product", 7) == 0 && length == 7);
        hr_graph_unref(wire);
        headrace_graph_free(graph);
}

HR_TEST(views_shapes_and_writers) {
        struct headrace_graph *graph = headrace_graph_new();
        uint32_t cache = leaf(graph, HEADRACE_STATE, "f16", NE(16, 32, 1, 1), "cache");
        uint32_t rows = leaf(graph, HEADRACE_INPUT, "f32", NE(16, 2, 1, 1), "rows");
        uint32_t ids = leaf(graph, HEADRACE_INPUT, "i64", NE(2, 1, 1, 1), "ids");
        uint32_t window, turned, flat, over;

        window = node(graph, &(struct headrace_node){.op = "VIEW",
                                                     .sources = &cache,
                                                     .source_count = 1,
                                                     .params = (int32_t[]){64, 0},
                                                     .param_count = 2,
                                                     .ne = {8, 4, 1, 1},
                                                     .nb = {2, 32, 128, 128}});
        expect_extents(graph, window, 8, 4, 1, 1);
        turned = node(graph, &(struct headrace_node){.op = "TRANSPOSE",
                                                     .sources = &window,
                                                     .source_count = 1});
        expect_extents(graph, turned, 4, 8, 1, 1);
        flat = node(graph, &(struct headrace_node){.op = "RESHAPE",
                                                   .sources = &rows,
                                                   .source_count = 1,
                                                   .ne = {32, 1, 1, 1}});
        expect_extents(graph, flat, 32, 1, 1, 1);
        over = node(graph, &(struct headrace_node){.op = "SCALE",
                                                   .sources = &flat,
                                                   .source_count = 1,
                                                   .params = (int32_t[]){0x40000000, 0},
                                                   .param_count = 2,
                                                   .in_place = true});
        headrace_graph_output(graph, over);
        (void) node(graph, &(struct headrace_node){.op = "SET_ROWS",
                                                   .sources = (uint32_t[]){rows, ids, cache},
                                                   .source_count = 3});
        struct hr_graph *wire = decoded(graph);

        HR_EXPECT_EQ(wire->leaf_count, 3);
        HR_EXPECT_EQ(wire->tensors[3].view_base, 0);
        HR_EXPECT_EQ(wire->tensors[3].view_offset, 64);
        HR_EXPECT_EQ(wire->tensors[6].view_base, 1); /* in place, on the root of the chain */
        HR_EXPECT_EQ(wire->tensors[7].view_base, 0);
        hr_graph_unref(wire);
        headrace_graph_free(graph);
}

HR_TEST(what_cannot_be_is_refused_and_leaves_nothing_behind) {
        struct headrace_graph *graph = headrace_graph_new();
        uint32_t a = leaf(graph, HEADRACE_INPUT, "f32", NE(8, 2, 1, 1), NULL);
        uint32_t b = leaf(graph, HEADRACE_INPUT, "f32", NE(7, 2, 1, 1), NULL);
        const struct {
                struct headrace_node node;
                const char *reason;
        } cases[] = {
                {{.op = "NO_SUCH"}, "OP"},
                {{.op = NULL}, "OP"},
                {{.op = "ADD", .sources = &a, .source_count = 1}, "ARITY"},
                {{.op = "ADD", .sources = (uint32_t[]){a, b}, .source_count = 2}, "SHAPE"},
                {{.op = "ADD", .sources = (uint32_t[]){a, 99}, .source_count = 2}, "SOURCE"},
                {{.op = "MUL_MAT", .sources = (uint32_t[]){a, b}, .source_count = 2}, "SHAPE"},
                {{.op = "MUL_MAT", .sources = (uint32_t[]){a, a}, .source_count = 2,
                  .in_place = true},
                 "VIEW"},
                {{.op = "RESHAPE", .sources = &a, .source_count = 1, .ne = {5, 1, 1, 1}}, "SHAPE"},
                {{.op = "ADD", .param_count = 17}, "ARITY"},
                {{.op = "ADD", .type = "f33"}, "DTYPE"},
        };
        struct headrace_error error;
        uint32_t tensor = 1234, next;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                memset(&error, 0, sizeof error);
                if (headrace_graph_node(graph, &cases[i].node, &error, &tensor) ==
                            HEADRACE_OK ||
                    strcmp(error.reason, cases[i].reason) != 0)
                        hr_test_fail(__FILE__, __LINE__, "case %zu: %s, not %s", i, error.reason,
                                     cases[i].reason);
                HR_EXPECT_EQ(tensor, 1234);
        }
        HR_EXPECT_EQ(headrace_graph_leaf(graph, HEADRACE_WEIGHT, "f32", NE(1, 1, 1, 1), NULL,
                                         &error, &tensor),
                     HEADRACE_INVALID);
        HR_EXPECT_STREQ(error.reason, "NAME");
        HR_EXPECT_EQ(headrace_graph_leaf(graph, HEADRACE_INPUT, "q4_0", NE(33, 1, 1, 1), NULL,
                                         &error, &tensor),
                     HEADRACE_INVALID);
        HR_EXPECT_STREQ(error.reason, "BLOCK");
        HR_EXPECT_EQ(headrace_graph_leaf(graph, HEADRACE_INPUT, "f32", NE(-1, 1, 1, 1), NULL,
                                         &error, &tensor),
                     HEADRACE_INVALID);
        next = node(graph, &(struct headrace_node){.op = "ADD", .sources = (uint32_t[]){a, a},
                                                   .source_count = 2});
        HR_EXPECT_EQ(next, 2);
        hr_graph_unref(decoded(graph));
        headrace_graph_free(graph);
}
