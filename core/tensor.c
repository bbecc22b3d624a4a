/*
 * Extents, strides and byte counts. Everything a client declares goes through the checked forms;
 * the plain ones are for tensors that validation has accepted, for which no product can overflow.
 */
#include "core/tensor.h"

#include <inttypes.h>
#include <string.h>

/* Four extents of so many bits make a tensor below 2^63 bytes: an element that is no part of a
 * block has at most eight. */
#define SMALL_EXTENT_BITS 15

hr_status hr_tensor_set_contiguous(struct hr_tensor *tensor, struct hr_diag *diag) {
        const struct hr_type_info *info = hr_type_info(tensor->type);
        uint64_t stride, whole;

        if (!info)
                return hr_fail_reason(diag, HR_E_INVALID, "DTYPE", "%" PRIu32 " is no type",
                                      tensor->type);
        /* Nearly all: no element is part of a block, and no product can leave 63 bits. */
        if (HR_LIKELY(info->block_elements == 1 &&
                      (uint64_t) (tensor->ne[0] | tensor->ne[1] | tensor->ne[2] | tensor->ne[3]) >>
                                      SMALL_EXTENT_BITS ==
                              0)) {
                tensor->nb[0] = info->block_bytes;
                for (int i = 1; i < HR_DIMS; i++)
                        tensor->nb[i] = tensor->nb[i - 1] * (uint64_t) tensor->ne[i - 1];
                return HR_OK;
        }
        for (int i = 0; i < HR_DIMS; i++)
                if (tensor->ne[i] < 0)
                        return hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                                              "extent %d is %" PRId64, i, tensor->ne[i]);
        if (info->block_elements != 1 && tensor->ne[0] % info->block_elements != 0)
                return hr_fail_reason(diag, HR_E_INVALID, "BLOCK",
                                      "extent 0 is %" PRId64 ", not a multiple of the %" PRIu32
                                      " elements of a %s block",
                                      tensor->ne[0], info->block_elements, info->name);
        tensor->nb[0] = info->block_bytes;
        if (!hr_type_row_bytes(tensor->type, tensor->ne[0], &stride))
                return hr_fail_reason(diag, HR_E_INVALID, "SIZE", "a row does not fit 64 bits");
        whole = HR_MAX(stride, info->block_bytes);
        for (int i = 1; i < HR_DIMS; i++) {
                /* As if no extent were 0: then the product of any of them fits. */
                if (!hr_mul_u64(whole, HR_MAX((uint64_t) tensor->ne[i], 1U), &whole))
                        return hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                                              "the bytes do not fit 64 bits");
                tensor->nb[i] = stride;
                stride *= (uint64_t) tensor->ne[i];
        }
        if (whole > INT64_MAX)
                return hr_fail_reason(diag, HR_E_INVALID, "SIZE", "the bytes do not fit 63 bits");
        return HR_OK;
}

hr_status hr_tensor_span(const struct hr_tensor *tensor, struct hr_diag *diag,
                         uint64_t *ret_bytes) {
        if (!hr_tensor_find_span(tensor, ret_bytes))
                return hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                                      "the strided span does not fit 63 bits");
        return HR_OK;
}

uint64_t hr_tensor_bytes(const struct hr_tensor *tensor) {
        uint64_t bytes = 0;

        HR_ASSERT(hr_tensor_find_span(tensor, &bytes));
        return bytes;
}

int64_t hr_tensor_elements(const struct hr_tensor *tensor) {
        return tensor->ne[0] * tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
}

int64_t hr_tensor_rows(const struct hr_tensor *tensor) {
        return tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
}

/* A dimension of extent 1 has no neighbours, so its stride says nothing. */
static bool strides_are_dense(const struct hr_tensor *tensor, int first_dim) {
        const struct hr_type_info *info = hr_type_info(tensor->type);
        uint64_t expected = info->block_bytes;

        if (hr_tensor_is_empty(tensor))
                return true;
        if (tensor->ne[0] != (int64_t) info->block_elements && tensor->nb[0] != expected)
                return false;
        expected *= (uint64_t) (tensor->ne[0] / info->block_elements);
        for (int i = 1; i < first_dim; i++) {
                if (tensor->ne[i] != 1 && tensor->nb[i] != expected)
                        return false;
                expected *= (uint64_t) tensor->ne[i];
        }
        return true;
}

bool hr_tensor_is_contiguous(const struct hr_tensor *tensor) {
        return strides_are_dense(tensor, HR_DIMS);
}

bool hr_tensor_rows_are_contiguous(const struct hr_tensor *tensor) {
        return strides_are_dense(tensor, 1);
}

bool hr_tensor_same_shape(const struct hr_tensor *a, const struct hr_tensor *b) {
        return memcmp(a->ne, b->ne, sizeof a->ne) == 0;
}

bool hr_tensor_repeats(const struct hr_tensor *part, const struct hr_tensor *whole) {
        if (hr_tensor_is_empty(part))
                return hr_tensor_is_empty(whole);
        for (int i = 0; i < HR_DIMS; i++)
                if (whole->ne[i] % part->ne[i] != 0)
                        return false;
        return true;
}

float hr_param_f32(const int32_t *params, uint32_t word) {
        float value;

        memcpy(&value, &params[word], sizeof value);
        return value;
}

uint64_t hr_param_u64(const int32_t *params, uint32_t word) {
        uint64_t value;

        memcpy(&value, &params[word], sizeof value);
        return value;
}
