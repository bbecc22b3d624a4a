/*
 * Products with few columns, where time is what the weights need to come from memory.
 *
 * A warp takes a row. Its bytes come in chunks of CHUNK elements, each lane copying sixteen bytes at
 * a time to shared memory, the next chunk while it works on one; whatever the row's address, only
 * its ends are not whole pieces. There a lane takes units of 32 elements apart and multiplies them
 * with the columns, which round_columns has made bytes of (rounded as the
 * processor rounds them); up to STREAM_COLUMNS columns share the work of taking apart. MUL_MAT_ID takes each column
 * by itself.
 *
 * The types that models come in have a kernel of their own; one kernel has all the others.
 */
#include "backends/cuda/kernels/products.cuh"

#define CHUNK 2048
#define UNITS (CHUNK / 32)
#define ANY HR_TYPE_LIMIT

/* ---- Columns as bytes ------------------------------------------------------------------------ */

struct extreme {
        uint32_t magnitude; /* bits of the largest */
        uint32_t place;     /* twice the number of the first that has it, and its sign */
};

DEVICE extreme larger(extreme a, extreme b) {
        return b.magnitude > a.magnitude || (b.magnitude == a.magnitude && b.place < a.place) ? b
                                                                                             : a;
}

/* The extreme of groups of `lanes` lanes. */
DEVICE extreme extreme_of_lanes(extreme e, int lanes) {
        for (int distance = 1; distance < lanes; distance *= 2) {
                extreme other;

                other.magnitude = float_bits(
                        __shfl_xor_sync(ALL_LANES, bits_float(e.magnitude), distance));
                other.place = float_bits(__shfl_xor_sync(ALL_LANES, bits_float(e.place), distance));
                e = larger(e, other);
        }
        return e;
}

/* Eight values to bytes; what they are to be multiplied by comes from the group of lanes. */
DEVICE float round_lane(const float *x, bool is_large, int lanes, piece *ret_bytes) {
        extreme e = { 0, 0xffffffffu };
        float most, factor, d;

        for (int j = 0; j < 8; j++) {
                extreme one = { float_bits(x[j]) & 0x7fffffffu,
                                2 * (8 * (threadIdx.x % WARP) + j) + (float_bits(x[j]) >> 31) };

                e = larger(e, one);
        }
        e = extreme_of_lanes(e, lanes);
        most = bits_float(e.magnitude);
        if (is_large) {
                factor = most != 0 ? -127.0f / (e.place & 1 ? -most : most) : 0;
                d = most != 0 ? 1.0f / factor : 0;
        } else {
                factor = most != 0 ? 127.0f / most : 0;
                d = half_to_float(float_to_half(most / 127.0f));
        }
        for (int i = 0; i < 2; i++) {
                ret_bytes->word[i] = 0;
                for (int j = 0; j < 4; j++)
                        ret_bytes->word[i] |=
                                (float_bits(__fadd_rn(__fmul_rn(x[4 * i + j], factor),
                                                      12582912.0f)) &
                                 255)
                                << 8 * j;
        }
        return d;
}

/* A warp takes 256 elements of a column. Q8_K has one scale for them, Q8_0 one for 32. */
KERNEL(round_columns, struct cuda_round_args) {
        int64_t k = args.in.ne[0], per_row = (k + 255) / 256;
        int64_t items = per_row * row_count(args.in);
        int lane = (int) (threadIdx.x % WARP);

        for (int64_t item = (int64_t) blockIdx.x * WARPS + threadIdx.x / WARP; item < items;
             item += (int64_t) gridDim.x * WARPS) {
                int64_t row = quotient(item, per_row), i = (item - row * per_row) * 256 + 8 * lane;
                const float *in = (const float *) row_at(args.in, index_of_row(args.in, row));
                struct cuda_activation *to =
                        (struct cuda_activation *) (uintptr_t) args.scales + (row * k + i) / 32;
                float x[8], d;
                piece bytes;
                int sum = 0, other;

                for (int j = 0; j < 8; j++)
                        x[j] = i < k ? in[i + j] : 0.0f;
                d = round_lane(x, args.is_large, args.is_large ? 32 : 4, &bytes);
                for (int j = 0; j < 2; j++)
                        sum = __dp4a((int) bytes.word[j], 0x01010101, sum);
                other = (int) float_bits(__shfl_xor_sync(ALL_LANES, bits_float((uint32_t) sum), 1));
                if (i >= k)
                        continue;
                for (int j = 0; j < 2; j++)
                        ((uint32_t *) (uintptr_t) args.bytes)[(row * k + i) / 4 + j] = bytes.word[j];
                if (lane % 4 == 0)
                        to->scale = d;
                if (lane % 2 == 0)
                        to->sum[lane / 2 % 2] = (int16_t) (sum + other);
        }
}

/* ---- Weights --------------------------------------------------------------------------------- */

template <uint32_t TYPE> DEVICE constexpr int chunk_bytes(void) {
        return TYPE == ANY ? CHUNK / 32 * 34 : CHUNK / block_size(TYPE) * block_bytes(TYPE);
}

/* Begins to bring bytes; they come to lie at to + from % 16. */
DEVICE void stage(piece *to, const byte *from, int bytes) {
        int shift = (int) ((uintptr_t) from & 15);

        for (int i = 16 * (int) (threadIdx.x % WARP); i < shift + bytes; i += 16 * WARP) {
                if (i >= shift && i + 16 <= shift + bytes) {
                        copy_begin(to + i / 16, from + (i - shift));
                        continue;
                }
                for (int j = i < shift ? shift : i; j < i + 16 && j < shift + bytes; j++)
                        ((byte *) to)[j] = from[j - shift];
        }
        copy_group();
}

template <uint32_t TYPE>
DEVICE void take_apart(const cuda_product_args &args, const byte *chunk, int i, unit *u) {
        if (TYPE == ANY)
                unpack_inline(args.a.type, chunk, i, u);
        else
                unpack<TYPE>(chunk + i / (block_size(TYPE) / 32) * block_bytes(TYPE),
                             i % (block_size(TYPE) / 32), u);
}

DEVICE float multiply_unit(const unit *u, const piece *bytes, struct cuda_activation with) {
        float sum = 0;

        for (int h = 0; h < 2; h++) {
                int dot = 0;

                for (int j = 0; j < 4; j++)
                        dot = __dp4a((int) u->q[4 * h + j], (int) bytes[h].word[j], dot);
                sum += u->scale[h] * (float) dot + u->offset[h] * (float) with.sum[h];
        }
        return sum * with.scale;
}

/* Units of a chunk, from element `base` of the row on. */
template <uint32_t TYPE>
DEVICE void stream_chunk(const cuda_product_args &args, const few_columns &item, const byte *chunk,
                         int64_t base, int units, float *sums) {
        int64_t first = column_of_b(args, item.column) * args.a.ne[0] + base;

        for (int i = (int) (threadIdx.x % WARP); i < units; i += WARP) {
                int64_t at = first + 32 * i;
                unit u;

                take_apart<TYPE>(args, chunk, i, &u);
#pragma unroll
                for (int c = 0; c < CUDA_STREAM_COLUMNS; c++) {
                        const piece *bytes = (const piece *) (uintptr_t) (args.bytes + at);
                        struct cuda_activation with;
                        piece both[2];

                        if (c >= item.columns)
                                break;
                        with = ((const struct cuda_activation *) (uintptr_t) args.scales)[at / 32];
                        both[0] = bytes[0];
                        both[1] = bytes[1];
                        sums[c] += multiply_unit(&u, both, with);
                        at += args.a.ne[0];
                }
        }
}

template <uint32_t TYPE>
DEVICE void stream_row(const cuda_product_args &args, const few_columns &item,
                       piece (*stages)[chunk_bytes<TYPE>() / 16 + 1]) {
        int64_t k = args.a.ne[0], size = block_size(args.a.type), bytes = block_bytes(args.a.type);
        int shift = 0, next_shift = 0, turn = 0;
        float sums[CUDA_STREAM_COLUMNS] = {};

        stage(stages[0], item.a, (int) ((k < CHUNK ? k : CHUNK) / size * bytes));
        shift = (int) ((uintptr_t) item.a & 15);
        for (int64_t base = 0; base < k; base += CHUNK, turn ^= 1) {
                const byte *next = item.a + (base + CHUNK) / size * bytes;
                int64_t left = k - base - CHUNK;

                if (left > 0) {
                        stage(stages[turn ^ 1], next,
                              (int) ((left < CHUNK ? left : CHUNK) / size * bytes));
                        next_shift = (int) ((uintptr_t) next & 15);
                        copy_wait<1>();
                } else {
                        copy_wait<0>();
                }
                __syncwarp();
                stream_chunk<TYPE>(args, item, (const byte *) stages[turn] + shift, base,
                                   left < 0 ? (int) (k - base) / 32 : UNITS, sums);
                __syncwarp();
                shift = next_shift;
        }
#pragma unroll
        for (int c = 0; c < CUDA_STREAM_COLUMNS; c++) {
                if (c >= item.columns)
                        break;
                sums[c] = warp_sum(sums[c]);
                if (threadIdx.x % WARP == 0)
                        result_column(args, item.column + c)[item.row] = sums[c];
        }
}

template <uint32_t TYPE> DEVICE void few_columnss(const cuda_product_args &args) {
        SHARED piece stages[WARPS][2][chunk_bytes<TYPE>() / 16 + 1];
        few_columns item;

        for (int64_t i = blockIdx.x; i < few_count(args); i += gridDim.x)
                if (few_find(args, i, &item))
                        stream_row<TYPE>(args, item, stages[threadIdx.x / WARP]);
}

#define X(name)                                                                                    \
        DENSE_KERNEL(stream_##name, struct cuda_product_args) {                                          \
                few_columnss<HR_TYPE_##name>(args);                                                \
        }
CUDA_STREAM_TYPES(X)
#undef X

KERNEL(stream_any, struct cuda_product_args) {
        few_columnss<ANY>(args);
}
