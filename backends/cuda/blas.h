/*
 * Large products of floats by cuBLASLt, which is opened at run time: without the library they are
 * the kernels' as well. A product is prepared once, with its addresses, and then only enqueued.
 */
#pragma once

#include <cublasLt.h>

#include "backends/cuda/gpu.h"

struct cuda_blas_syms {
#define X(name) __typeof__(name) *name;
#include "backends/cuda/blas.def"
#undef X
};

/* The table of the process, filled by the first call; NULL without the library, or with one that
 * lacks an entry point. Later calls give the same answer. Thread: any. */
const struct cuda_blas_syms *cuda_blas_open(void);
/* From now on that table instead of the library's (NULL: the library's again). Only while no device
 * of this backend exists. It outlives its use. */
void cuda_blas_replace(const struct cuda_blas_syms *syms);

/* out[m, n] = the sum over k of a[k, m] b[k, n], out in f32. Extents in elements, as is what lies
 * between columns. */
struct cuda_matmul_spec {
        uint32_t type; /* of a and b: f16, bf16, f32 */
        int64_t m, n, k;
        int64_t a_stride, b_stride, out_stride;
        uint64_t a, b, out;
        uint64_t workspace, workspace_bytes; /* aligned to 256 */
};

struct cuda_matmul;

/* HR_E_UNSUPPORTED when the library has no way for the product. */
HR_NODISCARD hr_status cuda_matmul_new(struct cuda_gpu *gpu, const struct cuda_matmul_spec *spec,
                                       struct hr_diag *diag, struct cuda_matmul **ret_matmul);
struct cuda_matmul *cuda_matmul_free(struct cuda_matmul *matmul);
/* The same for products of one form: of other addresses perhaps, yet computed in one way. */
uint64_t cuda_matmul_form(const struct cuda_matmul *matmul);
/* In the GPU's context. The stream may be captured: all that the library needs is there. */
CUresult cuda_matmul_launch(const struct cuda_matmul *matmul, CUstream stream);

/* Of a GPU that ends, in its context: what the library holds there. */
void cuda_blas_close(struct cuda_gpu *gpu);
