/*
 * CONCAT, REPEAT (any type, blocks included), REPEAT_BACK, SET and ACC.
 *
 * Units are blocks of the type (one element for plain types): dimension 0 is only ever cut between
 * them.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

#include <string.h>

static int64_t row_units(const struct hr_operand *operand) {
        return operand->ne[0] / cpu_block_elements(operand->type);
}

/* Copies `units` units; `stride` is the source's distance between them, the target is dense. */
static void copy_units(uint8_t *to, const uint8_t *from, int64_t units, uint64_t stride,
                       uint32_t unit_bytes) {
        if (stride == unit_bytes || units == 1) {
                memcpy(to, from, (size_t) units * unit_bytes);
                return;
        }
        for (int64_t i = 0; i < units; i++)
                memcpy(to + (uint64_t) i * unit_bytes, from + (uint64_t) i * stride, unit_bytes);
}

static uint32_t copy_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 4);
}

/* ---- CONCAT ---------------------------------------------------------------------------------- */

static bool concat_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];
        int32_t dim = step->params[0];

        if (step->source_count != 2 || dim < 0 || dim >= HR_DIMS || a->type != b->type ||
            a->type != step->result.type || !cpu_has_dense_rows(&step->result))
                return false;
        for (int i = 0; i < HR_DIMS; i++)
                if (i == dim ? a->ne[i] + b->ne[i] != step->result.ne[i]
                             : a->ne[i] != b->ne[i] || a->ne[i] != step->result.ne[i])
                        return false;
        return a->ne[0] % cpu_block_elements(a->type) == 0;
}

static void concat_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *a = &call->step->sources[0],
                                *b = &call->step->sources[1];
        int32_t dim = call->step->params[0];
        uint32_t bytes = cpu_element_bytes(result->type);
        int64_t first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                uint8_t *out = cpu_row_at(result, index);
                int64_t *along = dim == 1 ? &index.i1 : dim == 2 ? &index.i2 : &index.i3;

                if (dim == 0) {
                        if (a->ne[0])
                                copy_units(out, cpu_row_at(a, index), row_units(a), a->nb[0],
                                           bytes);
                        if (b->ne[0])
                                copy_units(out + (uint64_t) row_units(a) * bytes,
                                           cpu_row_at(b, index), row_units(b), b->nb[0], bytes);
                } else if (*along < a->ne[dim]) {
                        copy_units(out, cpu_row_at(a, index), row_units(a), a->nb[0], bytes);
                } else {
                        *along -= a->ne[dim];
                        copy_units(out, cpu_row_at(b, index), row_units(b), b->nb[0], bytes);
                }
        }
}

const struct cpu_kernel cpu_kernel_concat = {
        .supports = concat_supports,
        .threads_max = copy_threads,
        .run = concat_run,
};

/* ---- REPEAT ---------------------------------------------------------------------------------- */

static bool repeat_supports(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == step->result.type &&
               cpu_repeats(&step->sources[0], &step->result) &&
               cpu_has_dense_rows(&step->result);
}

static void repeat_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        int64_t units = row_units(source), tiles = result->ne[0] / source->ne[0], first, end;
        uint32_t bytes = cpu_element_bytes(result->type);

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                uint8_t *out = cpu_row_at(result, index);

                for (int64_t tile = 0; tile < tiles; tile++)
                        copy_units(out + (uint64_t) (tile * units) * bytes,
                                   cpu_row_modulo(source, index), units, source->nb[0], bytes);
        }
}

const struct cpu_kernel cpu_kernel_repeat = {
        .supports = repeat_supports,
        .threads_max = copy_threads,
        .run = repeat_run,
};

/* ---- REPEAT_BACK: the sum over the tiles ----------------------------------------------------- */

static bool repeat_back_supports(const struct hr_step *step) {
        return step->source_count == 1 && step->sources[0].type == HR_TYPE_F32 &&
               step->result.type == HR_TYPE_F32 && cpu_repeats(&step->result, &step->sources[0]) &&
               cpu_has_dense_rows(&step->result);
}

/* Adds the tiles of one row of the source. */
static void tiles_add(const struct cpu_call *call, const uint8_t *row, float *out) {
        const struct hr_operand *source = &call->step->sources[0];
        int64_t width = call->step->result.ne[0];
        float buffer[CPU_CHUNK];

        for (int64_t tile = 0; tile < source->ne[0]; tile += width)
                for (int64_t at = 0; at < width; at += CPU_CHUNK) {
                        int64_t n = HR_MIN(width - at, (int64_t) CPU_CHUNK);
                        const float *in = cpu_load(call->vec, source, row, tile + at, n, buffer);

                        call->vec->binary[CPU_VEC_ADD](n, out + at, out + at, in);
                }
}

static void repeat_back_row(const struct cpu_call *call, struct cpu_index index) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        float *out = (float *) (void *) cpu_row_at(result, index);

        memset(out, 0, (size_t) result->ne[0] * sizeof *out);
        if (cpu_is_empty(source))
                return;
        for (int64_t i3 = index.i3; i3 < source->ne[3]; i3 += result->ne[3])
                for (int64_t i2 = index.i2; i2 < source->ne[2]; i2 += result->ne[2])
                        for (int64_t i1 = index.i1; i1 < source->ne[1]; i1 += result->ne[1])
                                tiles_add(call, cpu_row(source, i1, i2, i3), out);
}

static void repeat_back_run(const struct cpu_call *call) {
        int64_t first, end;

        cpu_share(call, cpu_rows(&call->step->result), 1, &first, &end);
        for (int64_t row = first; row < end; row++)
                repeat_back_row(call, cpu_index_of_row(&call->step->result, row));
}

const struct cpu_kernel cpu_kernel_repeat_back = {
        .supports = repeat_back_supports,
        .threads_max = copy_threads,
        .run = repeat_back_run,
};

/* ---- SET, ACC: source 1 into, or onto, a strided window of a copy of source 0 ---------------- */

/* The window as an operand without address; false if it leaves the result. */
static bool set_window(const struct hr_step *step, struct hr_operand *ret_window,
                       uint64_t *ret_offset) {
        const struct hr_operand *part = &step->sources[1], *result = &step->result;
        uint64_t span = 0, room = cpu_element_bytes(result->type), offset;

        *ret_window = *part;
        ret_window->type = result->type;
        ret_window->nb[0] = cpu_element_bytes(result->type);
        for (int i = 0; i < 4; i++)
                if (step->params[i] < 0 || step->params[i] % (int32_t) ret_window->nb[0])
                        return false;
        for (int i = 1; i < HR_DIMS; i++)
                ret_window->nb[i] = (uint64_t) step->params[i - 1];
        offset = (uint64_t) step->params[3];
        for (int i = 0; i < HR_DIMS; i++) {
                uint64_t reach, have;

                if (part->ne[i] < 1 || result->ne[i] < 1)
                        return true; /* nothing to write */
                if (!hr_mul_u64((uint64_t) part->ne[i] - 1, ret_window->nb[i], &reach) ||
                    !hr_add_u64(span, reach, &span) ||
                    !hr_mul_u64((uint64_t) result->ne[i] - 1, result->nb[i], &have) ||
                    !hr_add_u64(room, have, &room))
                        return false;
        }
        *ret_offset = offset;
        return hr_add_u64(span, offset, &span) &&
               hr_add_u64(span, cpu_element_bytes(result->type), &span) && span <= room;
}

static bool set_supports(const struct hr_step *step) {
        const struct hr_operand *whole = &step->sources[0], *part = &step->sources[1];
        struct hr_operand window;
        uint64_t offset = 0;

        return step->source_count == 2 && part->type == whole->type &&
               whole->type == step->result.type && cpu_same_shape(whole, &step->result) &&
               (whole->type == HR_TYPE_F32 ||
                (step->op == HR_OP_SET && whole->type == HR_TYPE_I32)) &&
               cpu_is_contiguous(whole) && cpu_is_contiguous(&step->result) &&
               set_window(step, &window, &offset);
}

/* Rows of the window may overlap, so the order of writing matters: one thread. */
static uint32_t set_threads(const struct hr_step *step) {
        return 1;
}

static void set_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *whole = &call->step->sources[0],
                                *part = &call->step->sources[1];
        struct hr_operand window;
        uint64_t offset = 0;

        if (call->thread != 0)
                return;
        if (result->data != whole->data)
                memcpy(result->data, whole->data, (size_t) cpu_elements(whole) * sizeof(float));
        if (cpu_is_empty(part) || !set_window(call->step, &window, &offset))
                return;
        window.data = (uint8_t *) result->data + offset;
        for (int64_t row = 0; row < cpu_rows(part); row++) {
                struct cpu_index index = cpu_index_of_row(part, row);
                uint8_t *out = cpu_row_at(&window, index);
                const uint8_t *in = cpu_row_at(part, index);

                for (int64_t i = 0; i < part->ne[0]; i++) {
                        float value, sum;

                        if (call->step->op == HR_OP_SET) {
                                memmove(out + (size_t) i * sizeof value,
                                        in + (uint64_t) i * part->nb[0], sizeof value);
                                continue;
                        }
                        memcpy(&value, in + (uint64_t) i * part->nb[0], sizeof value);
                        memcpy(&sum, out + (size_t) i * sizeof sum, sizeof sum);
                        sum += value;
                        memcpy(out + (size_t) i * sizeof sum, &sum, sizeof sum);
                }
        }
}

const struct cpu_kernel cpu_kernel_set = {
        .supports = set_supports,
        .threads_max = set_threads,
        .run = set_run,
};
