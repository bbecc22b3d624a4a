/* The BLAS backend: matrix products over OpenBLAS on host memory; nothing else. */
#pragma once

#include "core/device.h"

struct hr_blas_config {
        const char *name;        /* "blas"; copied */
        uint32_t threads;        /* our team partitions the product; OpenBLAS itself runs with
                                  * one */
        uint32_t batch_min;      /* columns (ne1) from which it takes a product, whatever the type
                                  * of its weights; 0 = where it is measured to win: float weights,
                                  * 128 */
        uint32_t spin_us;
        const hr_dequantize_fn *to_f32; /* HR_TYPE_LIMIT of them, NULL for a type that is not taken
                                         * as a weight; f32 is taken anyway. Outlives the device */
        uint64_t memory_cap;     /* bytes, 0 = none */
};

HR_NODISCARD hr_status hr_blas_device_new(const struct hr_blas_config *config, struct hr_diag *diag,
                                          struct hr_device **ret_device);
