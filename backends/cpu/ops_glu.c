/*
 * GLU: act(a) * gate. One source holds both halves of each row (first the activated one, exchanged
 * when `swapped`); two sources are taken as they are.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

static const int activations[HR_GLU_COUNT] = {
        [HR_GLU_REGLU] = HR_UNARY_RELU,
        [HR_GLU_GEGLU] = HR_UNARY_GELU,
        [HR_GLU_SWIGLU] = HR_UNARY_SILU,
        [HR_GLU_GEGLU_ERF] = HR_UNARY_GELU_ERF,
        [HR_GLU_GEGLU_QUICK] = HR_UNARY_GELU_QUICK,
};

static bool has_gate(const struct hr_step *step) {
        return step->source_count == 2 && !cpu_is_absent(&step->sources[1]);
}

static bool glu_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0];
        bool is_split = !has_gate(step);

        if (step->source_count < 1 || step->params[0] < 0 || step->params[0] >= HR_GLU_COUNT)
                return false;
        if (!cpu_is_float(a->type) || !cpu_is_float(step->result.type) ||
            a->ne[0] != step->result.ne[0] * (is_split ? 2 : 1))
                return false;
        for (int i = 1; i < HR_DIMS; i++)
                if (a->ne[i] != step->result.ne[i])
                        return false;
        return is_split || (cpu_is_float(step->sources[1].type) &&
                            cpu_same_shape(a, &step->sources[1]));
}

static uint32_t glu_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 24);
}

static void glu_run(const struct cpu_call *call) {
        const struct hr_step *step = call->step;
        const struct hr_operand *result = &step->result, *a = &step->sources[0];
        const struct hr_operand *gate = has_gate(step) ? &step->sources[1] : a;
        bool is_split = gate == a, is_swapped = step->params[1] != 0;
        /* `swapped` means the halves of one source; two sources come in order. */
        int64_t a_first = is_split && is_swapped ? result->ne[0] : 0;
        int64_t gate_first = is_split && !is_swapped ? result->ne[0] : 0;
        bool is_flat = !is_split && cpu_is_contiguous(a) && cpu_is_contiguous(gate) &&
                       cpu_is_contiguous(result);
        struct cpu_walk walk = cpu_walk_start(call, is_flat);
        float a_buffer[CPU_CHUNK], gate_buffer[CPU_CHUNK], out_buffer[CPU_CHUNK];
        struct cpu_piece piece;

        while (cpu_walk_next(&walk, &piece)) {
                uint8_t *row = cpu_row_at(result, piece.index);
                float *out = cpu_target(result, row, piece.first, out_buffer);
                const float *x = cpu_load(call->vec, a, cpu_row_at(a, piece.index),
                                          a_first + piece.first, piece.n, a_buffer);
                const float *y = cpu_load(call->vec, gate, cpu_row_at(gate, piece.index),
                                          gate_first + piece.first, piece.n, gate_buffer);

                if (step->params[0] == HR_GLU_SWIGLU_OAI) {
                        call->vec->swiglu_oai(piece.n, out, x, y, hr_param_f32(step->params, 2),
                                              hr_param_f32(step->params, 3));
                } else {
                        call->vec->unary[activations[step->params[0]]](piece.n, out_buffer, x);
                        call->vec->binary[CPU_VEC_MUL](piece.n, out, out_buffer, y);
                }
                cpu_store(call->vec, result, row, piece.first, piece.n, out);
        }
}

const struct cpu_kernel cpu_kernel_glu = {
        .supports = glu_supports,
        .threads_max = glu_threads,
        .run = glu_run,
};
