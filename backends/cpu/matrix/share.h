/* Scratch memory and work items, as the kernels of this folder cut them. */
#pragma once

#include <string.h>

#include "backends/cpu/kernel.h"
#include "backends/cpu/matrix/dot.h"

/* A type that kernels can multiply, dequantise, ... on any instruction set: all tables list the
 * same types, so that what a device supports does not depend on its processor. */
static inline const struct cpu_dot *cpu_any_dot(void) {
        return cpu_dot_select("portable");
}

#define CPU_LANES_MAX 16U
#define CPU_WIDTH_MAX 8U

/* Rounded up to the alignment of scratch; saturates, and then no memory will be found. */
static inline uint64_t cpu_round_up(uint64_t bytes) {
        return bytes > UINT64_MAX - 63 ? UINT64_MAX : (bytes + 63) & ~UINT64_C(63);
}

static inline uint64_t cpu_times(uint64_t a, uint64_t b) {
        uint64_t result;

        return hr_mul_u64(a, b, &result) ? result : UINT64_MAX;
}

static inline uint64_t cpu_plus(uint64_t a, uint64_t b) {
        uint64_t result;

        return hr_add_u64(a, b, &result) ? result : UINT64_MAX;
}

/* `total` units of work: each thread has a run of neighbours of its own, handed out in items that
 * get smaller and follow one another, so that memory is read ahead across them; who has done all of
 * its own takes what others have left. The next item's units, or false when there are none left; an
 * item may be empty. taken_from: 0 at first; how many threads' units are known to be taken. How
 * units are grouped does not show in results. */
static inline bool cpu_next_range(const struct cpu_call *call, int64_t total, uint32_t *taken_from,
                                  int64_t *ret_first, int64_t *ret_end) {
        enum { LEVELS = 5 };
        const uint32_t threads = call->threads;

        for (; *taken_from < threads; (*taken_from)++) {
                const uint32_t owner = (call->thread + *taken_from) % threads;
                const uint32_t level = cpu_next_own(call, owner, LEVELS);
                const int64_t start = total * owner / threads;
                const int64_t count = total * (owner + 1) / threads - start;

                if (level >= LEVELS)
                        continue;
                *ret_first = start + count - (count >> level);
                *ret_end = start + count - (level < LEVELS - 1 ? count >> (level + 1) : 0);
                return true;
        }
        return false;
}

/* A matrix whose rows are blocks one after the other, or that has no elements. */
static inline bool cpu_is_matrix(const struct hr_operand *operand) {
        const struct hr_type_info *info = hr_type_info(operand->type);

        return info && (operand->nb[0] == info->block_bytes || !operand->ne[0] ||
                        !operand->ne[1] || !operand->ne[2] || !operand->ne[3]);
}

static inline uint8_t *cpu_at(const struct hr_operand *operand, int64_t i1, int64_t i2,
                              int64_t i3) {
        return (uint8_t *) operand->data + (uint64_t) i1 * operand->nb[1] +
               (uint64_t) i2 * operand->nb[2] + (uint64_t) i3 * operand->nb[3];
}

/* f32, f16 or bf16: what cpu_float_row() reads. */
static inline bool cpu_has_float_rows(const struct hr_operand *operand) {
        return operand->type == HR_TYPE_F32 || operand->type == HR_TYPE_F16 ||
               operand->type == HR_TYPE_BF16;
}

/* `count` elements of a float type, `stride` bytes apart, as contiguous f32: the data themselves
 * when they are that already, else a copy in `spare`. */
const float *cpu_float_row(const struct cpu_dot *dot, uint32_t type, const uint8_t *row,
                           uint64_t stride, int64_t count, float *spare);
