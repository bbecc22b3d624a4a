/* Buffers: memory of the GPU, cleared. A buffer of no bytes has memory all the same, so that it has
 * an address. */
#include <inttypes.h>
#include <stdlib.h>

#include "backends/cuda/device.h"

struct cuda_buffer {
        struct hr_buffer buffer;
        struct cuda_gpu *gpu;
};

void cuda_gpu_memory_give(struct cuda_gpu *gpu, CUdeviceptr memory) {
        if (!memory)
                return;
        (void) gpu->cu->cuCtxSetCurrent(gpu->context);
        (void) gpu->cu->cuMemFree(memory);
}

static void buffer_destroy(struct hr_buffer *base) {
        struct cuda_buffer *buffer = HR_CONTAINER_OF(base, struct cuda_buffer, buffer);

        cuda_gpu_memory_give(buffer->gpu, (CUdeviceptr) (uintptr_t) base->base);
        free(buffer);
}

static const struct hr_buffer_ops buffer_ops = {
        .size = sizeof buffer_ops,
        .destroy = buffer_destroy,
};

static hr_status fail_memory(struct cuda_gpu *gpu, const char *who, uint64_t bytes,
                             struct hr_diag *diag) {
        size_t free_bytes = 0, total_bytes = 0;

        (void) gpu->cu->cuMemGetInfo(&free_bytes, &total_bytes);
        (void) hr_fail_reason(diag, HR_E_EXHAUSTED, "DEVICE_MEMORY",
                              "%s: %" PRIu64 " bytes asked, %zu free of %zu", who, bytes,
                              free_bytes, total_bytes);
        if (diag) {
                diag->limit = free_bytes;
                diag->actual = bytes;
        }
        return HR_E_EXHAUSTED;
}

hr_status cuda_gpu_memory_take(struct cuda_gpu *gpu, const char *who, uint64_t bytes,
                               struct hr_diag *diag, CUdeviceptr *ret_memory) {
        CUdeviceptr memory = 0;
        CUresult result;

        HR_TRY(cuda_gpu_enter(gpu, diag));
        result = gpu->cu->cuMemAlloc(&memory, (size_t) HR_MAX(bytes, 1));
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
                return fail_memory(gpu, who, bytes, diag);
        HR_TRY(cuda_gpu_check(gpu, result, "memory", diag));
        *ret_memory = memory;
        return HR_OK;
}

static hr_status memory_new(struct hr_device *device, struct cuda_gpu *gpu, uint64_t bytes,
                            struct hr_diag *diag, CUdeviceptr *ret_memory) {
        CUdeviceptr memory = 0;
        hr_status status;

        HR_TRY(cuda_gpu_memory_take(gpu, device->props.name, bytes, diag, &memory));
        status = cuda_gpu_clear(gpu, memory, bytes, diag);
        if (status != HR_OK)
                cuda_gpu_memory_give(gpu, memory);
        else
                *ret_memory = memory;
        return status;
}

hr_status cuda_buffer_new(struct hr_device *device, struct cuda_gpu *gpu, uint64_t bytes,
                          hr_buffer_usage usage, struct hr_diag *diag,
                          struct hr_buffer **ret_buffer) {
        struct cuda_buffer *buffer = calloc(1, sizeof *buffer);
        CUdeviceptr memory = 0;
        hr_status status;

        if (!buffer)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a buffer");
        status = memory_new(device, gpu, bytes, diag, &memory);
        if (status != HR_OK) {
                free(buffer);
                return status;
        }
        buffer->gpu = gpu;
        buffer->buffer = (struct hr_buffer) {
                .ops = &buffer_ops,
                .device = device,
                .kind = device->props.kind,
                .usage = usage,
                .base = (void *) (uintptr_t) memory,
                .bytes = bytes,
        };
        atomic_init(&buffer->buffer.refs, 1);
        *ret_buffer = &buffer->buffer;
        return HR_OK;
}
