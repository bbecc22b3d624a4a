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
/* Waits for all lanes of the warp, which then see what the others have written. */
void cuda_host_warp_barrier(void);
/* Gives up to eight words to the warp. Lane l's lie at l * count of what comes back, until the lane
 * exchanges once more. */
const uint32_t *cuda_host_gather(const uint32_t *words, unsigned count);

/* Sixteen bytes that come when this thread waits for them; until then there is rubbish. What was
 * begun since the last call of cuda_host_copy_group() is a group. */
void cuda_host_copy_begin(void *to, const void *from);
void cuda_host_copy_group(void);
/* Waits for this thread's groups but the last `count`. */
void cuda_host_copy_wait(unsigned count);
/* Adds, and returns what was there. */
int cuda_host_add(int *at, int value);

#ifdef __cplusplus
}
#endif
