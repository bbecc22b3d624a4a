/*
 * Blocks of 256 of the IQ and ternary types as tiles: unpack_<type>() takes one block of CPU_LANES
 * rows apart.
 *
 * w[e / 4] becomes elements e .. e + 3 of each row: bytes of either sign where CPU_SIGNED_BYTES,
 * else larger by 128; levels 0 .. 2 of the ternary types, larger by 1, everywhere. scale[g] is the
 * factor of group g, exact in f32. Codebook entries are looked up for all rows at once; an offset
 * of an eighth is part of bytes that count eighths.
 */
#pragma once

#include "backends/cpu/matrix/unpack.h"
#include "core/codebooks.h"

/* Signed bytes as the products take them. */
LANES_INLINE lanes_u settle_bytes(lanes_u w) {
#if CPU_SIGNED_BYTES
        return w;
#else
        return w ^ 0x80808080U;
#endif
}

/* Positive bytes, negated where bit 0 .. 3 of `signs` is set. */
LANES_INLINE lanes_u apply_signs(lanes_u w, lanes_u signs) {
        lanes_u one = spread_bits(signs);

        return settle_bytes((w ^ ((one << 8) - one)) + one);
}

/* Seven signs and the eighth, which makes their number even. */
LANES_INLINE lanes_u complete_signs(lanes_u signs) {
        lanes_u s = signs & 127U, parity = s ^ s >> 4;

        parity ^= parity >> 2;
        parity ^= parity >> 1;
        return s | (parity & 1U) << 7;
}

/* Entry `index` of a codebook of eight bytes an entry, under eight signs. */
LANES_INLINE void unpack_octet(const uint32_t *codebook, lanes_u index, lanes_u signs, lanes_u *w) {
        lanes_u entry[2];

        lanes_gather2(codebook, index, entry);
        w[0] = apply_signs(entry[0], signs);
        w[1] = apply_signs(entry[1], signs >> 4);
}

LANES_INLINE lanes_f odd_factor(lanes_u s) {
        return lanes_from_int(s << 1 | 1U);
}

LANES_INLINE void unpack_iq2_xxs(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                 lanes_f *scale) {
        lanes_f eighth = lanes_load_half(row, at) * 0.125f;
        lanes_u q[16];

        lanes_load16(row, at + 2, 64, NULL, q);
        for (int g = 0; g < 8; g++) {
                lanes_u index = q[2 * g], rest = q[2 * g + 1];

                scale[g] = eighth * odd_factor(rest >> 28);
#pragma GCC unroll 4
                for (int l = 0; l < 4; l++)
                        unpack_octet(hr_codebook_grid_iq2_xxs, index >> 8 * l & 255U,
                                     complete_signs(rest >> 7 * l), w + 8 * g + 2 * l);
        }
}

LANES_INLINE void unpack_iq2_xs(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                lanes_f *scale) {
        lanes_f eighth = lanes_load_half(row, at) * 0.125f;
        lanes_u q[16], s[2] = {lanes_load1(row, at + 66), lanes_load1(row, at + 70)};

        lanes_load16(row, at + 2, 64, NULL, q);
        for (int g = 0; g < 16; g++) {
                scale[g] = eighth * odd_factor(s[g / 8] >> 4 * (g % 8) & 15U);
#pragma GCC unroll 2
                for (int l = 0; l < 2; l++) {
                        lanes_u word = q[g] >> 16 * l & 0xffffU;

                        unpack_octet(hr_codebook_grid_iq2_xs, word & 511U,
                                     complete_signs(word >> 9), w + 4 * g + 2 * l);
                }
        }
}

LANES_INLINE void unpack_iq2_s(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale) {
        lanes_f eighth = lanes_load_half(row, at) * 0.125f;
        lanes_u q[16], rest[4]; /* indices, signs; their high bits, scales */

        lanes_load16(row, at + 2, 64, NULL, q);
        lanes_load4(row, at + 66, rest);
        for (int g = 0; g < 16; g++)
                scale[g] = eighth * odd_factor(rest[2 + g / 8] >> 4 * (g % 8) & 15U);
        for (int i = 0; i < 32; i++) {
                lanes_u low = q[i / 4] >> 8 * (i % 4) & 255U;
                lanes_u high = rest[i / 16] >> 2 * (i % 16) & 3U;

                unpack_octet(hr_codebook_grid_iq2_s, low | high << 8, q[8 + i / 4] >> 8 * (i % 4),
                             w + 2 * i);
        }
}

LANES_INLINE void unpack_iq3_xxs(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                 lanes_f *scale) {
        lanes_f quarter = lanes_load_half(row, at) * 0.25f;
        lanes_u q[16], rest[8];

        lanes_load16(row, at + 2, 64, NULL, q);
        lanes_load4(row, at + 66, rest);
        lanes_load4(row, at + 82, rest + 4);
        for (int g = 0; g < 8; g++) {
                scale[g] = quarter * odd_factor(rest[g] >> 28);
#pragma GCC unroll 4
                for (int l = 0; l < 4; l++) {
                        lanes_u signs = complete_signs(rest[g] >> 7 * l);
                        lanes_u index = q[2 * g + l / 2] >> 16 * (l % 2);

                        w[8 * g + 2 * l] = apply_signs(
                                lanes_gather(hr_codebook_grid_iq3_xxs, index & 255U), signs);
                        w[8 * g + 2 * l + 1] = apply_signs(
                                lanes_gather(hr_codebook_grid_iq3_xxs, index >> 8 & 255U),
                                signs >> 4);
                }
        }
}

LANES_INLINE void unpack_iq3_s(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale) {
        lanes_f d = lanes_load_half(row, at);
        lanes_u high[2] = {lanes_load1(row, at + 66), lanes_load1(row, at + 70)};
        lanes_u q[16], signs[8], s = lanes_load1(row, at + 106);

        lanes_load16(row, at + 2, 64, NULL, q);
        lanes_load4(row, at + 74, signs);
        lanes_load4(row, at + 90, signs + 4);
        for (int g = 0; g < 8; g++)
                scale[g] = d * odd_factor(s >> 4 * g & 15U);
        for (int j = 0; j < 64; j++) {
                lanes_u index = q[j / 4] >> 8 * (j % 4) & 255U;

                index |= (high[j / 32] >> j % 32 & 1U) << 8;
                w[j] = apply_signs(lanes_gather(hr_codebook_grid_iq3_s, index),
                                   signs[j / 8] >> 4 * (j % 8));
        }
}

/* Entry `index` of IQ1's codebook in eighths, one less where `is_less` is 1, else one more. */
LANES_INLINE void unpack_eighths(lanes_u index, lanes_u is_less, lanes_u *w) {
        lanes_u entry[2], delta = 0x01010101U - is_less * 0x02020202U;

        lanes_gather2(hr_codebook_grid_iq1_s, index, entry);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) { /* around 128, so that nothing is carried between bytes */
                lanes_u moved = ((entry[i] << 3 & 0xf8f8f8f8U) ^ 0x80808080U) + delta;

                w[i] = settle_bytes(moved ^ 0x80808080U);
        }
}

LANES_INLINE void unpack_iq1_s(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale) {
        lanes_f eighth = lanes_load_half(row, at) * 0.125f;
        lanes_u q[8], high[4];

        lanes_load4(row, at + 2, q);
        lanes_load4(row, at + 18, q + 4);
        lanes_load4(row, at + 34, high);
        for (int g = 0; g < 8; g++) {
                lanes_u h = high[g / 2] >> 16 * (g % 2) & 0xffffU;

                scale[g] = eighth * odd_factor(h >> 12 & 7U);
#pragma GCC unroll 4
                for (int l = 0; l < 4; l++)
                        unpack_eighths((q[g] >> 8 * l & 255U) | (h >> 3 * l & 7U) << 8, h >> 15,
                                       w + 8 * g + 2 * l);
        }
}

LANES_INLINE void unpack_iq1_m(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale) {
        lanes_u q[8], high[4], s[2] = {lanes_load1(row, at + 48), lanes_load1(row, at + 52)};
        lanes_u bits =
                (s[0] >> 12 & 15U) | s[0] >> 28 << 4 | (s[1] >> 12 & 15U) << 8 | s[1] >> 28 << 12;
        lanes_f eighth = lanes_half(bits) * 0.125f;

        lanes_load4(row, at, q);
        lanes_load4(row, at + 16, q + 4);
        lanes_load4(row, at + 32, high);
        for (int g = 0; g < 16; g++)
                scale[g] = eighth * odd_factor(s[g / 8] >> (16 * (g / 4 % 2) + 3 * (g % 4)) & 7U);
        for (int i = 0; i < 32; i++) {
                lanes_u h = high[i / 8] >> 4 * (i % 8);

                unpack_eighths((q[i / 4] >> 8 * (i % 4) & 255U) | (h & 7U) << 8, h >> 3 & 1U,
                               w + 2 * i);
        }
}

LANES_INLINE void unpack_iq4_xs(const uint8_t *const *row, uint64_t at, lanes_u *w,
                                lanes_f *scale) {
        lanes_u head = lanes_load1(row, at), low = lanes_load1(row, at + 4), q[16];
        lanes_f d = lanes_half(head & 0xffffU);

        for (int g = 0; g < 8; g++) {
                lanes_u factor = (low >> 4 * g & 15U) | (head >> (16 + 2 * g) & 3U) << 4;

                scale[g] = d * lanes_from_int(factor - 32U);
                if (g % 4 == 0)
                        lanes_load16(row, at + 8 + 16 * (uint64_t) g, 64, NULL, q);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                        const uint8_t *values = iq4_nl_bytes[CPU_SIGNED_BYTES ? 0 : 1];
                        lanes_u both = q[4 * (g % 4) + j];

                        w[8 * g + j] = lanes_table16(both & NIBBLES, values);
                        w[8 * g + 4 + j] = lanes_table16(both >> 4 & NIBBLES, values);
                }
        }
}

/* Digit in base 3 of each byte: the byte is a fraction in 256ths, moved up by a power of 3. */
LANES_INLINE lanes_u unpack_trits(lanes_u bytes, uint32_t power) {
        lanes_u even = (bytes & 0x00ff00ffU) * power & 0x00ff00ffU;
        lanes_u odd = (bytes >> 8 & 0x00ff00ffU) * power & 0x00ff00ffU;

        even = (even << 1) + even;
        odd = (odd << 1) + odd;
        return (even >> 8 & 0x00030003U) | (odd & 0x03000300U);
}

LANES_INLINE void unpack_tq1_0(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale) {
        static const uint32_t power[5] = {1, 3, 9, 27, 81};
        lanes_u q[12], last = lanes_load1(row, at + 48);
        lanes_f d = lanes_load_half(row, at + 52);

#pragma GCC unroll 3
        for (int i = 0; i < 3; i++)
                lanes_load4(row, at + 16 * (uint64_t) i, q + 4 * i);
        for (int n = 0; n < 5; n++) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++)
                        w[8 * n + i] = unpack_trits(q[i], power[n]);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++)
                        w[40 + 4 * n + i] = unpack_trits(q[8 + i], power[n]);
                if (n < 4)
                        w[60 + n] = unpack_trits(last, power[n]);
        }
        for (int g = 0; g < 8; g++)
                scale[g] = d;
}

LANES_INLINE void unpack_tq2_0(const uint8_t *const *row, uint64_t at, lanes_u *w, lanes_f *scale) {
        lanes_f d = lanes_load_half(row, at + 64);
        lanes_u q[16];

        lanes_load16(row, at, 64, NULL, q);
        for (int g = 0; g < 8; g++) {
                scale[g] = d;
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++)
                        w[8 * g + i] = q[8 * (g / 4) + i] >> 2 * (g % 4) & 0x03030303U;
        }
}
