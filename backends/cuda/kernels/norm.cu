/* Rows by their statistics: NORM, RMS_NORM, L2_NORM, SOFT_MAX, SUM_ROWS, MEAN; and in order:
 * ARGSORT, TOP_K. A block takes one row at a time. Each thread writes only elements that it alone
 * reads, so a row may be computed in place. */
#include "backends/cuda/kernels/common.cuh"

KERNEL(norm_rows, struct cuda_norm_args) {
        SHARED float parts[WARPS];
        int64_t n = args.in.ne[0];

        for (int64_t row = blockIdx.x; row < row_count(args.in); row += gridDim.x) {
                row_index index = index_of_row(args.in, row);
                const byte *in = row_at(args.in, index);
                float *out = (float *) row_at(args.out, index);
                float mean = 0, squares = 0, factor;

                if (args.op == HR_OP_NORM) {
                        float sum = 0;

                        for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS)
                                sum += *(const float *) (in + i * args.in.nb[0]);
                        mean = block_sum(sum, parts) / (float) n;
                }
                for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
                        float x = *(const float *) (in + i * args.in.nb[0]) - mean;

                        squares += x * x;
                }
                squares = block_sum(squares, parts);
                if (args.op == HR_OP_L2_NORM)
                        factor = 1.0f / fmaxf(sqrtf(squares), args.eps);
                else
                        factor = 1.0f / sqrtf(squares / (float) n + args.eps);
                for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS)
                        out[i] = (*(const float *) (in + i * args.in.nb[0]) - mean) * factor;
        }
}

KERNEL(soft_max_rows, struct cuda_soft_max_args) {
        SHARED float parts[WARPS];
        int64_t n = args.in.ne[0];

        for (int64_t row = blockIdx.x; row < row_count(args.in); row += gridDim.x) {
                row_index index = index_of_row(args.in, row);
                const float *in = (const float *) row_at(args.in, index);
                float *out = (float *) row_at(args.out, index);
                float slope = head_slope(args.max_bias, args.slope_base, args.slope_half,
                                         args.slope_power, index.i2);
                const byte *mask = NULL;
                float most = -INFINITY, sum = 0, sink = 0;
                int mask_bytes = args.mask.type == HR_TYPE_F32 ? 4 : 2;

                if (args.mask.is_present)
                        mask = row_of(args.mask, index.i1, index.i2 % args.mask.ne[2],
                                      index.i3 % args.mask.ne[3]);
                for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
                        float x = in[i] * args.scale;

                        if (mask)
                                x += slope * load_float(mask + i * mask_bytes, args.mask.type);
                        out[i] = x;
                        most = fmaxf(most, x);
                }
                most = block_max(most, parts);
                if (args.sinks.is_present) {
                        sink = ((const float *) (uintptr_t) args.sinks.data)[index.i2];
                        most = fmaxf(most, sink);
                }
                for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
                        float x = expf(out[i] - most);

                        out[i] = x;
                        sum += x;
                }
                sum = block_sum(sum, parts);
                if (args.sinks.is_present)
                        sum += expf(sink - most);
                sum = 1.0f / sum;
                for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS)
                        out[i] *= sum;
        }
}

KERNEL(sum_rows, struct cuda_norm_args) {
        SHARED float parts[WARPS];
        int64_t n = args.in.ne[0];

        for (int64_t row = blockIdx.x; row < row_count(args.in); row += gridDim.x) {
                row_index index = index_of_row(args.in, row);
                const byte *in = row_at(args.in, index);
                float sum = 0;

                for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS)
                        sum += load_float(in + i * args.in.nb[0], args.in.type);
                sum = block_sum(sum, parts);
                if (threadIdx.x == 0)
                        store_float(row_at(args.out, index), args.out.type,
                                    args.op == HR_OP_MEAN ? sum / (float) n : sum);
        }
}

/* Numbers that order like the values, no number last. */
DEVICE uint32_t sort_key(float value, bool is_descending) {
        uint32_t bits = float_bits(value == 0 ? 0.0f : value);

        if ((bits & 0x7fffffffu) > 0x7f800000u)
                return 0xffffffffu;
        bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        return is_descending ? ~bits : bits;
}

/* Each element counts those before it: that is its place. Equal ones keep their order. */
KERNEL(sort_rows, struct cuda_sort_args) {
        SHARED uint32_t keys[CUDA_SORT_MAX];
        int n = (int) args.in.ne[0];

        for (int64_t row = blockIdx.x; row < row_count(args.in); row += gridDim.x) {
                row_index index = index_of_row(args.in, row);
                const byte *in = row_at(args.in, index);
                byte *out = row_at(args.out, index);

                for (int i = (int) threadIdx.x; i < n; i += CUDA_THREADS)
                        keys[i] = sort_key(load_float(in + i * args.in.nb[0], args.in.type),
                                           args.is_descending);
                __syncthreads();
                for (int i = (int) threadIdx.x; i < n; i += CUDA_THREADS) {
                        int64_t place = 0;

                        for (int j = 0; j < n; j++)
                                place += keys[j] < keys[i] || (keys[j] == keys[i] && j < i);
                        if (place < args.out.ne[0])
                                *(int32_t *) (out + place * args.out.nb[0]) = i;
                }
                __syncthreads();
        }
}
