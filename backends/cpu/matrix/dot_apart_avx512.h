/*
 * One column of Q4_K and Q5_K: AVX-512 with VNNI, for dot_block256.c.
 *
 * High nibbles and fifth bits are multiplied where they are in their bytes, each with a sum of its
 * own: that sum is moved instead, once for a group. It is a multiple of what it is shifted by, so
 * that no digit is lost.
 */
#pragma once

#include "backends/cpu/matrix/dot_body256.h"
#include "backends/cpu/matrix/unpack.h"

#define HAS_FIFTH_BIT_q4_K false
#define HAS_FIFTH_BIT_q5_K true

/* What is at bit `from` comes to bit `to`. */
LANES_INLINE lanes_u move_sum(lanes_u sum, const int from, const int to) {
        return from < to ? sum << (to - from) : (lanes_u) ((lanes_i) sum >> (from - to));
}

/* Those bits of 32 elements times a column. */
LANES_INLINE lanes_u dot_masked(const lanes_u *bytes, const uint32_t mask, const uint32_t *q) {
        lanes_u sum = lanes_set_u(0);

#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
                sum = lanes_dot4(sum, bytes[j] & mask, &q[j]);
        return sum;
}

/* Elements 64 * i on of a block: what dot_piece() has of unpacked ones. */
LANES_INLINE void dot_apart(const lanes_u *extra, const lanes_u *raw, const int i,
                            const bool has_fifth_bit, const lanes_f *scale, const lanes_f *minimum,
                            struct columns *at, lanes_f *part) {
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++) {
                const int bit = 2 * i + g;
                lanes_u sum = dot_masked(raw + 8 * (i % 2), NIBBLES << 4 * g, at->q);

                if (g)
                        sum = move_sum(sum, 4, 0);
                if (has_fifth_bit)
                        sum += move_sum(dot_masked(extra, 0x01010101U << bit, at->q), bit, 4);
                *part = lanes_fma(lanes_from_int(sum), scale[g], *part);
                *part = lanes_fma(minimum[g], lanes_set_f(*at->sum), *part);
                at->q += 8;
                at->bias++;
                at->sum++;
        }
}
