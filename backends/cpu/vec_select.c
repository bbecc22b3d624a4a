/*
 * Picks the table of row functions for the processor at hand, and fills the two activation tables.
 *
 * GELU and its quick form are defined over half precision: argument and value are rounded to f16,
 * as models were trained and checked with. 65 536 values each, computed once per process.
 */
#include "backends/cpu/vec.h"

#include <math.h>
#include <string.h>

#include "core/thread.h"

uint16_t cpu_gelu_table[1 << 16], cpu_gelu_quick_table[1 << 16];

static void tables_fill(void) {
        const float sqrt_2_over_pi = 0.79788456080286535588f;
        const struct cpu_vec *vec = &cpu_vec_portable;

        for (uint32_t bits = 0; bits < 1 << 16; bits++) {
                uint16_t half = (uint16_t) bits;
                float x, y;

                vec->f16_to_f32(1, &x, &half);
                y = 0.5f * x * (1.0f + tanhf(sqrt_2_over_pi * x * (1.0f + 0.044715f * x * x)));
                vec->f32_to_f16(1, &cpu_gelu_table[bits], &y);
                y = x * (1.0f / (1.0f + expf(-1.702f * x)));
                vec->f32_to_f16(1, &cpu_gelu_quick_table[bits], &y);
        }
}

static bool has_avx2(void) {
#if CPU_HAVE_X86
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
        return false;
#endif
}

static bool has_avx512(void) {
#if CPU_HAVE_X86
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
#else
        return false;
#endif
}

const struct cpu_vec *cpu_vec_select(const char *isa) {
        static hr_once once = HR_ONCE_INIT;
        bool is_auto = !isa || strcmp(isa, "auto") == 0;

        hr_once_call(&once, tables_fill);
#if CPU_HAVE_X86
        if ((is_auto || strcmp(isa, "avx512") == 0 || strcmp(isa, "avx512bf16") == 0) &&
            has_avx512()) /* row functions have no use for BF16 */
                return &cpu_vec_avx512;
        if ((is_auto || strcmp(isa, "avx2") == 0) && has_avx2())
                return &cpu_vec_avx2;
#else
        (void) has_avx2;
        (void) has_avx512;
#endif
        if (is_auto || strcmp(isa, "portable") == 0)
                return &cpu_vec_portable;
        return NULL;
}
