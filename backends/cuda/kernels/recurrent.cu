/*
 * Recurrences along time: SSM_CONV, SSM_SCAN, RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN,
 * GATED_DELTA_NET. With state rows i and columns j of a head:
 *
 *   SCAN   state_ij = state_ij exp(dt A_j) + x_i dt B_j     y_i = state_i . C   dt := softplus(dt)
 *   WKV6   out_j = sum_i r_i (state_ij + bonus_i k_i v_j)     state_ij = decay_i state_ij + k_i v_j
 *   GLA    state_ij = gate_i state_ij + k_i v_j               out_j = scale sum_i q_i state_ij
 *   WKV7   state_ij = w_j state_ij + v_i k_j + (state_i . a) b_j           out_i = state_i . r
 *   DELTA  state_ij = exp(gate_j) state_ij, then
 *          state_ij += beta (v_i - state_i . k) k_j           out_i = state_i . q / sqrt(S)
 *
 * A line of the state, a row or with WKV6 and GLA a column, changes by itself: it is one thread's
 * through all tokens, in the place of the result where the newest state belongs. Older snapshots
 * are copied to their places; those that no token reaches are 0.
 */
#include "backends/cuda/kernels/common.cuh"

#define EACH(i, count)                                                                             \
        for (int64_t i = (int64_t) blockIdx.x * CUDA_THREADS + threadIdx.x; i < (count);           \
             i += (int64_t) gridDim.x * CUDA_THREADS)

DEVICE const float *vector_at(const cuda_tensor &t, int64_t i1, int64_t i2, int64_t i3) {
        return (const float *) row_of(t, i1, i2, i3);
}

DEVICE float *result_of(const cuda_recurrent_args &args) {
        return (float *) (uintptr_t) args.out.data;
}

DEVICE float dot(const float *a, const float *b, int64_t n) {
        float sum = 0;

        for (int64_t i = 0; i < n; i++)
                sum += a[i] * b[i];
        return sum;
}

/* result[d, t, b] = sum over k of x[t + k, d, b] * weights[k, d] */
FLAT_KERNEL(convolve_time, struct cuda_recurrent_args) {
        int64_t channels = args.out.ne[0], tokens = args.out.ne[1];

        EACH(i, channels * tokens * args.out.ne[2]) {
                int64_t place = quotient(i, channels), channel = i - place * channels;
                int64_t sequence = quotient(place, tokens), token = place - sequence * tokens;

                *(float *) (row_of(args.out, token, sequence, 0) + channel * args.out.nb[0]) =
                        dot(vector_at(args.sources[0], channel, sequence, 0) + token,
                            vector_at(args.sources[1], channel, 0, 0), args.sources[1].ne[0]);
        }
}

/* A line of `n` elements of a state and its snapshots, `apart` elements from one to the next. */
DEVICE void snapshots_clear(float *line, int64_t n, int64_t apart, int64_t tokens,
                            int64_t snapshots) {
        for (int64_t slot = tokens > 1 ? tokens : 1; slot < snapshots; slot++)
                for (int64_t j = 0; j < n; j++)
                        line[slot * apart + j] = 0;
}

DEVICE void snapshot_take(float *line, int64_t n, int64_t apart, int64_t slot, int64_t snapshots) {
        for (int64_t j = 0; j < n && slot > 0 && slot < snapshots; j++)
                line[slot * apart + j] = line[j];
}

/* ---- SSM_SCAN: states, x, dt, A, B, C, ids --------------------------------------------------- */

DEVICE float softplus(float x) {
        return x > 20.0f ? x : logf(1.0f + expf(x));
}

struct scan_line {
        int64_t row, head, sequence; /* which one */
        float *state;
};

DEVICE void scan_token(const cuda_recurrent_args &args, const scan_line &line, int64_t token) {
        const cuda_tensor &x = args.sources[1], &b = args.sources[4];
        int64_t n = args.sources[0].ne[0], per_group = x.ne[1] / (b.ne[1] > 1 ? b.ne[1] : 1);
        int64_t group = line.head / per_group;
        const float *decay = vector_at(args.sources[3], line.head, 0, 0);
        const float *in = vector_at(b, group, token, line.sequence);
        float dt = softplus(vector_at(args.sources[2], token, line.sequence, 0)[line.head]);
        float value = vector_at(x, line.head, token, line.sequence)[line.row] * dt;
        bool is_one = args.sources[3].ne[0] == 1;

        for (int64_t j = 0; j < n; j++)
                line.state[j] = line.state[j] * expf(dt * decay[is_one ? 0 : j]) + in[j] * value;
        result_of(args)[((line.sequence * x.ne[2] + token) * x.ne[1] + line.head) * x.ne[0] +
                        line.row] = dot(line.state,
                                        vector_at(args.sources[5], group, token, line.sequence), n);
}

FLAT_KERNEL(scan_states, struct cuda_recurrent_args) {
        const cuda_tensor &states = args.sources[0], &x = args.sources[1];
        int64_t n = states.ne[0], rows = x.ne[0], heads = x.ne[1], tokens = x.ne[2];
        int64_t outputs = rows * heads * tokens * x.ne[3], apart = n * rows * heads * x.ne[3];

        EACH(i, rows * heads * x.ne[3]) {
                int64_t item = quotient(i, rows), id;
                const float *from;
                scan_line line;

                line.row = i - item * rows;
                line.sequence = quotient(item, heads);
                line.head = item - line.sequence * heads;
                line.state = result_of(args) + outputs + i * n;
                id = *(const int32_t *) ((const byte *) (uintptr_t) args.sources[6].data +
                                         line.sequence * args.sources[6].nb[0]);
                if (id < 0 || id >= states.ne[3]) {
                        fault_at(args.fault, args.step);
                        continue;
                }
                from = vector_at(states, line.row, line.head, id);
                for (int64_t j = 0; j < n; j++)
                        line.state[j] = from[j];
                snapshots_clear(line.state, n, apart, tokens, args.snapshots);
                for (int64_t token = 0; token < tokens; token++) {
                        scan_token(args, line, token);
                        snapshot_take(line.state, n, apart, tokens - 1 - token, args.snapshots);
                }
        }
}

/* ---- RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN ------------------------------------------------- */

/* k, v, r, bonus, decay, states; or k, v, q, gate, states. Column j of the state. */
DEVICE float column_token(const cuda_recurrent_args &args, int64_t head, int64_t token,
                          float *state, int64_t j) {
        bool is_wkv6 = args.op == HR_OP_RWKV_WKV6;
        int64_t n = args.sources[0].ne[0];
        const float *k = vector_at(args.sources[0], head, token, 0);
        const float *r = vector_at(args.sources[2], head, token, 0);
        const float *decay = vector_at(args.sources[is_wkv6 ? 4 : 3], head, token, 0);
        const float *bonus = is_wkv6 ? vector_at(args.sources[3], head, 0, 0) : NULL;
        float v = vector_at(args.sources[1], head, token, 0)[j], now = 0, sum = 0;

        for (int64_t i = 0; i < n; i++) {
                float before = state[i * n + j], after = before * decay[i] + k[i] * v;

                if (is_wkv6) {
                        now += r[i] * bonus[i] * k[i];
                        sum += before * r[i];
                } else {
                        sum += after * (r[i] * args.scale);
                }
                state[i * n + j] = after;
        }
        return sum + now * v;
}

/* r, w, k, v, a, b, states. Row i of the state. */
DEVICE float row_token(const cuda_recurrent_args &args, int64_t head, int64_t token, float *row,
                       int64_t i) {
        int64_t n = args.sources[0].ne[0];
        const float *w = vector_at(args.sources[1], head, token, 0);
        const float *k = vector_at(args.sources[2], head, token, 0);
        const float *b = vector_at(args.sources[5], head, token, 0);
        float v = vector_at(args.sources[3], head, token, 0)[i];
        float removed = dot(row, vector_at(args.sources[4], head, token, 0), n);

        for (int64_t j = 0; j < n; j++)
                row[j] = row[j] * w[j] + k[j] * v + b[j] * removed;
        return dot(row, vector_at(args.sources[0], head, token, 0), n);
}

FLAT_KERNEL(attend_linear, struct cuda_recurrent_args) {
        const cuda_tensor &states = args.sources[args.op == HR_OP_RWKV_WKV7   ? 6
                                                 : args.op == HR_OP_RWKV_WKV6 ? 5
                                                                              : 4];
        int64_t n = args.sources[0].ne[0], heads = args.sources[0].ne[1];
        int64_t all_tokens = args.sources[0].ne[2], sequences = states.ne[1];
        int64_t tokens = all_tokens / (sequences > 1 ? sequences : 1);
        bool is_row = args.op == HR_OP_RWKV_WKV7;

        EACH(i, n * heads * sequences) {
                int64_t item = quotient(i, n), line = i - item * n;
                int64_t sequence = quotient(item, heads), head = item - sequence * heads;
                const float *from = (const float *) (uintptr_t) states.data + item * n * n;
                float *state = result_of(args) + n * heads * all_tokens + item * n * n;

                for (int64_t j = 0; j < n; j++) {
                        int64_t at = is_row ? line * n + j : j * n + line;

                        state[at] = from[at];
                }
                for (int64_t t = 0; t < tokens; t++) {
                        int64_t token = sequence * tokens + t;

                        result_of(args)[(token * heads + head) * n + line] =
                                is_row ? row_token(args, head, token, state + line * n, line)
                                       : column_token(args, head, token, state, line);
                }
        }
}

/* ---- GATED_DELTA_NET: q, k, v, gate, beta, states -------------------------------------------- */

/* The row of queries or keys for a head of the values. */
DEVICE const float *shared_row(const cuda_recurrent_args &args, int source, int64_t head,
                               int64_t token, int64_t sequence) {
        const cuda_tensor &t = args.sources[source];

        return vector_at(t, head % t.ne[1], token, sequence / (args.sources[2].ne[3] / t.ne[3]));
}

DEVICE float delta_token(const cuda_recurrent_args &args, int64_t head, int64_t token,
                         int64_t sequence, float *row, int64_t i) {
        int64_t n = args.sources[2].ne[0];
        const float *k = shared_row(args, 1, head, token, sequence);
        const float *gate = vector_at(args.sources[3], head, token, sequence);
        bool is_one = args.sources[3].ne[0] == 1;
        float change;

        for (int64_t j = 0; j < n; j++)
                row[j] *= expf(gate[is_one ? 0 : j]);
        change = (vector_at(args.sources[2], head, token, sequence)[i] - dot(row, k, n)) *
                 *vector_at(args.sources[4], head, token, sequence);
        for (int64_t j = 0; j < n; j++)
                row[j] += k[j] * change;
        return dot(row, shared_row(args, 0, head, token, sequence), n) * (1.0f / sqrtf((float) n));
}

FLAT_KERNEL(attend_delta, struct cuda_recurrent_args) {
        const cuda_tensor &values = args.sources[2];
        int64_t n = values.ne[0], heads = values.ne[1], tokens = values.ne[2];
        int64_t items = heads * values.ne[3], apart = items * n * n;

        EACH(line, n * items) {
                int64_t item = quotient(line, n), i = line - item * n;
                int64_t sequence = quotient(item, heads), head = item - sequence * heads;
                const float *from = (const float *) (uintptr_t) args.sources[5].data + line * n;
                float *row = result_of(args) + n * items * tokens + line * n;

                for (int64_t j = 0; j < n; j++)
                        row[j] = from[j];
                snapshots_clear(row, n, apart, tokens, args.snapshots);
                for (int64_t token = 0; token < tokens; token++) {
                        result_of(args)[((sequence * tokens + token) * heads + head) * n + i] =
                                delta_token(args, head, token, sequence, row, i);
                        snapshot_take(row, n, apart, tokens - 1 - token, args.snapshots);
                }
        }
}
