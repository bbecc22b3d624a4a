/* See convolution.h. */
#include "backends/cpu/convolution.h"
#include "backends/cpu/matrix/half.h"

#include <string.h>

static void volume_axes(struct cpu_volume *volume, const struct hr_step *step, int axes) {
        const struct hr_operand *kernel = &step->sources[0], *source = &step->sources[1];

        for (int i = 0; i < 3; i++) {
                bool exists = i < axes;

                volume->extent[i] = exists ? source->ne[i] : 1;
                volume->nb[i] = exists ? source->nb[i] : 0;
                volume->kernel[i] = exists ? kernel->ne[i] : 1;
                volume->stride[i] = exists ? step->params[i] : 1;
                volume->pad[i] = exists ? step->params[HR_MAX(axes, 2) + i] : 0;
                volume->dilation[i] = exists ? step->params[2 * HR_MAX(axes, 2) + i] : 1;
                volume->places[i] = 1;
        }
}

struct cpu_volume cpu_volume_of(const struct hr_step *step) {
        const struct hr_operand *source = &step->sources[1], *result = &step->result;
        struct cpu_volume volume = { .type = source->type, .data = source->data };
        bool is_unfolded = step->op == HR_OP_IM2COL || step->op == HR_OP_IM2COL_3D;
        int axes = 2;

        if (step->op == HR_OP_IM2COL_3D || step->op == HR_OP_CONV_3D)
                axes = 3;
        else if (step->op == HR_OP_IM2COL && !step->params[6])
                axes = 1;
        volume_axes(&volume, step, axes);
        for (int i = 0; i < axes; i++)
                volume.places[i] = result->ne[i + is_unfolded];
        if (axes < 3) {
                volume.channels = source->ne[axes];
                volume.channel_nb = source->nb[axes];
                volume.batch = source->ne[axes + 1];
                volume.batch_nb = source->nb[axes + 1];
                return volume;
        }
        volume.channels = step->params[9];
        volume.channel_nb = source->nb[3];
        volume.batch = volume.channels > 0 ? source->ne[3] / volume.channels : 0;
        volume.batch_nb = source->nb[3] * (uint64_t) volume.channels;
        if (is_unfolded && volume.batch > 0)
                volume.places[2] = result->ne[3] / volume.batch;
        if (!is_unfolded)
                volume.batch = step->params[10];
        return volume;
}

int64_t cpu_window_elements(const struct cpu_volume *volume) {
        return volume->channels * volume->kernel[0] * volume->kernel[1] * volume->kernel[2];
}

float cpu_element(uint32_t type, const uint8_t *at) {
        uint16_t half;
        float value;

        if (type == HR_TYPE_F32) {
                memcpy(&value, at, sizeof value);
                return value;
        }
        memcpy(&half, at, sizeof half);
        return type == HR_TYPE_F16 ? cpu_half_to_float(half) : cpu_bf16_to_float(half);
}

void cpu_round_f16(const struct cpu_vec *vec, int64_t n, float *values) {
        uint16_t halves[CPU_CHUNK];

        for (int64_t first = 0; first < n; first += CPU_CHUNK) {
                int64_t count = HR_MIN(n - first, (int64_t) CPU_CHUNK);

                vec->f32_to_f16(count, halves, values + first);
                vec->f16_to_f32(count, values + first, halves);
        }
}

/* Can lines that start at `first` be copied as they lie? */
static bool lines_are_plain(const struct cpu_volume *volume, int64_t first) {
        return volume->type == HR_TYPE_F32 && volume->dilation[0] == 1 &&
               volume->nb[0] == sizeof(float) && first >= 0 &&
               first + volume->kernel[0] <= volume->extent[0];
}

/* The most common widths without a call. */
static inline void line_copy(const uint8_t *from, int64_t width, float *ret_line) {
        if (width == 3)
                memcpy(ret_line, from, 3 * sizeof *ret_line);
        else if (width == 1)
                memcpy(ret_line, from, sizeof *ret_line);
        else
                memcpy(ret_line, from, (size_t) width * sizeof *ret_line);
}

/* One line of a window along axis 0; row NULL: outside. */
static void line_gather(const struct cpu_volume *volume, const uint8_t *row, int64_t first,
                        float *ret_line) {
        for (int64_t i = 0; i < volume->kernel[0]; i++) {
                int64_t x = first + i * volume->dilation[0];

                ret_line[i] = !row || x < 0 || x >= volume->extent[0]
                                      ? 0.0f
                                      : cpu_element(volume->type,
                                                    row + (uint64_t) x * volume->nb[0]);
        }
}

void cpu_window_gather(const struct cpu_volume *volume, int64_t n, const int64_t place[3],
                       float *ret_window) {
        const uint8_t *plane = volume->data + (uint64_t) n * volume->batch_nb;
        int64_t from[3], width = volume->kernel[0];
        bool is_plain;

        for (int i = 0; i < 3; i++)
                from[i] = place[i] * volume->stride[i] - volume->pad[i];
        is_plain = lines_are_plain(volume, from[0]);
        for (int64_t channel = 0; channel < volume->channels; channel++) {
                int64_t z = from[2];

                for (int64_t k2 = 0; k2 < volume->kernel[2]; k2++, z += volume->dilation[2]) {
                        bool is_inside = z >= 0 && z < volume->extent[2];
                        int64_t y = from[1];

                        for (int64_t k1 = 0; k1 < volume->kernel[1]; k1++) {
                                const uint8_t *row = NULL;

                                if (is_inside && y >= 0 && y < volume->extent[1])
                                        row = plane + (uint64_t) z * volume->nb[2] +
                                              (uint64_t) y * volume->nb[1];
                                if (is_plain && row)
                                        line_copy(row + (uint64_t) from[0] * sizeof(float), width,
                                                  ret_window);
                                else
                                        line_gather(volume, row, from[0], ret_window);
                                ret_window += width;
                                y += volume->dilation[1];
                        }
                }
                plane += volume->channel_nb;
        }
}

void cpu_window_gather_at(const struct cpu_volume *volume, int64_t index, float *ret_window) {
        int64_t place[3];

        for (int i = 0; i < 3; i++) {
                place[i] = index % volume->places[i];
                index /= volume->places[i];
        }
        cpu_window_gather(volume, index, place, ret_window);
}
