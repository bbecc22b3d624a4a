/*
 * Windows on planes and volumes: IM2COL, IM2COL_3D, CONV_2D, CONV_3D, CONV_2D_DW, CONV_TRANSPOSE_1D
 * and _2D, COL2IM_1D, POOL_1D, POOL_2D, UPSCALE. A thread makes one element of the result after
 * another, by itself: plain and right; models that live on convolutions want more.
 *
 * A volume has three axes (an image: depth 1), channels and a batch. A window's elements are
 * ordered channel first, then depth, height and width, as in the kernels; outside the volume they
 * are 0. Sums are f32; filters of f16 round the source to f16, as the results to agree with do.
 */
#include "backends/cuda/kernels/common.cuh"

#define EACH(i, count)                                                                             \
        for (int64_t i = (int64_t) blockIdx.x * CUDA_THREADS + threadIdx.x; i < (count);           \
             i += (int64_t) gridDim.x * CUDA_THREADS)

struct point {
        int64_t i[4];
};

/* Of element `i` of a tensor, in logical order. */
DEVICE point point_of(const cuda_tensor &t, int64_t i) {
        point p;

        for (int d = 0; d < 3; d++) {
                int64_t rest = quotient(i, t.ne[d]);

                p.i[d] = i - rest * t.ne[d];
                i = rest;
        }
        p.i[3] = i;
        return p;
}

DEVICE byte *at_point(const cuda_tensor &t, point p) {
        return row_of(t, p.i[1], p.i[2], p.i[3]) + p.i[0] * t.nb[0];
}

DEVICE int64_t element_count(const cuda_tensor &t) {
        return t.ne[0] * row_count(t);
}

/* ---- Volumes --------------------------------------------------------------------------------- */

/* Element k[0], k[1], k[2] of the window at a place of an image; 0 outside. */
DEVICE float window_element(const cuda_window_args &args, int64_t image, int64_t channel,
                            const int64_t *place, const int64_t *k) {
        const byte *at = (const byte *) (uintptr_t) args.in.data + image * args.batch_nb +
                         channel * args.channel_nb;

        for (int d = 0; d < 3; d++) {
                int64_t x = place[d] * args.stride[d] - args.pad[d] + k[d] * args.dilation[d];

                if (x < 0 || x >= args.extent[d])
                        return 0;
                at += x * args.nb[d];
        }
        return load_float(at, args.in.type);
}

/* Takes `index` apart: place[0] fastest. Returns what is left: the image. */
DEVICE int64_t place_of(const cuda_window_args &args, int64_t index, int64_t *place) {
        for (int d = 0; d < 3; d++) {
                int64_t rest = quotient(index, args.places[d]);

                place[d] = index - rest * args.places[d];
                index = rest;
        }
        return index;
}

DEVICE int64_t kernel_place(const cuda_window_args &args, int64_t element, int64_t *k) {
        for (int d = 0; d < 3; d++) {
                int64_t rest = quotient(element, args.kernel[d]);

                k[d] = element - rest * args.kernel[d];
                element = rest;
        }
        return element;
}

FLAT_KERNEL(unfold_windows, struct cuda_window_args) {
        int64_t elements = args.out.ne[0];

        EACH(i, element_count(args.out)) {
                int64_t row = quotient(i, elements), place[3], k[3];
                int64_t image = place_of(args, row, place);
                int64_t channel = kernel_place(args, i - row * elements, k);

                store_float((byte *) (uintptr_t) args.out.data + i * args.out.nb[0], args.out.type,
                            window_element(args, image, channel, place, k));
        }
}

DEVICE float as_filter(const cuda_window_args &args, float x) {
        return args.filters.type == HR_TYPE_F16 ? half_to_float(float_to_half(x)) : x;
}

/* Results lie one behind the other: places of a filter, filters of an image. */
FLAT_KERNEL(convolve_windows, struct cuda_window_args) {
        int64_t windows = args.places[0] * args.places[1] * args.places[2];
        int64_t elements = args.channels * args.kernel[0] * args.kernel[1] * args.kernel[2];

        EACH(i, args.batch * args.count * windows) {
                int64_t plane = quotient(i, windows), image = quotient(plane, args.count);
                int64_t filter = plane - image * args.count, place[3], k[3];
                float sum = 0;

                (void) place_of(args, i - plane * windows, place);
                for (int64_t e = 0; e < elements; e++) {
                        int64_t channel = kernel_place(args, e, k);
                        const byte *weight = (const byte *) (uintptr_t) args.filters.data +
                                             k[0] * args.filters.nb[0] + k[1] * args.filters.nb[1];

                        if (args.is_deep)
                                weight += k[2] * args.filters.nb[2] +
                                          (filter * args.channels + channel) * args.filters.nb[3];
                        else
                                weight += channel * args.filters.nb[2] +
                                          filter * args.filters.nb[3];
                        sum += as_filter(args, window_element(args, image, channel, place, k)) *
                               load_float(weight, args.filters.type);
                }
                ((float *) (uintptr_t) args.out.data)[i] = sum;
        }
}

/* Every channel has a filter of its own. */
FLAT_KERNEL(convolve_channels, struct cuda_window_args) {
        EACH(i, element_count(args.out)) {
                point p = point_of(args.out, i);
                int64_t place[3] = { p.i[0], p.i[1], 0 };
                float sum = 0;

                for (int64_t tap = 0; tap < args.kernel[0] * args.kernel[1]; tap++) {
                        int64_t down = quotient(tap, args.kernel[0]);
                        int64_t k[3] = { tap - down * args.kernel[0], down, 0 };
                        const byte *weight = row_of(args.filters, down, 0, p.i[2]) +
                                             k[0] * args.filters.nb[0];

                        sum += window_element(args, p.i[3], p.i[2], place, k) *
                               load_float(weight, args.filters.type);
                }
                *(float *) at_point(args.out, p) = sum;
        }
}

/* ---- Transposed ------------------------------------------------------------------------------ */

/* The pixel of the source that gives element `at` of an axis by way of that tap, or -1. */
DEVICE int64_t giver(int64_t at, int64_t tap, int64_t stride, int64_t extent) {
        int64_t from = at - tap, pixel = from < 0 ? -1 : quotient(from, stride);

        return pixel >= 0 && pixel < extent && pixel * stride == from ? pixel : -1;
}

/* kernel, stride and extent as those of volumes; count: channels of the result. */
FLAT_KERNEL(convolve_transposed, struct cuda_window_args) {
        int64_t width = args.places[0], plane_size = width * args.places[1];

        EACH(i, args.batch * args.count * plane_size) {
                int64_t plane = quotient(i, plane_size), rest = i - plane * plane_size;
                int64_t image = quotient(plane, args.count), output = plane - image * args.count;
                int64_t y = quotient(rest, width), x = rest - y * width;
                float sum = 0;

                for (int64_t down = 0; down < args.kernel[1]; down++) {
                        int64_t from_y = giver(y, down, args.stride[1], args.extent[1]);

                        for (int64_t across = 0; across < args.kernel[0] && from_y >= 0; across++) {
                                int64_t from_x = giver(x, across, args.stride[0], args.extent[0]);
                                const byte *in, *weight;

                                if (from_x < 0)
                                        continue;
                                in = (const byte *) (uintptr_t) args.in.data +
                                     image * args.batch_nb + from_x * args.nb[0] +
                                     from_y * args.nb[1];
                                weight = (const byte *) (uintptr_t) args.filters.data +
                                         across * args.filters.nb[0] + down * args.tap_nb +
                                         output * args.out_nb;
                                for (int64_t c = 0; c < args.channels; c++) {
                                        float x = *(const float *) (in + c * args.channel_nb);

                                        sum += as_filter(args, x) *
                                               load_float(weight + c * args.in_nb,
                                                          args.filters.type);
                                }
                        }
                }
                ((float *) (uintptr_t) args.out.data)[i] = sum;
        }
}

/* COL2IM_1D. params: stride, channels, what is left out in front. */
FLAT_KERNEL(fold_columns, struct cuda_shape_args) {
        int64_t stride = args.params[0], taps = args.in.ne[0] / args.params[1];

        EACH(i, element_count(args.out)) {
                point p = point_of(args.out, i);
                int64_t place = p.i[0] + args.params[2];
                int64_t first = place < taps ? 0 : (place - taps) / stride + 1;
                int64_t end = place / stride + 1;
                float sum = 0;

                end = end < args.in.ne[1] ? end : args.in.ne[1];
                for (int64_t t = first; t < end; t++)
                        sum += load_float(row_of(args.in, t, 0, 0) +
                                                  (p.i[1] * taps + place - t * stride) *
                                                          args.in.nb[0],
                                          args.in.type);
                store_float(at_point(args.out, p), args.out.type, sum);
        }
}

/* ---- Pooling --------------------------------------------------------------------------------- */

/* The window's part of an axis inside the source. */
struct stretch {
        int64_t first, end;
};

DEVICE stretch stretch_of(int64_t place, int64_t size, int64_t stride, int64_t pad,
                          int64_t extent) {
        stretch s;

        s.first = place * stride - pad;
        s.end = s.first + size;
        s.first = s.first > 0 ? s.first : 0;
        s.end = s.end < extent ? s.end : extent;
        return s;
}

/* params of POOL_1D: kind, size, stride, pad; of POOL_2D: kind, then pairs of them. The average is
 * over what lies inside, of POOL_2D over the whole window. */
FLAT_KERNEL(pool_windows, struct cuda_shape_args) {
        bool is_flat = args.op == HR_OP_POOL_1D, is_average = args.params[0] == 1;
        const int32_t *p = args.params;
        int64_t size[2] = { p[1], is_flat ? 1 : p[2] };
        int64_t stride[2] = { is_flat ? p[2] : p[3], is_flat ? 1 : p[4] };
        int64_t pad[2] = { is_flat ? p[3] : p[5], is_flat ? 0 : p[6] };

        EACH(i, element_count(args.out)) {
                point at = point_of(args.out, i);
                stretch x = stretch_of(at.i[0], size[0], stride[0], pad[0], args.in.ne[0]);
                stretch y = stretch_of(at.i[1], size[1], stride[1], pad[1], args.in.ne[1]);
                int64_t count = is_flat ? x.end - x.first : size[0] * size[1];
                float value = is_average ? 0.0f : -3.402823466e+38f;

                for (int64_t i1 = y.first; i1 < y.end; i1++)
                        for (int64_t i0 = x.first; i0 < x.end; i0++) {
                                float one = load_float(row_of(args.in, i1, at.i[2], at.i[3]) +
                                                               i0 * args.in.nb[0],
                                                       args.in.type);

                                if (is_average)
                                        value += one;
                                else if (one > value)
                                        value = one;
                        }
                if (is_average)
                        value = count > 0 ? value / (float) count : 0.0f;
                *(float *) at_point(args.out, at) = value;
        }
}

/* ---- Resizing -------------------------------------------------------------------------------- */

/* The centre of a pixel of the result is mapped to a place in the source; with aligned corners, its
 * first corner. Places are computed in f32, as the results to agree with are. */
struct scaling {
        float factor[4], centre;
};

DEVICE scaling scaling_of(const cuda_shape_args &args) {
        scaling s;

        s.centre = args.params[0] & HR_UPSCALE_ALIGN_CORNERS ? 0.0f : 0.5f;
        for (int d = 0; d < 4; d++) {
                s.factor[d] = (float) args.out.ne[d] / (float) args.in.ne[d];
                if (s.centre == 0 && d < 2 && args.out.ne[d] > 1 && args.in.ne[d] > 1)
                        s.factor[d] = (float) (args.out.ne[d] - 1) / (float) (args.in.ne[d] - 1);
        }
        return s;
}

DEVICE int64_t between(int64_t i, int64_t extent) {
        return i < 0 ? 0 : i < extent ? i : extent - 1;
}

/* A pixel of the plane, or the nearest one on its edge. */
DEVICE float pixel(const cuda_tensor &t, const byte *plane, int64_t x, int64_t y) {
        return *(const float *) (plane + between(x, t.ne[0]) * t.nb[0] +
                                 between(y, t.ne[1]) * t.nb[1]);
}

DEVICE int64_t nearest(const cuda_tensor &t, const scaling &s, int d, int64_t i) {
        int64_t index = (int64_t) ((float) i / s.factor[d]);

        return index < t.ne[d] - 1 ? index : t.ne[d] - 1;
}

DEVICE float place_in(const scaling &s, int d, int64_t i) {
        return ((float) i + s.centre) / s.factor[d];
}

DEVICE float fraction_of(float value, int64_t whole) {
        return fmaxf(0.0f, fminf(value - (float) whole, 1.0f));
}

DEVICE float bilinear(const cuda_tensor &t, const scaling &s, const byte *plane, point p) {
        float x = place_in(s, 0, p.i[0]) - s.centre, y = place_in(s, 1, p.i[1]) - s.centre;
        int64_t left = (int64_t) floorf(x), top = (int64_t) floorf(y);
        float dx = fraction_of(x, between(left, t.ne[0]));
        float dy = fraction_of(y, between(top, t.ne[1]));

        return pixel(t, plane, left, top) * (1 - dx) * (1 - dy) +
               pixel(t, plane, left + 1, top) * dx * (1 - dy) +
               pixel(t, plane, left, top + 1) * (1 - dx) * dy +
               pixel(t, plane, left + 1, top + 1) * dx * dy;
}

/* Weights of four neighbours for a fraction, by the cubic convolution with a = -0.75. */
DEVICE void cubic_weights(float fraction, float *weights) {
        const float a = -0.75f;

        for (int i = 0; i < 2; i++) {
                float f = i ? 2 - fraction : fraction + 1, n = i ? 1 - fraction : fraction;

                weights[i * 3] = ((a * f - 5 * a) * f + 8 * a) * f - 4 * a;
                weights[1 + i] = ((a + 2) * n - (a + 3)) * n * n + 1;
        }
}

DEVICE float bicubic(const cuda_tensor &t, const scaling &s, const byte *plane, point p) {
        float x = place_in(s, 0, p.i[0]) - s.centre, y = place_in(s, 1, p.i[1]) - s.centre;
        int64_t left = (int64_t) floorf(x), top = (int64_t) floorf(y);
        float across[4], down[4], sum = 0;

        cubic_weights(x - (float) left, across);
        cubic_weights(y - (float) top, down);
        for (int j = 0; j < 4; j++) {
                float row = 0;

                for (int i = 0; i < 4; i++)
                        row += pixel(t, plane, left + i - 1, top + j - 1) * across[i];
                sum += row * down[j];
        }
        return sum;
}

/* The source pixels under a triangle as wide as a pixel of the result, at least one pixel. */
struct footprint {
        float place, inverse;
        stretch at;
};

DEVICE footprint footprint_of(const cuda_tensor &t, const scaling &s, int d, int64_t i) {
        float support = fmaxf(1.0f, 1.0f / s.factor[d]);
        footprint f;

        f.place = place_in(s, d, i);
        f.inverse = 1.0f / support;
        f.at.first = (int64_t) (f.place - support + s.centre);
        f.at.end = (int64_t) (f.place + support + s.centre);
        f.at.first = f.at.first > 0 ? f.at.first : 0;
        f.at.end = f.at.end < t.ne[d] ? f.at.end : t.ne[d];
        return f;
}

DEVICE float footprint_weight(const scaling &s, const footprint &f, int64_t i) {
        return fmaxf(1.0f - fabsf(((float) i - f.place + s.centre) * f.inverse), 0.0f);
}

DEVICE float antialiased(const cuda_tensor &t, const scaling &s, const byte *plane, point p) {
        footprint across = footprint_of(t, s, 0, p.i[0]), down = footprint_of(t, s, 1, p.i[1]);
        float sum = 0, total = 0;

        for (int64_t y = down.at.first; y < down.at.end; y++)
                for (int64_t x = across.at.first; x < across.at.end; x++) {
                        float weight = footprint_weight(s, across, x) *
                                       footprint_weight(s, down, y);

                        sum += pixel(t, plane, x, y) * weight;
                        total += weight;
                }
        return total > 0 ? sum / total : sum;
}

FLAT_KERNEL(resize_planes, struct cuda_shape_args) {
        int32_t mode = args.params[0] & HR_UPSCALE_MODE_MASK;
        scaling s = scaling_of(args);

        EACH(i, element_count(args.out)) {
                point p = point_of(args.out, i);
                const byte *plane = row_of(args.in, 0, nearest(args.in, s, 2, p.i[2]),
                                           nearest(args.in, s, 3, p.i[3]));
                float value;

                if (mode == HR_UPSCALE_BILINEAR)
                        value = args.params[0] & HR_UPSCALE_ANTIALIAS
                                        ? antialiased(args.in, s, plane, p)
                                        : bilinear(args.in, s, plane, p);
                else if (mode == HR_UPSCALE_BICUBIC)
                        value = bicubic(args.in, s, plane, p);
                else
                        value = pixel(args.in, plane, nearest(args.in, s, 0, p.i[0]),
                                      nearest(args.in, s, 1, p.i[1]));
                *(float *) at_point(args.out, p) = value;
        }
}
