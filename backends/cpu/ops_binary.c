/*
 * ADD, SUB, MUL, DIV, ADD1, ADD_ID: source 0 and a broadcast source 1, in f32, rounded once to the
 * type of the result. Any mix of float types, any strides. ADD also onto block types.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/matrix/dot.h"
#include "backends/cpu/ops.h"

#include <string.h>

/* ADD onto a block type: expanded, added, encoded again. */
static bool is_block_add(const struct hr_step *step) {
        uint32_t type = step->sources[0].type;
        const struct cpu_dot *dot;

        if (step->op != HR_OP_ADD || !hr_type_info(type)->is_block)
                return false;
        dot = cpu_dot_select("portable");
        return dot->dequantize[type] && dot->quantize[type] && step->result.type == type &&
               CPU_CHUNK % cpu_block_elements(type) == 0 &&
               cpu_has_dense_rows(&step->sources[0]) && cpu_has_dense_rows(&step->result);
}

static bool binary_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];

        if (step->source_count == 2 && is_block_add(step))
                return cpu_is_float(b->type) && cpu_same_shape(a, &step->result) &&
                       cpu_repeats(b, a);
        return step->source_count == 2 && cpu_is_float(a->type) && cpu_is_float(b->type) &&
               cpu_is_float(step->result.type) && cpu_same_shape(a, &step->result) &&
               cpu_repeats(b, a);
}

static uint32_t binary_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 2);
}

cpu_vec_binary_fn cpu_binary_find(const struct cpu_vec *vec, uint32_t op) {
        switch (op) {
        case HR_OP_ADD:
        case HR_OP_ADD1:
                return vec->binary[CPU_VEC_ADD];
        case HR_OP_SUB:
                return vec->binary[CPU_VEC_SUB];
        case HR_OP_MUL:
                return vec->binary[CPU_VEC_MUL];
        case HR_OP_DIV:
                return vec->binary[CPU_VEC_DIV];
        default:
                return NULL;
        }
}

const float *cpu_load_repeated(const struct cpu_vec *vec, const struct hr_operand *operand,
                               const uint8_t *row, int64_t first, int64_t n, float *buffer) {
        int64_t period = operand->ne[0], at = first % period;
        float one;

        if (period == 1) {
                float value = *cpu_load(vec, operand, row, 0, 1, &one);

                for (int64_t i = 0; i < n; i++)
                        buffer[i] = value;
                return buffer;
        }
        for (int64_t done = 0; done < n;) {
                int64_t count = HR_MIN(n - done, period - at);
                const float *from = cpu_load(vec, operand, row, at, count, buffer + done);

                if (from != buffer + done)
                        memcpy(buffer + done, from, (size_t) count * sizeof *from);
                done += count;
                at = 0;
        }
        return buffer;
}

static void block_add_run(const struct cpu_call *call) {
        const struct hr_step *step = call->step;
        const struct hr_operand *result = &step->result, *a = &step->sources[0],
                                *b = &step->sources[1];
        uint32_t unit = cpu_block_elements(a->type), bytes = cpu_element_bytes(a->type);
        struct cpu_walk walk = cpu_walk_start(call, false);
        float sum[CPU_CHUNK], b_buffer[CPU_CHUNK];
        struct cpu_piece piece;

        while (cpu_walk_next(&walk, &piece)) {
                uint64_t offset = (uint64_t) (piece.first / unit) * bytes;
                const float *y = cpu_load_repeated(call->vec, b, cpu_row_modulo(b, piece.index),
                                               piece.first, piece.n, b_buffer);

                call->dot->dequantize[a->type](cpu_row_at(a, piece.index) + offset, sum, piece.n);
                call->vec->binary[CPU_VEC_ADD](piece.n, sum, sum, y);
                call->dot->quantize[a->type](sum, cpu_row_at(result, piece.index) + offset,
                                             piece.n);
        }
}

static void float_run(const struct cpu_call *call) {
        const struct hr_step *step = call->step;
        const struct hr_operand *result = &step->result, *a = &step->sources[0],
                                *b = &step->sources[1];
        cpu_vec_binary_fn function = cpu_binary_find(call->vec, step->op);
        bool is_flat = cpu_same_shape(a, b) && cpu_is_contiguous(a) && cpu_is_contiguous(b) &&
                       cpu_is_contiguous(result);
        struct cpu_walk walk = cpu_walk_start(call, is_flat);
        float a_buffer[CPU_CHUNK], b_buffer[CPU_CHUNK], out_buffer[CPU_CHUNK];
        struct cpu_piece piece;

        while (cpu_walk_next(&walk, &piece)) {
                uint8_t *row = cpu_row_at(result, piece.index);
                const uint8_t *b_row = cpu_row_modulo(b, piece.index);
                float *out = cpu_target(result, row, piece.first, out_buffer);
                const float *x = cpu_load(call->vec, a, cpu_row_at(a, piece.index), piece.first,
                                          piece.n, a_buffer);
                const float *y;

                if (is_flat || b->ne[0] == a->ne[0])
                        y = cpu_load(call->vec, b, b_row, piece.first, piece.n, b_buffer);
                else
                        y = cpu_load_repeated(call->vec, b, b_row, piece.first, piece.n, b_buffer);
                function(piece.n, out, x, y);
                cpu_store(call->vec, result, row, piece.first, piece.n, out);
        }
}

static void binary_run(const struct cpu_call *call) {
        if (is_block_add(call->step))
                block_add_run(call);
        else
                float_run(call);
}

const struct cpu_kernel cpu_kernel_binary = {
        .supports = binary_supports,
        .threads_max = binary_threads,
        .run = binary_run,
};

/* ---- ADD_ID: a[e, u, t] + b[e, ids[u, t]] ---------------------------------------------------- */

static bool add_id_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1],
                                *ids = &step->sources[2];

        return step->source_count == 3 && cpu_is_float(a->type) && cpu_is_float(b->type) &&
               ids->type == HR_TYPE_I32 && cpu_is_float(step->result.type) &&
               cpu_same_shape(a, &step->result) && a->ne[0] == b->ne[0] &&
               ids->ne[0] == a->ne[1] && ids->ne[1] == a->ne[2] && a->ne[3] == 1;
}

static void add_id_run(const struct cpu_call *call) {
        const struct hr_step *step = call->step;
        const struct hr_operand *result = &step->result, *a = &step->sources[0],
                                *b = &step->sources[1], *ids = &step->sources[2];
        struct cpu_walk walk = cpu_walk_start(call, false);
        float a_buffer[CPU_CHUNK], b_buffer[CPU_CHUNK], out_buffer[CPU_CHUNK];
        struct cpu_piece piece;

        while (cpu_walk_next(&walk, &piece)) {
                uint8_t *row = cpu_row_at(result, piece.index);
                float *out = cpu_target(result, row, piece.first, out_buffer);
                const float *x, *y;
                int32_t id;

                memcpy(&id, cpu_row(ids, piece.index.i2, 0, 0) +
                                    (uint64_t) piece.index.i1 * ids->nb[0], sizeof id);
                if (id < 0 || id >= b->ne[1]) {
                        cpu_fail_index(call, "id", id, b->ne[1]);
                        return;
                }
                x = cpu_load(call->vec, a, cpu_row_at(a, piece.index), piece.first, piece.n,
                             a_buffer);
                y = cpu_load(call->vec, b, cpu_row(b, id, 0, 0), piece.first, piece.n, b_buffer);
                call->vec->binary[CPU_VEC_ADD](piece.n, out, x, y);
                cpu_store(call->vec, result, row, piece.first, piece.n, out);
        }
}

const struct cpu_kernel cpu_kernel_add_id = {
        .supports = add_id_supports,
        .threads_max = binary_threads,
        .run = add_id_run,
};
