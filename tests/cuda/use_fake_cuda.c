/* Linked into a program, it makes the fake driver the CUDA driver, and fails the program if it
 * leaves anything behind or breaks the driver's rules. */
#include <stdio.h>
#include <unistd.h>

#include "tests/cuda/fake_cuda.h"

__attribute__((constructor)) static void use(void) {
        fake_begin(1);
}

__attribute__((destructor)) static void look_back(void) {
        if (fake_leaks() + fake_violations() > 0) {
                (void) fflush(NULL);
                _exit(1);
        }
}
