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
                row_norm norm = norm_of_row(args.in, in, args.op, args.eps, parts);

                for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS)
                        out[i] = (*(const float *) (in + i * args.in.nb[0]) - norm.mean) *
                                 norm.factor;
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

DEVICE uint32_t key_of(const cuda_sort_args &args, const byte *in, const uint32_t *keys, int i) {
        return args.in.ne[0] <= CUDA_SORT_NEAR
                       ? keys[i]
                       : sort_key(load_float(in + i * args.in.nb[0], args.in.type),
                                  args.is_descending);
}

/* Each element counts those before it: that is its place. Equal ones keep their order. */
KERNEL(sort_rows, struct cuda_sort_args) {
        SHARED uint32_t keys[CUDA_SORT_NEAR];
        int n = (int) args.in.ne[0];

        for (int64_t row = blockIdx.x; row < row_count(args.in); row += gridDim.x) {
                row_index index = index_of_row(args.in, row);
                const byte *in = row_at(args.in, index);
                byte *out = row_at(args.out, index);

                for (int i = (int) threadIdx.x; i < n && n <= CUDA_SORT_NEAR; i += CUDA_THREADS)
                        keys[i] = sort_key(load_float(in + i * args.in.nb[0], args.in.type),
                                           args.is_descending);
                __syncthreads();
                for (int i = (int) threadIdx.x; i < n; i += CUDA_THREADS) {
                        uint32_t own = key_of(args, in, keys, i);
                        int64_t place = 0;

                        for (int j = 0; j < n; j++) {
                                uint32_t key = key_of(args, in, keys, j);

                                place += key < own || (key == own && j < i);
                        }
                        if (place < args.out.ne[0])
                                *(int32_t *) (out + place * args.out.nb[0]) = i;
                }
                __syncthreads();
        }
}

/* ---- Sums of everything, running sums, the largest ------------------------------------------- */

/* One block. */
KERNEL(sum_all, struct cuda_norm_args) {
        SHARED float parts[WARPS];
        float sum = 0;

        for (int64_t row = 0; row < row_count(args.in); row++) {
                const byte *in = row_at(args.in, index_of_row(args.in, row));

                for (int64_t i = threadIdx.x; i < args.in.ne[0]; i += CUDA_THREADS)
                        sum += load_float(in + i * args.in.nb[0], args.in.type);
        }
        sum = block_sum(sum, parts);
        if (threadIdx.x == 0)
                store_float((byte *) (uintptr_t) args.out.data, args.out.type, sum);
}

/* Each thread has a stretch of the row: its sum first, then, on top of what lies before, the rest.
 * */
KERNEL(running_sums, struct cuda_norm_args) {
        SHARED float sums[CUDA_THREADS];
        int64_t stretch = (args.in.ne[0] + CUDA_THREADS - 1) / CUDA_THREADS;

        for (int64_t row = blockIdx.x; row < row_count(args.in); row += gridDim.x) {
                row_index index = index_of_row(args.in, row);
                const byte *in = row_at(args.in, index);
                byte *out = row_at(args.out, index);
                int64_t first = threadIdx.x * stretch, end = first + stretch;
                float sum = 0;

                end = end < args.in.ne[0] ? end : args.in.ne[0];
                for (int64_t i = first; i < end; i++)
                        sum += load_float(in + i * args.in.nb[0], args.in.type);
                sums[threadIdx.x] = sum;
                __syncthreads();
                sum = 0;
                for (unsigned t = 0; t < threadIdx.x; t++)
                        sum += sums[t];
                __syncthreads();
                for (int64_t i = first; i < end; i++) {
                        sum += load_float(in + i * args.in.nb[0], args.in.type);
                        store_float(out + i * args.out.nb[0], args.out.type, sum);
                }
        }
}

/* ARGMAX: the first of the largest; what is no number never is. */
KERNEL(largest_of_rows, struct cuda_norm_args) {
        SHARED float values[CUDA_THREADS];
        SHARED int32_t places[CUDA_THREADS];

        for (int64_t row = blockIdx.x; row < args.in.ne[1]; row += gridDim.x) {
                const byte *in = row_of(args.in, row, 0, 0);
                float most = -INFINITY;
                int32_t place = INT32_MAX;

                for (int64_t i = threadIdx.x; i < args.in.ne[0]; i += CUDA_THREADS) {
                        float x = load_float(in + i * args.in.nb[0], args.in.type);

                        if (x > most) {
                                most = x;
                                place = (int32_t) i;
                        }
                }
                values[threadIdx.x] = most;
                places[threadIdx.x] = place;
                __syncthreads();
                for (int t = 0; t < CUDA_THREADS && threadIdx.x == 0; t++)
                        if (values[t] > most || (values[t] == most && places[t] < place)) {
                                most = values[t];
                                place = places[t];
                        }
                if (threadIdx.x == 0)
                        *(int32_t *) ((byte *) (uintptr_t) args.out.data + row * args.out.nb[0]) =
                                place == INT32_MAX ? 0 : place;
                __syncthreads();
        }
}

/* COUNT_EQUAL; one block. */
KERNEL(count_equal, struct cuda_binary_args) {
        SHARED int64_t counts[CUDA_THREADS];
        int64_t count = 0;

        for (int64_t row = 0; row < row_count(args.a); row++) {
                row_index index = index_of_row(args.a, row);
                const byte *a = row_at(args.a, index), *b = row_at(args.b, index);

                for (int64_t i = threadIdx.x; i < args.a.ne[0]; i += CUDA_THREADS)
                        count += *(const int32_t *) (a + i * args.a.nb[0]) ==
                                 *(const int32_t *) (b + i * args.b.nb[0]);
        }
        counts[threadIdx.x] = count;
        __syncthreads();
        for (int t = 1; t < CUDA_THREADS && threadIdx.x == 0; t++)
                count += counts[t];
        if (threadIdx.x == 0)
                *(int64_t *) (uintptr_t) args.out.data = count;
}

/* ---- GROUP_NORM ------------------------------------------------------------------------------ */

/* Sum over channels first .. end - 1 of x - mean, or of its square. */
DEVICE float channels_sum(const cuda_group_norm_args &args, int64_t first, int64_t end, int64_t i3,
                          float mean, bool is_square) {
        int64_t rows = (end - first) * args.in.ne[1];
        float sum = 0;

        for (int64_t row = threadIdx.x / WARP; row < rows; row += WARPS) {
                const float *in = (const float *) row_of(args.in, row % args.in.ne[1],
                                                         first + row / args.in.ne[1], i3);

                for (int64_t i = threadIdx.x % WARP; i < args.in.ne[0]; i += WARP) {
                        float x = in[i] - mean;

                        sum += is_square ? x * x : x;
                }
        }
        return sum;
}

/* A block takes a group of channels. */
KERNEL(norm_groups, struct cuda_group_norm_args) {
        SHARED float parts[WARPS];
        int64_t channels = args.in.ne[2], size = (channels + args.groups - 1) / args.groups;

        for (int64_t item = blockIdx.x; item < args.groups * args.in.ne[3]; item += gridDim.x) {
                int64_t i3 = item / args.groups, first = item % args.groups * size;
                int64_t end = first + size < channels ? first + size : channels;
                float count = (float) (args.in.ne[0] * args.in.ne[1]) * (float) (end - first);
                float mean, factor;

                mean = block_sum(channels_sum(args, first, end, i3, 0, false), parts) / count;
                factor = block_sum(channels_sum(args, first, end, i3, mean, true), parts) / count;
                factor = 1.0f / sqrtf(factor + args.eps);
                for (int64_t row = threadIdx.x / WARP; row < (end - first) * args.in.ne[1];
                     row += WARPS) {
                        int64_t i1 = row % args.in.ne[1], i2 = first + row / args.in.ne[1];
                        const float *in = (const float *) row_of(args.in, i1, i2, i3);
                        float *out = (float *) row_of(args.out, i1, i2, i3);

                        for (int64_t i = threadIdx.x % WARP; i < args.in.ne[0]; i += WARP)
                                out[i] = (in[i] - mean) * factor;
                }
        }
}
