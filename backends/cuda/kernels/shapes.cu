/*
 * Tensors of f32 of which each element is made by itself from where it lies: PAD, PAD_REFLECT_1D,
 * ROLL, TRI, DIAG, DIAG_MASK_INF and _ZERO, ARANGE, TIMESTEP_EMBEDDING, REPEAT_BACK, OUT_PROD,
 * WIN_PART, WIN_UNPART, ADD_REL_POS.
 */
#include "backends/cuda/kernels/blocks.cuh"

/* index modulo extent, also for negative ones. */
DEVICE int64_t wrap(int64_t index, int64_t extent) {
        int64_t rest = index % extent;

        return rest < 0 ? rest + extent : rest;
}

struct place {
        int64_t i[4];
};

DEVICE float element_of(const cuda_tensor &t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
        return *(const float *) (row_of(t, i1, i2, i3) + i0 * t.nb[0]);
}

/* PAD: params are what is added before and after in each dimension, then whether it wraps. */
DEVICE float padded(const cuda_shape_args &args, place at) {
        for (int d = 0; d < 4; d++) {
                int64_t from = at.i[d] - args.params[2 * d];

                if (!args.params[8] && (from < 0 || from >= args.in.ne[d]))
                        return 0;
                at.i[d] = wrap(from, args.in.ne[d]);
        }
        return element_of(args.in, at.i[0], at.i[1], at.i[2], at.i[3]);
}

DEVICE float reflected(const cuda_shape_args &args, place at) {
        int64_t left = args.params[0], n = args.in.ne[0];
        int64_t i = at.i[0] < left ? left - at.i[0] : at.i[0] - left;

        return element_of(args.in, i < n ? i : 2 * (n - 1) - i, at.i[1], at.i[2], at.i[3]);
}

DEVICE float rolled(const cuda_shape_args &args, place at) {
        for (int d = 0; d < 4; d++)
                at.i[d] = wrap(at.i[d] - args.params[d], args.in.ne[d]);
        return element_of(args.in, at.i[0], at.i[1], at.i[2], at.i[3]);
}

DEVICE bool is_kept(int32_t kind, int64_t column, int64_t row) {
        return kind == 0 ? column >= row : kind == 1 ? column > row : kind == 2 ? column <= row
                                                                               : column < row;
}

DEVICE float masked(const cuda_shape_args &args, place at) {
        float value = element_of(args.in, at.i[0], at.i[1], at.i[2], at.i[3]);

        if (args.op == HR_OP_TRI)
                return is_kept(args.params[0], at.i[0], at.i[1]) ? value : 0.0f;
        if (at.i[0] <= args.params[0] + at.i[1])
                return value;
        return args.op == HR_OP_DIAG_MASK_INF ? -INFINITY : 0.0f;
}

DEVICE float embedded(const cuda_shape_args &args, place at) {
        int64_t dim = args.params[0], half = dim / 2, i = at.i[0] % (half ? half : 1);
        float angle;

        if (at.i[0] >= 2 * half)
                return 0;
        angle = element_of(args.in, at.i[1], 0, 0, 0) *
                expf(-logf((float) args.params[1]) * (float) i / (float) half);
        return at.i[0] < half ? cosf(angle) : sinf(angle);
}

DEVICE float gathered(const cuda_shape_args &args, place at) {
        float sum = 0;

        for (int64_t i3 = at.i[3]; i3 < args.in.ne[3]; i3 += args.out.ne[3])
                for (int64_t i2 = at.i[2]; i2 < args.in.ne[2]; i2 += args.out.ne[2])
                        for (int64_t i1 = at.i[1]; i1 < args.in.ne[1]; i1 += args.out.ne[1])
                                for (int64_t i0 = at.i[0]; i0 < args.in.ne[0]; i0 += args.out.ne[0])
                                        sum += element_of(args.in, i0, i1, i2, i3);
        return sum;
}

/* OUT_PROD: the sum over k of a[m, k] b[n, k]. */
DEVICE float multiplied(const cuda_shape_args &args, place at) {
        int64_t a2 = at.i[2] / (args.out.ne[2] / args.in.ne[2]);
        int64_t a3 = at.i[3] / (args.out.ne[3] / args.in.ne[3]);
        float sum = 0;

        for (int64_t k = 0; k < args.in.ne[1]; k++)
                sum += any_element(args.in, row_of(args.in, k, a2, a3), at.i[0]) *
                       element_of(args.other, at.i[1], k, at.i[2], at.i[3]);
        return sum;
}

/* WIN_PART: params are how many windows lie side by side, ..., and their extent. */
DEVICE float cut_out(const cuda_shape_args &args, place at) {
        int64_t across = args.params[0], window = args.params[2];
        int64_t y = quotient(at.i[3], across), x = at.i[3] - y * across;

        x = x * window + at.i[1];
        y = y * window + at.i[2];
        if (x >= args.in.ne[1] || y >= args.in.ne[2])
                return 0;
        return element_of(args.in, at.i[0], x, y, 0);
}

DEVICE float put_back(const cuda_shape_args &args, place at) {
        int64_t window = args.params[0], across = (args.out.ne[1] + window - 1) / window;
        int64_t x = quotient(at.i[1], window), y = quotient(at.i[2], window);

        return element_of(args.in, at.i[0], at.i[1] - x * window, at.i[2] - y * window,
                          y * across + x);
}

/* ADD_REL_POS: a row is a matrix, to whose columns `other` is added, to whose rows `third`. */
DEVICE float positioned(const cuda_shape_args &args, place at) {
        int64_t extent = args.other.ne[0], row = quotient(at.i[0], extent);
        int64_t q2 = quotient(at.i[1], args.other.ne[1]), q1 = at.i[1] - q2 * args.other.ne[1];

        return element_of(args.in, at.i[0], at.i[1], at.i[2], at.i[3]) +
               element_of(args.other, at.i[0] - row * extent, q1, q2, at.i[2]) +
               element_of(args.third, row, q1, q2, at.i[2]);
}

DEVICE float made(const cuda_shape_args &args, place at) {
        switch (args.op) {
        case HR_OP_PAD: return padded(args, at);
        case HR_OP_PAD_REFLECT_1D: return reflected(args, at);
        case HR_OP_ROLL: return rolled(args, at);
        case HR_OP_DIAG:
                return at.i[0] == at.i[1] ? element_of(args.in, at.i[0], 0, at.i[2], at.i[3])
                                          : 0.0f;
        case HR_OP_ARANGE: return args.start + args.step * (float) at.i[0];
        case HR_OP_TIMESTEP_EMBEDDING: return embedded(args, at);
        case HR_OP_REPEAT_BACK: return gathered(args, at);
        case HR_OP_OUT_PROD: return multiplied(args, at);
        case HR_OP_WIN_PART: return cut_out(args, at);
        case HR_OP_WIN_UNPART: return put_back(args, at);
        case HR_OP_ADD_REL_POS: return positioned(args, at);
        default: return masked(args, at);
        }
}

FLAT_KERNEL(shape_elements, struct cuda_shape_args) {
        for (int64_t row = blockIdx.x; row < row_count(args.out); row += gridDim.x) {
                row_index index = index_of_row(args.out, row);
                byte *out = row_at(args.out, index);

                for (int64_t i = threadIdx.x; i < args.out.ne[0]; i += CUDA_THREADS) {
                        place at = { { i, index.i1, index.i2, index.i3 } };

                        *(float *) (out + i * args.out.nb[0]) = made(args, at);
                }
        }
}
