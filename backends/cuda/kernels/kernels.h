/* The kernels by name and the images they are in. */
#pragma once

enum cuda_image {
#define X(name) CUDA_IMAGE_##name,
#include "backends/cuda/kernels/images.def"
#undef X
        CUDA_IMAGE_COUNT
};

enum cuda_kernel {
#define X(name, image) CUDA_KERNEL_##name,
#include "backends/cuda/kernels/kernels.def"
#undef X
        CUDA_KERNEL_COUNT
};

struct cuda_kernel_info {
        const char *name;
        enum cuda_image image;
};

extern const struct cuda_kernel_info cuda_kernels[CUDA_KERNEL_COUNT];
/* Fat binaries as nvcc made them. */
extern const unsigned char *const cuda_images[CUDA_IMAGE_COUNT];
