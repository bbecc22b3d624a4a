/*
 * One physical GPU of this process: its primary context, what it is, whether it is lost, small
 * pinned words, kernels loaded on demand, and which other GPUs it can copy to. All logical devices
 * on it share one. Reference counted by them.
 */
#pragma once

#include <stdatomic.h>

#include "backends/cuda/kernels/kernels.h"
#include "backends/cuda/shelf.h"
#include "backends/cuda/syms.h"
#include "core/thread.h"

#define CUDA_GPUS_MAX 64
#define CUDA_WORDS_PER_BLOCK 1024
#define CUDA_CAPABILITY_MIN 80 /* 8.0 */

/* Words in pinned memory, which the host and the GPU see at the same address, in a cache line of
 * their own. A queue takes one for its progress, a program one for a fault. */
struct cuda_word {
        _Alignas(64) atomic_uint_least64_t value; /* the GPU's: how far the stream is */
        atomic_uint_least64_t forced;             /* the host's: how far it takes the stream to
                                                   * be */
        atomic_uint_least64_t fault;
        struct cuda_word *next_free;
};

struct cuda_word_block {
        struct cuda_word_block *next;
        struct cuda_word *words; /* CUDA_WORDS_PER_BLOCK */
};

struct cuda_lane;

struct cuda_gpu {
        const struct cuda_syms *cu;
        uint32_t number;
        uint32_t refs; /* guarded by the table's lock */
        CUdevice device;
        CUcontext context;
        char name[96];
        int capability; /* 90 for 9.0 */
        uint32_t processors;
        uint64_t total_bytes;
        uint64_t granularity; /* of memory that is mapped; 0 = it has none */
        atomic_int lost;                   /* the CUresult that ended the context, 0 while it
                                            * lives */
        atomic_uint_fast64_t peers_failed; /* bit n: copies from here to GPU n go through the
                                            * host */
        atomic_uint_fast64_t peers_direct; /* bit n: GPU n has direct access to memory here */
        /* Guarded by lock. */
        pthread_mutex_t lock;
        CUstream setup; /* fills and tests, each waited for */
        struct cuda_word_block *blocks;
        struct cuda_word *free_words;
        struct cuda_lane *lanes; /* of its queues */
        struct cuda_shelf shelf; /* recorded splits of programs that are gone */
        bool runs_have_failed;   /* after a loss: every run that was under way knows it */
        void *blas; /* the library's handle for the context, NULL before its first product */
        CUmodule modules[CUDA_IMAGE_COUNT];
        CUfunction functions[CUDA_KERNEL_COUNT];
};

/* The GPU of that number with a reference, opened and tested if it is the first one. */
HR_NODISCARD hr_status cuda_gpu_ref(uint32_t number, struct hr_diag *diag,
                                    struct cuda_gpu **ret_gpu);
struct cuda_gpu *cuda_gpu_unref(struct cuda_gpu *gpu);

/* Makes the GPU's context that of the calling thread. To be called before other entry points. */
HR_NODISCARD hr_status cuda_gpu_enter(struct cuda_gpu *gpu, struct hr_diag *diag);

/* CUDA_SUCCESS gives HR_OK. Anything else becomes a status with words; a sticky error marks the GPU
 * as lost. `what` names the call. diag may be NULL. */
hr_status cuda_gpu_check(struct cuda_gpu *gpu, CUresult result, const char *what,
                         struct hr_diag *diag);
bool cuda_gpu_is_lost(struct cuda_gpu *gpu);
/* HR_E_DEVICE_LOST with words, for a GPU that is. */
hr_status cuda_gpu_fail_lost(struct cuda_gpu *gpu, struct hr_diag *diag);

/* Fills device memory with zeros and waits for it. */
HR_NODISCARD hr_status cuda_gpu_clear(struct cuda_gpu *gpu, CUdeviceptr memory, uint64_t bytes,
                                      struct hr_diag *diag);

/* Device memory that is not cleared, in the GPU's context. HR_E_EXHAUSTED (reason DEVICE_MEMORY)
 * names asked and free bytes; `who` is named as well. */
HR_NODISCARD hr_status cuda_gpu_memory_take(struct cuda_gpu *gpu, const char *who, uint64_t bytes,
                                            struct hr_diag *diag, CUdeviceptr *ret_memory);
/* Of any thread. 0 is no memory. */
void cuda_gpu_memory_give(struct cuda_gpu *gpu, CUdeviceptr memory);

/* How far the word has come: numbers only grow, whoever has it. What a dying GPU still writes
 * counts for nothing against what the host has decided. */
static inline uint64_t cuda_word_progress(struct cuda_word *word) {
        uint64_t value = atomic_load_explicit(&word->value, memory_order_acquire);
        uint64_t forced = atomic_load_explicit(&word->forced, memory_order_acquire);

        return HR_MAX(value, forced);
}

/* A pinned word. It is as far as it was when it was given back: whoever remembers a number that it
 * has reached still finds it reached. */
HR_NODISCARD hr_status cuda_gpu_word_take(struct cuda_gpu *gpu, struct hr_diag *diag,
                                          struct cuda_word **ret_word);
void cuda_gpu_word_give(struct cuda_gpu *gpu, struct cuda_word *word);

/* The kernel, its image loaded if this is the first one asked of it. */
HR_NODISCARD hr_status cuda_gpu_function(struct cuda_gpu *gpu, enum cuda_kernel kernel,
                                         struct hr_diag *diag, CUfunction *ret_function);

/* Do copies from one to the other, without the host, give the same bytes? */
bool cuda_gpu_reaches(const struct cuda_gpu *from, const struct cuda_gpu *to);
