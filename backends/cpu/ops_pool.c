/*
 * POOL_1D, POOL_2D and UPSCALE: each element of the result looks at a few elements of one plane.
 *
 * Pooling: the average of POOL_1D is over the elements inside the source, that of POOL_2D over the
 * whole window. A maximum over no element is -FLT_MAX.
 *
 * Resizing maps the centre of a pixel of the result to a place in the source; with aligned corners,
 * its first corner. Places are computed in f32, as the results to agree with are.
 */
#include "backends/cpu/convolution.h"
#include "backends/cpu/ops.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- POOL_1D, POOL_2D ------------------------------------------------------------------------ */

static bool pool_supports(const struct hr_step *step) {
        return step->source_count == 1 && cpu_is_float(step->sources[0].type) &&
               step->result.type == HR_TYPE_F32 && cpu_has_dense_rows(&step->result);
}

static uint32_t pool_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 100);
}

struct pool {
        bool is_average, is_whole; /* is_whole: the divisor is the window, not what lies inside */
        int64_t size[2], stride[2], pad[2];
};

static struct pool pool_of(const struct hr_step *step) {
        const int32_t *params = step->params;

        if (step->op == HR_OP_POOL_1D)
                return (struct pool) { .is_average = params[0] == 1,
                                       .size = { params[1], 1 },
                                       .stride = { params[2], 1 },
                                       .pad = { params[3], 0 } };
        return (struct pool) { .is_average = params[0] == 1,
                               .is_whole = true,
                               .size = { params[1], params[2] },
                               .stride = { params[3], params[4] },
                               .pad = { params[5], params[6] } };
}

static float pool_add(const struct pool *pool, float so_far, float value) {
        if (pool->is_average)
                return so_far + value;
        return value > so_far ? value : so_far;
}

static float pool_element(const struct hr_operand *source, const uint8_t *row, int64_t i) {
        if (source->type == HR_TYPE_F32 && source->nb[0] == sizeof(float))
                return ((const float *) (const void *) row)[i];
        return cpu_element(source->type, row + (uint64_t) i * source->nb[0]);
}

/* Element `offset` of each window of a line, where it lies inside the source. */
static void pool_take(const struct hr_operand *source, const uint8_t *row, const struct pool *pool,
                      int64_t offset, float *out, int64_t places) {
        int64_t stride = pool->stride[0], last = source->ne[0] - 1 - offset;
        int64_t first = offset < 0 ? (-offset + stride - 1) / stride : 0;
        int64_t end = last < 0 ? 0 : HR_MIN(last / stride + 1, places);

        for (int64_t x = first; x < end; x++)
                out[x] = pool_add(pool, out[x], pool_element(source, row, x * stride + offset));
}

/* A line of the source into all windows. Windows wider than the line are walked by what they hold
 * of it, so that the work never exceeds line times windows. */
static void pool_line(const struct hr_operand *source, const uint8_t *row, const struct pool *pool,
                      float *out, int64_t places) {
        if (pool->size[0] <= source->ne[0]) {
                for (int64_t i = 0; i < pool->size[0]; i++)
                        pool_take(source, row, pool, i - pool->pad[0], out, places);
                return;
        }
        for (int64_t x = 0; x < places; x++) {
                int64_t from = x * pool->stride[0] - pool->pad[0];
                int64_t end = HR_MIN(from + pool->size[0], source->ne[0]);

                for (int64_t i = HR_MAX(from, 0); i < end; i++)
                        out[x] = pool_add(pool, out[x], pool_element(source, row, i));
        }
}

/* Sums become averages. */
static void pool_divide(const struct pool *pool, int64_t extent, float *out, int64_t places) {
        for (int64_t x = 0; x < places; x++) {
                int64_t from = x * pool->stride[0] - pool->pad[0];
                int64_t count = HR_MIN(from + pool->size[0], extent) - HR_MAX(from, 0);

                if (pool->is_whole)
                        count = pool->size[0] * pool->size[1];
                out[x] = count > 0 ? out[x] / (float) count : 0.0f;
        }
}

static void pool_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        struct pool pool = pool_of(call->step);
        int64_t places = result->ne[0], first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index at = cpu_index_of_row(result, row);
                int64_t y = at.i1 * pool.stride[1] - pool.pad[1];
                int64_t bottom = HR_MIN(y + pool.size[1], source->ne[1]);
                float *out = (float *) (void *) cpu_row_at(result, at);

                for (int64_t x = 0; x < places; x++)
                        out[x] = pool.is_average ? 0.0f : -FLT_MAX;
                for (y = HR_MAX(y, 0); y < bottom; y++)
                        pool_line(source, cpu_row(source, y, at.i2, at.i3), &pool, out, places);
                if (pool.is_average)
                        pool_divide(&pool, source->ne[0], out, places);
        }
}

const struct cpu_kernel cpu_kernel_pool = {
        .supports = pool_supports,
        .threads_max = pool_threads,
        .run = pool_run,
};

/* ---- UPSCALE --------------------------------------------------------------------------------- */

static bool upscale_supports(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == HR_TYPE_F32 &&
               step->result.type == HR_TYPE_F32 && cpu_has_dense_rows(&step->result);
}

static uint32_t upscale_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 200);
}

struct scaling {
        const struct hr_operand *source;
        float factor[HR_DIMS];
        float centre; /* of a pixel: 0.5, or 0 with aligned corners */
};

static struct scaling scaling_of(const struct hr_step *step) {
        const struct hr_operand *result = &step->result, *source = &step->sources[0];
        struct scaling scaling = { .source = source, .centre = 0.5f };

        for (int i = 0; i < HR_DIMS; i++)
                scaling.factor[i] = (float) result->ne[i] / (float) source->ne[i];
        if (step->params[0] & HR_UPSCALE_ALIGN_CORNERS) {
                scaling.centre = 0.0f;
                for (int i = 0; i < 2; i++)
                        if (result->ne[i] > 1 && source->ne[i] > 1)
                                scaling.factor[i] = (float) (result->ne[i] - 1) /
                                                    (float) (source->ne[i] - 1);
        }
        return scaling;
}

static int64_t nearest(const struct scaling *scaling, int dim, int64_t i) {
        int64_t index = (int64_t) ((float) i / scaling->factor[dim]);

        return HR_MIN(index, scaling->source->ne[dim] - 1);
}

static float place(const struct scaling *scaling, int dim, int64_t i) {
        return ((float) i + scaling->centre) / scaling->factor[dim];
}

/* A pixel of the plane, or the nearest one on its edge. */
static float pixel(const struct scaling *scaling, const uint8_t *plane, int64_t x, int64_t y) {
        const struct hr_operand *source = scaling->source;
        float value;

        x = HR_MAX(HR_MIN(x, source->ne[0] - 1), 0);
        y = HR_MAX(HR_MIN(y, source->ne[1] - 1), 0);
        memcpy(&value, plane + (uint64_t) x * source->nb[0] + (uint64_t) y * source->nb[1],
               sizeof value);
        return value;
}

static float bounded_fraction(float value, int64_t whole) {
        return fmaxf(0.0f, fminf(value - (float) whole, 1.0f));
}

static float bilinear(const struct scaling *scaling, const uint8_t *plane, int64_t i0, int64_t i1) {
        float x = place(scaling, 0, i0) - scaling->centre;
        float y = place(scaling, 1, i1) - scaling->centre;
        int64_t left = (int64_t) floorf(x), top = (int64_t) floorf(y);
        float dx = bounded_fraction(x, HR_MAX(HR_MIN(left, scaling->source->ne[0] - 1), 0));
        float dy = bounded_fraction(y, HR_MAX(HR_MIN(top, scaling->source->ne[1] - 1), 0));

        return pixel(scaling, plane, left, top) * (1 - dx) * (1 - dy) +
               pixel(scaling, plane, left + 1, top) * dx * (1 - dy) +
               pixel(scaling, plane, left, top + 1) * (1 - dx) * dy +
               pixel(scaling, plane, left + 1, top + 1) * dx * dy;
}

/* Weights of four neighbours for a fraction, by the cubic convolution with a = -0.75. */
static void cubic_weights(float fraction, float ret_weights[4]) {
        const float a = -0.75f;
        float far[2] = { fraction + 1, 2 - fraction }, near[2] = { fraction, 1 - fraction };

        for (int i = 0; i < 2; i++) {
                float f = far[i], n = near[i];

                ret_weights[i * 3] = ((a * f - 5 * a) * f + 8 * a) * f - 4 * a;
                ret_weights[1 + i] = ((a + 2) * n - (a + 3)) * n * n + 1;
        }
}

static float bicubic(const struct scaling *scaling, const uint8_t *plane, int64_t i0, int64_t i1) {
        float x = place(scaling, 0, i0) - scaling->centre;
        float y = place(scaling, 1, i1) - scaling->centre;
        int64_t left = (int64_t) floorf(x), top = (int64_t) floorf(y);
        float across[4], down[4], sum = 0;

        cubic_weights(x - (float) left, across);
        cubic_weights(y - (float) top, down);
        for (int j = 0; j < 4; j++) {
                float row = 0;

                for (int i = 0; i < 4; i++)
                        row += pixel(scaling, plane, left + i - 1, top + j - 1) * across[i];
                sum += row * down[j];
        }
        return sum;
}

/* The source pixels under a triangle as wide as a pixel of the result, at least one pixel. */
struct footprint {
        float place, inverse;
        int64_t first, end;
};

static struct footprint footprint_of(const struct scaling *scaling, int dim, int64_t i) {
        float support = fmaxf(1.0f, 1.0f / scaling->factor[dim]);
        float at = place(scaling, dim, i);
        int64_t first = (int64_t) (at - support + scaling->centre);
        int64_t end = (int64_t) (at + support + scaling->centre);

        return (struct footprint) { .place = at,
                                    .inverse = 1.0f / support,
                                    .first = HR_MAX(first, 0),
                                    .end = HR_MIN(end, scaling->source->ne[dim]) };
}

static float footprint_weight(const struct scaling *scaling, const struct footprint *footprint,
                              int64_t i) {
        float distance = ((float) i - footprint->place + scaling->centre) * footprint->inverse;

        return fmaxf(1.0f - fabsf(distance), 0.0f);
}

static float antialiased(const struct scaling *scaling, const uint8_t *plane, int64_t i0,
                         int64_t i1) {
        struct footprint across = footprint_of(scaling, 0, i0);
        struct footprint down = footprint_of(scaling, 1, i1);
        float sum = 0, total = 0;

        for (int64_t y = down.first; y < down.end; y++) {
                float weight_y = footprint_weight(scaling, &down, y);

                for (int64_t x = across.first; x < across.end; x++) {
                        float weight = footprint_weight(scaling, &across, x) * weight_y;

                        sum += pixel(scaling, plane, x, y) * weight;
                        total += weight;
                }
        }
        return total > 0 ? sum / total : sum;
}

static float upscale_one(const struct scaling *scaling, int32_t mode, const uint8_t *plane,
                         int64_t i0, int64_t i1) {
        switch (mode & HR_UPSCALE_MODE_MASK) {
        case HR_UPSCALE_BILINEAR:
                return mode & HR_UPSCALE_ANTIALIAS ? antialiased(scaling, plane, i0, i1)
                                                   : bilinear(scaling, plane, i0, i1);
        case HR_UPSCALE_BICUBIC:
                return bicubic(scaling, plane, i0, i1);
        default:
                return pixel(scaling, plane, nearest(scaling, 0, i0), nearest(scaling, 1, i1));
        }
}

static void upscale_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        struct scaling scaling = scaling_of(call->step);
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index at = cpu_index_of_row(result, row);
                const uint8_t *plane = cpu_row(scaling.source, 0, nearest(&scaling, 2, at.i2),
                                               nearest(&scaling, 3, at.i3));
                float *out = (float *) (void *) cpu_row_at(result, at);

                for (int64_t i = 0; i < result->ne[0]; i++)
                        out[i] = upscale_one(&scaling, call->step->params[0], plane, i, at.i1);
        }
}

const struct cpu_kernel cpu_kernel_upscale = {
        .supports = upscale_supports,
        .threads_max = upscale_threads,
        .run = upscale_run,
};
