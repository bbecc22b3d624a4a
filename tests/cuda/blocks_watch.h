/* Who looks on while kernels run: blocks.c and copies.c tell what happens, checks.c listens. */
#pragma once

#include "backends/cuda/kernels/host_run.h"

struct blocks_watch {
        /* A launch: its argument, and the memory in which its threads' stacks lie one behind the
         * other; of a flat kernel they have none of their own. */
        void (*launch)(const struct cuda_host_kernel *kernel, const void *argument,
                       const void *stacks, unsigned long stack_bytes);
        void (*block)(void);      /* one begins */
        void (*barrier)(void);    /* all threads have met */
        void (*warp)(unsigned warp); /* the lanes of one have met */
        void (*brings)(const void *to, const void *from, const void *site); /* sixteen bytes */
        void (*brought)(const void *to);
        void (*adds)(const void *at, const void *site);
        void (*leaves_copies)(void); /* a thread has ended that has not waited for them */
};

/* NULL: nobody. Set before the first kernel runs. */
extern const struct blocks_watch *blocks_watch;

/* ---- copies.c, for blocks.c ------------------------------------------------------------------ */

void copies_begin_block(void);
/* Ends one: does no thread still wait for something? */
void copies_end_block(void);
