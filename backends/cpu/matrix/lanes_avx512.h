/* The lanes of 512-bit registers: AVX-512 F, BW, VL, DQ and VNNI. Contract: lanes.h. */
#pragma once

#include <immintrin.h>

#include "backends/cpu/matrix/half.h"
#include "backends/cpu/matrix/lanes_inline.h"

#if defined(__AVX512VNNI__) /* what the compiler may use here */

#define CPU_ISA_NAME "avx512"
#define CPU_ISA(name) name##_avx512
#define CPU_LANES 16
#define CPU_WIDTH 8
#define CPU_FLOAT_WIDTH 6
#define CPU_SIGNED_BYTES 0

typedef uint32_t lanes_u __attribute__((vector_size(64), may_alias));
typedef int32_t lanes_i __attribute__((vector_size(64), may_alias));
typedef float lanes_f __attribute__((vector_size(64), may_alias));

#define U(x) ((__m512i) (x))
#define F(x) ((__m512) (x))

LANES_INLINE void lanes_load4(const uint8_t *const *row, uint64_t at, lanes_u ret[4]) {
        __m512i v[4], lo01, lo23, hi01, hi23;

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
                v[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *) (row[i] + at)));
                v[i] = _mm512_inserti32x4(v[i],
                                          _mm_loadu_si128((const __m128i *) (row[4 + i] + at)), 1);
                v[i] = _mm512_inserti32x4(v[i],
                                          _mm_loadu_si128((const __m128i *) (row[8 + i] + at)), 2);
                v[i] = _mm512_inserti32x4(v[i],
                                          _mm_loadu_si128((const __m128i *) (row[12 + i] + at)), 3);
        }
        lo01 = _mm512_unpacklo_epi32(v[0], v[1]);
        hi01 = _mm512_unpackhi_epi32(v[0], v[1]);
        lo23 = _mm512_unpacklo_epi32(v[2], v[3]);
        hi23 = _mm512_unpackhi_epi32(v[2], v[3]);
        ret[0] = (lanes_u) _mm512_unpacklo_epi64(lo01, lo23);
        ret[1] = (lanes_u) _mm512_unpackhi_epi64(lo01, lo23);
        ret[2] = (lanes_u) _mm512_unpacklo_epi64(hi01, hi23);
        ret[3] = (lanes_u) _mm512_unpackhi_epi64(hi01, hi23);
}

/* Transposes a 16 x 16 matrix of dwords. */
LANES_INLINE void lanes_transpose16(__m512i r[16], lanes_u ret[16]) {
        __m512i u[4][4];

#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
                __m512i lo01 = _mm512_unpacklo_epi32(r[4 * g], r[4 * g + 1]);
                __m512i hi01 = _mm512_unpackhi_epi32(r[4 * g], r[4 * g + 1]);
                __m512i lo23 = _mm512_unpacklo_epi32(r[4 * g + 2], r[4 * g + 3]);
                __m512i hi23 = _mm512_unpackhi_epi32(r[4 * g + 2], r[4 * g + 3]);

                u[g][0] = _mm512_unpacklo_epi64(lo01, lo23);
                u[g][1] = _mm512_unpackhi_epi64(lo01, lo23);
                u[g][2] = _mm512_unpacklo_epi64(hi01, hi23);
                u[g][3] = _mm512_unpackhi_epi64(hi01, hi23);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
                __m512i a = _mm512_shuffle_i32x4(u[0][j], u[1][j], 0x88);
                __m512i b = _mm512_shuffle_i32x4(u[0][j], u[1][j], 0xdd);
                __m512i c = _mm512_shuffle_i32x4(u[2][j], u[3][j], 0x88);
                __m512i d = _mm512_shuffle_i32x4(u[2][j], u[3][j], 0xdd);

                ret[j] = (lanes_u) _mm512_shuffle_i32x4(a, c, 0x88);
                ret[4 + j] = (lanes_u) _mm512_shuffle_i32x4(b, d, 0x88);
                ret[8 + j] = (lanes_u) _mm512_shuffle_i32x4(a, c, 0xdd);
                ret[12 + j] = (lanes_u) _mm512_shuffle_i32x4(b, d, 0xdd);
        }
}

#define LANES_HAVE_LOAD16 1
/* The first `bytes` (1 .. 64, even) bytes of each row; dword d of the result is made of the 16-bit
 * words order[2 * d] and order[2 * d + 1] of them. NULL = in order. */
LANES_INLINE void lanes_load16(const uint8_t *const *row, uint64_t at, const unsigned bytes,
                               const uint16_t *order, lanes_u ret[16]) {
        const __mmask32 mask = bytes == 64 ? 0xffffffffU : (1U << bytes / 2) - 1;
        __m512i r[16];

#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
                r[i] = _mm512_maskz_loadu_epi16(mask, row[i] + at);
                if (order)
                        r[i] = _mm512_permutexvar_epi16(_mm512_loadu_si512(order), r[i]);
        }
        lanes_transpose16(r, ret);
}

LANES_INLINE lanes_u lanes_load1(const uint8_t *const *row, uint64_t at) {
        lanes_u v;

#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
                v[i] = cpu_read_u32(row[i] + at);
        return v;
}

LANES_INLINE lanes_f lanes_half(lanes_u low16) {
        return (lanes_f) _mm512_cvtph_ps(_mm512_cvtepi32_epi16(U(low16)));
}

/* One f16 of each row. */
LANES_INLINE lanes_f lanes_load_half(const uint8_t *const *row, uint64_t at) {
        uint16_t v[16];

#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
                v[i] = cpu_read_u16(row[i] + at);
        return (lanes_f) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) v));
}

/* Written out, because not every compiler makes the repeated dword a part of the instruction: a
 * load of its own would take the place of another instruction. */
LANES_INLINE lanes_u lanes_dot4(lanes_u sum, lanes_u w, const uint32_t *a) {
        __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*a));
        return sum;
}

LANES_INLINE lanes_f lanes_from_int(lanes_u v) {
        return (lanes_f) _mm512_cvtepi32_ps(U(v));
}

LANES_INLINE lanes_f lanes_fma(lanes_f a, lanes_f b, lanes_f c) {
        return (lanes_f) _mm512_fmadd_ps(F(a), F(b), F(c));
}

LANES_INLINE lanes_f lanes_max(lanes_f a, lanes_f b) {
        return (lanes_f) _mm512_max_ps(F(a), F(b));
}

LANES_INLINE lanes_u lanes_max_u(lanes_u a, lanes_u b) {
        return (lanes_u) _mm512_max_epu32(U(a), U(b));
}

LANES_INLINE uint32_t lanes_largest(lanes_u v) {
        return (uint32_t) _mm512_reduce_max_epu32(U(v));
}

/* The lowest byte of each lane. */
LANES_INLINE void lanes_store_bytes(uint8_t *p, lanes_u v) {
        _mm_storeu_si128((__m128i *) p, _mm512_cvtepi32_epi8(U(v)));
}

LANES_INLINE lanes_f lanes_load_f(const float *p) {
        return (lanes_f) _mm512_loadu_ps(p);
}

/* The first `count` (1 .. CPU_LANES) lanes; the rest is zero and not read. */
LANES_INLINE lanes_f lanes_load_part_f(const float *p, unsigned count) {
        return (lanes_f) _mm512_maskz_loadu_ps((__mmask16) ((1U << count) - 1), p);
}

LANES_INLINE void lanes_store_f(float *p, lanes_f v) {
        _mm512_storeu_ps(p, F(v));
}

LANES_INLINE void lanes_store_part_f(float *p, lanes_f v, unsigned count) {
        _mm512_mask_storeu_ps(p, (__mmask16) ((1U << count) - 1), F(v));
}

LANES_INLINE lanes_f lanes_load_f16(const uint8_t *p) {
        return (lanes_f) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
}

LANES_INLINE lanes_f lanes_load_bf16(const uint8_t *p) {
        __m256i v = _mm256_loadu_si256((const __m256i *) p);

        return (lanes_f) _mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16);
}

/* table[nibble] for every byte. */
LANES_INLINE lanes_u lanes_table16(lanes_u nibbles, const uint8_t *table) {
        __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) table));

        return (lanes_u) _mm512_shuffle_epi8(t, U(nibbles));
}

#define LANES_HAVE_LOOKUP 1
/* table[index % 16]. */
LANES_INLINE lanes_u lanes_lookup(const uint32_t *table, lanes_u index) {
        return (lanes_u) _mm512_permutexvar_epi32(U(index), _mm512_loadu_si512(table));
}

/* table[index], and words 2 * index and 2 * index + 1 of a table of pairs. */
LANES_INLINE lanes_u lanes_gather(const uint32_t *table, lanes_u index) {
        return (lanes_u) _mm512_i32gather_epi32(U(index), table, 4);
}

LANES_INLINE void lanes_gather2(const uint32_t *table, lanes_u index, lanes_u ret[2]) {
        __m512i a = _mm512_i32gather_epi64(_mm512_castsi512_si256(U(index)), table, 8);
        __m512i b = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(U(index), 1), table, 8);
        const __m512i low =
                _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);

        ret[0] = (lanes_u) _mm512_permutex2var_epi32(a, low, b);
        ret[1] = (lanes_u) _mm512_permutex2var_epi32(a, _mm512_add_epi32(low, _mm512_set1_epi32(1)),
                                                     b);
}

/* Sums over the lanes of four vectors: upper half to lower half, until one is left. */
LANES_INLINE void lanes_sum4(const lanes_f v[4], float ret[4]) {
        __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(F(v[0]), F(v[1]), 0x44),
                                  _mm512_shuffle_f32x4(F(v[0]), F(v[1]), 0xee));
        __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(F(v[2]), F(v[3]), 0x44),
                                  _mm512_shuffle_f32x4(F(v[2]), F(v[3]), 0xee));
        __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88),
                                 _mm512_shuffle_f32x4(ab, cd, 0xdd));

        s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
        s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
        s = _mm512_maskz_compress_ps(0x1111, s);
        _mm_storeu_ps(ret, _mm512_castps512_ps128(s));
}

/* Rounded to f16 and back. */
LANES_INLINE lanes_f lanes_round_half(lanes_f v) {
        return (lanes_f) _mm512_cvtph_ps(_mm512_cvtps_ph(F(v), 0));
}

/* 2^n for integral n in [-126, 127], given as float. */
LANES_INLINE lanes_f lanes_exp2i(lanes_f n) {
        __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(F(n)), _mm512_set1_epi32(127));

        return (lanes_f) _mm512_slli_epi32(e, 23);
}

#undef U
#undef F

#endif
