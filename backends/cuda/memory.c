/* Buffers: memory of the GPU, cleared. A buffer of no bytes has memory all the same, so that it has
 * an address. Larger ones are ranges (range.h), those for computing with addresses to grow into. */
#include <inttypes.h>
#include <stdlib.h>

#include "backends/cuda/device.h"
#include "backends/cuda/range.h"

struct cuda_buffer {
        struct hr_buffer buffer;
        struct cuda_gpu *gpu;
        struct cuda_range range; /* empty: memory of the plain kind */
};

static const struct hr_buffer_ops buffer_ops;

static struct cuda_buffer *buffer_cast(struct hr_buffer *base) {
        HR_ASSERT(base->ops == &buffer_ops);
        return HR_CONTAINER_OF(base, struct cuda_buffer, buffer);
}

void cuda_gpu_memory_give(struct cuda_gpu *gpu, CUdeviceptr memory) {
        if (!memory)
                return;
        (void) gpu->cu->cuCtxSetCurrent(gpu->context);
        (void) gpu->cu->cuMemFree(memory);
}

static void buffer_destroy(struct hr_buffer *base) {
        struct cuda_buffer *buffer = buffer_cast(base);

        if (buffer->range.base)
                cuda_range_deinit(&buffer->range, buffer->gpu);
        else
                cuda_gpu_memory_give(buffer->gpu, (CUdeviceptr) (uintptr_t) base->base);
        free(buffer);
}

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

#define ADDRESSES_MIN (UINT64_C(1) << 30)
#define ADDRESSES_PER_BYTE 8

/* Addresses to grow into: many times what there is, and never so many that those of the process, a
 * hundred thousand times the least, could run out. */
static uint64_t addresses_for(const struct cuda_gpu *gpu, uint64_t bytes) {
        uint64_t wanted = bytes > gpu->total_bytes / ADDRESSES_PER_BYTE
                                  ? gpu->total_bytes
                                  : bytes * ADDRESSES_PER_BYTE;

        return HR_MIN(HR_MAX(wanted, ADDRESSES_MIN), gpu->total_bytes);
}

/* A range, or plain memory where there is none to be had. */
static hr_status memory_new(struct cuda_buffer *buffer, struct hr_device *device, uint64_t bytes,
                            bool grows, struct hr_diag *diag, CUdeviceptr *ret_memory) {
        struct cuda_gpu *gpu = buffer->gpu;
        CUdeviceptr memory = 0;
        hr_status status;

        HR_TRY(cuda_gpu_enter(gpu, diag));
        if (cuda_range_init(&buffer->range, gpu, bytes, grows ? addresses_for(gpu, bytes) : 0))
                memory = buffer->range.base;
        else
                HR_TRY(cuda_gpu_memory_take(gpu, device->props.name, bytes, diag, &memory));
        status = cuda_gpu_clear(gpu, memory, bytes, diag);
        if (status == HR_OK)
                *ret_memory = memory;
        else if (buffer->range.base)
                cuda_range_deinit(&buffer->range, gpu);
        else
                cuda_gpu_memory_give(gpu, memory);
        return status;
}

/* The mapped bytes that nobody had are cleared as they come into use: they may have been used
 * before only if this failed before. */
static hr_status buffer_grow(struct hr_buffer *base, uint64_t bytes, struct hr_diag *diag) {
        struct cuda_buffer *buffer = buffer_cast(base);
        struct cuda_gpu *gpu = buffer->gpu;

        if (!buffer->range.base)
                return hr_buffer_grow_none(base, bytes, diag);
        HR_TRY(cuda_gpu_enter(gpu, diag));
        if (!cuda_range_grow(&buffer->range, gpu, bytes))
                return cuda_gpu_is_lost(gpu) ? cuda_gpu_fail_lost(gpu, diag)
                                             : hr_buffer_grow_none(base, bytes, diag);
        return cuda_gpu_clear(gpu, buffer->range.base + base->bytes, bytes - base->bytes, diag);
}

static const struct hr_buffer_ops buffer_ops = {
        .size = sizeof buffer_ops,
        .destroy = buffer_destroy,
        .grow = buffer_grow,
};

hr_status cuda_buffer_new(struct hr_device *device, struct cuda_gpu *gpu, uint64_t bytes,
                          hr_buffer_usage usage, struct hr_diag *diag,
                          struct hr_buffer **ret_buffer) {
        struct cuda_buffer *buffer = calloc(1, sizeof *buffer);
        CUdeviceptr memory = 0;
        hr_status status;

        if (!buffer)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a buffer");
        buffer->gpu = gpu;
        status = memory_new(buffer, device, bytes, usage == HR_USAGE_COMPUTE, diag, &memory);
        if (status != HR_OK) {
                free(buffer);
                return status;
        }
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
