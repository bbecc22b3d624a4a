/*
 * What all kernels share. They are compiled twice: by nvcc for the GPU, and by a C++ compiler for
 * the processor, where host.cuh stands in for what CUDA C++ adds (thread numbers, barriers,
 * exchanges within a warp). A kernel is written as
 *
 *         KERNEL(name, struct cuda_x_args) { ... args ... }
 *
 * and is launched with CUDA_THREADS threads in blocks along x. A DENSE_KERNEL keeps to as many
 * registers as four blocks on a multiprocessor leave it, a WIDE_KERNEL may have them all. A kernel
 * without barriers and exchanges is a FLAT_KERNEL; that matters on the processor only. SHARED
 * stands in a kernel's own body, not in a template's, where a compiler may put it elsewhere.
 *
 * Every access stays within its tensor whatever the data are: an address that a kernel must not
 * touch ends the GPU for everyone on it. Addresses are aligned to their element (support.c).
 */
#pragma once

#include "backends/cuda/kernels/args.h"
#include "core/op.h"
#include "core/type.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>

#define KERNEL(name, type)                                                                         \
        extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 2) name(const type args)
#define DENSE_KERNEL(name, type)                                                                   \
        extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 4) name(const type args)
#define WIDE_KERNEL(name, type)                                                                    \
        extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 1) name(const type args)
#define FLAT_KERNEL(name, type) KERNEL(name, type)
#define SHARED __shared__
#define DEVICE static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define OUTLINE static __device__ __noinline__
#define CONSTANT static __device__ const
#else
#include "backends/cuda/kernels/host.cuh"
#endif

#define WARP 32
#define WARPS (CUDA_THREADS / WARP)
#define ALL_LANES 0xffffffffu

/* ---- Small floats ---------------------------------------------------------------------------- */

#ifdef __CUDACC__
DEVICE float half_to_float(uint16_t bits) {
        return __half2float(__ushort_as_half(bits));
}

DEVICE uint16_t float_to_half(float value) {
        return __half_as_ushort(__float2half_rn(value));
}

DEVICE uint32_t float_bits(float value) {
        return __float_as_uint(value);
}

DEVICE float bits_float(uint32_t bits) {
        return __uint_as_float(bits);
}

DEVICE int dp4a_unsigned(uint32_t a, uint32_t b, int c) {
        int sum;

        asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
        return sum;
}
#endif

DEVICE float bf16_to_float(uint16_t bits) {
        return bits_float((uint32_t) bits << 16);
}

DEVICE uint16_t float_to_bf16(float value) {
        uint32_t bits = float_bits(value);

        if ((bits & 0x7fffffffu) > 0x7f800000u)
                return (uint16_t) (bits >> 16 | 64);
        return (uint16_t) ((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

typedef unsigned char byte;

DEVICE byte *row_of(const cuda_tensor &t, int64_t i1, int64_t i2, int64_t i3) {
        return (byte *) (uintptr_t) t.data + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3];
}

/* a / b of numbers that are not negative. Most are short, and a long division is ten times as
 * long. */
DEVICE int64_t quotient(int64_t a, int64_t b) {
        if ((uint64_t) (a | b) >> 32)
                return a / b;
        return (int64_t) ((uint32_t) a / (uint32_t) b);
}

DEVICE int64_t remainder(int64_t a, int64_t b) {
        return a - quotient(a, b) * b;
}

struct row_index {
        int64_t i1, i2, i3;
};

DEVICE int64_t row_count(const cuda_tensor &t) {
        return t.ne[1] * t.ne[2] * t.ne[3];
}

DEVICE row_index index_of_row(const cuda_tensor &t, int64_t row) {
        row_index index = { row, 0, 0 };
        int64_t plane;

        if (row < t.ne[1]) /* the most frequent, and divisions are long */
                return index;
        plane = quotient(row, t.ne[1]);
        index.i1 = row - plane * t.ne[1];
        index.i3 = quotient(plane, t.ne[2]);
        index.i2 = plane - index.i3 * t.ne[2];
        return index;
}

DEVICE byte *row_at(const cuda_tensor &t, row_index i) {
        return row_of(t, i.i1, i.i2, i.i3);
}

DEVICE byte *row_modulo(const cuda_tensor &t, row_index i) {
        return row_of(t, remainder(i.i1, t.ne[1]), remainder(i.i2, t.ne[2]),
                      remainder(i.i3, t.ne[3]));
}

DEVICE float load_float(const byte *at, uint32_t type) {
        if (type == HR_TYPE_F32)
                return *(const float *) at;
        if (type == HR_TYPE_F16)
                return half_to_float(*(const uint16_t *) at);
        return bf16_to_float(*(const uint16_t *) at);
}

DEVICE void store_float(byte *at, uint32_t type, float value) {
        if (type == HR_TYPE_F32)
                *(float *) at = value;
        else if (type == HR_TYPE_F16)
                *(uint16_t *) at = float_to_half(value);
        else
                *(uint16_t *) at = float_to_bf16(value);
}

DEVICE float half_at(const byte *at) {
        return half_to_float(*(const uint16_t *) at);
}

/* The host finds it in a task behind the launch. Any of several failures may be the one told. */
DEVICE void fault_at(uint64_t fault, uint64_t step) {
        *(volatile uint64_t *) (uintptr_t) fault = step + 1;
}

/* ---- Sums over a block of threads ------------------------------------------------------------ */

DEVICE float warp_sum(float value) {
        for (int distance = WARP / 2; distance > 0; distance /= 2)
                value += __shfl_xor_sync(ALL_LANES, value, distance);
        return value;
}

DEVICE float warp_max(float value) {
        for (int distance = WARP / 2; distance > 0; distance /= 2)
                value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
        return value;
}

/* The sum over all threads, for all threads. `parts` has WARPS places and may be used again after
 * the next barrier. */
DEVICE float block_sum(float value, float *parts) {
        float total = 0;

        value = warp_sum(value);
        if (threadIdx.x % WARP == 0)
                parts[threadIdx.x / WARP] = value;
        __syncthreads();
        for (int i = 0; i < WARPS; i++)
                total += parts[i];
        __syncthreads();
        return total;
}

DEVICE float block_max(float value, float *parts) {
        float most = value;

        value = warp_max(value);
        if (threadIdx.x % WARP == 0)
                parts[threadIdx.x / WARP] = value;
        __syncthreads();
        for (int i = 0; i < WARPS; i++)
                most = fmaxf(most, parts[i]);
        __syncthreads();
        return most;
}

/* What NORM, RMS_NORM or L2_NORM does to an element x: (x - mean) * factor. */
struct row_norm {
        float mean, factor;
};

/* For all threads of the block; `parts` as for block_sum. */
DEVICE row_norm norm_of_row(const cuda_tensor &t, const byte *row, uint32_t op, float eps,
                            float *parts) {
        int64_t n = t.ne[0];
        float sum = 0, squares = 0;
        row_norm norm = { 0, 0 };

        if (op == HR_OP_NORM) {
                for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS)
                        sum += *(const float *) (row + i * t.nb[0]);
                norm.mean = block_sum(sum, parts) / (float) n;
        }
        for (int64_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
                float x = *(const float *) (row + i * t.nb[0]) - norm.mean;

                squares += x * x;
        }
        squares = block_sum(squares, parts);
        norm.factor = op == HR_OP_L2_NORM ? 1.0f / fmaxf(sqrtf(squares), eps)
                                          : 1.0f / sqrtf(squares / (float) n + eps);
        return norm;
}

/* ALiBi's slope of a head. */
DEVICE float head_slope(float max_bias, float base, float half, int64_t power, int64_t head) {
        if (max_bias <= 0)
                return 1.0f;
        return head < power ? powf(base, (float) (head + 1))
                            : powf(half, (float) (2 * (head - power) + 1));
}
