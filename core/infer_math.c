/* Element-wise functions, reductions and norms. */
#include "core/infer.h"

#include <inttypes.h>

static hr_status need_real(struct hr_infer *infer, uint32_t position) {
        uint32_t type = infer->sources[position]->type;

        HR_INFER_NEED(hr_infer_is_real(type), "DTYPE", "source %" PRIu32 " is %s", position,
                      hr_type_name(type));
        return HR_OK;
}

/* Result like source 0, which holds real numbers. */
static hr_status real_map(struct hr_infer *infer, uint32_t params_used) {
        infer->params_used = params_used;
        HR_TRY(need_real(infer, 0));
        hr_infer_like(infer, infer->sources[0]);
        return HR_OK;
}

hr_status hr_infer_binary(struct hr_infer *infer) {
        const struct hr_tensor *a = infer->sources[0], *b = infer->sources[1];
        bool is_requantized =
                infer->node->op == HR_OP_ADD && hr_type_info(a->type)->is_block;

        HR_TRY(need_real(infer, 1));
        if (!is_requantized)
                HR_TRY(need_real(infer, 0));
        HR_INFER_NEED(hr_tensor_repeats(b, a), "SHAPE",
                      "source 1 [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                      "] does not repeat to source 0 [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                      "]",
                      b->ne[0], b->ne[1], b->ne[2], b->ne[3], a->ne[0], a->ne[1], a->ne[2],
                      a->ne[3]);
        hr_infer_like(infer, a);
        return HR_OK;
}

hr_status hr_infer_add1(struct hr_infer *infer) {
        HR_TRY(need_real(infer, 1));
        HR_INFER_NEED(hr_tensor_elements(infer->sources[1]) == 1, "SHAPE",
                      "source 1 is no scalar");
        return real_map(infer, 0);
}

hr_status hr_infer_add_id(struct hr_infer *infer) {
        const struct hr_tensor *a = infer->sources[0], *b = infer->sources[1],
                               *ids = infer->sources[2];

        HR_INFER_NEED(ids->type == HR_TYPE_I32, "DTYPE", "ids are %s, not i32",
                      hr_type_name(ids->type));
        HR_TRY(need_real(infer, 1));
        HR_INFER_NEED(a->ne[0] == b->ne[0] && b->ne[2] == 1 && b->ne[3] == 1, "SHAPE",
                      "rows of source 1 have %" PRId64 " elements, of source 0 %" PRId64, b->ne[0],
                      a->ne[0]);
        HR_INFER_NEED(a->ne[1] == ids->ne[0] && a->ne[2] == ids->ne[1] && a->ne[3] == 1 &&
                              ids->ne[2] == 1 && ids->ne[3] == 1,
                      "SHAPE", "ids do not match the rows of source 0");
        return real_map(infer, 0);
}

hr_status hr_infer_scale(struct hr_infer *infer) {
        HR_TRY(hr_infer_finite(infer, 0, "factor"));
        HR_TRY(hr_infer_finite(infer, 1, "bias"));
        return real_map(infer, 2);
}

/* Bounds may be infinite, but a NaN bounds nothing and a crossed pair has no meaning. */
hr_status hr_infer_clamp(struct hr_infer *infer) {
        float least = hr_param_f32(infer->node->params, 0);
        float most = hr_param_f32(infer->node->params, 1);

        HR_INFER_NEED(least <= most, "PARAM", "bounds %g and %g", (double) least, (double) most);
        return real_map(infer, 2);
}

hr_status hr_infer_map(struct hr_infer *infer) {
        return real_map(infer, 0);
}

hr_status hr_infer_leaky_relu(struct hr_infer *infer) {
        HR_TRY(hr_infer_finite(infer, 0, "slope"));
        return real_map(infer, 1);
}

hr_status hr_infer_fill(struct hr_infer *infer) {
        return real_map(infer, 1);
}

hr_status hr_infer_unary(struct hr_infer *infer) {
        int32_t function = infer->node->params[0];

        HR_INFER_NEED(function >= 0 && function < HR_UNARY_COUNT, "PARAM", "function %" PRId32,
                      function);
        if (function == HR_UNARY_XIELU)
                for (uint32_t word = 1; word <= 4; word++)
                        HR_TRY(hr_infer_finite(infer, word, "xielu parameter"));
        return real_map(infer, function == HR_UNARY_XIELU ? 5 : 1);
}

hr_status hr_infer_glu(struct hr_infer *infer) {
        const struct hr_tensor *a = infer->sources[0], *b = infer->sources[1];
        const int32_t *params = infer->node->params;

        HR_INFER_NEED(params[0] >= 0 && params[0] < HR_GLU_COUNT, "PARAM", "function %" PRId32,
                      params[0]);
        HR_INFER_NEED(params[1] == 0 || params[1] == 1, "PARAM", "swapped is %" PRId32, params[1]);
        HR_TRY(real_map(infer, params[0] == HR_GLU_SWIGLU_OAI ? 4 : 2));
        if (params[0] == HR_GLU_SWIGLU_OAI) {
                HR_TRY(hr_infer_finite(infer, 2, "alpha"));
                HR_INFER_NEED(hr_param_f32(params, 3) >= 0, "PARAM", "a limit below 0");
        }
        if (b) {
                HR_INFER_NEED(a->type == b->type && hr_tensor_same_shape(a, b), "SHAPE",
                              "the two sources differ in type or shape");
                HR_INFER_NEED(hr_tensor_rows_are_contiguous(b), "STRIDE",
                              "rows of source 1 are not dense");
        } else {
                HR_INFER_NEED(a->ne[0] % 2 == 0, "SHAPE",
                              "extent 0 is %" PRId64 ", not two halves", a->ne[0]);
                infer->ne[0] = a->ne[0] / 2;
        }
        HR_INFER_NEED(hr_tensor_rows_are_contiguous(a), "STRIDE", "rows of source 0 are not dense");
        return HR_OK;
}

hr_status hr_infer_sum(struct hr_infer *infer) {
        HR_TRY(need_real(infer, 0));
        hr_infer_shape(infer, infer->sources[0]->type, 1, 1, 1, 1);
        return HR_OK;
}

hr_status hr_infer_sum_rows(struct hr_infer *infer) {
        HR_TRY(real_map(infer, 0));
        infer->ne[0] = 1;
        return HR_OK;
}

hr_status hr_infer_cumsum(struct hr_infer *infer) {
        return real_map(infer, 0);
}

hr_status hr_infer_argmax(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0];

        HR_TRY(need_real(infer, 0));
        HR_INFER_NEED(source->ne[2] == 1 && source->ne[3] == 1, "SHAPE", "the source is no matrix");
        HR_INFER_NEED(source->ne[0] <= INT32_MAX, "SIZE", "an index does not fit i32");
        hr_infer_shape(infer, HR_TYPE_I32, source->ne[1], 1, 1, 1);
        return HR_OK;
}

hr_status hr_infer_argsort(struct hr_infer *infer) {
        int32_t order = infer->node->params[0];

        HR_INFER_NEED(order == 0 || order == 1, "PARAM", "order %" PRId32, order);
        HR_INFER_NEED(infer->sources[0]->ne[0] <= INT32_MAX, "SIZE", "an index does not fit i32");
        HR_TRY(real_map(infer, 1));
        infer->type = HR_TYPE_I32;
        return HR_OK;
}

/* The declared extent 0 is k. */
hr_status hr_infer_top_k(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0];
        int64_t k = infer->node->ne[0];

        HR_INFER_NEED(source->ne[0] <= INT32_MAX, "SIZE", "an index does not fit i32");
        HR_INFER_NEED(k >= 0 && k <= source->ne[0], "SHAPE", "%" PRId64 " of %" PRId64 " elements",
                      k, source->ne[0]);
        HR_TRY(real_map(infer, 0));
        infer->type = HR_TYPE_I32;
        infer->ne[0] = k;
        return HR_OK;
}

hr_status hr_infer_count_equal(struct hr_infer *infer) {
        HR_INFER_NEED(infer->sources[0]->type == HR_TYPE_I32 &&
                              infer->sources[1]->type == HR_TYPE_I32,
                      "DTYPE", "both sources must be i32");
        HR_INFER_NEED(hr_tensor_same_shape(infer->sources[0], infer->sources[1]), "SHAPE",
                      "the two sources differ in shape");
        hr_infer_shape(infer, HR_TYPE_I64, 1, 1, 1, 1);
        return HR_OK;
}

static hr_status need_epsilon(struct hr_infer *infer, uint32_t word) {
        HR_TRY(hr_infer_finite(infer, word, "epsilon"));
        HR_INFER_NEED(hr_param_f32(infer->node->params, word) >= 0, "PARAM", "epsilon is negative");
        return HR_OK;
}

hr_status hr_infer_norm(struct hr_infer *infer) {
        HR_TRY(need_epsilon(infer, 0));
        HR_INFER_NEED(infer->sources[0]->type == HR_TYPE_F32, "DTYPE", "the source is %s, not f32",
                      hr_type_name(infer->sources[0]->type));
        return real_map(infer, 1);
}

hr_status hr_infer_group_norm(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0];
        int32_t groups = infer->node->params[0];

        HR_TRY(need_epsilon(infer, 1));
        HR_INFER_NEED(source->type == HR_TYPE_F32, "DTYPE", "the source is %s, not f32",
                      hr_type_name(source->type));
        HR_INFER_NEED(groups > 0 && (groups <= source->ne[2] || hr_tensor_is_empty(source)),
                      "PARAM", "%" PRId32 " groups of %" PRId64 " channels", groups,
                      source->ne[2]);
        return real_map(infer, 2);
}

hr_status hr_infer_diag_mask(struct hr_infer *infer) {
        HR_INFER_NEED(infer->node->params[0] >= 0, "PARAM", "n_past is %" PRId32,
                      infer->node->params[0]);
        return real_map(infer, 1);
}

hr_status hr_infer_timestep_embedding(struct hr_infer *infer) {
        const struct hr_tensor *source = infer->sources[0];
        const int32_t *params = infer->node->params;

        infer->params_used = 2;
        HR_INFER_NEED(source->type == HR_TYPE_F32 && source->ne[1] == 1 && source->ne[2] == 1 &&
                              source->ne[3] == 1,
                      "SHAPE", "the source is no vector of f32");
        HR_INFER_NEED(params[0] > 0 && params[1] > 0, "PARAM",
                      "dim and max_period must be above 0");
        hr_infer_shape(infer, HR_TYPE_F32, params[0], source->ne[0], 1, 1);
        return HR_OK;
}
