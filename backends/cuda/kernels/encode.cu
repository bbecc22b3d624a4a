/*
 * CPY and SET_ROWS to block types, and ADD, which encodes its sums anew. A block of threads takes a
 * row, a thread a block of it. One kernel, because the encoders are long.
 */
#include "backends/cuda/kernels/encode.cuh"
#include "backends/cuda/kernels/rows.cuh"

/* With ids, rows of the values go where those say; without, the elements are in logical order. */
KERNEL(encode_rows, struct cuda_encode_args) {
        SHARED int found;
        int size = block_size(args.rows.out.type);
        int64_t rows = row_count(args.rows.ids.is_present ? args.rows.in : args.rows.out);

        for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
                const byte *addend = args.addend.is_present
                                             ? row_modulo(args.addend,
                                                          index_of_row(args.rows.out, row))
                                             : NULL;
                byte *out = args.rows.ids.is_present
                                    ? target_row(args.rows, index_of_row(args.rows.in, row), &found)
                                    : row_at(args.rows.out, index_of_row(args.rows.out, row));

                for (int64_t b = threadIdx.x; out && b < args.rows.out.ne[0] / size;
                     b += CUDA_THREADS) {
                        float x[256];

                        read_values(args.rows.in, row * args.rows.out.ne[0] + size * b, size, x);
                        for (int j = 0; j < size && addend; j++)
                                x[j] += load_float(addend + (size * b + j) % args.addend.ne[0] *
                                                                    args.addend.nb[0],
                                                   args.addend.type);
                        encode(out + b * args.rows.out.nb[0], args.rows.out.type, x);
                }
        }
}
