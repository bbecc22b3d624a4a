/* See range.h. Each piece of memory is made, mapped and let go of at once: the mapping holds it. */
#include "backends/cuda/range.h"

static CUmemAllocationProp memory_of(uint32_t gpu) {
        return (CUmemAllocationProp) {
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int) gpu },
        };
}

void cuda_range_ask(struct cuda_gpu *gpu) {
        const CUmemAllocationProp memory = memory_of(gpu->number);
        size_t granularity = 0;
        int can = 0;

        if (gpu->cu->cuDeviceGetAttribute(&can,
                                          CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                          gpu->device) == CUDA_SUCCESS &&
            can &&
            gpu->cu->cuMemGetAllocationGranularity(&granularity, &memory,
                                                   CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) ==
                    CUDA_SUCCESS)
                gpu->granularity = granularity;
}

/* False: does not fit 64 bits. */
static bool round_up(const struct cuda_gpu *gpu, uint64_t bytes, uint64_t *ret_bytes) {
        return hr_align_up_u64(bytes, gpu->granularity, ret_bytes);
}

static bool went_well(struct cuda_gpu *gpu, CUresult result) {
        return cuda_gpu_check(gpu, result, "virtual memory", NULL) == HR_OK;
}

/* For this GPU, and for those that reach it directly as far as the driver lets them: copies find
 * another way. */
static CUresult allow(struct cuda_gpu *gpu, CUdeviceptr at, uint64_t bytes) {
        const uint64_t peers = atomic_load(&gpu->peers_direct);
        CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                 .id = (int) gpu->number },
                                   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        CUresult result = gpu->cu->cuMemSetAccess(at, (size_t) bytes, &access, 1);

        for (uint32_t i = 0; i < CUDA_GPUS_MAX && result == CUDA_SUCCESS; i++) {
                CUresult other;

                if (!(peers >> i & 1))
                        continue;
                access.location.id = (int) i;
                other = gpu->cu->cuMemSetAccess(at, (size_t) bytes, &access, 1);
                if (cuda_result_is_sticky(other))
                        result = other;
        }
        return result;
}

static bool piece_add(struct cuda_range *range, struct cuda_gpu *gpu, uint64_t bytes) {
        const CUmemAllocationProp memory = memory_of(gpu->number);
        const struct cuda_syms *cu = gpu->cu;
        const CUdeviceptr at = range->base + range->mapped;
        CUmemGenericAllocationHandle handle = 0;
        CUresult result;

        if (!went_well(gpu, cu->cuMemCreate(&handle, (size_t) bytes, &memory, 0)))
                return false;
        result = cu->cuMemMap(at, (size_t) bytes, 0, handle, 0);
        (void) cu->cuMemRelease(handle);
        if (!went_well(gpu, result))
                return false;
        if (!went_well(gpu, allow(gpu, at, bytes))) {
                (void) cu->cuMemUnmap(at, (size_t) bytes);
                return false;
        }
        range->mapped += bytes;
        return true;
}

bool cuda_range_init(struct cuda_range *range, struct cuda_gpu *gpu, uint64_t bytes,
                     uint64_t reserve) {
        uint64_t needed, wanted;

        if (!gpu->granularity || bytes < gpu->granularity || !round_up(gpu, bytes, &needed) ||
            !round_up(gpu, HR_MAX(reserve, needed), &wanted))
                return false;
        *range = (struct cuda_range) { .reserved = wanted };
        if (!went_well(gpu, gpu->cu->cuMemAddressReserve(&range->base, (size_t) wanted, 0, 0, 0))) {
                *range = (struct cuda_range) { 0 };
                return false;
        }
        if (piece_add(range, gpu, needed))
                return true;
        cuda_range_deinit(range, gpu);
        return false;
}

bool cuda_range_grow(struct cuda_range *range, struct cuda_gpu *gpu, uint64_t bytes) {
        uint64_t needed;

        if (!round_up(gpu, bytes, &needed) || needed > range->reserved)
                return false;
        return needed <= range->mapped || piece_add(range, gpu, needed - range->mapped);
}

void cuda_range_deinit(struct cuda_range *range, struct cuda_gpu *gpu) {
        const struct cuda_syms *cu = gpu->cu;

        (void) cu->cuCtxSetCurrent(gpu->context);
        if (range->mapped)
                (void) cu->cuMemUnmap(range->base, (size_t) range->mapped);
        (void) cu->cuMemAddressFree(range->base, (size_t) range->reserved);
        *range = (struct cuda_range) { 0 };
}
