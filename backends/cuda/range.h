/*
 * A range of addresses of a GPU, the first part of which has memory: the driver's virtual memory.
 * More memory can be put behind what there is, so that it grows without moving; until its end the
 * addresses cost nothing. GPUs that have direct access to this one reach it as well. No other
 * process does: memory is made without handles that could be passed on.
 */
#pragma once

#include "backends/cuda/gpu.h"

/* Zeroed is empty. Multiples of the GPU's granularity. */
struct cuda_range {
        CUdeviceptr base;
        uint64_t reserved, mapped;
};

/* Finds out whether the GPU, whose properties are known, has such memory. */
void cuda_range_ask(struct cuda_gpu *gpu);
/* At least `bytes` of memory, not cleared, and addresses up to at least `reserve`, if there are as
 * many. False: no range is to be had, because the GPU has none, the memory is too small to be worth
 * one, or a call failed; a sticky failure has marked the GPU as lost. In the GPU's context. */
bool cuda_range_init(struct cuda_range *range, struct cuda_gpu *gpu, uint64_t bytes,
                     uint64_t reserve);
/* Memory for `bytes` in all. False: it is as it was. In the GPU's context. */
bool cuda_range_grow(struct cuda_range *range, struct cuda_gpu *gpu, uint64_t bytes);
/* Nothing under way uses it. Of any thread. */
void cuda_range_deinit(struct cuda_range *range, struct cuda_gpu *gpu);
