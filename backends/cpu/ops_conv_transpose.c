/*
 * CONV_TRANSPOSE_1D, CONV_TRANSPOSE_2D: a pixel's channels, times the filter of one channel of
 * the result, are a patch that is added to the plane of that channel. A plane is one thread's: it
 * multiplies all pixels with the filter, then adds the patches in the order of the filter's
 * elements. Filters of f16 round the source to f16, as ggml does; sums are f32.
 *
 * COL2IM_1D adds columns that are such products already, each element of the result in the order of
 * the columns.
 *
 * Scratch: pixels[image][pixel][channel], filters[out][tap][channel], products[thread][tap][pixel].
 */
#include "backends/cpu/convolution.h"
#include "backends/cpu/matrix/share.h"
#include "backends/cpu/ops.h"

struct transpose {
        int64_t width, height, channels, batch; /* of the source */
        int64_t across, down, outputs;          /* of the kernel */
        int64_t stride;
        uint64_t pixel_nb[2], channel_nb, batch_nb;
        uint64_t tap_nb[2], out_nb, in_nb;
        uint64_t pixel_bytes, filter_bytes, product_bytes;
};

static struct transpose transpose_of(const struct hr_step *step) {
        const struct hr_operand *kernel = &step->sources[0], *source = &step->sources[1];
        int axes = step->op == HR_OP_CONV_TRANSPOSE_1D ? 1 : 2;
        struct transpose t = {
                .width = source->ne[0],
                .height = axes == 2 ? source->ne[1] : 1,
                .channels = source->ne[axes],
                .batch = axes == 2 ? source->ne[3] : 1,
                .across = kernel->ne[0],
                .down = axes == 2 ? kernel->ne[1] : 1,
                .outputs = kernel->ne[axes],
                .stride = step->params[0],
                .pixel_nb = { source->nb[0], source->nb[1] },
                .channel_nb = source->nb[axes],
                .batch_nb = source->nb[3],
                .tap_nb = { kernel->nb[0], kernel->nb[1] },
                .out_nb = kernel->nb[axes],
                .in_nb = kernel->nb[axes + 1],
        };

        t.pixel_bytes = cpu_round_up(cpu_times((uint64_t) cpu_elements(source), sizeof(float)));
        t.filter_bytes = cpu_round_up(cpu_times((uint64_t) cpu_elements(kernel), sizeof(float)));
        t.product_bytes = cpu_round_up(cpu_times((uint64_t) (t.across * t.down),
                                                 (uint64_t) (t.width * t.height) * sizeof(float)));
        return t;
}

static bool transpose_supports(const struct hr_step *step) {
        struct transpose t;

        if (step->source_count != 2)
                return false;
        t = transpose_of(step);
        return t.width * t.height <= UINT32_MAX && t.across * t.down <= UINT32_MAX &&
               (step->sources[0].type == HR_TYPE_F32 || step->sources[0].type == HR_TYPE_F16) &&
               step->sources[1].type == HR_TYPE_F32 && step->result.type == HR_TYPE_F32 &&
               cpu_is_contiguous(&step->result);
}

static uint64_t transpose_scratch(const struct hr_step *step, uint32_t threads) {
        struct transpose t = transpose_of(step);

        return cpu_plus(cpu_plus(t.pixel_bytes, t.filter_bytes),
                        cpu_times(t.product_bytes, threads));
}

static uint32_t transpose_threads(const struct hr_step *step) {
        struct transpose t = transpose_of(step);
        int64_t planes = HR_MAX(t.outputs * t.batch, 1);
        uint64_t products = cpu_times(cpu_times((uint64_t) (t.across * t.down),
                                                (uint64_t) (t.width * t.height)),
                                      (uint64_t) planes);
        uint32_t threads = cpu_threads_for((int64_t) HR_MIN(products, (uint64_t) INT64_MAX),
                                           (uint32_t) HR_MIN(t.channels + 16, UINT32_MAX));

        return planes < (int64_t) threads ? (uint32_t) planes : threads;
}

static void pixels_pack(const struct cpu_call *call, const struct transpose *t, float *out) {
        const struct hr_operand *source = &call->step->sources[1];
        int64_t pixels = t->width * t->height, first, end;

        cpu_share(call, pixels * t->batch, 1, &first, &end);
        for (int64_t i = first; i < end; i++) {
                const uint8_t *at = (const uint8_t *) source->data +
                                    (uint64_t) (i / pixels) * t->batch_nb +
                                    (uint64_t) (i % t->width) * t->pixel_nb[0];
                float *to = out + i * t->channels;

                if (t->height > 1)
                        at += (uint64_t) (i % pixels / t->width) * t->pixel_nb[1];
                for (int64_t c = 0; c < t->channels; c++)
                        to[c] = cpu_element(HR_TYPE_F32, at + (uint64_t) c * t->channel_nb);
                if (call->step->sources[0].type == HR_TYPE_F16)
                        cpu_round_f16(call->vec, t->channels, to);
        }
}

static void filters_pack(const struct cpu_call *call, const struct transpose *t, float *out) {
        const struct hr_operand *kernel = &call->step->sources[0];
        int64_t taps = t->across * t->down, first, end;

        cpu_share(call, taps * t->outputs, 1, &first, &end);
        for (int64_t i = first; i < end; i++) {
                const uint8_t *at = (const uint8_t *) kernel->data +
                                    (uint64_t) (i / taps) * t->out_nb +
                                    (uint64_t) (i % t->across) * t->tap_nb[0];

                if (t->down > 1)
                        at += (uint64_t) (i % taps / t->across) * t->tap_nb[1];
                for (int64_t c = 0; c < t->channels; c++)
                        out[i * t->channels + c] =
                                cpu_element(kernel->type, at + (uint64_t) c * t->in_nb);
        }
}

/* Adds the products of one plane, [tap][pixel], to where they belong. */
static void plane_add(const struct cpu_call *call, const struct transpose *t,
                      const float *products, float *plane) {
        int64_t width = call->step->result.ne[0];

        for (int64_t tap = 0; tap < t->across * t->down; tap++)
                for (int64_t y = 0; y < t->height; y++, products += t->width) {
                        float *out = plane + (y * t->stride + tap / t->across) * width +
                                     tap % t->across;

                        for (int64_t x = 0; x < t->width; x++)
                                out[x * t->stride] += products[x];
                }
}

static void transpose_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        struct transpose t = transpose_of(call->step);
        float *pixels = (float *) (void *) call->scratch;
        float *filters = (float *) (void *) (call->scratch + t.pixel_bytes);
        float *products = (float *) (void *) (call->scratch + t.pixel_bytes + t.filter_bytes +
                                              call->thread * t.product_bytes);
        int64_t taps = t.across * t.down, count = t.width * t.height, first, end;
        int64_t plane = call->step->op == HR_OP_CONV_TRANSPOSE_1D
                                ? result->ne[0]
                                : result->ne[0] * result->ne[1];
        uint64_t row_bytes = (uint64_t) t.channels * sizeof(float);

        pixels_pack(call, &t, pixels);
        filters_pack(call, &t, filters);
        cpu_barrier(call);
        cpu_share(call, t.outputs * t.batch, 1, &first, &end);
        for (int64_t item = first; item < end; item++) {
                const float *image = pixels + item / t.outputs * count * t.channels;
                const float *filter = filters + item % t.outputs * taps * t.channels;
                float *out = (float *) result->data + item * plane;

                memset(out, 0, (size_t) plane * sizeof *out);
                call->dot->float_dot(HR_TYPE_F32, (const uint8_t *) image, row_bytes,
                                     (uint32_t) count, (const uint8_t *) filter, row_bytes,
                                     (uint32_t) taps, t.channels, NULL, products,
                                     (uint64_t) count);
                plane_add(call, &t, products, out);
        }
}

const struct cpu_kernel cpu_kernel_conv_transpose = {
        .supports = transpose_supports,
        .scratch = transpose_scratch,
        .threads_max = transpose_threads,
        .run = transpose_run,
};

/* ---- COL2IM_1D ------------------------------------------------------------------------------- */

static bool col2im_supports(const struct hr_step *step) {
        return step->source_count == 1 && cpu_is_float(step->sources[0].type) &&
               step->result.type == step->sources[0].type && cpu_has_dense_rows(&step->result);
}

static uint32_t col2im_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 100);
}

static float col2im_one(const struct cpu_call *call, int64_t channel, int64_t place) {
        const struct hr_operand *columns = &call->step->sources[0];
        int64_t stride = call->step->params[0], taps = columns->ne[0] / call->step->params[1];
        int64_t first = place < taps ? 0 : (place - taps) / stride + 1;
        int64_t end = HR_MIN(place / stride + 1, columns->ne[1]);
        float sum = 0;

        for (int64_t t = first; t < end; t++)
                sum += cpu_element(columns->type,
                                   cpu_row(columns, t, 0, 0) +
                                           (uint64_t) (channel * taps + place - t * stride) *
                                                   columns->nb[0]);
        return sum;
}

static void col2im_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        struct cpu_walk walk = cpu_walk_start(call, false);
        struct cpu_piece piece;
        float buffer[CPU_CHUNK];

        while (cpu_walk_next(&walk, &piece)) {
                uint8_t *row = cpu_row_at(result, piece.index);
                float *out = cpu_target(result, row, piece.first, buffer);

                for (int64_t i = 0; i < piece.n; i++)
                        out[i] = col2im_one(call, piece.index.i1,
                                            piece.first + i + call->step->params[2]);
                cpu_store(call->vec, result, row, piece.first, piece.n, out);
        }
}

const struct cpu_kernel cpu_kernel_col2im_1d = {
        .supports = col2im_supports,
        .threads_max = col2im_threads,
        .run = col2im_run,
};
