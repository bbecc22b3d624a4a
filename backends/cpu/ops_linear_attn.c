/*
 * Linear attention: RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN, GATED_DELTA_NET. A head has a state of
 * S x S elements that every token changes and reads. With state rows i and columns j:
 *
 *   WKV6   out_j = sum_i r_i (state_ij + bonus_i k_i v_j)     state_ij = decay_i state_ij + k_i v_j
 *   GLA    state_ij = gate_i state_ij + k_i v_j               out_j = scale sum_i q_i state_ij
 *   WKV7   state_ij = w_j state_ij + v_i k_j + (state_i . a) b_j           out_i = state_i . r
 *   DELTA  state_ij = exp(gate_j) state_ij, then
 *          state_ij += beta (v_i - state_i . k) k_j           out_i = state_i . q / sqrt(S)
 *
 * DELTA's state is stored so that what multiplies k and q lies along a row. One head of one
 * sequence is one thread's: it carries the state through all tokens in the place of the result
 * where the newest one belongs. Older snapshots are copied to their places; those that no token
 * reaches are set to 0.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/matrix/share.h"
#include "backends/cpu/ops.h"

#include <math.h>

static const float *vector_at(const struct hr_operand *operand, int64_t i1, int64_t i2,
                              int64_t i3) {
        return (const float *) (const void *) cpu_row(operand, i1, i2, i3);
}

static bool sources_are_f32(const struct hr_step *step, uint32_t count) {
        if (step->source_count != count || step->result.type != HR_TYPE_F32)
                return false;
        for (uint32_t i = 0; i < count; i++)
                if (step->sources[i].type != HR_TYPE_F32 || !cpu_has_dense_rows(&step->sources[i]))
                        return false;
        return step->sources[0].ne[0] <= UINT32_MAX;
}

/* out[rows] = rows of an S x S matrix times a vector. */
static void state_times(const struct cpu_call *call, int64_t size, const float *state,
                        const float *vector, float *out) {
        call->dot->float_dot(HR_TYPE_F32, (const uint8_t *) state, (uint64_t) size * sizeof *state,
                             (uint32_t) size, (const uint8_t *) vector, 0, 1, size, NULL, out, 0);
}

/* ---- RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN ------------------------------------------------- */

struct wkv {
        const struct hr_operand *sources, *state;
        int64_t size, heads, tokens, sequences;
        float *outputs, *states;
};

static uint32_t wkv_sources(uint32_t op) {
        return op == HR_OP_RWKV_WKV7 ? 7 : op == HR_OP_RWKV_WKV6 ? 6 : 5;
}

static struct wkv wkv_of(const struct hr_step *step) {
        const struct hr_operand *state = &step->sources[wkv_sources(step->op) - 1];
        const int64_t *ne = step->sources[0].ne;
        float *outputs = step->result.data;

        return (struct wkv) {
                .sources = step->sources,
                .state = state,
                .size = ne[0],
                .heads = ne[1],
                .tokens = ne[2] / HR_MAX(state->ne[1], 1),
                .sequences = state->ne[1],
                .outputs = outputs,
                .states = outputs ? outputs + ne[0] * ne[1] * ne[2] : NULL,
        };
}

static bool wkv_supports(const struct hr_step *step) {
        uint32_t count = wkv_sources(step->op);

        if (!sources_are_f32(step, count))
                return false;
        for (uint32_t i = 0; i < count; i++)
                if (!cpu_is_contiguous(&step->sources[i]))
                        return false;
        return true;
}

static uint64_t wkv_scratch(const struct hr_step *step, uint32_t threads) {
        uint64_t row = cpu_round_up(cpu_times((uint64_t) step->sources[0].ne[0], sizeof(float)));

        return cpu_times(row, threads);
}

static uint32_t wkv_threads(const struct hr_step *step) {
        struct wkv wkv = wkv_of(step);
        int64_t items = HR_MAX(wkv.heads * wkv.sequences, 1);
        uint32_t threads = cpu_threads_for(wkv.size * wkv.size * wkv.tokens * items, 8);

        return items < (int64_t) threads ? (uint32_t) items : threads;
}

static void wkv6_token(const struct cpu_call *call, const struct wkv *wkv, int64_t head,
                       int64_t token, float *state, float *out) {
        const float *k = vector_at(&wkv->sources[0], head, token, 0);
        const float *v = vector_at(&wkv->sources[1], head, token, 0);
        const float *r = vector_at(&wkv->sources[2], head, token, 0);
        const float *bonus = vector_at(&wkv->sources[3], head, 0, 0);
        const float *decay = vector_at(&wkv->sources[4], head, token, 0);
        const struct cpu_vec *vec = call->vec;
        int64_t n = wkv->size;
        float now = 0;

        for (int64_t i = 0; i < n; i++)
                now += r[i] * bonus[i] * k[i];
        vec->scale(n, out, v, now, 0.0f);
        for (int64_t i = 0; i < n; i++, state += n) {
                vec->add_scaled(n, out, state, r[i]);
                vec->scale(n, state, state, decay[i], 0.0f);
                vec->add_scaled(n, state, v, k[i]);
        }
}

static void gla_token(const struct cpu_call *call, const struct wkv *wkv, int64_t head,
                      int64_t token, float *state, float *out) {
        const float *k = vector_at(&wkv->sources[0], head, token, 0);
        const float *v = vector_at(&wkv->sources[1], head, token, 0);
        const float *q = vector_at(&wkv->sources[2], head, token, 0);
        const float *gate = vector_at(&wkv->sources[3], head, token, 0);
        float scale = hr_param_f32(call->step->params, 0);
        const struct cpu_vec *vec = call->vec;
        int64_t n = wkv->size;

        memset(out, 0, (size_t) n * sizeof *out);
        for (int64_t i = 0; i < n; i++, state += n) {
                vec->scale(n, state, state, gate[i], 0.0f);
                vec->add_scaled(n, state, v, k[i]);
                vec->add_scaled(n, out, state, q[i] * scale);
        }
}

static void wkv7_token(const struct cpu_call *call, const struct wkv *wkv, int64_t head,
                       int64_t token, float *state, float *out, float *removed) {
        const float *r = vector_at(&wkv->sources[0], head, token, 0);
        const float *w = vector_at(&wkv->sources[1], head, token, 0);
        const float *k = vector_at(&wkv->sources[2], head, token, 0);
        const float *v = vector_at(&wkv->sources[3], head, token, 0);
        const float *a = vector_at(&wkv->sources[4], head, token, 0);
        const float *b = vector_at(&wkv->sources[5], head, token, 0);
        int64_t n = wkv->size;

        state_times(call, n, state, a, removed);
        for (int64_t i = 0; i < n; i++) {
                float *row = state + i * n;

                call->vec->binary[CPU_VEC_MUL](n, row, row, w);
                call->vec->add_scaled(n, row, k, v[i]);
                call->vec->add_scaled(n, row, b, removed[i]);
        }
        state_times(call, n, state, r, out);
}

static void wkv_run(const struct cpu_call *call) {
        struct wkv wkv = wkv_of(call->step);
        int64_t n = wkv.size, first, end;
        uint64_t row_bytes = cpu_round_up((uint64_t) n * sizeof(float));
        float *spare = (float *) (void *) (call->scratch + call->thread * row_bytes);

        cpu_share(call, wkv.heads * wkv.sequences, 1, &first, &end);
        for (int64_t item = first; item < end; item++) {
                int64_t head = item % wkv.heads, sequence = item / wkv.heads;
                float *state = wkv.states + item * n * n;

                memcpy(state, (const float *) wkv.state->data + item * n * n,
                       (size_t) (n * n) * sizeof *state);
                for (int64_t i = 0; i < wkv.tokens; i++) {
                        int64_t token = sequence * wkv.tokens + i;
                        float *out = wkv.outputs + (token * wkv.heads + head) * n;

                        if (call->step->op == HR_OP_RWKV_WKV6)
                                wkv6_token(call, &wkv, head, token, state, out);
                        else if (call->step->op == HR_OP_RWKV_WKV7)
                                wkv7_token(call, &wkv, head, token, state, out, spare);
                        else
                                gla_token(call, &wkv, head, token, state, out);
                }
        }
}

const struct cpu_kernel cpu_kernel_wkv = {
        .supports = wkv_supports,
        .scratch = wkv_scratch,
        .threads_max = wkv_threads,
        .run = wkv_run,
};

/* ---- GATED_DELTA_NET ------------------------------------------------------------------------- */

enum { Q, K, V, GATE, BETA, STATE, DELTA_SOURCES };

static bool delta_supports(const struct hr_step *step) {
        return sources_are_f32(step, DELTA_SOURCES) && cpu_is_contiguous(&step->sources[STATE]);
}

static uint64_t delta_scratch(const struct hr_step *step, uint32_t threads) {
        uint64_t row = cpu_round_up(cpu_times((uint64_t) step->sources[V].ne[0], sizeof(float)));

        return cpu_times(row, threads);
}

static uint32_t delta_threads(const struct hr_step *step) {
        const int64_t *ne = step->sources[V].ne;
        int64_t items = HR_MAX(ne[1] * ne[3], 1);
        uint32_t threads = cpu_threads_for(ne[0] * ne[0] * ne[2] * items, 8);

        return items < (int64_t) threads ? (uint32_t) items : threads;
}

/* The row of queries or keys for a head of the values. */
static const float *head_row(const struct hr_step *step, int source, int64_t head, int64_t token,
                             int64_t sequence) {
        const struct hr_operand *operand = &step->sources[source];
        int64_t repeat = step->sources[V].ne[3] / operand->ne[3];

        return vector_at(operand, head % operand->ne[1], token, sequence / repeat);
}

static void delta_token(const struct cpu_call *call, int64_t head, int64_t token,
                        int64_t sequence, float *state, float *change) {
        const struct hr_step *step = call->step;
        const struct hr_operand *values = &step->sources[V];
        const float *k = head_row(step, K, head, token, sequence);
        const float *v = vector_at(values, head, token, sequence);
        const float *gate = vector_at(&step->sources[GATE], head, token, sequence);
        float beta = *vector_at(&step->sources[BETA], head, token, sequence);
        int64_t n = values->ne[0];
        float *out = (float *) step->result.data +
                     ((sequence * values->ne[2] + token) * values->ne[1] + head) * n;
        const struct cpu_vec *vec = call->vec;

        if (step->sources[GATE].ne[0] == 1 && n != 1) {
                vec->scale(n * n, state, state, expf(gate[0]), 0.0f);
        } else {
                vec->unary[HR_UNARY_EXP](n, change, gate);
                for (int64_t i = 0; i < n; i++)
                        vec->binary[CPU_VEC_MUL](n, state + i * n, state + i * n, change);
        }
        state_times(call, n, state, k, change);
        for (int64_t i = 0; i < n; i++)
                vec->add_scaled(n, state + i * n, k, (v[i] - change[i]) * beta);
        state_times(call, n, state, head_row(step, Q, head, token, sequence), out);
        vec->scale(n, out, out, 1.0f / sqrtf((float) n), 0.0f);
}

static void delta_run(const struct cpu_call *call) {
        const struct hr_operand *values = &call->step->sources[V];
        int64_t n = values->ne[0], heads = values->ne[1], tokens = values->ne[2];
        int64_t items = heads * values->ne[3], snapshots = call->step->params[0], first, end;
        float *states = (float *) call->step->result.data + n * items * tokens;
        uint64_t row_bytes = cpu_round_up((uint64_t) n * sizeof(float));
        float *change = (float *) (void *) (call->scratch + call->thread * row_bytes);
        size_t bytes = (size_t) (n * n) * sizeof(float);

        cpu_share(call, items, 1, &first, &end);
        for (int64_t item = first; item < end; item++) {
                float *newest = states + item * n * n;

                memcpy(newest, (const float *) call->step->sources[STATE].data + item * n * n,
                       bytes);
                for (int64_t slot = HR_MAX(tokens, 1); slot < snapshots; slot++)
                        memset(newest + slot * items * n * n, 0, bytes);
                for (int64_t token = 0; token < tokens; token++) {
                        int64_t slot = tokens - 1 - token;

                        delta_token(call, item % heads, token, item / heads, newest, change);
                        if (slot > 0 && slot < snapshots)
                                memcpy(newest + slot * items * n * n, newest, bytes);
                }
        }
}

const struct cpu_kernel cpu_kernel_gated_delta_net = {
        .supports = delta_supports,
        .scratch = delta_scratch,
        .threads_max = delta_threads,
        .run = delta_run,
};
