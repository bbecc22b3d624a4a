/* Queues of CUDA devices: commands go from the engine's thread to the queue's own, which has
 * lanes. */
#pragma once

#include "backends/cuda/gpu.h"
#include "core/device.h"

struct cuda_queue_config {
        struct cuda_gpu *gpu;
        uint32_t spin_us;
        bool copies_beside; /* copies to other GPUs have a stream of their own */
        /* The GPU whose memory is of that kind, or NULL. Thread: engine. */
        struct cuda_gpu *(*gpu_of_kind)(const struct hr_buffer_kind *kind);
};

/* HR_E_EXHAUSTED without memory or threads; HR_E_DEVICE_LOST. */
HR_NODISCARD hr_status cuda_queue_new(struct hr_device *device,
                                      const struct cuda_queue_config *config, struct hr_diag *diag,
                                      struct hr_queue **ret_queue);
/* How often it took memory for another command since it was made (0 in a steady state). */
uint64_t cuda_queue_growths(const struct hr_queue *queue);
