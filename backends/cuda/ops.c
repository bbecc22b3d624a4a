/* What all operators share. See ops.h. */
#include "backends/cuda/ops.h"

#include <string.h>

bool cuda_has(const struct hr_step *step, uint32_t position) {
        return step->source_count > position && step->sources[position].type != HR_OPERAND_ABSENT;
}

bool cuda_is_float(const struct hr_operand *operand) {
        return operand->type == HR_TYPE_F32 || operand->type == HR_TYPE_F16 ||
               operand->type == HR_TYPE_BF16;
}

bool cuda_is_block(const struct hr_operand *operand) {
        const struct hr_type_info *info = hr_type_info(operand->type);

        /* Q8_1 and Q8_K are of activations alone. */
        return info && info->is_block && operand->type != HR_TYPE_Q8_1 &&
               operand->type != HR_TYPE_Q8_K;
}

bool cuda_is_encoded(const struct hr_operand *operand) {
        switch (operand->type) {
        case HR_TYPE_IQ1_S:
        case HR_TYPE_IQ1_M:
        case HR_TYPE_IQ2_XXS:
        case HR_TYPE_IQ2_XS:
        case HR_TYPE_IQ2_S:
        case HR_TYPE_IQ3_XXS:
        case HR_TYPE_IQ3_S:
                return false;
        default:
                return cuda_is_block(operand);
        }
}

bool cuda_is_dense(const struct hr_operand *operand) {
        return operand->nb[0] == hr_type_info(operand->type)->block_bytes;
}

bool cuda_is_contiguous(const struct hr_operand *operand) {
        uint64_t bytes = hr_type_info(operand->type)->block_bytes;

        for (int i = 0; i < HR_DIMS; i++) {
                if (operand->ne[i] != 1 && operand->nb[i] != bytes)
                        return false;
                bytes *= (uint64_t) (i ? operand->ne[i]
                                       : operand->ne[i] /
                                                 hr_type_info(operand->type)->block_elements);
        }
        return true;
}

bool cuda_is_empty(const struct hr_operand *operand) {
        return !operand->ne[0] || !operand->ne[1] || !operand->ne[2] || !operand->ne[3];
}

bool cuda_same_shape(const struct hr_operand *a, const struct hr_operand *b) {
        return memcmp(a->ne, b->ne, sizeof a->ne) == 0;
}

bool cuda_repeats(const struct hr_operand *part, const struct hr_operand *whole) {
        for (int i = 0; i < HR_DIMS; i++)
                if (part->ne[i] <= 0 || whole->ne[i] % part->ne[i])
                        return false;
        return true;
}

int64_t cuda_rows(const struct hr_operand *operand) {
        return operand->ne[1] * operand->ne[2] * operand->ne[3];
}

uint32_t cuda_type_alignment(uint32_t type) {
        const struct hr_type_info *info = hr_type_info(type);

        /* A block is read by halves, if it is not of an odd number of bytes. */
        if (info->is_block)
                return info->block_bytes % 2 ? 1 : 2;
        return info->block_bytes;
}

static bool is_aligned(const struct hr_operand *operand) {
        uint32_t alignment;

        if (operand->type == HR_OPERAND_ABSENT)
                return true;
        if (!hr_type_info(operand->type))
                return false;
        alignment = cuda_type_alignment(operand->type);
        for (int i = 0; i < HR_DIMS; i++)
                if (operand->ne[i] > 1 && operand->nb[i] % alignment)
                        return false;
        return (uintptr_t) operand->data % alignment == 0;
}

/* Has each element a place of its own? Threads that wrote to the same one would do so in no order.
 * Each dimension, from the shortest steps on, must step over all that the ones before it take. */
static bool has_own_places(const struct hr_operand *operand) {
        const struct hr_type_info *info = hr_type_info(operand->type);
        uint64_t steps[HR_DIMS], counts[HR_DIMS], end = info->block_bytes;
        int used = 0;

        for (int i = 0; i < HR_DIMS; i++) {
                int64_t count = i ? operand->ne[i] : operand->ne[0] / info->block_elements;
                int at = used;

                if (count < 2)
                        continue;
                for (; at > 0 && steps[at - 1] > operand->nb[i]; at--) {
                        steps[at] = steps[at - 1];
                        counts[at] = counts[at - 1];
                }
                steps[at] = operand->nb[i];
                counts[at] = (uint64_t) count;
                used++;
        }
        for (int i = 0; i < used; i++) {
                if (steps[i] < end)
                        return false;
                end += (counts[i] - 1) * steps[i];
        }
        return true;
}

static const struct cuda_op *find_in(const struct cuda_op *ops, uint32_t op) {
        while (ops->op != HR_OP_NONE && ops->op != op)
                ops++;
        return ops->op == HR_OP_NONE ? NULL : ops;
}

const struct cuda_op *cuda_op_find(const struct hr_step *step) {
        static const struct cuda_op *const families[] = { cuda_ops_elements, cuda_ops_rows,
                                                          cuda_ops_norm, cuda_ops_product,
                                                          cuda_ops_attention, cuda_ops_shape,
                                                          cuda_ops_window, cuda_ops_recurrent,
                                                          cuda_ops_mixing };
        const struct cuda_op *found = NULL;

        if (!is_aligned(&step->result) ||
            (!cuda_is_empty(&step->result) && !has_own_places(&step->result)))
                return NULL;
        for (uint32_t i = 0; i < step->source_count; i++)
                if (!is_aligned(&step->sources[i]))
                        return NULL;
        for (size_t i = 0; i < HR_ARRAY_LENGTH(families) && !found; i++)
                found = find_in(families[i], step->op);
        return found && found->supports(step) ? found : NULL;
}

/* ---- Tensors for kernels --------------------------------------------------------------------- */

struct cuda_tensor cuda_tensor_of(const struct hr_operand *operand) {
        struct cuda_tensor tensor = {
                .data = (uint64_t) (uintptr_t) operand->data,
                .type = operand->type,
                .is_present = 1,
        };

        for (int i = 0; i < HR_DIMS; i++) {
                tensor.ne[i] = operand->ne[i];
                tensor.nb[i] = (int64_t) operand->nb[i];
        }
        return tensor;
}

struct cuda_tensor cuda_walked_of(const struct hr_operand *operand) {
        struct cuda_tensor tensor = cuda_tensor_of(operand);

        for (int i = 0; i < HR_DIMS && cuda_is_empty(operand); i++)
                tensor.ne[i] = 0;
        return tensor;
}

struct cuda_tensor cuda_source_of(const struct hr_step *step, uint32_t position) {
        if (!cuda_has(step, position))
                return (struct cuda_tensor) { .ne = { 1, 1, 1, 1 } };
        return cuda_tensor_of(&step->sources[position]);
}

static bool joins(const struct cuda_tensor *tensor, const struct cuda_tensor *first, int d) {
        return tensor->ne[d] == first->ne[d] && tensor->ne[d + 1] == first->ne[d + 1] &&
               (tensor->ne[d + 1] == 1 || tensor->nb[d + 1] == tensor->nb[d] * tensor->ne[d]);
}

static void join_one(struct cuda_tensor *tensor, int d) {
        tensor->ne[d] *= tensor->ne[d + 1];
        for (int i = d + 1; i < HR_DIMS - 1; i++) {
                tensor->ne[i] = tensor->ne[i + 1];
                tensor->nb[i] = tensor->nb[i + 1];
        }
        tensor->ne[HR_DIMS - 1] = 1;
}

void cuda_join(struct cuda_tensor *const *tensors, uint32_t count) {
        int d = 0;

        for (int turn = 0; turn < HR_DIMS - 1; turn++) {
                bool all = true;

                for (uint32_t i = 0; i < count; i++)
                        all &= joins(tensors[i], tensors[0], d);
                for (uint32_t i = 0; i < count && all; i++)
                        join_one(tensors[i], d);
                d += !all;
        }
}
