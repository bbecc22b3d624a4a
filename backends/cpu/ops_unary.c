/*
 * Functions of one element: UNARY, SQR, SQRT, LOG, SIN, COS, SCALE, CLAMP, LEAKY_RELU, FILL. In
 * f32, rounded once to the type of the result; any float type, any strides, in place or not.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

static bool map_supports(const struct hr_step *step) {
        return step->source_count == 1 && cpu_is_float(step->sources[0].type) &&
               cpu_is_float(step->result.type) &&
               cpu_same_shape(&step->sources[0], &step->result);
}

/* Costs per element in sixteenths of a nanosecond, rounded up: they decide on waking others
 * only. */
static uint32_t light_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 2);
}

static uint32_t heavy_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 24);
}

static void map_run(const struct cpu_call *call, cpu_map_fn fn) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        bool is_flat = cpu_is_contiguous(source) && cpu_is_contiguous(result);
        struct cpu_walk walk = cpu_walk_start(call, is_flat);
        float in_buffer[CPU_CHUNK], out_buffer[CPU_CHUNK];
        struct cpu_piece piece;

        while (cpu_walk_next(&walk, &piece)) {
                uint8_t *row = cpu_row_at(result, piece.index);
                float *out = cpu_target(result, row, piece.first, out_buffer);
                const float *in = cpu_load(call->vec, source, cpu_row_at(source, piece.index),
                                           piece.first, piece.n, in_buffer);

                fn(call, piece.n, out, in);
                cpu_store(call->vec, result, row, piece.first, piece.n, out);
        }
}

/* ---- UNARY ----------------------------------------------------------------------------------- */

static bool unary_supports(const struct hr_step *step) {
        return map_supports(step) && step->params[0] >= 0 && step->params[0] < HR_UNARY_COUNT;
}

static void unary_piece(const struct cpu_call *call, int64_t n, float *out, const float *in) {
        const int32_t *params = call->step->params;

        if (params[0] == HR_UNARY_XIELU)
                call->vec->xielu(n, out, in, hr_param_f32(params, 1), hr_param_f32(params, 2),
                                 hr_param_f32(params, 3), hr_param_f32(params, 4));
        else
                call->vec->unary[params[0]](n, out, in);
}

static void unary_run(const struct cpu_call *call) {
        map_run(call, unary_piece);
}

const struct cpu_kernel cpu_kernel_unary = {
        .supports = unary_supports,
        .threads_max = heavy_threads,
        .run = unary_run,
};

/* ---- SQR SQRT LOG SIN COS -------------------------------------------------------------------- */

static void math_piece(const struct cpu_call *call, int64_t n, float *out, const float *in) {
        switch (call->step->op) {
        case HR_OP_SQR:
                call->vec->sqr(n, out, in);
                break;
        case HR_OP_SQRT:
                call->vec->sqrt(n, out, in);
                break;
        case HR_OP_LOG:
                call->vec->log(n, out, in);
                break;
        case HR_OP_SIN:
                call->vec->sin(n, out, in);
                break;
        default:
                call->vec->cos(n, out, in);
                break;
        }
}

static void math_run(const struct cpu_call *call) {
        map_run(call, math_piece);
}

const struct cpu_kernel cpu_kernel_math = {
        .supports = map_supports,
        .threads_max = heavy_threads,
        .run = math_run,
};

/* ---- SCALE CLAMP LEAKY_RELU ------------------------------------------------------------------ */

static void scale_piece(const struct cpu_call *call, int64_t n, float *out, const float *in) {
        call->vec->scale(n, out, in, hr_param_f32(call->step->params, 0),
                         hr_param_f32(call->step->params, 1));
}

static void scale_run(const struct cpu_call *call) {
        map_run(call, scale_piece);
}

const struct cpu_kernel cpu_kernel_scale = {
        .supports = map_supports,
        .threads_max = light_threads,
        .run = scale_run,
};

static void clamp_piece(const struct cpu_call *call, int64_t n, float *out, const float *in) {
        call->vec->clamp(n, out, in, hr_param_f32(call->step->params, 0),
                         hr_param_f32(call->step->params, 1));
}

static void clamp_run(const struct cpu_call *call) {
        map_run(call, clamp_piece);
}

const struct cpu_kernel cpu_kernel_clamp = {
        .supports = map_supports,
        .threads_max = light_threads,
        .run = clamp_run,
};

static void leaky_relu_piece(const struct cpu_call *call, int64_t n, float *out, const float *in) {
        call->vec->leaky_relu(n, out, in, hr_param_f32(call->step->params, 0));
}

static void leaky_relu_run(const struct cpu_call *call) {
        map_run(call, leaky_relu_piece);
}

const struct cpu_kernel cpu_kernel_leaky_relu = {
        .supports = map_supports,
        .threads_max = light_threads,
        .run = leaky_relu_run,
};

/* ---- FILL ------------------------------------------------------------------------------------ */

static void fill_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        struct cpu_walk walk = cpu_walk_start(call, cpu_is_contiguous(result));
        float values[CPU_CHUNK];
        struct cpu_piece piece;

        for (int64_t i = 0; i < CPU_CHUNK; i++)
                values[i] = hr_param_f32(call->step->params, 0);
        while (cpu_walk_next(&walk, &piece)) {
                uint8_t *row = cpu_row_at(result, piece.index);

                cpu_store(call->vec, result, row, piece.first, piece.n, values);
        }
}

const struct cpu_kernel cpu_kernel_fill = {
        .supports = map_supports,
        .threads_max = light_threads,
        .run = fill_run,
};

/* ---- For chains ------------------------------------------------------------------------------ */

cpu_map_fn cpu_map_find(uint32_t op) {
        switch (op) {
        case HR_OP_UNARY:
                return unary_piece;
        case HR_OP_SQR:
        case HR_OP_SQRT:
        case HR_OP_LOG:
        case HR_OP_SIN:
        case HR_OP_COS:
                return math_piece;
        case HR_OP_SCALE:
                return scale_piece;
        case HR_OP_CLAMP:
                return clamp_piece;
        case HR_OP_LEAKY_RELU:
                return leaky_relu_piece;
        default:
                return NULL;
        }
}
