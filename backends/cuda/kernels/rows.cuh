/* Where elements and rows lie, for kernels that copy, pick and encode them. */
#pragma once

#include "backends/cuda/kernels/blocks.cuh"

/* Where logical element i lies; blocks are never torn. */
DEVICE byte *element_at(const cuda_tensor &t, int64_t i, int64_t *ret_i0) {
        int64_t row = quotient(i, t.ne[0]), i0 = i - row * t.ne[0];

        *ret_i0 = i0;
        return row_at(t, index_of_row(t, row)) + i0 / block_size(t.type) * t.nb[0];
}

/* Towards zero; what does not fit gives the nearest end, what is no number 0. */
DEVICE int32_t to_integer(float value) {
        if (!(value >= -2147483648.0f))
                return value < 0 ? INT32_MIN : 0;
        return value < 2147483648.0f ? (int32_t) value : INT32_MAX;
}

DEVICE void store_plain(byte *at, uint32_t type, float value) {
        if (type == HR_TYPE_I32)
                *(int32_t *) at = to_integer(value);
        else
                store_float(at, type, value);
}

DEVICE float read_plain(const byte *at, uint32_t type) {
        return type == HR_TYPE_I32 ? (float) *(const int32_t *) at : load_float(at, type);
}

/* `count` values from logical element i on, which is the first of a block. Of a block type they are
 * multiples of 32 in one row; each may lie elsewhere otherwise. */
DEVICE void read_values(const cuda_tensor &t, int64_t i, int count, float *ret_values) {
        int64_t i0;

        if (block_size(t.type) == 1) {
                for (int j = 0; j < count; j++)
                        ret_values[j] = read_plain(element_at(t, i + j, &i0), t.type);
                return;
        }
        for (int j = 0; j < count; j += 32) {
                const byte *at = element_at(t, i + j, &i0);
                unit u;

                unpack_any(t.type, at, i0 % block_size(t.type) / 32, &u);
                for (int k = 0; k < 32; k++)
                        ret_values[j + k] = unit_value(&u, k);
        }
}

/* False, and the step fails, for an id that is no row. */
DEVICE bool read_id(const cuda_rows_args &args, int64_t i0, int64_t i1, int64_t i2, int64_t limit,
                    int64_t *ret_id) {
        const byte *at = row_of(args.ids, i1, i2, 0) + i0 * args.ids.nb[0];
        int64_t id = args.ids.type == HR_TYPE_I32 ? (int64_t) *(const int32_t *) at
                                                  : *(const int64_t *) at;

        *ret_id = id;
        if (id >= 0 && id < limit)
                return true;
        if (threadIdx.x == 0)
                fault_at(args.fault, args.step);
        return false;
}

/* The row of the result that row `at` of the values goes to; NULL, for all threads of the block,
 * where the id is none or a later row has the same: a row named twice ends with the later value.
 * `found` is shared. */
DEVICE byte *target_row(const cuda_rows_args &args, row_index at, int *found) {
        int64_t j1 = remainder(at.i2, args.ids.ne[1]), j2 = remainder(at.i3, args.ids.ne[2]);
        int64_t id = 0, other;
        bool is_good = read_id(args, at.i1, j1, j2, args.out.ne[1], &id);

        __syncthreads();
        if (threadIdx.x == 0)
                *found = 0;
        __syncthreads();
        for (int64_t i = at.i1 + 1 + threadIdx.x; i < args.in.ne[1] && is_good; i += CUDA_THREADS)
                if (read_id(args, i, j1, j2, args.out.ne[1], &other) && other == id)
                        *(volatile int *) found = 1;
        __syncthreads();
        return is_good && !*found ? row_of(args.out, id, at.i2, at.i3) : NULL;
}
