// The kernels as C++ for the processor; their entries find their way to tests/cuda/blocks.c.
#ifndef KERNEL_SOURCE
#error "the build says which source this is"
#endif
#include KERNEL_SOURCE
