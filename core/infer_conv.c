/*
 * Convolutions, their unfolded forms, pooling and resizing.
 *
 * Shapes are written as [ne0,ne1,ne2,ne3]. Images are [W,H,C,N]; volumes are [W,H,D,C*N]. A
 * window of `kernel` elements, `dilation` apart, slides over an axis with `pad` zeros at both
 * ends in steps of `stride`; an extent of a result is the number of places where it fits. In
 * convolutions an only place may hang over the end by less than a stride, as ggml's division
 * towards 0 has it.
 */
#include "core/infer.h"

#include <inttypes.h>
#include <string.h>

struct slide {
        int32_t stride, pad, dilation;
};

static hr_status slide_extent(struct hr_infer *infer, int64_t extent, int64_t kernel,
                              struct slide slide, int64_t *ret_places) {
        const int64_t room = extent + 2 * (int64_t) slide.pad; /* an extent of floats has 62 bits */
        int64_t reach; /* from the first element of the window to the last */

        HR_INFER_NEED(slide.stride > 0, "PARAM", "stride %" PRId32, slide.stride);
        HR_INFER_NEED(slide.pad >= 0, "PARAM", "pad %" PRId32, slide.pad);
        HR_INFER_NEED(slide.dilation > 0, "PARAM", "dilation %" PRId32, slide.dilation);
        HR_INFER_NEED(kernel > 0, "SHAPE", "an empty kernel");
        HR_INFER_NEED(!__builtin_mul_overflow(kernel - 1, (int64_t) slide.dilation, &reach), "SIZE",
                      "the window does not fit 63 bits");
        HR_INFER_NEED(room - 1 - reach > -(int64_t) slide.stride, "SHAPE",
                      "a window of %" PRIu64 " on %" PRId64 " elements with their pads",
                      (uint64_t) reach + 1, room);
        *ret_places = (room - 1 - reach) / slide.stride + 1;
        return HR_OK;
}

/* Where one element becomes a kernel's worth, `stride` apart. */
static hr_status spread_extent(struct hr_infer *infer, int64_t extent, int64_t kernel,
                               int32_t stride, int64_t *ret_extent) {
        int64_t result;

        HR_INFER_NEED(stride > 0, "PARAM", "stride %" PRId32, stride);
        HR_INFER_NEED(kernel > 0 && extent > 0, "SHAPE", "a kernel of %" PRId64 " on %" PRId64
                      " elements", kernel, extent);
        HR_INFER_NEED(!__builtin_mul_overflow(extent - 1, (int64_t) stride, &result) &&
                              !__builtin_add_overflow(result, kernel, &result),
                      "SIZE", "the result does not fit 63 bits");
        *ret_extent = result;
        return HR_OK;
}

static hr_status need_kernel_type(struct hr_infer *infer) {
        uint32_t type = infer->sources[0]->type;

        HR_INFER_NEED(type == HR_TYPE_F32 || type == HR_TYPE_F16, "DTYPE",
                      "the kernel is %s, not f32 or f16", hr_type_name(type));
        return HR_OK;
}

/* ---- IM2COL, IM2COL_3D ----------------------------------------------------------------------- */

static hr_status columns_type(struct hr_infer *infer) {
        uint32_t type = infer->node->type;

        HR_INFER_NEED(hr_infer_is_real(infer->sources[1]->type), "DTYPE", "source 1 is %s",
                      hr_type_name(infer->sources[1]->type));
        HR_INFER_NEED(type == HR_TYPE_F32 || type == HR_TYPE_F16, "DTYPE",
                      "columns are %s, not f32 or f16", hr_type_name(type));
        infer->type = type;
        return HR_OK;
}

/* kernel[KW,IC,OC] input[W,IC,N] -> [KW*IC,OW,N] */
static hr_status im2col_line(struct hr_infer *infer) {
        const struct hr_tensor *kernel = infer->sources[0], *input = infer->sources[1];
        const int32_t *params = infer->node->params;

        HR_INFER_NEED(params[1] == 0 && params[3] == 0 && params[5] == 0, "PARAM",
                      "stride, pad or dilation of an axis that is not there");
        HR_INFER_NEED(kernel->ne[1] == input->ne[1] && input->ne[3] == 1, "SHAPE",
                      "kernel of %" PRId64 " channels, input of %" PRId64, kernel->ne[1],
                      input->ne[1]);
        HR_TRY(slide_extent(infer, input->ne[0], kernel->ne[0],
                            (struct slide) { params[0], params[2], params[4] }, &infer->ne[1]));
        infer->ne[0] = kernel->ne[0] * kernel->ne[1];
        infer->ne[2] = input->ne[2];
        infer->ne[3] = 1;
        return HR_OK;
}

/* kernel[KW,KH,IC,OC] input[W,H,IC,N] -> [KW*KH*IC,OW,OH,N] */
hr_status hr_infer_im2col(struct hr_infer *infer) {
        const struct hr_tensor *kernel = infer->sources[0], *input = infer->sources[1];
        const int32_t *params = infer->node->params;

        infer->params_used = 7;
        HR_INFER_NEED(params[6] == 0 || params[6] == 1, "PARAM", "two-dimensional is %" PRId32,
                      params[6]);
        HR_TRY(columns_type(infer));
        if (!params[6])
                return im2col_line(infer);
        HR_INFER_NEED(kernel->ne[2] == input->ne[2], "SHAPE",
                      "kernel of %" PRId64 " channels, input of %" PRId64, kernel->ne[2],
                      input->ne[2]);
        for (int i = 0; i < 2; i++)
                HR_TRY(slide_extent(infer, input->ne[i], kernel->ne[i],
                                    (struct slide) { params[i], params[2 + i], params[4 + i] },
                                    &infer->ne[1 + i]));
        infer->ne[0] = kernel->ne[0] * kernel->ne[1] * kernel->ne[2];
        infer->ne[3] = input->ne[3];
        return HR_OK;
}

static hr_status slide_volume(struct hr_infer *infer, int64_t ret_places[3]) {
        const int32_t *params = infer->node->params;

        for (int i = 0; i < 3; i++)
                HR_TRY(slide_extent(infer, infer->sources[1]->ne[i], infer->sources[0]->ne[i],
                                    (struct slide) { params[i], params[3 + i], params[6 + i] },
                                    &ret_places[i]));
        return HR_OK;
}

/* kernel[KW,KH,KD,IC*OC] input[W,H,D,IC*N] -> [KW*KH*KD*IC,OW,OH,OD*N] */
hr_status hr_infer_im2col_3d(struct hr_infer *infer) {
        const struct hr_tensor *kernel = infer->sources[0], *input = infer->sources[1];
        int64_t channels = infer->node->params[9], places[3];

        infer->params_used = 10;
        HR_TRY(columns_type(infer));
        HR_INFER_NEED(channels > 0 && input->ne[3] % channels == 0 && kernel->ne[3] % channels == 0,
                      "PARAM", "%" PRId64 " channels do not divide %" PRId64 " and %" PRId64,
                      channels, kernel->ne[3], input->ne[3]);
        HR_TRY(slide_volume(infer, places));
        HR_TRY(hr_infer_product(infer,
                       (const int64_t[]) { kernel->ne[0], kernel->ne[1], kernel->ne[2], channels },
                       4, &infer->ne[0]));
        infer->ne[1] = places[0];
        infer->ne[2] = places[1];
        return hr_infer_product(infer, (const int64_t[]) { places[2], input->ne[3] / channels }, 2,
                       &infer->ne[3]);
}

/* ---- CONV_2D, CONV_2D_DW, CONV_3D ------------------------------------------------------------ */

static hr_status slide_image(struct hr_infer *infer) {
        const int32_t *params = infer->node->params;

        infer->params_used = 6;
        HR_TRY(need_kernel_type(infer));
        HR_TRY(hr_infer_need_type(infer, 1, HR_TYPE_F32));
        for (int i = 0; i < 2; i++)
                HR_TRY(slide_extent(infer, infer->sources[1]->ne[i], infer->sources[0]->ne[i],
                                    (struct slide) { params[i], params[2 + i], params[4 + i] },
                                    &infer->ne[i]));
        infer->type = HR_TYPE_F32;
        infer->ne[3] = infer->sources[1]->ne[3];
        return HR_OK;
}

/* kernel[KW,KH,IC,OC] input[W,H,IC,N] -> [OW,OH,OC,N] */
hr_status hr_infer_conv_2d(struct hr_infer *infer) {
        const struct hr_tensor *kernel = infer->sources[0], *input = infer->sources[1];

        HR_INFER_NEED(kernel->ne[2] == input->ne[2], "SHAPE",
                      "kernel of %" PRId64 " channels, input of %" PRId64, kernel->ne[2],
                      input->ne[2]);
        infer->ne[2] = kernel->ne[3];
        return slide_image(infer);
}

/* Channels next to each other, then along the rows: [W,H,C,N] permuted from [C,W,H,N]. */
static bool has_channels_first(const struct hr_tensor *image) {
        return image->nb[2] == hr_type_info(image->type)->block_bytes &&
               image->nb[0] > image->nb[2] && image->nb[1] > image->nb[0];
}

/* kernel[KW,KH,1,C] input[W,H,C,N] -> [OW,OH,C,N] in the input's order of dimensions */
hr_status hr_infer_conv_2d_dw(struct hr_infer *infer) {
        const struct hr_tensor *kernel = infer->sources[0], *input = infer->sources[1];
        struct hr_tensor dense = { .type = HR_TYPE_F32 };

        HR_INFER_NEED(kernel->ne[2] == 1 && kernel->ne[3] == input->ne[2], "SHAPE",
                      "kernel of %" PRId64 " channels with %" PRId64 " inputs each, input of %"
                      PRId64, kernel->ne[3], kernel->ne[2], input->ne[2]);
        infer->ne[2] = input->ne[2];
        HR_TRY(slide_image(infer));
        if (!has_channels_first(input))
                return HR_OK;
        memcpy(dense.ne, (const int64_t[]) { infer->ne[2], infer->ne[0], infer->ne[1],
                                             infer->ne[3] }, sizeof dense.ne);
        HR_TRY(hr_infer_dense(infer, &dense));
        infer->has_strides = true;
        memcpy(infer->nb, (const uint64_t[]) { dense.nb[1], dense.nb[2], dense.nb[0],
                                               dense.nb[3] }, sizeof infer->nb);
        return HR_OK;
}

/* kernel[KW,KH,KD,IC*OC] input[W,H,D,IC*N] -> [OW,OH,OD,OC*N] */
hr_status hr_infer_conv_3d(struct hr_infer *infer) {
        int64_t channels = infer->node->params[9], batch = infer->node->params[10];
        int64_t filters = infer->node->params[11];

        infer->params_used = 12;
        HR_TRY(need_kernel_type(infer));
        HR_TRY(hr_infer_need_type(infer, 1, HR_TYPE_F32));
        HR_INFER_NEED(channels >= 0 && batch >= 0 && filters >= 0, "PARAM",
                      "channels, batch or filters below 0");
        HR_INFER_NEED(infer->sources[0]->ne[3] == channels * filters, "SHAPE",
                      "kernel of %" PRId64 " planes, the parameters say %" PRId64,
                      infer->sources[0]->ne[3], channels * filters);
        HR_INFER_NEED(infer->sources[1]->ne[3] == channels * batch, "SHAPE",
                      "input of %" PRId64 " planes, the parameters say %" PRId64,
                      infer->sources[1]->ne[3], channels * batch);
        infer->type = HR_TYPE_F32;
        infer->ne[3] = filters * batch;
        return slide_volume(infer, infer->ne);
}

/* ---- CONV_TRANSPOSE_1D, CONV_TRANSPOSE_2D, COL2IM_1D ----------------------------------------- */

/* kernel[K,OC,IC] input[L,IC] -> [(L-1)*s0+K,OC] */
hr_status hr_infer_conv_transpose_1d(struct hr_infer *infer) {
        const struct hr_tensor *kernel = infer->sources[0], *input = infer->sources[1];
        const int32_t *params = infer->node->params;

        infer->params_used = 3;
        HR_INFER_NEED(params[1] == 0 && params[2] == 1, "PARAM",
                      "pad %" PRId32 " and dilation %" PRId32 ", only 0 and 1 exist", params[1],
                      params[2]);
        HR_TRY(need_kernel_type(infer));
        HR_TRY(hr_infer_need_type(infer, 1, HR_TYPE_F32));
        HR_INFER_NEED(input->ne[2] == 1 && input->ne[3] == 1 && kernel->ne[3] == 1, "SHAPE",
                      "an outer dimension is not 1");
        HR_INFER_NEED(kernel->ne[2] == input->ne[1], "SHAPE",
                      "kernel of %" PRId64 " channels, input of %" PRId64, kernel->ne[2],
                      input->ne[1]);
        hr_infer_shape(infer, HR_TYPE_F32, 0, kernel->ne[1], 1, 1);
        return spread_extent(infer, input->ne[0], kernel->ne[0], params[0], &infer->ne[0]);
}

/* kernel[KW,KH,OC,IC] input[W,H,IC,N] -> [(W-1)*s+KW,(H-1)*s+KH,OC,N] */
hr_status hr_infer_conv_transpose_2d(struct hr_infer *infer) {
        const struct hr_tensor *kernel = infer->sources[0], *input = infer->sources[1];

        infer->params_used = 1;
        HR_TRY(need_kernel_type(infer));
        HR_TRY(hr_infer_need_type(infer, 1, HR_TYPE_F32));
        HR_INFER_NEED(kernel->ne[3] == input->ne[2], "SHAPE",
                      "kernel of %" PRId64 " channels, input of %" PRId64, kernel->ne[3],
                      input->ne[2]);
        hr_infer_shape(infer, HR_TYPE_F32, 0, 0, kernel->ne[2], input->ne[3]);
        for (int i = 0; i < 2; i++)
                HR_TRY(spread_extent(infer, input->ne[i], kernel->ne[i], infer->node->params[0],
                                     &infer->ne[i]));
        return HR_OK;
}

/* columns[K*OC,T] -> [(T-1)*s0+K-2*p0,OC] */
hr_status hr_infer_col2im_1d(struct hr_infer *infer) {
        const struct hr_tensor *columns = infer->sources[0];
        const int32_t *params = infer->node->params;
        int64_t extent = 0;

        infer->params_used = 3;
        HR_INFER_NEED(hr_infer_is_real(columns->type), "DTYPE", "columns are %s",
                      hr_type_name(columns->type));
        HR_INFER_NEED(columns->ne[2] == 1 && columns->ne[3] == 1, "SHAPE",
                      "the columns are no matrix");
        HR_INFER_NEED(params[1] > 0 && columns->ne[0] % params[1] == 0, "PARAM",
                      "%" PRId32 " channels do not divide %" PRId64, params[1], columns->ne[0]);
        HR_INFER_NEED(params[2] >= 0, "PARAM", "pad %" PRId32, params[2]);
        HR_TRY(spread_extent(infer, columns->ne[1], columns->ne[0] / params[1], params[0],
                             &extent));
        HR_INFER_NEED(extent > 2 * (int64_t) params[2], "SHAPE",
                      "cropping twice %" PRId32 " leaves nothing of %" PRId64, params[2], extent);
        hr_infer_shape(infer, columns->type, extent - 2 * (int64_t) params[2], params[1], 1, 1);
        return HR_OK;
}

/* ---- POOL_1D, POOL_2D, UPSCALE --------------------------------------------------------------- */

static hr_status pool(struct hr_infer *infer, int axes) {
        const struct hr_tensor *source = infer->sources[0];
        const int32_t *params = infer->node->params;

        infer->params_used = 1 + 3 * (uint32_t) axes;
        HR_INFER_NEED(params[0] == 0 || params[0] == 1, "PARAM", "pooling %" PRId32, params[0]);
        HR_INFER_NEED(hr_infer_is_real(source->type), "DTYPE", "the source is %s",
                      hr_type_name(source->type));
        hr_infer_like(infer, source);
        infer->type = HR_TYPE_F32;
        for (int i = 0; i < axes; i++) {
                int64_t window = params[1 + i], pad = params[1 + 2 * axes + i];

                HR_TRY(slide_extent(infer, source->ne[i], window,
                                    (struct slide) { params[1 + axes + i], (int32_t) pad, 1 },
                                    &infer->ne[i]));
                HR_INFER_NEED(window <= source->ne[i] + 2 * pad, "SHAPE",
                              "a window of %" PRId64 " on %" PRId64 " elements", window,
                              source->ne[i]);
        }
        return HR_OK;
}

hr_status hr_infer_pool_1d(struct hr_infer *infer) {
        return pool(infer, 1);
}

hr_status hr_infer_pool_2d(struct hr_infer *infer) {
        return pool(infer, 2);
}

/* The declared shape is the wanted one. */
hr_status hr_infer_upscale(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0];
        int32_t mode = infer->node->params[0];

        infer->params_used = 1;
        HR_TRY(hr_infer_need_type(infer, 0, HR_TYPE_F32));
        HR_INFER_NEED(mode >= 0 && (mode & ~(HR_UPSCALE_MODE_MASK | HR_UPSCALE_ALIGN_CORNERS |
                                             HR_UPSCALE_ANTIALIAS)) == 0 &&
                              (mode & HR_UPSCALE_MODE_MASK) <= HR_UPSCALE_BICUBIC,
                      "PARAM", "mode %" PRId32, mode);
        HR_INFER_NEED(!(mode & HR_UPSCALE_ANTIALIAS) ||
                              (mode & HR_UPSCALE_MODE_MASK) == HR_UPSCALE_BILINEAR,
                      "PARAM", "antialiasing exists for the bilinear mode only");
        HR_INFER_NEED(!hr_tensor_is_empty(source) || hr_tensor_is_empty(infer->node), "SHAPE",
                      "nothing to take values from");
        infer->type = HR_TYPE_F32;
        memcpy(infer->ne, infer->node->ne, sizeof infer->ne);
        return HR_OK;
}
