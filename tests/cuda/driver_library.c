/*
 * The fake driver as libraries: what libcuda.so.1 and libcublasLt.so.13 are to a program that opens
 * them at run time. With their folder on LD_LIBRARY_PATH any program of the build finds the GPUs of
 * the fake driver, and its own way of opening a driver is used as it is.
 *
 * use_fake_cuda.c is linked in and says what the environment may ask for. An entry point is
 * resolved when it is looked up, to the function in the fake driver's tables.
 */
#include "backends/cuda/blas.h"
#include "tests/cuda/fake_cuda.h"

#define LOOKED_UP(table, name)                                                                     \
        __attribute__((used)) static __typeof__(name) *resolve_##name(void) {                      \
                return (table)->name;                                                              \
        }                                                                                          \
        __typeof__(name) name __attribute__((ifunc("resolve_" #name)));

#define X(name) LOOKED_UP(fake_driver(), name)
#include "backends/cuda/syms.def"
#undef X

#define X(name) LOOKED_UP(cuda_blas_open(), name)
#include "backends/cuda/blas.def"
#undef X
