/*
 * Scores of sixteen keys for up to four rows that share them: AVX-512.
 *
 * Keys are read where they are, once for all rows. What is in the lanes of a product is added up
 * for all keys together, upper half to lower half as everywhere, with steps that leave twice as
 * many keys in a vector each. Keys are taken in the order that leaves them in order at the end: a
 * quarter has keys q, 4 + q, 8 + q and 12 + q.
 */
#pragma once

#include <immintrin.h>

#include "backends/cpu/matrix/load_key.h"

#if defined(__AVX512VNNI__) /* what the compiler may use here */

/* The four accumulators of a key's products with each row, added up. */
LANES_INLINE void score_key(uint32_t type, const uint8_t *key, const float *const *query,
                            const int rows, int64_t size, lanes_f *ret) {
        lanes_f sum[4][4], v[4];

#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
                v[j] = load_key(type, key, 16 * j);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                        sum[r][j] = lanes_fma_once(v[j], lanes_load_f(query[r] + 16 * j),
                                                   lanes_set_f(0));
        for (int64_t i = 64; i < size; i += 64) {
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                        v[j] = load_key(type, key, i + 16 * j);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                        for (int j = 0; j < 4; j++)
                                sum[r][j] = lanes_fma_once(
                                        v[j], lanes_load_f(query[r] + i + 16 * j), sum[r][j]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
                ret[r] = (sum[r][0] + sum[r][2]) + (sum[r][1] + sum[r][3]);
}

/* Eight lanes of each of two keys. */
LANES_INLINE __m512 halve(lanes_f a, lanes_f b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4((__m512) a, (__m512) b, 0x44),
                             _mm512_shuffle_f32x4((__m512) a, (__m512) b, 0xee));
}

/* Four lanes of each of four keys, 4 * stride apart. */
LANES_INLINE void score_quarter(uint32_t type, const uint8_t *keys, uint64_t stride,
                                const float *const *query, const int rows, int64_t size,
                                __m512 *ret) {
        lanes_f a[4], b[4];
        __m512 ab[4];

        score_key(type, keys, query, rows, size, a);
        score_key(type, keys + 4 * stride, query, rows, size, b);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
                ab[r] = halve(a[r], b[r]);
        score_key(type, keys + 8 * stride, query, rows, size, a);
        score_key(type, keys + 12 * stride, query, rows, size, b);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
                const __m512 cd = halve(a[r], b[r]);

                ret[r] = _mm512_add_ps(_mm512_shuffle_f32x4(ab[r], cd, 0x88),
                                       _mm512_shuffle_f32x4(ab[r], cd, 0xdd));
        }
}

LANES_INLINE __m512 pairs(__m512 a, __m512 b) {
        const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);

        return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}

LANES_INLINE void score_sixteen(uint32_t type, const uint8_t *keys, uint64_t stride,
                                const float *const *query, const int rows, int64_t size,
                                float *ret_scores, uint64_t score_stride) {
        __m512 quarter[4][4];

        for (int q = 0; q < 4; q++)
                score_quarter(type, keys + stride * (uint64_t) q, stride, query, rows, size,
                              quarter[q]);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
                const __m512 two = pairs(quarter[0][r], quarter[1][r]);
                const __m512 more = pairs(quarter[2][r], quarter[3][r]);

                _mm512_storeu_ps(ret_scores + score_stride * (uint64_t) r,
                                 _mm512_add_ps(_mm512_shuffle_ps(two, more, 0x88),
                                               _mm512_shuffle_ps(two, more, 0xdd)));
        }
}

#define SCORE_SOME(name, type)                                                                     \
        static void some_##name(const uint8_t *keys, uint64_t stride, const float *const *query,   \
                                uint32_t rows, int64_t size, float *ret_scores,                    \
                                uint64_t score_stride) {                                           \
                if (rows == 4)                                                                     \
                        score_sixteen(type, keys, stride, query, 4, size, ret_scores,              \
                                      score_stride);                                               \
                else if (rows == 3)                                                                \
                        score_sixteen(type, keys, stride, query, 3, size, ret_scores,              \
                                      score_stride);                                               \
                else if (rows == 2)                                                                \
                        score_sixteen(type, keys, stride, query, 2, size, ret_scores,              \
                                      score_stride);                                               \
                else                                                                               \
                        score_sixteen(type, keys, stride, query, 1, size, ret_scores,              \
                                      score_stride);                                               \
        }
SCORE_SOME(f32, HR_TYPE_F32)
SCORE_SOME(f16, HR_TYPE_F16)
SCORE_SOME(bf16, HR_TYPE_BF16)
#undef SCORE_SOME

#endif
