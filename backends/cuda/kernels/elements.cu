/*
 * Element by element: functions of one value, of two, gated ones, and chains of them, which a norm
 * may lead. Computed in f32 and rounded once to the type of the result; in a chain each node's
 * value is rounded to the type that its result has, so that it is the value that would have been
 * stored.
 *
 * A block takes chunks of CUDA_CHUNK elements of a row, one after the other, the grid's size apart;
 * the host joins dimensions where memory allows it, so that rows are long.
 */
#include "backends/cuda/kernels/common.cuh"

DEVICE float gelu(float x) {
        return 0.5f * x * (1.0f + tanhf(0.79788456080286535588f * x * (1.0f + 0.044715f * x * x)));
}

/* GELU by way of f16, as models are trained and checked with. */
DEVICE float gelu_half(float x) {
        if (x >= 10.0f)
                return x;
        if (x <= -10.0f)
                return 0;
        return half_to_float(float_to_half(gelu(half_to_float(float_to_half(x)))));
}

DEVICE float gelu_quick_half(float x) {
        float y = half_to_float(float_to_half(x));

        return half_to_float(float_to_half(y / (1.0f + expf(-1.702f * y))));
}

DEVICE float silu(float x) {
        return x / (1.0f + expf(-x));
}

DEVICE float gelu_erf(float x) {
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
}

DEVICE float xielu(float x, const float *p) {
        if (x > 0)
                return p[1] * x * x + p[2] * x;
        return (expm1f(fminf(x, p[3])) - x) * p[0] + p[2] * x;
}

DEVICE float unary(int32_t function, float x, const float *p) {
        switch (function) {
        case HR_UNARY_ABS: return fabsf(x);
        case HR_UNARY_SGN: return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
        case HR_UNARY_NEG: return -x;
        case HR_UNARY_STEP: return x > 0 ? 1.0f : 0.0f;
        case HR_UNARY_TANH: return tanhf(x);
        case HR_UNARY_ELU: return x > 0 ? x : expm1f(x);
        case HR_UNARY_RELU: return x > 0 ? x : 0.0f;
        case HR_UNARY_SIGMOID: return 1.0f / (1.0f + expf(-x));
        case HR_UNARY_GELU: return gelu_half(x);
        case HR_UNARY_GELU_QUICK: return gelu_quick_half(x);
        case HR_UNARY_SILU: return silu(x);
        case HR_UNARY_HARDSWISH: return x * fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f));
        case HR_UNARY_HARDSIGMOID: return fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f));
        case HR_UNARY_EXP: return expf(x);
        case HR_UNARY_EXPM1: return expm1f(x);
        case HR_UNARY_SOFTPLUS: return x > 20.0f ? x : logf(1.0f + expf(x));
        case HR_UNARY_GELU_ERF: return gelu_erf(x);
        case HR_UNARY_XIELU: return xielu(x, p);
        case HR_UNARY_FLOOR: return floorf(x);
        case HR_UNARY_CEIL: return ceilf(x);
        case HR_UNARY_ROUND: return roundf(x);
        default: return truncf(x);
        }
}

DEVICE float map(uint32_t op, int32_t function, const float *p, float x) {
        switch (op) {
        case HR_OP_SQR: return x * x;
        case HR_OP_SQRT: return sqrtf(x);
        case HR_OP_LOG: return logf(x);
        case HR_OP_SIN: return sinf(x);
        case HR_OP_COS: return cosf(x);
        case HR_OP_SCALE: return x * p[0] + p[1];
        case HR_OP_CLAMP:
                x = x < p[0] ? p[0] : x;
                return x > p[1] ? p[1] : x;
        case HR_OP_LEAKY_RELU: return (x > 0 ? x : 0.0f) + p[0] * (x < 0 ? x : 0.0f);
        case HR_OP_FILL: return p[0];
        default: return unary(function, x, p);
        }
}

/* The chunks that this block takes: from `chunk` on, the grid's size apart. */
struct chunks {
        int64_t per_row, count;
};

DEVICE chunks chunks_of(const cuda_tensor &t) {
        chunks c;

        c.per_row = (t.ne[0] + CUDA_CHUNK - 1) / CUDA_CHUNK;
        c.count = c.per_row * row_count(t);
        return c;
}

FLAT_KERNEL(map_elements, struct cuda_map_args) {
        chunks c = chunks_of(args.out);

        for (int64_t chunk = blockIdx.x; chunk < c.count; chunk += gridDim.x) {
                row_index index = index_of_row(args.out, chunk / c.per_row);
                byte *out = row_at(args.out, index);
                const byte *in = row_at(args.in, index);
                int64_t first = chunk % c.per_row * CUDA_CHUNK;

                for (int64_t i = first + threadIdx.x; i < first + CUDA_CHUNK && i < args.out.ne[0];
                     i += CUDA_THREADS)
                        store_float(out + i * args.out.nb[0], args.out.type,
                                    map(args.op, args.function, args.p,
                                        load_float(in + i * args.in.nb[0], args.in.type)));
        }
}

DEVICE float combine(uint32_t op, float a, float b) {
        switch (op) {
        case HR_OP_SUB: return a - b;
        case HR_OP_MUL: return a * b;
        case HR_OP_DIV: return a / b;
        default: return a + b;
        }
}

FLAT_KERNEL(binary_elements, struct cuda_binary_args) {
        chunks c = chunks_of(args.out);

        for (int64_t chunk = blockIdx.x; chunk < c.count; chunk += gridDim.x) {
                row_index index = index_of_row(args.out, chunk / c.per_row);
                byte *out = row_at(args.out, index);
                const byte *a = row_at(args.a, index), *b = row_modulo(args.b, index);
                int64_t first = chunk % c.per_row * CUDA_CHUNK;

                for (int64_t i = first + threadIdx.x; i < first + CUDA_CHUNK && i < args.out.ne[0];
                     i += CUDA_THREADS) {
                        int64_t j = args.b.ne[0] == args.out.ne[0] ? i : i % args.b.ne[0];

                        store_float(out + i * args.out.nb[0], args.out.type,
                                    combine(args.op, load_float(a + i * args.a.nb[0], args.a.type),
                                            load_float(b + j * args.b.nb[0], args.b.type)));
                }
        }
}

DEVICE float gated(const cuda_glu_args &args, float x, float gate) {
        switch (args.function) {
        case HR_GLU_REGLU: return (x > 0 ? x : 0.0f) * gate;
        case HR_GLU_GEGLU: return gelu_half(x) * gate;
        case HR_GLU_SWIGLU: return silu(x) * gate;
        case HR_GLU_GEGLU_ERF: return gelu_erf(x) * gate;
        case HR_GLU_GEGLU_QUICK: return gelu_quick_half(x) * gate;
        default:
                x = x < args.limit ? x : args.limit;
                gate = gate < -args.limit ? -args.limit : gate > args.limit ? args.limit : gate;
                return x / (1.0f + expf(args.alpha * -x)) * (gate + 1.0f);
        }
}

FLAT_KERNEL(glu_elements, struct cuda_glu_args) {
        chunks c = chunks_of(args.out);

        for (int64_t chunk = blockIdx.x; chunk < c.count; chunk += gridDim.x) {
                row_index index = index_of_row(args.out, chunk / c.per_row);
                byte *out = row_at(args.out, index);
                const byte *a = row_at(args.a, index) + args.a_first * args.a.nb[0];
                const byte *gate = row_at(args.gate, index) + args.gate_first * args.gate.nb[0];
                int64_t first = chunk % c.per_row * CUDA_CHUNK;

                for (int64_t i = first + threadIdx.x; i < first + CUDA_CHUNK && i < args.out.ne[0];
                     i += CUDA_THREADS)
                        store_float(out + i * args.out.nb[0], args.out.type,
                                    gated(args, load_float(a + i * args.a.nb[0], args.a.type),
                                          load_float(gate + i * args.gate.nb[0],
                                                     args.gate.type)));
        }
}

/* ---- Chains ---------------------------------------------------------------------------------- */

/* Two roundings where two nodes have two. */
DEVICE float combine_apart(uint32_t op, float a, float b) {
        switch (op) {
        case HR_OP_SUB: return __fadd_rn(a, -b);
        case HR_OP_MUL: return __fmul_rn(a, b);
        case HR_OP_DIV: return a / b;
        default: return __fadd_rn(a, b);
        }
}

DEVICE float rounded(uint32_t type, float x) {
        if (type == HR_TYPE_F16)
                return half_to_float(float_to_half(x));
        return type == HR_TYPE_BF16 ? bf16_to_float(float_to_bf16(x)) : x;
}

/* Where each link's other row lies; found once a row. Loops over links are unrolled, so that it
 * stays in registers. */
typedef const byte *other_rows[CUDA_CHAIN_MAX];

DEVICE void others_find(const cuda_chain_args &args, row_index index, other_rows &others) {
#pragma unroll
        for (uint32_t l = 0; l < CUDA_CHAIN_MAX; l++)
                others[l] = l < args.count && args.links[l].other.is_present
                                    ? row_modulo(args.links[l].other, index)
                                    : NULL;
}

DEVICE float chain_value(const cuda_chain_args &args, const other_rows &others, int64_t i,
                         float x) {
#pragma unroll
        for (uint32_t l = 0; l < CUDA_CHAIN_MAX; l++) {
                const cuda_link &link = args.links[l];

                if (l >= args.count)
                        break;
                if (others[l]) {
                        int64_t j = link.other.ne[0] == args.out.ne[0] ? i
                                                                       : i % link.other.ne[0];
                        float y = load_float(others[l] + j * link.other.nb[0], link.other.type);

                        x = link.other_first ? combine_apart(link.op, y, x)
                                             : combine_apart(link.op, x, y);
                } else {
                        x = map(link.op, link.function, link.p, x);
                }
                if (l + 1 < args.count)
                        x = rounded(link.type, x);
        }
        return x;
}

FLAT_KERNEL(chain_elements, struct cuda_chain_args) {
        chunks c = chunks_of(args.out);

        for (int64_t chunk = blockIdx.x; chunk < c.count; chunk += gridDim.x) {
                row_index index = index_of_row(args.out, chunk / c.per_row);
                byte *out = row_at(args.out, index);
                const byte *in = row_at(args.in, index);
                int64_t first = chunk % c.per_row * CUDA_CHUNK;
                other_rows others;

                others_find(args, index, others);
                for (int64_t i = first + threadIdx.x; i < first + CUDA_CHUNK && i < args.out.ne[0];
                     i += CUDA_THREADS)
                        store_float(out + i * args.out.nb[0], args.out.type,
                                    chain_value(args, others, i,
                                                load_float(in + i * args.in.nb[0], args.in.type)));
        }
}

/* As norm_rows (norm.cu), and then the chain. A thread writes only elements that it alone reads. */
KERNEL(chain_rows, struct cuda_chain_args) {
        SHARED float parts[WARPS];
        int64_t n = args.in.ne[0];

        for (int64_t row = blockIdx.x; row < row_count(args.in); row += gridDim.x) {
                row_index index = index_of_row(args.in, row);
                const byte *in = row_at(args.in, index);
                byte *out = row_at(args.out, index);
                row_norm norm = norm_of_row(args.in, in, args.op, args.eps, parts);
                other_rows others;

                others_find(args, index, others);
                for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
                        float x = *(const float *) (in + i * args.in.nb[0]) - norm.mean;

                        store_float(out + i * args.out.nb[0], args.out.type,
                                    chain_value(args, others, i, __fmul_rn(x, norm.factor)));
                }
        }
}
