/*
 * LIGHTNING_INDEXER, which scores the keys for sparse attention, and the three hyper-connection
 * operators of the model that uses it.
 *
 *   score[key, token] = mask[key, token] + sum over heads of max(q . key, 0) * weight[head, token]
 *
 * A block of keys is one thread's: their rows are made f32 once and multiplied with the heads of
 * all tokens. Heads are added in order.
 *
 * Scratch of a thread: keys[KEYS][D], products[heads][KEYS].
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/matrix/share.h"
#include "backends/cpu/ops.h"

#include <math.h>

#define KEYS 32

static bool indexer_supports(const struct hr_step *step) {
        return step->source_count == 4 && step->sources[0].type == HR_TYPE_F32 &&
               cpu_any_dot()->dequantize[step->sources[1].type] &&
               step->sources[2].type == HR_TYPE_F32 && step->sources[3].type == HR_TYPE_F16 &&
               step->result.type == HR_TYPE_F32 && cpu_has_dense_rows(&step->sources[0]) &&
               cpu_has_dense_rows(&step->sources[1]) && cpu_has_dense_rows(&step->sources[2]) &&
               cpu_has_dense_rows(&step->sources[3]) && cpu_has_dense_rows(&step->result) &&
               step->sources[0].ne[1] <= UINT32_MAX;
}

static uint64_t indexer_key_bytes(const struct hr_step *step) {
        return cpu_times((uint64_t) step->sources[0].ne[0], KEYS * sizeof(float));
}

static uint64_t indexer_thread_bytes(const struct hr_step *step) {
        return cpu_round_up(cpu_plus(indexer_key_bytes(step),
                                     cpu_times((uint64_t) step->sources[0].ne[1],
                                               KEYS * sizeof(float))));
}

static uint64_t indexer_scratch(const struct hr_step *step, uint32_t threads) {
        return cpu_times(indexer_thread_bytes(step), threads);
}

static uint32_t indexer_threads(const struct hr_step *step) {
        int64_t products = step->sources[0].ne[0] * step->sources[0].ne[1];

        return cpu_threads_for(cpu_elements(&step->result),
                               (uint32_t) HR_MIN(products + 8, UINT32_MAX));
}

static void indexer_token(const struct cpu_call *call, const float *keys, float *products,
                          struct cpu_index at, int64_t first, int64_t count) {
        const struct hr_operand *q = &call->step->sources[0], *mask = &call->step->sources[3];
        const float *weights = (const float *) (const void *) cpu_row(&call->step->sources[2],
                                                                      at.i1, 0, at.i3);
        float *out = (float *) (void *) cpu_row(&call->step->result, at.i1, 0, at.i3) + first;
        float buffer[KEYS];
        const float *masked = cpu_load(call->vec, mask,
                                       cpu_row(mask, at.i1, 0, at.i3 % mask->ne[3]), first, count,
                                       buffer);

        call->dot->float_dot(HR_TYPE_F32, (const uint8_t *) keys,
                             (uint64_t) q->ne[0] * sizeof(float), (uint32_t) count,
                             cpu_row(q, 0, at.i1, at.i3), q->nb[1], (uint32_t) q->ne[1], q->ne[0],
                             NULL, products, KEYS);
        for (int64_t i = 0; i < count; i++) {
                float score = 0;

                for (int64_t head = 0; head < q->ne[1]; head++)
                        score += fmaxf(products[head * KEYS + i], 0.0f) * weights[head];
                out[i] = score + masked[i];
        }
}

static void indexer_run(const struct cpu_call *call) {
        const struct hr_operand *k = &call->step->sources[1], *result = &call->step->result;
        uint8_t *scratch = call->scratch + call->thread * indexer_thread_bytes(call->step);
        float *keys = (float *) (void *) scratch;
        float *products = (float *) (void *) (scratch + indexer_key_bytes(call->step));
        int64_t blocks = (result->ne[0] + KEYS - 1) / KEYS, first, end;

        cpu_share(call, blocks * result->ne[3], 1, &first, &end);
        for (int64_t item = first; item < end; item++) {
                struct cpu_index at = { .i3 = item / blocks };
                int64_t key = item % blocks * KEYS;
                int64_t count = HR_MIN(result->ne[0] - key, (int64_t) KEYS);

                for (int64_t i = 0; i < count; i++)
                        call->dot->dequantize[k->type](cpu_row(k, 0, key + i, at.i3),
                                                       keys + i * k->ne[0], k->ne[0]);
                for (at.i1 = 0; at.i1 < result->ne[1]; at.i1++)
                        indexer_token(call, keys, products, at, key, count);
        }
}

const struct cpu_kernel cpu_kernel_lightning_indexer = {
        .supports = indexer_supports,
        .scratch = indexer_scratch,
        .threads_max = indexer_threads,
        .run = indexer_run,
};

/* ---- DSV4_HC_COMB ---------------------------------------------------------------------------- */

#define STREAMS 4

static bool sources_are_f32(const struct hr_step *step, uint32_t count) {
        if (step->source_count != count || step->result.type != HR_TYPE_F32 ||
            !cpu_has_dense_rows(&step->result))
                return false;
        for (uint32_t i = 0; i < count; i++)
                if (step->sources[i].type != HR_TYPE_F32 || !cpu_has_dense_rows(&step->sources[i]))
                        return false;
        return true;
}

static bool comb_supports(const struct hr_step *step) {
        return sources_are_f32(step, 3) && step->result.ne[0] == STREAMS &&
               step->result.ne[1] == STREAMS;
}

static uint32_t comb_threads(const struct hr_step *step) {
        uint32_t cost = (uint32_t) HR_MAX(HR_MIN(step->params[1], 1 << 16), 1);

        return cpu_threads_for(step->result.ne[2] * STREAMS * STREAMS, 64 * cost);
}

/* Divides the elements of each line, `step` apart, by their sum; lines start `line` apart. */
static void normalise(float *matrix, int line, int step, float epsilon) {
        for (int i = 0; i < STREAMS; i++) {
                float *first = matrix + i * line, sum = epsilon;

                for (int j = 0; j < STREAMS; j++)
                        sum += first[j * step];
                sum = 1.0f / sum;
                for (int j = 0; j < STREAMS; j++)
                        first[j * step] *= sum;
        }
}

/* Softmax of each row, then columns and rows are normalised in turn, columns first and last. */
static void comb_token(const float *mixes, const float *base, float scale, const int32_t *params,
                       float *matrix) {
        float epsilon = hr_param_f32(params, 0);

        for (int i = 0; i < STREAMS; i++) {
                float *row = matrix + i * STREAMS, most = -INFINITY, sum = 0;

                for (int j = 0; j < STREAMS; j++) {
                        row[j] = mixes[i * STREAMS + j] * scale + base[i * STREAMS + j];
                        most = fmaxf(most, row[j]);
                }
                for (int j = 0; j < STREAMS; j++) {
                        row[j] = expf(row[j] - most);
                        sum += row[j];
                }
                for (int j = 0; j < STREAMS; j++)
                        row[j] = row[j] * (1.0f / sum) + epsilon;
        }
        normalise(matrix, 1, STREAMS, epsilon);
        for (int32_t i = 1; i < params[1]; i++) {
                normalise(matrix, STREAMS, 1, epsilon);
                normalise(matrix, 1, STREAMS, epsilon);
        }
}

static void comb_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *mixes = &call->step->sources[0];
        const float *scale = call->step->sources[1].data, *base = call->step->sources[2].data;
        int64_t first, end;

        cpu_share(call, result->ne[2], 1, &first, &end);
        for (int64_t token = first; token < end; token++) {
                float matrix[STREAMS * STREAMS];

                comb_token((const float *) (const void *) cpu_row(mixes, token, 0, 0) + 2 * STREAMS,
                           base + 2 * STREAMS, scale[2], call->step->params, matrix);
                for (int i = 0; i < STREAMS; i++)
                        memcpy(cpu_row(result, i, token, 0), matrix + i * STREAMS,
                               STREAMS * sizeof matrix[0]);
        }
}

const struct cpu_kernel cpu_kernel_dsv4_hc_comb = {
        .supports = comb_supports,
        .threads_max = comb_threads,
        .run = comb_run,
};

/* ---- DSV4_HC_PRE, DSV4_HC_POST --------------------------------------------------------------- */

static uint32_t mixing_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 16);
}

static const float *row_of(const struct hr_operand *operand, int64_t i1, int64_t i2) {
        return (const float *) (const void *) cpu_row(operand, i1, i2, 0);
}

static bool pre_supports(const struct hr_step *step) {
        return sources_are_f32(step, 2);
}

/* result[., t] = sum over streams of x[., stream, t] * weights[stream, t] */
static void pre_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *x = &call->step->sources[0];
        struct cpu_walk walk = cpu_walk_start(call, false);
        struct cpu_piece piece;

        while (cpu_walk_next(&walk, &piece)) {
                int64_t token = piece.index.i1;
                const float *weights = row_of(&call->step->sources[1], token, 0);
                float *out = (float *) (void *) cpu_row(result, token, 0, 0) + piece.first;

                memset(out, 0, (size_t) piece.n * sizeof *out);
                for (int64_t stream = 0; stream < x->ne[1]; stream++)
                        call->vec->add_scaled(piece.n, out, row_of(x, stream, token) + piece.first,
                                              weights[stream]);
        }
}

const struct cpu_kernel cpu_kernel_dsv4_hc_pre = {
        .supports = pre_supports,
        .threads_max = mixing_threads,
        .run = pre_run,
};

static bool post_supports(const struct hr_step *step) {
        return sources_are_f32(step, 4);
}

/* result[., s, t] = x[., t] * post[s, t] + sum over streams of residual[., stream, t] *
 * mixing[s, stream, t] */
static void post_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *sources = call->step->sources;
        struct cpu_walk walk = cpu_walk_start(call, false);
        struct cpu_piece piece;

        while (cpu_walk_next(&walk, &piece)) {
                int64_t stream = piece.index.i1, token = piece.index.i2;
                float *out = (float *) (void *) cpu_row(result, stream, token, 0) + piece.first;

                call->vec->scale(piece.n, out, row_of(&sources[0], token, 0) + piece.first,
                                 row_of(&sources[2], token, 0)[stream], 0.0f);
                for (int64_t other = 0; other < sources[1].ne[1]; other++)
                        call->vec->add_scaled(piece.n, out,
                                              row_of(&sources[1], other, token) + piece.first,
                                              row_of(&sources[3], other, token)[stream]);
        }
}

const struct cpu_kernel cpu_kernel_dsv4_hc_post = {
        .supports = post_supports,
        .threads_max = mixing_threads,
        .run = post_run,
};
