/* The lanes of plain C: vectors of four that any compiler can lower. Contract: lanes.h. */
#pragma once

#include "backends/cpu/matrix/half.h"
#include "backends/cpu/matrix/lanes_inline.h"

#define CPU_ISA_NAME "portable"
#define CPU_ISA(name) name##_portable
#define CPU_LANES 4
#define CPU_WIDTH 4
#define CPU_FLOAT_WIDTH 2
#define CPU_SIGNED_BYTES 1

typedef uint32_t lanes_u __attribute__((vector_size(16), may_alias));
typedef int32_t lanes_i __attribute__((vector_size(16), may_alias));
typedef float lanes_f __attribute__((vector_size(16), may_alias));

LANES_INLINE lanes_u lanes_load1(const uint8_t *const *row, uint64_t at) {
        lanes_u v;

        for (int i = 0; i < 4; i++)
                v[i] = cpu_read_u32(row[i] + at);
        return v;
}

LANES_INLINE void lanes_load4(const uint8_t *const *row, uint64_t at, lanes_u ret[4]) {
        for (int j = 0; j < 4; j++)
                ret[j] = lanes_load1(row, at + 4 * (uint64_t) j);
}

LANES_INLINE lanes_f lanes_half(lanes_u low16) {
        lanes_f v;

        for (int i = 0; i < 4; i++)
                v[i] = cpu_half_to_float((uint16_t) low16[i]);
        return v;
}

LANES_INLINE lanes_f lanes_load_half(const uint8_t *const *row, uint64_t at) {
        lanes_f v;

        for (int i = 0; i < 4; i++)
                v[i] = cpu_read_half(row[i] + at);
        return v;
}

LANES_INLINE lanes_u lanes_dot4(lanes_u sum, lanes_u w, const uint32_t *a) {
        for (int b = 0; b < 32; b += 8)
                sum += (w >> b & 0xffU) * (uint32_t) (int32_t) (int8_t) (*a >> b & 0xffU);
        return sum;
}

LANES_INLINE lanes_u lanes_dot4_signed(lanes_u sum, lanes_u w, const uint32_t *a) {
        for (int b = 0; b < 32; b += 8)
                sum += (((w >> b & 0xffU) ^ 0x80U) - 0x80U) *
                       (uint32_t) (int32_t) (int8_t) (*a >> b & 0xffU);
        return sum;
}

LANES_INLINE lanes_f lanes_from_int(lanes_u v) {
        lanes_f r;

        for (int i = 0; i < 4; i++)
                r[i] = (float) (int32_t) v[i];
        return r;
}

LANES_INLINE lanes_f lanes_fma(lanes_f a, lanes_f b, lanes_f c) {
        return a * b + c;
}

#define LANES_HAVE_FMA_ONCE 1
/* Rounded once, as a fused step is (twice in one of 2^29 cases): slow. */
LANES_INLINE lanes_f lanes_fma_once(lanes_f a, lanes_f b, lanes_f c) {
        lanes_f r;

        for (int i = 0; i < 4; i++)
                r[i] = (float) ((double) a[i] * (double) b[i] + (double) c[i]);
        return r;
}

LANES_INLINE lanes_f lanes_max(lanes_f a, lanes_f b) {
        lanes_f r;

        for (int i = 0; i < 4; i++)
                r[i] = a[i] > b[i] ? a[i] : b[i];
        return r;
}

LANES_INLINE lanes_u lanes_max_u(lanes_u a, lanes_u b) {
        lanes_u above = (lanes_u) (a > b);

        return (a & above) | (b & ~above);
}

LANES_INLINE uint32_t lanes_largest(lanes_u v) {
        uint32_t a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];

        return a > b ? a : b;
}

/* The lowest byte of each lane. */
LANES_INLINE void lanes_store_bytes(uint8_t *p, lanes_u v) {
        for (int i = 0; i < 4; i++)
                p[i] = (uint8_t) v[i];
}

LANES_INLINE lanes_f lanes_load_f(const float *p) {
        lanes_f v;

        memcpy(&v, p, sizeof v);
        return v;
}

LANES_INLINE lanes_f lanes_load_part_f(const float *p, unsigned count) {
        lanes_f v = {0};

        memcpy(&v, p, count * sizeof *p);
        return v;
}

LANES_INLINE void lanes_store_f(float *p, lanes_f v) {
        memcpy(p, &v, sizeof v);
}

LANES_INLINE void lanes_store_part_f(float *p, lanes_f v, unsigned count) {
        memcpy(p, &v, count * sizeof *p);
}

LANES_INLINE lanes_f lanes_load_f16(const uint8_t *p) {
        lanes_f v;

        for (int i = 0; i < 4; i++)
                v[i] = cpu_read_half(p + 2 * i);
        return v;
}

LANES_INLINE lanes_f lanes_load_bf16(const uint8_t *p) {
        lanes_f v;

        for (int i = 0; i < 4; i++)
                v[i] = cpu_bf16_to_float(cpu_read_u16(p + 2 * i));
        return v;
}

LANES_INLINE lanes_u lanes_table16(lanes_u nibbles, const uint8_t *table) {
        lanes_u v = {0};

        for (int i = 0; i < 4; i++)
                for (int b = 0; b < 32; b += 8)
                        v[i] |= (uint32_t) table[nibbles[i] >> b & 15U] << b;
        return v;
}

LANES_INLINE lanes_u lanes_gather(const uint32_t *table, lanes_u index) {
        lanes_u v;

        for (int i = 0; i < 4; i++)
                v[i] = table[index[i]];
        return v;
}

LANES_INLINE void lanes_gather2(const uint32_t *table, lanes_u index, lanes_u ret[2]) {
        ret[0] = lanes_gather(table, index << 1);
        ret[1] = lanes_gather(table + 1, index << 1);
}

LANES_INLINE void lanes_sum4(const lanes_f v[4], float ret[4]) {
        for (int i = 0; i < 4; i++)
                ret[i] = (v[i][0] + v[i][2]) + (v[i][1] + v[i][3]);
}

/* Rounded to f16 and back. */
LANES_INLINE lanes_f lanes_round_half(lanes_f v) {
        for (int i = 0; i < 4; i++)
                v[i] = cpu_half_to_float(cpu_float_to_half(v[i]));
        return v;
}

LANES_INLINE lanes_f lanes_exp2i(lanes_f n) {
        lanes_f v;

        for (int i = 0; i < 4; i++)
                v[i] = cpu_bits_float((uint32_t) ((int32_t) n[i] + 127) << 23);
        return v;
}
