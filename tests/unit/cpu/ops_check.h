/* Runs a kernel on every instruction set and on teams of several sizes, and judges each result. */
#pragma once

#include "backends/cpu/ops.h"
#include "tests/harness.h"
#include "tests/unit/cpu/kernel_case.h"

/* The element of the step's result by the definition, in double. */
typedef double (*ops_reference_fn)(const struct hr_step *step, int64_t i0, int64_t i1, int64_t i2,
                                   int64_t i3);

/* case_run() with the functions of an instruction set ("auto": the best). */
int ops_run(const struct cpu_kernel *kernel, const struct hr_step *step, const char *isa,
            uint32_t threads);

/* The result's data are set here. Expects an nmse of at most `limit` against the definition, the
 * same bits for 1, 2, 3 and 5 threads, and untouched bands. */
void ops_check(const struct cpu_kernel *kernel, struct hr_step *step, ops_reference_fn reference,
               double limit);

/* A step over these sources with a contiguous result; `params` outlive it. */
struct hr_step ops_step(uint32_t op, const int32_t *params, uint32_t source_count,
                        const struct hr_operand *sources, struct hr_operand result);
