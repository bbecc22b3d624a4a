/*
 * Half-precision formats by bit operations: IEEE binary16 ("f16") and bfloat16 ("bf16").
 *
 * Rounding is to nearest, ties to even; overflow gives infinity; denormals are kept. The functions
 * give the same bits as the processor's own conversions, so that instruction sets agree.
 */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint32_t cpu_float_bits(float value) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        return bits;
}

static inline float cpu_bits_float(uint32_t bits) {
        float value;

        memcpy(&value, &bits, sizeof value);
        return value;
}

static inline float cpu_half_to_float(uint16_t half) {
        uint32_t sign = (uint32_t) (half & 0x8000U) << 16, rest = half & 0x7fffU;

        if (rest > 0x7c00U)
                return cpu_bits_float(sign | 0x7fc00000U | (rest & 0x3ffU) << 13);
        if (rest == 0x7c00U)
                return cpu_bits_float(sign | 0x7f800000U);
        /* The exponent is off by 112; the product is exact for denormals too. */
        return cpu_bits_float(sign | cpu_float_bits(cpu_bits_float(rest << 13) * 0x1p112f));
}

static inline uint16_t cpu_float_to_half(float value) {
        uint32_t bits = cpu_float_bits(value), sign = bits >> 16 & 0x8000U;

        bits &= 0x7fffffffU;
        if (bits > 0x7f800000U)
                return (uint16_t) (sign | 0x7e00U | (bits >> 13 & 0x3ffU));
        if (bits >= 0x47800000U)
                return (uint16_t) (sign | 0x7c00U);
        if (bits < 0x38800000U) /* the addition shifts the mantissa into place and rounds it */
                return (uint16_t) (sign |
                                   (cpu_float_bits(cpu_bits_float(bits) + 0.5f) - 0x3f000000U));
        return (uint16_t) (sign | (bits + 0xc8000fffU + (bits >> 13 & 1U)) >> 13);
}

static inline float cpu_bf16_to_float(uint16_t value) {
        return cpu_bits_float((uint32_t) value << 16);
}

static inline uint16_t cpu_float_to_bf16(float value) {
        uint32_t bits = cpu_float_bits(value);

        if ((bits & 0x7fffffffU) > 0x7f800000U)
                return (uint16_t) (bits >> 16 | 0x40U);
        return (uint16_t) ((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

/* Unaligned little-endian reads. */
static inline uint16_t cpu_read_u16(const uint8_t *bytes) {
        uint16_t value;

        memcpy(&value, bytes, sizeof value);
        return value;
}

static inline uint32_t cpu_read_u32(const uint8_t *bytes) {
        uint32_t value;

        memcpy(&value, bytes, sizeof value);
        return value;
}

static inline float cpu_read_half(const uint8_t *bytes) {
        return cpu_half_to_float(cpu_read_u16(bytes));
}

static inline void cpu_write_half(uint8_t *bytes, float value) {
        uint16_t half = cpu_float_to_half(value);

        memcpy(bytes, &half, sizeof half);
}
