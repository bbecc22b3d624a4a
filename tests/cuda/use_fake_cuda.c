/* Linked into a program, it makes the fake driver the CUDA driver, and fails the program if it
 * leaves anything behind or breaks the driver's rules.
 *
 * Environment: HEADRACE_FAKE_CUDA_BREAK = "0-1,1-0": copies from one GPU to the other arrive
 * changed; HEADRACE_FAKE_CUDA_FAIL = NAME: that entry point fails; HEADRACE_FAKE_CUDA_SEED: of the
 * pauses, 0 = none. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/cuda/fake_cuda.h"

#ifndef FAKE_CUDA_FAIL
#define FAKE_CUDA_FAIL NULL
#endif

static void break_copies(const char *pairs) {
        unsigned from, to;
        int length;

        for (; pairs && sscanf(pairs, "%u-%u%n", &from, &to, &length) == 2; pairs++) {
                if (from < FAKE_GPUS && to < FAKE_GPUS)
                        fake_break_copies(from, to);
                pairs += length;
                if (*pairs != ',')
                        return;
        }
}

__attribute__((constructor)) static void use(void) {
        const char *seed = getenv("HEADRACE_FAKE_CUDA_SEED");
        const char *failing = getenv("HEADRACE_FAKE_CUDA_FAIL");

        fake_begin(seed ? (uint32_t) strtoul(seed, NULL, 10) : 1);
        break_copies(getenv("HEADRACE_FAKE_CUDA_BREAK"));
        fake_fail_name(failing ? failing : FAKE_CUDA_FAIL, CUDA_ERROR_NOT_SUPPORTED);
}

__attribute__((destructor)) static void look_back(void) {
        if (fake_leaks() + fake_violations() > 0) {
                (void) fflush(NULL);
                _exit(1);
        }
}
