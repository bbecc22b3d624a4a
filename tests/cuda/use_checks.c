/* Linked into a program with kernels that can be looked at, it looks, on what the fake driver has,
 * with threads in an order by chance, and fails the program if it finds something.
 *
 * Environment: HEADRACE_KERNEL_SEED: of that order, 0: by number. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/cuda/blocks.h"
#include "tests/cuda/checks.h"
#include "tests/cuda/fake_cuda.h"

__attribute__((constructor)) static void use(void) {
        const char *seed = getenv("HEADRACE_KERNEL_SEED");

        blocks_shuffle(seed ? (uint32_t) strtoul(seed, NULL, 10) : 1);
        checks_begin(fake_memory);
}

__attribute__((destructor)) static void look_back(void) {
        if (checks_findings() > 0) {
                (void) fflush(NULL);
                _exit(1);
        }
}
