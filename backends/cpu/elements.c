/* See elements.h: the common ground of the element-wise kernels. */
#include "backends/cpu/elements.h"

#include <string.h>

int64_t cpu_elements(const struct hr_operand *operand) {
        return operand->ne[0] * cpu_rows(operand);
}

int64_t cpu_rows(const struct hr_operand *operand) {
        return operand->ne[0] ? operand->ne[1] * operand->ne[2] * operand->ne[3] : 0;
}

bool cpu_is_empty(const struct hr_operand *operand) {
        return !operand->ne[0] || !operand->ne[1] || !operand->ne[2] || !operand->ne[3];
}

bool cpu_is_absent(const struct hr_operand *operand) {
        return operand->type == HR_OPERAND_ABSENT;
}

bool cpu_has_dense_rows(const struct hr_operand *operand) {
        return operand->ne[0] <= (int64_t) cpu_block_elements(operand->type) ||
               cpu_is_empty(operand) || operand->nb[0] == cpu_element_bytes(operand->type);
}

bool cpu_is_contiguous(const struct hr_operand *operand) {
        uint64_t expected = cpu_element_bytes(operand->type);

        if (cpu_is_empty(operand))
                return true;
        if (!cpu_has_dense_rows(operand))
                return false;
        expected *= (uint64_t) (operand->ne[0] / cpu_block_elements(operand->type));
        for (int i = 1; i < HR_DIMS; i++) {
                if (operand->ne[i] != 1 && operand->nb[i] != expected)
                        return false;
                expected *= (uint64_t) operand->ne[i];
        }
        return true;
}

bool cpu_same_shape(const struct hr_operand *a, const struct hr_operand *b) {
        return memcmp(a->ne, b->ne, sizeof a->ne) == 0;
}

bool cpu_same_strides(const struct hr_operand *a, const struct hr_operand *b) {
        return memcmp(a->nb, b->nb, sizeof a->nb) == 0;
}

bool cpu_repeats(const struct hr_operand *part, const struct hr_operand *whole) {
        if (cpu_is_empty(part))
                return cpu_is_empty(whole);
        for (int i = 0; i < HR_DIMS; i++)
                if (whole->ne[i] % part->ne[i] != 0)
                        return false;
        return true;
}

bool cpu_is_float(uint32_t type) {
        return type == HR_TYPE_F32 || type == HR_TYPE_F16 || type == HR_TYPE_BF16;
}

uint32_t cpu_element_bytes(uint32_t type) {
        return hr_type_info(type)->block_bytes;
}

uint32_t cpu_block_elements(uint32_t type) {
        return hr_type_info(type)->block_elements;
}

/* Elements that are not dense are first brought together. */
static const uint16_t *gather_16(const uint8_t *from, uint64_t stride, int64_t n, uint16_t *out) {
        if (stride == sizeof *out)
                return (const uint16_t *) (const void *) from;
        for (int64_t i = 0; i < n; i++)
                memcpy(&out[i], from + (uint64_t) i * stride, sizeof out[i]);
        return out;
}

const float *cpu_load(const struct cpu_vec *vec, const struct hr_operand *operand,
                      const uint8_t *row, int64_t first, int64_t n, float *buffer) {
        uint64_t stride = operand->nb[0];
        const uint8_t *from = row + (uint64_t) first * stride;
        uint16_t together[CPU_CHUNK];

        HR_ASSERT(n <= CPU_CHUNK);
        switch (operand->type) {
        case HR_TYPE_F16:
                vec->f16_to_f32(n, buffer, gather_16(from, stride, n, together));
                return buffer;
        case HR_TYPE_BF16:
                vec->bf16_to_f32(n, buffer, gather_16(from, stride, n, together));
                return buffer;
        default:
                HR_ASSERT(operand->type == HR_TYPE_F32);
                if (stride == sizeof(float))
                        return (const float *) (const void *) from;
                for (int64_t i = 0; i < n; i++)
                        memcpy(&buffer[i], from + (uint64_t) i * stride, sizeof buffer[i]);
                return buffer;
        }
}

float *cpu_target(const struct hr_operand *operand, uint8_t *row, int64_t first, float *buffer) {
        if (operand->type == HR_TYPE_F32 && operand->nb[0] == sizeof(float))
                return (float *) (void *) row + first;
        return buffer;
}

static void scatter(uint8_t *to, uint64_t stride, int64_t n, const void *values, size_t bytes) {
        for (int64_t i = 0; i < n; i++)
                memcpy(to + (uint64_t) i * stride, (const uint8_t *) values + (size_t) i * bytes,
                       bytes);
}

void cpu_store(const struct cpu_vec *vec, const struct hr_operand *operand, uint8_t *row,
               int64_t first, int64_t n, const float *values) {
        uint64_t stride = operand->nb[0];
        uint8_t *to = row + (uint64_t) first * stride;
        uint16_t together[CPU_CHUNK], *out;

        HR_ASSERT(n <= CPU_CHUNK);
        if (operand->type == HR_TYPE_F32) {
                if ((const uint8_t *) values != to)
                        scatter(to, stride, n, values, sizeof *values);
                return;
        }
        out = stride == sizeof *out ? (uint16_t *) (void *) to : together;
        if (operand->type == HR_TYPE_F16)
                vec->f32_to_f16(n, out, values);
        else
                vec->f32_to_bf16(n, out, values);
        if (out == together)
                scatter(to, stride, n, together, sizeof *together);
}

struct cpu_walk cpu_walk_start(const struct cpu_call *call, bool is_flat) {
        const struct hr_operand *result = &call->step->result;
        struct cpu_walk walk = { .result = result };
        int64_t rows = is_flat ? 1 : cpu_rows(result);

        walk.row_elements = is_flat ? cpu_elements(result) : result->ne[0];
        walk.chunks_per_row = (walk.row_elements + CPU_CHUNK - 1) / CPU_CHUNK;
        cpu_share(call, rows * walk.chunks_per_row, 1, &walk.chunk, &walk.end);
        return walk;
}

bool cpu_walk_next(struct cpu_walk *walk, struct cpu_piece *ret_piece) {
        int64_t row;

        if (walk->chunk >= walk->end)
                return false;
        row = walk->chunk / walk->chunks_per_row;
        ret_piece->first = (walk->chunk - row * walk->chunks_per_row) * CPU_CHUNK;
        ret_piece->n = HR_MIN(walk->row_elements - ret_piece->first, (int64_t) CPU_CHUNK);
        ret_piece->index = cpu_index_of_row(walk->result, row);
        walk->chunk++;
        return true;
}

uint32_t cpu_threads_for(int64_t elements, uint32_t ns_times_16) {
        /* A member that spins costs about a microsecond; it should save more than that. */
        uint64_t ns = (uint64_t) elements / 16 * ns_times_16;
        uint64_t threads = 1 + ns / 4000;

        return threads > UINT32_MAX ? UINT32_MAX : (uint32_t) threads;
}
