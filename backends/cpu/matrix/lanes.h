/*
 * Vectors of the instruction set that a file is compiled for.
 *
 * Each kernel source is compiled once per instruction set with that set's compiler flags; this
 * header picks the matching vectors, and CPU_ISA(name) gives each copy of a function its own name.
 *
 *   CPU_LANES        rows of a tile = floats of a vector
 *   CPU_WIDTH        most columns of a column group
 *   CPU_FLOAT_WIDTH  columns of a register block of float_dot
 *   CPU_SIGNED_BYTES 1: weights that need the full byte stay signed and go through
 *                    lanes_dot4_signed; 0: they are unsigned by an offset of 128
 *
 * lanes_loadN(row, at, ...) reads N dwords at row[i] + at of every row i and transposes them:
 * vector j holds dword j of all rows. Integer sums wrap; they are exact for what the tiles hold.
 */
#pragma once

#include <stdbool.h>

#include "backends/cpu/matrix/half.h"
#include "backends/cpu/matrix/lanes_inline.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) &&                   \
        defined(__AVX512DQ__)
#include "backends/cpu/matrix/lanes_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "backends/cpu/matrix/lanes_avx2.h"
#else
#include "backends/cpu/matrix/lanes_portable.h"
#endif

#if CPU_SIGNED_BYTES == 0
#define lanes_dot4_signed lanes_dot4
#endif

#ifndef LANES_HAVE_FMA_ONCE
#define lanes_fma_once lanes_fma
#endif

#ifndef LANES_HAVE_LOAD16
/* Whole 64 bytes of each row, in order. */
LANES_INLINE void lanes_load16(const uint8_t *const *row, uint64_t at, unsigned bytes,
                               const uint16_t *order, lanes_u ret[16]) {
        (void) bytes, (void) order;
        for (int i = 0; i < 4; i++)
                lanes_load4(row, at + 16 * (uint64_t) i, ret + 4 * i);
}
#endif

LANES_INLINE lanes_f lanes_set_f(float value) {
        return value - (lanes_f){0};
}

LANES_INLINE lanes_u lanes_set_u(uint32_t value) {
        return value - (lanes_u){0};
}
