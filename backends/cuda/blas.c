/*
 * See blas.h. The library's results are told as the driver's: what went wrong on the GPU is what
 * the driver will say of the context, too.
 */
#include "backends/cuda/blas.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/type.h"

static struct cuda_blas_syms opened;
static bool opened_whole;
static hr_once opened_once = HR_ONCE_INIT;
static _Atomic(const struct cuda_blas_syms *) replacement;

static const struct {
        const char *name;
        size_t offset;
} names[] = {
#define NAME_OF(name) #name
#define X(name) { NAME_OF(name), offsetof(struct cuda_blas_syms, name) },
#include "backends/cuda/blas.def"
#undef X
};

/* The library stays open for good. */
static void library_open(void) {
        void *library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);

        for (size_t i = 0; library && i < HR_ARRAY_LENGTH(names); i++) {
                void *address = dlsym(library, names[i].name);

                if (!address)
                        return;
                memcpy((char *) &opened + names[i].offset, &address, sizeof address);
        }
        opened_whole = library != NULL;
}

const struct cuda_blas_syms *cuda_blas_open(void) {
        const struct cuda_blas_syms *replaced = atomic_load(&replacement);

        if (replaced)
                return replaced;
        hr_once_call(&opened_once, library_open);
        return opened_whole ? &opened : NULL;
}

void cuda_blas_replace(const struct cuda_blas_syms *syms) {
        atomic_store(&replacement, syms);
}

static CUresult result_of(cublasStatus_t status) {
        switch (status) {
        case CUBLAS_STATUS_SUCCESS:
                return CUDA_SUCCESS;
        case CUBLAS_STATUS_ALLOC_FAILED:
                return CUDA_ERROR_OUT_OF_MEMORY;
        case CUBLAS_STATUS_NOT_SUPPORTED:
        case CUBLAS_STATUS_ARCH_MISMATCH:
                return CUDA_ERROR_NOT_SUPPORTED;
        case CUBLAS_STATUS_EXECUTION_FAILED:
        case CUBLAS_STATUS_MAPPING_ERROR:
                return CUDA_ERROR_LAUNCH_FAILED;
        default:
                return CUDA_ERROR_INVALID_VALUE;
        }
}

/* ---- The library on a GPU -------------------------------------------------------------------- */

static cublasStatus_t handle_of(struct cuda_gpu *gpu, const struct cuda_blas_syms *blas,
                                cublasLtHandle_t *ret_handle) {
        cublasLtHandle_t handle = NULL;
        cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

        (void) pthread_mutex_lock(&gpu->lock);
        if (!gpu->blas) {
                status = blas->cublasLtCreate(&handle);
                if (status == CUBLAS_STATUS_SUCCESS)
                        gpu->blas = handle;
        }
        *ret_handle = gpu->blas;
        (void) pthread_mutex_unlock(&gpu->lock);
        return status;
}

void cuda_blas_close(struct cuda_gpu *gpu) {
        if (gpu->blas)
                (void) cuda_blas_open()->cublasLtDestroy(gpu->blas);
        gpu->blas = NULL;
}

/* ---- Products -------------------------------------------------------------------------------- */

struct cuda_matmul {
        const struct cuda_blas_syms *blas;
        struct cuda_matmul_spec spec;
        cublasLtHandle_t handle;
        cublasLtMatmulDesc_t desc;
        cublasLtMatrixLayout_t a, b, out;
        cublasLtMatmulHeuristicResult_t way;
};

static cudaDataType_t type_of(uint32_t type) {
        return type == HR_TYPE_F16 ? CUDA_R_16F : type == HR_TYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* What the address is a multiple of, as far as the library cares. */
static uint32_t alignment_of(uint64_t address) {
        uint64_t lowest = address & (~address + 1);

        return lowest == 0 || lowest > 256 ? 256 : (uint32_t) lowest;
}

static cublasStatus_t prefer(struct cuda_matmul *matmul, cublasLtMatmulPreference_t preference,
                             cublasLtMatmulPreferenceAttributes_t attribute, uint64_t address) {
        uint32_t alignment = alignment_of(address);

        return matmul->blas->cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment,
                                                                  sizeof alignment);
}

static cublasStatus_t prefer_all(struct cuda_matmul *matmul,
                                 cublasLtMatmulPreference_t preference) {
        const struct cuda_matmul_spec *spec = &matmul->spec;
        cublasStatus_t status = matmul->blas->cublasLtMatmulPreferenceSetAttribute(
                preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &spec->workspace_bytes,
                sizeof spec->workspace_bytes);

        if (status == CUBLAS_STATUS_SUCCESS)
                status = prefer(matmul, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                spec->a);
        if (status == CUBLAS_STATUS_SUCCESS)
                status = prefer(matmul, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                spec->b);
        if (status == CUBLAS_STATUS_SUCCESS)
                status = prefer(matmul, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                spec->out);
        if (status == CUBLAS_STATUS_SUCCESS)
                status = prefer(matmul, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                                spec->out);
        return status;
}

/* The library's own choice among its kernels. */
static cublasStatus_t choose(struct cuda_matmul *matmul) {
        cublasLtMatmulPreference_t preference = NULL;
        cublasStatus_t status = matmul->blas->cublasLtMatmulPreferenceCreate(&preference);
        int found = 0;

        if (status != CUBLAS_STATUS_SUCCESS)
                return status;
        status = prefer_all(matmul, preference);
        if (status == CUBLAS_STATUS_SUCCESS)
                status = matmul->blas->cublasLtMatmulAlgoGetHeuristic(
                        matmul->handle, matmul->desc, matmul->a, matmul->b, matmul->out,
                        matmul->out, preference, 1, &matmul->way, &found);
        (void) matmul->blas->cublasLtMatmulPreferenceDestroy(preference);
        if (status == CUBLAS_STATUS_SUCCESS && found == 0)
                return CUBLAS_STATUS_NOT_SUPPORTED;
        return status == CUBLAS_STATUS_SUCCESS ? matmul->way.state : status;
}

/* Sums in f32. Columns lie one behind the other, so a is taken turned. */
static cublasStatus_t describe(struct cuda_matmul *matmul) {
        const struct cuda_matmul_spec *spec = &matmul->spec;
        const struct cuda_blas_syms *blas = matmul->blas;
        cudaDataType_t type = type_of(spec->type);
        cublasOperation_t turned = CUBLAS_OP_T;
        cublasStatus_t status = blas->cublasLtMatmulDescCreate(&matmul->desc, CUBLAS_COMPUTE_32F,
                                                               CUDA_R_32F);

        if (status == CUBLAS_STATUS_SUCCESS)
                status = blas->cublasLtMatmulDescSetAttribute(
                        matmul->desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
        if (status == CUBLAS_STATUS_SUCCESS)
                status = blas->cublasLtMatrixLayoutCreate(&matmul->a, type, (uint64_t) spec->k,
                                                          (uint64_t) spec->m, spec->a_stride);
        if (status == CUBLAS_STATUS_SUCCESS)
                status = blas->cublasLtMatrixLayoutCreate(&matmul->b, type, (uint64_t) spec->k,
                                                          (uint64_t) spec->n, spec->b_stride);
        if (status == CUBLAS_STATUS_SUCCESS)
                status = blas->cublasLtMatrixLayoutCreate(&matmul->out, CUDA_R_32F,
                                                          (uint64_t) spec->m, (uint64_t) spec->n,
                                                          spec->out_stride);
        return status;
}

hr_status cuda_matmul_new(struct cuda_gpu *gpu, const struct cuda_matmul_spec *spec,
                          struct hr_diag *diag, struct cuda_matmul **ret_matmul) {
        struct cuda_matmul *matmul = calloc(1, sizeof *matmul);
        cublasStatus_t status;

        if (!matmul)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a product");
        matmul->blas = cuda_blas_open();
        matmul->spec = *spec;
        HR_ASSERT(matmul->blas);
        status = handle_of(gpu, matmul->blas, &matmul->handle);
        if (status == CUBLAS_STATUS_SUCCESS)
                status = describe(matmul);
        if (status == CUBLAS_STATUS_SUCCESS)
                status = choose(matmul);
        if (status == CUBLAS_STATUS_SUCCESS) {
                *ret_matmul = matmul;
                return HR_OK;
        }
        (void) cuda_matmul_free(matmul);
        return cuda_gpu_check(gpu, result_of(status), "a product of the library", diag);
}

struct cuda_matmul *cuda_matmul_free(struct cuda_matmul *matmul) {
        if (!matmul)
                return NULL;
        if (matmul->out)
                (void) matmul->blas->cublasLtMatrixLayoutDestroy(matmul->out);
        if (matmul->b)
                (void) matmul->blas->cublasLtMatrixLayoutDestroy(matmul->b);
        if (matmul->a)
                (void) matmul->blas->cublasLtMatrixLayoutDestroy(matmul->a);
        if (matmul->desc)
                (void) matmul->blas->cublasLtMatmulDescDestroy(matmul->desc);
        free(matmul);
        return NULL;
}

CUresult cuda_matmul_launch(const struct cuda_matmul *matmul, CUstream stream) {
        const struct cuda_matmul_spec *spec = &matmul->spec;
        const float one = 1.0f, zero = 0.0f;
        void *out = (void *) (uintptr_t) spec->out;

        return result_of(matmul->blas->cublasLtMatmul(
                matmul->handle, matmul->desc, &one, (const void *) (uintptr_t) spec->a, matmul->a,
                (const void *) (uintptr_t) spec->b, matmul->b, &zero, out, matmul->out, out,
                matmul->out, &matmul->way.algo, (void *) (uintptr_t) spec->workspace,
                spec->workspace_bytes, (cudaStream_t) stream));
}

uint64_t cuda_matmul_form(const struct cuda_matmul *matmul) {
        const struct cuda_matmul_spec *spec = &matmul->spec;
        const uint64_t parts[] = { spec->type, (uint64_t) spec->m, (uint64_t) spec->n,
                                   (uint64_t) spec->k };
        uint64_t form = 1;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(parts); i++)
                form = (form ^ parts[i]) * UINT64_C(0x9e3779b97f4a7c15);
        return form;
}
