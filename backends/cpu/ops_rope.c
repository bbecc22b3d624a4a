/*
 * ROPE and its inverse: pairs of a row's elements are turned by an angle that grows with the
 * token's position and falls with the pair's number.
 *
 * The angle of pair j is built by multiplying the previous one, in f32: that is how models were
 * evaluated, and the exact power differs visibly at large positions. Modes: normal (neighbours are
 * a pair), neox (halves), mrope and imrope (halves; sections of pairs follow time, height, width or
 * an extra position), vision (halves of the whole row; each section starts its angles anew, but
 * for one behind an empty section, as in ggml).
 *
 * One token is one thread's: its cosines and sines are computed once for all heads.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/matrix/share.h"
#include "backends/cpu/ops.h"

#include <math.h>
#include <string.h>

enum { MODE_NEOX = 2, MODE_MROPE = 8, MODE_VISION = 24, MODE_IMROPE = 40 };

struct rope {
        int64_t dims, pairs, offset;
        int32_t mode;
        float freq_scale, ext_factor, magnitude, theta_scale;
        float ramp_low, ramp_high;
        int64_t sections[4];
        float direction; /* -1 turns backwards */
        const float *factors;
};

static bool has_factors(const struct hr_step *step) {
        return step->source_count > 2 && !cpu_is_absent(&step->sources[2]);
}

static int64_t rope_pairs(const struct hr_step *step) {
        int64_t dims = step->params[1];

        return step->params[2] == MODE_VISION ? dims : dims / 2;
}

static bool rope_supports(const struct hr_step *step) {
        const struct hr_operand *x = &step->sources[0], *positions = &step->sources[1];
        int64_t dims = step->params[1], offset = step->params[15];
        int32_t mode = step->params[2];
        bool is_multi = (mode & MODE_MROPE) != 0;

        if (step->source_count < 2 || (x->type != HR_TYPE_F32 && x->type != HR_TYPE_F16) ||
            step->result.type != x->type || !cpu_same_shape(x, &step->result) ||
            !cpu_has_dense_rows(x) || !cpu_has_dense_rows(&step->result))
                return false;
        if (mode != 0 && mode != MODE_NEOX && mode != MODE_MROPE && mode != MODE_VISION &&
            mode != MODE_IMROPE)
                return false;
        if (dims < 2 || dims % 2 || offset < 0 || offset + dims > x->ne[0] ||
            (mode == MODE_VISION && (dims * 2 != x->ne[0] || offset)))
                return false;
        if (positions->type != HR_TYPE_I32 || positions->ne[0] < x->ne[2] * (is_multi ? 4 : 1) ||
            !cpu_has_dense_rows(positions))
                return false;
        return !has_factors(step) || (step->sources[2].type == HR_TYPE_F32 &&
                                      step->sources[2].ne[0] >= rope_pairs(step) &&
                                      cpu_has_dense_rows(&step->sources[2]));
}

/* Per thread: cosines, sines and one row. */
static uint64_t rope_thread_floats(const struct hr_step *step) {
        uint64_t floats = 2 * (uint64_t) rope_pairs(step) + (uint64_t) step->result.ne[0];

        return (floats + 15) / 16 * 16;
}

static uint64_t rope_scratch(const struct hr_step *step, uint32_t threads) {
        return cpu_times(cpu_times(rope_thread_floats(step), sizeof(float)), threads);
}

static uint32_t rope_threads(const struct hr_step *step) {
        uint32_t threads = cpu_threads_for(cpu_elements(&step->result), 16);
        int64_t tokens = step->result.ne[2] * step->result.ne[3];

        return tokens < (int64_t) threads ? (uint32_t) HR_MAX(tokens, 1) : threads;
}

/* The pair at which `rotations` turns fit the original context: YaRN's correction. */
static float yarn_pair(int64_t dims, int32_t context, float rotations, float base) {
        return (float) dims *
               logf((float) context / (rotations * 2.0f * (float) M_PI)) / (2.0f * logf(base));
}

static struct rope rope_init(const struct hr_step *step) {
        const int32_t *params = step->params;
        float base = hr_param_f32(params, 5);
        struct rope rope = {
                .dims = params[1],
                .pairs = rope_pairs(step),
                .offset = params[15],
                .mode = params[2],
                .freq_scale = hr_param_f32(params, 6),
                .ext_factor = hr_param_f32(params, 7),
                .magnitude = hr_param_f32(params, 8),
                .theta_scale = powf(base, -2.0f / (float) params[1]),
                .direction = step->op == HR_OP_ROPE_BACK ? -1.0f : 1.0f,
        };
        float low = floorf(yarn_pair(rope.dims, params[4], hr_param_f32(params, 9), base));
        float high = ceilf(yarn_pair(rope.dims, params[4], hr_param_f32(params, 10), base));

        rope.ramp_low = fmaxf(0.0f, low);
        rope.ramp_high = fminf((float) (rope.dims - 1), high);
        if (rope.ext_factor != 0.0f)
                rope.magnitude *= 1.0f + 0.1f * logf(1.0f / rope.freq_scale);
        for (int i = 0; i < 4; i++)
                rope.sections[i] = params[11 + i];
        if (has_factors(step))
                rope.factors = step->sources[2].data;
        return rope;
}

static void rope_angle(const struct rope *rope, int64_t pair, float theta, float *ret_cosine,
                       float *ret_sine) {
        float turned, cosine, sine;

        if (rope->factors)
                theta /= rope->factors[pair];
        turned = rope->freq_scale * theta;
        if (rope->ext_factor != 0.0f) {
                float y = ((float) pair - rope->ramp_low) /
                          fmaxf(0.001f, rope->ramp_high - rope->ramp_low);
                float mix = (1.0f - fminf(1.0f, fmaxf(0.0f, y))) * rope->ext_factor;

                turned = turned * (1.0f - mix) + theta * mix;
        }
        sincosf(turned, &sine, &cosine);
        *ret_cosine = cosine * rope->magnitude;
        *ret_sine = sine * rope->magnitude * rope->direction;
}

static void angles_plain(const struct rope *rope, const int32_t *position, float *cosines,
                         float *sines) {
        float theta = (float) *position;

        for (int64_t pair = 0; pair < rope->pairs; pair++) {
                rope_angle(rope, pair, theta, &cosines[pair], &sines[pair]);
                theta *= rope->theta_scale;
        }
}

/* Which of the four positions (time, height, width, extra) pair `sector` of a period follows. */
static int sector_axis(const struct rope *rope, int64_t sector) {
        const int64_t *sections = rope->sections;

        if (rope->mode == MODE_IMROPE) {
                int axis = (int) (sector % 3);

                return sector < 3 * sections[axis] ? axis : 3;
        }
        if (sector < sections[0])
                return 0;
        if (sector < sections[0] + sections[1])
                return 1;
        return sector < sections[0] + sections[1] + sections[2] ? 2 : 3;
}

static void angles_sections(const struct rope *rope, const int32_t *positions, int64_t tokens,
                            float *cosines, float *sines) {
        int64_t period = 0, start[4];
        float base[4], theta[4];

        for (int i = 0; i < 4; i++) {
                base[i] = theta[i] = (float) positions[i * tokens];
                start[i] = period;
                period += rope->sections[i];
        }
        for (int64_t pair = 0; pair < rope->pairs; pair++) {
                int64_t sector = pair % period;

                if (rope->mode == MODE_VISION)
                        for (int i = 0; i < 4; i++)
                                if (sector == start[i]) {
                                        theta[i] = base[i];
                                        break; /* where an empty section starts, it alone does */
                                }
                rope_angle(rope, pair, theta[sector_axis(rope, sector)], &cosines[pair],
                           &sines[pair]);
                for (int i = 0; i < 4; i++)
                        theta[i] *= rope->theta_scale;
        }
}

static void rope_row(const struct cpu_vec *vec, const struct rope *rope, int64_t n, float *out,
                     const float *in, const float *cosines, const float *sines) {
        int64_t offset = rope->offset, end = offset + rope->dims;

        if (rope->mode == MODE_VISION)
                end = n;
        if (rope->mode == 0)
                vec->rotate(rope->pairs, 2, 1, out + offset, in + offset, cosines, sines);
        else
                vec->rotate(rope->pairs, 1, rope->pairs, out + offset, in + offset, cosines,
                            sines);
        if (out != in) {
                memcpy(out, in, (size_t) offset * sizeof *out);
                memcpy(out + end, in + end, (size_t) (n - end) * sizeof *out);
        }
}

static void rope_token(const struct cpu_call *call, const struct rope *rope, int64_t i2,
                       int64_t i3, float *scratch) {
        const struct hr_step *step = call->step;
        const struct hr_operand *result = &step->result, *x = &step->sources[0];
        const int32_t *positions = step->sources[1].data;
        float *cosines = scratch, *sines = scratch + rope->pairs;
        float *wide = scratch + 2 * rope->pairs;
        int64_t n = result->ne[0];

        if (rope->mode & MODE_MROPE)
                angles_sections(rope, positions + i2, x->ne[2], cosines, sines);
        else
                angles_plain(rope, positions + i2, cosines, sines);
        for (int64_t i1 = 0; i1 < result->ne[1]; i1++) {
                void *out = cpu_row(result, i1, i2, i3);
                const void *in = cpu_row(x, i1, i2, i3);

                if (result->type == HR_TYPE_F32) {
                        rope_row(call->vec, rope, n, out, in, cosines, sines);
                        continue;
                }
                call->vec->f16_to_f32(n, wide, in);
                rope_row(call->vec, rope, n, wide, wide, cosines, sines);
                call->vec->f32_to_f16(n, out, wide);
        }
}

static void rope_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        float *scratch = (float *) (void *) call->scratch +
                         rope_thread_floats(call->step) * call->thread;
        struct rope rope = rope_init(call->step);
        int64_t first, end;

        if ((rope.mode & MODE_MROPE) && rope.sections[0] + rope.sections[1] + rope.sections[2] +
                                                        rope.sections[3] <= 0)
                return;
        cpu_share(call, result->ne[2] * result->ne[3], 1, &first, &end);
        for (int64_t item = first; item < end; item++)
                rope_token(call, &rope, item % result->ne[2], item / result->ne[2], scratch);
}

const struct cpu_kernel cpu_kernel_rope = {
        .supports = rope_supports,
        .scratch = rope_scratch,
        .threads_max = rope_threads,
        .run = rope_run,
};
