/* Runs kernels that were compiled for the processor (backends/cuda/kernels/host.cuh). */
#pragma once

#include <stdbool.h>

#include "backends/cuda/kernels/host_run.h"

/* The kernel of that name, or NULL. */
const struct cuda_host_kernel *blocks_find(const char *name);
/* All blocks of a grid, one after the other, with `threads` threads each. False, after words to
 * stderr, when the threads of a block wait for each other for ever: one has left, or they wait at
 * different places. Thread: any, one at a time. */
bool blocks_run(const struct cuda_host_kernel *kernel, unsigned blocks, unsigned threads,
                const void *argument);
/* From now on warps, lanes and blocks have no fixed order but one by chance; 0: by number again.
 * Thread: any. */
void blocks_shuffle(uint32_t seed);
