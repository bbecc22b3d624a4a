/*
 * Eight rows that go abreast, a block of each at a time: where they are, the scales that their
 * blocks begin with, and what is asked for ahead. AVX-512.
 */
#pragma once

#include <immintrin.h>

#include "backends/cpu/matrix/tile_rows.h"
#include "backends/cpu/matrix/unpack.h"

#define ABREAST 8

/* Row r of eight, given the first and the fifth. */
LANES_INLINE const uint8_t *row_of(const uint8_t *const half[2], uint64_t stride, const int r) {
        return half[r / 4] + stride * (uint64_t) (r % 4);
}

/* The words that eight blocks begin with, which lie `stride` bytes apart. */
LANES_INLINE __m128i first_words(const uint8_t *const half[2], uint64_t stride) {
        __m128i two[4];

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
                two[i] = _mm_unpacklo_epi16(
                        _mm_cvtsi32_si128((int) cpu_read_u32(row_of(half, stride, 2 * i))),
                        _mm_loadu_si128((const __m128i *) row_of(half, stride, 2 * i + 1)));
        return _mm_unpacklo_epi64(_mm_unpacklo_epi32(two[0], two[1]),
                                  _mm_unpacklo_epi32(two[2], two[3]));
}

/* What is asked for while a block of eight rows is multiplied: what follows the tile, in a line. */
LANES_INLINE void prefetch_line(const uint8_t *ahead, const int size, bool near) {
#pragma GCC unroll 8
        for (int i = 0; i < size * ABREAST; i += 64)
                __builtin_prefetch(ahead + PREFETCH_FAR + i, 0, 2);
        if (near)
#pragma GCC unroll 8
                for (int i = 0; i < size * ABREAST; i += 64)
                        __builtin_prefetch(ahead + i, 0, 3);
}
