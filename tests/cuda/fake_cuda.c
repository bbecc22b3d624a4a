/* The fake driver but for its streams: GPUs, contexts, memory, modules, failures. See
 * fake_cuda.h. */
#include "tests/cuda/fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/blocks.h"
#include "tests/cuda/fake_priv.h"

#define FATBIN_MAGIC 0xba55ed50U
#define GOOD_VERSION 13000
#define RUBBISH_MAX (UINT64_C(1) << 20) /* that much of fresh memory is filled */
#define MAPPED_MIN (UINT64_C(16) << 20)

struct allocation {
        struct allocation *next;
        bool is_registered; /* somebody else's memory, locked */
        uint8_t *base;
        uint64_t bytes;
        bool is_pinned;
        uint32_t gpu;
};

struct CUmod_st {
        CUcontext context;
};

struct fake_state fake = { .lock = PTHREAD_MUTEX_INITIALIZER,
                           .changed = PTHREAD_COND_INITIALIZER,
                           .memory_bytes = UINT64_C(1) << 30 };
_Thread_local CUcontext fake_current;
_Thread_local bool fake_is_in_host_function;
_Thread_local CUstream fake_capturing;

static struct allocation *allocations;

/* ---- Failures -------------------------------------------------------------------------------- */

static void context_lose(CUcontext context, CUresult result) {
        if (context && cuda_result_is_sticky(result) && context->lost == CUDA_SUCCESS) {
                context->lost = result;
                (void) pthread_cond_broadcast(&fake.changed);
        }
}

static bool may_be_captured(const char *name) {
        static const char *const names[] = { "cublasLtMatmul", "cuLaunchKernel",
                                             "cuStreamEndCapture" };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++)
                if (strcmp(name, names[i]) == 0)
                        return true;
        return false;
}

CUresult fake_enter(const char *name) {
        CUresult result = CUDA_SUCCESS;

        if (fake_is_in_host_function) {
                fprintf(stderr, "%s is called from a host function\n", name);
                fake.violations++;
        }
        if (fake_capturing && !may_be_captured(name)) {
                fprintf(stderr, "%s is called while a stream is captured\n", name);
                fake.violations++;
                fake_spoil_capture();
        }
        if (fake.calls++ == fake.fail_at)
                result = fake.fail_with;
        if (fake.fail_name && strcmp(name, fake.fail_name) == 0)
                result = fake.fail_name_with;
        context_lose(fake_current, result);
        return result;
}

CUresult fake_enter_context(const char *name) {
        CUresult result = fake_enter(name);

        if (result != CUDA_SUCCESS)
                return result;
        if (!fake_current || !fake_current->refs)
                return CUDA_ERROR_INVALID_CONTEXT;
        return fake_current->lost;
}

void fake_expect_current(CUcontext owner, const char *name) {
        if (fake_current == owner)
                return;
        fprintf(stderr, "%s in another context\n", name);
        fake.violations++;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static bool is_within(const struct allocation *allocation, uint64_t address, uint64_t bytes) {
        uint64_t base = (uint64_t) (uintptr_t) allocation->base;

        return address >= base && address - base <= allocation->bytes &&
               bytes <= allocation->bytes - (address - base);
}

bool fake_is_pinned(const void *address, uint64_t bytes) {
        for (const struct allocation *a = allocations; a; a = a->next)
                if (a->is_pinned && is_within(a, (uint64_t) (uintptr_t) address, bytes))
                        return true;
        return false;
}

static bool is_registered(const void *address, uint64_t bytes) {
        for (const struct allocation *a = allocations; a; a = a->next)
                if (a->is_registered && is_within(a, (uint64_t) (uintptr_t) address, bytes))
                        return true;
        return false;
}

bool fake_is_device(uint64_t address, uint64_t bytes, uint32_t gpu) {
        for (const struct allocation *a = allocations; a; a = a->next)
                if (!a->is_pinned && a->gpu == gpu && is_within(a, address, bytes))
                        return true;
        return fake_is_mapped(address, bytes, gpu);
}

/* Much memory is not touched before somebody needs it, whatever the allocator is told to do. */
static void *bytes_take(uint64_t bytes) {
        void *base = NULL;

        if (bytes < MAPPED_MIN)
                return posix_memalign(&base, 256, bytes) == 0 ? base : NULL;
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return base == MAP_FAILED ? NULL : base;
}

static void bytes_give(void *base, uint64_t bytes) {
        if (bytes < MAPPED_MIN)
                free(base);
        else
                (void) munmap(base, bytes);
}

unsigned fake_memory(struct checks_range *ret_ranges, unsigned room) {
        unsigned count = 0;

        (void) pthread_mutex_lock(&fake.lock);
        for (const struct allocation *a = allocations; a; a = a->next)
                if (count++ < room)
                        ret_ranges[count - 1] = (struct checks_range) {
                                (uint64_t) (uintptr_t) a->base, a->bytes
                        };
        count = fake_mapped(ret_ranges, count, room);
        (void) pthread_mutex_unlock(&fake.lock);
        return count;
}

static CUresult memory_take(uint64_t bytes, bool is_pinned, void **ret_base) {
        struct allocation *allocation;
        void *base;
        uint32_t gpu = fake_current->gpu;

        if (!bytes)
                return CUDA_ERROR_INVALID_VALUE;
        if (!is_pinned && bytes > fake.memory_bytes - fake.used[gpu])
                return CUDA_ERROR_OUT_OF_MEMORY;
        allocation = calloc(1, sizeof *allocation);
        base = allocation ? bytes_take(bytes) : NULL;
        if (!base) {
                free(allocation);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memset(base, 0xa5, bytes < RUBBISH_MAX ? bytes : RUBBISH_MAX);
        *allocation = (struct allocation) { .next = allocations,
                                            .base = base,
                                            .bytes = bytes,
                                            .is_pinned = is_pinned,
                                            .gpu = gpu };
        allocations = allocation;
        fake.used[gpu] += is_pinned ? 0 : bytes;
        *ret_base = base;
        return CUDA_SUCCESS;
}

static void memory_give(const void *base, bool is_pinned) {
        struct allocation **at = &allocations, *found;

        fake_wait_executing();
        while (*at && ((*at)->base != base || (*at)->is_pinned != is_pinned ||
                       (*at)->is_registered))
                at = &(*at)->next;
        found = *at;
        if (!found) {
                fprintf(stderr, "memory is given back that was not taken\n");
                fake.violations++;
                return;
        }
        *at = found->next;
        if (!is_pinned || !fake_current)
                fake_expect_current(&fake.contexts[found->gpu], "giving memory back");
        fake.used[found->gpu] -= is_pinned ? 0 : found->bytes;
        bytes_give(found->base, found->bytes);
        free(found);
}

static CUresult mem_alloc(CUdeviceptr *ret_memory, size_t bytes) {
        void *base = NULL;
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuMemAlloc");
        if (result == CUDA_SUCCESS)
                result = memory_take(bytes, false, &base);
        if (result == CUDA_SUCCESS)
                *ret_memory = (CUdeviceptr) (uintptr_t) base;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult mem_free(CUdeviceptr memory) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuMemFree");
        memory_give((void *) (uintptr_t) memory, false);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult mem_host_alloc(void **ret_memory, size_t bytes, unsigned flags) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuMemHostAlloc");
        if (result == CUDA_SUCCESS && !(flags & CU_MEMHOSTALLOC_PORTABLE))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                result = memory_take(bytes, true, ret_memory);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult mem_free_host(void *memory) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuMemFreeHost");
        memory_give(memory, true);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* May it be read, and where that is asked for, written? As the process's own table says. */
static bool is_mapped(uint64_t base, uint64_t bytes, bool for_writing) {
        FILE *maps = fopen("/proc/self/maps", "r");
        unsigned long long first, end;
        char line[512], may[8];

        while (maps && bytes && fgets(line, sizeof line, maps)) {
                if (sscanf(line, "%llx-%llx %7s", &first, &end, may) != 3 || base < first ||
                    base >= end || may[0] != 'r' || (for_writing && may[1] != 'w'))
                        continue;
                bytes -= bytes < end - base ? bytes : end - base;
                base = end;
        }
        if (maps)
                (void) fclose(maps);
        return bytes == 0;
}

static bool overlaps_registered(uint64_t base, uint64_t bytes) {
        for (const struct allocation *a = allocations; a; a = a->next) {
                uint64_t other = (uint64_t) (uintptr_t) a->base;

                if (a->is_registered && base < other + a->bytes && other < base + bytes)
                        return true;
        }
        return false;
}

/* Whole pages, for all contexts, none twice; memory that cannot be written only as such. */
static CUresult host_register(void *memory, size_t bytes, unsigned flags) {
        const uint64_t base = (uint64_t) (uintptr_t) memory;
        struct allocation *allocation = calloc(1, sizeof *allocation);
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuMemHostRegister");
        if (result == CUDA_SUCCESS &&
            (!(flags & CU_MEMHOSTREGISTER_PORTABLE) || !bytes || base % 4096 || bytes % 4096))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS && (flags & CU_MEMHOSTREGISTER_READ_ONLY) && fake.no_read_only)
                result = CUDA_ERROR_NOT_SUPPORTED;
        if (result == CUDA_SUCCESS && overlaps_registered(base, bytes))
                result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        if (result == CUDA_SUCCESS &&
            (!allocation || !is_mapped(base, bytes, !(flags & CU_MEMHOSTREGISTER_READ_ONLY))))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS) {
                *allocation = (struct allocation) { .next = allocations,
                                                    .base = memory,
                                                    .bytes = bytes,
                                                    .is_pinned = true,
                                                    .is_registered = true,
                                                    .gpu = fake_current->gpu };
                allocations = allocation;
        } else {
                free(allocation);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* Memory that is no more must have been given back before. */
static CUresult host_unregister(void *memory) {
        struct allocation **at = &allocations, *found;
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuMemHostUnregister");
        fake_wait_executing();
        while (*at && ((*at)->base != memory || !(*at)->is_registered))
                at = &(*at)->next;
        found = *at;
        if (!found || !fake_current || fake_current->gpu != found->gpu ||
            !is_mapped((uint64_t) (uintptr_t) memory, found->bytes, false)) {
                fprintf(stderr, "memory is unlocked that is not, or is gone\n");
                fake.violations++;
        }
        if (found) {
                *at = found->next;
                free(found);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult mem_get_info(size_t *ret_free, size_t *ret_total) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuMemGetInfo");
        if (result == CUDA_SUCCESS) {
                *ret_total = fake.memory_bytes;
                *ret_free = fake.memory_bytes - fake.used[fake_current->gpu];
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* A copy with an end that the GPU cannot reach is what ends a context. */
static CUresult copy_submit(const char *name, CUstream stream, const struct operation *operation,
                            bool is_right) {
        CUresult result = fake_enter_context(name);

        if (result == CUDA_SUCCESS && !is_right) {
                fprintf(stderr, "%s: memory that is not what it should be\n", name);
                fake.violations++;
                result = CUDA_ERROR_ILLEGAL_ADDRESS;
                context_lose(fake_current, result);
        }
        return result == CUDA_SUCCESS ? fake_enqueue(stream, operation) : result;
}

static CUresult copy_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
        struct operation operation = { .kind = OPERATION_COPY, .to = (void *) (uintptr_t) to,
                                       .from = from, .bytes = bytes };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = copy_submit("cuMemcpyHtoDAsync", stream, &operation,
                             fake_is_pinned(from, bytes) && fake_current &&
                                     fake_is_device(to, bytes, fake_current->gpu));
        if (result == CUDA_SUCCESS && is_registered(from, bytes))
                fake.locked_copied += bytes;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult copy_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
        struct operation operation = { .kind = OPERATION_COPY, .to = to,
                                       .from = (void *) (uintptr_t) from, .bytes = bytes };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = copy_submit("cuMemcpyDtoHAsync", stream, &operation,
                             fake_is_pinned(to, bytes) && fake_current &&
                                     fake_is_device(from, bytes, fake_current->gpu));
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult copy_within(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
        struct operation operation = { .kind = OPERATION_COPY, .to = (void *) (uintptr_t) to,
                                       .from = (void *) (uintptr_t) from, .bytes = bytes };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = copy_submit("cuMemcpyDtoDAsync", stream, &operation,
                             fake_current && fake_is_device(to, bytes, fake_current->gpu) &&
                                     fake_is_device(from, bytes, fake_current->gpu));
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                          CUcontext from_context, size_t bytes, CUstream stream) {
        struct operation operation = { .kind = OPERATION_COPY, .to = (void *) (uintptr_t) to,
                                       .from = (void *) (uintptr_t) from, .bytes = bytes };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        operation.is_broken = fake.broken[from_context->gpu][to_context->gpu];
        operation.is_to_peer = true;
        result = copy_submit("cuMemcpyPeerAsync", stream, &operation,
                             fake_is_device(to, bytes, to_context->gpu) &&
                                     fake_is_device(from, bytes, from_context->gpu));
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult memset_device(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
        struct operation operation = { .kind = OPERATION_SET, .to = (void *) (uintptr_t) to,
                                       .from = (void *) (uintptr_t) value, .bytes = bytes };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = copy_submit("cuMemsetD8Async", stream, &operation,
                             fake_current && fake_is_device(to, bytes, fake_current->gpu));
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* ---- Driver, GPUs, contexts ------------------------------------------------------------------ */

static CUresult enter_alone(const char *name) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter(name);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult init(unsigned flags) {
        return enter_alone("cuInit");
}

static CUresult driver_get_version(int *ret_version) {
        CUresult result = enter_alone("cuDriverGetVersion");

        if (result == CUDA_SUCCESS)
                *ret_version = fake.version ? fake.version : GOOD_VERSION;
        return result;
}

static CUresult get_error_name(CUresult result, const char **ret_name) {
        static _Thread_local char name[32];

        (void) snprintf(name, sizeof name, "CUDA_ERROR_%d", (int) result);
        *ret_name = name;
        return CUDA_SUCCESS;
}

static CUresult device_get_count(int *ret_count) {
        CUresult result = enter_alone("cuDeviceGetCount");

        if (result == CUDA_SUCCESS)
                *ret_count = FAKE_GPUS;
        return result;
}

static CUresult device_get(CUdevice *ret_device, int number) {
        CUresult result = enter_alone("cuDeviceGet");

        if (result == CUDA_SUCCESS)
                *ret_device = number;
        return result;
}

static CUresult device_get_name(char *name, int length, CUdevice device) {
        CUresult result = enter_alone("cuDeviceGetName");

        if (result == CUDA_SUCCESS)
                (void) snprintf(name, (size_t) length, "fake GPU");
        return result;
}

/* The last GPU is too old. */
static CUresult device_get_attribute(int *ret_value, CUdevice_attribute attribute,
                                     CUdevice device) {
        CUresult result = enter_alone("cuDeviceGetAttribute");

        if (result != CUDA_SUCCESS)
                return result;
        if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
                *ret_value = device == FAKE_GPUS - 1 ? 7 : 9;
        else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
                *ret_value = 0;
        else if (attribute == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
                *ret_value = !fake.no_read_only;
        else
                *ret_value = 4;
        return CUDA_SUCCESS;
}

static CUresult device_total_mem(size_t *ret_bytes, CUdevice device) {
        CUresult result = enter_alone("cuDeviceTotalMem");

        if (result == CUDA_SUCCESS)
                *ret_bytes = fake.memory_bytes;
        return result;
}

static CUresult primary_context_set_flags(CUdevice device, unsigned flags) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuDevicePrimaryCtxSetFlags");
        if (result == CUDA_SUCCESS && fake.contexts[device].refs)
                result = CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
        if (result == CUDA_SUCCESS && flags != CU_CTX_SCHED_BLOCKING_SYNC)
                result = CUDA_ERROR_INVALID_VALUE;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult primary_context_retain(CUcontext *ret_context, CUdevice device) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuDevicePrimaryCtxRetain");
        if (result == CUDA_SUCCESS) {
                struct CUctx_st *context = &fake.contexts[device];

                if (context->refs++ == 0)
                        context->lost = CUDA_SUCCESS;
                *ret_context = context;
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult primary_context_release(CUdevice device) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuDevicePrimaryCtxRelease");
        if (--fake.contexts[device].refs == 0) {
                fake.contexts[device].peers = 0;
                for (uint32_t i = 0; i < FAKE_GPUS; i++)
                        fake.contexts[i].peers &= ~(1U << device);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult context_set_current(CUcontext context) {
        CUresult result = enter_alone("cuCtxSetCurrent");

        /* Whatever is injected: the thread goes on with the context that it means. */
        fake_current = context;
        return result;
}

static CUresult device_can_access_peer(int *ret_can, CUdevice from, CUdevice to) {
        CUresult result = enter_alone("cuDeviceCanAccessPeer");

        if (result == CUDA_SUCCESS)
                *ret_can = 1;
        return result;
}

/* Once; until either of the two contexts is gone. */
static CUresult context_enable_peer(CUcontext context, unsigned flags) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuCtxEnablePeerAccess");
        if (result == CUDA_SUCCESS && (context == fake_current || !context->refs || flags))
                result = CUDA_ERROR_INVALID_CONTEXT;
        if (result == CUDA_SUCCESS && (fake_current->peers >> context->gpu & 1))
                result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
        if (result == CUDA_SUCCESS)
                fake_current->peers |= 1U << context->gpu;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* ---- Modules --------------------------------------------------------------------------------- */

static CUresult module_load_data(CUmodule *ret_module, const void *image) {
        CUmodule module = calloc(1, sizeof *module);
        uint32_t magic;
        CUresult result;

        memcpy(&magic, image, sizeof magic);
        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuModuleLoadData");
        if (result == CUDA_SUCCESS && (magic != FATBIN_MAGIC || (uintptr_t) image % 8))
                result = CUDA_ERROR_INVALID_IMAGE;
        if (result == CUDA_SUCCESS && module) {
                module->context = fake_current;
                fake.modules++;
                *ret_module = module;
        } else {
                free(module);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult module_unload(CUmodule module) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuModuleUnload");
        fake_expect_current(module->context, "cuModuleUnload");
        fake.modules--;
        (void) pthread_mutex_unlock(&fake.lock);
        free(module);
        return result;
}

static CUresult module_get_function(CUfunction *ret_function, CUmodule module, const char *name) {
        const struct cuda_host_kernel *kernel = blocks_find(name);
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuModuleGetFunction");
        if (result == CUDA_SUCCESS && !kernel)
                result = CUDA_ERROR_NOT_FOUND;
        if (result == CUDA_SUCCESS)
                *ret_function = (CUfunction) (uintptr_t) kernel;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* ---- For tests ------------------------------------------------------------------------------- */

const struct cuda_syms *fake_driver(void) {
        static struct cuda_syms syms = {
                .cuInit = init,
                .cuDriverGetVersion = driver_get_version,
                .cuGetErrorName = get_error_name,
                .cuDeviceGetCount = device_get_count,
                .cuDeviceGet = device_get,
                .cuDeviceGetName = device_get_name,
                .cuDeviceGetAttribute = device_get_attribute,
                .cuDeviceTotalMem = device_total_mem,
                .cuDevicePrimaryCtxSetFlags = primary_context_set_flags,
                .cuDevicePrimaryCtxRetain = primary_context_retain,
                .cuDevicePrimaryCtxRelease = primary_context_release,
                .cuCtxSetCurrent = context_set_current,
                .cuDeviceCanAccessPeer = device_can_access_peer,
                .cuCtxEnablePeerAccess = context_enable_peer,
                .cuMemGetInfo = mem_get_info,
                .cuMemAlloc = mem_alloc,
                .cuMemFree = mem_free,
                .cuMemHostAlloc = mem_host_alloc,
                .cuMemFreeHost = mem_free_host,
                .cuMemHostRegister = host_register,
                .cuMemHostUnregister = host_unregister,
                .cuMemsetD8Async = memset_device,
                .cuMemcpyHtoDAsync = copy_to_device,
                .cuMemcpyDtoHAsync = copy_to_host,
                .cuMemcpyDtoDAsync = copy_within,
                .cuMemcpyPeerAsync = copy_peer,
                .cuModuleLoadData = module_load_data,
                .cuModuleUnload = module_unload,
                .cuModuleGetFunction = module_get_function,
        };

        fake_fill_streams(&syms);
        fake_fill_memory(&syms);
        fake_fill_graphs(&syms);
        return &syms;
}

void fake_begin(uint32_t seed) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.random = seed;
        fake.calls = 0;
        fake.violations = 0;
        fake.fail_at = UINT64_MAX;
        fake.fail_name = NULL;
        fake.version = 0;
        fake.writes_late = false;
        fake.holds_peers = false;
        fake.no_read_only = false;
        fake.locked_copied = 0;
        fake.executed = 0;
        fake.has_no_way = false;
        fake.products = 0;
        fake.memory_bytes = UINT64_C(1) << 30;
        memset(fake.broken, 0, sizeof fake.broken);
        for (uint32_t i = 0; i < FAKE_GPUS; i++)
                fake.contexts[i] = (struct CUctx_st) { .gpu = i, .lose_at = UINT64_MAX };
        (void) pthread_mutex_unlock(&fake.lock);
        cuda_syms_replace(fake_driver());
        fake_fill_blas();
}

uint32_t fake_leaks(void) {
        uint32_t count;

        (void) pthread_mutex_lock(&fake.lock);
        count = fake.streams + fake.events + fake.modules + fake.graphs + fake.execs +
                fake.objects + fake.pieces + fake_ranges_left();
        for (uint32_t i = 0; i < FAKE_GPUS; i++)
                count += fake.contexts[i].refs;
        if (count)
                fprintf(stderr,
                        "left: %u streams, %u events, %u modules, %u + %u graphs, %u pieces, "
                        "%u objects of products, contexts %u %u %u\n",
                        fake.streams, fake.events, fake.modules, fake.graphs, fake.execs,
                        fake.pieces, fake.objects, fake.contexts[0].refs, fake.contexts[1].refs,
                        fake.contexts[2].refs);
        for (const struct allocation *a = allocations; a; a = a->next, count++)
                fprintf(stderr, "left: %llu bytes of %s memory of GPU %u\n",
                        (unsigned long long) a->bytes, a->is_pinned ? "pinned" : "device", a->gpu);
        (void) pthread_mutex_unlock(&fake.lock);
        return count;
}

uint32_t fake_violations(void) {
        uint32_t count;

        (void) pthread_mutex_lock(&fake.lock);
        count = fake.violations;
        (void) pthread_mutex_unlock(&fake.lock);
        return count;
}

void fake_forgive(void) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.violations = 0;
        (void) pthread_mutex_unlock(&fake.lock);
}

uint64_t fake_products(void) {
        uint64_t count;

        (void) pthread_mutex_lock(&fake.lock);
        count = fake.products;
        (void) pthread_mutex_unlock(&fake.lock);
        return count;
}

void fake_without_ways(void) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.has_no_way = true;
        (void) pthread_mutex_unlock(&fake.lock);
}

uint64_t fake_calls(void) {
        uint64_t count;

        (void) pthread_mutex_lock(&fake.lock);
        count = fake.calls;
        (void) pthread_mutex_unlock(&fake.lock);
        return count;
}

void fake_fail_call(uint64_t call, CUresult result) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.fail_at = call;
        fake.fail_with = result;
        (void) pthread_mutex_unlock(&fake.lock);
}

void fake_fail_name(const char *name, CUresult result) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.fail_name = name;
        fake.fail_name_with = result;
        (void) pthread_mutex_unlock(&fake.lock);
}

void fake_lose(uint32_t gpu, uint64_t operations, CUresult result) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.contexts[gpu].lose_at = fake.contexts[gpu].executed + operations;
        fake.contexts[gpu].lose_with = result;
        (void) pthread_mutex_unlock(&fake.lock);
}

void fake_break_copies(uint32_t from, uint32_t to) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.broken[from][to] = true;
        (void) pthread_mutex_unlock(&fake.lock);
}

void fake_without_read_only(void) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.no_read_only = true;
        (void) pthread_mutex_unlock(&fake.lock);
}

uint64_t fake_locked_copied(void) {
        uint64_t bytes;

        (void) pthread_mutex_lock(&fake.lock);
        bytes = fake.locked_copied;
        (void) pthread_mutex_unlock(&fake.lock);
        return bytes;
}

void fake_hold_peers(bool holds) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.holds_peers = holds;
        (void) pthread_cond_broadcast(&fake.changed);
        (void) pthread_mutex_unlock(&fake.lock);
}

uint64_t fake_executed(void) {
        uint64_t count;

        (void) pthread_mutex_lock(&fake.lock);
        count = fake.executed;
        (void) pthread_mutex_unlock(&fake.lock);
        return count;
}

void fake_write_late(void) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.writes_late = true;
        (void) pthread_mutex_unlock(&fake.lock);
}

void fake_set_memory(uint64_t bytes) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.memory_bytes = bytes;
        (void) pthread_mutex_unlock(&fake.lock);
}

void fake_set_version(int version) {
        (void) pthread_mutex_lock(&fake.lock);
        fake.version = version;
        (void) pthread_mutex_unlock(&fake.lock);
}
