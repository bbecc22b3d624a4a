/*
 * Which instruction set the processor can run, asked once per device, and the partner types.
 *
 * "avx512" needs F, BW, VL, DQ and VNNI; a processor with less of it is served by "avx2".
 * "avx512bf16" needs BF16 besides.
 */
#include <string.h>

#include "backends/cpu/backend.h"
#include "backends/cpu/matrix/dot.h"
#include "core/thread.h"

extern const struct cpu_dot cpu_dot_portable;
#if defined(__x86_64__) && !defined(CPU_MATRIX_PORTABLE_ONLY)
#include <cpuid.h>

extern const struct cpu_dot cpu_dot_avx2, cpu_dot_avx512;

static bool has_avx2(void) {
        unsigned a, b, c, d;

        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512(void) {
        return has_avx2() && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#endif

const struct cpu_dot *cpu_dot_select(const char *isa) {
        bool any = !isa || strcmp(isa, "auto") == 0;

#if defined(__x86_64__) && !defined(CPU_MATRIX_PORTABLE_ONLY)
#if HR_HAVE_AVX512BF16
        if ((any || strcmp(isa, "avx512bf16") == 0) && has_avx512() &&
            __builtin_cpu_supports("avx512bf16"))
                return cpu_dot_avx512bf16();
#endif
        if ((any || strcmp(isa, "avx512") == 0) && has_avx512())
                return &cpu_dot_avx512;
        if ((any || strcmp(isa, "avx2") == 0) && has_avx2())
                return &cpu_dot_avx2;
#endif
        return any || strcmp(isa, "portable") == 0 ? &cpu_dot_portable : NULL;
}

/* Copies of the sets with fast tiles, made once. */
static struct cpu_dot fast_sets[4];
static hr_once fast_once = HR_ONCE_INIT;

static void fast_fill(void) {
        static const char *const names[] = {"portable", "avx2", "avx512", "avx512bf16"};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++) {
                const struct cpu_dot *dot = cpu_dot_select(names[i]);

                if (!dot)
                        continue;
                fast_sets[i] = *dot;
                fast_sets[i].make_fast(&fast_sets[i]);
        }
}

const struct cpu_dot *cpu_dot_fast(const struct cpu_dot *dot) {
        hr_once_call(&fast_once, fast_fill);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(fast_sets); i++)
                if (fast_sets[i].name == dot->name)
                        return &fast_sets[i];
        return dot;
}

int cpu_partner_type(uint32_t type) {
        switch (type) {
        case HR_TYPE_F32:
        case HR_TYPE_F16:
        case HR_TYPE_BF16:
                return (int) type;
        case HR_TYPE_Q4_0:
        case HR_TYPE_Q5_0:
        case HR_TYPE_Q8_0:
        case HR_TYPE_IQ4_NL:
        case HR_TYPE_MXFP4:
        case HR_TYPE_NVFP4:
        case HR_TYPE_Q1_0:
        case HR_TYPE_Q2_0:
                return HR_TYPE_Q8_0;
        case HR_TYPE_Q4_1:
        case HR_TYPE_Q5_1:
                return HR_TYPE_Q8_1;
        case HR_TYPE_Q2_K:
        case HR_TYPE_Q3_K:
        case HR_TYPE_Q4_K:
        case HR_TYPE_Q5_K:
        case HR_TYPE_Q6_K:
        case HR_TYPE_IQ1_S:
        case HR_TYPE_IQ1_M:
        case HR_TYPE_IQ2_XXS:
        case HR_TYPE_IQ2_XS:
        case HR_TYPE_IQ2_S:
        case HR_TYPE_IQ3_XXS:
        case HR_TYPE_IQ3_S:
        case HR_TYPE_IQ4_XS:
        case HR_TYPE_TQ1_0:
        case HR_TYPE_TQ2_0:
                return HR_TYPE_Q8_K;
        default:
                return -1;
        }
}

const hr_dequantize_fn *hr_cpu_weights_to_f32(void) {
        return cpu_dot_select(NULL)->dequantize;
}
