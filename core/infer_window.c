/* Square windows of images and the relative positions inside them. Images are [C,W,H]. */
#include "core/infer.h"

#include <inttypes.h>
#include <string.h>

static int64_t windows_over(int64_t extent, int64_t window) {
        return extent / window + (extent % window != 0);
}

/* [C,W,H] -> [C,w,w,npx*npy], zeros past the end */
hr_status hr_infer_win_part(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0];
        const int32_t *params = infer->node->params;

        infer->params_used = 3;
        HR_TRY(hr_infer_need_type(infer, 0, HR_TYPE_F32));
        HR_INFER_NEED(source->ne[3] == 1, "SHAPE", "an outer dimension is not 1");
        HR_INFER_NEED(params[2] > 0, "PARAM", "a window of %" PRId32, params[2]);
        HR_INFER_NEED(params[0] == windows_over(source->ne[1], params[2]) &&
                              params[1] == windows_over(source->ne[2], params[2]),
                      "PARAM", "%" PRId32 " by %" PRId32 " windows of %" PRId32 " for %" PRId64
                      " by %" PRId64, params[0], params[1], params[2], source->ne[1],
                      source->ne[2]);
        hr_infer_shape(infer, HR_TYPE_F32, source->ne[0], params[2], params[2],
                       (int64_t) params[0] * params[1]);
        return HR_OK;
}

/* [C,w,w,npx*npy] -> [C,W,H] as declared */
hr_status hr_infer_win_unpart(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0], *node = infer->node;
        int64_t window = node->params[0], windows;

        infer->params_used = 1;
        HR_TRY(hr_infer_need_type(infer, 0, HR_TYPE_F32));
        HR_INFER_NEED(window > 0 && source->ne[1] == window && source->ne[2] == window, "PARAM",
                      "a window of %" PRId64 ", the source has %" PRId64 " by %" PRId64, window,
                      source->ne[1], source->ne[2]);
        HR_TRY(hr_infer_product(infer,
                       (const int64_t[]) { windows_over(node->ne[1], window),
                                           windows_over(node->ne[2], window) },
                       2, &windows));
        HR_INFER_NEED(source->ne[3] == windows, "SHAPE", "%" PRId64 " windows, needed are %" PRId64,
                      source->ne[3], windows);
        hr_infer_shape(infer, HR_TYPE_F32, source->ne[0], node->ne[1], node->ne[2], 1);
        return HR_OK;
}

/* [C,2*K-1] -> [C,K,K] */
hr_status hr_infer_get_rel_pos(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0];
        int64_t extent = source->ne[1] / 2 + 1;

        HR_TRY(hr_infer_need_type(infer, 0, HR_TYPE_F16));
        HR_INFER_NEED(source->ne[1] % 2 == 1 && source->ne[2] == 1 && source->ne[3] == 1, "SHAPE",
                      "the source is no matrix with an odd number of rows");
        hr_infer_shape(infer, HR_TYPE_F16, source->ne[0], extent, extent, 1);
        return HR_OK;
}

/* a[K*K,Q1*Q2,B] width[K,Q1,Q2,B] height[K,Q1,Q2,B] -> like a */
hr_status hr_infer_add_rel_pos(struct hr_infer *infer) {
        const struct hr_tensor *a = infer->sources[0], *width = infer->sources[1];
        int64_t row, rows = width->ne[1] * width->ne[2];

        infer->params_used = 1;
        HR_INFER_NEED(infer->node->params[0] == 0 || infer->node->params[0] == 1, "PARAM",
                      "in place is %" PRId32, infer->node->params[0]);
        for (uint32_t i = 0; i < 3; i++) {
                HR_TRY(hr_infer_need_type(infer, i, HR_TYPE_F32));
                HR_TRY(hr_infer_need_dense_rows(infer, i));
        }
        HR_INFER_NEED(hr_tensor_same_shape(width, infer->sources[2]), "SHAPE",
                      "the two positions differ in shape");
        HR_TRY(hr_infer_product(infer, (const int64_t[]) { width->ne[0], width->ne[0] }, 2, &row));
        HR_INFER_NEED(a->ne[0] == row && a->ne[1] == rows && a->ne[2] == width->ne[3] &&
                              a->ne[3] == 1,
                      "SHAPE", "positions for [%" PRId64 ",%" PRId64 ",%" PRId64
                      "], source 0 is [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", row, rows,
                      width->ne[3], a->ne[0], a->ne[1], a->ne[2], a->ne[3]);
        hr_infer_like(infer, a);
        return HR_OK;
}
