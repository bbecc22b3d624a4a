/*
 * FLASH_ATTN_EXT: softmax(scale q k + slope mask) v without the matrix of scores in memory.
 *
 * A block takes one query of one head. Its warps share the keys out; each keeps a running maximum,
 * the sum of its weights and the weighted sum of values, a lane having every 32nd of them, and at
 * the end the warps' parts are put together. A query that sees no key, and has no sink, gives
 * zeros.
 */
#include "backends/cuda/kernels/blocks.cuh"

DEVICE float row_element(const byte *row, uint32_t type, int64_t i) {
        unit u;

        if (block_size(type) == 1)
                return load_float(row + i * block_bytes(type), type);
        unpack_any(type, row, i / 32, &u);
        return unit_value(&u, (int) (i % 32));
}

#define LANE_VALUES 16 /* values of up to 512 elements */
#define KEY_MAX 576

struct attended {
        const byte *k, *v, *mask;
        int64_t k_stride, v_stride;
        float slope;
};

struct running {
        float most, sum;
        float values[LANE_VALUES];
};

/* One key more. */
DEVICE void attend(const cuda_attention_args &args, const attended &at, const float *q, int64_t key,
                   running *state) {
        int lane = (int) (threadIdx.x % WARP);
        float bias = 0, score = 0, factor, weight;

        if (at.mask) {
                bias = at.slope * half_to_float(((const uint16_t *) at.mask)[key]);
                if (bias == -INFINITY)
                        return;
        }
        for (int64_t i = lane; i < args.k.ne[0]; i += WARP)
                score += q[i] * row_element(at.k + key * at.k_stride, args.k.type, i);
        score = warp_sum(score) * args.scale;
        if (args.cap != 0.0f)
                score = args.cap * tanhf(score / args.cap);
        score += bias;
        if (score == -INFINITY)
                return;
        factor = score > state->most ? expf(state->most - score) : 1.0f;
        state->most = fmaxf(state->most, score);
        weight = expf(score - state->most);
        state->sum = state->sum * factor + weight;
        for (int j = 0; j < LANE_VALUES; j++) {
                int64_t i = WARP * j + lane;

                if (i < args.v.ne[0])
                        state->values[j] = state->values[j] * factor +
                                           weight * row_element(at.v + key * at.v_stride,
                                                                args.v.type, i);
        }
}

KERNEL(attention_walk, struct cuda_attention_args) {
        SHARED float q[KEY_MAX], parts[WARPS][WARP * LANE_VALUES], most[WARPS], sums[WARPS];
        int64_t items = args.q.ne[1] * args.q.ne[2] * args.q.ne[3];
        int warp = (int) (threadIdx.x / WARP), lane = (int) (threadIdx.x % WARP);

        for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
                int64_t query = item % args.q.ne[1], head = item / args.q.ne[1] % args.q.ne[2];
                int64_t batch = item / args.q.ne[1] / args.q.ne[2];
                const float *from = (const float *) row_of(args.q, query, head, batch);
                float *out = (float *) row_of(args.out, head, query, batch);
                running state = { -INFINITY, 0, {} };
                attended at;
                float all_most = -INFINITY, all_sum = 0;

                at.k = row_of(args.k, 0, head / (args.q.ne[2] / args.k.ne[2]),
                              batch / (args.q.ne[3] / args.k.ne[3]));
                at.v = row_of(args.v, 0, head / (args.q.ne[2] / args.v.ne[2]),
                              batch / (args.q.ne[3] / args.v.ne[3]));
                at.k_stride = args.k.nb[1];
                at.v_stride = args.v.nb[1];
                at.mask = args.mask.is_present ? row_of(args.mask, query, head % args.mask.ne[2],
                                                        batch % args.mask.ne[3])
                                               : NULL;
                at.slope = head_slope(args.max_bias, args.slope_base, args.slope_half,
                                      args.slope_power, head);
                for (int64_t i = threadIdx.x; i < args.q.ne[0]; i += CUDA_THREADS)
                        q[i] = from[i];
                __syncthreads();
                for (int64_t key = warp; key < args.k.ne[1]; key += WARPS)
                        attend(args, at, q, key, &state);
                for (int j = 0; j < LANE_VALUES; j++)
                        parts[warp][WARP * j + lane] = state.values[j];
                if (lane == 0) {
                        most[warp] = state.most;
                        sums[warp] = state.sum;
                }
                __syncthreads();
                for (int w = 0; w < WARPS; w++)
                        all_most = fmaxf(all_most, most[w]);
                if (args.sinks.is_present) {
                        float sink = ((const float *) (uintptr_t) args.sinks.data)[head];

                        all_most = fmaxf(all_most, sink);
                        all_sum = expf(sink - all_most);
                }
                for (int w = 0; w < WARPS; w++)
                        if (most[w] != -INFINITY)
                                all_sum += sums[w] * expf(most[w] - all_most);
                for (int64_t i = threadIdx.x; i < args.v.ne[0]; i += CUDA_THREADS) {
                        float total = 0;

                        for (int w = 0; w < WARPS; w++)
                                if (most[w] != -INFINITY)
                                        total += parts[w][i] * expf(most[w] - all_most);
                        out[i] = all_sum == 0 ? 0 : total / all_sum;
                }
                __syncthreads();
        }
}
