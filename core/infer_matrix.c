/* Matrix products, attention and what surrounds it. Shapes are written as in core/README.md. */
#include "core/infer.h"

#include <inttypes.h>

static bool is_multiple(int64_t whole, int64_t part) {
        return part > 0 ? whole % part == 0 : whole == 0;
}

/* A precision is asked for with 10 (f32) or not at all. */
static hr_status need_precision(struct hr_infer *infer, uint32_t word) {
        int32_t precision = infer->node->params[word];

        HR_INFER_NEED(precision == 0 || precision == 10, "PARAM", "precision %" PRId32, precision);
        return HR_OK;
}

/* a[k,m,a2,a3] b[k,n,b2,b3] -> f32 [m,n,b2,b3]; a2 divides b2, a3 divides b3. */
hr_status hr_infer_mul_mat(struct hr_infer *infer) {
        const struct hr_tensor *a = infer->sources[0], *b = infer->sources[1];

        infer->params_used = 2;
        HR_TRY(need_precision(infer, 0));
        HR_INFER_NEED(infer->node->params[1] == 0 || infer->node->params[1] == 1, "PARAM",
                      "hint %" PRId32, infer->node->params[1]);
        HR_INFER_NEED(a->ne[0] == b->ne[0], "SHAPE",
                      "rows of %" PRId64 " and of %" PRId64 " elements", a->ne[0], b->ne[0]);
        HR_INFER_NEED(is_multiple(b->ne[2], a->ne[2]) && is_multiple(b->ne[3], a->ne[3]), "SHAPE",
                      "dimensions 2 and 3 of source 1 are no multiples of source 0's");
        HR_INFER_NEED(hr_infer_is_real(b->type), "DTYPE", "source 1 is %s", hr_type_name(b->type));
        HR_INFER_NEED(!hr_type_info(a->type)->is_integer, "DTYPE", "source 0 is %s",
                      hr_type_name(a->type));
        HR_TRY(hr_infer_need_dense_rows(infer, 0));
        hr_infer_shape(infer, HR_TYPE_F32, a->ne[1], b->ne[1], b->ne[2], b->ne[3]);
        return HR_OK;
}

/* as[k,m,E] b[k,U or 1,T] ids i32[U,T] -> f32 [m,U,T]. */
hr_status hr_infer_mul_mat_id(struct hr_infer *infer) {
        const struct hr_tensor *experts = infer->sources[0], *b = infer->sources[1],
                               *ids = infer->sources[2];

        infer->params_used = 1;
        HR_TRY(need_precision(infer, 0));
        HR_TRY(hr_infer_need_type(infer, 2, HR_TYPE_I32));
        HR_INFER_NEED(hr_infer_is_real(b->type), "DTYPE", "source 1 is %s", hr_type_name(b->type));
        HR_INFER_NEED(!hr_type_info(experts->type)->is_integer, "DTYPE", "source 0 is %s",
                      hr_type_name(experts->type));
        HR_INFER_NEED(experts->ne[0] == b->ne[0], "SHAPE",
                      "rows of %" PRId64 " and of %" PRId64 " elements", experts->ne[0], b->ne[0]);
        HR_INFER_NEED(experts->ne[3] == 1 && b->ne[3] == 1 && ids->ne[2] == 1 && ids->ne[3] == 1,
                      "SHAPE", "an outer dimension is not 1");
        HR_INFER_NEED(ids->ne[1] == b->ne[2], "SHAPE",
                      "ids of %" PRId64 " tokens, activations of %" PRId64, ids->ne[1], b->ne[2]);
        HR_INFER_NEED(is_multiple(ids->ne[0], b->ne[1]), "SHAPE",
                      "%" PRId64 " used experts, %" PRId64 " rows of activations", ids->ne[0],
                      b->ne[1]);
        HR_TRY(hr_infer_need_dense_rows(infer, 0));
        hr_infer_shape(infer, HR_TYPE_F32, experts->ne[1], ids->ne[0], b->ne[2], 1);
        return HR_OK;
}

/* a[m,k,a2,a3] b[n,k,b2,b3] -> f32 [m,n,b2,b3]. */
hr_status hr_infer_out_prod(struct hr_infer *infer) {
        const struct hr_tensor *a = infer->sources[0], *b = infer->sources[1];

        HR_INFER_NEED(a->ne[1] == b->ne[1], "SHAPE", "%" PRId64 " and %" PRId64 " rows", a->ne[1],
                      b->ne[1]);
        HR_INFER_NEED(is_multiple(b->ne[2], a->ne[2]) && is_multiple(b->ne[3], a->ne[3]), "SHAPE",
                      "dimensions 2 and 3 of source 1 are no multiples of source 0's");
        HR_INFER_NEED(!hr_type_info(a->type)->is_integer, "DTYPE", "source 0 is %s",
                      hr_type_name(a->type));
        HR_TRY(hr_infer_need_type(infer, 1, HR_TYPE_F32));
        hr_infer_shape(infer, HR_TYPE_F32, a->ne[0], b->ne[0], b->ne[2], b->ne[3]);
        return HR_OK;
}

/* x[n,r,h,b], mask f16/f32 [n,>=r,m2,m3], sinks f32[h]. */
hr_status hr_infer_soft_max(struct hr_infer *infer) {
        const struct hr_tensor *x = infer->sources[0], *mask = infer->sources[1],
                               *sinks = infer->sources[2];

        infer->params_used = 2;
        HR_TRY(hr_infer_finite(infer, 0, "scale"));
        HR_TRY(hr_infer_finite(infer, 1, "max_bias"));
        HR_TRY(hr_infer_need_type(infer, 0, HR_TYPE_F32));
        HR_TRY(hr_infer_need_dense_rows(infer, 0));
        HR_INFER_NEED(hr_param_f32(infer->node->params, 1) >= 0, "PARAM", "max_bias is negative");
        HR_INFER_NEED(mask || hr_param_f32(infer->node->params, 1) == 0, "PARAM",
                      "max_bias without a mask");
        if (mask) {
                HR_INFER_NEED(mask->type == HR_TYPE_F16 || mask->type == HR_TYPE_F32, "DTYPE",
                              "the mask is %s", hr_type_name(mask->type));
                HR_INFER_NEED(mask->ne[0] == x->ne[0] && mask->ne[1] >= x->ne[1] &&
                                      is_multiple(x->ne[2], mask->ne[2]) &&
                                      is_multiple(x->ne[3], mask->ne[3]),
                              "SHAPE", "the mask does not cover source 0");
                HR_TRY(hr_infer_need_dense_rows(infer, 1));
        }
        if (sinks) {
                HR_TRY(hr_infer_need_type(infer, 2, HR_TYPE_F32));
                HR_INFER_NEED(sinks->ne[0] == x->ne[2] && hr_tensor_elements(sinks) == x->ne[2] &&
                                      hr_tensor_is_contiguous(sinks),
                              "SHAPE", "%" PRId64 " sinks for %" PRId64 " heads", sinks->ne[0],
                              x->ne[2]);
        }
        hr_infer_like(infer, x);
        return HR_OK;
}

enum {
        ROPE_N_DIMS = 1,
        ROPE_MODE = 2,
        ROPE_N_CTX_ORIG = 4,
        ROPE_FREQ_BASE = 5,
        ROPE_BETA_SLOW = 10,
        ROPE_SECTIONS = 11,
        ROPE_N_OFFS = 15,
};

#define ROPE_IS_MULTI 8
#define ROPE_VISION 24

static hr_status rope_params(struct hr_infer *infer) {
        const int32_t *params = infer->node->params;
        int64_t n_dims = params[ROPE_N_DIMS], row = infer->sources[0]->ne[0];
        int32_t mode = params[ROPE_MODE];

        infer->params_used = HR_OP_PARAM_WORDS;
        HR_INFER_NEED(params[0] == 0 && params[3] == 0, "PARAM", "words 0 and 3 are not used");
        HR_INFER_NEED(mode == 0 || mode == 2 || mode == 8 || mode == ROPE_VISION || mode == 40,
          "PARAM",
                      "mode %" PRId32, mode);
        HR_INFER_NEED(n_dims > 0 && n_dims % 2 == 0, "PARAM", "n_dims is %" PRId64, n_dims);
        HR_INFER_NEED(params[ROPE_N_OFFS] >= 0 && n_dims + params[ROPE_N_OFFS] <= row, "PARAM",
                      "rotates %" PRId64 " dimensions from %" PRId32 " on, a row has %" PRId64,
                      n_dims, params[ROPE_N_OFFS], row);
        HR_INFER_NEED(mode != ROPE_VISION || (n_dims * 2 == row && params[ROPE_N_OFFS] == 0),
          "PARAM",
                      "vision needs n_dims of half a row and no offset");
        HR_INFER_NEED(params[ROPE_N_CTX_ORIG] >= 0, "PARAM", "n_ctx_orig is negative");
        for (uint32_t word = ROPE_FREQ_BASE; word <= ROPE_BETA_SLOW; word++)
                HR_TRY(hr_infer_finite(infer, word, "a rope parameter"));
        HR_INFER_NEED(hr_param_f32(params, ROPE_FREQ_BASE) > 0, "PARAM",
          "freq_base is not above 0");
        if (mode & ROPE_IS_MULTI) {
                int64_t sum = 0;

                for (int i = 0; i < 4; i++) {
                        HR_INFER_NEED(params[ROPE_SECTIONS + i] >= 0, "PARAM",
                                      "a section is negative");
                        sum += params[ROPE_SECTIONS + i];
                }
                HR_INFER_NEED(sum > 0, "PARAM", "all sections are empty");
        }
        return HR_OK;
}

static int64_t rope_pairs(const struct hr_infer *infer) {
        const int32_t *params = infer->node->params;

        return params[ROPE_MODE] == ROPE_VISION ? params[ROPE_N_DIMS] : params[ROPE_N_DIMS] / 2;
}

/* x[d,H,T,B], positions i32[T] (4T with sections), factors f32[>= pairs]. */
hr_status hr_infer_rope(struct hr_infer *infer) {
        const struct hr_tensor *x = infer->sources[0], *positions = infer->sources[1],
                               *factors = infer->sources[2];
        int64_t planes = infer->node->params[ROPE_MODE] & ROPE_IS_MULTI ? 4 : 1;

        HR_TRY(rope_params(infer));
        HR_INFER_NEED(x->type == HR_TYPE_F32 || x->type == HR_TYPE_F16, "DTYPE", "source 0 is %s",
                      hr_type_name(x->type));
        HR_TRY(hr_infer_need_type(infer, 1, HR_TYPE_I32));
        HR_TRY(hr_infer_need_dense_rows(infer, 0));
        /* A token has four bytes or more, so four times their number fits. */
        HR_INFER_NEED(positions->ne[0] == x->ne[2] * planes &&
                              hr_tensor_elements(positions) == positions->ne[0] &&
                              hr_tensor_is_contiguous(positions),
                      "SHAPE", "%" PRId64 " positions for %" PRId64 " tokens", positions->ne[0],
                      x->ne[2]);
        if (factors) {
                HR_TRY(hr_infer_need_type(infer, 2, HR_TYPE_F32));
                HR_INFER_NEED(factors->ne[0] >= rope_pairs(infer) &&
                                      !hr_tensor_is_empty(factors) &&
                                      hr_tensor_is_contiguous(factors),
                              "SHAPE", "%" PRId64 " frequency factors for %" PRId32 " dimensions",
                              factors->ne[0], infer->node->params[ROPE_N_DIMS]);
        }
        hr_infer_like(infer, x);
        return HR_OK;
}

static hr_status flash_attn_mask(struct hr_infer *infer) {
        const struct hr_tensor *q = infer->sources[0], *k = infer->sources[1],
                               *mask = infer->sources[3], *sinks = infer->sources[4];
        float max_bias = hr_param_f32(infer->node->params, 1);

        HR_INFER_NEED(max_bias >= 0, "PARAM", "max_bias is negative");
        HR_INFER_NEED(mask || max_bias == 0, "PARAM", "max_bias without a mask");
        if (mask) {
                HR_TRY(hr_infer_need_type(infer, 3, HR_TYPE_F16));
                HR_INFER_NEED(hr_tensor_is_contiguous(mask), "STRIDE",
                  "the mask is not contiguous");
                HR_INFER_NEED(mask->ne[0] >= k->ne[1] && mask->ne[1] >= q->ne[1] &&
                                      is_multiple(q->ne[2], mask->ne[2]) &&
                                      is_multiple(q->ne[3], mask->ne[3]),
                              "SHAPE", "the mask does not cover keys and queries");
        }
        if (sinks) {
                HR_TRY(hr_infer_need_type(infer, 4, HR_TYPE_F32));
                HR_INFER_NEED(sinks->ne[0] == q->ne[2] && hr_tensor_elements(sinks) == q->ne[2] &&
                                      hr_tensor_is_contiguous(sinks),
                              "SHAPE", "%" PRId64 " sinks for %" PRId64 " heads", sinks->ne[0],
                              q->ne[2]);
        }
        return HR_OK;
}

/* q[D,N,H,B] k[D,KV,Hk,Bk] v[DV,KV,Hk,Bk] mask f16[>=KV,>=N,m2,m3] sinks f32[H]
 * -> f32 [DV,H,N,B]. */
hr_status hr_infer_flash_attn(struct hr_infer *infer) {
        const struct hr_tensor *q = infer->sources[0], *k = infer->sources[1],
                               *v = infer->sources[2];

        infer->params_used = 4;
        HR_TRY(need_precision(infer, 3));
        for (uint32_t word = 0; word < 3; word++)
                HR_TRY(hr_infer_finite(infer, word, "a parameter"));
        HR_TRY(hr_infer_need_type(infer, 0, HR_TYPE_F32));
        for (uint32_t i = 0; i < 3; i++)
                HR_TRY(hr_infer_need_dense_rows(infer, i));
        HR_INFER_NEED(!hr_type_info(k->type)->is_integer && !hr_type_info(v->type)->is_integer,
                      "DTYPE", "keys are %s, values %s", hr_type_name(k->type),
                      hr_type_name(v->type));
        HR_INFER_NEED(q->ne[0] == k->ne[0], "SHAPE",
                      "queries of %" PRId64 " elements, keys of %" PRId64, q->ne[0], k->ne[0]);
        HR_INFER_NEED(is_multiple(q->ne[2], k->ne[2]) && is_multiple(q->ne[3], k->ne[3]), "SHAPE",
                      "heads or sequences of the queries are no multiples of the keys'");
        HR_INFER_NEED(v->ne[1] == k->ne[1] && v->ne[2] == k->ne[2] && v->ne[3] == k->ne[3],
                      "SHAPE", "values and keys differ in number, heads or sequences");
        HR_TRY(flash_attn_mask(infer));
        hr_infer_shape(infer, HR_TYPE_F32, v->ne[0], q->ne[2], q->ne[1], q->ne[3]);
        return HR_OK;
}
