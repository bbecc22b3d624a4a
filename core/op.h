/* The operators of op.def as an enum with the wire's numbers, and the facts known of each. */
#pragma once

#include "core/base.h"

typedef enum hr_op {
#define X(name, number, sources_min, sources_max, kind) HR_OP_##name = (number),
#include "core/op.def"
#undef X
        HR_OP_LIMIT = 200 /* one past the largest number; not every number below is an op */
} hr_op;

typedef enum hr_op_kind {
        HR_OP_KIND_LEAF,
        HR_OP_KIND_VIEW,
        HR_OP_KIND_PURE,
        HR_OP_KIND_INPLACE,
        HR_OP_KIND_WRITER,
} hr_op_kind;

struct hr_op_info {
        const char *name; /* NULL = no such op */
        uint8_t sources_min, sources_max;
        hr_op_kind kind;
};

/* Word 0 of UNARY's parameters. */
typedef enum hr_unary {
        HR_UNARY_ABS, HR_UNARY_SGN, HR_UNARY_NEG, HR_UNARY_STEP, HR_UNARY_TANH, HR_UNARY_ELU,
        HR_UNARY_RELU, HR_UNARY_SIGMOID, HR_UNARY_GELU, HR_UNARY_GELU_QUICK, HR_UNARY_SILU,
        HR_UNARY_HARDSWISH, HR_UNARY_HARDSIGMOID, HR_UNARY_EXP, HR_UNARY_EXPM1, HR_UNARY_SOFTPLUS,
        HR_UNARY_GELU_ERF, HR_UNARY_XIELU, HR_UNARY_FLOOR, HR_UNARY_CEIL, HR_UNARY_ROUND,
        HR_UNARY_TRUNC,
        HR_UNARY_COUNT
} hr_unary;

/* Word 0 of GLU's parameters. */
typedef enum hr_glu {
        HR_GLU_REGLU, HR_GLU_GEGLU, HR_GLU_SWIGLU, HR_GLU_SWIGLU_OAI, HR_GLU_GEGLU_ERF,
        HR_GLU_GEGLU_QUICK,
        HR_GLU_COUNT
} hr_glu;

/* Word 0 of UPSCALE's parameters: a mode, plus flags. */
enum {
        HR_UPSCALE_NEAREST,
        HR_UPSCALE_BILINEAR,
        HR_UPSCALE_BICUBIC,
        HR_UPSCALE_MODE_MASK = 255,
        HR_UPSCALE_ALIGN_CORNERS = 256,
        HR_UPSCALE_ANTIALIAS = 512,
};

/* By number; a number that is no op has no name and the kind LEAF. */
extern const struct hr_op_info hr_op_infos[HR_OP_LIMIT];

/* Facts of an op, or NULL for a number that is no op. */
static inline const struct hr_op_info *hr_op_info(uint32_t op) {
        return op < HR_OP_LIMIT && hr_op_infos[op].name ? &hr_op_infos[op] : NULL;
}
/* "MUL_MAT"...; "?" for a number that is no op. Never NULL. */
const char *hr_op_name(uint32_t op);
/* The op of that name, or -1. */
int hr_op_from_name(const char *name);
/* VIEW, RESHAPE, PERMUTE, TRANSPOSE. */
static inline bool hr_op_is_view(uint32_t op) {
        return op < HR_OP_LIMIT && hr_op_infos[op].kind == HR_OP_KIND_VIEW;
}
