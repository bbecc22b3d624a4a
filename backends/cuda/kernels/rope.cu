/*
 * ROPE and its inverse: pairs of a row's elements are turned by an angle that grows with the
 * token's position and falls with the pair's number.
 *
 * The angle of a pair is the position multiplied again and again by the same factor in f32, as
 * models are evaluated: the exact power differs visibly at large positions. A thread does that for
 * its pair from the first one on; the products cost less than the sine.
 */
#include "backends/cuda/kernels/common.cuh"

enum { MODE_NEOX = 2, MODE_MROPE = 8, MODE_VISION = 24, MODE_IMROPE = 40 };

/* Which of the four positions (time, height, width, extra) pair `sector` of a period follows. */
DEVICE int sector_axis(const cuda_rope_args &args, int64_t sector) {
        if (args.mode == MODE_IMROPE) {
                int axis = (int) (sector % 3);

                return sector < 3 * args.sections[axis] ? axis : 3;
        }
        if (sector < args.sections[0])
                return 0;
        if (sector < args.sections[0] + args.sections[1])
                return 1;
        return sector < args.sections[0] + args.sections[1] + args.sections[2] ? 2 : 3;
}

DEVICE float angle_of(const cuda_rope_args &args, int64_t pair, int64_t token) {
        const int32_t *positions = (const int32_t *) (uintptr_t) args.positions.data;
        int64_t turns = pair, start = 0, period, sector;
        float theta;
        int axis = 0;

        if (args.mode & MODE_MROPE) {
                period = args.sections[0] + args.sections[1] + args.sections[2] +
                         args.sections[3];
                sector = pair % period;
                axis = sector_axis(args, sector);
                /* Each section starts anew, but for one behind an empty section, as in ggml. */
                if (args.mode == MODE_VISION && (axis == 0 || args.sections[axis - 1] != 0)) {
                        for (int i = 0; i < axis; i++)
                                start += args.sections[i];
                        turns = sector - start;
                }
        }
        theta = (float) positions[axis * args.in.ne[2] + token];
        for (int64_t i = 0; i < turns; i++)
                theta *= args.theta_scale;
        return theta;
}

DEVICE void turn_of(const cuda_rope_args &args, int64_t pair, float theta, float *ret_cosine,
                    float *ret_sine) {
        float turned;

        if (args.factors.is_present)
                theta /= ((const float *) (uintptr_t) args.factors.data)[pair];
        turned = args.freq_scale * theta;
        if (args.ext_factor != 0.0f) {
                float y = ((float) pair - args.ramp_low) /
                          fmaxf(0.001f, args.ramp_high - args.ramp_low);
                float mix = (1.0f - fminf(1.0f, fmaxf(0.0f, y))) * args.ext_factor;

                turned = turned * (1.0f - mix) + theta * mix;
        }
        *ret_cosine = cosf(turned) * args.magnitude;
        *ret_sine = sinf(turned) * args.magnitude * args.direction;
}

FLAT_KERNEL(rope_rows, struct cuda_rope_args) {
        int64_t end = args.mode == MODE_VISION ? args.in.ne[0] : args.offset + args.dims;
        int bytes = args.in.type == HR_TYPE_F32 ? 4 : 2;

        for (int64_t row = blockIdx.x; row < row_count(args.in); row += gridDim.x) {
                row_index index = index_of_row(args.in, row);
                const byte *in = row_at(args.in, index);
                byte *out = row_at(args.out, index);

                for (int64_t pair = threadIdx.x; pair < args.pairs; pair += CUDA_THREADS) {
                        int64_t first = args.offset + (args.mode == 0 ? 2 * pair : pair);
                        int64_t second = args.mode == 0 ? first + 1 : first + args.pairs;
                        float x = load_float(in + first * bytes, args.in.type);
                        float y = load_float(in + second * bytes, args.in.type);
                        float cosine, sine;

                        turn_of(args, pair, angle_of(args, pair, index.i2), &cosine, &sine);
                        store_float(out + first * bytes, args.in.type,
                                    fmaf(x, cosine, -(y * sine)));
                        store_float(out + second * bytes, args.in.type,
                                    fmaf(x, sine, y * cosine));
                }
                for (int64_t i = threadIdx.x; i < args.in.ne[0]; i += CUDA_THREADS)
                        if (i < args.offset || i >= end)
                                store_float(out + i * bytes, args.in.type,
                                            load_float(in + i * bytes, args.in.type));
        }
}
