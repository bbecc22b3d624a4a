/*
 * Row-wise float functions, built once per instruction set from vec.c.
 *
 * `out` may be one of the inputs (same address, same index) unless said. Every table gives the same
 * bits for the same inputs: multiply-adds are fused where the text says so, nothing is
 * reassociated, sums run over a fixed number of lanes. n may be 0. Thread: any; nothing here has
 * state but the tables of vec_select.c.
 */
#pragma once

#include <stdint.h>

#include "core/op.h"

typedef void (*cpu_vec_unary_fn)(int64_t n, float *out, const float *in);
typedef void (*cpu_vec_binary_fn)(int64_t n, float *out, const float *a, const float *b);

enum { CPU_VEC_ADD, CPU_VEC_SUB, CPU_VEC_MUL, CPU_VEC_DIV, CPU_VEC_BINARY_COUNT };

struct cpu_vec {
        const char *isa;
        /* Conversions; rounding is to nearest, ties to even; never in place. */
        void (*f16_to_f32)(int64_t n, float *out, const uint16_t *in);
        void (*f32_to_f16)(int64_t n, uint16_t *out, const float *in);
        void (*bf16_to_f32)(int64_t n, float *out, const uint16_t *in);
        void (*f32_to_bf16)(int64_t n, uint16_t *out, const float *in);

        cpu_vec_binary_fn binary[CPU_VEC_BINARY_COUNT];
        cpu_vec_unary_fn unary[HR_UNARY_COUNT]; /* XIELU is NULL: it has parameters */
        cpu_vec_unary_fn sqr, sqrt, log, sin, cos;
        void (*scale)(int64_t n, float *out, const float *in, float scale, float bias);
        void (*clamp)(int64_t n, float *out, const float *in, float low, float high);
        void (*leaky_relu)(int64_t n, float *out, const float *in, float slope);
        /* x > 0: ap x^2 + beta x; else (expm1(min(x, eps)) - x) an + beta x */
        void (*xielu)(int64_t n, float *out, const float *in, float an, float ap, float beta,
                      float eps);
        /* x = min(a, limit): x sigmoid(alpha x) (clamp(gate, -limit, limit) + 1) */
        void (*swiglu_oai)(int64_t n, float *out, const float *a, const float *gate, float alpha,
                           float limit);
        /* out += factor * in */
        void (*add_scaled)(int64_t n, float *out, const float *in, float factor);
        /* out = exp(in - shift); returns the sum of out. */
        double (*exp_sum)(int64_t n, float *out, const float *in, float shift);
        /* out = in - shift; returns the sum of squares of out. */
        double (*shift_squares)(int64_t n, float *out, const float *in, float shift);
        double (*sum)(int64_t n, const float *in);
        /* Squares are rounded to f32 before they are added. */
        double (*sum_squares)(int64_t n, const float *in);
        float (*max)(int64_t n, const float *in); /* -inf when n is 0 */
        /* Pairs (x[i * step], x[i * step + distance]), i < pairs, turned by angle i. */
        void (*rotate)(int64_t pairs, int64_t step, int64_t distance, float *out, const float *in,
                       const float *cosines, const float *sines);
};

/* The functions of that instruction set ("auto" or NULL: the best; "portable", "avx2", "avx512"),
 * or NULL when there is no such name or the processor lacks it. Fills the tables of vec_table.c. */
const struct cpu_vec *cpu_vec_select(const char *isa);

extern const struct cpu_vec cpu_vec_portable;
#if defined(CPU_HAVE_X86) && CPU_HAVE_X86
extern const struct cpu_vec cpu_vec_avx2, cpu_vec_avx512;
#endif

/* f16 bits of x -> f16 bits of gelu(x) and of x sigmoid(1.702 x); valid after cpu_vec_select(). */
extern uint16_t cpu_gelu_table[1 << 16], cpu_gelu_quick_table[1 << 16];
