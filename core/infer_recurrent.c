/*
 * Recurrences over tokens with a state per head, and the small operators of the models around them.
 *
 * Letters: S or D elements of a head, H heads, T tokens, B sequences, N elements of a state's row,
 * K snapshots of the state (newest first). Several results are two tensors in one: outputs, then
 * states, in rows of S*H. Operators that walk their sources as one block of memory need them dense.
 */
#include "core/infer.h"

#include <inttypes.h>

static hr_status need_f32(struct hr_infer *infer, uint32_t first, uint32_t end) {
        for (uint32_t i = first; i < end; i++) {
                HR_TRY(hr_infer_need_type(infer, i, HR_TYPE_F32));
                HR_TRY(hr_infer_need_dense_rows(infer, i));
        }
        return HR_OK;
}

static hr_status need_dense(struct hr_infer *infer, uint32_t position) {
        HR_INFER_NEED(hr_tensor_is_contiguous(infer->sources[position]), "STRIDE",
                      "source %" PRIu32 " is not contiguous", position);
        return HR_OK;
}

static hr_status need_shape(struct hr_infer *infer, uint32_t position, const int64_t ne[HR_DIMS]) {
        const int64_t *got = infer->sources[position]->ne;

        HR_INFER_NEED(got[0] == ne[0] && got[1] == ne[1] && got[2] == ne[2] && got[3] == ne[3],
                      "SHAPE", "source %" PRIu32 " is [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                      "], not [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]",
                      position, got[0], got[1], got[2], got[3], ne[0], ne[1], ne[2], ne[3]);
        return HR_OK;
}

#define SHAPE(...) ((const int64_t[HR_DIMS]) { __VA_ARGS__ })

/* A sum that fits 63 bits. */
static hr_status sum(struct hr_infer *infer, int64_t a, int64_t b, int64_t *ret_sum) {
        HR_INFER_NEED(!__builtin_add_overflow(a, b, ret_sum), "SIZE",
                      "an extent does not fit 63 bits");
        return HR_OK;
}

/* ---- SSM_CONV, SSM_SCAN ---------------------------------------------------------------------- */

/* x[T+K-1,D,B] weights[K,D] -> [D,T,B] */
hr_status hr_infer_ssm_conv(struct hr_infer *infer) {
        const struct hr_tensor *x = infer->sources[0], *weights = infer->sources[1];

        HR_TRY(need_f32(infer, 0, 2));
        HR_INFER_NEED(x->ne[3] == 1 && weights->ne[2] == 1 && weights->ne[3] == 1, "SHAPE",
                      "an outer dimension is not 1");
        HR_INFER_NEED(x->ne[1] == weights->ne[1], "SHAPE",
                      "%" PRId64 " channels, weights for %" PRId64, x->ne[1], weights->ne[1]);
        HR_INFER_NEED(weights->ne[0] > 0 && x->ne[0] >= weights->ne[0] - 1, "SHAPE",
                      "%" PRId64 " weights on %" PRId64 " elements", weights->ne[0], x->ne[0]);
        hr_infer_shape(infer, HR_TYPE_F32, x->ne[1], x->ne[0] - weights->ne[0] + 1, x->ne[2], 1);
        return HR_OK;
}

enum { SCAN_STATE, SCAN_X, SCAN_DT, SCAN_A, SCAN_B, SCAN_C, SCAN_IDS };

/* state[N,D,H,>=1] x[D,H,T,B] dt[H,T,B] A[N or 1,H] B,C[N,G,T,B] ids i32[B]; G divides H
 * -> [D*H*T*B + K*N*D*H*B]: outputs, then K states per sequence */
hr_status hr_infer_ssm_scan(struct hr_infer *infer) {
        const struct hr_tensor *state = infer->sources[SCAN_STATE], *x = infer->sources[SCAN_X];
        const struct hr_tensor *a = infer->sources[SCAN_A], *b = infer->sources[SCAN_B];
        int64_t snapshots = infer->node->params[0], states, elements;

        infer->params_used = 1;
        HR_INFER_NEED(snapshots >= 1, "PARAM", "%" PRId64 " snapshots", snapshots);
        HR_TRY(need_f32(infer, 0, SCAN_IDS));
        HR_TRY(hr_infer_need_type(infer, SCAN_IDS, HR_TYPE_I32));
        HR_TRY(hr_infer_need_dense_rows(infer, SCAN_IDS));
        HR_TRY(need_dense(infer, SCAN_STATE));
        HR_INFER_NEED(x->ne[0] == state->ne[1] && x->ne[1] == state->ne[2], "SHAPE",
                      "heads of %" PRId64 " by %" PRId64 ", states of %" PRId64 " by %" PRId64,
                      x->ne[0], x->ne[1], state->ne[1], state->ne[2]);
        HR_TRY(need_shape(infer, SCAN_DT, SHAPE(x->ne[1], x->ne[2], x->ne[3], 1)));
        HR_INFER_NEED(a->ne[0] == 1 || (a->ne[0] == state->ne[0] && snapshots == 1), "SHAPE",
                      "a decay of %" PRId64 " elements with %" PRId64 " snapshots", a->ne[0],
                      snapshots);
        HR_TRY(need_shape(infer, SCAN_A, SHAPE(a->ne[0], x->ne[1], 1, 1)));
        HR_INFER_NEED(b->ne[1] > 0 && x->ne[1] % b->ne[1] == 0, "SHAPE",
                      "%" PRId64 " groups of %" PRId64 " heads", b->ne[1], x->ne[1]);
        HR_TRY(need_shape(infer, SCAN_B, SHAPE(state->ne[0], b->ne[1], x->ne[2], x->ne[3])));
        HR_TRY(need_shape(infer, SCAN_C, b->ne));
        HR_TRY(need_shape(infer, SCAN_IDS, SHAPE(x->ne[3], 1, 1, 1)));
        HR_TRY(hr_infer_product(infer,
                                (const int64_t[]) { snapshots, state->ne[0], state->ne[1],
                                                    state->ne[2], x->ne[3] },
                                5, &states));
        HR_TRY(sum(infer, hr_tensor_elements(x), states, &elements));
        hr_infer_shape(infer, HR_TYPE_F32, elements, 1, 1, 1);
        return HR_OK;
}

/* ---- RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN, GATED_DELTA_NET -------------------------------- */

/* Sources 0 .. last-1 are [S,H,T], `last` is the state [S*S*H,B] -> [S*H, T + S*B]; B divides T. */
static hr_status linear_attention(struct hr_infer *infer, uint32_t last, uint32_t skipped) {
        const int64_t *ne = infer->sources[0]->ne;
        const struct hr_tensor *state = infer->sources[last];
        int64_t sequences = state->ne[1], state_elements, rows;

        HR_TRY(need_f32(infer, 0, last + 1));
        for (uint32_t i = 0; i <= last; i++)
                HR_TRY(need_dense(infer, i));
        for (uint32_t i = 0; i < last; i++)
                if (i != skipped)
                        HR_TRY(need_shape(infer, i, SHAPE(ne[0], ne[1], ne[2], 1)));
        HR_INFER_NEED(sequences > 0 && ne[2] % sequences == 0, "SHAPE",
                      "%" PRId64 " tokens for %" PRId64 " sequences", ne[2], sequences);
        HR_TRY(hr_infer_product(infer, (const int64_t[]) { ne[0], ne[0], ne[1] }, 3,
                                &state_elements));
        HR_TRY(need_shape(infer, last, SHAPE(state_elements, sequences, 1, 1)));
        HR_TRY(hr_infer_product(infer, (const int64_t[]) { ne[0], sequences }, 2, &rows));
        /* With tokens there are at least as many as sequences: the sum has 63 bits. */
        hr_infer_shape(infer, HR_TYPE_F32, ne[0] * ne[1], rows + ne[2], 1, 1);
        return HR_OK;
}

/* k v r [S,H,T], bonus [S,H], decay [S,H,T], state */
hr_status hr_infer_rwkv_wkv6(struct hr_infer *infer) {
        const int64_t *ne = infer->sources[0]->ne;

        HR_TRY(need_shape(infer, 3, SHAPE(ne[0], ne[1], 1, 1)));
        return linear_attention(infer, 5, 3);
}

/* r w k v a b [S,H,T], state */
hr_status hr_infer_rwkv_wkv7(struct hr_infer *infer) {
        return linear_attention(infer, 6, UINT32_MAX);
}

/* k v q gate [S,H,T], state */
hr_status hr_infer_gated_linear_attn(struct hr_infer *infer) {
        infer->params_used = 1;
        HR_TRY(hr_infer_finite(infer, 0, "scale"));
        return linear_attention(infer, 4, UINT32_MAX);
}

/* Queries or keys [S,Hq,T,Bq]: heads are repeated modulo, sequences by division. */
static hr_status delta_heads(struct hr_infer *infer, uint32_t position) {
        const int64_t *ne = infer->sources[position]->ne, *v = infer->sources[2]->ne;

        HR_TRY(need_shape(infer, position, SHAPE(v[0], ne[1], v[2], ne[3])));
        HR_INFER_NEED(ne[1] > 0 && v[1] % ne[1] == 0 && ne[3] > 0 && v[3] % ne[3] == 0, "SHAPE",
                      "source %" PRIu32 " has %" PRId64 " heads and %" PRId64
                      " sequences, values %" PRId64 " and %" PRId64,
                      position, ne[1], ne[3], v[1], v[3]);
        return HR_OK;
}

/* q k [S,Hq,T,Bq] v[S,H,T,B] gate[1 or S,H,T,B] beta[1,H,T,B] state[S,S,H,B]
 * -> [S*H, T*B + K*S*B]: outputs, then K states of all sequences */
hr_status hr_infer_gated_delta_net(struct hr_infer *infer) {
        const int64_t *v = infer->sources[2]->ne, *gate = infer->sources[3]->ne;
        int64_t snapshots = infer->node->params[0], states, rows;

        infer->params_used = 1;
        HR_INFER_NEED(snapshots >= 1, "PARAM", "%" PRId64 " snapshots", snapshots);
        HR_TRY(need_f32(infer, 0, 6));
        HR_TRY(delta_heads(infer, 0));
        HR_TRY(delta_heads(infer, 1));
        HR_INFER_NEED(gate[0] == 1 || gate[0] == v[0], "SHAPE", "a gate of %" PRId64 " elements",
                      gate[0]);
        HR_TRY(need_shape(infer, 3, SHAPE(gate[0], v[1], v[2], v[3])));
        HR_TRY(need_shape(infer, 4, SHAPE(1, v[1], v[2], v[3])));
        HR_TRY(need_shape(infer, 5, SHAPE(v[0], v[0], v[1], v[3])));
        HR_TRY(need_dense(infer, 5));
        HR_TRY(hr_infer_product(infer, (const int64_t[]) { snapshots, v[0], v[3] }, 3, &states));
        HR_TRY(sum(infer, v[2] * v[3], states, &rows));
        hr_infer_shape(infer, HR_TYPE_F32, v[0] * v[1], rows, 1, 1);
        return HR_OK;
}

/* ---- SOLVE_TRI, LIGHTNING_INDEXER ------------------------------------------------------------ */

/* a[n,n,b2,b3] (lower triangle) b[k,n,b2,b3] -> like b */
hr_status hr_infer_solve_tri(struct hr_infer *infer) {
        const int64_t *b = infer->sources[1]->ne;

        HR_TRY(need_f32(infer, 0, 2));
        HR_TRY(need_shape(infer, 0, SHAPE(b[1], b[1], b[2], b[3])));
        hr_infer_like(infer, infer->sources[1]);
        return HR_OK;
}

/* q[D,H,T,B] k[D,1,KV,B] weights[H,T,1,B] mask f16[KV,T,1,m3]; m3 divides B -> [KV,T,1,B] */
hr_status hr_infer_lightning_indexer(struct hr_infer *infer) {
        const int64_t *q = infer->sources[0]->ne, *k = infer->sources[1]->ne;
        const int64_t *mask = infer->sources[3]->ne;

        HR_TRY(hr_infer_need_type(infer, 0, HR_TYPE_F32));
        HR_TRY(hr_infer_need_type(infer, 2, HR_TYPE_F32));
        HR_TRY(hr_infer_need_type(infer, 3, HR_TYPE_F16));
        for (uint32_t i = 0; i < 4; i++)
                HR_TRY(hr_infer_need_dense_rows(infer, i));
        HR_INFER_NEED(!hr_type_info(infer->sources[1]->type)->is_integer, "DTYPE", "keys are %s",
                      hr_type_name(infer->sources[1]->type));
        HR_TRY(need_shape(infer, 1, SHAPE(q[0], 1, k[2], q[3])));
        HR_TRY(need_shape(infer, 2, SHAPE(q[1], q[2], 1, q[3])));
        HR_TRY(need_shape(infer, 3, SHAPE(k[2], q[2], 1, mask[3])));
        HR_INFER_NEED(mask[3] > 0 && q[3] % mask[3] == 0, "SHAPE",
                      "%" PRId64 " masks for %" PRId64 " sequences", mask[3], q[3]);
        hr_infer_shape(infer, HR_TYPE_F32, k[2], q[2], 1, q[3]);
        return HR_OK;
}

/* ---- DSV4_HC_COMB, DSV4_HC_PRE, DSV4_HC_POST ------------------------------------------------- */

#define STREAMS 4
/* Rows and columns are normalised in turn until they settle, which takes far fewer. */
#define ITERATIONS_MAX 65536

/* mixes[24,T] scale[>=3] base[24] -> [4,4,T] */
hr_status hr_infer_dsv4_hc_comb(struct hr_infer *infer) {
        const int64_t *mixes = infer->sources[0]->ne, *scale = infer->sources[1]->ne;
        int32_t iterations = infer->node->params[1];

        infer->params_used = 2;
        HR_TRY(hr_infer_finite(infer, 0, "epsilon"));
        HR_INFER_NEED(hr_param_f32(infer->node->params, 0) >= 0, "PARAM", "epsilon is negative");
        HR_INFER_NEED(iterations > 0 && iterations <= ITERATIONS_MAX, "PARAM",
                      "%" PRId32 " iterations, 1 to %d are possible", iterations,
                      ITERATIONS_MAX);
        HR_TRY(need_f32(infer, 0, 3));
        HR_TRY(need_shape(infer, 0, SHAPE((2 + STREAMS) * STREAMS, mixes[1], 1, 1)));
        HR_INFER_NEED(scale[0] >= 3, "SHAPE", "%" PRId64 " scales, 3 are needed", scale[0]);
        HR_TRY(need_shape(infer, 1, SHAPE(scale[0], 1, 1, 1)));
        HR_TRY(need_shape(infer, 2, SHAPE((2 + STREAMS) * STREAMS, 1, 1, 1)));
        hr_infer_shape(infer, HR_TYPE_F32, STREAMS, STREAMS, mixes[1], 1);
        return HR_OK;
}

/* x[D,streams,T] weights[streams,T] -> [D,T] */
hr_status hr_infer_dsv4_hc_pre(struct hr_infer *infer) {
        const int64_t *x = infer->sources[0]->ne;

        HR_TRY(need_f32(infer, 0, 2));
        HR_INFER_NEED(x[1] > 0 && x[3] == 1, "SHAPE", "%" PRId64 " streams, %" PRId64
                      " in the outer dimension", x[1], x[3]);
        HR_TRY(need_shape(infer, 1, SHAPE(x[1], x[2], 1, 1)));
        hr_infer_shape(infer, HR_TYPE_F32, x[0], x[2], 1, 1);
        return HR_OK;
}

/* x[D,T] residual[D,streams,T] post[streams,T] mixing[streams,streams,T] -> [D,streams,T] */
hr_status hr_infer_dsv4_hc_post(struct hr_infer *infer) {
        const int64_t *x = infer->sources[0]->ne, *residual = infer->sources[1]->ne;
        int64_t streams = residual[1];

        HR_TRY(need_f32(infer, 0, 4));
        HR_INFER_NEED(streams > 0, "SHAPE", "no streams");
        HR_TRY(need_shape(infer, 0, SHAPE(x[0], x[1], 1, 1)));
        HR_TRY(need_shape(infer, 1, SHAPE(x[0], streams, x[1], 1)));
        HR_TRY(need_shape(infer, 2, SHAPE(streams, x[1], 1, 1)));
        HR_TRY(need_shape(infer, 3, SHAPE(streams, streams, x[1], 1)));
        hr_infer_shape(infer, HR_TYPE_F32, x[0], streams, x[1], 1);
        return HR_OK;
}
