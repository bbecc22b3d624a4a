/* The argument of the kernels in wrong_kernels.cpp. */
#pragma once

#include <stdint.h>

struct wrong_args {
        uint64_t out; /* memory of WRONG_BYTES bytes */
        uint64_t is_wrong;
};

#define WRONG_BYTES 2048 /* a word for each thread of two blocks */
