/*
 * What one op's kernel is to the CPU device, and what the device gives a kernel.
 *
 * A kernel is called by every member of the team at once with the same step; it takes its share by
 * (thread, threads), and may meet the others at cpu_barrier(). Work is cut by result rows or tiles
 * in a way that does not depend on `threads`, so that results have the same bits for any team.
 *
 * Validation has proven shapes, types and strides; kernels check the values that they use as an
 * index (row ids, expert ids, positions) and report with cpu_fail(). After a failure the other
 * members go on to the end of the step: barriers must still be met by all.
 */
#pragma once

#include "core/device.h"

struct cpu_team;
struct cpu_dot; /* dot.h: conversions and dot products of one instruction set */
struct cpu_vec; /* vec.h: row-wise float functions of one instruction set */

struct cpu_call {
        const struct hr_step *step;
        uint32_t thread, threads;
        uint8_t *scratch; /* shared by the team, 64-byte aligned; cpu_kernel.scratch() bytes */
        struct cpu_team *team;
        const struct cpu_dot *dot;
        const struct cpu_vec *vec;
        struct hr_outcome *outcome;
};

/* Waits until every member of the team has come here. team.c */
void cpu_barrier(const struct cpu_call *call);

/* Fetches the next of `count` work items handed out in order to whoever asks (for uneven work);
 * returns count when there are none left. Reset by the device before each step. team.c */
uint32_t cpu_next_item(const struct cpu_call *call, uint32_t count);

/* The same of `count` items that belong to one thread, which others take when they have none left
 * of their own. */
uint32_t cpu_next_own(const struct cpu_call *call, uint32_t thread, uint32_t count);

/* Records HR_E_RANGE (reason INDEX_VALUE) for the step's node: `value` is not in [0, limit). */
void cpu_fail_index(const struct cpu_call *call, const char *what, int64_t value, int64_t limit);

/* Rows (or any items) [*ret_first, *ret_end) of `count` for this thread, in multiples of
 * `grain`. */
static inline void cpu_share(const struct cpu_call *call, int64_t count, int64_t grain,
                             int64_t *ret_first, int64_t *ret_end) {
        int64_t grains = (count + grain - 1) / grain;
        int64_t first = grains * call->thread / call->threads * grain;
        int64_t end = grains * (call->thread + 1) / call->threads * grain;

        *ret_first = first < count ? first : count;
        *ret_end = end < count ? end : count;
}

struct cpu_kernel {
        /* Pure function of shapes, types and parameters; addresses in `step` are NULL. */
        bool (*supports)(const struct hr_step *step);
        /* Bytes of shared scratch; NULL = none. Pure, like supports. */
        uint64_t (*scratch)(const struct hr_step *step, uint32_t threads);
        /* Most threads worth waking; NULL = by the size of the result. */
        uint32_t (*threads_max)(const struct hr_step *step);
        void (*run)(const struct cpu_call *call);
};

/* One getter per op family file; device.c has the table from op to kernel. */
extern const struct cpu_kernel cpu_kernel_mul_mat, cpu_kernel_mul_mat_id, cpu_kernel_flash_attn,
        cpu_kernel_get_rows, cpu_kernel_set_rows, cpu_kernel_cpy, cpu_kernel_cont, cpu_kernel_dup;
