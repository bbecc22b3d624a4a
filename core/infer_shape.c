/* Views, copies and everything that moves elements without computing on them. */
#include "core/infer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Element count of the declared extents, or -1 when it does not fit. */
static int64_t declared_elements(const struct hr_infer *infer) {
        int64_t count = 1;

        for (int i = 0; i < HR_DIMS; i++)
                if (infer->node->ne[i] < 0 ||
                    __builtin_mul_overflow(count, infer->node->ne[i], &count))
                        return -1;
        return count;
}

static hr_status same_count(struct hr_infer *infer) {
        HR_INFER_NEED(declared_elements(infer) == hr_tensor_elements(infer->sources[0]), "SHAPE",
                      "declared elements differ from the source's %" PRId64,
                      hr_tensor_elements(infer->sources[0]));
        memcpy(infer->ne, infer->node->ne, sizeof infer->ne);
        return HR_OK;
}

static uint64_t source_offset(const struct hr_tensor *source) {
        return source->view_base == HR_TENSOR_NONE ? 0 : source->view_offset;
}

/* A VIEW may have any outer strides that stay inside its base; validate.c checks the extent. */
hr_status hr_infer_view(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0], *node = infer->node;
        const struct hr_type_info *info = hr_type_info(source->type);
        uint64_t offset = hr_param_u64(node->params, 0);

        infer->params_used = 2;
        HR_INFER_NEED(offset <= INT64_MAX, "VIEW", "the offset does not fit");
        offset += source_offset(source); /* which ends inside its base, below 63 bits */
        HR_INFER_NEED(node->view_offset == offset, "VIEW",
                      "declared at byte %" PRIu64 " of its base, its parameters say %" PRIu64,
                      node->view_offset, offset);
        HR_INFER_NEED(offset % (info->is_block ? 2 : info->block_bytes) == 0, "VIEW",
                      "byte offset %" PRIu64 " lies inside an element", offset);
        HR_INFER_NEED(node->nb[0] == info->block_bytes, "STRIDE",
                      "stride 0 is %" PRIu64 ", an element has %" PRIu32 " bytes", node->nb[0],
                      info->block_bytes);
        for (int i = 1; i < HR_DIMS; i++)
                HR_INFER_NEED(node->nb[i] % (info->is_block ? 2 : info->block_bytes) == 0,
                              "STRIDE", "stride %d is %" PRIu64 ", not a multiple of an element",
                              i, node->nb[i]);
        infer->type = source->type;
        memcpy(infer->ne, node->ne, sizeof infer->ne);
        hr_infer_view_of(infer, 0, offset, node->nb);
        return HR_OK;
}

hr_status hr_infer_reshape(struct hr_infer *infer) {
        struct hr_tensor dense = *infer->node;

        HR_INFER_NEED(hr_tensor_is_contiguous(infer->sources[0]), "STRIDE",
                      "the source is not contiguous");
        HR_TRY(same_count(infer));
        infer->type = dense.type = infer->sources[0]->type;
        HR_TRY(hr_infer_dense(infer, &dense));
        hr_infer_view_of(infer, 0, source_offset(infer->sources[0]), dense.nb);
        return HR_OK;
}

static hr_status permute(struct hr_infer *infer, const int32_t axes[HR_DIMS]) {
        const struct hr_tensor *source = infer->sources[0];
        uint64_t nb[HR_DIMS];
        uint32_t seen = 0;

        for (int i = 0; i < HR_DIMS; i++) {
                HR_INFER_NEED(axes[i] >= 0 && axes[i] < HR_DIMS, "PARAM", "axis %d is %" PRId32, i,
                              axes[i]);
                seen |= 1U << axes[i];
                infer->ne[axes[i]] = source->ne[i];
                nb[axes[i]] = source->nb[i];
        }
        HR_INFER_NEED(seen == (1U << HR_DIMS) - 1, "PARAM", "an axis occurs twice");
        HR_INFER_NEED(!hr_type_info(source->type)->is_block || axes[0] == 0, "DTYPE",
                      "blocks of %s lie along axis 0, which must stay", hr_type_name(source->type));
        infer->type = source->type;
        hr_infer_view_of(infer, 0, source_offset(source), nb);
        return HR_OK;
}

hr_status hr_infer_permute(struct hr_infer *infer) {
        infer->params_used = HR_DIMS;
        return permute(infer, infer->node->params);
}

hr_status hr_infer_transpose(struct hr_infer *infer) {
        return permute(infer, (const int32_t[HR_DIMS]) { 1, 0, 2, 3 });
}

hr_status hr_infer_dup(struct hr_infer *infer) {
        hr_infer_like(infer, infer->sources[0]);
        return HR_OK;
}

hr_status hr_infer_cont(struct hr_infer *infer) {
        infer->type = infer->sources[0]->type;
        return same_count(infer);
}

/* With a target: writes into it and is a window on it. Without: a cast to the declared type. */
hr_status hr_infer_cpy(struct hr_infer *infer) {
        const struct hr_tensor *target = infer->sources[1];

        if (!target) {
                infer->type = infer->node->type;
                return same_count(infer);
        }
        HR_INFER_NEED(hr_tensor_elements(infer->sources[0]) == hr_tensor_elements(target), "SHAPE",
                      "%" PRId64 " elements into %" PRId64,
                      hr_tensor_elements(infer->sources[0]), hr_tensor_elements(target));
        hr_infer_like(infer, target);
        hr_infer_view_of(infer, 1, source_offset(target), target->nb);
        return HR_OK;
}

hr_status hr_infer_get_rows(struct hr_infer *infer) {
        const struct hr_tensor *rows = infer->sources[0], *ids = infer->sources[1];

        HR_INFER_NEED(ids->type == HR_TYPE_I32, "DTYPE", "row ids are %s, not i32",
                      hr_type_name(ids->type));
        HR_INFER_NEED(rows->ne[2] == ids->ne[1] && rows->ne[3] == ids->ne[2] && ids->ne[3] == 1,
                      "SHAPE", "row ids do not match the outer dimensions of the rows");
        HR_INFER_NEED(hr_tensor_rows_are_contiguous(rows), "STRIDE", "rows are not dense");
        hr_infer_shape(infer, rows->type == HR_TYPE_I32 ? HR_TYPE_I32 : HR_TYPE_F32, rows->ne[0],
                       ids->ne[0], ids->ne[1], ids->ne[2]);
        return HR_OK;
}

hr_status hr_infer_set_rows(struct hr_infer *infer) {
        const struct hr_tensor *values = infer->sources[0], *ids = infer->sources[1],
                               *target = infer->sources[2];

        HR_INFER_NEED(ids->type == HR_TYPE_I32 || ids->type == HR_TYPE_I64, "DTYPE",
                      "row ids are %s, not i32 or i64", hr_type_name(ids->type));
        HR_INFER_NEED(values->type == HR_TYPE_F32 || values->type == HR_TYPE_F16, "DTYPE",
                      "values are %s, not f32 or f16", hr_type_name(values->type));
        HR_INFER_NEED(values->ne[0] == target->ne[0] && values->ne[2] == target->ne[2] &&
                              values->ne[3] == target->ne[3],
                      "SHAPE", "values and target differ in a dimension other than 1");
        HR_INFER_NEED(values->ne[1] == ids->ne[0], "SHAPE",
                      "%" PRId64 " rows of values, %" PRId64 " ids", values->ne[1], ids->ne[0]);
        HR_INFER_NEED(ids->ne[1] > 0 && ids->ne[2] > 0 && ids->ne[3] == 1 &&
                              values->ne[2] % ids->ne[1] == 0 && values->ne[3] % ids->ne[2] == 0,
                      "SHAPE", "ids do not repeat over the outer dimensions");
        HR_INFER_NEED(hr_tensor_rows_are_contiguous(values) &&
                              hr_tensor_rows_are_contiguous(target),
                      "STRIDE", "rows are not dense");
        hr_infer_like(infer, target);
        hr_infer_view_of(infer, 2, source_offset(target), target->nb);
        return HR_OK;
}

hr_status hr_infer_concat(struct hr_infer *infer) {
        const struct hr_tensor *a = infer->sources[0], *b = infer->sources[1];
        int32_t axis = infer->node->params[0];

        infer->params_used = 1;
        HR_INFER_NEED(axis >= 0 && axis < HR_DIMS, "PARAM", "dimension %" PRId32, axis);
        HR_INFER_NEED(a->type == b->type, "DTYPE", "%s and %s", hr_type_name(a->type),
                      hr_type_name(b->type));
        hr_infer_like(infer, a);
        for (int i = 0; i < HR_DIMS; i++)
                HR_INFER_NEED(i == axis || a->ne[i] == b->ne[i], "SHAPE",
                              "extent %d is %" PRId64 " and %" PRId64, i, a->ne[i], b->ne[i]);
        HR_INFER_NEED(!__builtin_add_overflow(a->ne[axis], b->ne[axis], &infer->ne[axis]), "SIZE",
                      "the sum of the extents does not fit");
        return HR_OK;
}

hr_status hr_infer_repeat(struct hr_infer *infer) {
        HR_INFER_NEED(declared_elements(infer) >= 0, "SIZE", "the elements do not fit 64 bits");
        HR_INFER_NEED(hr_tensor_repeats(infer->sources[0], infer->node), "SHAPE",
                      "the declared shape is no multiple of the source's");
        infer->type = infer->sources[0]->type;
        memcpy(infer->ne, infer->node->ne, sizeof infer->ne);
        return HR_OK;
}

hr_status hr_infer_repeat_back(struct hr_infer *infer) {
        HR_INFER_NEED(declared_elements(infer) >= 0, "SIZE", "the elements do not fit 64 bits");
        HR_INFER_NEED(hr_tensor_repeats(infer->node, infer->sources[0]), "SHAPE",
                      "the source's shape is no multiple of the declared one");
        infer->type = infer->sources[0]->type;
        memcpy(infer->ne, infer->node->ne, sizeof infer->ne);
        return HR_OK;
}

/* SET and ACC: source 1 lies in the result at an offset, with strides given in bytes. */
hr_status hr_infer_window(struct hr_infer *infer) {
        const struct hr_tensor *whole = infer->sources[0], *part = infer->sources[1];
        const int32_t *params = infer->node->params;
        const struct hr_type_info *info = hr_type_info(whole->type);
        struct hr_tensor window = *part;
        uint64_t span;

        infer->params_used = 5;
        HR_INFER_NEED(whole->type == part->type && !info->is_block, "DTYPE", "%s into %s",
                      hr_type_name(part->type), hr_type_name(whole->type));
        HR_INFER_NEED(hr_tensor_is_contiguous(whole), "STRIDE", "source 0 is not contiguous");
        for (int i = 0; i < 4; i++)
                HR_INFER_NEED(params[i] >= 0 && params[i] % (int32_t) info->block_bytes == 0,
                              "PARAM", "word %d is %" PRId32, i, params[i]);
        HR_INFER_NEED(params[4] == 0 || params[4] == 1, "PARAM", "in place is %" PRId32, params[4]);
        window.nb[0] = info->block_bytes;
        for (int i = 1; i < HR_DIMS; i++)
                window.nb[i] = (uint64_t) params[i - 1];
        HR_INFER_NEED(hr_tensor_span(&window, NULL, &span) == HR_OK, "SIZE",
                      "the window's span does not fit 63 bits");
        HR_INFER_NEED(span == 0 || span + (uint64_t) params[3] <= hr_tensor_bytes(whole), "VIEW",
                      "the window ends past the tensor");
        hr_infer_like(infer, whole);
        return HR_OK;
}

hr_status hr_infer_pad(struct hr_infer *infer) {
        const int32_t *params = infer->node->params;

        infer->params_used = 9;
        HR_INFER_NEED(params[8] == 0 || params[8] == 1, "PARAM", "circular is %" PRId32, params[8]);
        hr_infer_like(infer, infer->sources[0]);
        for (int i = 0; i < HR_DIMS; i++) {
                int64_t extent = infer->ne[i];

                HR_INFER_NEED(params[2 * i] >= 0 && params[2 * i + 1] >= 0, "PARAM",
                              "a negative pad in dimension %d", i);
                HR_INFER_NEED(!params[8] || extent > 0 || (!params[2 * i] && !params[2 * i + 1]),
                              "SHAPE", "nothing to go round in dimension %d", i);
                HR_INFER_NEED(!__builtin_add_overflow(extent, params[2 * i], &extent) &&
                                      !__builtin_add_overflow(extent, params[2 * i + 1], &extent),
                              "SIZE", "extent %d does not fit", i);
                infer->ne[i] = extent;
        }
        return HR_OK;
}

hr_status hr_infer_pad_reflect(struct hr_infer *infer) {
        const int32_t *params = infer->node->params;

        infer->params_used = 2;
        hr_infer_like(infer, infer->sources[0]);
        HR_INFER_NEED(params[0] >= 0 && params[1] >= 0 && params[0] < infer->ne[0] &&
                              params[1] < infer->ne[0],
                      "PARAM", "pads must be at least 0 and below the extent");
        infer->ne[0] += (int64_t) params[0] + params[1];
        return HR_OK;
}

hr_status hr_infer_roll(struct hr_infer *infer) {
        infer->params_used = 4;
        hr_infer_like(infer, infer->sources[0]);
        return HR_OK;
}

hr_status hr_infer_diag(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0];

        HR_INFER_NEED(source->ne[1] == 1, "SHAPE", "extent 1 is %" PRId64 ", not 1", source->ne[1]);
        hr_infer_shape(infer, source->type, source->ne[0], source->ne[0], source->ne[2],
                       source->ne[3]);
        return HR_OK;
}

hr_status hr_infer_tri(struct hr_infer *infer) {
        int32_t which = infer->node->params[0];

        infer->params_used = 1;
        HR_INFER_NEED(which >= 0 && which < 4, "PARAM", "triangle %" PRId32, which);
        HR_INFER_NEED(infer->sources[0]->ne[0] == infer->sources[0]->ne[1], "SHAPE",
                      "the matrix is not square");
        hr_infer_like(infer, infer->sources[0]);
        return HR_OK;
}

hr_status hr_infer_arange(struct hr_infer *infer) {
        float start = hr_param_f32(infer->node->params, 0);
        float stop = hr_param_f32(infer->node->params, 1);
        float step = hr_param_f32(infer->node->params, 2), count;

        infer->params_used = 3;
        HR_TRY(hr_infer_finite(infer, 0, "start"));
        HR_TRY(hr_infer_finite(infer, 1, "stop"));
        HR_TRY(hr_infer_finite(infer, 2, "step"));
        HR_INFER_NEED(stop > start && step > 0, "PARAM", "start, stop and step give no elements");
        count = ceilf((stop - start) / step); /* in f32, as those count who ask */
        HR_INFER_NEED(count <= (float) INT32_MAX, "SIZE", "too many elements");
        hr_infer_shape(infer, HR_TYPE_F32, (int64_t) count, 1, 1, 1);
        return HR_OK;
}
