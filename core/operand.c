/* From a tensor of a graph to what a kernel sees of it. */
#include <string.h>

#include "core/device.h"

/* Where an empty tensor's address points: kernels compute with it, and never look there. */
static _Alignas(64) uint8_t nothing[64];

struct hr_operand hr_operand_of_tensor(const struct hr_tensor *tensor, uint32_t id) {
        const struct hr_type_info *info = hr_type_info(tensor->type);
        struct hr_operand operand = { .type = tensor->type, .id = id };

        memcpy(operand.ne, tensor->ne, sizeof operand.ne);
        memcpy(operand.nb, tensor->nb, sizeof operand.nb);
        if (info && operand.ne[0] <= (int64_t) info->block_elements)
                operand.nb[0] = info->block_bytes;
        if (hr_tensor_is_empty(tensor))
                operand.data = nothing;
        return operand;
}
