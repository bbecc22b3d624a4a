/*
 * Element types and their block layouts. Numbers are GGUF's and go over the wire: never reused.
 *
 * A block type packs block_elements consecutive elements of dimension 0 into block_bytes bytes;
 * plain types are blocks of one element. Layouts: docs in core/README.md.
 */
#pragma once

#include "core/base.h"

typedef enum hr_type {
        HR_TYPE_F32 = 0,
        HR_TYPE_F16 = 1,
        HR_TYPE_Q4_0 = 2,
        HR_TYPE_Q4_1 = 3,
        HR_TYPE_Q5_0 = 6,
        HR_TYPE_Q5_1 = 7,
        HR_TYPE_Q8_0 = 8,
        HR_TYPE_Q8_1 = 9,       /* activations only */
        HR_TYPE_Q2_K = 10,
        HR_TYPE_Q3_K = 11,
        HR_TYPE_Q4_K = 12,
        HR_TYPE_Q5_K = 13,
        HR_TYPE_Q6_K = 14,
        HR_TYPE_Q8_K = 15,      /* activations only */
        HR_TYPE_IQ2_XXS = 16,
        HR_TYPE_IQ2_XS = 17,
        HR_TYPE_IQ3_XXS = 18,
        HR_TYPE_IQ1_S = 19,
        HR_TYPE_IQ4_NL = 20,
        HR_TYPE_IQ3_S = 21,
        HR_TYPE_IQ2_S = 22,
        HR_TYPE_IQ4_XS = 23,
        HR_TYPE_I8 = 24,
        HR_TYPE_I16 = 25,
        HR_TYPE_I32 = 26,
        HR_TYPE_I64 = 27,
        HR_TYPE_F64 = 28,
        HR_TYPE_IQ1_M = 29,
        HR_TYPE_BF16 = 30,
        HR_TYPE_TQ1_0 = 34,
        HR_TYPE_TQ2_0 = 35,
        HR_TYPE_MXFP4 = 39,
        HR_TYPE_NVFP4 = 40,
        HR_TYPE_Q1_0 = 41,
        HR_TYPE_Q2_0 = 42,
        HR_TYPE_LIMIT = 43      /* one past the largest number; not every number below is a type */
} hr_type;

struct hr_type_info {
        const char *name;               /* as in GGUF practice: "f32", "q4_K"; NULL = no such
                                         * type */
        uint32_t block_elements;
        uint32_t block_bytes;
        bool is_block;                  /* quantised block type */
        bool is_float;                  /* f16, bf16, f32, f64 */
        bool is_integer;
};

/* By number; a number that is no type has no name. */
extern const struct hr_type_info hr_type_infos[HR_TYPE_LIMIT];

/* Facts of a type, or NULL for a number that is no type. */
static inline const struct hr_type_info *hr_type_info(uint32_t type) {
        return type < HR_TYPE_LIMIT && hr_type_infos[type].name ? &hr_type_infos[type] : NULL;
}
/* "f32"...; "?" for a number that is no type. Never NULL. */
const char *hr_type_name(uint32_t type);
/* The type of that name (case-insensitive), or -1. */
int hr_type_from_name(const char *name);
/* Converts `count` consecutive elements of one type to f32; of a block type count is a multiple of
 * the block. Any alignment; pure. */
typedef void (*hr_dequantize_fn)(const void *row, float *ret_values, int64_t count);
/* Bytes of `elements` consecutive elements. False: no such type, elements negative or not a
 * multiple of the block, or the result does not fit. */
HR_NODISCARD bool hr_type_row_bytes(uint32_t type, int64_t elements, uint64_t *ret_bytes);
