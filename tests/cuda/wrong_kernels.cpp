// Kernels that are wrong, each in one way that the processor forgives and a GPU does not, and beside
// each the same that is right. Looked at as the true ones are.
#include "backends/cuda/kernels/warp.cuh"
#include "tests/cuda/wrong_kernels.h"

DEVICE uint32_t *words_of(uint64_t data) {
        return (uint32_t *) (uintptr_t) data;
}

/* Each thread writes a word and reads its neighbour's in another warp. */
KERNEL(wrong_barrier, struct wrong_args) {
        SHARED uint32_t words[CUDA_THREADS];

        words[threadIdx.x] = threadIdx.x;
        if (!args.is_wrong)
                __syncthreads();
        words_of(args.out)[threadIdx.x] = words[(threadIdx.x + WARP) % CUDA_THREADS];
}

/* Its neighbour's in the same warp, after an exchange, which puts nothing in order. */
KERNEL(wrong_warp_barrier, struct wrong_args) {
        SHARED uint32_t words[CUDA_THREADS];

        words[threadIdx.x] = threadIdx.x;
        (void) __shfl_xor_sync(ALL_LANES, 0.0f, 1);
        if (!args.is_wrong)
                __syncwarp();
        words_of(args.out)[threadIdx.x] = words[threadIdx.x ^ 1];
}

/* The next round writes while others may still read. */
KERNEL(wrong_overtaking, struct wrong_args) {
        SHARED uint32_t words[CUDA_THREADS];

        for (uint32_t i = 0; i < 3; i++) {
                words[threadIdx.x] = i;
                __syncthreads();
                words_of(args.out)[threadIdx.x] = words[(threadIdx.x + WARP) % CUDA_THREADS];
                if (!args.is_wrong)
                        __syncthreads();
        }
}

KERNEL(wrong_unwritten, struct wrong_args) {
        SHARED uint32_t words[2 * CUDA_THREADS];

        words[threadIdx.x] = 1;
        __syncthreads();
        words_of(args.out)[threadIdx.x] =
                words[CUDA_THREADS - 1 - threadIdx.x + (args.is_wrong ? 1 : 0)];
}

/* One word beyond the end. */
FLAT_KERNEL(wrong_end, struct wrong_args) {
        words_of(args.out)[threadIdx.x + (args.is_wrong ? 1 : 0)] = threadIdx.x;
}

/* Eight bytes at an address that is a multiple of four. Sixteen would end the program here, too. */
FLAT_KERNEL(wrong_alignment, struct wrong_args) {
        const uint64_t *from = (const uint64_t *) (uintptr_t) (args.out + (args.is_wrong ? 4 : 0));

        if (threadIdx.x == 0)
                words_of(args.out)[4] = (uint32_t) *from;
}

/* Without the wait. */
KERNEL(wrong_copy, struct wrong_args) {
        SHARED piece pieces[CUDA_THREADS];
        const byte *from = (const byte *) (uintptr_t) args.out + 16 * (threadIdx.x % 4);

        copy_begin(&pieces[threadIdx.x], from);
        copy_group();
        if (args.is_wrong)
                copy_wait<1>();
        else
                copy_wait<0>();
        words_of(args.out)[64 + threadIdx.x] = pieces[threadIdx.x].word[0];
        copy_wait<0>();
}

/* Brought, but by another thread. */
KERNEL(wrong_meeting, struct wrong_args) {
        SHARED piece pieces[CUDA_THREADS];

        copy_begin(&pieces[threadIdx.x], (const byte *) (uintptr_t) args.out);
        copy_group();
        copy_wait<0>();
        if (!args.is_wrong)
                __syncthreads();
        words_of(args.out)[64 + threadIdx.x] = pieces[threadIdx.x ^ 64].word[0];
}

/* A copy that nobody waits for. */
KERNEL(wrong_leaving, struct wrong_args) {
        SHARED piece pieces[CUDA_THREADS];

        copy_begin(&pieces[threadIdx.x], (const byte *) (uintptr_t) args.out);
        copy_group();
        if (!args.is_wrong)
                copy_wait<0>();
}

/* All blocks write the same words. */
FLAT_KERNEL(wrong_blocks, struct wrong_args) {
        words_of(args.out)[threadIdx.x + (args.is_wrong ? 0 : CUDA_THREADS * blockIdx.x)] = 1;
}

/* Some block reads what another writes: a result computed in place where it must not be. */
FLAT_KERNEL(wrong_place, struct wrong_args) {
        uint32_t *words = words_of(args.out);
        uint32_t from = args.is_wrong ? 1 - blockIdx.x : blockIdx.x;

        words[CUDA_THREADS * blockIdx.x + threadIdx.x] = words[CUDA_THREADS * from + threadIdx.x];
}

/* A thread's own variable, reached by another through shared memory. */
KERNEL(wrong_neighbour, struct wrong_args) {
        SHARED const uint32_t *places[CUDA_THREADS];
        uint32_t own[2] = { threadIdx.x, (uint32_t) args.is_wrong };

        places[threadIdx.x] = own;
        __syncthreads();
        words_of(args.out)[threadIdx.x] = *places[args.is_wrong ? threadIdx.x ^ 1 : threadIdx.x];
        __syncthreads();
}

/* Threads that count in one word. */
KERNEL(wrong_addition, struct wrong_args) {
        SHARED int count;

        if (threadIdx.x == 0)
                count = 0;
        __syncthreads();
        if (args.is_wrong)
                count++;
        else
                (void) add_atomic(&count, 1);
        __syncthreads();
        words_of(args.out)[threadIdx.x] = (uint32_t) count;
}
