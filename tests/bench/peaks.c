#include "tests/bench/peaks.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/base.h"
#include "core/clock.h"
#include "core/thread.h"

#define THREADS_MAX 64U
#define ROUNDS 2000000U
#define CHAINS 12

struct part {
        const uint8_t *memory;
        uint64_t bytes;
        void (*dots)(void);
        struct hr_thread thread;
};

typedef uint64_t wide __attribute__((vector_size(64), may_alias));

static volatile uint64_t sink; /* results go here, so that nobody leaves out how they came about */

static void part_read(void *arg) {
        const struct part *part = arg;
        const wide *at = (const wide *) (const void *) part->memory;
        wide sum[4] = {{0}};

        for (uint64_t i = 0; i + 4 <= part->bytes / sizeof(wide); i += 4)
                for (int j = 0; j < 4; j++)
                        sum[j] ^= at[i + (uint64_t) j];
        sink = sum[0][0] ^ sum[1][0] ^ sum[2][0] ^ sum[3][0];
}

#if defined(__x86_64__)
/* Chains in registers of their own, written out: a compiler may keep an array of them in memory,
 * and then it is the stores that are measured. */
#define CHAIN(step, number) step " %%zmm12, %%zmm13, %%zmm" #number "\n\t"
#define ALL_CHAINS(step)                                                                           \
        CHAIN(step, 0) CHAIN(step, 1) CHAIN(step, 2) CHAIN(step, 3) CHAIN(step, 4) CHAIN(step, 5)  \
        CHAIN(step, 6) CHAIN(step, 7) CHAIN(step, 8) CHAIN(step, 9) CHAIN(step, 10)                \
        CHAIN(step, 11)
#define CLEAR(number) "vpxor %%xmm" #number ", %%xmm" #number ", %%xmm" #number "\n\t"
#define CLEAR_ALL                                                                                  \
        CLEAR(0) CLEAR(1) CLEAR(2) CLEAR(3) CLEAR(4) CLEAR(5) CLEAR(6) CLEAR(7) CLEAR(8) CLEAR(9)  \
        CLEAR(10) CLEAR(11) CLEAR(12) CLEAR(13)
#define DOTS(step)                                                                                 \
        do {                                                                                       \
                uint64_t left = ROUNDS;                                                            \
                                                                                                   \
                __asm__ volatile(CLEAR_ALL                                                         \
                                 "1:\n\t" ALL_CHAINS(step) "dec %0\n\tjnz 1b\n\tvzeroupper"        \
                                 : "+r"(left)                                                      \
                                 :                                                                 \
                                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",   \
                                   "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13");    \
        } while (0)

__attribute__((target("avx512f,avx512vnni"))) static void dots_int8(void) {
        DOTS("vpdpbusd");
}

__attribute__((target("avx512f"))) static void dots_f32(void) {
        DOTS("vfmadd231ps");
}

static bool dots_of(const char *kind, void (**ret_dots)(void), double *ret_operations) {
        bool has_f = __builtin_cpu_supports("avx512f");

        if (strcmp(kind, "int8") == 0 && has_f && __builtin_cpu_supports("avx512vnni")) {
                *ret_dots = dots_int8;
                *ret_operations = 128;
                return true;
        }
        if (strcmp(kind, "f32") == 0 && has_f) {
                *ret_dots = dots_f32;
                *ret_operations = 32;
                return true;
        }
        return false;
}
#else
static bool dots_of(const char *kind, void (**ret_dots)(void), double *ret_operations) {
        (void) kind, (void) ret_dots, (void) ret_operations;
        return false;
}
#endif

static void part_dots(void *arg) {
        const struct part *part = arg;

        part->dots();
}

/* ns that fn(part) takes for all parts at once; the caller has the first one. */
static double parts_run(struct part *parts, uint32_t count, void (*fn)(void *)) {
        uint64_t start = hr_clock_now_ns();
        struct hr_diag diag = {0};

        for (uint32_t i = 1; i < count; i++)
                if (hr_thread_start(&parts[i].thread, "bench", fn, &parts[i], &diag) != HR_OK)
                        exit(1);
        fn(&parts[0]);
        for (uint32_t i = 1; i < count; i++)
                hr_thread_join(&parts[i].thread);
        return (double) (hr_clock_now_ns() - start);
}

double bench_read_peak(const uint8_t *memory, uint64_t bytes, uint32_t threads) {
        struct part parts[THREADS_MAX] = {{0}};
        uint64_t each;

        threads = HR_MIN(threads, THREADS_MAX);
        each = bytes / threads / 4096 * 4096;
        for (uint32_t i = 0; i < threads; i++)
                parts[i] = (struct part) {.memory = memory + each * i, .bytes = each};
        return (double) (each * threads) / parts_run(parts, threads, part_read);
}

double bench_dot_peak(const char *kind, uint32_t threads) {
        struct part parts[THREADS_MAX] = {{0}};
        double operations;
        void (*dots)(void);

        threads = HR_MIN(threads, THREADS_MAX);
        if (!dots_of(kind, &dots, &operations))
                return 0;
        for (uint32_t i = 0; i < threads; i++)
                parts[i].dots = dots;
        return operations * CHAINS * ROUNDS * threads / parts_run(parts, threads, part_dots);
}
