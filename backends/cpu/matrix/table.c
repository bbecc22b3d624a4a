/* The table of functions of the instruction set that this copy is compiled for. */
#include "backends/cpu/matrix/tables.h"

#define T(name, type) [HR_TYPE_##type] = &CPU_ISA(tile_##name),
#define W(name, type) [HR_TYPE_##type] = &CPU_ISA(whole_##name),
#define TILES                                                                                      \
        T(f32, F32) T(f16, F16) T(bf16, BF16) T(q4_1, Q4_1) T(q5_0, Q5_0) T(q5_1, Q5_1)            \
        T(q8_0, Q8_0) T(q2_K, Q2_K) T(q3_K, Q3_K) T(q4_K, Q4_K) T(q5_K, Q5_K) T(q6_K, Q6_K)        \
        T(iq1_s, IQ1_S) T(iq1_m, IQ1_M) T(iq2_xxs, IQ2_XXS) T(iq2_xs, IQ2_XS) T(iq2_s, IQ2_S)      \
        T(iq3_xxs, IQ3_XXS) T(iq3_s, IQ3_S) T(iq4_xs, IQ4_XS) T(tq1_0, TQ1_0) T(tq2_0, TQ2_0)      \
        T(nvfp4, NVFP4) T(q1_0, Q1_0) T(q2_0, Q2_0)

const struct cpu_dot CPU_ISA(cpu_dot) = {
        .name = CPU_ISA_NAME,
        .lanes = CPU_LANES,
        .width = CPU_WIDTH,
#define X(name, type) [HR_TYPE_##type] = CPU_ISA(dequantize_##name),
        .dequantize = {X(f32, F32) X(f16, F16) X(bf16, BF16) X(q4_0, Q4_0) X(q4_1, Q4_1) X(
                q5_0, Q5_0) X(q5_1, Q5_1) X(q8_0, Q8_0) X(iq4_nl, IQ4_NL) X(q2_K, Q2_K)
                               X(q3_K, Q3_K) X(q4_K, Q4_K) X(q5_K, Q5_K) X(q6_K, Q6_K)
                                       X(iq1_s, IQ1_S) X(iq1_m, IQ1_M) X(iq2_xxs, IQ2_XXS)
                                               X(iq2_xs, IQ2_XS) X(iq2_s, IQ2_S) X(iq3_xxs, IQ3_XXS)
                                                       X(iq3_s, IQ3_S) X(iq4_xs, IQ4_XS) X(tq1_0,
                                                                                           TQ1_0)
                                                               X(tq2_0, TQ2_0) X(mxfp4, MXFP4)
                                                                       X(nvfp4, NVFP4) X(q1_0, Q1_0)
                                                                               X(q2_0, Q2_0)},
#undef X
#define X(name, type) [HR_TYPE_##type] = CPU_ISA(quantize_##name),
        .quantize = {X(f32, F32) X(f16, F16) X(bf16, BF16) X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0)
                             X(q5_1, Q5_1) X(q8_0, Q8_0) X(iq4_nl, IQ4_NL) X(q2_K, Q2_K)
                                     X(q3_K, Q3_K) X(q4_K, Q4_K) X(q5_K, Q5_K) X(q6_K, Q6_K)
                                             X(iq4_xs, IQ4_XS) X(tq1_0, TQ1_0) X(tq2_0, TQ2_0)
                                                     X(mxfp4, MXFP4) X(nvfp4, NVFP4) X(q1_0, Q1_0)
                                                             X(q2_0, Q2_0)},
#undef X
        /* As llama.cpp multiplies weights: those that it interleaves when it loads them, with whole
         * blocks added up first. Keys of a cache it never interleaves. */
        .tile = {TILES W(q4_0, Q4_0) W(iq4_nl, IQ4_NL) W(mxfp4, MXFP4)},
        .key_tile = {TILES T(q4_0, Q4_0) T(iq4_nl, IQ4_NL) T(mxfp4, MXFP4)},
        .make_fast = CPU_ISA(make_fast),
        .float_dot = CPU_ISA(float_dot),
        .float_column = CPU_ISA(float_column),
        .score_row = CPU_ISA(score_row),
        .scale_row = CPU_ISA(scale_row),
        .exp_row = CPU_ISA(exp_row),
        .weigh_rows = CPU_ISA(weigh_rows),
        .score_keys = CPU_ISA(score_keys),
        .walk_values = CPU_ISA(walk_values),
        .score_tile = CPU_ISA(score_tile),
#if CPU_LANES == 16
        .score_few = CPU_ISA(score_few),
#endif
        .walk_rows = CPU_ISA(walk_rows),
};
