/*
 * One column times rows of 32-blocks, row by row: AVX-512 with VNNI.
 *
 * A 256-bit vector holds the eight dwords of one block of one row, which is how ggml's order adds
 * them up (dot_body32.h), so that nothing has to be transposed: bytes are loaded where they are,
 * opened, and multiplied. What is left are the scales, a word of each block: those of eight blocks
 * of a row are taken out at once and lie side by side then. Eight rows go abreast, to hide how long
 * a step takes.
 *
 * Where high nibbles need no shift they stay 16 times too large, dots and sums with them: a power
 * of two changes no digit, and products of two f16 are far from what f32 cannot hold.
 *
 * Minima are words, too: those of eight blocks of eight rows are turned round at once, and one
 * vector then takes a block of all rows a step further.
 *
 * This wins where opening a block costs more than reading it: for nibbles. Memory is asked for
 * ahead in the order in which rows lie in it.
 */
#pragma once

#include "backends/cpu/matrix/abreast_avx512.h"
#include "backends/cpu/matrix/dot_body32.h"

#if defined(__AVX512VNNI__) /* what the compiler may use here */

#define STRETCH 8 /* blocks of each row whose scales are taken first */

struct streamed {
        __m256i (*open)(const uint8_t *block); /* the bytes of a block, in order */
        int size;                              /* of a block; d comes first */
        bool is_sixteenfold;                   /* the high nibbles, which are the upper half */
        bool has_minimum;                      /* the word behind d */
};

LANES_INLINE __m256i both_halves(const uint8_t *bytes) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) bytes));
}

LANES_INLINE __m256i open_nibbles(const uint8_t *bytes) {
        const __m256i both =
                _mm256_srlv_epi32(both_halves(bytes), _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));

        return _mm256_and_si256(both, _mm256_set1_epi8(0xf));
}

LANES_INLINE __m256i open_sixteenfold(const uint8_t *bytes) {
        return _mm256_and_si256(both_halves(bytes),
                                _mm256_setr_epi64x(0x0f0f0f0f0f0f0f0f, 0x0f0f0f0f0f0f0f0f,
                                                   (int64_t) 0xf0f0f0f0f0f0f0f0,
                                                   (int64_t) 0xf0f0f0f0f0f0f0f0));
}

LANES_INLINE __m256i open_q4_0(const uint8_t *block) {
        return open_sixteenfold(block + 2);
}

LANES_INLINE __m256i open_q4_1(const uint8_t *block) {
        return open_sixteenfold(block + 4);
}

LANES_INLINE __m256i open_q5_0(const uint8_t *block) {
        const __m256i w = open_nibbles(block + 6);

        return _mm256_mask_add_epi8(w, cpu_read_u32(block + 2), w, _mm256_set1_epi8(16));
}

LANES_INLINE __m256i open_iq4_nl(const uint8_t *block) {
        const __m128i table = _mm_loadu_si128((const __m128i *) iq4_nl_bytes[1]);

        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), open_nibbles(block + 2));
}

/* The words that STRETCH blocks of a row begin with; behind them their minima. */
LANES_INLINE __m256i words_of(const uint8_t *blocks, const struct streamed type) {
        const int size = type.size, middle = size / 2;
        const __mmask16 both = (__mmask16) (1U | 1U << middle);
        const __m512i *at = (const __m512i *) (const void *) blocks;
        __m256i words = _mm256_loadu_si256((const __m256i *) (const void *) blocks);

        if (size == 18) /* the last one ends after 128 bytes */
                return _mm512_castsi512_si256(_mm512_permutex2var_epi16(
                        _mm512_loadu_si512(at),
                        _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63)),
                        _mm512_loadu_si512(at + 1)));
        if (type.has_minimum) /* four blocks in the first 80 bytes */
                return _mm512_castsi512_si256(_mm512_permutex2var_epi16(
                        _mm512_loadu_si512(at),
                        _mm512_castsi256_si512(_mm256_setr_epi16(0, 10, 20, 30, 32, 42, 52, 62, 1,
                                                                 11, 21, 31, 33, 43, 53, 63)),
                        _mm512_loadu_si512(blocks + 4 * size)));
        /* Two at a time: those of load j begin at its words j and j + middle, so that all eight
         * have places of their own. */
#pragma GCC unroll 3
        for (int j = 1; j < STRETCH / 2; j++)
                words = _mm256_mask_loadu_epi16(words, (__mmask16) (both << j),
                                                blocks + 2 * j * (size - 1));
        return _mm256_permutexvar_epi16(
                _mm256_setr_epi16(0, (short) middle, 1, (short) (middle + 1), 2,
                                  (short) (middle + 2), 3, (short) (middle + 3), 0, 0, 0, 0, 0, 0,
                                  0, 0),
                words);
}

/* low of eight rows over STRETCH blocks. of_row: the minima of each. */
LANES_INLINE __m256 add_lows(const __m128i of_row[ABREAST], const float *sum, __m256 low) {
        __m128i two[8], four[8]; /* rows side by side */

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
                two[2 * i] = _mm_unpacklo_epi16(of_row[2 * i], of_row[2 * i + 1]);
                two[2 * i + 1] = _mm_unpackhi_epi16(of_row[2 * i], of_row[2 * i + 1]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) { /* rows 4 * (i / 2) on, blocks 4 * (i % 2) on */
                const __m128i a = two[i / 2 * 4 + i % 2], b = two[i / 2 * 4 + 2 + i % 2];

                four[2 * i] = _mm_unpacklo_epi32(a, b);
                four[2 * i + 1] = _mm_unpackhi_epi32(a, b);
        }
#pragma GCC unroll 8
        for (int b = 0; b < STRETCH; b++) {
                const __m128i first = four[b / 2], last = four[4 + b / 2];
                const __m128i words = b % 2 ? _mm_unpackhi_epi64(first, last)
                                            : _mm_unpacklo_epi64(first, last);

                low = _mm256_fmadd_ps(_mm256_cvtph_ps(words), _mm256_set1_ps(sum[b]), low);
        }
        return low;
}

/* ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7)) of each of eight vectors. */
LANES_INLINE __m256 add_eight(const __m256 part[ABREAST]) {
        __m256 four[4], two[2], one;

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) /* two rows in each */
                four[i] = _mm256_add_ps(
                        _mm256_permute2f128_ps(part[2 * i], part[2 * i + 1], 0x31),
                        _mm256_permute2f128_ps(part[2 * i], part[2 * i + 1], 0x20));
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
                const __m256d a = _mm256_castps_pd(four[2 * i]);
                const __m256d b = _mm256_castps_pd(four[2 * i + 1]);

                two[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                                       _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
        }
        one = _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88),
                            _mm256_shuffle_ps(two[0], two[1], 0xdd));
        return _mm256_permutevar8x32_ps(one, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The column's side of block b: its quants, and what dots start from. */
LANES_INLINE __m256i column_of(const struct columns *at, int64_t b, const struct streamed type,
                               __m256i *ret_start) {
        __m256i start = type.has_minimum ? _mm256_setzero_si256()
                                         : _mm256_loadu_si256((const __m256i *) at->bias + b);

        if (type.is_sixteenfold && !type.has_minimum)
                start = _mm256_sllv_epi32(start, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
        *ret_start = start;
        return _mm256_loadu_si256((const __m256i *) at->q + b);
}

LANES_INLINE __m256 same_size(__m256 part, const struct streamed type) {
        const float all = 1.0f, high = 1.0f / 16;

        if (!type.is_sixteenfold)
                return part;
        return _mm256_mul_ps(part, _mm256_setr_ps(all, all, all, all, high, high, high, high));
}

/* Block b of eight rows; factor: the product of the scales of each, `apart` floats apart. */
LANES_INLINE void multiply_block(const uint8_t *const half[2], uint64_t stride, int64_t b,
                                 const struct columns *at, const struct streamed type,
                                 const float *factor, const int apart, __m256 *part) {
        __m256i start, q = column_of(at, b, type, &start);

#pragma GCC unroll 8
        for (int r = 0; r < ABREAST; r++) {
                const __m256i dots =
                        _mm256_dpbusd_epi32(start, type.open(row_of(half, stride, r)), q);

                part[r] = _mm256_fmadd_ps(_mm256_set1_ps(factor[apart * r]),
                                          _mm256_cvtepi32_ps(dots), part[r]);
        }
}

/* The factors of STRETCH blocks of eight rows; with a minimum those go to low. */
LANES_INLINE void take_factors(const uint8_t *const half[2], uint64_t stride, int64_t b,
                               const struct columns *at, const struct streamed type, __m256 *low,
                               float ret_factor[ABREAST][STRETCH]) {
        const __m256 scale = _mm256_loadu_ps(at->scale + b);
        __m128i minimum[ABREAST];

#pragma GCC unroll 8
        for (int r = 0; r < ABREAST; r++) {
                const __m256i words = words_of(row_of(half, stride, r), type);

                if (type.has_minimum)
                        minimum[r] = _mm256_extracti128_si256(words, 1);
                _mm256_storeu_ps(
                        ret_factor[r],
                        _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(words)), scale));
        }
        if (type.has_minimum)
                *low = add_lows(minimum, at->sum + b, *low);
}

LANES_INLINE void eight_rows(const uint8_t *base, uint64_t stride, int64_t blocks,
                             const struct columns *at, const struct streamed type,
                             const uint8_t *ahead, const bool near, float *ret_out) {
        const uint8_t *half[2] = {base, base + 4 * stride};
        float factor[ABREAST][STRETCH];
        __m256 part[ABREAST], low = _mm256_setzero_ps();
        int64_t b = 0;

#pragma GCC unroll 8
        for (int r = 0; r < ABREAST; r++)
                part[r] = _mm256_setzero_ps();
        while (b + STRETCH <= blocks) {
                take_factors(half, stride, b, at, type, &low, factor);
                for (int i = 0; i < STRETCH; i++, b++) {
                        prefetch_line(ahead, type.size, near);
                        multiply_block(half, stride, b, at, type, &factor[0][i], STRETCH, part);
                        half[0] += type.size;
                        half[1] += type.size;
                        ahead += type.size * ABREAST;
                }
        }
        for (; b < blocks; b++) { /* the scales of all rows at once */
                const uint8_t *behind[2] = {half[0] + 2, half[1] + 2};

                _mm256_storeu_ps(factor[0],
                                 _mm256_mul_ps(_mm256_cvtph_ps(first_words(half, stride)),
                                               _mm256_set1_ps(at->scale[b])));
                if (type.has_minimum)
                        low = _mm256_fmadd_ps(_mm256_cvtph_ps(first_words(behind, stride)),
                                              _mm256_set1_ps(at->sum[b]), low);
                prefetch_line(ahead, type.size, near);
                multiply_block(half, stride, b, at, type, factor[0], 1, part);
                half[0] += type.size;
                half[1] += type.size;
                ahead += type.size * ABREAST;
        }
#pragma GCC unroll 8
        for (int r = 0; r < ABREAST; r++)
                part[r] = same_size(part[r], type);
        low = type.has_minimum ? _mm256_add_ps(add_eight(part), low) : add_eight(part);
        _mm256_storeu_ps(ret_out, low);
}

/* As add_eight(), of one vector. */
LANES_INLINE float add_one(__m256 part) {
        const __m128 four =
                _mm_add_ps(_mm256_extractf128_ps(part, 1), _mm256_castps256_ps128(part));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

LANES_INLINE float one_row(const uint8_t *row, int64_t blocks, const struct columns *at,
                           const struct streamed type) {
        __m256 part = _mm256_setzero_ps(), low = _mm256_setzero_ps();
        float sum;

        for (int64_t b = 0; b < blocks; b++, row += type.size) {
                __m256i start, q = column_of(at, b, type, &start);
                const float factor = _cvtsh_ss(cpu_read_u16(row)) * at->scale[b];

                start = _mm256_dpbusd_epi32(start, type.open(row), q);
                part = _mm256_fmadd_ps(_mm256_set1_ps(factor), _mm256_cvtepi32_ps(start), part);
                if (type.has_minimum)
                        low = _mm256_fmadd_ps(_mm256_set1_ps(_cvtsh_ss(cpu_read_u16(row + 2))),
                                              _mm256_set1_ps(at->sum[b]), low);
        }
        sum = add_one(same_size(part, type));
        return type.has_minimum ? sum + _mm256_cvtss_f32(low) : sum;
}

LANES_INLINE void stream_rows(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,
                              const struct columns at, const struct streamed type, float *ret_out) {
        const bool near = stride * CPU_LANES <= PREFETCH_FAR;
        const int64_t blocks = k / BLOCK;
        uint32_t r = 0;

        for (; r + ABREAST <= rows; r += ABREAST) {
                const uint8_t *ahead = base + stride * (CPU_LANES + r);

                if (near)
                        eight_rows(base + stride * r, stride, blocks, &at, type, ahead, true,
                                   ret_out + r);
                else
                        eight_rows(base + stride * r, stride, blocks, &at, type, ahead, false,
                                   ret_out + r);
        }
        for (; r < rows; r++)
                ret_out[r] = one_row(base + stride * r, blocks, &at, type);
        for (; r < CPU_LANES; r++)
                ret_out[r] = ret_out[rows - 1];
}

#endif
