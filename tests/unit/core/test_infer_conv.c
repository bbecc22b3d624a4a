/* Shapes and preconditions of convolutions, pooling, resizing and windows. */
#include "tests/unit/core/infer_case.h"

#include <limits.h>

#define HUGE_EXTENT (INT64_C(1) << 58)

static const struct infer_case cases[] = {
        /* IM2COL */
        { HR_OP_IM2COL, 2, F32(27, 10, 10, 1), { F16(3, 3, 3, 5), F32(10, 10, 3, 1) },
          { 1, 1, 1, 1, 1, 1, 1 }, NULL },
        { HR_OP_IM2COL, 2, F16(12, 6, 7, 2), { F32(3, 2, 2, 2), F32(12, 9, 2, 2) },
          { 2, 1, 1, 0, 1, 2, 1 }, NULL },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { 1, 0, 0, 0, 1, 0, 0 }, NULL },
        { HR_OP_IM2COL, 2, BF16(6, 18, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { 1, 0, 0, 0, 1, 0, 0 }, "DTYPE" },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 2, 2, 1), I32(20, 2, 2, 1) },
          { 1, 0, 0, 0, 1, 0, 0 }, "DTYPE" },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { 1, 1, 0, 0, 1, 0, 0 }, "PARAM" },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { 1, 0, 0, 0, 1, 0, 2 }, "PARAM" },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { 0, 0, 0, 0, 1, 0, 0 }, "PARAM" },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { -1, 0, 0, 0, 1, 0, 0 }, "PARAM" },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { 1, 0, -1, 0, 1, 0, 0 }, "PARAM" },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { 1, 0, 0, 0, 0, 0, 0 }, "PARAM" },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { 1, 0, 0, 0, INT_MAX, 0, 0 }, "SHAPE" },
        { HR_OP_IM2COL, 2, F32(6, 17, 2, 1), { F32(3, 2, 2, 1), F32(20, 2, 2, 1) },
          { 1, 0, 0, 0, 1, 0, 0 }, "SHAPE" },
        { HR_OP_IM2COL, 2, F32(6, 18, 2, 1), { F32(3, 3, 2, 1), F32(20, 2, 2, 1) },
          { 1, 0, 0, 0, 1, 0, 0 }, "SHAPE" },
        { HR_OP_IM2COL, 2, F32(0, 18, 2, 1), { F32(0, 2, 2, 1), F32(20, 2, 2, 1) },
          { 1, 0, 0, 0, 1, 0, 0 }, "SHAPE" },
        /* IM2COL_3D */
        { HR_OP_IM2COL_3D, 2, F32(12, 3, 6, 8), { F32(3, 2, 2, 2), F32(7, 6, 5, 2) },
          { 2, 1, 1, 0, 1, 0, 1, 2, 1, 1 }, NULL },
        { HR_OP_IM2COL_3D, 2, F16(81, 6, 5, 4), { F16(3, 3, 3, 6), F32(6, 5, 4, 3) },
          { 1, 1, 1, 1, 1, 1, 1, 1, 1, 3 }, NULL },
        { HR_OP_IM2COL_3D, 2, F16(81, 6, 5, 4), { F16(3, 3, 3, 6), F32(6, 5, 4, 3) },
          { 1, 1, 1, 1, 1, 1, 1, 1, 1, 0 }, "PARAM" },
        { HR_OP_IM2COL_3D, 2, F16(81, 6, 5, 4), { F16(3, 3, 3, 6), F32(6, 5, 4, 3) },
          { 1, 1, 1, 1, 1, 1, 1, 1, 1, 2 }, "PARAM" },
        { HR_OP_IM2COL_3D, 2, F16(81, 6, 5, 4), { F16(3, 3, 3, 6), F32(6, 5, 4, 3) },
          { 1, 1, 1, 1, 1, 1, 1, 1, -1, 3 }, "PARAM" },
        /* CONV_2D */
        { HR_OP_CONV_2D, 2, F32(6, 12, 5, 1), { F16(3, 2, 3, 5), F32(12, 9, 3, 1) },
          { 2, 1, 1, 2, 1, 1 }, NULL },
        { HR_OP_CONV_2D, 2, F32(4, 1, 1, 2), { F32(3, 3, 1, 1), F32(4, 4, 1, 2) },
          { 3, 5, 5, 2, 2, 4 }, NULL },
        { HR_OP_CONV_2D, 2, F32(4, 4, 2, 0), { F32(1, 1, 3, 2), F32(4, 4, 3, 0) },
          { 1, 1, 0, 0, 1, 1 }, NULL },
        { HR_OP_CONV_2D, 2, F32(6, 12, 5, 1), { F16(3, 2, 2, 5), F32(12, 9, 3, 1) },
          { 2, 1, 1, 2, 1, 1 }, "SHAPE" },
        { HR_OP_CONV_2D, 2, F32(6, 12, 5, 1), { BF16(3, 2, 3, 5), F32(12, 9, 3, 1) },
          { 2, 1, 1, 2, 1, 1 }, "DTYPE" },
        { HR_OP_CONV_2D, 2, F32(6, 12, 5, 1), { F16(3, 2, 3, 5), F16(12, 9, 3, 1) },
          { 2, 1, 1, 2, 1, 1 }, "DTYPE" },
        { HR_OP_CONV_2D, 2, F32(6, 12, 5, 1), { F16(3, 2, 3, 5), F32(12, 9, 3, 1) },
          { 2, 1, 1, 2, 1, 1, 1 }, "PARAM" },
        { HR_OP_CONV_2D, 2, F32(1, 1, 1, 1), { F32(5, 5, 1, 1), F32(4, 4, 1, 1) },
          { 1, 1, 0, 0, 1, 1 }, "SHAPE" },
        { HR_OP_CONV_2D, 2, F32(4, 1, 1, 2), { F32(3, 3, 1, 1), F32(4, 4, 1, 2) },
          { 3, 1, 5, 2, 2, 4 }, "SHAPE" },
        /* CONV_2D_DW */
        { HR_OP_CONV_2D_DW, 2, F32(6, 4, 8, 1), { F16(3, 3, 1, 8), F32(12, 8, 8, 1) },
          { 2, 2, 1, 1, 1, 1 }, NULL },
        { HR_OP_CONV_2D_DW, 2, F32(6, 4, 8, 1), { F16(3, 3, 2, 8), F32(12, 8, 8, 1) },
          { 2, 2, 1, 1, 1, 1 }, "SHAPE" },
        { HR_OP_CONV_2D_DW, 2, F32(6, 4, 8, 1), { F16(3, 3, 1, 7), F32(12, 8, 8, 1) },
          { 2, 2, 1, 1, 1, 1 }, "SHAPE" },
        /* CONV_3D */
        { HR_OP_CONV_3D, 2, F32(3, 4, 4, 4), { F32(3, 3, 3, 6), F32(5, 4, 4, 6) },
          { 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 2, 2 }, NULL },
        { HR_OP_CONV_3D, 2, F32(3, 4, 4, 4), { F32(3, 3, 3, 6), F32(5, 4, 4, 6) },
          { 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 2, 3 }, "SHAPE" },
        { HR_OP_CONV_3D, 2, F32(3, 4, 4, 4), { F32(3, 3, 3, 6), F32(5, 4, 4, 6) },
          { 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 2 }, "SHAPE" },
        { HR_OP_CONV_3D, 2, F32(3, 4, 4, 4), { F32(3, 3, 3, 6), F32(5, 4, 4, 6) },
          { 2, 1, 1, 1, 1, 1, 1, 1, 1, -3, -2, -2 }, "PARAM" },
        /* CONV_TRANSPOSE */
        { HR_OP_CONV_TRANSPOSE_1D, 2, F32(16, 3, 1, 1), { F16(4, 3, 2, 1), F32(7, 2, 1, 1) },
          { 2, 0, 1 }, NULL },
        { HR_OP_CONV_TRANSPOSE_1D, 2, F32(16, 3, 1, 1), { F16(4, 3, 2, 1), F32(7, 2, 1, 1) },
          { 2, 1, 1 }, "PARAM" },
        { HR_OP_CONV_TRANSPOSE_1D, 2, F32(16, 3, 1, 1), { F16(4, 3, 2, 1), F32(7, 2, 1, 1) },
          { 0, 0, 1 }, "PARAM" },
        { HR_OP_CONV_TRANSPOSE_1D, 2, F32(16, 3, 1, 1), { F16(4, 3, 2, 1), F32(7, 2, 2, 1) },
          { 2, 0, 1 }, "SHAPE" },
        { HR_OP_CONV_TRANSPOSE_2D, 2, F32(10, 6, 2, 1), { F32(4, 3, 2, 5), F32(3, 2, 5, 1) }, { 3 },
          NULL },
        { HR_OP_CONV_TRANSPOSE_2D, 2, F32(10, 6, 2, 1), { F32(4, 3, 2, 4), F32(3, 2, 5, 1) }, { 3 },
          "SHAPE" },
        { HR_OP_CONV_TRANSPOSE_2D, 2, F32(10, 6, 2, 1), { F32(4, 3, 2, 5), F32(3, 2, 5, 1) },
          { -3 }, "PARAM" },
        { HR_OP_CONV_TRANSPOSE_2D, 2, F32(10, 6, 2, 1),
          { F32(4, 3, 2, 5), F32(HUGE_EXTENT, 0, 5, 1) }, { INT_MAX }, "SIZE" },
        { HR_OP_CONV_TRANSPOSE_2D, 2, F32(10, 6, 2, 1), { F32(4, 3, 2, 5), F32(3, 0, 5, 1) }, { 3 },
          "SHAPE" },
        /* COL2IM_1D */
        { HR_OP_COL2IM_1D, 1, F32(14, 2, 1, 1), { F32(12, 5, 1, 1) }, { 3, 2, 2 }, NULL },
        { HR_OP_COL2IM_1D, 1, BF16(16, 3, 1, 1), { BF16(12, 7, 1, 1) }, { 2, 3, 0 }, NULL },
        { HR_OP_COL2IM_1D, 1, F32(14, 2, 1, 1), { F32(12, 5, 1, 1) }, { 3, 5, 2 }, "PARAM" },
        { HR_OP_COL2IM_1D, 1, F32(14, 2, 1, 1), { F32(12, 5, 1, 1) }, { 3, 0, 2 }, "PARAM" },
        { HR_OP_COL2IM_1D, 1, F32(14, 2, 1, 1), { F32(12, 5, 1, 1) }, { 0, 2, 2 }, "PARAM" },
        { HR_OP_COL2IM_1D, 1, F32(14, 2, 1, 1), { F32(12, 5, 1, 1) }, { 3, 2, -1 }, "PARAM" },
        { HR_OP_COL2IM_1D, 1, F32(14, 2, 1, 1), { F32(12, 5, 1, 1) }, { 3, 2, 9 }, "SHAPE" },
        { HR_OP_COL2IM_1D, 1, F32(14, 2, 1, 1), { F32(12, 5, 2, 1) }, { 3, 2, 2 }, "SHAPE" },
        /* POOL */
        { HR_OP_POOL_1D, 1, F32(5, 3, 2, 1), { F16(10, 3, 2, 1) }, { 0, 3, 2, 1 }, NULL },
        { HR_OP_POOL_1D, 1, F32(5, 3, 2, 1), { F32(10, 3, 2, 1) }, { 2, 3, 2, 1 }, "PARAM" },
        { HR_OP_POOL_1D, 1, F32(5, 3, 2, 1), { F32(10, 3, 2, 1) }, { 0, 3, 0, 1 }, "PARAM" },
        { HR_OP_POOL_1D, 1, F32(5, 3, 2, 1), { F32(10, 3, 2, 1) }, { 0, 0, 2, 1 }, "SHAPE" },
        { HR_OP_POOL_1D, 1, F32(5, 3, 2, 1), { F32(10, 3, 2, 1) }, { 0, -3, 2, 1 }, "SHAPE" },
        { HR_OP_POOL_1D, 1, F32(1, 3, 2, 1), { F32(10, 3, 2, 1) }, { 0, 12, 5, 0 }, "SHAPE" },
        { HR_OP_POOL_1D, 1, F16(5, 3, 2, 1), { F16(10, 3, 2, 1) }, { 0, 3, 2, 1 }, "DTYPE" },
        { HR_OP_POOL_2D, 1, F32(5, 4, 2, 1), { F32(10, 8, 2, 1) }, { 1, 2, 2, 2, 2 }, NULL },
        { HR_OP_POOL_2D, 1, F32(5, 4, 2, 1), { F32(10, 8, 2, 1) }, { 1, 2, 9, 2, 2 }, "SHAPE" },
        { HR_OP_POOL_2D, 1, F32(5, 4, 2, 1), { F32(10, 8, 2, 1) }, { 1, 2, 2, 2, 2, 0, -1 },
          "PARAM" },
        /* UPSCALE */
        { HR_OP_UPSCALE, 1, F32(5, 7, 6, 3), { F32(2, 5, 3, 3) }, { 0 }, NULL },
        { HR_OP_UPSCALE, 1, F32(5, 7, 6, 3), { F32(2, 5, 3, 3) }, { 2 + 256 }, NULL },
        { HR_OP_UPSCALE, 1, F32(5, 7, 6, 3), { F32(2, 5, 3, 3) }, { 1 + 512 }, NULL },
        { HR_OP_UPSCALE, 1, F32(5, 7, 6, 3), { F32(2, 5, 3, 3) }, { 2 + 512 }, "PARAM" },
        { HR_OP_UPSCALE, 1, F32(5, 7, 6, 3), { F32(2, 5, 3, 3) }, { 3 }, "PARAM" },
        { HR_OP_UPSCALE, 1, F32(5, 7, 6, 3), { F32(2, 5, 3, 3) }, { 1024 }, "PARAM" },
        { HR_OP_UPSCALE, 1, F32(5, 7, 6, 3), { F32(2, 5, 3, 3) }, { -1 }, "PARAM" },
        { HR_OP_UPSCALE, 1, F32(5, 7, 6, 3), { F32(2, 0, 3, 3) }, { 0 }, "SHAPE" },
        { HR_OP_UPSCALE, 1, F16(5, 7, 6, 3), { F16(2, 5, 3, 3) }, { 0 }, "DTYPE" },
        /* Windows */
        { HR_OP_WIN_PART, 1, F32(6, 3, 3, 12), { F32(6, 7, 10, 1) }, { 3, 4, 3 }, NULL },
        { HR_OP_WIN_PART, 1, F32(6, 3, 3, 12), { F32(6, 7, 10, 1) }, { 4, 3, 3 }, "PARAM" },
        { HR_OP_WIN_PART, 1, F32(6, 3, 3, 12), { F32(6, 7, 10, 1) }, { 3, 4, 0 }, "PARAM" },
        { HR_OP_WIN_PART, 1, F32(6, 3, 3, 12), { F32(6, 7, 10, 2) }, { 3, 4, 3 }, "SHAPE" },
        { HR_OP_WIN_UNPART, 1, F32(6, 7, 10, 1), { F32(6, 3, 3, 12) }, { 3 }, NULL },
        { HR_OP_WIN_UNPART, 1, F32(6, 7, 13, 1), { F32(6, 3, 3, 12) }, { 3 }, "SHAPE" },
        { HR_OP_WIN_UNPART, 1, F32(6, 7, 10, 1), { F32(6, 3, 3, 12) }, { 2 }, "PARAM" },
        { HR_OP_WIN_UNPART, 1, F32(6, 7, 10, 1), { F32(6, 3, 3, 12) }, { 0 }, "PARAM" },
        { HR_OP_GET_REL_POS, 1, F16(6, 4, 4, 1), { F16(6, 7, 1, 1) }, { 0 }, NULL },
        { HR_OP_GET_REL_POS, 1, F16(6, 4, 4, 1), { F16(6, 8, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_GET_REL_POS, 1, F16(6, 4, 4, 1), { F32(6, 7, 1, 1) }, { 0 }, "DTYPE" },
        { HR_OP_ADD_REL_POS, 3, F32(9, 6, 2, 1),
          { F32(9, 6, 2, 1), F32(3, 2, 3, 2), F32(3, 2, 3, 2) }, { 0 }, NULL },
        { HR_OP_ADD_REL_POS, 3, F32(9, 6, 2, 1),
          { F32(9, 6, 2, 1), F32(3, 2, 3, 2), F32(3, 3, 2, 2) }, { 0 }, "SHAPE" },
        { HR_OP_ADD_REL_POS, 3, F32(8, 6, 2, 1),
          { F32(8, 6, 2, 1), F32(3, 2, 3, 2), F32(3, 2, 3, 2) }, { 0 }, "SHAPE" },
        { HR_OP_ADD_REL_POS, 3, F32(9, 6, 2, 1),
          { F32(9, 6, 2, 1), F32(3, 2, 3, 2), F32(3, 2, 3, 2) }, { 2 }, "PARAM" },
};

HR_TEST(infer_conv_cases) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++)
                infer_case_run(&cases[i], i);
}

/* A depthwise convolution over [C,W,H,N] permuted to [W,H,C,N]. */
static struct hr_graph *channels_first(const uint64_t *result_nb) {
        struct hr_build *build = hr_build_new();
        uint32_t kernel = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "k", 3, 3, 1, 5);
        uint32_t image = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 5, 17, 10, 2);
        uint32_t view, node;

        view = hr_build_node(build, HR_OP_PERMUTE, HR_TYPE_F32, 17, 10, 5, 2, 1, &image);
        memcpy(hr_build_tensor(build, view)->params, (const int32_t[]) { 2, 0, 1, 3 }, 16);
        memcpy(hr_build_tensor(build, view)->nb, (const uint64_t[]) { 20, 340, 4, 3400 }, 32);
        hr_build_tensor(build, view)->view_base = image;
        node = hr_build_node(build, HR_OP_CONV_2D_DW, HR_TYPE_F32, 15, 8, 5, 2, 2,
                             (const uint32_t[]) { kernel, view });
        memcpy(hr_build_tensor(build, node)->params, (const int32_t[]) { 1, 1, 0, 0, 1, 1 }, 24);
        memcpy(hr_build_tensor(build, node)->nb, result_nb, 32);
        return hr_build_finish(build);
}

HR_TEST(infer_conv_keeps_channels_first) {
        static const uint64_t kept[] = { 20, 300, 4, 2400 }, dense[] = { 4, 60, 480, 2400 };
        const struct hr_graph_limits limits = { 0 };
        struct hr_diag diag = { 0 };
        struct hr_graph *graph = channels_first(kept);

        HR_EXPECT_OK(hr_graph_validate(graph, &limits, &diag), &diag);
        HR_EXPECT_EQ(hr_tensor_bytes(hr_graph_node(graph, 1)), 4800);
        hr_graph_unref(graph);
        graph = channels_first(dense);
        HR_EXPECT_EQ(hr_graph_validate(graph, &limits, &diag), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "STRIDE");
        hr_graph_unref(graph);
}
