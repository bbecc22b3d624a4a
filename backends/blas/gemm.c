/*
 * One block of a product: weight rows are converted to f32 where they are not, then one sgemm over
 * all columns.
 *
 * In cblas's terms, row-major: C[n x m] = B[n x k] A[m x k]^T, with rows of A at the weight's
 * stride.
 */
#include "backends/blas/gemm.h"

#include <cblas.h>
#include <limits.h>

#define BLOCK_ROWS_MIN 32
#define BLOCK_ROWS_MAX 512
#define BLOCKS_WANTED 8

static bool is_dense(const struct hr_operand *operand) {
        uint64_t expected = hr_type_info(operand->type)->block_bytes;

        for (int i = 0; i < HR_DIMS; i++) {
                if (operand->ne[i] != 1 && operand->nb[i] != expected)
                        return false;
                expected *= (uint64_t) operand->ne[i];
        }
        return true;
}

static bool fits(int64_t extent) {
        return extent > 0 && extent <= INT_MAX;
}

/* Rows of the weight are dense; those of f32 are read in place, at a distance that cblas can be
 * told. */
static bool weight_is_usable(const struct hr_operand *a, const hr_dequantize_fn *to_f32) {
        const struct hr_type_info *info = hr_type_info(a->type);
        bool in_place = a->type == HR_TYPE_F32;
        uint64_t row;

        if (!info || !(in_place || to_f32[a->type]) || a->ne[0] % info->block_elements != 0)
                return false;
        row = (uint64_t) (a->ne[0] / info->block_elements) * info->block_bytes;
        if (a->ne[0] != info->block_elements && a->nb[0] != info->block_bytes)
                return false;
        if (!in_place)
                return true;
        return a->nb[1] % sizeof(float) == 0 && (a->ne[1] == 1 || a->nb[1] >= row) &&
               a->nb[1] / sizeof(float) <= INT_MAX;
}

bool blas_gemm_supports(const struct hr_step *step, const hr_dequantize_fn *to_f32,
                        uint32_t n_min) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1],
                                *c = &step->result;

        if (step->op != HR_OP_MUL_MAT || step->source_count != 2 || b->type != HR_TYPE_F32 ||
            c->type != HR_TYPE_F32 || !fits(a->ne[0]) || !weight_is_usable(a, to_f32))
                return false;
        for (int i = 0; i < HR_DIMS; i++)
                if (!fits(a->ne[i]) || !fits(b->ne[i]) || !fits(c->ne[i]))
                        return false;
        return a->ne[0] == b->ne[0] && c->ne[0] == a->ne[1] && c->ne[1] == b->ne[1] &&
               b->ne[2] % a->ne[2] == 0 && b->ne[3] % a->ne[3] == 0 && c->ne[2] == b->ne[2] &&
               c->ne[3] == b->ne[3] && is_dense(b) && is_dense(c) && b->ne[1] >= (int64_t) n_min &&
               b->ne[2] * b->ne[3] <= UINT32_MAX / (a->ne[1] / BLOCK_ROWS_MIN + 1);
}

static int64_t block_rows(const struct hr_step *step) {
        int64_t rows = (step->result.ne[0] + BLOCKS_WANTED - 1) / BLOCKS_WANTED;

        rows = (rows + BLOCK_ROWS_MIN - 1) / BLOCK_ROWS_MIN * BLOCK_ROWS_MIN;
        return HR_MIN(rows, (int64_t) BLOCK_ROWS_MAX);
}

static int64_t blocks_per_plane(const struct hr_step *step) {
        return (step->result.ne[0] + block_rows(step) - 1) / block_rows(step);
}

uint32_t blas_gemm_blocks(const struct hr_step *step) {
        return (uint32_t) (blocks_per_plane(step) * step->result.ne[2] * step->result.ne[3]);
}

uint64_t blas_gemm_scratch(const struct hr_step *step) {
        uint64_t bytes = (uint64_t) block_rows(step) * (uint64_t) step->sources[0].ne[0] *
                         sizeof(float);

        return step->sources[0].type == HR_TYPE_F32 ? 0 : (bytes + 63) / 64 * 64;
}

void blas_gemm_block(const struct hr_step *step, const hr_dequantize_fn *to_f32, uint32_t block,
                     float *scratch) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1],
                                *c = &step->result;
        int64_t plane = block / blocks_per_plane(step);
        int64_t first = block % blocks_per_plane(step) * block_rows(step);
        int64_t rows = HR_MIN(block_rows(step), c->ne[0] - first);
        int64_t i2 = plane % c->ne[2], i3 = plane / c->ne[2], k = a->ne[0];
        const uint8_t *weight = (const uint8_t *) a->data +
                                (uint64_t) (i2 / (c->ne[2] / a->ne[2])) * a->nb[2] +
                                (uint64_t) (i3 / (c->ne[3] / a->ne[3])) * a->nb[3] +
                                (uint64_t) first * a->nb[1];
        const float *columns = (const float *) b->data + plane * k * b->ne[1];
        float *out = (float *) c->data + plane * c->ne[0] * c->ne[1] + first;
        const float *dense = scratch;
        int64_t stride = k;

        if (a->type == HR_TYPE_F32) {
                dense = (const float *) (const void *) weight;
                stride = HR_MAX((int64_t) (a->nb[1] / sizeof(float)), k);
        } else {
                for (int64_t row = 0; row < rows; row++)
                        to_f32[a->type](weight + (uint64_t) row * a->nb[1], scratch + row * k, k);
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) b->ne[1], (int) rows, (int) k,
                    1.0f, columns, (int) k, dense, (int) stride, 0.0f, out, (int) c->ne[0]);
}

void blas_gemm_init(void) {
        openblas_set_num_threads(1);
}
