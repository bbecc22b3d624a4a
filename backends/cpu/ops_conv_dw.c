/*
 * CONV_2D_DW: every channel has a filter of its own. Two layouts of images, which the result shares
 * with the source: planes of one channel, where a filter's element is added along a whole line, and
 * channels next to each other, where all of a pixel's channels are added at once.
 *
 * Scratch: the filters as f32, in planes as they are, or with the channels next to each other.
 */
#include "backends/cpu/convolution.h"
#include "backends/cpu/matrix/share.h"
#include "backends/cpu/ops.h"

static bool is_interleaved(const struct hr_step *step) {
        return !cpu_is_contiguous(&step->result);
}

static bool conv_dw_supports(const struct hr_step *step) {
        const struct hr_operand *result = &step->result;

        if (step->source_count != 2 ||
            (step->sources[0].type != HR_TYPE_F32 && step->sources[0].type != HR_TYPE_F16) ||
            step->sources[1].type != HR_TYPE_F32 || result->type != HR_TYPE_F32)
                return false;
        return !is_interleaved(step) ||
               (result->nb[2] == sizeof(float) && step->sources[1].nb[2] == sizeof(float));
}

static uint64_t conv_dw_scratch(const struct hr_step *step, uint32_t threads) {
        return cpu_times((uint64_t) cpu_elements(&step->sources[0]), sizeof(float));
}

static uint32_t conv_dw_threads(const struct hr_step *step) {
        int64_t taps = step->sources[0].ne[0] * step->sources[0].ne[1];

        return cpu_threads_for(cpu_elements(&step->result),
                               (uint32_t) HR_MIN(4 * taps, UINT32_MAX));
}

/* out[channel][tap], or out[tap][channel] */
static void filters_pack(const struct cpu_call *call, bool interleaved, float *out) {
        const struct hr_operand *kernel = &call->step->sources[0];
        int64_t width = kernel->ne[0], taps = width * kernel->ne[1], channels = kernel->ne[3];
        int64_t first, end;

        cpu_share(call, channels, 16, &first, &end);
        for (int64_t c = first; c < end; c++)
                for (int64_t tap = 0; tap < taps; tap++)
                        out[interleaved ? tap * channels + c : c * taps + tap] =
                                cpu_element(kernel->type,
                                            cpu_row(kernel, tap / width, 0, c) +
                                                    (uint64_t) (tap % width) * kernel->nb[0]);
}

/* out[i] += factor * in[from + i * stride] for the places of a line that lie inside the source. */
static void line_add(const struct cpu_call *call, const struct cpu_volume *volume,
                     const uint8_t *row, int64_t tap, float factor, float *out) {
        int64_t stride = volume->stride[0];
        int64_t from = tap * volume->dilation[0] - volume->pad[0];
        int64_t last = volume->extent[0] - 1 - from;
        int64_t first = from < 0 ? (-from + stride - 1) / stride : 0;
        int64_t end = last < 0 ? 0 : HR_MIN(last / stride + 1, volume->places[0]);

        if (first >= end)
                return;
        if (stride == 1 && volume->nb[0] == sizeof(float)) {
                call->vec->add_scaled(end - first, out + first,
                                      (const float *) (const void *) row + from + first, factor);
                return;
        }
        for (int64_t i = first; i < end; i++) {
                int64_t x = from + i * stride;
                float value = cpu_element(HR_TYPE_F32, row + (uint64_t) x * volume->nb[0]);

                out[i] += value * factor;
        }
}

static void planes_run(const struct cpu_call *call, const struct cpu_volume *volume,
                       const float *filters) {
        const struct hr_operand *result = &call->step->result;
        int64_t taps = volume->kernel[0] * volume->kernel[1], first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index at = cpu_index_of_row(result, row);
                const uint8_t *plane = volume->data + (uint64_t) at.i3 * volume->batch_nb +
                                       (uint64_t) at.i2 * volume->channel_nb;
                float *out = (float *) (void *) cpu_row_at(result, at);

                memset(out, 0, (size_t) result->ne[0] * sizeof *out);
                for (int64_t tap = 0; tap < taps; tap++) {
                        int64_t y = at.i1 * volume->stride[1] - volume->pad[1] +
                                    tap / volume->kernel[0] * volume->dilation[1];

                        if (y >= 0 && y < volume->extent[1])
                                line_add(call, volume, plane + (uint64_t) y * volume->nb[1],
                                         tap % volume->kernel[0], filters[at.i2 * taps + tap],
                                         out);
                }
        }
}

/* One pixel's channels. */
static void pixel_run(const struct cpu_call *call, const struct cpu_volume *volume,
                      const float *filters, const int64_t place[3], float *out) {
        int64_t taps = volume->kernel[0] * volume->kernel[1];
        float product[CPU_CHUNK];

        memset(out, 0, (size_t) volume->channels * sizeof *out);
        for (int64_t tap = 0; tap < taps; tap++) {
                int64_t x = place[0] * volume->stride[0] - volume->pad[0] +
                            tap % volume->kernel[0] * volume->dilation[0];
                int64_t y = place[1] * volume->stride[1] - volume->pad[1] +
                            tap / volume->kernel[0] * volume->dilation[1];
                const float *filter = filters + tap * volume->channels;
                const float *in;

                if (x < 0 || x >= volume->extent[0] || y < 0 || y >= volume->extent[1])
                        continue;
                in = (const float *) (const void *) (volume->data +
                                                     (uint64_t) place[2] * volume->batch_nb +
                                                     (uint64_t) y * volume->nb[1] +
                                                     (uint64_t) x * volume->nb[0]);
                for (int64_t c = 0; c < volume->channels; c += CPU_CHUNK) {
                        int64_t n = HR_MIN(volume->channels - c, (int64_t) CPU_CHUNK);

                        call->vec->binary[CPU_VEC_MUL](n, product, in + c, filter + c);
                        call->vec->binary[CPU_VEC_ADD](n, out + c, out + c, product);
                }
        }
}

static void interleaved_run(const struct cpu_call *call, const struct cpu_volume *volume,
                            const float *filters) {
        const struct hr_operand *result = &call->step->result;
        int64_t width = volume->places[0], height = volume->places[1], first, end;

        cpu_share(call, width * height * volume->batch, 1, &first, &end);
        for (int64_t item = first; item < end; item++) {
                int64_t place[3] = { item % width, item / width % height, item / width / height };

                pixel_run(call, volume, filters, place,
                          (float *) (void *) (cpu_row(result, place[1], 0, place[2]) +
                                              (uint64_t) place[0] * result->nb[0]));
        }
}

static void conv_dw_run(const struct cpu_call *call) {
        struct cpu_volume volume = cpu_volume_of(call->step);
        bool interleaved = is_interleaved(call->step);
        float *filters = (float *) (void *) call->scratch;

        filters_pack(call, interleaved, filters);
        cpu_barrier(call);
        (interleaved ? interleaved_run : planes_run)(call, &volume, filters);
}

const struct cpu_kernel cpu_kernel_conv_dw = {
        .supports = conv_dw_supports,
        .scratch = conv_dw_scratch,
        .threads_max = conv_dw_threads,
        .run = conv_dw_run,
};
