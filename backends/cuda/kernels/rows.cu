/* Copies in logical order, rows picked by index, and encoding into blocks. */
#include "backends/cuda/kernels/rows.cuh"

/* ---- Copies ---------------------------------------------------------------------------------- */

DEVICE void move_bytes(byte *to, const byte *from, int bytes) {
        switch (bytes) {
        case 8: *(uint64_t *) to = *(const uint64_t *) from; break;
        case 4: *(uint32_t *) to = *(const uint32_t *) from; break;
        case 2: *(uint16_t *) to = *(const uint16_t *) from; break;
        default:
                for (int i = 0; i < bytes; i++)
                        to[i] = from[i];
                break;
        }
}

/* A plain element to a plain one, the most frequent. */
DEVICE void convert_plain(const cuda_copy_args &args, int64_t i) {
        int64_t i0;
        float value = read_plain(element_at(args.in, i, &i0), args.in.type);

        store_plain(element_at(args.out, i, &i0), args.out.type, value);
}

FLAT_KERNEL(copy_elements, struct cuda_copy_args) {
        int64_t step = (int64_t) gridDim.x * CUDA_THREADS, i0;

        for (int64_t u = (int64_t) blockIdx.x * CUDA_THREADS + threadIdx.x; u < args.units;
             u += step) {
                int64_t i = u * args.unit;

                if (args.in.type == args.out.type)
                        move_bytes(element_at(args.out, i, &i0), element_at(args.in, i, &i0),
                                   block_bytes(args.out.type));
                else
                        convert_plain(args, i);
        }
}

/* From blocks to plain elements; a thread takes 32. */
FLAT_KERNEL(expand_blocks, struct cuda_copy_args) {
        int64_t step = (int64_t) gridDim.x * CUDA_THREADS, i0;

        for (int64_t u = (int64_t) blockIdx.x * CUDA_THREADS + threadIdx.x; u < args.units;
             u += step) {
                float x[32];

                read_values(args.in, u * 32, 32, x);
                for (int j = 0; j < 32; j++)
                        store_plain(element_at(args.out, u * 32 + j, &i0), args.out.type, x[j]);
        }
}

/* ---- Rows ------------------------------------------------------------------------------------ */

DEVICE void get_plain(const cuda_rows_args &args, const byte *in, byte *out) {
        int bytes = block_bytes(args.in.type);

        for (int64_t i = threadIdx.x; i < args.in.ne[0]; i += CUDA_THREADS)
                if (args.in.type == HR_TYPE_I32)
                        *(int32_t *) (out + 4 * i) = *(const int32_t *) (in + 4 * i);
                else
                        *(float *) (out + 4 * i) = load_float(in + i * bytes, args.in.type);
}

DEVICE void get_blocks(const cuda_rows_args &args, const byte *in, float *out) {
        for (int64_t i = threadIdx.x; i < args.in.ne[0] / 32; i += CUDA_THREADS) {
                unit u;

                unpack_any(args.in.type, in, i, &u);
                for (int j = 0; j < 32; j++)
                        out[32 * i + j] = unit_value(&u, j);
        }
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
                if (block_size(args.in.type) > 1)
                        get_blocks(args, in, (float *) out);
                else
                        get_plain(args, in, out);
        }
}

KERNEL(set_rows, struct cuda_rows_args) {
        SHARED int found;
        int64_t rows = row_count(args.in);

        for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
                row_index at = index_of_row(args.in, row);
                const byte *in = row_at(args.in, at);
                byte *out = target_row(args, at, &found);

                for (int64_t i = threadIdx.x; out && i < args.in.ne[0]; i += CUDA_THREADS)
                        store_float(out + i * args.out.nb[0], args.out.type,
                                    load_float(in + i * args.in.nb[0], args.in.type));
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

/* Rows of f32 to rows of halves without gaps. */
FLAT_KERNEL(narrow_rows, struct cuda_narrow_args) {
        for (int64_t row = blockIdx.x; row < row_count(args.in); row += gridDim.x) {
                const byte *in = row_at(args.in, index_of_row(args.in, row));
                uint16_t *out = (uint16_t *) (uintptr_t) args.halves + row * args.in.ne[0];

                for (int64_t i = threadIdx.x; i < args.in.ne[0]; i += CUDA_THREADS) {
                        float x = *(const float *) (in + 4 * i);

                        out[i] = args.type == HR_TYPE_BF16 ? float_to_bf16(x) : float_to_half(x);
                }
        }
}

/* Blocks to bf16: a thread takes 32 elements apart and writes them sixteen bytes at a time. */
FLAT_KERNEL(expand_rows, struct cuda_expand_args) {
        struct alignas(16) part {
                uint32_t pairs[4];
        };
        int64_t per_row = args.in.ne[0] / 32, step = (int64_t) gridDim.x * CUDA_THREADS;

        for (int64_t i = (int64_t) blockIdx.x * CUDA_THREADS + threadIdx.x; i < args.rows * per_row;
             i += step) {
                int64_t row = quotient(i, per_row);
                part *out = (part *) (uintptr_t) args.halves + 4 * i;
                unit u;

                unpack_inline(args.in.type, row_of(args.in, args.first + row, 0, 0),
                           i - row * per_row, &u);
                for (int p = 0; p < 4; p++) {
                        part halves;

                        for (int j = 0; j < 4; j++)
                                halves.pairs[j] =
                                        float_to_bf16(unit_value(&u, 8 * p + 2 * j)) |
                                        (uint32_t) float_to_bf16(unit_value(&u, 8 * p + 2 * j + 1))
                                                << 16;
                        out[p] = halves;
                }
        }
}

/* REPEAT of any plain type. */
FLAT_KERNEL(repeat_elements, struct cuda_copy_args) {
        int bytes = block_bytes(args.out.type);

        for (int64_t row = blockIdx.x; row < row_count(args.out); row += gridDim.x) {
                row_index index = index_of_row(args.out, row);
                byte *out = row_at(args.out, index);
                const byte *in = row_modulo(args.in, index);

                for (int64_t i = threadIdx.x; i < args.out.ne[0]; i += CUDA_THREADS)
                        move_bytes(out + i * args.out.nb[0],
                                   in + remainder(i, args.in.ne[0]) * args.in.nb[0], bytes);
        }
}
