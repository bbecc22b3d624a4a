/*
 * Block types as tiles: unpack_<type>() takes one unit of CPU_LANES rows apart.
 *
 * w[e / 4] becomes elements e .. e + 3 of each row as unsigned bytes, scale[g] and minimum[g] the
 * factors of group g, so that  value = scale * (w - offset) + minimum.  Block layouts: the block
 * types' description in core/README.md. `at` is the byte offset of the unit in its rows.
 *
 * unpack_wide_<type>() takes several units in a row apart at once, where loads bring that many.
 */
#pragma once

#include "backends/cpu/matrix/lanes.h"

#define CPU_FULL_OFFSET (CPU_SIGNED_BYTES ? 0 : 128)

#ifdef LANES_HAVE_LOAD16
#define CPU_WIDE(units) units
#else
#define CPU_WIDE(units) 1
#endif

#define NIBBLES 0x0f0f0f0fU

/* IQ4_NL's values, and the same as unsigned bytes (+128). */
static const uint8_t iq4_nl_bytes[2][16] __attribute__((unused)) = {
        {129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113},
        {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
};

/* Twice FP4's values, larger by 12. */
static const uint8_t e2m1_bytes[16]
        __attribute__((unused)) = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* Bits 0 .. 3 of t to bit `to` (0 or 4) of bytes 0 .. 3. */
LANES_INLINE lanes_u spread_to(lanes_u t, const int to) {
#ifdef LANES_HAVE_LOOKUP
        static const uint32_t spread[2][16] = {
                {0x00000000, 0x00000001, 0x00000100, 0x00000101, 0x00010000, 0x00010001, 0x00010100,
                 0x00010101, 0x01000000, 0x01000001, 0x01000100, 0x01000101, 0x01010000, 0x01010001,
                 0x01010100, 0x01010101},
                {0x00000000, 0x00000010, 0x00001000, 0x00001010, 0x00100000, 0x00100010, 0x00101000,
                 0x00101010, 0x10000000, 0x10000010, 0x10001000, 0x10001010, 0x10100000, 0x10100010,
                 0x10101000, 0x10101010},
        };

        return lanes_lookup(spread[to / 4], t);
#else
        t &= 0xfU;
        t |= t << 7;
        return ((t | t << 14) & 0x01010101U) << to;
#endif
}

LANES_INLINE lanes_u spread_bits(lanes_u t) {
        return spread_to(t, 0);
}

LANES_INLINE void unpack_nibbles(const uint8_t *const *row, uint64_t at, lanes_u *w) {
        lanes_u q[4];

        lanes_load4(row, at, q);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
                w[j] = q[j] & NIBBLES;
                w[4 + j] = q[j] >> 4 & NIBBLES;
        }
}

LANES_INLINE void unpack_q4_0(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale,
                              lanes_f *minimum) {
        (void) minimum;
        scale[0] = lanes_load_half(row, at);
        unpack_nibbles(row, at + 2, w);
}

LANES_INLINE void unpack_q4_1(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale,
                              lanes_f *minimum) {
        lanes_u factors = lanes_load1(row, at);

        scale[0] = lanes_half(factors & 0xffffU);
        minimum[0] = lanes_half(factors >> 16);
        unpack_nibbles(row, at + 4, w);
}

LANES_INLINE void unpack_fifth_bits(lanes_u high, lanes_u *w) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
                w[j] |= spread_to(high >> 4 * j, 4);
}

LANES_INLINE void unpack_q5_0(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale,
                              lanes_f *minimum) {
        (void) minimum;
        scale[0] = lanes_load_half(row, at);
        unpack_nibbles(row, at + 6, w);
        unpack_fifth_bits(lanes_load1(row, at + 2), w);
}

LANES_INLINE void unpack_q5_1(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale,
                              lanes_f *minimum) {
        lanes_u factors = lanes_load1(row, at);

        scale[0] = lanes_half(factors & 0xffffU);
        minimum[0] = lanes_half(factors >> 16);
        unpack_nibbles(row, at + 8, w);
        unpack_fifth_bits(lanes_load1(row, at + 4), w);
}

LANES_INLINE void unpack_q8_0(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale,
                              lanes_f *minimum) {
        (void) minimum;
        scale[0] = lanes_load_half(row, at);
        lanes_load4(row, at + 2, w);
        lanes_load4(row, at + 18, w + 4);
#if CPU_SIGNED_BYTES == 0
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
                w[j] ^= 0x80808080U;
#endif
}

LANES_INLINE void unpack_iq4_nl(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale,
                                lanes_f *minimum) {
        (void) minimum;
        scale[0] = lanes_load_half(row, at);
        unpack_nibbles(row, at + 2, w);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
                w[j] = lanes_table16(w[j], iq4_nl_bytes[CPU_SIGNED_BYTES ? 0 : 1]);
}

/* 2^(e - 128); below 2 that is subnormal. */
LANES_INLINE lanes_f lanes_e8m0_half(lanes_u e) {
        lanes_u is_small = (lanes_u) (e < 2U);

        return (lanes_f) ((is_small & (((e & 1U) << 21) + 0x00200000U)) |
                          (~is_small & (e - 1U) << 23));
}

LANES_INLINE void unpack_mxfp4(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale,
                               lanes_f *minimum) {
        (void) minimum;
        scale[0] = lanes_e8m0_half(lanes_load1(row, at) & 255U);
        unpack_nibbles(row, at + 1, w);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
                w[j] = lanes_table16(w[j], e2m1_bytes);
}

/* ---- Blocks of 256 --------------------------------------------------------------------------
 *
 * In three steps, so that nothing has to wait in memory: head_<type>() makes the factors and reads
 * what all elements share into `extra`; half_<type>() reads the bytes of 128 elements; and
 * quarter_<type>() makes 64 of them, elements 128 * half + 64 * quarter on.
 */

LANES_INLINE lanes_f byte_to_float(lanes_u dword, int byte) {
        return lanes_from_int(dword >> 8 * byte & 0xffU);
}

LANES_INLINE lanes_f signed_byte_to_float(lanes_u dword, int byte) {
        return lanes_from_int((lanes_u) ((lanes_i) (dword << (24 - 8 * byte)) >> 24));
}

LANES_INLINE void head_q2_K(const uint8_t *const *row, uint64_t at, lanes_u *extra, lanes_f *scale,
                            lanes_f *minimum) {
        lanes_u s[4], factors = lanes_load1(row, at + 80);
        lanes_f d = lanes_half(factors & 0xffffU), dmin = lanes_half(factors >> 16);

        lanes_load4(row, at, s);
#pragma GCC unroll 16
        for (int g = 0; g < 16; g++) {
                lanes_u both = s[g / 4] >> 8 * (g % 4);

                scale[g] = d * lanes_from_int(both & 0xfU);
                minimum[g] = -dmin * lanes_from_int(both >> 4 & 0xfU);
        }
        lanes_load16(row, at + 16, 64, NULL, extra);
}

LANES_INLINE void half_q2_K(const uint8_t *const *row, uint64_t at, int half, lanes_u *raw) {
        (void) row, (void) at, (void) half, (void) raw;
}

LANES_INLINE void quarter_q2_K(const lanes_u *extra, const lanes_u *raw, int half, int quarter,
                               lanes_u *w) {
        (void) raw;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
                w[i] = extra[8 * half + i % 8] >> (4 * quarter + 2 * (i / 8)) & 0x03030303U;
}

LANES_INLINE void head_q3_K(const uint8_t *const *row, uint64_t at, lanes_u *extra, lanes_f *scale,
                            lanes_f *minimum) {
        lanes_u a[4], s[4];
        lanes_f d;

        (void) minimum;
        lanes_load4(row, at + 94, a); /* two bytes of quants, 12 of scales, d */
        d = lanes_half(a[3] >> 16);
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++)
                a[i] = a[i] >> 16 | a[i + 1] << 16;
        s[0] = (a[0] & NIBBLES) | (a[2] << 4 & 0x30303030U);
        s[1] = (a[1] & NIBBLES) | (a[2] << 2 & 0x30303030U);
        s[2] = (a[0] >> 4 & NIBBLES) | (a[2] & 0x30303030U);
        s[3] = (a[1] >> 4 & NIBBLES) | (a[2] >> 2 & 0x30303030U);
#pragma GCC unroll 16
        for (int g = 0; g < 16; g++)
                scale[g] = d * (byte_to_float(s[g / 4], g % 4) - 32.0f);
        lanes_load16(row, at + 32, 64, NULL, extra);
        lanes_load4(row, at, extra + 16);
        lanes_load4(row, at + 16, extra + 20);
}

#define half_q3_K half_q2_K

LANES_INLINE void quarter_q3_K(const lanes_u *extra, const lanes_u *raw, int half, int quarter,
                               lanes_u *w) {
        (void) raw;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
                const int shift = 2 * quarter + i / 8;
                lanes_u bit = extra[16 + i % 8] >> (4 * half + shift) & 0x01010101U;

                w[i] = (extra[8 * half + i % 8] >> 2 * shift & 0x03030303U) | bit << 2;
        }
}

/* What is at bit `from` comes to bit `to`: one shift. */
LANES_INLINE lanes_u move_bits(lanes_u bits, const int from, const int to) {
        return from < to ? bits << (to - from) : bits >> (from - to);
}

/* d, dmin and the eight 6-bit scales and minima of Q4_K and Q5_K. */
LANES_INLINE void head_q4_K(const uint8_t *const *row, uint64_t at, lanes_u *extra, lanes_f *scale,
                            lanes_f *minimum) {
        lanes_u head[4], sc[2], m[2];
        lanes_f d, dmin;

        (void) extra;
        lanes_load4(row, at, head);
        d = lanes_half(head[0] & 0xffffU);
        dmin = -lanes_half(head[0] >> 16);
        sc[0] = head[1] & 0x3f3f3f3fU;
        m[0] = head[2] & 0x3f3f3f3fU;
        sc[1] = (head[3] & NIBBLES) | (head[1] >> 2 & 0x30303030U);
        m[1] = (head[3] >> 4 & NIBBLES) | (head[2] >> 2 & 0x30303030U);
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) {
                scale[g] = d * byte_to_float(sc[g / 4], g % 4);
                minimum[g] = dmin * byte_to_float(m[g / 4], g % 4);
        }
}

LANES_INLINE void half_q4_K(const uint8_t *const *row, uint64_t at, int half, lanes_u *raw) {
        lanes_load16(row, at + 16 + 64 * (uint64_t) half, 64, NULL, raw);
}

LANES_INLINE void quarter_q4_K(const lanes_u *extra, const lanes_u *raw, int half, int quarter,
                               lanes_u *w) {
        (void) extra, (void) half;
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
                w[i] = raw[8 * quarter + i] & NIBBLES;
                w[8 + i] = raw[8 * quarter + i] >> 4 & NIBBLES;
        }
}

LANES_INLINE void head_q5_K(const uint8_t *const *row, uint64_t at, lanes_u *extra, lanes_f *scale,
                            lanes_f *minimum) {
        head_q4_K(row, at, extra, scale, minimum);
        lanes_load4(row, at + 16, extra);
        lanes_load4(row, at + 32, extra + 4);
}

LANES_INLINE void half_q5_K(const uint8_t *const *row, uint64_t at, int half, lanes_u *raw) {
        lanes_load16(row, at + 48 + 64 * (uint64_t) half, 64, NULL, raw);
}

LANES_INLINE void quarter_q5_K(const lanes_u *extra, const lanes_u *raw, int half, int quarter,
                               lanes_u *w) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
                const int bit = 4 * half + 2 * quarter;
                lanes_u q = raw[8 * quarter + i];

                w[i] = (q & NIBBLES) | (move_bits(extra[i], bit, 4) & 0x10101010U);
                w[8 + i] = (q >> 4 & NIBBLES) | (move_bits(extra[i], bit + 1, 4) & 0x10101010U);
        }
}

LANES_INLINE void head_q6_K(const uint8_t *const *row, uint64_t at, lanes_u *extra, lanes_f *scale,
                            lanes_f *minimum) {
        lanes_u s[4];
        lanes_f d = lanes_load_half(row, at + 208);

        (void) minimum;
        lanes_load4(row, at + 192, s);
#pragma GCC unroll 16
        for (int g = 0; g < 16; g++)
                scale[g] = d * signed_byte_to_float(s[g / 4], g % 4);
        lanes_load16(row, at + 128, 64, NULL, extra);
}

LANES_INLINE void half_q6_K(const uint8_t *const *row, uint64_t at, int half, lanes_u *raw) {
        lanes_load16(row, at + 64 * (uint64_t) half, 64, NULL, raw);
}

LANES_INLINE void quarter_q6_K(const lanes_u *extra, const lanes_u *raw, int half, int quarter,
                               lanes_u *w) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
                lanes_u high = move_bits(extra[8 * half + i % 8], 4 * quarter + 2 * (i / 8), 4);

                w[i] = (raw[i] >> 4 * quarter & NIBBLES) | (high & 0x30303030U);
        }
}

#define UNPACK_256(name)                                                                           \
        LANES_INLINE void unpack_##name(const uint8_t *const *row, uint64_t at, lanes_u *w,        \
                                        lanes_f *scale, lanes_f *minimum) {                        \
                lanes_u extra[24], raw[16];                                                        \
                                                                                                   \
                head_##name(row, at, extra, scale, minimum);                                       \
                _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {                     \
                        half_##name(row, at, half, raw);                                           \
                        quarter_##name(extra, raw, half, 0, w + 32 * half);                        \
                        quarter_##name(extra, raw, half, 1, w + 32 * half + 16);                   \
                }                                                                                  \
        }
UNPACK_256(q2_K)
UNPACK_256(q3_K)
UNPACK_256(q4_K)
UNPACK_256(q5_K)
UNPACK_256(q6_K)

/* ---- Several units at once: one load of a row brings them all -------------------------------- */

#ifdef LANES_HAVE_LOAD16

LANES_INLINE void split_nibbles(const lanes_u *q, lanes_u *w) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
                w[j] = q[j] & NIBBLES;
                w[4 + j] = q[j] >> 4 & NIBBLES;
        }
}

LANES_INLINE void unpack_wide_q4_0(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                   lanes_f *scale, lanes_f *minimum) {
        /* the three d, then the quants */
        static const uint16_t order[32] = {0,  9,  18, 18, 1,  2,  3,  4,  5,  6,  7,
                                           8,  10, 11, 12, 13, 14, 15, 16, 17, 19, 20,
                                           21, 22, 23, 24, 25, 26, 31, 31, 31, 31};
        lanes_u q[16];

        (void) minimum;
        lanes_load16(row, at, 54, order, q);
        scale[0] = lanes_half(q[0] & 0xffffU);
        scale[1] = lanes_half(q[0] >> 16);
        scale[2] = lanes_half(q[1] & 0xffffU);
#pragma GCC unroll 3
        for (int b = 0; b < 3; b++)
                split_nibbles(q + 2 + 4 * b, w + 8 * b);
}

LANES_INLINE void unpack_wide_iq4_nl(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                     lanes_f *scale, lanes_f *minimum) {
        unpack_wide_q4_0(row, at, w, scale, minimum);
#pragma GCC unroll 24
        for (int j = 0; j < 24; j++)
                w[j] = lanes_table16(w[j], iq4_nl_bytes[CPU_SIGNED_BYTES ? 0 : 1]);
}

/* Two blocks, the second at an odd byte. */
LANES_INLINE void unpack_wide_mxfp4(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                    lanes_f *scale, lanes_f *minimum) {
        lanes_u q[16], both[8];

        (void) minimum;
        lanes_load16(row, at, 34, NULL, q);
        scale[0] = lanes_e8m0_half(q[0] & 255U);
        scale[1] = lanes_e8m0_half(q[4] >> 8 & 255U);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
                both[j] = q[j] >> 8 | q[j + 1] << 24;
                both[4 + j] = q[4 + j] >> 16 | q[5 + j] << 16;
        }
        split_nibbles(both, w);
        split_nibbles(both + 4, w + 8);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++)
                w[j] = lanes_table16(w[j], e2m1_bytes);
}

LANES_INLINE void unpack_wide_q4_1(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                   lanes_f *scale, lanes_f *minimum) {
        lanes_u q[16];

        lanes_load16(row, at, 60, NULL, q);
#pragma GCC unroll 3
        for (int b = 0; b < 3; b++) {
                scale[b] = lanes_half(q[5 * b] & 0xffffU);
                minimum[b] = lanes_half(q[5 * b] >> 16);
                split_nibbles(q + 5 * b + 1, w + 8 * b);
        }
}

LANES_INLINE void unpack_wide_q5_0(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                   lanes_f *scale, lanes_f *minimum) {
        /* both d, both words of fifth bits, then the quants */
        static const uint16_t order[32] = {0,  11, 1,  2,  12, 13, 3,  4,  5,  6,  7,
                                           8,  9,  10, 14, 15, 16, 17, 18, 19, 20, 21,
                                           31, 31, 31, 31, 31, 31, 31, 31, 31, 31};
        lanes_u q[16];

        (void) minimum;
        lanes_load16(row, at, 44, order, q);
        scale[0] = lanes_half(q[0] & 0xffffU);
        scale[1] = lanes_half(q[0] >> 16);
#pragma GCC unroll 2
        for (int b = 0; b < 2; b++) {
                split_nibbles(q + 3 + 4 * b, w + 8 * b);
                unpack_fifth_bits(q[1 + b], w + 8 * b);
        }
}

LANES_INLINE void unpack_wide_q5_1(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                   lanes_f *scale, lanes_f *minimum) {
        lanes_u q[16];

        lanes_load16(row, at, 48, NULL, q);
#pragma GCC unroll 2
        for (int b = 0; b < 2; b++) {
                scale[b] = lanes_half(q[6 * b] & 0xffffU);
                minimum[b] = lanes_half(q[6 * b] >> 16);
                split_nibbles(q + 6 * b + 2, w + 8 * b);
                unpack_fifth_bits(q[6 * b + 1], w + 8 * b);
        }
}

#else
#define unpack_wide_q4_0 unpack_q4_0
#define unpack_wide_q4_1 unpack_q4_1
#define unpack_wide_q5_0 unpack_q5_0
#define unpack_wide_q5_1 unpack_q5_1
#define unpack_wide_iq4_nl unpack_iq4_nl
#define unpack_wide_mxfp4 unpack_mxfp4
#endif

#define unpack_wide_q8_0 unpack_q8_0
