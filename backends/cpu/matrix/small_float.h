/*
 * The scales of MXFP4 and NVFP4, each halved: the tables of FP4 values hold doubles of them.
 *
 * E8M0 is a bare exponent; below 2 its half is subnormal. UE4M3 has no sign: the top bit does not
 * count, and 0x7f, its "no number", stands for zero here.
 */
#pragma once

#include "backends/cpu/matrix/half.h"

static inline float cpu_e8m0_half(uint8_t e) {
        return cpu_bits_float(e < 2 ? 0x00200000U << e : (uint32_t) (e - 1) << 23);
}

static inline float cpu_ue4m3_half(uint8_t x) {
        uint32_t bits = x & 0x7fU;

        /* Bias 7 against 127; the product is exact for subnormals too. */
        return bits == 0x7fU ? 0 : cpu_bits_float(bits << 20) * 0x1p119f;
}
