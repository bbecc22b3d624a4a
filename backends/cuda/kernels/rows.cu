/* Copies in logical order, rows picked by index, and encoding into blocks. */
#include "backends/cuda/kernels/common.cuh"

/* ---- Encoding -------------------------------------------------------------------------------- */

/* (int) value within [0, limit]; what is no number gives 0. */
DEVICE int to_level(float value, float limit) {
        return value > 0 ? (int) (value < limit ? value : limit) : 0;
}

DEVICE void encode_q8_0(byte *block, const float *x) {
        uint32_t largest = 0;
        float most, inverse;

        for (int j = 0; j < 32; j++) {
                uint32_t bits = float_bits(x[j]) & 0x7fffffffu;

                largest = bits > largest ? bits : largest;
        }
        most = bits_float(largest);
        inverse = most != 0 ? 127.0f / most : 0;
        *(uint16_t *) block = float_to_half(most / 127.0f);
        for (int j = 0; j < 32; j++)
                block[2 + j] = (byte) (float_bits(x[j] * inverse + 12582912.0f) & 0xff);
}

DEVICE void encode_q4_0(byte *block, const float *x) {
        float extreme = 0, largest = 0, d, inverse;

        for (int j = 0; j < 32; j++)
                if (largest < fabsf(x[j])) {
                        largest = fabsf(x[j]);
                        extreme = x[j];
                }
        d = extreme / -8;
        inverse = d != 0 ? 1.0f / d : 0;
        *(uint16_t *) block = float_to_half(d);
        for (int j = 0; j < 16; j++)
                block[2 + j] = (byte) (to_level(x[j] * inverse + 8.5f, 15) |
                                       to_level(x[16 + j] * inverse + 8.5f, 15) << 4);
}

DEVICE void encode_q4_1(byte *block, const float *x) {
        float low = x[0], high = x[0], d, inverse;

        for (int j = 1; j < 32; j++) {
                low = x[j] < low ? x[j] : low;
                high = x[j] > high ? x[j] : high;
        }
        d = (high - low) / 15;
        inverse = d != 0 ? 1.0f / d : 0;
        *(uint16_t *) block = float_to_half(d);
        *(uint16_t *) (block + 2) = float_to_half(low);
        for (int j = 0; j < 16; j++)
                block[4 + j] = (byte) (to_level((x[j] - low) * inverse + 0.5f, 15) |
                                       to_level((x[16 + j] - low) * inverse + 0.5f, 15) << 4);
}

/* Levels of five bits: fifth bits, then nibbles. */
DEVICE void write_fives(byte *fifths, byte *nibbles, const int *levels) {
        uint32_t high = 0;

        for (int j = 0; j < 32; j++)
                high |= (uint32_t) (levels[j] >> 4) << j;
        *(uint16_t *) fifths = (uint16_t) high;
        *(uint16_t *) (fifths + 2) = (uint16_t) (high >> 16);
        for (int j = 0; j < 16; j++)
                nibbles[j] = (byte) ((levels[j] & 15) | (levels[16 + j] & 15) << 4);
}

DEVICE void encode_q5_0(byte *block, const float *x) {
        float extreme = 0, largest = 0, d, inverse;
        int levels[32];

        for (int j = 0; j < 32; j++)
                if (largest < fabsf(x[j])) {
                        largest = fabsf(x[j]);
                        extreme = x[j];
                }
        d = extreme / -16;
        inverse = d != 0 ? 1.0f / d : 0;
        *(uint16_t *) block = float_to_half(d);
        for (int j = 0; j < 32; j++)
                levels[j] = to_level(x[j] * inverse + 16.5f, 31);
        write_fives(block + 2, block + 6, levels);
}

DEVICE void encode_q5_1(byte *block, const float *x) {
        float low = x[0], high = x[0], d, inverse;
        int levels[32];

        for (int j = 1; j < 32; j++) {
                low = x[j] < low ? x[j] : low;
                high = x[j] > high ? x[j] : high;
        }
        d = (high - low) / 31;
        inverse = d != 0 ? 1.0f / d : 0;
        *(uint16_t *) block = float_to_half(d);
        *(uint16_t *) (block + 2) = float_to_half(low);
        for (int j = 0; j < 32; j++)
                levels[j] = to_level((x[j] - low) * inverse + 0.5f, 31);
        write_fives(block + 4, block + 8, levels);
}

/* The types with blocks of 32. */
DEVICE void encode_block(byte *block, uint32_t type, const float *x) {
        switch (type) {
        case HR_TYPE_Q8_0: encode_q8_0(block, x); break;
        case HR_TYPE_Q4_0: encode_q4_0(block, x); break;
        case HR_TYPE_Q4_1: encode_q4_1(block, x); break;
        case HR_TYPE_Q5_0: encode_q5_0(block, x); break;
        default: encode_q5_1(block, x); break;
        }
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Where logical element i lies; blocks are never torn. */
DEVICE byte *element_at(const cuda_tensor &t, int64_t i, int *ret_in_block) {
        row_index index = index_of_row(t, i / t.ne[0]);
        int size = block_size(t.type);
        int64_t i0 = i % t.ne[0];

        *ret_in_block = (int) (i0 % size);
        return row_at(t, index) + i0 / size * t.nb[0];
}

/* Towards zero; what does not fit gives the nearest end, what is no number 0. */
DEVICE int32_t to_integer(float value) {
        if (!(value >= -2147483648.0f))
                return value < 0 ? INT32_MIN : 0;
        return value < 2147483648.0f ? (int32_t) value : INT32_MAX;
}

DEVICE float read_element(const cuda_tensor &t, int64_t i) {
        int in_block;
        const byte *at = element_at(t, i, &in_block);

        if (block_size(t.type) > 1)
                return block_element(at, t.type, in_block);
        if (t.type == HR_TYPE_I32)
                return (float) *(const int32_t *) at;
        return load_float(at, t.type);
}

DEVICE void move_unit(const cuda_copy_args &args, int64_t i) {
        int in_block;
        byte *to = element_at(args.out, i, &in_block);
        const byte *from = element_at(args.in, i, &in_block);

        switch (args.out.type) {
        case HR_TYPE_F32:
        case HR_TYPE_I32:
                *(uint32_t *) to = *(const uint32_t *) from;
                break;
        case HR_TYPE_F16:
        case HR_TYPE_BF16:
                *(uint16_t *) to = *(const uint16_t *) from;
                break;
        default:
                for (int j = 0; j < block_bytes(args.out.type); j += 2)
                        *(uint16_t *) (to + j) = *(const uint16_t *) (from + j);
                break;
        }
}

DEVICE void convert_unit(const cuda_copy_args &args, int64_t i) {
        int in_block;
        float x[32];
        byte *to;

        if (block_size(args.out.type) > 1) {
                for (uint32_t k = 0; k < args.unit; k += 32) {
                        for (int j = 0; j < 32; j++)
                                x[j] = read_element(args.in, i + k + j);
                        encode_block(element_at(args.out, i + k, &in_block), args.out.type, x);
                }
                return;
        }
        /* A block of the source goes to as many plain elements. */
        for (uint32_t j = 0; j < args.unit; j++) {
                float value = read_element(args.in, i + j);

                to = element_at(args.out, i + j, &in_block);
                if (args.out.type == HR_TYPE_I32)
                        *(int32_t *) to = to_integer(value);
                else
                        store_float(to, args.out.type, value);
        }
}

FLAT_KERNEL(copy_elements, struct cuda_copy_args) {
        int64_t step = (int64_t) gridDim.x * CUDA_THREADS;

        for (int64_t u = (int64_t) blockIdx.x * CUDA_THREADS + threadIdx.x; u < args.units;
             u += step) {
                if (args.in.type == args.out.type)
                        move_unit(args, u * args.unit);
                else
                        convert_unit(args, u * args.unit);
        }
}

/* ---- Rows ------------------------------------------------------------------------------------ */

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

FLAT_KERNEL(get_rows, struct cuda_rows_args) {
        int64_t rows = args.ids.ne[0] * args.ids.ne[1] * args.ids.ne[2], id;

        for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
                int64_t i0 = row % args.ids.ne[0], i1 = row / args.ids.ne[0] % args.ids.ne[1];
                int64_t i2 = row / args.ids.ne[0] / args.ids.ne[1];
                byte *out = row_of(args.out, i0, i1, i2);
                const byte *in;

                if (!read_id(args, i0, i1, i2, args.in.ne[1], &id))
                        continue;
                in = row_of(args.in, id, i1, i2);
                for (int64_t i = threadIdx.x; i < args.in.ne[0]; i += CUDA_THREADS) {
                        if (args.in.type == HR_TYPE_I32)
                                *(int32_t *) (out + 4 * i) = *(const int32_t *) (in + 4 * i);
                        else
                                *(float *) (out + 4 * i) = row_element(in, args.in.type, i);
                }
        }
}

DEVICE void set_row(const cuda_rows_args &args, byte *out, const byte *in) {
        if (block_size(args.out.type) == 1) {
                for (int64_t i = threadIdx.x; i < args.in.ne[0]; i += CUDA_THREADS)
                        store_float(out + i * args.out.nb[0], args.out.type,
                                    load_float(in + i * args.in.nb[0], args.in.type));
                return;
        }
        for (int64_t b = threadIdx.x; b < args.in.ne[0] / 32; b += CUDA_THREADS) {
                float x[32];

                for (int j = 0; j < 32; j++)
                        x[j] = load_float(in + (32 * b + j) * args.in.nb[0], args.in.type);
                encode_block(out + b * args.out.nb[0], args.out.type, x);
        }
}

/* A row named twice ends with the later value: a block looks whether a later row has the same id
 * and leaves it to that one. */
FLAT_KERNEL(set_rows, struct cuda_rows_args) {
        int64_t rows = row_count(args.in), id, other;

        for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
                row_index at = index_of_row(args.in, row);
                int64_t j1 = at.i2 % args.ids.ne[1], j2 = at.i3 % args.ids.ne[2];
                bool is_last = true;

                if (!read_id(args, at.i1, j1, j2, args.out.ne[1], &id))
                        continue;
                for (int64_t i = at.i1 + 1; i < args.in.ne[1] && is_last; i++)
                        is_last = !read_id(args, i, j1, j2, args.out.ne[1], &other) || other != id;
                if (is_last)
                        set_row(args, row_of(args.out, id, at.i2, at.i3), row_at(args.in, at));
        }
}

/* a[e, u, t] + b[e, ids[u, t]] */
FLAT_KERNEL(add_id_rows, struct cuda_add_id_args) {
        for (int64_t row = blockIdx.x; row < row_count(args.out); row += gridDim.x) {
                row_index at = index_of_row(args.out, row);
                int32_t id = *(const int32_t *) (row_of(args.ids, at.i2, 0, 0) +
                                                 at.i1 * args.ids.nb[0]);
                byte *out = row_at(args.out, at);
                const byte *a = row_at(args.a, at), *b;

                if (id < 0 || id >= args.b.ne[1]) {
                        if (threadIdx.x == 0)
                                fault_at(args.fault, args.step);
                        continue;
                }
                b = row_of(args.b, id, 0, 0);
                for (int64_t i = threadIdx.x; i < args.out.ne[0]; i += CUDA_THREADS)
                        store_float(out + i * args.out.nb[0], args.out.type,
                                    load_float(a + i * args.a.nb[0], args.a.type) +
                                            load_float(b + i * args.b.nb[0], args.b.type));
        }
}
