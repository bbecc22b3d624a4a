/*
 * MUL_MAT over cblas: a[k, m, a2, a3] and b[k, n, b2, b3] (f32) -> f32 [m, n, b2, b3], a repeated
 * along dimensions 2 and 3. a is f32, or of a type that `to_f32` converts: then each block of rows
 * is converted before it is multiplied.
 *
 * The product is cut into blocks of weight rows. Who computes a block does not matter to its bits,
 * and where blocks end depends on shapes alone.
 */
#pragma once

#include "core/device.h"

/* Pure function of shapes, types and strides; n_min: fewest columns; to_f32[HR_TYPE_LIMIT]: NULL
 * for a type that is not converted. */
bool blas_gemm_supports(const struct hr_step *step, const hr_dequantize_fn *to_f32, uint32_t n_min);
uint32_t blas_gemm_blocks(const struct hr_step *step);
/* Bytes each thread needs to hold converted weights of one block; 0 for f32. A multiple of 64. */
uint64_t blas_gemm_scratch(const struct hr_step *step);
/* Computes block number `block`; scratch is the calling thread's. */
void blas_gemm_block(const struct hr_step *step, const hr_dequantize_fn *to_f32, uint32_t block,
                     float *scratch);
/* OpenBLAS runs in the calling thread from now on. */
void blas_gemm_init(void);
