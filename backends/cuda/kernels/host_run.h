/* How kernels run on the processor: what host.cuh needs of whoever runs them. A block's threads
 * take turns on one thread of the process; blocks and kernels run one at a time. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_host_dim {
        unsigned x, y, z;
};

struct cuda_host_kernel {
        const char *name;
        unsigned long argument_bytes;
        int is_flat; /* neither barriers nor exchanges: a thread runs to its end */
        void (*entry)(const void *argument);
        struct cuda_host_kernel *next;
};

extern struct cuda_host_dim cuda_host_thread, cuda_host_block, cuda_host_grid;

void cuda_host_register(struct cuda_host_kernel *kernel);
/* Waits for all threads of the block. */
void cuda_host_barrier(void);
/* Gives `value` to the warp and takes that of lane `from`; all lanes of the warp take part. */
uint32_t cuda_host_exchange(uint32_t value, unsigned from);
/* Gives up to eight words to the warp. Lane l's lie at l * count of what comes back, until the lane
 * exchanges once more. */
const uint32_t *cuda_host_gather(const uint32_t *words, unsigned count);

#ifdef __cplusplus
}
#endif
