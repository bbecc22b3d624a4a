/*
 * What few models need, plainly: SOLVE_TRI, LIGHTNING_INDEXER, and the hyper-connections
 * DSV4_HC_COMB, _PRE and _POST.
 *
 *   SOLVE   a x = b, a a lower triangle: a column of x is one thread's, from the first row on
 *   INDEXER score[key, token] = mask[key, token] + sum over heads of max(q . key, 0) weight[head,
 *           token]; a score is one warp's, which keeps the key in registers
 *   COMB    a matrix of streams is one thread's
 *   PRE     out[., t] = sum over streams s of x[., s, t] weights[s, t]
 *   POST    out[., s, t] = x[., t] post[s, t] + sum over o of residual[., o, t] mixing[s, o, t]
 */
#include "backends/cuda/kernels/blocks.cuh"

#define EACH(i, count)                                                                             \
        for (int64_t i = (int64_t) blockIdx.x * CUDA_THREADS + threadIdx.x; i < (count);           \
             i += (int64_t) gridDim.x * CUDA_THREADS)

DEVICE const float *floats_of(const cuda_tensor &t, int64_t i1, int64_t i2, int64_t i3) {
        return (const float *) row_of(t, i1, i2, i3);
}

/* ---- SOLVE_TRI ------------------------------------------------------------------------------- */

FLAT_KERNEL(solve_columns, struct cuda_mixing_args) {
        const cuda_tensor &a = args.sources[0], &b = args.sources[1], &out = args.out;

        EACH(i, out.ne[0] * out.ne[2] * out.ne[3]) {
                int64_t plane = quotient(i, out.ne[0]), column = i - plane * out.ne[0];
                int64_t i3 = quotient(plane, out.ne[2]), i2 = plane - i3 * out.ne[2];

                for (int64_t row = 0; row < out.ne[1]; row++) {
                        const float *factors = floats_of(a, row, i2, i3);
                        float x = floats_of(b, row, i2, i3)[column];

                        for (int64_t known = 0; known < row; known++)
                                x -= factors[known] * floats_of(out, known, i2, i3)[column];
                        ((float *) row_of(out, row, i2, i3))[column] = x / factors[row];
                }
        }
}

/* ---- LIGHTNING_INDEXER ----------------------------------------------------------------------- */

#define OWN_MAX 8 /* elements of a key that a lane keeps */

DEVICE float score_of(const cuda_mixing_args &args, int64_t key, int64_t token, int64_t batch) {
        const cuda_tensor &q = args.sources[0], &k = args.sources[1], &mask = args.sources[3];
        const byte *row = row_of(k, 0, key, batch);
        const float *weights = floats_of(args.sources[2], token, 0, batch);
        int lane = (int) (threadIdx.x % WARP);
        float own[OWN_MAX], score = 0;

#pragma unroll
        for (int j = 0; j < OWN_MAX; j++)
                own[j] = lane + WARP * j < k.ne[0] ? any_element(k, row, lane + WARP * j) : 0.0f;
        for (int64_t head = 0; head < q.ne[1]; head++) {
                const float *query = floats_of(q, head, token, batch);
                float sum = 0;

#pragma unroll
                for (int j = 0; j < OWN_MAX; j++)
                        if (lane + WARP * j < k.ne[0])
                                sum += own[j] * query[lane + WARP * j];
                for (int64_t i = lane + WARP * OWN_MAX; i < k.ne[0]; i += WARP)
                        sum += any_element(k, row, i) * query[i];
                score += fmaxf(warp_sum(sum), 0.0f) * weights[head];
        }
        return score + half_at(row_of(mask, token, 0, remainder(batch, mask.ne[3])) + 2 * key);
}

KERNEL(score_keys, struct cuda_mixing_args) {
        const cuda_tensor &out = args.out;

        for (int64_t i = (int64_t) blockIdx.x * WARPS + threadIdx.x / WARP;
             i < out.ne[0] * out.ne[1] * out.ne[3]; i += (int64_t) gridDim.x * WARPS) {
                int64_t row = quotient(i, out.ne[0]), key = i - row * out.ne[0];
                int64_t batch = quotient(row, out.ne[1]), token = row - batch * out.ne[1];
                float score = score_of(args, key, token, batch);

                if (threadIdx.x % WARP == 0)
                        ((float *) row_of(out, token, 0, batch))[key] = score;
        }
}

/* ---- Hyper-connections ----------------------------------------------------------------------- */

#define STREAMS 4

/* Divides the elements of each line, `step` apart, by their sum; lines begin `line` apart. */
DEVICE void normalise(float *matrix, int line, int step, float epsilon) {
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
                float sum = epsilon;

#pragma unroll
                for (int j = 0; j < STREAMS; j++)
                        sum += matrix[i * line + j * step];
                sum = 1.0f / sum;
#pragma unroll
                for (int j = 0; j < STREAMS; j++)
                        matrix[i * line + j * step] *= sum;
        }
}

DEVICE void soft_max4(const float *mixes, const float *base, float scale, float epsilon,
                      float *ret_row) {
        float most = -INFINITY, sum = 0;

#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
                ret_row[j] = mixes[j] * scale + base[j];
                most = fmaxf(most, ret_row[j]);
        }
#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
                ret_row[j] = expf(ret_row[j] - most);
                sum += ret_row[j];
        }
#pragma unroll
        for (int j = 0; j < STREAMS; j++)
                ret_row[j] = ret_row[j] * (1.0f / sum) + epsilon;
}

/* Softmax of each row, then columns and rows are normalised in turn, columns first and last. */
FLAT_KERNEL(combine_streams, struct cuda_mixing_args) {
        EACH(token, args.out.ne[2]) {
                const float *mixes = floats_of(args.sources[0], token, 0, 0) + 2 * STREAMS;
                const float *base = floats_of(args.sources[2], 0, 0, 0) + 2 * STREAMS;
                float scale = floats_of(args.sources[1], 0, 0, 0)[2];
                float matrix[STREAMS * STREAMS];

#pragma unroll
                for (int i = 0; i < STREAMS; i++)
                        soft_max4(mixes + i * STREAMS, base + i * STREAMS, scale, args.epsilon,
                                  matrix + i * STREAMS);
                normalise(matrix, 1, STREAMS, args.epsilon);
                for (int64_t i = 1; i < args.iterations; i++) {
                        normalise(matrix, STREAMS, 1, args.epsilon);
                        normalise(matrix, 1, STREAMS, args.epsilon);
                }
#pragma unroll
                for (int i = 0; i < STREAMS; i++)
#pragma unroll
                        for (int j = 0; j < STREAMS; j++)
                                ((float *) row_of(args.out, i, token, 0))[j] =
                                        matrix[i * STREAMS + j];
        }
}

FLAT_KERNEL(mix_streams, struct cuda_mixing_args) {
        const cuda_tensor &x = args.sources[0], &weights = args.sources[1];

        EACH(i, args.out.ne[0] * args.out.ne[1]) {
                int64_t token = quotient(i, args.out.ne[0]), d = i - token * args.out.ne[0];
                float sum = 0;

                for (int64_t s = 0; s < x.ne[1]; s++)
                        sum += floats_of(x, s, token, 0)[d] * floats_of(weights, token, 0, 0)[s];
                ((float *) row_of(args.out, token, 0, 0))[d] = sum;
        }
}

FLAT_KERNEL(spread_streams, struct cuda_mixing_args) {
        const cuda_tensor &x = args.sources[0], &residual = args.sources[1];
        const cuda_tensor &post = args.sources[2], &mixing = args.sources[3], &out = args.out;

        EACH(i, out.ne[0] * out.ne[1] * out.ne[2]) {
                int64_t row = quotient(i, out.ne[0]), d = i - row * out.ne[0];
                int64_t token = quotient(row, out.ne[1]), s = row - token * out.ne[1];
                float sum = floats_of(x, token, 0, 0)[d] * floats_of(post, token, 0, 0)[s];

                for (int64_t o = 0; o < residual.ne[1]; o++)
                        sum += floats_of(residual, o, token, 0)[d] *
                               floats_of(mixing, o, token, 0)[s];
                ((float *) row_of(out, s, token, 0))[d] = sum;
        }
}
