/* Float rows of any stride as contiguous f32. */
#include "backends/cpu/matrix/share.h"

#include "backends/cpu/matrix/half.h"

const float *cpu_float_row(const struct cpu_dot *dot, uint32_t type, const uint8_t *row,
                           uint64_t stride, int64_t count, float *spare) {
        if (type == HR_TYPE_F32 && stride == sizeof(float))
                return (const float *) (const void *) row;
        if (type != HR_TYPE_F32 && stride == sizeof(uint16_t)) {
                dot->dequantize[type](row, spare, count);
                return spare;
        }
        for (int64_t i = 0; i < count; i++, row += stride)
                if (type == HR_TYPE_F32)
                        spare[i] = cpu_bits_float(cpu_read_u32(row));
                else if (type == HR_TYPE_F16)
                        spare[i] = cpu_read_half(row);
                else
                        spare[i] = cpu_bf16_to_float(cpu_read_u16(row));
        return spare;
}
