/* Every op of op.def: what its kernels rely on is demanded, and refused with the node and in words.
 * */
#include "tests/unit/core/refusals/refusal.h"

#include "tests/build.h"
#include "tests/harness.h"

HR_TEST(every_precondition_is_demanded) {
        static const struct refusal_table *const tables[] = {
                &refusals_of_shape, &refusals_of_math, &refusals_of_matrix, &refusals_of_conv,
                &refusals_of_recurrent,
        };
        bool seen[HR_OP_LIMIT] = { false };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(tables); i++)
                refusal_table_run(tables[i], seen);
        for (uint32_t op = HR_OP_NONE + 1; op < HR_OP_LIMIT; op++)
                if (hr_op_info(op) && !seen[op])
                        hr_test_fail(__FILE__, __LINE__, "no table has %s", hr_op_name(op));
}

/* A convolution of each channel by itself, of a [C,W,H,N] image shown in the order `axes`. The id
 * of the convolution; what the tables cannot say of a source. */
static struct hr_graph *channels_first(int64_t channels, const int32_t axes[HR_DIMS], int32_t pad,
                                       uint32_t *ret_id) {
        struct hr_build *build = hr_build_new();
        uint32_t kernel = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "kernel", 1, 1, 1,
          channels);
        uint32_t image = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "image", channels, 6,
          6, 2);
        uint32_t shown = hr_build_node(build, HR_OP_PERMUTE, HR_TYPE_F32, 1, 1, 1, 1, 1, &image);
        uint32_t id = hr_build_node(build, HR_OP_CONV_2D_DW, HR_TYPE_F32, 1, 1, 1, 1, 2,
                                    (const uint32_t[]) { kernel, shown });
        struct hr_graph *graph;

        memcpy(hr_build_tensor(build, shown)->params, axes, HR_DIMS * sizeof axes[0]);
        memcpy(hr_build_tensor(build, id)->params, (const int32_t[]) { 1, 1, pad, pad, 1, 1 },
               6 * sizeof pad);
        graph = hr_build_finish(build);
        HR_EXPECT(hr_graph_infer(graph, shown, NULL) == HR_OK);
        *ret_id = id;
        return graph;
}

HR_TEST(channels_next_to_each_other_stay_so) {
        static const int32_t whc[HR_DIMS] = { 2, 0, 1, 3 }, hwc[HR_DIMS] = { 2, 1, 0, 3 };
        const struct hr_graph_limits limits = { 0 };
        struct hr_diag diag = { 0 };
        uint32_t id;
        struct hr_graph *graph = channels_first(4, whc, 0, &id);

        HR_EXPECT_OK(hr_graph_infer(graph, id, &diag), &diag);
        HR_EXPECT_EQ(graph->tensors[id].nb[2], sizeof(float));
        HR_EXPECT_EQ(graph->tensors[id].nb[0], 4 * sizeof(float));
        graph->tensors[id].nb[0] = sizeof(float);
        HR_EXPECT_EQ(hr_graph_validate(graph, &limits, &diag), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "STRIDE");
        HR_EXPECT(strstr(diag.words, "CONV_2D_DW: declared strides differ"));
        hr_graph_unref(graph);
        /* One channel lies in any order; columns before rows are not that layout. */
        graph = channels_first(1, whc, 0, &id);
        HR_EXPECT(hr_graph_infer(graph, id, NULL) == HR_OK);
        HR_EXPECT_EQ(graph->tensors[id].nb[0], sizeof(float));
        hr_graph_unref(graph);
        graph = channels_first(4, hwc, 0, &id);
        HR_EXPECT(hr_graph_infer(graph, id, NULL) == HR_OK);
        HR_EXPECT_EQ(graph->tensors[id].nb[0], sizeof(float));
        hr_graph_unref(graph);
        diag = (struct hr_diag) { 0 };
        graph = channels_first(4, whc, INT_MAX, &id);
        HR_EXPECT_EQ(hr_graph_infer(graph, id, &diag), HR_E_INVALID);
        HR_EXPECT(diag.has_node && strstr(diag.words, "CONV_2D_DW: the bytes do not fit"));
        hr_graph_unref(graph);
}

HR_TEST(refusals_without_a_diag_and_after_another) {
        struct hr_diag diag = { 0 };
        struct hr_build *build = hr_build_new();
        uint32_t leaf = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "leaf", 4, 1, 1, 1);
        uint32_t id = hr_build_node(build, HR_OP_SQR, HR_TYPE_I32, 4, 1, 1, 1, 1, &leaf);
        struct hr_graph *graph = hr_build_finish(build);

        HR_EXPECT_EQ(hr_graph_infer(graph, id, NULL), HR_E_INVALID);
        HR_EXPECT_EQ(hr_fail(&diag, HR_E_EXHAUSTED, "the first"), HR_E_EXHAUSTED);
        HR_EXPECT_EQ(hr_graph_infer(graph, id, &diag), HR_E_INVALID);
        HR_EXPECT_EQ(diag.status, HR_E_EXHAUSTED);
        HR_EXPECT(!diag.has_node);
        HR_EXPECT_STREQ(diag.words, "the first");
        hr_graph_unref(graph);
}
