/*
 * cuBLASLt without a GPU: products of f16, bf16 and f32 with sums in f32, a turned, executed where
 * the stream gets to them. What the backend does not ask for is refused; addresses that are less
 * aligned than was said, or that leave their memory, end the context as they would on a GPU.
 */
#include "tests/cuda/fake_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/blas.h"

/* What the opaque structures hold. */
struct layout {
        cudaDataType type;
        uint64_t rows, columns;
        int64_t stride;
};

struct preference {
        uint64_t workspace_bytes;
        uint32_t alignment[4];
};

struct product {
        struct layout a, b, out;
        const uint8_t *from_a, *from_b;
        float *to;
};

static cublasStatus_t status_of(CUresult result) {
        switch (result) {
        case CUDA_SUCCESS:
                return CUBLAS_STATUS_SUCCESS;
        case CUDA_ERROR_OUT_OF_MEMORY:
                return CUBLAS_STATUS_ALLOC_FAILED;
        case CUDA_ERROR_NOT_SUPPORTED:
                return CUBLAS_STATUS_NOT_SUPPORTED;
        case CUDA_ERROR_INVALID_VALUE:
                return CUBLAS_STATUS_INVALID_VALUE;
        default:
                return CUBLAS_STATUS_EXECUTION_FAILED;
        }
}

static CUresult enter(const char *name) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context(name);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* An object of `bytes`, counted until it goes. */
static cublasStatus_t make(const char *name, size_t bytes, void *ret_object) {
        CUresult result = enter(name);
        void *object = result == CUDA_SUCCESS ? calloc(1, bytes) : NULL;

        if (object) {
                (void) pthread_mutex_lock(&fake.lock);
                fake.objects++;
                (void) pthread_mutex_unlock(&fake.lock);
                memcpy(ret_object, &object, sizeof object);
        }
        return status_of(result);
}

/* Goes whatever is injected. */
static cublasStatus_t unmake(const char *name, void *object) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter(name);
        fake.objects--;
        (void) pthread_mutex_unlock(&fake.lock);
        free(object);
        return status_of(result);
}

static cublasStatus_t create(cublasLtHandle_t *ret_handle) {
        return make("cublasLtCreate", 1, ret_handle);
}

static cublasStatus_t destroy(cublasLtHandle_t handle) {
        return unmake("cublasLtDestroy", handle);
}

static cublasStatus_t desc_create(cublasLtMatmulDesc_t *ret_desc, cublasComputeType_t compute,
                                  cudaDataType_t scale) {
        if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
                return CUBLAS_STATUS_NOT_SUPPORTED;
        return make("cublasLtMatmulDescCreate", sizeof **ret_desc, ret_desc);
}

static cublasStatus_t desc_destroy(cublasLtMatmulDesc_t desc) {
        return unmake("cublasLtMatmulDescDestroy", desc);
}

/* Remembers that a is turned. */
static cublasStatus_t desc_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                               const void *value, size_t bytes) {
        CUresult result = enter("cublasLtMatmulDescSetAttribute");
        cublasOperation_t operation;

        if (result != CUDA_SUCCESS)
                return status_of(result);
        if (attribute != CUBLASLT_MATMUL_DESC_TRANSA || bytes != sizeof operation)
                return CUBLAS_STATUS_NOT_SUPPORTED;
        memcpy(&operation, value, sizeof operation);
        desc->data[0] = operation == CUBLAS_OP_T;
        return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_create(cublasLtMatrixLayout_t *ret_layout, cudaDataType type,
                                    uint64_t rows, uint64_t columns, int64_t stride) {
        struct layout layout = { type, rows, columns, stride };
        cublasStatus_t status;

        if (stride < 0 || (uint64_t) stride < rows)
                return CUBLAS_STATUS_INVALID_VALUE;
        status = make("cublasLtMatrixLayoutCreate", sizeof **ret_layout, ret_layout);
        if (status == CUBLAS_STATUS_SUCCESS)
                memcpy(*ret_layout, &layout, sizeof layout);
        return status;
}

static cublasStatus_t layout_destroy(cublasLtMatrixLayout_t layout) {
        return unmake("cublasLtMatrixLayoutDestroy", layout);
}

static cublasStatus_t preference_create(cublasLtMatmulPreference_t *ret_preference) {
        return make("cublasLtMatmulPreferenceCreate", sizeof **ret_preference, ret_preference);
}

static cublasStatus_t preference_destroy(cublasLtMatmulPreference_t preference) {
        return unmake("cublasLtMatmulPreferenceDestroy", preference);
}

static cublasStatus_t preference_set(cublasLtMatmulPreference_t to,
                                     cublasLtMatmulPreferenceAttributes_t attribute,
                                     const void *value, size_t bytes) {
        CUresult result = enter("cublasLtMatmulPreferenceSetAttribute");
        struct preference preference;

        if (result != CUDA_SUCCESS)
                return status_of(result);
        memcpy(&preference, to, sizeof preference);
        if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof(uint64_t))
                memcpy(&preference.workspace_bytes, value, bytes);
        else if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
                 attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES &&
                 bytes == sizeof(uint32_t))
                memcpy(&preference.alignment[attribute -
                                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                       value, bytes);
        else
                return CUBLAS_STATUS_NOT_SUPPORTED;
        memcpy(to, &preference, sizeof preference);
        return CUBLAS_STATUS_SUCCESS;
}

static struct layout layout_of(cublasLtMatrixLayout_t from) {
        struct layout layout;

        memcpy(&layout, from, sizeof layout);
        return layout;
}

static bool fits(const struct layout *a, const struct layout *b, const struct layout *out) {
        return a->type == b->type && out->type == CUDA_R_32F && a->rows == b->rows &&
               a->columns == out->rows && b->columns == out->columns;
}

/* The way's data: what was said of alignments and the workspace, to be held against addresses. */
static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                                cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                                cublasLtMatmulPreference_t preference, int wanted,
                                cublasLtMatmulHeuristicResult_t *ret_ways, int *ret_count) {
        CUresult result = enter("cublasLtMatmulAlgoGetHeuristic");
        struct layout a = layout_of(a_layout), b = layout_of(b_layout), out = layout_of(d_layout);

        if (result != CUDA_SUCCESS)
                return status_of(result);
        if (!handle || c_layout != d_layout || wanted < 1 || !desc->data[0] || !fits(&a, &b, &out))
                return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(&ret_ways[0].algo, preference, sizeof(struct preference));
        /* A way may be told of that is none. */
        ret_ways[0].state = fake.has_no_way ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        *ret_count = fake.has_no_way && fake.calls % 2 ? 0 : 1;
        return CUBLAS_STATUS_SUCCESS;
}

/* ---- Executing ------------------------------------------------------------------------------- */

static uint64_t element_bytes(cudaDataType type) {
        return type == CUDA_R_32F ? 4 : 2;
}

static float element(const struct layout *layout, const uint8_t *from, uint64_t i) {
        uint16_t half;
        float value;

        if (layout->type == CUDA_R_32F) {
                memcpy(&value, from + 4 * i, sizeof value);
                return value;
        }
        memcpy(&half, from + 2 * i, sizeof half);
        if (layout->type == CUDA_R_16BF) {
                uint32_t bits = (uint32_t) half << 16;

                memcpy(&value, &bits, sizeof value);
                return value;
        }
        return (half & 0x8000 ? -1.0f : 1.0f) *
               ((half >> 10 & 31) == 0 ? ldexpf((float) (half & 1023), -24)
                                       : ldexpf((float) (1024 + (half & 1023)),
                                                (half >> 10 & 31) - 25));
}

/* A matrix as floats, columns without gaps. */
static float *expand(const struct layout *layout, const uint8_t *from) {
        float *values = malloc((layout->rows * layout->columns + 1) * sizeof *values);

        for (uint64_t c = 0; values && c < layout->columns; c++)
                for (uint64_t r = 0; r < layout->rows; r++)
                        values[c * layout->rows + r] =
                                element(layout, from, c * (uint64_t) layout->stride + r);
        return values;
}

bool fake_multiply(const void *argument) {
        const struct product *p = argument;
        float *a = expand(&p->a, p->from_a), *b = expand(&p->b, p->from_b);

        for (uint64_t n = 0; a && b && n < p->out.columns; n++)
                for (uint64_t m = 0; m < p->out.rows; m++) {
                        const float *x = a + m * p->a.rows, *y = b + n * p->a.rows;
                        float sums[8] = { 0 };

                        for (uint64_t k = 0; k < p->a.rows; k++)
                                sums[k % 8] += x[k] * y[k];
                        p->to[n * (uint64_t) p->out.stride + m] =
                                ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                                ((sums[4] + sums[5]) + (sums[6] + sums[7]));
                }
        free(a);
        free(b);
        return true;
}

static bool is_placed(const struct layout *layout, const void *at, uint32_t alignment) {
        uint64_t bytes = element_bytes(layout->type) *
                         ((layout->columns - 1) * (uint64_t) layout->stride + layout->rows);

        return (uintptr_t) at % alignment == 0 &&
               fake_is_device((uint64_t) (uintptr_t) at, bytes, fake_current->gpu);
}

/* Products of different forms are different kernels. */
static uint64_t form_of(const struct product *product) {
        return (product->out.rows * 1000003 + product->out.columns) * 1000003 +
               product->a.rows * 16 + (uint64_t) product->a.type;
}

static CUresult product_enqueue(const struct product *product, CUstream stream) {
        struct operation operation = { .kind = OPERATION_PRODUCT,
                                       .bytes = form_of(product),
                                       .argument_bytes = sizeof *product };
        CUresult result;

        operation.argument = malloc(sizeof *product);
        if (!operation.argument)
                return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(operation.argument, product, sizeof *product);
        result = fake_enqueue(stream, &operation);
        if (result != CUDA_SUCCESS)
                free(operation.argument);
        return result;
}

static cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                             const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                             cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                             cublasLtMatrixLayout_t c_layout, void *d,
                             cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                             void *workspace, size_t workspace_bytes, cudaStream_t stream) {
        struct product product = { layout_of(a_layout), layout_of(b_layout), layout_of(d_layout),
                                   a, b, d };
        struct preference said;
        CUresult result;

        memcpy(&said, algo, sizeof said);
        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cublasLtMatmul");
        if (result == CUDA_SUCCESS &&
            (c != d || c_layout != d_layout || *(const float *) alpha != 1 ||
             *(const float *) beta != 0 || workspace_bytes < said.workspace_bytes))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS && (uintptr_t) workspace % 16)
                fake.violations++;
        if (result == CUDA_SUCCESS &&
            (!is_placed(&product.a, a, said.alignment[0]) ||
             !is_placed(&product.b, b, said.alignment[1]) ||
             !is_placed(&product.out, d, said.alignment[3]) ||
             !fake_is_device((uint64_t) (uintptr_t) workspace, workspace_bytes,
                             fake_current->gpu)))
                fake.violations++;
        if (result == CUDA_SUCCESS)
                result = product_enqueue(&product, (CUstream) stream);
        fake.products += result == CUDA_SUCCESS;
        (void) pthread_mutex_unlock(&fake.lock);
        return status_of(result);
}

void fake_fill_blas(void) {
        static const struct cuda_blas_syms syms = {
                .cublasLtCreate = create,
                .cublasLtDestroy = destroy,
                .cublasLtMatmulDescCreate = desc_create,
                .cublasLtMatmulDescDestroy = desc_destroy,
                .cublasLtMatmulDescSetAttribute = desc_set,
                .cublasLtMatrixLayoutCreate = layout_create,
                .cublasLtMatrixLayoutDestroy = layout_destroy,
                .cublasLtMatmulPreferenceCreate = preference_create,
                .cublasLtMatmulPreferenceDestroy = preference_destroy,
                .cublasLtMatmulPreferenceSetAttribute = preference_set,
                .cublasLtMatmulAlgoGetHeuristic = heuristic,
                .cublasLtMatmul = matmul,
        };

        cuda_blas_replace(&syms);
}
