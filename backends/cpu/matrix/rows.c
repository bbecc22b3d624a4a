/*
 * GET_ROWS and SET_ROWS: rows picked by index.
 *
 * Every index is checked against the rows there are; a bad one fails the run and its row is left
 * out. SET_ROWS gives each destination row to one thread, chosen by the index, so that a row named
 * twice ends with the later value and threads never write the same bytes.
 */
#include "backends/cpu/matrix/share.h"

static bool index_of(const struct cpu_call *call, const struct hr_operand *ids, int64_t i0,
                     int64_t i1, int64_t i2, int64_t limit, int64_t *ret_row) {
        const uint8_t *at = cpu_at(ids, i1, i2, 0) + (uint64_t) i0 * ids->nb[0];
        int64_t row;

        if (ids->type == HR_TYPE_I32) {
                int32_t narrow;

                memcpy(&narrow, at, sizeof narrow);
                row = narrow;
        } else {
                memcpy(&row, at, sizeof row);
        }
        if (row < 0 || row >= limit) {
                cpu_fail_index(call, "row id", row, limit);
                return false;
        }
        *ret_row = row;
        return true;
}

static bool get_rows_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *out = &step->result;
        const struct hr_type_info *info = hr_type_info(a->type);

        if (!info || a->nb[0] != info->block_bytes || step->sources[1].type != HR_TYPE_I32)
                return false;
        if (a->type == HR_TYPE_I32)
                return out->type == HR_TYPE_I32 && out->nb[0] == sizeof(int32_t);
        return cpu_any_dot()->dequantize[a->type] && out->type == HR_TYPE_F32 &&
               out->nb[0] == sizeof(float);
}

static void get_rows_run(const struct cpu_call *call) {
        const struct hr_operand *a = &call->step->sources[0], *ids = &call->step->sources[1];
        const struct hr_operand *out = &call->step->result;
        int64_t rows = ids->ne[0] * ids->ne[1] * ids->ne[2], first, end, row;

        cpu_share(call, rows, 1, &first, &end);
        for (int64_t i = first; i < end; i++) {
                int64_t i0 = i % ids->ne[0], i1 = i / ids->ne[0] % ids->ne[1];
                int64_t i2 = i / ids->ne[0] / ids->ne[1];
                const uint8_t *from;
                uint8_t *to = cpu_at(out, i0, i1, i2);

                if (!index_of(call, ids, i0, i1, i2, a->ne[1], &row))
                        continue;
                from = cpu_at(a, row, i1, i2);
                if (a->type == HR_TYPE_I32)
                        memcpy(to, from, (size_t) a->ne[0] * sizeof(int32_t));
                else
                        call->dot->dequantize[a->type](from, (float *) (void *) to, a->ne[0]);
        }
}

const struct cpu_kernel cpu_kernel_get_rows = {
        .supports = get_rows_supports,
        .run = get_rows_run,
};

static bool set_rows_supports(const struct hr_step *step) {
        const struct hr_operand *values = &step->sources[0], *ids = &step->sources[1];
        const struct hr_type_info *info = hr_type_info(step->result.type);

        if (!info || !cpu_any_dot()->quantize[step->result.type] ||
            step->result.nb[0] != info->block_bytes)
                return false;
        return (values->type == HR_TYPE_F32 || values->type == HR_TYPE_F16) &&
               (ids->type == HR_TYPE_I32 || ids->type == HR_TYPE_I64);
}

static uint64_t set_rows_scratch(const struct hr_step *step, uint32_t threads) {
        uint64_t row = cpu_round_up(cpu_times((uint64_t) step->sources[0].ne[0], sizeof(float)));

        return cpu_times(row, threads);
}

static void set_rows_run(const struct cpu_call *call) {
        const struct hr_operand *values = &call->step->sources[0], *ids = &call->step->sources[1];
        const struct hr_operand *out = &call->step->result;
        uint64_t row_bytes = cpu_round_up((uint64_t) values->ne[0] * sizeof(float));
        float *spare = (float *) (void *) (call->scratch + row_bytes * call->thread);
        cpu_quantize_fn quantize = call->dot->quantize[out->type];
        int64_t row;

        for (int64_t i3 = 0; i3 < values->ne[3]; i3++)
                for (int64_t i2 = 0; i2 < values->ne[2]; i2++)
                        for (int64_t i1 = 0; i1 < values->ne[1]; i1++) {
                                const float *from;

                                if (!index_of(call, ids, i1, i2 % ids->ne[1], i3 % ids->ne[2],
                                              out->ne[1], &row))
                                        continue;
                                if ((uint64_t) (row + i2 + i3) % call->threads != call->thread)
                                        continue;
                                from = cpu_float_row(call->dot, values->type,
                                                     cpu_at(values, i1, i2, i3), values->nb[0],
                                                     values->ne[0], spare);
                                quantize(from, cpu_at(out, row, i2, i3), values->ne[0]);
                        }
}

const struct cpu_kernel cpu_kernel_set_rows = {
        .supports = set_rows_supports,
        .scratch = set_rows_scratch,
        .run = set_rows_run,
};
