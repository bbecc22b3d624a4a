/* The lanes of 256-bit registers: AVX2, FMA and F16C. Contract: lanes.h. */
#pragma once

#include <immintrin.h>

#include "backends/cpu/matrix/half.h"
#include "backends/cpu/matrix/lanes_inline.h"

#if defined(__AVX2__) /* what the compiler may use here */

#define CPU_ISA_NAME "avx2"
#define CPU_ISA(name) name##_avx2
#define CPU_LANES 8
#define CPU_WIDTH 4
#define CPU_FLOAT_WIDTH 3
#define CPU_SIGNED_BYTES 1

typedef uint32_t lanes_u __attribute__((vector_size(32), may_alias));
typedef int32_t lanes_i __attribute__((vector_size(32), may_alias));
typedef float lanes_f __attribute__((vector_size(32), may_alias));

#define U(x) ((__m256i) (x))
#define F(x) ((__m256) (x))

LANES_INLINE void lanes_load4(const uint8_t *const *row, uint64_t at, lanes_u ret[4]) {
        __m256i v[4], lo01, lo23, hi01, hi23;

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
                v[i] = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) (row[i] + at)));
                v[i] = _mm256_inserti128_si256(
                        v[i], _mm_loadu_si128((const __m128i *) (row[4 + i] + at)), 1);
        }
        lo01 = _mm256_unpacklo_epi32(v[0], v[1]);
        hi01 = _mm256_unpackhi_epi32(v[0], v[1]);
        lo23 = _mm256_unpacklo_epi32(v[2], v[3]);
        hi23 = _mm256_unpackhi_epi32(v[2], v[3]);
        ret[0] = (lanes_u) _mm256_unpacklo_epi64(lo01, lo23);
        ret[1] = (lanes_u) _mm256_unpackhi_epi64(lo01, lo23);
        ret[2] = (lanes_u) _mm256_unpacklo_epi64(hi01, hi23);
        ret[3] = (lanes_u) _mm256_unpackhi_epi64(hi01, hi23);
}

LANES_INLINE lanes_u lanes_load1(const uint8_t *const *row, uint64_t at) {
        lanes_u v;

#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
                v[i] = cpu_read_u32(row[i] + at);
        return v;
}

LANES_INLINE lanes_f lanes_half(lanes_u low16) {
        __m256i packed = _mm256_packus_epi32(U(low16), U(low16));

        packed = _mm256_permute4x64_epi64(packed, 0x08);
        return (lanes_f) _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

LANES_INLINE lanes_f lanes_load_half(const uint8_t *const *row, uint64_t at) {
        uint16_t v[8];

#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
                v[i] = cpu_read_u16(row[i] + at);
        return (lanes_f) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) v));
}

/* Unsigned bytes below 64 or so: no pair sum leaves 16 bits. */
LANES_INLINE lanes_u lanes_dot4(lanes_u sum, lanes_u w, const uint32_t *a) {
        __m256i pairs = _mm256_maddubs_epi16(U(w), _mm256_set1_epi32((int) *a));

        return sum + (lanes_u) _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Signed bytes of any value: the sign moves to the activation, which never is -128. */
LANES_INLINE lanes_u lanes_dot4_signed(lanes_u sum, lanes_u w, const uint32_t *a) {
        __m256i moved = _mm256_sign_epi8(_mm256_set1_epi32((int) *a), U(w));
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(U(w)), moved);

        return sum + (lanes_u) _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

LANES_INLINE lanes_f lanes_from_int(lanes_u v) {
        return (lanes_f) _mm256_cvtepi32_ps(U(v));
}

LANES_INLINE lanes_f lanes_fma(lanes_f a, lanes_f b, lanes_f c) {
        return (lanes_f) _mm256_fmadd_ps(F(a), F(b), F(c));
}

LANES_INLINE lanes_f lanes_max(lanes_f a, lanes_f b) {
        return (lanes_f) _mm256_max_ps(F(a), F(b));
}

LANES_INLINE lanes_u lanes_max_u(lanes_u a, lanes_u b) {
        return (lanes_u) _mm256_max_epu32(U(a), U(b));
}

LANES_INLINE uint32_t lanes_largest(lanes_u v) {
        __m128i m = _mm_max_epu32(_mm256_castsi256_si128(U(v)), _mm256_extracti128_si256(U(v), 1));

        m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
        m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
        return (uint32_t) _mm_cvtsi128_si32(m);
}

/* The lowest byte of each lane. */
LANES_INLINE void lanes_store_bytes(uint8_t *p, lanes_u v) {
        const __m256i low = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                             -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1,
                                             -1, -1, -1, -1);
        __m256i taken = _mm256_shuffle_epi8(U(v), low);

        _mm_storel_epi64((__m128i *) p, _mm_or_si128(_mm256_castsi256_si128(taken),
                                                     _mm256_extracti128_si256(taken, 1)));
}

LANES_INLINE lanes_f lanes_load_f(const float *p) {
        return (lanes_f) _mm256_loadu_ps(p);
}

LANES_INLINE __m256i lanes_part_mask(unsigned count) {
        __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

        return _mm256_cmpgt_epi32(_mm256_set1_epi32((int) count), index);
}

LANES_INLINE lanes_f lanes_load_part_f(const float *p, unsigned count) {
        return (lanes_f) _mm256_maskload_ps(p, lanes_part_mask(count));
}

LANES_INLINE void lanes_store_f(float *p, lanes_f v) {
        _mm256_storeu_ps(p, F(v));
}

LANES_INLINE void lanes_store_part_f(float *p, lanes_f v, unsigned count) {
        _mm256_maskstore_ps(p, lanes_part_mask(count), F(v));
}

LANES_INLINE lanes_f lanes_load_f16(const uint8_t *p) {
        return (lanes_f) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
}

LANES_INLINE lanes_f lanes_load_bf16(const uint8_t *p) {
        __m128i v = _mm_loadu_si128((const __m128i *) p);

        return (lanes_f) _mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16);
}

LANES_INLINE lanes_u lanes_table16(lanes_u nibbles, const uint8_t *table) {
        __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) table));

        return (lanes_u) _mm256_shuffle_epi8(t, U(nibbles));
}

LANES_INLINE lanes_u lanes_gather(const uint32_t *table, lanes_u index) {
        return (lanes_u) _mm256_i32gather_epi32((const int *) table, U(index), 4);
}

LANES_INLINE void lanes_gather2(const uint32_t *table, lanes_u index, lanes_u ret[2]) {
        ret[0] = (lanes_u) _mm256_i32gather_epi32((const int *) table, U(index), 8);
        ret[1] = (lanes_u) _mm256_i32gather_epi32((const int *) table + 1, U(index), 8);
}

/* Sums over the lanes of four vectors: upper half to lower half, until one is left. */
LANES_INLINE void lanes_sum4(const lanes_f v[4], float ret[4]) {
        __m128 r[4];

        for (int i = 0; i < 4; i++)
                r[i] = _mm_add_ps(_mm256_castps256_ps128(F(v[i])),
                                  _mm256_extractf128_ps(F(v[i]), 1));
        _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
        _mm_storeu_ps(ret, _mm_add_ps(_mm_add_ps(r[0], r[2]), _mm_add_ps(r[1], r[3])));
}

/* Rounded to f16 and back. */
LANES_INLINE lanes_f lanes_round_half(lanes_f v) {
        return (lanes_f) _mm256_cvtph_ps(_mm256_cvtps_ph(F(v), 0));
}

LANES_INLINE lanes_f lanes_exp2i(lanes_f n) {
        __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(F(n)), _mm256_set1_epi32(127));

        return (lanes_f) _mm256_slli_epi32(e, 23);
}

#undef U
#undef F

#endif
