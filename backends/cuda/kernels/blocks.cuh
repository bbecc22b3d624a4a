/*
 * Block types, taken apart 32 elements at a time.
 *
 * Every type fits one form: within each half of 16 elements, value = scale * q + offset with q a
 * signed byte. (Signs and the eighths of IQ1 are part of q.) unpack<TYPE>() gives a unit in it: the
 * products of integers then need nothing else, and the values are those of the layouts, scale
 * first, each step rounded to f32.
 *
 * Rows of blocks are aligned to two bytes, MXFP4's to one; nothing outside a block is read.
 */
#pragma once

#include "backends/cuda/kernels/common.cuh"

#define CODEBOOK CONSTANT
#include "cuda_codebooks.h"

/* 32 elements: four to a word, the first in the lowest byte. */
struct unit {
        uint32_t q[8];
        float scale[2], offset[2];
};

/* Elements that share a block; 1 for a plain type. */
DEVICE constexpr int block_size(uint32_t type) {
        switch (type) {
        case HR_TYPE_Q4_0:
        case HR_TYPE_Q4_1:
        case HR_TYPE_Q5_0:
        case HR_TYPE_Q5_1:
        case HR_TYPE_Q8_0:
        case HR_TYPE_IQ4_NL:
        case HR_TYPE_MXFP4: return 32;
        case HR_TYPE_NVFP4:
        case HR_TYPE_Q2_0: return 64;
        case HR_TYPE_Q1_0: return 128;
        case HR_TYPE_F32:
        case HR_TYPE_F16:
        case HR_TYPE_BF16:
        case HR_TYPE_I8:
        case HR_TYPE_I16:
        case HR_TYPE_I32:
        case HR_TYPE_I64: return 1;
        default: return 256;
        }
}

DEVICE constexpr int block_bytes(uint32_t type) {
        switch (type) {
        case HR_TYPE_I8: return 1;
        case HR_TYPE_F16:
        case HR_TYPE_BF16:
        case HR_TYPE_I16: return 2;
        case HR_TYPE_F32:
        case HR_TYPE_I32: return 4;
        case HR_TYPE_I64: return 8;
        case HR_TYPE_MXFP4: return 17;
        case HR_TYPE_Q4_0:
        case HR_TYPE_IQ4_NL:
        case HR_TYPE_Q1_0:
        case HR_TYPE_Q2_0: return 18;
        case HR_TYPE_Q4_1: return 20;
        case HR_TYPE_Q5_0: return 22;
        case HR_TYPE_Q5_1: return 24;
        case HR_TYPE_Q8_0: return 34;
        case HR_TYPE_NVFP4: return 36;
        case HR_TYPE_IQ1_S: return 50;
        case HR_TYPE_TQ1_0: return 54;
        case HR_TYPE_IQ1_M: return 56;
        case HR_TYPE_IQ2_XXS:
        case HR_TYPE_TQ2_0: return 66;
        case HR_TYPE_IQ2_XS: return 74;
        case HR_TYPE_IQ2_S: return 82;
        case HR_TYPE_Q2_K: return 84;
        case HR_TYPE_IQ3_XXS: return 98;
        case HR_TYPE_Q3_K:
        case HR_TYPE_IQ3_S: return 110;
        case HR_TYPE_IQ4_XS: return 136;
        case HR_TYPE_Q4_K: return 144;
        case HR_TYPE_Q5_K: return 176;
        default: return 210; /* Q6_K */
        }
}

/* ---- Bytes of words -------------------------------------------------------------------------- */

DEVICE uint32_t word_at(const byte *at) {
        return *(const uint16_t *) at | (uint32_t) *(const uint16_t *) (at + 2) << 16;
}

DEVICE uint32_t word_of_bytes(const byte *at) {
        return at[0] | (uint32_t) at[1] << 8 | (uint32_t) at[2] << 16 | (uint32_t) at[3] << 24;
}

/* How a block is read. BY_HALVES: from anywhere. The others from shared memory, of which whole
 * words around it may be read: BY_WORDS at any address, BY_PIECES where the row begins at a
 * multiple of sixteen, so that blocks of whole words begin at a multiple of four. */
enum { BY_HALVES, BY_WORDS, BY_PIECES };

/* COUNT words from `at` on. */
template <int READ, int COUNT> DEVICE void words_at(const byte *at, uint32_t *ret) {
        const uint32_t *from;
        uint32_t below, above;
        int shift;

#pragma unroll
        for (int j = 0; READ == BY_HALVES && j < COUNT; j++)
                ret[j] = word_at(at + 4 * j);
#pragma unroll
        for (int j = 0; READ == BY_PIECES && j < COUNT; j++)
                ret[j] = ((const uint32_t *) at)[j];
        if (READ != BY_WORDS)
                return;
        shift = (int) ((uintptr_t) at & 3);
        from = (const uint32_t *) (at - shift);
        below = from[0];
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
                above = from[j + 1];
                ret[j] = __funnelshift_r(below, above, 8 * shift);
                below = above;
        }
}

/* Sixteen bytes at a multiple of sixteen. */
DEVICE void piece_at(const byte *at, uint32_t *ret) {
        struct alignas(16) four {
                uint32_t word[4];
        } p = *(const four *) at;

#pragma unroll
        for (int j = 0; j < 4; j++)
                ret[j] = p.word[j];
}

/* Each byte below 128, less the constant's, which is at most 128. */
DEVICE uint32_t less(uint32_t bytes, uint32_t constant) {
        return ((bytes | 0x80808080u) - constant) ^ 0x80808080u;
}

/* Four bits to the lowest bits of four bytes. */
DEVICE uint32_t spread(uint32_t bits) {
        return (bits & 15) * 0x00204081u & 0x01010101u;
}

/* Positive bytes, negated where bit 0 .. 3 of `signs` is set. */
DEVICE uint32_t with_signs(uint32_t bytes, uint32_t signs) {
        uint32_t one = spread(signs);

        return (bytes ^ ((one << 8) - one)) + one;
}

/* Seven signs and the eighth, which makes their number even. */
DEVICE uint32_t eight_signs(uint32_t signs) {
        uint32_t s = signs & 127, parity = s ^ s >> 4;

        parity ^= parity >> 2;
        parity ^= parity >> 1;
        return s | (parity & 1) << 7;
}

/* Sixteen signed bytes. */
struct table16 {
        uint32_t word[4];
};

DEVICE table16 table_iq4(void) {
        table16 t = { { 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u } };

        return t;
}

DEVICE table16 table_fp4(void) {
        table16 t = { { 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu } };

        return t;
}

/* Entries for the low nibbles of four bytes, and for the high ones. */
DEVICE void look_up(table16 table, uint32_t nibbles, uint32_t *ret_low, uint32_t *ret_high) {
        uint32_t found[2];

        for (int i = 0; i < 2; i++) {
                uint32_t four = nibbles >> 16 * i, select = four & 0x7777u;
                uint32_t first = __byte_perm(table.word[0], table.word[1], select);
                uint32_t second = __byte_perm(table.word[2], table.word[3], select);

                found[i] = __byte_perm(first, second, 0x3210u | (four & 0x8888u) >> 1);
        }
        *ret_low = __byte_perm(found[0], found[1], 0x6420u);
        *ret_high = __byte_perm(found[0], found[1], 0x7531u);
}

/* ---- Blocks of 32, 64, 128 ------------------------------------------------------------------- */

DEVICE void one_scale(unit *u, float scale, float offset) {
        u->scale[0] = u->scale[1] = scale;
        u->offset[0] = u->offset[1] = offset;
}

/* Sixteen bytes of nibbles: the low ones first. */
template <int READ> DEVICE void nibbles16(unit *u, const byte *at) {
        uint32_t w[4];

        words_at<READ, 4>(at, w);
        for (int j = 0; j < 4; j++) {
                u->q[j] = w[j] & 0x0f0f0f0fu;
                u->q[4 + j] = w[j] >> 4 & 0x0f0f0f0fu;
        }
}

/* Of types whose bytes are all to be less by one number: what that is, unless it stays in them. */
DEVICE constexpr int bias_of(uint32_t type) {
        return type == HR_TYPE_Q4_0   ? 8
               : type == HR_TYPE_Q5_0 ? 16
               : type == HR_TYPE_Q3_K ? 4
               : type == HR_TYPE_Q6_K ? 32
                                      : 0;
}

template <int READ, uint32_t TYPE> DEVICE void take_bias(unit *u) {
        for (int j = 0; READ == BY_HALVES && j < 8; j++)
                u->q[j] = less(u->q[j], bias_of(TYPE) * 0x01010101u);
}

template <int READ> DEVICE void unpack_q4_0(const byte *block, unit *u) {
        nibbles16<READ>(u, block + 2);
        take_bias<READ, HR_TYPE_Q4_0>(u);
        one_scale(u, half_at(block), 0);
}

template <int READ> DEVICE void unpack_q4_1(const byte *block, unit *u) {
        nibbles16<READ>(u, block + 4);
        one_scale(u, half_at(block), half_at(block + 2));
}

DEVICE void fifths(unit *u, uint32_t bits) {
        for (int j = 0; j < 8; j++)
                u->q[j] |= spread(bits >> 4 * j) << 4;
}

template <int READ> DEVICE void unpack_q5_0(const byte *block, unit *u) {
        uint32_t bits;

        nibbles16<READ>(u, block + 6);
        words_at<READ, 1>(block + 2, &bits);
        fifths(u, bits);
        take_bias<READ, HR_TYPE_Q5_0>(u);
        one_scale(u, half_at(block), 0);
}

template <int READ> DEVICE void unpack_q5_1(const byte *block, unit *u) {
        uint32_t bits;

        nibbles16<READ>(u, block + 8);
        words_at<READ, 1>(block + 4, &bits);
        fifths(u, bits);
        one_scale(u, half_at(block), half_at(block + 2));
}

template <int READ> DEVICE void unpack_q8_0(const byte *block, unit *u) {
        words_at<READ, 8>(block + 2, u->q);
        one_scale(u, half_at(block), 0);
}

template <int READ> DEVICE void unpack_iq4_nl(const byte *block, unit *u) {
        uint32_t w[4];

        words_at<READ, 4>(block + 2, w);
        for (int j = 0; j < 4; j++)
                look_up(table_iq4(), w[j], &u->q[j], &u->q[4 + j]);
        one_scale(u, half_at(block), 0);
}

/* E8M0 and UE4M3, halved: the table of FP4 holds doubles. */
DEVICE float e8m0_half(uint32_t e) {
        return bits_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

DEVICE float ue4m3_half(uint32_t x) {
        uint32_t bits = x & 0x7f;

        /* Bias 7 against 127; the product is exact for subnormals too. */
        return bits == 0x7f ? 0 : bits_float(bits << 20) * 0x1p119f;
}

template <int READ> DEVICE void unpack_mxfp4(const byte *block, unit *u) {
        uint32_t w[4];

        if (READ == BY_HALVES)
                for (int j = 0; j < 4; j++)
                        w[j] = word_of_bytes(block + 1 + 4 * j);
        else
                words_at<BY_WORDS, 4>(block + 1, w);
        for (int j = 0; j < 4; j++)
                look_up(table_fp4(), w[j], &u->q[j], &u->q[4 + j]);
        one_scale(u, e8m0_half(block[0]), 0);
}

DEVICE void unpack_nvfp4(const byte *block, int g, unit *u) {
        for (int h = 0; h < 2; h++) {
                const byte *at = block + 4 + 16 * g + 8 * h;

                look_up(table_fp4(), word_at(at), &u->q[4 * h], &u->q[4 * h + 2]);
                look_up(table_fp4(), word_at(at + 4), &u->q[4 * h + 1], &u->q[4 * h + 3]);
                u->scale[h] = ue4m3_half(block[2 * g + h]);
                u->offset[h] = 0;
        }
}

DEVICE void unpack_q1_0(const byte *block, int g, unit *u) {
        uint32_t bits = word_at(block + 2 + 4 * g);

        for (int j = 0; j < 8; j++)
                u->q[j] = less(spread(bits >> 4 * j) << 1, 0x01010101u);
        one_scale(u, half_at(block), 0);
}

DEVICE void unpack_q2_0(const byte *block, int g, unit *u) {
        for (int j = 0; j < 8; j++) {
                uint32_t b = block[2 + 8 * g + j];

                u->q[j] = less((b | b << 6 | b << 12 | b << 18) & 0x03030303u, 0x01010101u);
        }
        one_scale(u, half_at(block), 0);
}

/* ---- Blocks of 256 with scales of scales ----------------------------------------------------- */

template <int READ> DEVICE void unpack_q2_k(const byte *block, int g, unit *u) {
        float d = half_at(block + 80), least = half_at(block + 82);

        words_at<READ, 8>(block + 16 + g / 4 * 32, u->q);
        for (int j = 0; j < 8; j++)
                u->q[j] = u->q[j] >> 2 * (g % 4) & 0x03030303u;
        for (int h = 0; h < 2; h++) {
                u->scale[h] = d * (float) (block[2 * g + h] & 15);
                u->offset[h] = -(least * (float) (block[2 * g + h] >> 4));
        }
}

template <int READ> DEVICE void unpack_q3_k(const byte *block, int g, unit *u) {
        const byte *packed = block + 96;
        float d = half_at(block + 108);
        uint32_t high[8];

        words_at<READ, 8>(block + 32 + g / 4 * 32, u->q);
        words_at<READ, 8>(block, high);
        for (int j = 0; j < 8; j++)
                u->q[j] = (u->q[j] >> 2 * (g % 4) & 0x03030303u) |
                          (high[j] >> g & 0x01010101u) << 2;
        take_bias<READ, HR_TYPE_Q3_K>(u);
        for (int h = 0; h < 2; h++) {
                int n = 2 * g + h;
                int low = n < 8 ? packed[n] & 15 : packed[n - 8] >> 4;
                int scale = (low | (packed[8 + n % 4] >> 2 * (n / 4) & 3) << 4) - 32;

                u->scale[h] = d * (float) scale;
                u->offset[h] = 0;
        }
}

/* The same of the sixteen bytes that a block begins with, when they are words. */
DEVICE void factors_of_words(const uint32_t *head, int g, unit *u) {
        uint32_t first = head[1] >> 8 * (g % 4), second = head[2] >> 8 * (g % 4);
        uint32_t third = head[3] >> 8 * (g % 4);
        int scale = (int) (g < 4 ? first & 63 : (third & 15) | (first >> 2 & 48));
        int minimum = (int) (g < 4 ? second & 63 : (third >> 4 & 15) | (second >> 2 & 48));

        one_scale(u, half_to_float((uint16_t) head[0]) * (float) scale,
                  -(half_to_float((uint16_t) (head[0] >> 16)) * (float) minimum));
}

/* Scale and minimum g of the six-bit pairs that Q4_K and Q5_K pack into twelve bytes. */
template <int READ> DEVICE void factors_k(const byte *block, int g, unit *u) {
        const byte *packed = block + 4;
        int scale, minimum;

        if (READ == BY_PIECES) {
                uint32_t head[4];

                piece_at(block, head);
                factors_of_words(head, g, u);
                return;
        }
        if (g < 4) {
                scale = packed[g] & 63;
                minimum = packed[4 + g] & 63;
        } else {
                scale = (packed[4 + g] & 15) | packed[g - 4] >> 6 << 4;
                minimum = packed[4 + g] >> 4 | packed[g] >> 6 << 4;
        }
        one_scale(u, half_at(block) * (float) scale, -(half_at(block + 2) * (float) minimum));
}

/* Thirty-two bytes of a block of whole pieces. */
template <int READ> DEVICE void two_pieces(const byte *at, uint32_t *ret) {
        if (READ != BY_PIECES) {
                words_at<READ, 8>(at, ret);
                return;
        }
        piece_at(at, ret);
        piece_at(at + 16, ret + 4);
}

template <int READ> DEVICE void unpack_q4_k(const byte *block, int g, unit *u) {
        two_pieces<READ>(block + 16 + g / 2 * 32, u->q);
        for (int j = 0; j < 8; j++)
                u->q[j] = u->q[j] >> 4 * (g % 2) & 0x0f0f0f0fu;
        factors_k<READ>(block, g, u);
}

template <int READ> DEVICE void unpack_q5_k(const byte *block, int g, unit *u) {
        uint32_t high[8];

        two_pieces<READ>(block + 48 + g / 2 * 32, u->q);
        two_pieces<READ>(block + 16, high);
        for (int j = 0; j < 8; j++)
                u->q[j] = (u->q[j] >> 4 * (g % 2) & 0x0f0f0f0fu) |
                          (high[j] >> g & 0x01010101u) << 4;
        factors_k<READ>(block, g, u);
}

template <int READ> DEVICE void unpack_q6_k(const byte *block, int g, unit *u) {
        int part = g / 4, quarter = g % 4;
        float d = half_at(block + 208);
        uint32_t high[8];

        words_at<READ, 8>(block + 64 * part + 32 * (quarter % 2), u->q);
        words_at<READ, 8>(block + 128 + 32 * part, high);
        for (int j = 0; j < 8; j++)
                u->q[j] = (u->q[j] >> 4 * (quarter / 2) & 0x0f0f0f0fu) |
                          (high[j] >> 2 * quarter & 0x03030303u) << 4;
        take_bias<READ, HR_TYPE_Q6_K>(u);
        for (int h = 0; h < 2; h++) {
                u->scale[h] = d * (float) (int8_t) block[192 + 2 * g + h];
                u->offset[h] = 0;
        }
}

/* ---- Blocks of 256 with codebooks, and the ternary ones -------------------------------------- */

DEVICE void octet(const uint32_t *codebook, uint32_t index, uint32_t signs, uint32_t *q) {
        q[0] = with_signs(codebook[2 * index], signs);
        q[1] = with_signs(codebook[2 * index + 1], signs >> 4);
}

DEVICE void unpack_iq2_xxs(const byte *block, int g, unit *u) {
        uint32_t index = word_at(block + 2 + 8 * g), rest = word_at(block + 6 + 8 * g);

        for (int l = 0; l < 4; l++)
                octet(hr_codebook_grid_iq2_xxs, index >> 8 * l & 255, eight_signs(rest >> 7 * l),
                      u->q + 2 * l);
        one_scale(u, half_at(block) * 0.125f * (float) (2 * (rest >> 28) + 1), 0);
}

DEVICE void unpack_iq2_xs(const byte *block, int g, unit *u) {
        for (int l = 0; l < 4; l++) {
                uint32_t word = *(const uint16_t *) (block + 2 + 8 * g + 2 * l);

                octet(hr_codebook_grid_iq2_xs, word & 511, eight_signs(word >> 9), u->q + 2 * l);
        }
        for (int h = 0; h < 2; h++) {
                u->scale[h] = half_at(block) * 0.125f *
                              (float) (2 * (block[66 + g] >> 4 * h & 15) + 1);
                u->offset[h] = 0;
        }
}

DEVICE void unpack_iq2_s(const byte *block, int g, unit *u) {
        for (int l = 0; l < 4; l++) {
                uint32_t index = block[2 + 4 * g + l] | (block[66 + g] >> 2 * l & 3) << 8;

                octet(hr_codebook_grid_iq2_s, index, block[34 + 4 * g + l], u->q + 2 * l);
        }
        for (int h = 0; h < 2; h++) {
                u->scale[h] = half_at(block) * 0.125f *
                              (float) (2 * (block[74 + g] >> 4 * h & 15) + 1);
                u->offset[h] = 0;
        }
}

DEVICE void unpack_iq3_xxs(const byte *block, int g, unit *u) {
        uint32_t rest = word_at(block + 66 + 4 * g);

        for (int j = 0; j < 8; j++)
                u->q[j] = with_signs(hr_codebook_grid_iq3_xxs[block[2 + 8 * g + j]],
                                     eight_signs(rest >> 7 * (j / 2)) >> 4 * (j % 2));
        one_scale(u, half_at(block) * 0.25f * (float) (2 * (rest >> 28) + 1), 0);
}

DEVICE void unpack_iq3_s(const byte *block, int g, unit *u) {
        for (int j = 0; j < 8; j++) {
                int index = block[2 + 8 * g + j] | (block[66 + g] >> j & 1) << 8;

                u->q[j] = with_signs(hr_codebook_grid_iq3_s[index],
                                     (uint32_t) block[74 + 4 * g + j / 2] >> 4 * (j % 2));
        }
        one_scale(u, half_at(block) * (float) (2 * (block[106 + g / 2] >> 4 * (g % 2) & 15) + 1),
                  0);
}

/* An entry of IQ1's codebook in eighths, one more or one less. */
DEVICE void eighths(uint32_t index, bool is_less, uint32_t *q) {
        uint32_t delta = is_less ? 0xfefefeffu : 0x01010101u;

        for (int i = 0; i < 2; i++) /* around 128, so that nothing is carried between bytes */
                q[i] = (((hr_codebook_grid_iq1_s[2 * index + i] << 3 & 0xf8f8f8f8u) ^ 0x80808080u) +
                        delta) ^
                       0x80808080u;
}

DEVICE void unpack_iq1_s(const byte *block, int g, unit *u) {
        uint32_t high = *(const uint16_t *) (block + 34 + 2 * g);

        for (int l = 0; l < 4; l++)
                eighths(block[2 + 4 * g + l] | (high >> 3 * l & 7) << 8, high >> 15, u->q + 2 * l);
        one_scale(u, half_at(block) * 0.125f * (float) (2 * (high >> 12 & 7) + 1), 0);
}

DEVICE void unpack_iq1_m(const byte *block, int g, unit *u) {
        uint32_t bits = 0, factors = *(const uint16_t *) (block + 48 + g / 2 * 2);
        float d;

        for (int j = 0; j < 4; j++)
                bits |= (uint32_t) (block[49 + 2 * j] >> 4) << 4 * j;
        d = half_to_float((uint16_t) bits) * 0.125f;
        for (int l = 0; l < 4; l++) {
                uint32_t high = (uint32_t) block[32 + 2 * g + l / 2] >> 4 * (l % 2);

                eighths(block[4 * g + l] | (high & 7) << 8, high >> 3 & 1, u->q + 2 * l);
        }
        for (int h = 0; h < 2; h++) {
                u->scale[h] = d * (float) (2 * (factors >> 3 * (2 * (g % 2) + h) & 7) + 1);
                u->offset[h] = 0;
        }
}

template <int READ> DEVICE void unpack_iq4_xs(const byte *block, int g, unit *u) {
        int low = block[4 + g / 2] >> 4 * (g % 2) & 15;
        int factor = (low | (*(const uint16_t *) (block + 2) >> 2 * g & 3) << 4) - 32;
        uint32_t w[4];

        words_at<READ, 4>(block + 8 + 16 * g, w);
        for (int j = 0; j < 4; j++)
                look_up(table_iq4(), w[j], &u->q[j], &u->q[4 + j]);
        one_scale(u, half_at(block) * (float) factor, 0);
}

/* Digit in base 3 of each byte, less one: a byte is a fraction in 256ths, moved up by a power of
 * 3. */
DEVICE uint32_t trits(uint32_t bytes, uint32_t power) {
        uint32_t even = (bytes & 0x00ff00ffu) * power & 0x00ff00ffu;
        uint32_t odd = (bytes >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;

        even += even << 1;
        odd += odd << 1;
        return less((even >> 8 & 0x00030003u) | (odd & 0x03000300u), 0x01010101u);
}

DEVICE uint32_t power_of_3(int n) {
        return n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
}

DEVICE void unpack_tq1_0(const byte *block, int g, unit *u) {
        for (int j = 0; j < 8; j++) {
                int place = 2 * (g - 5) + j / 4; /* of the sixteen bytes with five digits each */

                if (g < 5)
                        u->q[j] = trits(word_at(block + 4 * j), power_of_3(g));
                else if (place < 5)
                        u->q[j] = trits(word_at(block + 32 + j % 4 * 4), power_of_3(place));
                else
                        u->q[j] = trits(word_at(block + 48), power_of_3(j % 4));
        }
        one_scale(u, half_at(block + 52), 0);
}

DEVICE void unpack_tq2_0(const byte *block, int g, unit *u) {
        for (int j = 0; j < 8; j++)
                u->q[j] = less(word_at(block + g / 4 * 32 + 4 * j) >> 2 * (g % 4) & 0x03030303u,
                               0x01010101u);
        one_scale(u, half_at(block + 64), 0);
}

/* ---- Any ------------------------------------------------------------------------------------- */

/* Elements 32 g .. 32 g + 31 of a block. Read otherwise than BY_HALVES their bytes still have the
 * type's bias. */
template <uint32_t TYPE, int READ = BY_HALVES>
DEVICE void unpack(const byte *block, int g, unit *u) {
        switch (TYPE) {
        case HR_TYPE_Q4_0: unpack_q4_0<READ>(block, u); break;
        case HR_TYPE_Q4_1: unpack_q4_1<READ>(block, u); break;
        case HR_TYPE_Q5_0: unpack_q5_0<READ>(block, u); break;
        case HR_TYPE_Q5_1: unpack_q5_1<READ>(block, u); break;
        case HR_TYPE_Q8_0: unpack_q8_0<READ>(block, u); break;
        case HR_TYPE_IQ4_NL: unpack_iq4_nl<READ>(block, u); break;
        case HR_TYPE_MXFP4: unpack_mxfp4<READ>(block, u); break;
        case HR_TYPE_NVFP4: unpack_nvfp4(block, g, u); break;
        case HR_TYPE_Q1_0: unpack_q1_0(block, g, u); break;
        case HR_TYPE_Q2_0: unpack_q2_0(block, g, u); break;
        case HR_TYPE_Q2_K: unpack_q2_k<READ>(block, g, u); break;
        case HR_TYPE_Q3_K: unpack_q3_k<READ>(block, g, u); break;
        case HR_TYPE_Q4_K: unpack_q4_k<READ>(block, g, u); break;
        case HR_TYPE_Q5_K: unpack_q5_k<READ>(block, g, u); break;
        case HR_TYPE_Q6_K: unpack_q6_k<READ>(block, g, u); break;
        case HR_TYPE_IQ2_XXS: unpack_iq2_xxs(block, g, u); break;
        case HR_TYPE_IQ2_XS: unpack_iq2_xs(block, g, u); break;
        case HR_TYPE_IQ2_S: unpack_iq2_s(block, g, u); break;
        case HR_TYPE_IQ3_XXS: unpack_iq3_xxs(block, g, u); break;
        case HR_TYPE_IQ3_S: unpack_iq3_s(block, g, u); break;
        case HR_TYPE_IQ1_S: unpack_iq1_s(block, g, u); break;
        case HR_TYPE_IQ1_M: unpack_iq1_m(block, g, u); break;
        case HR_TYPE_IQ4_XS: unpack_iq4_xs<READ>(block, g, u); break;
        case HR_TYPE_TQ1_0: unpack_tq1_0(block, g, u); break;
        default: unpack_tq2_0(block, g, u); break;
        }
}

/* X(type): the block types that are weights. */
#define BLOCK_TYPES(X)                                                                             \
        X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4) X(NVFP4) X(Q1_0) X(Q2_0)        \
        X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S)  \
        X(IQ1_S) X(IQ1_M) X(IQ4_XS) X(TQ1_0) X(TQ2_0)

/* Elements 32 i .. 32 i + 31 of a row of blocks. */
DEVICE void unpack_inline(uint32_t type, const byte *row, int64_t i, unit *u) {
        int units = block_size(type) / 32;
        const byte *block = row + i / units * block_bytes(type);
        int g = (int) (i % units);

        switch (type) {
#define X(name)                                                                                    \
        case HR_TYPE_##name: unpack<HR_TYPE_##name>(block, g, u); break;
                BLOCK_TYPES(X)
#undef X
        default: break;
        }
}

/* The same where its length counts. */
OUTLINE void unpack_any(uint32_t type, const byte *row, int64_t i, unit *u) {
        unpack_inline(type, row, i, u);
}

DEVICE int unit_level(const unit *u, int i) {
        return (int8_t) (u->q[i / 4] >> 8 * (i % 4));
}

/* Rounded after the product and after the sum, whatever the compiler joins elsewhere. */
DEVICE float unit_value(const unit *u, int i) {
        return __fadd_rn(__fmul_rn(u->scale[i / 16], (float) unit_level(u, i)), u->offset[i / 16]);
}

/* Element i of a row of any floats. */
DEVICE float any_element(const cuda_tensor &t, const byte *row, int64_t i) {
        unit u;

        if (block_size(t.type) == 1)
                return load_float(row + i * t.nb[0], t.type);
        unpack_any(t.type, row, i / 32, &u);
        return unit_value(&u, (int) (i % 32));
}
