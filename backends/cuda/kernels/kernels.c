/* See kernels.h. The images' bytes come from the build. */
#include "backends/cuda/kernels/kernels.h"

#define X(name) extern const unsigned char cuda_image_##name[];
#include "backends/cuda/kernels/images.def"
#undef X

const unsigned char *const cuda_images[CUDA_IMAGE_COUNT] = {
#define X(name) cuda_image_##name,
#include "backends/cuda/kernels/images.def"
#undef X
};

const struct cuda_kernel_info cuda_kernels[CUDA_KERNEL_COUNT] = {
#define X(name, image) { #name, CUDA_IMAGE_##image },
#include "backends/cuda/kernels/kernels.def"
#undef X
};
