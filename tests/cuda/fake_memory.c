/*
 * Virtual memory of the fake driver: ranges of addresses of the process, which nobody can touch
 * until memory is mapped there and access is allowed. As in the driver, sizes are multiples of the
 * granularity, what is mapped lies one behind the other, and addresses go after their memory.
 */
#include "tests/cuda/fake_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GRANULARITY (UINT64_C(64) << 10)

/* Made by cuMemCreate; lives while it has a handle or is mapped. */
struct piece {
        struct piece *next; /* in a range */
        uint64_t bytes;
        uint32_t gpu;
        bool is_mapped, is_allowed, has_handle;
};

struct range {
        struct range *next;
        uint8_t *base;
        uint64_t bytes, mapped;
        struct piece *first, *last;
};

static struct range *ranges;

static bool is_multiple(uint64_t bytes) {
        if (bytes && bytes % GRANULARITY == 0)
                return true;
        fprintf(stderr, "virtual memory of %llu bytes\n", (unsigned long long) bytes);
        fake.violations++;
        return false;
}

static struct range *range_of(uint64_t address, uint64_t bytes) {
        for (struct range *r = ranges; r; r = r->next) {
                uint64_t base = (uint64_t) (uintptr_t) r->base;

                if (address >= base && address - base < r->bytes &&
                    bytes <= r->bytes - (address - base))
                        return r;
        }
        return NULL;
}

bool fake_is_mapped(uint64_t address, uint64_t bytes, uint32_t gpu) {
        const struct range *r = range_of(address, bytes);
        uint64_t at = r ? (uint64_t) (uintptr_t) r->base : 0;

        for (const struct piece *p = r ? r->first : NULL; p; at += p->bytes, p = p->next) {
                if (at + p->bytes <= address)
                        continue;
                if (p->gpu != gpu || !p->is_allowed)
                        return false;
                if (at + p->bytes - address >= bytes)
                        return true;
                bytes -= at + p->bytes - address;
                address = at + p->bytes;
        }
        return false;
}

unsigned fake_mapped(struct checks_range *ret_ranges, unsigned count, unsigned room) {
        for (const struct range *r = ranges; r; r = r->next)
                if (r->mapped && count++ < room)
                        ret_ranges[count - 1] = (struct checks_range) {
                                (uint64_t) (uintptr_t) r->base, r->mapped
                        };
        return count;
}

uint32_t fake_ranges_left(void) {
        uint32_t count = 0;

        for (const struct range *r = ranges; r; r = r->next, count++)
                fprintf(stderr, "left: a range of %llu bytes, %llu mapped\n",
                        (unsigned long long) r->bytes, (unsigned long long) r->mapped);
        return count;
}

static CUresult get_granularity(size_t *ret_bytes, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags flags) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuMemGetAllocationGranularity");
        if (result == CUDA_SUCCESS && prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                *ret_bytes = GRANULARITY;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult address_reserve(CUdeviceptr *ret_base, size_t bytes, size_t alignment,
                                CUdeviceptr wish, unsigned long long flags) {
        struct range *range = calloc(1, sizeof *range);
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuMemAddressReserve");
        if (result == CUDA_SUCCESS && (!is_multiple(bytes) || alignment || wish || flags))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS && range) {
                range->base = mmap(NULL, bytes, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
                range->bytes = bytes;
                result = range->base == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        }
        if (result == CUDA_SUCCESS && range) {
                range->next = ranges;
                ranges = range;
                *ret_base = (CUdeviceptr) (uintptr_t) range->base;
        } else {
                free(range);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* Goes whatever is injected, as all that undoes something. */
static CUresult address_free(CUdeviceptr base, size_t bytes) {
        struct range **at = &ranges, *range;
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuMemAddressFree");
        while (*at && (*at)->base != (void *) (uintptr_t) base)
                at = &(*at)->next;
        range = *at;
        if (!range || range->bytes != bytes || range->mapped) {
                fprintf(stderr, "addresses are given back that are not free\n");
                fake.violations++;
        } else {
                *at = range->next;
                (void) munmap(range->base, range->bytes);
                free(range);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult mem_create(CUmemGenericAllocationHandle *ret_handle, size_t bytes,
                           const CUmemAllocationProp *prop, unsigned long long flags) {
        struct piece *piece = calloc(1, sizeof *piece);
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuMemCreate");
        if (result == CUDA_SUCCESS &&
            (!is_multiple(bytes) || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
             prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
             prop->location.id != (int) fake_current->gpu))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS &&
            (!piece || bytes > fake.memory_bytes - fake.used[fake_current->gpu]))
                result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS) {
                *piece = (struct piece) { .bytes = bytes, .gpu = fake_current->gpu,
                                          .has_handle = true };
                fake.used[piece->gpu] += bytes;
                fake.pieces++;
                *ret_handle = (CUmemGenericAllocationHandle) (uintptr_t) piece;
        } else {
                free(piece);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static void piece_settle(struct piece *piece) {
        if (piece->has_handle || piece->is_mapped)
                return;
        fake.used[piece->gpu] -= piece->bytes;
        fake.pieces--;
        free(piece);
}

static CUresult mem_release(CUmemGenericAllocationHandle handle) {
        struct piece *piece = (struct piece *) (uintptr_t) handle;
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuMemRelease");
        piece->has_handle = false;
        piece_settle(piece);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult mem_map(CUdeviceptr at, size_t bytes, size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long flags) {
        struct piece *piece = (struct piece *) (uintptr_t) handle;
        struct range *range;
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuMemMap");
        range = range_of(at, bytes);
        if (result == CUDA_SUCCESS &&
            (!range || at != (CUdeviceptr) (uintptr_t) range->base + range->mapped || offset ||
             flags || bytes != piece->bytes || piece->is_mapped))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS) {
                piece->is_mapped = true;
                piece->is_allowed = false;
                if (range->last)
                        range->last->next = piece;
                else
                        range->first = piece;
                range->last = piece;
                range->mapped += bytes;
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* Whole pieces from there on, to the end of what is mapped. */
static bool range_cut(struct range *range, uint64_t from, uint64_t bytes) {
        struct piece **at = &range->first, *before = NULL;
        uint64_t passed = 0;

        if (from + bytes != range->mapped)
                return false;
        while (*at && passed < from) {
                passed += (*at)->bytes;
                before = *at;
                at = &before->next;
        }
        if (passed != from)
                return false;
        while (*at) {
                struct piece *piece = *at;

                *at = piece->next;
                piece->next = NULL;
                piece->is_mapped = false;
                piece_settle(piece);
        }
        range->last = before;
        range->mapped = from;
        (void) mmap(range->base + from, bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        return true;
}

static CUresult mem_unmap(CUdeviceptr at, size_t bytes) {
        struct range *range;
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuMemUnmap");
        fake_wait_executing();
        range = range_of(at, bytes);
        if (!range || !range_cut(range, at - (CUdeviceptr) (uintptr_t) range->base, bytes)) {
                fprintf(stderr, "memory is unmapped that is not there\n");
                fake.violations++;
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* Of the last piece; it then holds rubbish. Other GPUs are let in without a trace. */
static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access,
                           size_t count) {
        struct range *range;
        struct piece *piece;
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuMemSetAccess");
        range = range_of(at, bytes);
        piece = range ? range->last : NULL;
        if (result == CUDA_SUCCESS &&
            (!piece || piece->bytes != bytes || count != 1 ||
             at != (CUdeviceptr) (uintptr_t) range->base + range->mapped - bytes ||
             access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
             access->location.type != CU_MEM_LOCATION_TYPE_DEVICE))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS && access->location.id != (int) piece->gpu &&
            !fake.contexts[access->location.id].refs)
                result = CUDA_ERROR_INVALID_DEVICE;
        if (result == CUDA_SUCCESS && access->location.id == (int) piece->gpu) {
                uint8_t *memory = range->base + range->mapped - bytes;

                if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) != 0)
                        result = CUDA_ERROR_OUT_OF_MEMORY;
                else
                        memset(memory, 0xa5, bytes);
                piece->is_allowed = result == CUDA_SUCCESS;
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

void fake_fill_memory(struct cuda_syms *syms) {
        syms->cuMemGetAllocationGranularity = get_granularity;
        syms->cuMemAddressReserve = address_reserve;
        syms->cuMemAddressFree = address_free;
        syms->cuMemCreate = mem_create;
        syms->cuMemRelease = mem_release;
        syms->cuMemMap = mem_map;
        syms->cuMemUnmap = mem_unmap;
        syms->cuMemSetAccess = set_access;
}
