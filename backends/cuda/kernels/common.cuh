/*
 * What all kernels share. They are compiled twice: by nvcc for the GPU, and by a C++ compiler for
 * the processor, where host.cuh stands in for what CUDA C++ adds (thread numbers, barriers,
 * exchanges within a warp). A kernel is written as
 *
 *         KERNEL(name, struct cuda_x_args) { ... args ... }
 *
 * and is launched with CUDA_THREADS threads in blocks along x. A kernel without barriers and
 * exchanges is a FLAT_KERNEL; that matters on the processor only.
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
#define FLAT_KERNEL(name, type) KERNEL(name, type)
#define SHARED __shared__
#define DEVICE static __device__ __forceinline__
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

struct row_index {
        int64_t i1, i2, i3;
};

DEVICE int64_t row_count(const cuda_tensor &t) {
        return t.ne[1] * t.ne[2] * t.ne[3];
}

DEVICE row_index index_of_row(const cuda_tensor &t, int64_t row) {
        row_index index;

        index.i1 = row % t.ne[1];
        row /= t.ne[1];
        index.i2 = row % t.ne[2];
        index.i3 = row / t.ne[2];
        return index;
}

DEVICE byte *row_at(const cuda_tensor &t, row_index i) {
        return row_of(t, i.i1, i.i2, i.i3);
}

DEVICE byte *row_modulo(const cuda_tensor &t, row_index i) {
        return row_of(t, i.i1 % t.ne[1], i.i2 % t.ne[2], i.i3 % t.ne[3]);
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

/* The host finds it in a task behind the launch. Any of several failures may be the one told. */
DEVICE void fault_at(uint64_t fault, uint64_t step) {
        *(volatile uint64_t *) (uintptr_t) fault = step + 1;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* Elements that share a block; 1 for a plain type. Types that kernels know no block of are
 * plain. */
DEVICE int block_size(uint32_t type) {
        switch (type) {
        case HR_TYPE_Q4_0:
        case HR_TYPE_Q4_1:
        case HR_TYPE_Q5_0:
        case HR_TYPE_Q5_1:
        case HR_TYPE_Q8_0: return 32;
        case HR_TYPE_Q4_K:
        case HR_TYPE_Q5_K:
        case HR_TYPE_Q6_K: return 256;
        default: return 1;
        }
}

DEVICE int block_bytes(uint32_t type) {
        switch (type) {
        case HR_TYPE_Q4_0: return 18;
        case HR_TYPE_Q4_1: return 20;
        case HR_TYPE_Q5_0: return 22;
        case HR_TYPE_Q5_1: return 24;
        case HR_TYPE_Q8_0: return 34;
        case HR_TYPE_Q4_K: return 144;
        case HR_TYPE_Q5_K: return 176;
        case HR_TYPE_Q6_K: return 210;
        default: return type == HR_TYPE_F32 || type == HR_TYPE_I32 ? 4 : 2;
        }
}

DEVICE float half_at(const byte *at) {
        return half_to_float(*(const uint16_t *) at);
}

/* Two halves in a row of bytes: low nibbles first, then high ones. */
DEVICE int nibble_of(const byte *bytes, int i, int half) {
        return bytes[i % half] >> (i >= half ? 4 : 0) & 15;
}

/* Blocks of 32: a scale, perhaps a minimum, perhaps fifth bits, then nibbles. */
DEVICE float block32_element(const byte *block, uint32_t type, int i) {
        float d = half_at(block);
        uint32_t fifths;

        switch (type) {
        case HR_TYPE_Q4_0: return d * (float) (nibble_of(block + 2, i, 16) - 8);
        case HR_TYPE_Q4_1: return d * (float) nibble_of(block + 4, i, 16) + half_at(block + 2);
        case HR_TYPE_Q5_0:
                fifths = *(const uint16_t *) (block + 2) |
                         (uint32_t) *(const uint16_t *) (block + 4) << 16;
                return d * (float) ((nibble_of(block + 6, i, 16) | (int) (fifths >> i & 1) << 4) -
                                    16);
        case HR_TYPE_Q5_1:
                fifths = *(const uint16_t *) (block + 4) |
                         (uint32_t) *(const uint16_t *) (block + 6) << 16;
                return d * (float) (nibble_of(block + 8, i, 16) | (int) (fifths >> i & 1) << 4) +
                       half_at(block + 2);
        default: return d * (float) (int8_t) block[2 + i];
        }
}

/* Q4_K and Q5_K: eight groups of 32 with scales and minima of six bits, packed into twelve
 * bytes. */
DEVICE float block_k45_element(const byte *block, bool is_five, int i) {
        const byte *scales = block + 4, *levels = block + (is_five ? 48 : 16);
        int group = i / 32, scale, minimum, level;

        if (group < 4) {
                scale = scales[group] & 63;
                minimum = scales[group + 4] & 63;
        } else {
                scale = (scales[group + 4] & 15) | (scales[group - 4] >> 6) << 4;
                minimum = scales[group + 4] >> 4 | (scales[group] >> 6) << 4;
        }
        level = nibble_of(levels + i / 64 * 32, i % 64, 32);
        if (is_five)
                level |= (block[16 + i % 32] >> group & 1) << 4;
        return half_at(block) * (float) scale * (float) level - half_at(block + 2) * (float) minimum;
}

/* Q6_K: sixteen groups of 16 with signed scales; four low bits, then two high ones. */
DEVICE float block_k6_element(const byte *block, int i) {
        int part = i / 128, quarter = i % 128 / 32, at = i % 32;
        int low = block[64 * part + 32 * (quarter & 1) + at] >> (quarter >= 2 ? 4 : 0) & 15;
        int high = block[128 + 32 * part + at] >> 2 * quarter & 3;
        int scale = (int8_t) block[192 + 8 * part + 2 * quarter + at / 16];

        return half_at(block + 208) * (float) scale * (float) ((low | high << 4) - 32);
}

/* Element i of a block. */
DEVICE float block_element(const byte *block, uint32_t type, int i) {
        if (type == HR_TYPE_Q6_K)
                return block_k6_element(block, i);
        if (type == HR_TYPE_Q4_K || type == HR_TYPE_Q5_K)
                return block_k45_element(block, type == HR_TYPE_Q5_K, i);
        return block32_element(block, type, i);
}

/* Element i of a row of floats or of blocks without gaps. */
DEVICE float row_element(const byte *row, uint32_t type, int64_t i) {
        int size = block_size(type);

        if (size == 1)
                return load_float(row + i * block_bytes(type), type);
        return block_element(row + i / size * block_bytes(type), type, (int) (i % size));
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

/* ALiBi's slope of a head. */
DEVICE float head_slope(float max_bias, float base, float half, int64_t power, int64_t head) {
        if (max_bias <= 0)
                return 1.0f;
        return head < power ? powf(base, (float) (head + 1))
                            : powf(half, (float) (2 * (head - power) + 1));
}
