/*
 * IM2COL and IM2COL_3D, and the convolutions that are an unfolding and a matrix product: CONV_2D
 * and CONV_3D.
 *
 * A convolution unfolds a tile of windows, one after the other, and multiplies it with the filters,
 * which are rows of the same elements. Tiles are cut by the shape alone. A thread that goes through
 * several blocks of filters with one tile unfolds it once. Filters of f16 round the source to f16,
 * as ggml does; sums are f32.
 *
 * Scratch: the filters as dense f32 where they are not that already, then one tile per thread.
 */
#include "backends/cpu/convolution.h"
#include "backends/cpu/matrix/share.h"
#include "backends/cpu/ops.h"

/* ---- IM2COL, IM2COL_3D ----------------------------------------------------------------------- */

static bool im2col_supports(const struct hr_step *step) {
        return step->source_count == 2 && cpu_is_float(step->sources[1].type) &&
               (step->result.type == HR_TYPE_F32 || step->result.type == HR_TYPE_F16) &&
               cpu_is_contiguous(&step->result);
}

static uint64_t im2col_scratch(const struct hr_step *step, uint32_t threads) {
        if (step->result.type == HR_TYPE_F32)
                return 0;
        return cpu_times(cpu_round_up(cpu_times((uint64_t) step->result.ne[0], sizeof(float))),
                         threads);
}

static uint32_t im2col_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 16);
}

static void im2col_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        struct cpu_volume volume = cpu_volume_of(call->step);
        float *line = NULL;
        int64_t first, end;

        if (call->scratch)
                line = (float *) (void *) (call->scratch +
                                           call->thread * cpu_round_up((uint64_t) result->ne[0] *
                                                                       sizeof(float)));
        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                uint8_t *out = (uint8_t *) result->data + (uint64_t) row * result->nb[1];

                if (result->type == HR_TYPE_F32) {
                        cpu_window_gather_at(&volume, row, (float *) (void *) out);
                        continue;
                }
                cpu_window_gather_at(&volume, row, line);
                call->vec->f32_to_f16(result->ne[0], (uint16_t *) (void *) out, line);
        }
}

const struct cpu_kernel cpu_kernel_im2col = {
        .supports = im2col_supports,
        .scratch = im2col_scratch,
        .threads_max = im2col_threads,
        .run = im2col_run,
};

/* ---- CONV_2D, CONV_3D ------------------------------------------------------------------------ */

#define TILE_FLOATS (1 << 18)
#define TILE_MAX 128
#define FILTER_BLOCK 64

struct conv {
        struct cpu_volume volume;
        int64_t filters, elements; /* elements: of a filter and of a window */
        int64_t windows, tile;     /* windows: of one image */
        bool is_packed;            /* the filters are dense f32 where they lie */
        uint64_t pack_bytes, tile_bytes;
};

static struct conv conv_of(const struct hr_step *step) {
        const struct hr_operand *kernel = &step->sources[0];
        struct conv conv = { .volume = cpu_volume_of(step) };
        const int64_t *places = conv.volume.places;

        conv.filters = step->op == HR_OP_CONV_3D ? step->params[11] : kernel->ne[3];
        conv.elements = cpu_window_elements(&conv.volume);
        conv.windows = places[0] * places[1] * places[2];
        conv.tile = TILE_FLOATS / HR_MAX(conv.elements, 1);
        conv.tile = HR_MAX(HR_MIN(conv.tile, TILE_MAX), 4);
        conv.is_packed = kernel->type == HR_TYPE_F32 && cpu_is_contiguous(kernel);
        if (!conv.is_packed)
                conv.pack_bytes = cpu_round_up(cpu_times((uint64_t) cpu_elements(kernel),
                                                         sizeof(float)));
        conv.tile_bytes = cpu_round_up(cpu_times((uint64_t) conv.elements,
                                                 (uint64_t) conv.tile * sizeof(float)));
        return conv;
}

static bool conv_supports(const struct hr_step *step) {
        return step->source_count == 2 &&
               (step->sources[0].type == HR_TYPE_F32 || step->sources[0].type == HR_TYPE_F16) &&
               step->sources[1].type == HR_TYPE_F32 && step->result.type == HR_TYPE_F32 &&
               cpu_is_contiguous(&step->result);
}

static uint64_t conv_scratch(const struct hr_step *step, uint32_t threads) {
        struct conv conv = conv_of(step);

        return cpu_plus(conv.pack_bytes, cpu_times(conv.tile_bytes, threads));
}

static uint32_t conv_threads(const struct hr_step *step) {
        int64_t elements = conv_of(step).elements;

        return cpu_threads_for(cpu_elements(&step->result),
                               (uint32_t) HR_MIN(elements + 1, UINT32_MAX));
}

/* All rows of the kernel, this thread's share of them, one after the other. */
static void filters_pack(const struct cpu_call *call, float *out) {
        const struct hr_operand *kernel = &call->step->sources[0];
        int64_t first, end;

        cpu_share(call, cpu_rows(kernel), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                float *to = out + row * kernel->ne[0];
                const float *from =
                        cpu_float_row(call->dot, kernel->type,
                                      cpu_row_at(kernel, cpu_index_of_row(kernel, row)),
                                      kernel->nb[0], kernel->ne[0], to);

                if (from != to)
                        memcpy(to, from, (size_t) kernel->ne[0] * sizeof *to);
        }
}

static void tile_gather(const struct cpu_call *call, const struct conv *conv, int64_t first,
                        int64_t count, float *tile) {
        for (int64_t i = 0; i < count; i++)
                cpu_window_gather_at(&conv->volume, first + i, tile + i * conv->elements);
        if (call->step->sources[0].type == HR_TYPE_F16)
                cpu_round_f16(call->vec, count * conv->elements, tile);
}

static void conv_run(const struct cpu_call *call) {
        struct conv conv = conv_of(call->step);
        const float *filters = call->step->sources[0].data;
        float *tile = (float *) (void *) (call->scratch + conv.pack_bytes +
                                          call->thread * conv.tile_bytes);
        int64_t tiles = (conv.windows + conv.tile - 1) / conv.tile;
        int64_t blocks = (conv.filters + FILTER_BLOCK - 1) / FILTER_BLOCK;
        uint64_t row_bytes = (uint64_t) conv.elements * sizeof(float);
        int64_t first, end, gathered = -1;

        if (!conv.is_packed) {
                filters_pack(call, (float *) (void *) call->scratch);
                filters = (const float *) (const void *) call->scratch;
                cpu_barrier(call);
        }
        cpu_share(call, conv.volume.batch * tiles * blocks, 1, &first, &end);
        for (int64_t item = first; item < end; item++) {
                int64_t image = item / blocks / tiles, window = item / blocks % tiles * conv.tile;
                int64_t filter = item % blocks * FILTER_BLOCK;
                int64_t count = HR_MIN(conv.tile, conv.windows - window);

                if (gathered != item / blocks)
                        tile_gather(call, &conv, image * conv.windows + window, count, tile);
                gathered = item / blocks;
                call->dot->float_dot(HR_TYPE_F32, (const uint8_t *) tile, row_bytes,
                                     (uint32_t) count,
                                     (const uint8_t *) (filters + filter * conv.elements),
                                     row_bytes,
                                     (uint32_t) HR_MIN(FILTER_BLOCK, conv.filters - filter),
                                     conv.elements, NULL,
                                     (float *) call->step->result.data +
                                             (image * conv.filters + filter) * conv.windows +
                                             window,
                                     (uint64_t) conv.windows);
        }
}

const struct cpu_kernel cpu_kernel_conv = {
        .supports = conv_supports,
        .scratch = conv_scratch,
        .threads_max = conv_threads,
        .run = conv_run,
};
