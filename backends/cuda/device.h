/* What the CUDA device is made of; private to this room. */
#pragma once

#include "backends/cuda/backend.h"
#include "backends/cuda/gpu.h"
#include "backends/cuda/ops.h"
#include "core/deny.h"

struct cuda_device {
        struct hr_device device;
        struct cuda_gpu *gpu;
        char name[32], description[256], kind_name[48];
        struct hr_buffer_kind kind;
        uint32_t spin_us;
        struct cuda_options options;
        bool single_launches;
        uint64_t pin_bytes;
        struct hr_deny deny;
        struct cuda_device *next; /* of all devices */
};

/* Zero-filled device memory. HR_E_EXHAUSTED (reason DEVICE_MEMORY; limit = free, actual =
 * asked). */
HR_NODISCARD hr_status cuda_buffer_new(struct hr_device *device, struct cuda_gpu *gpu,
                                       uint64_t bytes, hr_buffer_usage usage,
                                       struct hr_diag *diag, struct hr_buffer **ret_buffer);
