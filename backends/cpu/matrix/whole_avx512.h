/*
 * One column times rows of 32-blocks without a minimum, whose products are added up as integers
 * (dot_fast32.c): AVX-512 with VNNI.
 *
 * Each half of a 256-bit vector takes the sixteen bytes of nibbles of one row. Those of four rows
 * are turned round, so that a vector holds the same dword of eight rows, and from there on rows lie
 * side by side: a dot product of bytes adds to the sum of a block, and there is nothing left to add
 * up across a vector. The scales of four blocks of a row are within one load; a permutation puts
 * them where those of the other rows leave room.
 *
 * High nibbles that need no table stay 16 times too large, and so does their sum, until it is
 * whole.
 */
#pragma once

#include "backends/cpu/matrix/abreast_avx512.h"

#if defined(__AVX512VNNI__) /* what the compiler may use here */

#define WORDS_AT_ONCE 4 /* blocks of each row whose scales are taken together */

struct whole {
        const uint8_t *table; /* bytes that nibbles stand for, or NULL */
        int size;             /* of a block; d comes first, the nibbles last */
};

/* Dword j of each row: ret[j], the first four rows in the lower half. */
LANES_INLINE void turn_round(const __m256i row[4], __m256i ret[4]) {
        const __m256i a = _mm256_unpacklo_epi32(row[0], row[1]);
        const __m256i b = _mm256_unpackhi_epi32(row[0], row[1]);
        const __m256i c = _mm256_unpacklo_epi32(row[2], row[3]);
        const __m256i d = _mm256_unpackhi_epi32(row[2], row[3]);

        ret[0] = _mm256_unpacklo_epi64(a, c);
        ret[1] = _mm256_unpackhi_epi64(a, c);
        ret[2] = _mm256_unpacklo_epi64(b, d);
        ret[3] = _mm256_unpackhi_epi64(b, d);
}

LANES_INLINE __m256i look_up(const uint8_t *table, __m256i nibbles) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *) table);

        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), nibbles);
}

/* w.q of a block of eight rows, exact. q: the column's dwords of that block. */
LANES_INLINE __m256i sum_block(const uint8_t *const half[2], uint64_t stride, const uint32_t *q,
                               int32_t bias, const struct whole type) {
        const __m256i low_bits = _mm256_set1_epi8(0xf), high_bits = _mm256_set1_epi8((char) 0xf0);
        __m256i low = _mm256_set1_epi32(bias), high = _mm256_setzero_si256(), row[4], w[4];

#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
                const uint64_t at = stride * (uint64_t) r + (uint64_t) (type.size - 16);

                row[r] = _mm256_inserti128_si256(
                        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) (half[0] + at))),
                        _mm_loadu_si128((const __m128i *) (half[1] + at)), 1);
        }
        turn_round(row, w);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
                const __m256i first = _mm256_set1_epi32((int) q[j]);
                const __m256i last = _mm256_set1_epi32((int) q[4 + j]);

                if (type.table) {
                        const __m256i shifted = _mm256_srli_epi32(w[j], 4);

                        low = _mm256_dpbusd_epi32(
                                low, look_up(type.table, _mm256_and_si256(w[j], low_bits)), first);
                        high = _mm256_dpbusd_epi32(
                                high, look_up(type.table, _mm256_and_si256(shifted, low_bits)),
                                last);
                } else {
                        low = _mm256_dpbusd_epi32(low, _mm256_and_si256(w[j], low_bits), first);
                        high = _mm256_dpbusd_epi32(high, _mm256_and_si256(w[j], high_bits), last);
                }
        }
        return _mm256_add_epi32(low, type.table ? high : _mm256_srai_epi32(high, 4));
}

/* The words that WORDS_AT_ONCE blocks of eight rows begin with: eight for each block, side by
 * side. */
LANES_INLINE __m512i words_abreast(const uint8_t *const half[2], uint64_t stride, const int size) {
        const __m512i block = _mm512_set_epi64(
                0x0003000300030003, 0x0003000300030003, 0x0002000200020002, 0x0002000200020002,
                0x0001000100010001, 0x0001000100010001, 0, 0);
        const __m512i at = _mm512_mullo_epi16(block, _mm512_set1_epi16((short) (size / 2)));
        __m512i words[ABREAST / 2]; /* of two rows: short chains */

#pragma GCC unroll 4
        for (int i = 0; i < ABREAST / 2; i++) {
                const __mmask32 row = (__mmask32) 0x01010101U << 2 * i;

                words[i] = _mm512_maskz_permutexvar_epi16(
                        row, at, _mm512_loadu_si512(row_of(half, stride, 2 * i)));
                words[i] = _mm512_mask_permutexvar_epi16(
                        words[i], row << 1, at,
                        _mm512_loadu_si512(row_of(half, stride, 2 * i + 1)));
        }
        return _mm512_or_si512(_mm512_or_si512(words[0], words[1]),
                               _mm512_or_si512(words[2], words[3]));
}

/* Where the column's arrays are (dot.h). */
struct whole_column {
        const uint32_t *q;
        const int32_t *bias;
        const float *scale;
};

/* Block b of eight rows, given the words of their scales. */
LANES_INLINE __m256 add_whole(const uint8_t *const half[2], uint64_t stride, int64_t b,
                              const struct whole_column *at, __m128i words,
                              const struct whole type, __m256 total) {
        const __m256i sum = sum_block(half, stride, at->q + 8 * b, at->bias[b], type);
        const __m256 factor = _mm256_mul_ps(_mm256_cvtph_ps(words), _mm256_set1_ps(at->scale[b]));

        return _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(sum), total);
}

LANES_INLINE void eight_whole(const uint8_t *base, uint64_t stride, int64_t blocks,
                              const struct whole_column *at, const struct whole type,
                              const uint8_t *ahead, const bool near, float *ret_out) {
        const uint8_t *half[2] = {base, base + 4 * stride};
        __m256 total = _mm256_setzero_ps();
        int64_t b = 0;

        while (b + WORDS_AT_ONCE <= blocks) {
                __m128i words[WORDS_AT_ONCE];

                _mm512_storeu_si512(words, words_abreast(half, stride, type.size));
#pragma GCC unroll 4
                for (int i = 0; i < WORDS_AT_ONCE; i++, b++) {
                        prefetch_line(ahead, type.size, near);
                        total = add_whole(half, stride, b, at, words[i], type, total);
                        half[0] += type.size;
                        half[1] += type.size;
                        ahead += type.size * ABREAST;
                }
        }
        for (; b < blocks; b++) {
                prefetch_line(ahead, type.size, near);
                total = add_whole(half, stride, b, at, first_words(half, stride), type, total);
                half[0] += type.size;
                half[1] += type.size;
                ahead += type.size * ABREAST;
        }
        _mm256_storeu_ps(ret_out, total);
}

/* CPU_LANES rows. */
LANES_INLINE void stream_whole(const uint8_t *base, uint64_t stride, int64_t blocks,
                               const struct whole_column at, const struct whole type,
                               float *ret_out) {
        const bool near = stride * CPU_LANES <= PREFETCH_FAR;

        for (uint32_t r = 0; r < CPU_LANES; r += ABREAST) {
                const uint8_t *rows = base + stride * r, *ahead = rows + stride * CPU_LANES;

                if (near)
                        eight_whole(rows, stride, blocks, &at, type, ahead, true, ret_out + r);
                else
                        eight_whole(rows, stride, blocks, &at, type, ahead, false, ret_out + r);
        }
}

#endif
