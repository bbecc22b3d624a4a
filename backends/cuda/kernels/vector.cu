/*
 * Products of floats with few columns. A warp takes a row; where addresses allow it a lane loads
 * sixteen bytes at a time, several of them before it uses the first. One column, the most frequent,
 * has a kernel of its own that needs few registers, so that twice as many warps have loads under
 * way.
 */
#include "backends/cuda/kernels/products.cuh"

#define AHEAD 4 /* pieces that a lane has under way */

/* The first of the item's columns; the others follow args.b.nb[1] bytes apart. */
DEVICE const byte *first_column(const cuda_product_args &args, const few_columns &item) {
        return row_at(args.b, index_of_row(args.b, column_of_b(args, item.column)));
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Elements in a piece. */
template <uint32_t TYPE> DEVICE constexpr int in_piece(void) {
        return 16 / block_bytes(TYPE);
}

template <uint32_t TYPE> DEVICE float piece_element(const piece &p, int j) {
        if (TYPE == HR_TYPE_F32)
                return bits_float(p.word[j]);
        if (TYPE == HR_TYPE_F16)
                return half_to_float((uint16_t) (p.word[j / 2] >> 16 * (j % 2)));
        return bf16_to_float((uint16_t) (p.word[j / 2] >> 16 * (j % 2)));
}

template <uint32_t TYPE> DEVICE float multiply_piece(const piece &a, const byte *b) {
        float sum = 0;

        for (int i = 0; i < in_piece<TYPE>() / 4; i++) {
                piece four = load_piece((const piece *) b + i);

                for (int j = 0; j < 4; j++)
                        sum += piece_element<TYPE>(a, 4 * i + j) * bits_float(four.word[j]);
        }
        return sum;
}

/* The same of halves. Their piece has two of floats: the second half of each eight lanes loads the
 * second first, so that no two of them want the same banks of the first cache at once. */
template <uint32_t TYPE> DEVICE float multiply_halves_alone(const piece &a, const byte *b) {
        int first = (int) (threadIdx.x / 4 % 2);
        piece one = load_piece((const piece *) b + first);
        piece other = load_piece((const piece *) b + (first ^ 1));
        float sum = 0;

        for (int j = 0; j < 4; j++)
                sum += piece_element<TYPE>(a, j) *
                       bits_float(first ? other.word[j] : one.word[j]);
        for (int j = 0; j < 4; j++)
                sum += piece_element<TYPE>(a, 4 + j) *
                       bits_float(first ? one.word[j] : other.word[j]);
        return sum;
}

template <uint32_t TYPE, int COLUMNS> DEVICE float multiply(const piece &a, const byte *b) {
        if constexpr (COLUMNS == 1 && in_piece<TYPE>() == 8)
                return multiply_halves_alone<TYPE>(a, b);
        else
                return multiply_piece<TYPE>(a, b);
}

template <uint32_t TYPE, int COLUMNS>
DEVICE void vector_wide(const cuda_product_args &args, const few_columns &item, float *sums) {
        const byte *first = first_column(args, item);
        int64_t pieces = args.a.ne[0] / in_piece<TYPE>();

        for (int64_t base = threadIdx.x % WARP; base < pieces; base += AHEAD * WARP) {
                piece a[AHEAD];

                for (int j = 0; j < AHEAD; j++)
                        if (base + j * WARP < pieces)
                                a[j] = load_piece((const piece *) item.a + base + j * WARP);
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                        const byte *b = first + c * args.b.nb[1] + base * in_piece<TYPE>() * 4;

                        if (COLUMNS > 1 && c >= item.columns)
                                break;
                        for (int j = 0; j < AHEAD; j++)
                                if (base + j * WARP < pieces)
                                        sums[c] += multiply<TYPE, COLUMNS>(
                                                a[j], b + j * WARP * in_piece<TYPE>() * 4);
                }
        }
}

/* ---- Elements -------------------------------------------------------------------------------- */

template <uint32_t TYPE, int COLUMNS>
DEVICE void vector_narrow(const cuda_product_args &args, const few_columns &item, float *sums) {
        const byte *first = first_column(args, item);
        int b_bytes = args.b.type == HR_TYPE_F32 ? 4 : 2;

        for (int64_t i = threadIdx.x % WARP; i < args.a.ne[0]; i += WARP) {
                float w = load_float(item.a + i * block_bytes(TYPE), TYPE);

#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                        if (COLUMNS > 1 && c >= item.columns)
                                break;
                        sums[c] += w * load_float(first + c * args.b.nb[1] + i * b_bytes,
                                                  args.b.type);
                }
        }
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

DEVICE bool is_wide(const cuda_product_args &args) {
        uint64_t all = args.a.data | args.b.data;

        for (int i = 1; i < 4; i++)
                all |= (uint64_t) (args.a.nb[i] | args.b.nb[i]);
        return all % 16 == 0 && args.a.ne[0] % 8 == 0 && args.b.type == HR_TYPE_F32;
}

template <uint32_t TYPE, int COLUMNS>
DEVICE void vector_row(const cuda_product_args &args, const few_columns &item) {
        float sums[COLUMNS] = {};

        if (is_wide(args))
                vector_wide<TYPE, COLUMNS>(args, item, sums);
        else
                vector_narrow<TYPE, COLUMNS>(args, item, sums);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
                if (COLUMNS > 1 && c >= item.columns)
                        break;
                sums[c] = warp_sum(sums[c]);
                if (threadIdx.x % WARP == 0)
                        result_column(args, item.column + c)[item.row] = sums[c];
        }
}

template <int COLUMNS> DEVICE void vector_rows(const cuda_product_args &args) {
        few_columns item;

        for (int64_t i = blockIdx.x; i < few_count(args); i += gridDim.x) {
                if (!few_find(args, i, &item))
                        continue;
                if (args.a.type == HR_TYPE_F32)
                        vector_row<HR_TYPE_F32, COLUMNS>(args, item);
                else if (args.a.type == HR_TYPE_F16)
                        vector_row<HR_TYPE_F16, COLUMNS>(args, item);
                else
                        vector_row<HR_TYPE_BF16, COLUMNS>(args, item);
        }
}

KERNEL(vector_floats, struct cuda_product_args) {
        vector_rows<CUDA_STREAM_COLUMNS>(args);
}

/* Every item has one column. */
DENSE_KERNEL(vector_column, struct cuda_product_args) {
        vector_rows<1>(args);
}
