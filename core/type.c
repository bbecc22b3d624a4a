/* The table of types. */
#include "core/type.h"

#include <strings.h>

#define PLAIN_FLOAT(type_name, bytes)                                                              \
        { .name = type_name, .block_elements = 1, .block_bytes = bytes, .is_float = true }
#define PLAIN_INTEGER(type_name, bytes)                                                            \
        { .name = type_name, .block_elements = 1, .block_bytes = bytes, .is_integer = true }
#define BLOCK(type_name, elements, bytes)                                                          \
        { .name = type_name, .block_elements = elements, .block_bytes = bytes, .is_block = true }

const struct hr_type_info hr_type_infos[HR_TYPE_LIMIT] = {
        [HR_TYPE_F32] = PLAIN_FLOAT("f32", 4),
        [HR_TYPE_F16] = PLAIN_FLOAT("f16", 2),
        [HR_TYPE_BF16] = PLAIN_FLOAT("bf16", 2),
        [HR_TYPE_F64] = PLAIN_FLOAT("f64", 8),
        [HR_TYPE_I8] = PLAIN_INTEGER("i8", 1),
        [HR_TYPE_I16] = PLAIN_INTEGER("i16", 2),
        [HR_TYPE_I32] = PLAIN_INTEGER("i32", 4),
        [HR_TYPE_I64] = PLAIN_INTEGER("i64", 8),
        [HR_TYPE_Q4_0] = BLOCK("q4_0", 32, 18),
        [HR_TYPE_Q4_1] = BLOCK("q4_1", 32, 20),
        [HR_TYPE_Q5_0] = BLOCK("q5_0", 32, 22),
        [HR_TYPE_Q5_1] = BLOCK("q5_1", 32, 24),
        [HR_TYPE_Q8_0] = BLOCK("q8_0", 32, 34),
        [HR_TYPE_Q8_1] = BLOCK("q8_1", 32, 36),
        [HR_TYPE_Q2_K] = BLOCK("q2_K", 256, 84),
        [HR_TYPE_Q3_K] = BLOCK("q3_K", 256, 110),
        [HR_TYPE_Q4_K] = BLOCK("q4_K", 256, 144),
        [HR_TYPE_Q5_K] = BLOCK("q5_K", 256, 176),
        [HR_TYPE_Q6_K] = BLOCK("q6_K", 256, 210),
        [HR_TYPE_Q8_K] = BLOCK("q8_K", 256, 292),
        [HR_TYPE_IQ1_S] = BLOCK("iq1_s", 256, 50),
        [HR_TYPE_IQ1_M] = BLOCK("iq1_m", 256, 56),
        [HR_TYPE_IQ2_XXS] = BLOCK("iq2_xxs", 256, 66),
        [HR_TYPE_IQ2_XS] = BLOCK("iq2_xs", 256, 74),
        [HR_TYPE_IQ2_S] = BLOCK("iq2_s", 256, 82),
        [HR_TYPE_IQ3_XXS] = BLOCK("iq3_xxs", 256, 98),
        [HR_TYPE_IQ3_S] = BLOCK("iq3_s", 256, 110),
        [HR_TYPE_IQ4_NL] = BLOCK("iq4_nl", 32, 18),
        [HR_TYPE_IQ4_XS] = BLOCK("iq4_xs", 256, 136),
        [HR_TYPE_TQ1_0] = BLOCK("tq1_0", 256, 54),
        [HR_TYPE_TQ2_0] = BLOCK("tq2_0", 256, 66),
        [HR_TYPE_MXFP4] = BLOCK("mxfp4", 32, 17),
        [HR_TYPE_NVFP4] = BLOCK("nvfp4", 64, 36),
        [HR_TYPE_Q1_0] = BLOCK("q1_0", 128, 18),
        [HR_TYPE_Q2_0] = BLOCK("q2_0", 64, 18),
};

const char *hr_type_name(uint32_t type) {
        const struct hr_type_info *info = hr_type_info(type);

        return info ? info->name : "?";
}

int hr_type_from_name(const char *name) {
        for (int i = 0; i < HR_TYPE_LIMIT; i++)
                if (hr_type_infos[i].name && strcasecmp(hr_type_infos[i].name, name) == 0)
                        return i;
        return -1;
}

bool hr_type_row_bytes(uint32_t type, int64_t elements, uint64_t *ret_bytes) {
        const struct hr_type_info *info = hr_type_info(type);

        if (!info || elements < 0)
                return false;
        if (info->block_elements == 1) /* no divisions: every tensor of a graph comes here */
                return hr_mul_u64((uint64_t) elements, info->block_bytes, ret_bytes);
        if (elements % info->block_elements != 0)
                return false;
        return hr_mul_u64((uint64_t) elements / info->block_elements, info->block_bytes, ret_bytes);
}
