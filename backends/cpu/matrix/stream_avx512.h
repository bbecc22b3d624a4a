/*
 * One column times rows of 32-blocks, row by row: AVX-512 with VNNI.
 *
 * A 256-bit vector holds the eight dwords of one block of one row, which is how ggml's order adds
 * them up (dot_body32.h), so that nothing has to be transposed: bytes are loaded where they are,
 * opened, and multiplied. What is left are the scales, a word of each block: they are taken out
 * first, for a stretch of blocks of each row, and lie side by side then.
 *
 * This wins where opening a block costs more than reading it: for nibbles that share nothing but a
 * scale. Memory is asked for ahead in the order in which rows lie in it.
 */
#pragma once

#include <immintrin.h>

#include "backends/cpu/matrix/dot_body32.h"
#include "backends/cpu/matrix/tile_rows.h"
#include "backends/cpu/matrix/unpack.h"

#if defined(__AVX512VNNI__) /* what the compiler may use here */

#define STRETCH 32 /* blocks of a row: as many words as a vector has */
#define ABREAST 8  /* rows that are multiplied side by side: enough to hide how long a step takes */

LANES_INLINE __m256i open_nibbles(const uint8_t *bytes) {
        __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) bytes));

        both = _mm256_srlv_epi32(both, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
        return _mm256_and_si256(both, _mm256_set1_epi8(0xf));
}

/* The bytes of a block, in order. */
LANES_INLINE __m256i open_q4_0(const uint8_t *block) {
        return open_nibbles(block + 2);
}

LANES_INLINE __m256i open_q5_0(const uint8_t *block) {
        __m256i w = open_nibbles(block + 6);

        return _mm256_mask_add_epi8(w, cpu_read_u32(block + 2), w, _mm256_set1_epi8(16));
}

LANES_INLINE __m256i open_iq4_nl(const uint8_t *block) {
        __m128i table = _mm_loadu_si128((const __m128i *) iq4_nl_bytes[1]);

        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), open_nibbles(block + 2));
}

struct streamed {
        __m256i (*open)(const uint8_t *block);
        int size; /* of a block; even, its scale comes first */
};

/* The first word of each of `count` blocks. Windows of 32 words go over them; block j's word is
 * word j * words % 32 of its window, and those of one window are neighbours in the result. */
LANES_INLINE __m512i take_words(const uint8_t *blocks, int64_t count, const int words) {
        static const uint16_t numbers[STRETCH] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                                  11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                                  22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
        const __m512i index =
                _mm512_mullo_epi16(_mm512_loadu_si512(numbers), _mm512_set1_epi16((short) words));
        int64_t left = count * words;
        __m512i taken = _mm512_setzero_si512();

#pragma GCC unroll 11
        for (int i = 0; i < words; i++, left -= 32) {
                const int first = (32 * i + words - 1) / words;
                const int end = (32 * (i + 1) + words - 1) / words;
                const __mmask32 of_window = (__mmask32) ((1ULL << end) - (1ULL << first));
                __mmask32 there = 0xffffffffU;

                if (left <= 0)
                        break;
                if (left < 32)
                        there = (1U << left) - 1;
                taken = _mm512_mask_permutexvar_epi16(
                        taken, of_window, index, _mm512_maskz_loadu_epi16(there, blocks + 64 * i));
        }
        return taken;
}

/* The scales of a stretch of one row times those of the column. */
LANES_INLINE void stretch_scale(const uint8_t *blocks, int64_t count, const float *scale,
                                const struct streamed type, float *ret_factor) {
        const __mmask16 low = count >= 16 ? 0xffff : (__mmask16) ((1U << count) - 1);
        const __mmask16 high = count <= 16 ? 0 : (__mmask16) ((1U << (count - 16)) - 1);
        const __m512i d = take_words(blocks, count, type.size / 2);
        const __m512 d0 = _mm512_cvtph_ps(_mm512_castsi512_si256(d));
        const __m512 d1 = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(d, 1));

        _mm512_storeu_ps(ret_factor, _mm512_mul_ps(d0, _mm512_maskz_loadu_ps(low, scale)));
        _mm512_storeu_ps(ret_factor + 16,
                         _mm512_mul_ps(d1, _mm512_maskz_loadu_ps(high, scale + 16)));
}

/* `abreast` (ABREAST or 1) rows of a stretch from block `from` of the column on; factor: those of
 * the first row. ahead: what is asked for meanwhile, from there on; near: also at once. */
LANES_INLINE void stretch_multiply(const uint8_t *base, uint64_t stride, const int abreast,
                                   int64_t from, int64_t count, const struct columns *at,
                                   const float *factor, const struct streamed type,
                                   const uint8_t *ahead, bool near, __m256 *part) {
        const uint8_t *half[2] = {base, base + ABREAST / 2 * stride};
        __m256 sum[ABREAST];

#pragma GCC unroll 8
        for (int r = 0; r < abreast; r++)
                sum[r] = part[r];
        for (int64_t b = from; b < from + count; b++) {
                const __m256i q = _mm256_loadu_si256((const __m256i *) at->q + b);
                const __m256i bias = _mm256_loadu_si256((const __m256i *) at->bias + b);

#pragma GCC unroll 8
                for (int i = 0; i < type.size * abreast; i += 64)
                        __builtin_prefetch(ahead + PREFETCH_FAR + i, 0, 2);
                if (near)
#pragma GCC unroll 8
                        for (int i = 0; i < type.size * abreast; i += 64)
                                __builtin_prefetch(ahead + i, 0, 3);
#pragma GCC unroll 8
                for (int r = 0; r < abreast; r++) {
                        const uint8_t *block =
                                half[r / (ABREAST / 2)] + stride * (uint64_t) (r % (ABREAST / 2));
                        __m256i dots = _mm256_dpbusd_epi32(bias, type.open(block), q);

                        sum[r] = _mm256_fmadd_ps(_mm256_set1_ps(factor[STRETCH * r]),
                                                 _mm256_cvtepi32_ps(dots), sum[r]);
                }
                half[0] += type.size;
                half[1] += type.size;
                ahead += type.size * abreast;
                factor++;
        }
#pragma GCC unroll 8
        for (int r = 0; r < abreast; r++)
                part[r] = sum[r];
}

/* ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7)) */
LANES_INLINE float add_eight(__m256 part) {
        __m128 four = _mm_add_ps(_mm256_extractf128_ps(part, 1), _mm256_castps256_ps128(part));
        __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

LANES_INLINE void stream_rows(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,
                              const struct columns at, const struct streamed type, float *ret_out) {
        const int64_t blocks = k / BLOCK;
        const bool near = stride * CPU_LANES <= PREFETCH_FAR;
        const uint8_t *ahead = base + stride * CPU_LANES;
        float factor[CPU_LANES][STRETCH];
        __m256 part[CPU_LANES];

        for (uint32_t r = 0; r < CPU_LANES; r++)
                part[r] = _mm256_setzero_ps();
        for (int64_t from = 0, count; from < blocks; from += count, base += count * type.size) {
                uint32_t r = 0;

                count = blocks - from < STRETCH ? blocks - from : STRETCH;
                for (uint32_t i = 0; i < rows; i++)
                        stretch_scale(base + stride * i, count, at.scale + from, type, factor[i]);
                for (; r + ABREAST <= rows; r += ABREAST) {
                        stretch_multiply(base + stride * r, stride, ABREAST, from, count, &at,
                                         factor[r], type, ahead, near, part + r);
                        ahead += count * type.size * ABREAST;
                }
                for (; r < rows; r++)
                        stretch_multiply(base + stride * r, stride, 1, from, count, &at, factor[r],
                                         type, ahead, false, part + r);
        }
        for (uint32_t r = 0; r < CPU_LANES; r++)
                ret_out[r] = add_eight(part[r]);
}

#endif
