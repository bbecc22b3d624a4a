/*
 * A kernel of the matrix folder on its own: a team of plain threads, operands that end at a page
 * nobody may touch, scratch with a guard band, random data.
 */
#pragma once

#include "backends/cpu/kernel.h"
#include "backends/cpu/matrix/dot.h"

#define CASE_BANDS 64 /* bytes before and after a result that must keep their pattern */

/* Instruction sets of this processor; count in *ret_count. */
const struct cpu_dot *const *case_sets(uint32_t *ret_count);
/* Those, and each with the additions of `arithmetic = fast`. */
const struct cpu_dot *const *case_product_sets(uint32_t *ret_count);

/* Memory whose last byte is followed by a page without access; freed by case_free_all(). */
void *case_memory(uint64_t bytes);
void case_free_all(void);

/* A contiguous operand of random contents: floats in [-1, 1), block rows of sane scales, small
 * integers. */
struct hr_operand case_operand(uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
/* The same shape and type over memory with bands; contents are the bands' pattern. */
struct hr_operand case_result(uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
/* Fails the test when a band of the operand was written. */
void case_check_bands(const struct hr_operand *operand);
/* The operand seen with two dimensions exchanged. */
struct hr_operand case_swap(struct hr_operand operand, int a, int b);

uint32_t case_random(void);
float case_uniform(void); /* [-1, 1) */
/* Fills `bytes` of block rows: random bits, no NaN or infinity as a scale. */
void case_fill_blocks(uint32_t type, uint8_t *bytes, uint64_t count);

/* The row functions that kernels are given; NULL for those that use none. */
extern const struct cpu_vec *case_vec;

/* Runs a kernel; returns how many indices it refused. Checks supports() and scratch bounds. */
int case_run(const struct cpu_kernel *kernel, const struct hr_step *step, const struct cpu_dot *dot,
             uint32_t threads);

/* Element of an operand as double (block types dequantised by the portable set). */
double case_value(const struct hr_operand *operand, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
/* Its whole row: ne[0] values. */
void case_row(const struct hr_operand *operand, int64_t i1, int64_t i2, int64_t i3,
              double *ret_values);
/* sum((a - b)^2) / sum(a^2), from running sums. */
struct case_error {
        double difference, reference;
};
void case_compare(struct case_error *error, double reference, double value);
double case_nmse(const struct case_error *error);
