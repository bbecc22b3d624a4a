/*
 * Products with few columns, where time is what the weights need to come from memory.
 *
 * A warp takes a row. Its bytes come in chunks of CHUNK elements, each lane copying sixteen bytes
 * at a time to shared memory, some chunks ahead of the one it works on; whatever the row's address,
 * only its ends are not whole pieces. There a lane takes units of 32 elements apart and multiplies
 * them with the columns, which round_columns has made bytes of (rounded as the processor rounds
 * them); up to STREAM_COLUMNS columns share the work of taking apart. MUL_MAT_ID takes each column
 * by itself.
 *
 * A GPU's memory is faster than shared memory read two bytes at a time, so blocks are read by whole
 * words, or by sixteen bytes where they begin at such places; what is beside a block's bytes in its
 * first and last words is there, too, be it 0.
 *
 * The types that models come in have a kernel of their own; one kernel has all the others.
 */
#include "backends/cuda/kernels/pairs.cuh"

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
                int64_t at = row * (column_bytes(args.is_large, k) / 16) +
                             piece_of_unit(args.is_large, i / 32, lane / 2 % 2);
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
                        ((uint32_t *) (uintptr_t) args.bytes)[4 * at + 2 * (lane % 2) + j] =
                                bytes.word[j];
                if (lane % 4 == 0)
                        to->scale = d;
                if (lane % 2 == 0)
                        to->sum[lane / 2 % 2] = (int16_t) (sum + other);
        }
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* Shared memory that a block has without asking, in pieces for each of its warps. */
#define PIECES (3072 / WARPS)

/* Elements of a chunk: 4096 where two of them find room, else 2048. */
template <uint32_t TYPE> DEVICE constexpr int chunk_elements(void) {
        return TYPE != ANY && 2 * (4096 / block_size(TYPE) * block_bytes(TYPE) / 16 + 2) <= PIECES
                       ? 4096
                       : 2048;
}

/* A chunk may begin anywhere in the first piece, and is read beyond its end by a word. */
template <uint32_t TYPE> DEVICE constexpr int chunk_pieces(void) {
        return (TYPE == ANY ? 2048 / 32 * 34
                            : chunk_elements<TYPE>() / block_size(TYPE) * block_bytes(TYPE)) /
                       16 +
               2;
}

template <uint32_t TYPE> DEVICE constexpr int stage_count(void) {
        return PIECES / chunk_pieces<TYPE>();
}

/* Of a warp: what lies in one is worked on while the others are filled. */
template <uint32_t TYPE> struct warp_stages {
        piece pieces[stage_count<TYPE>()][chunk_pieces<TYPE>()];
};

/* Pieces I + lane, I + 32 + lane ... of WHOLE. */
template <int WHOLE, int I> DEVICE void stage_whole(piece *to, const byte *from, int lane) {
        if constexpr (I < WHOLE) {
                if (I + WARP <= WHOLE || lane < WHOLE % WARP)
                        copy_begin_at<16 * I>(to, from);
                stage_whole<WHOLE, I + WARP>(to, from, lane);
        }
}

/* Begins to bring bytes; they come to lie at to + from % 16, with zeros around them. Most often
 * they are WHOLE pieces. */
template <int WHOLE> DEVICE void stage(piece *to, const byte *from, int bytes) {
        int lane = (int) (threadIdx.x % WARP);
        int shift = (int) ((uintptr_t) from & 15), end = shift + bytes;

        if (shift == 0 && bytes == 16 * WHOLE) {
                stage_whole<WHOLE, 0>(to + lane, from + 16 * lane, lane);
                if (lane == 0)
                        to[WHOLE] = piece{};
                return;
        }
        for (int i = 16 * lane; i < end + 4; i += 16 * WARP) {
                if (i >= shift && i + 16 <= end) {
                        copy_begin(to + i / 16, from + (i - shift));
                        continue;
                }
                to[i / 16] = piece{};
                for (int j = i < shift ? shift : i; j < i + 16 && j < end; j++)
                        ((byte *) to)[j] = from[j - shift];
        }
}

/* Has the type one scale for 16 elements, and offsets? */
DEVICE constexpr bool has_halves(uint32_t type) {
        return type == ANY || type == HR_TYPE_Q2_K || type == HR_TYPE_Q3_K || type == HR_TYPE_Q6_K;
}

DEVICE constexpr bool has_offsets(uint32_t type) {
        return type == ANY || type == HR_TYPE_Q4_1 || type == HR_TYPE_Q5_1 ||
               type == HR_TYPE_Q2_K || type == HR_TYPE_Q4_K || type == HR_TYPE_Q5_K;
}

template <uint32_t TYPE, int READ>
DEVICE void take_apart(uint32_t type, const byte *chunk, int i, unit *u) {
        if (TYPE == ANY)
                unpack_inline(type, chunk, i, u);
        else
                unpack<TYPE, READ>(chunk + i / (block_size(TYPE) / 32) * block_bytes(TYPE),
                                   i % (block_size(TYPE) / 32), u);
}

template <uint32_t TYPE, int READ>
DEVICE float multiply_unit(const unit *u, const piece *bytes, struct cuda_activation with) {
        int dots[2] = { 0, 0 };
        float sum;

        for (int h = 0; h < 2; h++) {
                for (int j = 0; j < 4; j++)
                        dots[h] = __dp4a((int) u->q[4 * h + j], (int) bytes[h].word[j], dots[h]);
                if (READ != BY_HALVES && bias_of(TYPE))
                        dots[h] -= bias_of(TYPE) * with.sum[h];
        }
        if (has_halves(TYPE))
                sum = u->scale[0] * (float) dots[0] + u->scale[1] * (float) dots[1];
        else
                sum = u->scale[0] * (float) (dots[0] + dots[1]);
        if (has_offsets(TYPE) && has_halves(TYPE))
                sum += u->offset[0] * (float) with.sum[0] + u->offset[1] * (float) with.sum[1];
        else if (has_offsets(TYPE))
                sum += u->offset[0] * (float) (with.sum[0] + with.sum[1]);
        return sum * with.scale;
}

/* What a warp works on: a row of the matrix, and the first column's bytes, from where it is. */
struct stream_item {
        const byte *row;
        int64_t units;                    /* that are left */
        int64_t bytes_apart, units_apart; /* from column to column; pieces, units */
        const piece *bytes;
        const struct cuda_activation *with;
        uint32_t type;
        int columns;
};

template <uint32_t TYPE>
DEVICE stream_item stream_item_of(const cuda_product_args &args, const few_columns &item) {
        int64_t column = column_of_b(args, item.column), k = args.a.ne[0];
        stream_item s;

        s.row = item.a;
        s.units = s.units_apart = k / 32;
        s.type = TYPE == ANY ? args.a.type : TYPE;
        s.bytes_apart = column_bytes(block_size(s.type) == 256, k) / 16;
        s.bytes = (const piece *) (uintptr_t) args.bytes + column * s.bytes_apart;
        s.with = (const struct cuda_activation *) (uintptr_t) args.scales + column * s.units;
        s.columns = item.columns;
        return s;
}

/* Unit i of a chunk. Its halves lie at `bytes`. */
template <uint32_t TYPE, int READ, int COLUMNS>
DEVICE void stream_unit(const stream_item &item, const byte *chunk, int i, const piece *bytes,
                        const struct cuda_activation *with, float *sums) {
        unit u;

        take_apart<TYPE, READ>(item.type, chunk, i, &u);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
                const piece *own = bytes + c * item.bytes_apart;
                piece both[2];

                if (COLUMNS > 1 && c >= item.columns)
                        break;
                both[0] = load_piece(own);
                both[1] = load_piece(own + WARP);
                sums[c] += multiply_unit<TYPE, READ>(&u, both,
                                                     load_activation(with + c * item.units_apart));
        }
}

/* Units of a chunk, whose part of the first column is item.bytes and item.with. Of blocks of 256 a
 * lane takes two at once. */
template <uint32_t TYPE, int READ, int COLUMNS>
DEVICE void stream_chunk(const stream_item &item, const byte *chunk, int units, float *sums) {
        const int each = block_size(item.type) == 256 ? 2 : 1;
        int lane = (int) (threadIdx.x % WARP);
        const piece *bytes = item.bytes;
        const struct cuda_activation *with = item.with;
        const byte *block = chunk + lane / 4 * block_bytes(TYPE);

        for (int group = 0; group < units - each * lane; group += each * WARP) {
                if (COLUMNS == 1 && has_pairs(TYPE)) {
                        pair_column column;

                        pair_load<TYPE>(bytes, with, &column);
                        sums[0] += multiply_pair<TYPE, READ>(block, lane % 4, column);
                } else {
                        for (int i = 0; i < each; i++)
                                stream_unit<TYPE, READ, COLUMNS>(
                                        item, chunk, group + each * lane + i,
                                        bytes + 2 * i * WARP + (lane ^ i), with + each * lane + i,
                                        sums);
                }
                bytes += 2 * each * WARP;
                with += each * WARP;
                block += 8 * block_bytes(TYPE);
        }
}

DEVICE int bytes_of_units(uint32_t type, int units) {
        return units / (block_size(type) / 32) * block_bytes(type);
}

/* Chunk n of the row, which begins at `from` and has `left` units from there on; perhaps none. */
template <uint32_t TYPE>
DEVICE void stage_chunk(uint32_t type, const byte *from, int64_t left, int n,
                        warp_stages<TYPE> *stages) {
        constexpr int UNITS = chunk_elements<TYPE>() / 32;

        if (left > 0)
                stage<chunk_pieces<TYPE>() - 2>(
                        stages->pieces[n % stage_count<TYPE>()], from,
                        bytes_of_units(type, (int) (left < UNITS ? left : UNITS)));
        copy_group();
}

template <uint32_t TYPE, int READ, int COLUMNS>
DEVICE void stream_row(const cuda_product_args &args, const few_columns &few,
                       warp_stages<TYPE> *stages) {
        constexpr int AHEAD = stage_count<TYPE>() - 1, UNITS = chunk_elements<TYPE>() / 32;
        stream_item item = stream_item_of<TYPE>(args, few);
        int chunk_bytes = bytes_of_units(item.type, UNITS);
        float sums[COLUMNS] = {};

        for (int n = 0; n < AHEAD; n++)
                stage_chunk<TYPE>(item.type, item.row + n * chunk_bytes, item.units - n * UNITS, n,
                                  stages);
        for (int n = 0; item.units > 0; n++) {
                stage_chunk<TYPE>(item.type, item.row + AHEAD * chunk_bytes,
                                  item.units - AHEAD * UNITS, n + AHEAD, stages);
                copy_wait<AHEAD>();
                __syncwarp();
                stream_chunk<TYPE, READ, COLUMNS>(
                        item, (const byte *) stages->pieces[n % (AHEAD + 1)] +
                                      ((uintptr_t) item.row & 15),
                        (int) (item.units < UNITS ? item.units : UNITS), sums);
                __syncwarp();
                item.row += chunk_bytes;
                item.bytes += 2 * UNITS;
                item.with += UNITS;
                item.units -= UNITS;
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
                if (COLUMNS > 1 && c >= few.columns)
                        break;
                sums[c] = warp_sum(sums[c]);
                if (threadIdx.x % WARP == 0)
                        result_column(args, few.column + c)[few.row] = sums[c];
        }
}

/* One column, the most frequent, needs far fewer registers. */
template <uint32_t TYPE, int READ>
DEVICE void stream_columns(const cuda_product_args &args, const few_columns &item,
                           warp_stages<TYPE> *stages) {
        if (item.columns == 1)
                stream_row<TYPE, READ, 1>(args, item, stages);
        else
                stream_row<TYPE, READ, CUDA_STREAM_COLUMNS>(args, item, stages);
}

/* Do all rows begin at multiples of sixteen? */
DEVICE bool has_pieces(const cuda_product_args &args) {
        return (args.a.data | (uint64_t) (args.a.nb[1] | args.a.nb[2] | args.a.nb[3])) % 16 == 0;
}

template <uint32_t TYPE>
DEVICE void stream_rows(const cuda_product_args &args, warp_stages<TYPE> *all_stages) {
        constexpr bool HAS_WORDS = TYPE != ANY && block_bytes(TYPE) % 4 == 0;
        warp_stages<TYPE> *stages = &all_stages[threadIdx.x / WARP];
        few_columns item;

        for (int64_t i = blockIdx.x; i < few_count(args); i += gridDim.x) {
                if (!few_find(args, i, &item))
                        continue;
                if (TYPE == ANY)
                        stream_columns<TYPE, BY_HALVES>(args, item, stages);
                else if (HAS_WORDS && has_pieces(args))
                        stream_columns<TYPE, BY_PIECES>(args, item, stages);
                else
                        stream_columns<TYPE, BY_WORDS>(args, item, stages);
        }
}

#define X(name)                                                                                    \
        DENSE_KERNEL(stream_##name, struct cuda_product_args) {                                    \
                SHARED warp_stages<HR_TYPE_##name> stages[WARPS];                                  \
                                                                                                   \
                stream_rows<HR_TYPE_##name>(args, stages);                                         \
        }
CUDA_STREAM_TYPES(X)
#undef X

KERNEL(stream_any, struct cuda_product_args) {
        SHARED warp_stages<ANY> stages[WARPS];

        stream_rows<ANY>(args, stages);
}
