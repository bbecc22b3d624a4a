/* The CUDA backend: a device is an NVIDIA GPU, or one of several logical devices on it. */
#pragma once

#include "core/device.h"

struct hr_cuda_config {
        const char *name;     /* "cuda0"; copied */
        uint32_t gpu;         /* number of the GPU, as the driver counts */
        uint64_t memory_cap;  /* bytes, 0 = none */
        uint32_t spin_us;     /* how long an idle queue spins before it sleeps */
        uint32_t batch_min;   /* columns from which a product of weights in blocks is the library's,
                               * by way of bf16; 0 = the default */
        const char *deny_ops; /* see core/deny.h; NULL = none */
        uint64_t pin_bytes;   /* of the host's memory that it may lock for weights that stay there;
                               * 0 = none */
        bool single_launches; /* no graphs of the driver's: each kernel is launched by itself */
};

/* HR_E_UNAVAILABLE (reason DRIVER) without a driver that works, HR_E_NOT_FOUND (reason GPU) for a
 * number that is no GPU, HR_E_UNSUPPORTED (reason GPU) for one that is too old, HR_E_DATA_LOSS when
 * bytes copied to it do not come back as they were. Devices with the same GPU share its memory and
 * are lost together. Thread: any, one at a time. */
HR_NODISCARD hr_status hr_cuda_device_new(const struct hr_cuda_config *config, struct hr_diag *diag,
                                          struct hr_device **ret_device);
/* How many GPUs there are. HR_E_UNAVAILABLE (reason DRIVER) without a driver that works. */
HR_NODISCARD hr_status hr_cuda_gpu_count(struct hr_diag *diag, uint32_t *ret_count);
/* Is there a GPU of that number, new enough for a device? */
bool hr_cuda_gpu_is_usable(uint32_t gpu);
