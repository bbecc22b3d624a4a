/* Lists of ops that a device is told not to support. */
#include "core/deny.h"
#include "tests/build.h"
#include "tests/harness.h"

HR_TEST(lists_are_read) {
        struct hr_diag diag = { 0 };
        struct hr_deny deny;

        HR_EXPECT_OK(hr_deny_parse(NULL, &diag, &deny), &diag);
        HR_EXPECT_EQ(deny.most[HR_OP_ADD], 0);
        HR_EXPECT_OK(hr_deny_parse("", &diag, &deny), &diag);
        HR_EXPECT_OK(hr_deny_parse("ADD, MUL>16,SCALE>0", &diag, &deny), &diag);
        HR_EXPECT_EQ(deny.most[HR_OP_ADD], -1);
        HR_EXPECT_EQ(deny.most[HR_OP_MUL], 17);
        HR_EXPECT_EQ(deny.most[HR_OP_SCALE], 1);
        HR_EXPECT_EQ(deny.most[HR_OP_DIV], 0);
        HR_EXPECT_OK(hr_deny_parse("*>8,ADD", &diag, &deny), &diag);
        HR_EXPECT_EQ(deny.most[HR_OP_DIV], 9);
        HR_EXPECT_EQ(deny.most[HR_OP_ADD], -1);
        HR_EXPECT_EQ(deny.most[HR_OP_VIEW], 0);
}

HR_TEST(what_is_no_list_is_refused) {
        static const char *const bad[] = { "NO_SUCH", "ADD,", ",ADD", "ADD>", "ADD>-1", "ADD> 1",
                                           "ADD>1x", "ADD>9223372036854775807", "ADD>1>2", ">1",
                                           "ADD>99999999999999999999", "ADD MUL" };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(bad); ++i) {
                struct hr_diag diag = { 0 };
                struct hr_deny deny = { .most = { 7 } };

                HR_EXPECT_EQ(hr_deny_parse(bad[i], &diag, &deny), HR_E_INVALID);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), "OP");
                HR_EXPECT_EQ(deny.most[0], 7); /* as it was */
        }
}

/* The length of dimension 0 of the node or of a source counts. */
HR_TEST(lengths_count) {
        struct hr_build *build = hr_build_new();
        struct hr_graph_limits limits = { .tensor_bytes_max = 1 << 20 };
        uint32_t x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 32, 1, 1, 1);
        uint32_t one = hr_build_node(build, HR_OP_SUM, HR_TYPE_F32, 1, 1, 1, 1, 1, &x);
        uint32_t both[] = { x, one };
        uint32_t sum = hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 32, 1, 1, 1, 2, both);
        struct hr_graph *graph = hr_build_finish(build);
        static const struct {
                const char *list;
                bool sum, add;
        } cases[] = {
                {"SUM", true, false},     {"SUM>31", true, false}, {"SUM>32", false, false},
                {"ADD>32", false, false}, {"ADD>31", false, true}, {"ADD>0,SUM>1", true, true},
        };

        struct hr_diag built = { 0 };

        HR_EXPECT_OK(hr_graph_validate(graph, &limits, &built), &built);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); ++i) {
                struct hr_diag diag = { 0 };
                struct hr_deny deny;

                HR_EXPECT_OK(hr_deny_parse(cases[i].list, &diag, &deny), &diag);
                HR_EXPECT_EQ(hr_deny_refuses(&deny, graph, one), cases[i].sum);
                HR_EXPECT_EQ(hr_deny_refuses(&deny, graph, sum), cases[i].add);
                HR_EXPECT(!hr_deny_refuses(&deny, graph, x));
        }
        hr_graph_unref(graph);
}
