/*
 * SOFT_MAX(scale x + slope mask) with optional sinks, and the two diagonal masks.
 *
 * The mask has one plane per head or batch, repeated; it may hold more rows than x. ALiBi gives
 * head h a slope by which its mask is multiplied. A sink is one more logit of its head that joins
 * maximum and denominator but has no column. A row whose logits are all -inf yields NaN, as the
 * definition does.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

#include <math.h>
#include <string.h>

static const struct hr_operand *optional_source(const struct hr_step *step, uint32_t position) {
        if (step->source_count <= position || cpu_is_absent(&step->sources[position]))
                return NULL;
        return &step->sources[position];
}

static bool soft_max_supports(const struct hr_step *step) {
        const struct hr_operand *x = &step->sources[0], *mask, *sinks;

        if (step->source_count < 1 || x->type != HR_TYPE_F32 || step->result.type != HR_TYPE_F32 ||
            !cpu_same_shape(x, &step->result) || !cpu_has_dense_rows(x) ||
            !cpu_has_dense_rows(&step->result))
                return false;
        mask = optional_source(step, 1);
        sinks = optional_source(step, 2);
        if (mask && ((mask->type != HR_TYPE_F32 && mask->type != HR_TYPE_F16) ||
                     !cpu_has_dense_rows(mask) || mask->ne[0] != x->ne[0] ||
                     mask->ne[1] < x->ne[1] || mask->ne[2] < 1 || mask->ne[3] < 1 ||
                     x->ne[2] % mask->ne[2] || x->ne[3] % mask->ne[3]))
                return false;
        return !sinks || (sinks->type == HR_TYPE_F32 && sinks->ne[0] == x->ne[2] &&
                          cpu_has_dense_rows(sinks));
}

static uint32_t soft_max_threads(const struct hr_step *step) {
        uint32_t threads = cpu_threads_for(cpu_elements(&step->result), 20);
        int64_t rows = cpu_rows(&step->result);

        return rows < (int64_t) threads ? (uint32_t) HR_MAX(rows, 1) : threads;
}

static float alibi_slope(float max_bias, int64_t heads, int64_t head) {
        double power = exp2(floor(log2((double) heads)));
        float base, half;

        if (max_bias <= 0.0f)
                return 1.0f;
        base = powf(2.0f, -max_bias / (float) power);
        half = powf(2.0f, -(max_bias / 2.0f) / (float) power);
        return (double) head < power ? powf(base, (float) (head + 1))
                                     : powf(half, (float) (2 * (head - (int64_t) power) + 1));
}

static void add_mask(const struct cpu_vec *vec, const struct hr_operand *mask, const uint8_t *row,
                     float slope, int64_t n, float *out) {
        float buffer[CPU_CHUNK];

        for (int64_t first = 0; first < n; first += CPU_CHUNK) {
                int64_t count = HR_MIN(n - first, (int64_t) CPU_CHUNK);

                vec->add_scaled(count, out + first,
                                cpu_load(vec, mask, row, first, count, buffer), slope);
        }
}

static void soft_max_run(const struct cpu_call *call) {
        const struct hr_step *step = call->step;
        const struct hr_operand *result = &step->result, *x = &step->sources[0];
        const struct hr_operand *mask = optional_source(step, 1), *sinks = optional_source(step, 2);
        float scale = hr_param_f32(step->params, 0), max_bias = hr_param_f32(step->params, 1);
        const struct cpu_vec *vec = call->vec;
        int64_t n = x->ne[0], first, end;

        cpu_share(call, cpu_rows(x), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(x, row);
                float *out = (float *) (void *) cpu_row_at(result, index);
                float most, sink = 0;
                double sum;

                vec->scale(n, out, (const float *) (const void *) cpu_row_at(x, index), scale,
                           0.0f);
                if (mask)
                        add_mask(vec, mask,
                                 cpu_row(mask, index.i1, index.i2 % mask->ne[2],
                                         index.i3 % mask->ne[3]),
                                 alibi_slope(max_bias, x->ne[2], index.i2), n, out);
                most = vec->max(n, out);
                if (sinks) {
                        sink = ((const float *) sinks->data)[index.i2];
                        most = fmaxf(most, sink);
                }
                sum = vec->exp_sum(n, out, out, most);
                if (sinks)
                        sum += (double) expf(sink - most);
                vec->scale(n, out, out, (float) (1.0 / sum), 0.0f);
        }
}

const struct cpu_kernel cpu_kernel_soft_max = {
        .supports = soft_max_supports,
        .threads_max = soft_max_threads,
        .run = soft_max_run,
};

/* ---- DIAG_MASK_INF, DIAG_MASK_ZERO ----------------------------------------------------------- */

static bool diag_mask_supports(const struct hr_step *step) {
        return step->source_count == 1 && cpu_is_float(step->sources[0].type) &&
               cpu_is_float(step->result.type) &&
               cpu_same_shape(&step->sources[0], &step->result);
}

static void diag_mask_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        float value = call->step->op == HR_OP_DIAG_MASK_INF ? -INFINITY : 0.0f;
        float in_buffer[CPU_CHUNK], out_buffer[CPU_CHUNK];
        struct cpu_walk walk = cpu_walk_start(call, false);
        struct cpu_piece piece;

        while (cpu_walk_next(&walk, &piece)) {
                uint8_t *row = cpu_row_at(result, piece.index);
                float *out = cpu_target(result, row, piece.first, out_buffer);
                const float *in = cpu_load(call->vec, source, cpu_row_at(source, piece.index),
                                           piece.first, piece.n, in_buffer);
                int64_t kept = (int64_t) call->step->params[0] + piece.index.i1 + 1 - piece.first;

                kept = HR_MAX(HR_MIN(kept, piece.n), (int64_t) 0);
                memmove(out, in, (size_t) kept * sizeof *out);
                for (int64_t i = kept; i < piece.n; i++)
                        out[i] = value;
                cpu_store(call->vec, result, row, piece.first, piece.n, out);
        }
}

const struct cpu_kernel cpu_kernel_diag_mask = {
        .supports = diag_mask_supports,
        .threads_max = soft_max_threads,
        .run = diag_mask_run,
};
