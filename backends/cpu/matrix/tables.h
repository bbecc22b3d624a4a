/* The functions and tables that the copies of one instruction set exchange. */
#pragma once

#include "backends/cpu/matrix/dot.h"
#include "backends/cpu/matrix/lanes.h"

extern const struct cpu_dot CPU_ISA(cpu_dot);

/* dequantize.c, quantize.c: one function per type; unlisted types are NULL. */
#define X(name) void CPU_ISA(dequantize_##name)(const void *row, float *ret_values, int64_t count);
X(f32)
X(f16) X(bf16) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(iq4_nl) X(q2_K) X(q3_K) X(q4_K) X(q5_K)
        X(q6_K) X(iq1_s) X(iq1_m) X(iq2_xxs) X(iq2_xs) X(iq2_s) X(iq3_xxs) X(iq3_s) X(iq4_xs)
                X(tq1_0) X(tq2_0) X(mxfp4) X(nvfp4) X(q1_0) X(q2_0)
#undef X
#define X(name) void CPU_ISA(quantize_##name)(const float *values, void *ret_row, int64_t count);
                        X(f32) X(f16) X(bf16) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(iq4_nl)
                                X(q2_K) X(q3_K) X(q4_K) X(q5_K) X(q6_K) X(iq4_xs) X(tq1_0) X(tq2_0)
                                        X(mxfp4) X(nvfp4) X(q1_0) X(q2_0)
#undef X

/* activation.c: where `width` columns go; arrays as in dot.h. */
struct activation {
        uint32_t *q;         /* [k / 4][width]: four quants each */
        int32_t *sums;       /* [k / group][width]: factor * sum of q; q8_0, q8_1: NULL will do */
        int32_t *dword_sums; /* [k / 4][width]: the same over four elements, or NULL; not q8_K */
        int32_t factor;
        float *scale;        /* [k / span][width] */
        float *product;      /* q8_1: [k / span][width], the stored d * sum; q8_K:
                              * [k / group][width], the sum itself; or NULL */
};

/* Quantises k floats of each of 1, 2, 3, 4 or CPU_WIDTH columns. group of q8_0 and q8_1: 32; of
 * q8_K: 16 or 32. */
void CPU_ISA(activate_q8)(const float *const *values, uint32_t width, int64_t k,
                          const struct activation *ret);
void CPU_ISA(activate_q8_K)(const float *const *values, uint32_t width, int64_t k, uint32_t group,
                            const struct activation *ret);

/* dot_block32.c, dot_block256.c, dot_iq.c, dot_few.c, dot_float.c */
#define X(name) extern const struct cpu_tile CPU_ISA(tile_##name);
X(q4_0)
X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(iq4_nl) X(q2_K) X(q3_K) X(q4_K) X(q5_K) X(q6_K) X(iq1_s) X(iq1_m)
        X(iq2_xxs) X(iq2_xs) X(iq2_s) X(iq3_xxs) X(iq3_s) X(iq4_xs) X(tq1_0) X(tq2_0) X(mxfp4)
                X(nvfp4) X(q1_0) X(q2_0) X(f32) X(f16) X(bf16)
#undef X

/* dot_fast32.c: the same with blocks added up exactly; dot_block32.c: what both pack with. */
#define X(name)                                                                                    \
        extern const struct cpu_tile CPU_ISA(whole_##name);                                        \
        void CPU_ISA(pack_##name)(const uint8_t *base, uint64_t stride, uint32_t rows, int64_t k,  \
                                  uint8_t *ret_tile);
X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(iq4_nl) X(mxfp4)
#undef X

        /* cpu_tile.dot of types with an offset, no minimum and one scale per 32 elements. */
        void CPU_ISA(dot_plain)(const uint8_t *tile, const uint8_t *columns, uint32_t width,
                                int64_t k, float *ret_out);

void CPU_ISA(float_dot)(uint32_t type, const uint8_t *base, uint64_t stride, uint32_t rows,
                        const uint8_t *columns, uint64_t column_stride, uint32_t width, int64_t k,
                        float *spare, float *ret_out, uint64_t out_stride);
void CPU_ISA(make_fast)(struct cpu_dot *table);
void CPU_ISA(float_column)(uint32_t type, const float *values, int64_t k, uint8_t *ret_column);
float CPU_ISA(score_row)(float *scores, const float *mask, uint32_t count, float scale, float cap,
                         float slope);
void CPU_ISA(scale_row)(float *values, uint32_t count, float factor);
double CPU_ISA(exp_row)(float *scores, uint32_t count, float maximum);
void CPU_ISA(weigh_rows)(const float *weights, uint64_t weight_stride, uint32_t columns,
                         const float *values, uint32_t keys, uint32_t size, float *out,
                         uint64_t out_stride);
void CPU_ISA(score_keys)(uint32_t type, const uint8_t *keys, uint64_t stride, uint32_t count,
                         const float *query, int64_t size, float *ret_scores);
void CPU_ISA(walk_values)(const struct cpu_key_walk *walk, bool is_half, uint32_t size,
                          float *total);
void CPU_ISA(score_tile)(const uint8_t *tile, const float *const *query, uint32_t rows,
                         int64_t size, float *ret_scores, uint64_t score_stride);
void CPU_ISA(score_few)(uint32_t type, const uint8_t *keys, uint64_t stride,
                        const float *const *query, uint32_t rows, int64_t size, float *ret_scores,
                        uint64_t score_stride);
void CPU_ISA(walk_rows)(const struct cpu_key_rows *walk, bool is_half, uint32_t size);
