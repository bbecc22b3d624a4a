/*
 * What convolutions share: where a window lies in a volume, and gathering one window's elements.
 *
 * A volume has three axes (an image: depth 1), channels and a batch. A window's elements are
 * ordered channel first, then depth, height and width, as in the kernels; outside the volume they
 * are 0.
 */
#pragma once

#include "backends/cpu/elements.h"

struct cpu_volume {
        uint32_t type;
        const uint8_t *data;
        int64_t extent[3];           /* W, H, D of the source */
        int64_t places[3];           /* W, H, D of the result */
        int64_t channels, batch;
        int64_t kernel[3], stride[3], pad[3], dilation[3];
        uint64_t nb[3], channel_nb, batch_nb;
};

/* The source of a step of IM2COL, IM2COL_3D, CONV_2D, CONV_2D_DW or CONV_3D. */
struct cpu_volume cpu_volume_of(const struct hr_step *step);

/* Elements of a window: channels * kernel. */
int64_t cpu_window_elements(const struct cpu_volume *volume);

/* Writes the window at place x, y, z of image n: cpu_window_elements() floats. */
void cpu_window_gather(const struct cpu_volume *volume, int64_t n, const int64_t place[3],
                       float *ret_window);
/* The same for place number `index` of all images: W fastest, then H, D, image. */
void cpu_window_gather_at(const struct cpu_volume *volume, int64_t index, float *ret_window);

/* Element of a tensor of any float type. */
float cpu_element(uint32_t type, const uint8_t *at);
/* Rounds to f16 and back, in place. */
void cpu_round_f16(const struct cpu_vec *vec, int64_t n, float *values);
