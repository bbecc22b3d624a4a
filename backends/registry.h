/* The backends of this build, by name. */
#pragma once

#include "core/device.h"

struct hr_backend_config {
        const char *backend;     /* "cpu", "blas" or "cuda"; in tests "fake" */
        const char *name;        /* of the device */
        uint32_t threads;
        bool isolated;
        uint64_t memory_cap;
        uint32_t spin_us;
        bool deterministic;
        bool fast;               /* cpu: see hr_cpu_config */
        const char *isa;
        const char *deny_ops;
        uint32_t delay_us;
        bool wake_all;
        uint32_t batch_min;      /* blas, cuda */
        uint32_t gpu;            /* cuda: its number, as the driver counts */
        uint64_t pin_bytes;      /* cuda: see hr_cuda_config */
        bool single_launches;    /* cuda: see hr_cuda_config */
};

/* HR_E_UNSUPPORTED (reason BACKEND) for a backend that this build does not have, HR_E_UNAVAILABLE
 * (reason DRIVER) for one whose driver this machine does not have. */
HR_NODISCARD hr_status hr_backend_device_new(const struct hr_backend_config *config,
                                             struct hr_diag *diag, struct hr_device **ret_device);
/* Names of the backends of this build, NULL-terminated, static storage. */
const char *const *hr_backend_names(void);
/* GPUs that the driver finds. HR_E_UNSUPPORTED (reason BACKEND) in a build without a backend for
 * them, HR_E_UNAVAILABLE (reason DRIVER) without a driver that works. */
HR_NODISCARD hr_status hr_backend_gpu_count(struct hr_diag *diag, uint32_t *ret_count);
/* Can a device be made of that GPU? */
bool hr_backend_gpu_is_usable(uint32_t gpu);
