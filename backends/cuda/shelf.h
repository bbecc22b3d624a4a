/*
 * Executable graphs of programs that are gone, kept for programs that launch the same kernels: to
 * give one other addresses and sizes costs the driver less than to make a new one. A small ring;
 * the oldest goes.
 */
#pragma once

#include "backends/cuda/syms.h"

#define CUDA_SHELF_PLACES 64

/* Guarded by the lock of the GPU that it belongs to. */
struct cuda_shelf {
        struct {
                CUgraphExec exec; /* NULL: free */
                uint64_t key;
        } places[CUDA_SHELF_PLACES];
        uint32_t next;
};

/* Hands a graph over. `key` names the kernels that it launches, in their order. */
void cuda_shelf_put(struct cuda_shelf *shelf, const struct cuda_syms *cu, CUgraphExec exec,
                    uint64_t key);
/* A graph of that key, which is the caller's from then on, or NULL. */
CUgraphExec cuda_shelf_take(struct cuda_shelf *shelf, uint64_t key);
void cuda_shelf_clear(struct cuda_shelf *shelf, const struct cuda_syms *cu);
