/*
 * GPUs by number, each with one primary context however many logical devices are on it.
 *
 * A GPU is tested when it is opened: bytes go to it and come back, and between it and every other
 * open GPU in both directions. A pair that fails is remembered; copies between the two then go
 * through the host. Without direct access the driver stages such copies itself, which is as good.
 *
 * A sticky error ends the context for good. The first one seen is kept in `lost`; all logical
 * devices of the GPU then fail with it, and a GPU opened after the last of them is gone starts
 * anew.
 */
#include "backends/cuda/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/blas.h"
#include "backends/cuda/range.h"

#define TEST_BYTES 4096

static struct {
        pthread_mutex_t lock;
        struct cuda_gpu *gpus[CUDA_GPUS_MAX];
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- Results --------------------------------------------------------------------------------- */

bool cuda_gpu_is_lost(struct cuda_gpu *gpu) {
        return atomic_load_explicit(&gpu->lost, memory_order_acquire) != 0;
}

hr_status cuda_gpu_fail_lost(struct cuda_gpu *gpu, struct hr_diag *diag) {
        return hr_fail(diag, HR_E_DEVICE_LOST, "GPU %u is lost: %s", gpu->number,
                       cuda_result_name(gpu->cu, (CUresult) atomic_load(&gpu->lost)));
}

hr_status cuda_gpu_check(struct cuda_gpu *gpu, CUresult result, const char *what,
                         struct hr_diag *diag) {
        int alive = 0;

        if (HR_LIKELY(result == CUDA_SUCCESS))
                return HR_OK;
        if (cuda_result_is_sticky(result))
                (void) atomic_compare_exchange_strong(&gpu->lost, &alive, (int) result);
        return hr_fail(diag, cuda_result_status(result), "GPU %u, %s: %s", gpu->number, what,
                       cuda_result_name(gpu->cu, result));
}

hr_status cuda_gpu_enter(struct cuda_gpu *gpu, struct hr_diag *diag) {
        if (cuda_gpu_is_lost(gpu))
                return cuda_gpu_fail_lost(gpu, diag);
        return cuda_gpu_check(gpu, gpu->cu->cuCtxSetCurrent(gpu->context), "context", diag);
}

/* Waits for the setup stream, whatever it takes: what its work touches may be freed afterwards. A
 * stream that cannot be waited for is as good as lost. Returns the first result. */
static CUresult setup_finish(struct cuda_gpu *gpu) {
        CUresult result = gpu->cu->cuStreamSynchronize(gpu->setup), again = result;

        if (again != CUDA_SUCCESS && !cuda_result_is_sticky(again))
                again = gpu->cu->cuStreamSynchronize(gpu->setup);
        if (again != CUDA_SUCCESS && !cuda_result_is_sticky(again))
                (void) cuda_gpu_check(gpu, CUDA_ERROR_UNKNOWN, "setup", NULL);
        return result;
}

/* ---- Memory of its own ----------------------------------------------------------------------- */

hr_status cuda_gpu_clear(struct cuda_gpu *gpu, CUdeviceptr memory, uint64_t bytes,
                         struct hr_diag *diag) {
        hr_status status = HR_OK;

        (void) pthread_mutex_lock(&gpu->lock);
        if (bytes)
                status = cuda_gpu_check(gpu,
                                        gpu->cu->cuMemsetD8Async(memory, 0, (size_t) bytes,
                                                                 gpu->setup),
                                        "clearing memory", diag);
        if (status == HR_OK)
                status = cuda_gpu_check(gpu, setup_finish(gpu), "clearing memory", diag);
        (void) pthread_mutex_unlock(&gpu->lock);
        return status;
}

static hr_status words_grow(struct cuda_gpu *gpu, struct hr_diag *diag) {
        struct cuda_word_block *block = calloc(1, sizeof *block);
        const size_t bytes = CUDA_WORDS_PER_BLOCK * sizeof *block->words;
        void *pinned = NULL;
        hr_status status;

        if (!block)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for pinned words");
        status = cuda_gpu_check(gpu, gpu->cu->cuMemHostAlloc(&pinned, bytes,
                                                             CU_MEMHOSTALLOC_PORTABLE |
                                                                     CU_MEMHOSTALLOC_DEVICEMAP),
                                "pinned memory", diag);
        if (status != HR_OK) {
                free(block);
                return status;
        }
        memset(pinned, 0, bytes);
        block->words = pinned;
        block->next = gpu->blocks;
        gpu->blocks = block;
        for (uint32_t i = CUDA_WORDS_PER_BLOCK; i-- > 0;) {
                block->words[i].next_free = gpu->free_words;
                gpu->free_words = &block->words[i];
        }
        return HR_OK;
}

hr_status cuda_gpu_word_take(struct cuda_gpu *gpu, struct hr_diag *diag,
                             struct cuda_word **ret_word) {
        hr_status status = HR_OK;

        (void) pthread_mutex_lock(&gpu->lock);
        if (!gpu->free_words)
                status = words_grow(gpu, diag);
        if (status == HR_OK) {
                *ret_word = gpu->free_words;
                gpu->free_words = gpu->free_words->next_free;
        }
        (void) pthread_mutex_unlock(&gpu->lock);
        return status;
}

void cuda_gpu_word_give(struct cuda_gpu *gpu, struct cuda_word *word) {
        if (!word)
                return;
        (void) pthread_mutex_lock(&gpu->lock);
        word->next_free = gpu->free_words;
        gpu->free_words = word;
        (void) pthread_mutex_unlock(&gpu->lock);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static hr_status function_load(struct cuda_gpu *gpu, enum cuda_kernel kernel,
                               struct hr_diag *diag) {
        const struct cuda_kernel_info *info = &cuda_kernels[kernel];
        CUmodule *module = &gpu->modules[info->image];

        if (!*module)
                HR_TRY(cuda_gpu_check(gpu,
                                      gpu->cu->cuModuleLoadData(module, cuda_images[info->image]),
                                      "loading kernels", diag));
        return cuda_gpu_check(gpu,
                              gpu->cu->cuModuleGetFunction(&gpu->functions[kernel], *module,
                                                           info->name),
                              info->name, diag);
}

hr_status cuda_gpu_function(struct cuda_gpu *gpu, enum cuda_kernel kernel, struct hr_diag *diag,
                            CUfunction *ret_function) {
        hr_status status = HR_OK;

        (void) pthread_mutex_lock(&gpu->lock);
        if (!gpu->functions[kernel])
                status = function_load(gpu, kernel, diag);
        if (status == HR_OK)
                *ret_function = gpu->functions[kernel];
        (void) pthread_mutex_unlock(&gpu->lock);
        return status;
}

/* ---- Tests at the start ---------------------------------------------------------------------- */

/* Device memory at both ends, of the kind that buffers have, and a pinned page for what is
 * compared. */
struct probe_end {
        struct cuda_gpu *gpu;
        struct cuda_range range;
        CUdeviceptr memory;
};

struct probe {
        struct probe_end from, to;
        uint8_t *pinned;
};

static CUresult end_init(struct probe_end *end) {
        const struct cuda_syms *cu = end->gpu->cu;
        CUresult result = cu->cuCtxSetCurrent(end->gpu->context);

        if (result != CUDA_SUCCESS)
                return result;
        if (!cuda_range_init(&end->range, end->gpu, end->gpu->granularity, 0))
                return cu->cuMemAlloc(&end->memory, TEST_BYTES);
        end->memory = end->range.base;
        return CUDA_SUCCESS;
}

static void end_deinit(struct probe_end *end) {
        const struct cuda_syms *cu = end->gpu->cu;

        (void) cu->cuCtxSetCurrent(end->gpu->context);
        (void) setup_finish(end->gpu);
        if (end->range.base)
                cuda_range_deinit(&end->range, end->gpu);
        else if (end->memory)
                (void) cu->cuMemFree(end->memory);
}

static void probe_deinit(struct probe *probe) {
        end_deinit(&probe->from);
        end_deinit(&probe->to);
        if (probe->pinned)
                (void) probe->to.gpu->cu->cuMemFreeHost(probe->pinned);
}

static CUresult probe_init(struct probe *probe) {
        void *pinned = NULL;
        CUresult result = end_init(&probe->to);

        if (result == CUDA_SUCCESS)
                result = end_init(&probe->from);
        if (result == CUDA_SUCCESS)
                result = probe->from.gpu->cu->cuMemHostAlloc(&pinned, TEST_BYTES,
                                                             CU_MEMHOSTALLOC_PORTABLE);
        probe->pinned = pinned;
        return result;
}

static uint8_t probe_byte(uint32_t i) {
        return (uint8_t) (i * 31 + i / 256 + 7);
}

/* Host to source, source to target, target to host. *ret_same: did the bytes come through? */
static CUresult probe_run(struct probe *probe, bool *ret_same) {
        struct cuda_gpu *from = probe->from.gpu, *to = probe->to.gpu;
        const CUdeviceptr source = probe->from.memory, target = probe->to.memory;
        const struct cuda_syms *cu = from->cu;
        CUresult result;

        *ret_same = false;
        for (uint32_t i = 0; i < TEST_BYTES; i++)
                probe->pinned[i] = probe_byte(i);
        result = cu->cuMemcpyHtoDAsync(source, probe->pinned, TEST_BYTES, from->setup);
        if (result == CUDA_SUCCESS && from != to)
                result = cu->cuMemcpyPeerAsync(target, to->context, source, from->context,
                                               TEST_BYTES, from->setup);
        else if (result == CUDA_SUCCESS)
                result = cu->cuMemcpyDtoDAsync(target, source, TEST_BYTES, from->setup);
        if (result == CUDA_SUCCESS)
                result = setup_finish(from);
        if (result != CUDA_SUCCESS)
                return result;
        memset(probe->pinned, 0, TEST_BYTES);
        result = cu->cuCtxSetCurrent(to->context);
        if (result == CUDA_SUCCESS)
                result = cu->cuMemcpyDtoHAsync(probe->pinned, target, TEST_BYTES, to->setup);
        if (result == CUDA_SUCCESS)
                result = setup_finish(to);
        if (result != CUDA_SUCCESS)
                return result;
        *ret_same = true;
        for (uint32_t i = 0; i < TEST_BYTES; i++)
                *ret_same &= probe->pinned[i] == probe_byte(i);
        return CUDA_SUCCESS;
}

static CUresult pair_probe(struct cuda_gpu *from, struct cuda_gpu *to, bool *ret_same) {
        struct probe probe = { .from.gpu = from, .to.gpu = to };
        CUresult result = probe_init(&probe);

        *ret_same = false;
        if (result == CUDA_SUCCESS)
                result = probe_run(&probe, ret_same);
        probe_deinit(&probe);
        return result;
}

/* From one to the other, with direct access where the two have it. What fails here only closes that
 * way, unless it ends a context. */
static void pair_test(struct cuda_gpu *from, struct cuda_gpu *to) {
        const struct cuda_syms *cu = from->cu;
        CUresult access = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        int direct = 0;
        bool same = false;

        if (cu->cuCtxSetCurrent(from->context) == CUDA_SUCCESS &&
            cu->cuDeviceCanAccessPeer(&direct, from->device, to->device) == CUDA_SUCCESS &&
            direct)
                access = cu->cuCtxEnablePeerAccess(to->context, 0);
        if (access == CUDA_SUCCESS || access == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
                atomic_fetch_or(&to->peers_direct, UINT64_C(1) << from->number);
        if (cuda_gpu_check(from, pair_probe(from, to, &same), "test of copies", NULL) != HR_OK ||
            !same)
                atomic_fetch_or(&from->peers_failed, UINT64_C(1) << to->number);
}

static hr_status gpu_test(struct cuda_gpu *gpu, struct hr_diag *diag) {
        bool same = false;

        HR_TRY(cuda_gpu_check(gpu, pair_probe(gpu, gpu, &same), "test of copies", diag));
        if (!same)
                return hr_fail_reason(diag, HR_E_DATA_LOSS, "GPU",
                                      "GPU %u: bytes copied to it come back as others",
                                      gpu->number);
        for (uint32_t i = 0; i < CUDA_GPUS_MAX; i++) {
                if (!table.gpus[i] || table.gpus[i] == gpu || cuda_gpu_is_lost(table.gpus[i]))
                        continue;
                pair_test(gpu, table.gpus[i]);
                pair_test(table.gpus[i], gpu);
        }
        return cuda_gpu_enter(gpu, diag);
}

bool cuda_gpu_reaches(const struct cuda_gpu *from, const struct cuda_gpu *to) {
        return from == to || !(atomic_load(&from->peers_failed) >> to->number & 1);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static struct cuda_gpu *gpu_free(struct cuda_gpu *gpu) {
        const struct cuda_syms *cu = gpu->cu;

        if (gpu->context) {
                (void) cu->cuCtxSetCurrent(gpu->context);
                cuda_shelf_clear(&gpu->shelf, cu);
                cuda_blas_close(gpu);
                for (size_t i = 0; i < HR_ARRAY_LENGTH(gpu->modules); i++)
                        if (gpu->modules[i])
                                (void) cu->cuModuleUnload(gpu->modules[i]);
                if (gpu->setup)
                        (void) cu->cuStreamDestroy(gpu->setup);
        }
        while (gpu->blocks) {
                struct cuda_word_block *block = gpu->blocks;

                gpu->blocks = block->next;
                (void) cu->cuMemFreeHost(block->words);
                free(block);
        }
        if (gpu->context) {
                (void) cu->cuCtxSetCurrent(NULL);
                (void) cu->cuDevicePrimaryCtxRelease(gpu->device);
        }
        (void) pthread_mutex_destroy(&gpu->lock);
        free(gpu);
        return NULL;
}

static CUresult gpu_describe(struct cuda_gpu *gpu) {
        const struct cuda_syms *cu = gpu->cu;
        int major = 0, minor = 0, processors = 0;
        size_t total = 0;
        CUresult result = cu->cuDeviceGetName(gpu->name, (int) sizeof gpu->name, gpu->device);

        if (result == CUDA_SUCCESS)
                result = cu->cuDeviceTotalMem(&total, gpu->device);
        if (result == CUDA_SUCCESS)
                result = cu->cuDeviceGetAttribute(
                        &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu->device);
        if (result == CUDA_SUCCESS)
                result = cu->cuDeviceGetAttribute(
                        &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu->device);
        if (result == CUDA_SUCCESS)
                result = cu->cuDeviceGetAttribute(
                        &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device);
        gpu->total_bytes = total;
        gpu->capability = major * 10 + minor;
        gpu->processors = (uint32_t) processors;
        return result;
}

static hr_status gpu_open(struct cuda_gpu *gpu, struct hr_diag *diag) {
        const struct cuda_syms *cu = gpu->cu;
        int count = 0;

        HR_TRY(cuda_gpu_check(gpu, cu->cuDeviceGetCount(&count), "counting GPUs", diag));
        if (gpu->number >= (uint32_t) count)
                return hr_fail_reason(diag, HR_E_NOT_FOUND, "GPU",
                                      "there is no GPU %u: the driver has %d", gpu->number, count);
        HR_TRY(cuda_gpu_check(gpu, cu->cuDeviceGet(&gpu->device, (int) gpu->number), "opening",
                              diag));
        HR_TRY(cuda_gpu_check(gpu, gpu_describe(gpu), "properties", diag));
        cuda_range_ask(gpu);
        if (gpu->capability < CUDA_CAPABILITY_MIN)
                return hr_fail_reason(diag, HR_E_UNSUPPORTED, "GPU",
                                      "GPU %u, %s, has compute capability %d.%d; %d.%d is needed",
                                      gpu->number, gpu->name, gpu->capability / 10,
                                      gpu->capability % 10, CUDA_CAPABILITY_MIN / 10,
                                      CUDA_CAPABILITY_MIN % 10);
        /* Threads that wait for the GPU sleep; where that cannot be had they spin: right, too. */
        (void) cu->cuDevicePrimaryCtxSetFlags(gpu->device, CU_CTX_SCHED_BLOCKING_SYNC);
        HR_TRY(cuda_gpu_check(gpu, cu->cuDevicePrimaryCtxRetain(&gpu->context, gpu->device),
                              "context", diag));
        HR_TRY(cuda_gpu_enter(gpu, diag));
        return cuda_gpu_check(gpu, cu->cuStreamCreate(&gpu->setup, CU_STREAM_NON_BLOCKING),
                              "stream", diag);
}

static hr_status table_open(uint32_t number, struct hr_diag *diag, struct cuda_gpu **ret_gpu) {
        const struct cuda_syms *cu = NULL;
        struct cuda_gpu *gpu;
        hr_status status;

        HR_TRY(cuda_syms_open(diag, &cu));
        gpu = calloc(1, sizeof *gpu);
        if (!gpu)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a GPU");
        gpu->cu = cu;
        gpu->number = number;
        (void) pthread_mutex_init(&gpu->lock, NULL);
        status = gpu_open(gpu, diag);
        if (status == HR_OK)
                status = gpu_test(gpu, diag);
        if (status != HR_OK) {
                (void) gpu_free(gpu);
                return status;
        }
        *ret_gpu = gpu;
        return HR_OK;
}

hr_status cuda_gpu_ref(uint32_t number, struct hr_diag *diag, struct cuda_gpu **ret_gpu) {
        hr_status status = HR_OK;

        if (number >= CUDA_GPUS_MAX)
                return hr_fail_reason(diag, HR_E_NOT_FOUND, "GPU", "there is no GPU %u", number);
        (void) pthread_mutex_lock(&table.lock);
        if (!table.gpus[number])
                status = table_open(number, diag, &table.gpus[number]);
        if (status == HR_OK) {
                table.gpus[number]->refs++;
                *ret_gpu = table.gpus[number];
        }
        (void) pthread_mutex_unlock(&table.lock);
        return status;
}

struct cuda_gpu *cuda_gpu_unref(struct cuda_gpu *gpu) {
        if (!gpu)
                return NULL;
        (void) pthread_mutex_lock(&table.lock);
        if (--gpu->refs == 0) {
                table.gpus[gpu->number] = NULL;
                /* A number that comes back is another context, to be tested again. */
                for (uint32_t i = 0; i < CUDA_GPUS_MAX; i++)
                        if (table.gpus[i]) {
                                atomic_fetch_and(&table.gpus[i]->peers_failed,
                                                 ~(UINT64_C(1) << gpu->number));
                                atomic_fetch_and(&table.gpus[i]->peers_direct,
                                                 ~(UINT64_C(1) << gpu->number));
                        }
                (void) gpu_free(gpu);
        }
        (void) pthread_mutex_unlock(&table.lock);
        return NULL;
}
