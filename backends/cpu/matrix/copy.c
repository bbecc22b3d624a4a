/*
 * CPY, CONT and DUP: the elements of a source, in its logical order, into a target of any layout.
 *
 * Both sides are walked in chunks of logical elements, whose starts are multiples of every block,
 * so that blocks are never torn. Equal types move as bytes, in units of blocks; others go through
 * f32. A conversion between block types goes through f32 too, where the target can be written.
 */
#include "backends/cpu/matrix/share.h"

#include "backends/cpu/matrix/half.h"

#define CHUNK 1024 /* elements; a multiple of every block */

static bool plain_convertible(uint32_t type) {
        return type == HR_TYPE_F32 || type == HR_TYPE_F16 || type == HR_TYPE_BF16 ||
               type == HR_TYPE_I32;
}

static bool copy_supports(const struct hr_step *step) {
        const struct hr_operand *from = &step->sources[0], *to = &step->result;
        const struct hr_type_info *source = hr_type_info(from->type);
        const struct hr_type_info *target = hr_type_info(to->type);
        const struct cpu_dot *dot = cpu_any_dot();

        if (!source || !target || source->block_elements > CHUNK || target->block_elements > CHUNK)
                return false;
        if ((source->is_block && from->nb[0] != source->block_bytes) ||
            (target->is_block && to->nb[0] != target->block_bytes))
                return false;
        if (from->type == to->type)
                return true;
        return (source->is_block ? dot->dequantize[from->type] != NULL
                                 : plain_convertible(from->type)) &&
               (target->is_block ? dot->quantize[to->type] != NULL : plain_convertible(to->type));
}

/* Where logical element `index` (a multiple of the block) lies, and how many elements follow it in
 * its row. */
static uint8_t *place_of(const struct hr_operand *operand, uint32_t block, int64_t index,
                         int64_t *ret_run) {
        int64_t i0 = index % operand->ne[0], rest = index / operand->ne[0];
        int64_t i1 = rest % operand->ne[1], i2 = rest / operand->ne[1] % operand->ne[2];
        int64_t i3 = rest / operand->ne[1] / operand->ne[2];

        *ret_run = operand->ne[0] - i0;
        return cpu_at(operand, i1, i2, i3) + (uint64_t) (i0 / block) * operand->nb[0];
}

static void move_units(uint8_t *to, uint64_t to_stride, const uint8_t *from, uint64_t from_stride,
                       int64_t count, uint32_t unit) {
        if (to_stride == unit && from_stride == unit) {
                memcpy(to, from, (size_t) count * unit);
                return;
        }
        for (int64_t i = 0; i < count; i++, to += to_stride, from += from_stride)
                switch (unit) {
                case 1:
                        *to = *from;
                        break;
                case 2:
                        memcpy(to, from, 2);
                        break;
                case 4:
                        memcpy(to, from, 4);
                        break;
                default:
                        memcpy(to, from, unit);
                        break;
                }
}

static void move_chunk(const struct hr_operand *from, const struct hr_operand *to, int64_t index,
                       int64_t count) {
        const struct hr_type_info *info = hr_type_info(from->type);

        while (count > 0) {
                int64_t from_run, to_run, run;
                const uint8_t *source = place_of(from, info->block_elements, index, &from_run);
                uint8_t *target = place_of(to, info->block_elements, index, &to_run);

                run = HR_MIN(count, HR_MIN(from_run, to_run));
                move_units(target, to->nb[0], source, from->nb[0], run / info->block_elements,
                           info->block_bytes);
                index += run;
                count -= run;
        }
}

static void read_plain(uint32_t type, const uint8_t *at, uint64_t stride, int64_t count,
                       float *ret_values) {
        for (int64_t i = 0; i < count; i++, at += stride)
                switch (type) {
                case HR_TYPE_F32:
                        ret_values[i] = cpu_bits_float(cpu_read_u32(at));
                        break;
                case HR_TYPE_F16:
                        ret_values[i] = cpu_read_half(at);
                        break;
                case HR_TYPE_BF16:
                        ret_values[i] = cpu_bf16_to_float(cpu_read_u16(at));
                        break;
                default:
                        ret_values[i] = (float) (int32_t) cpu_read_u32(at);
                        break;
                }
}

/* Towards zero; what does not fit gives the nearest end, no number gives 0. */
static int32_t to_integer(float value) {
        if (!(value >= -2147483648.0f))
                return value < 0 ? INT32_MIN : 0;
        return value < 2147483648.0f ? (int32_t) value : INT32_MAX;
}

static void write_plain(uint32_t type, uint8_t *at, uint64_t stride, int64_t count,
                        const float *values) {
        for (int64_t i = 0; i < count; i++, at += stride) {
                uint32_t bits = cpu_float_bits(values[i]);
                uint16_t half;

                switch (type) {
                case HR_TYPE_F32:
                        memcpy(at, &bits, sizeof bits);
                        break;
                case HR_TYPE_F16:
                case HR_TYPE_BF16:
                        half = type == HR_TYPE_F16 ? cpu_float_to_half(values[i])
                                                   : cpu_float_to_bf16(values[i]);
                        memcpy(at, &half, sizeof half);
                        break;
                default:
                        bits = (uint32_t) to_integer(values[i]);
                        memcpy(at, &bits, sizeof bits);
                        break;
                }
        }
}

static void convert_chunk(const struct cpu_dot *dot, const struct hr_operand *from,
                          const struct hr_operand *to, int64_t index, int64_t count) {
        const struct hr_type_info *source = hr_type_info(from->type);
        const struct hr_type_info *target = hr_type_info(to->type);
        float values[CHUNK];
        int64_t run;

        for (int64_t i = 0; i < count; i += run) {
                const uint8_t *at = place_of(from, source->block_elements, index + i, &run);

                run = HR_MIN(run, count - i);
                if (dot->dequantize[from->type] && from->nb[0] == source->block_bytes)
                        dot->dequantize[from->type](at, values + i, run);
                else
                        read_plain(from->type, at, from->nb[0], run, values + i);
        }
        for (int64_t i = 0; i < count; i += run) {
                uint8_t *at = place_of(to, target->block_elements, index + i, &run);

                run = HR_MIN(run, count - i);
                if (dot->quantize[to->type] && to->nb[0] == target->block_bytes)
                        dot->quantize[to->type](values + i, at, run);
                else
                        write_plain(to->type, at, to->nb[0], run, values + i);
        }
}

static void copy_run(const struct cpu_call *call) {
        const struct hr_operand *from = &call->step->sources[0], *to = &call->step->result;
        int64_t count = to->ne[0] * to->ne[1] * to->ne[2] * to->ne[3], first, end;

        cpu_share(call, count, CHUNK, &first, &end);
        for (; first < end; first += CHUNK) {
                int64_t size = HR_MIN((int64_t) CHUNK, end - first);

                if (from->type == to->type)
                        move_chunk(from, to, first, size);
                else
                        convert_chunk(call->dot, from, to, first, size);
        }
}

#define KERNEL(name) const struct cpu_kernel name = {.supports = copy_supports, .run = copy_run}

KERNEL(cpu_kernel_cpy);
KERNEL(cpu_kernel_cont);
KERNEL(cpu_kernel_dup);
