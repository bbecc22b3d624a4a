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
#include <immintrin.h>

/* The barriers keep the chains in registers, and the compiler from seeing through them. */
#define ROUND(type, chains, step)                                                                  \
        for (uint32_t i = 0; i < ROUNDS; i++) {                                                    \
                _Pragma("GCC unroll 12") for (int j = 0; j < CHAINS; j++) {                        \
                        (chains)[j] = step;                                                        \
                        __asm__ volatile("" : "+v"((chains)[j]));                                  \
                }                                                                                  \
        }

__attribute__((target("avx512f,avx512vnni"))) static void dots_int8(void) {
        __m512i chain[CHAINS], a = _mm512_set1_epi32(0x01020304), b = _mm512_set1_epi32(0x04030201);

        for (int j = 0; j < CHAINS; j++)
                chain[j] = _mm512_setzero_si512();
        ROUND(__m512i, chain, _mm512_dpbusd_epi32(chain[j], a, b))
        sink = (uint64_t) _mm512_reduce_add_epi32(chain[0]);
}

__attribute__((target("avx512f"))) static void dots_f32(void) {
        __m512 chain[CHAINS], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);

        for (int j = 0; j < CHAINS; j++)
                chain[j] = _mm512_setzero_ps();
        ROUND(__m512, chain, _mm512_fmadd_ps(a, b, chain[j]))
        sink = (uint64_t) _mm512_reduce_add_ps(chain[0]);
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
