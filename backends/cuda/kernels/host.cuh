/* What CUDA C++ adds to C++, for kernels that run on the processor. Included by common.cuh only. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "backends/cuda/kernels/host_run.h"

/* In a section of its own, where the tests can find all of it. */
#define SHARED static __attribute__((section("cuda_shared")))
#define DEVICE static inline
#define METHOD inline
#define OUTLINE static
#define CONSTANT static const

#define threadIdx cuda_host_thread
#define blockIdx cuda_host_block
#define gridDim cuda_host_grid

/* What a launch passes is 4096 bytes at most. */
#define KERNEL_OF(name, type, flat)                                                                \
        static_assert(sizeof(type) <= 4096, "more than a launch takes");                           \
        static void name##_body(const type &args);                                                 \
        static void name##_entry(const void *argument) {                                           \
                name##_body(*(const type *) argument);                                             \
        }                                                                                          \
        __attribute__((constructor)) static void name##_register(void) {                           \
                static struct cuda_host_kernel kernel = { #name, sizeof(type), flat, name##_entry, \
                                                          NULL };                                  \
                cuda_host_register(&kernel);                                                       \
        }                                                                                          \
        static void name##_body(const type &args)
#define KERNEL(name, type) KERNEL_OF(name, type, 0)
#define WIDE_KERNEL(name, type) KERNEL_OF(name, type, 0)
#define DENSE_KERNEL(name, type) KERNEL_OF(name, type, 0)
#define FLAT_KERNEL(name, type) KERNEL_OF(name, type, 1)

#define __syncthreads() cuda_host_barrier()
#define __syncwarp() cuda_host_warp_barrier()

DEVICE uint32_t float_bits(float value) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        return bits;
}

DEVICE float bits_float(uint32_t bits) {
        float value;

        memcpy(&value, &bits, sizeof value);
        return value;
}

static inline float __shfl_xor_sync(unsigned lanes, float value, int distance) {
        (void) lanes;
        return bits_float(cuda_host_exchange(float_bits(value),
                                             (cuda_host_thread.x % 32) ^ (unsigned) distance));
}

/* Byte i of the result is byte select[i] of the eight in b, a. */
DEVICE uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t select) {
        uint64_t both = (uint64_t) b << 32 | a;
        uint32_t result = 0;

        for (int i = 0; i < 4; i++)
                result |= (uint32_t) (both >> 8 * (select >> 4 * i & 7) & 255) << 8 * i;
        return result;
}

/* The lower word of both, moved down by up to 31 bits. */
DEVICE uint32_t __funnelshift_r(uint32_t low, uint32_t high, int shift) {
        return (uint32_t) (((uint64_t) high << 32 | low) >> (shift & 31));
}

DEVICE float __fadd_rn(float a, float b) {
        return a + b;
}

DEVICE float __fmul_rn(float a, float b) {
        return a * b;
}

/* c and the four products of signed bytes. */
DEVICE int __dp4a(int a, int b, int c) {
        for (int i = 0; i < 32; i += 8)
                c += (int8_t) (a >> i) * (int8_t) (b >> i);
        return c;
}

/* The same where the bytes of a have no sign. */
DEVICE int dp4a_unsigned(uint32_t a, uint32_t b, int c) {
        for (int i = 0; i < 32; i += 8)
                c += (uint8_t) (a >> i) * (int8_t) (b >> i);
        return c;
}

/* c and the products of a's two numbers with the lower signed bytes of b, and with the higher. */
DEVICE int __dp2a_lo(int a, int b, int c) {
        return c + (int16_t) a * (int8_t) b + (int16_t) (a >> 16) * (int8_t) (b >> 8);
}

DEVICE int __dp2a_hi(int a, int b, int c) {
        return __dp2a_lo(a, b >> 16, c);
}

DEVICE float half_to_float(uint16_t half) {
        uint32_t sign = (uint32_t) (half & 0x8000u) << 16, rest = half & 0x7fffu;

        if (rest > 0x7c00u)
                return bits_float(sign | 0x7fc00000u | (rest & 0x3ffu) << 13);
        if (rest == 0x7c00u)
                return bits_float(sign | 0x7f800000u);
        /* The exponent is off by 112; the product is exact for denormals too. */
        return bits_float(sign | float_bits(bits_float(rest << 13) * 0x1p112f));
}

DEVICE uint16_t float_to_half(float value) {
        uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000u;

        bits &= 0x7fffffffu;
        if (bits > 0x7f800000u)
                return (uint16_t) (sign | 0x7e00u | (bits >> 13 & 0x3ffu));
        if (bits >= 0x47800000u)
                return (uint16_t) (sign | 0x7c00u);
        if (bits < 0x38800000u) /* the addition shifts the mantissa into place and rounds it */
                return (uint16_t) (sign | (float_bits(bits_float(bits) + 0.5f) - 0x3f000000u));
        return (uint16_t) (sign | (bits + 0xc8000fffu + (bits >> 13 & 1u)) >> 13);
}
