/* Shapes and preconditions of products, SOFT_MAX, ROPE and attention. */
#include "tests/unit/core/infer_case.h"

#include <limits.h>

#define ONE 0x3f800000
#define MINUS_ONE (-0x40800000)
#define NOT_A_NUMBER 0x7fc00000
#define INFINITE 0x7f800000
#define Q4_0(...) { HR_TYPE_Q4_0, { __VA_ARGS__ } }

/* params of ROPE: 0, n_dims, mode, 0, n_ctx_orig, six floats, four sections, n_offs */
#define ROPE_OF(dims, mode, context, base, section, offset)                                        \
        { 0, dims, mode, 0, context, base, ONE, 0, ONE, ONE, ONE, section, 0, 0, 0, offset }
#define ROPE_X F32(8, 3, 5, 2)
#define ROPE_CASE(x, positions, params, reason)                                                    \
        { HR_OP_ROPE, 2, ROPE_X, { x, positions }, params, reason }

#define ATTEND(q, k, v, mask, reason)                                                              \
        { HR_OP_FLASH_ATTN_EXT, 4, F32(16, 6, 5, 2), { q, k, v, mask }, { ONE }, reason }
#define Q F32(8, 5, 6, 2)
#define K F16(8, 7, 3, 1)
#define V F16(16, 7, 3, 1)
#define MASK F16(7, 5, 1, 1)

static const struct infer_case cases[] = {
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 0 }, NULL },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 10 }, NULL },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 9 }, "PARAM" },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 0, 1 }, NULL },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 0, 2 },
          "PARAM" },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 0, 0, 1 },
          "PARAM" },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(9, 4, 3, 1), F32(8, 5, 6, 2) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 4, 1), F32(8, 5, 6, 2) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 3, 3), F32(8, 5, 6, 2) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 0, 1), F32(8, 5, 6, 2) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { F16(8, 4, 3, 1), I32(8, 5, 6, 2) }, { 0 }, "DTYPE" },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 6, 2), { I32(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 0 }, "DTYPE" },
        { HR_OP_MUL_MAT, 2, F32(4, 5, 1, 1), { Q4_0(32, 4, 1, 1), Q4_0(32, 5, 1, 1) }, { 0 },
          "DTYPE" },
        { HR_OP_MUL_MAT, 2, F16(4, 5, 6, 2), { F16(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 0 }, "DTYPE" },
        { HR_OP_MUL_MAT, 2, F32(5, 4, 6, 2), { F16(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT, 1, F32(4, 5, 6, 2), { F16(8, 4, 3, 1) }, { 0 }, "ARITY" },

        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 1), F32(32, 1, 5, 1), I32(2, 5, 1, 1) }, { 0 }, NULL },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 1), F32(32, 1, 5, 1), I32(2, 5, 1, 1) }, { 3 }, "PARAM" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 1), F32(32, 1, 5, 1), F32(2, 5, 1, 1) }, { 0 }, "DTYPE" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 1), I32(32, 1, 5, 1), I32(2, 5, 1, 1) }, { 0 }, "DTYPE" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { I32(32, 4, 6, 1), F32(32, 1, 5, 1), I32(2, 5, 1, 1) }, { 0 }, "DTYPE" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(64, 4, 6, 1), F32(32, 1, 5, 1), I32(2, 5, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 2), F32(32, 1, 5, 1), I32(2, 5, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 1), F32(32, 1, 5, 2), I32(2, 5, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 1), F32(32, 1, 5, 1), I32(2, 5, 2, 1) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 1), F32(32, 1, 5, 1), I32(2, 4, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 1), F32(32, 3, 5, 1), I32(2, 5, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_MUL_MAT_ID, 3, F32(4, 2, 5, 1),
          { Q4_0(32, 4, 6, 1), F32(32, 0, 5, 1), I32(2, 5, 1, 1) }, { 0 }, "SHAPE" },

        { HR_OP_OUT_PROD, 2, F32(4, 5, 6, 2), { F32(4, 8, 3, 1), F32(5, 8, 6, 2) }, { 0 }, NULL },
        { HR_OP_OUT_PROD, 2, F32(4, 5, 6, 2), { F32(4, 7, 3, 1), F32(5, 8, 6, 2) }, { 0 },
          "SHAPE" },
        { HR_OP_OUT_PROD, 2, F32(4, 5, 6, 2), { F32(4, 8, 5, 1), F32(5, 8, 6, 2) }, { 0 },
          "SHAPE" },
        { HR_OP_OUT_PROD, 2, F32(4, 5, 6, 2), { F32(4, 8, 3, 1), F16(5, 8, 6, 2) }, { 0 },
          "DTYPE" },

        { HR_OP_SOFT_MAX, 3, F32(8, 3, 4, 2),
          { F32(8, 3, 4, 2), F16(8, 5, 2, 1), F32(4, 1, 1, 1) }, { ONE, ONE }, NULL },
        { HR_OP_SOFT_MAX, 1, F32(8, 3, 4, 2), { F32(8, 3, 4, 2) }, { ONE }, NULL },
        { HR_OP_SOFT_MAX, 1, F32(8, 3, 4, 2), { F32(8, 3, 4, 2) }, { ONE, ONE }, "PARAM" },
        { HR_OP_SOFT_MAX, 1, F32(8, 3, 4, 2), { F32(8, 3, 4, 2) }, { NOT_A_NUMBER }, "PARAM" },
        { HR_OP_SOFT_MAX, 2, F32(8, 3, 4, 2), { F32(8, 3, 4, 2), F16(8, 3, 1, 1) },
          { ONE, MINUS_ONE }, "PARAM" },
        { HR_OP_SOFT_MAX, 2, F32(8, 3, 4, 2), { F32(8, 3, 4, 2), F16(8, 3, 1, 1) },
          { ONE, INFINITE }, "PARAM" },
        { HR_OP_SOFT_MAX, 1, F16(8, 3, 4, 2), { F16(8, 3, 4, 2) }, { ONE }, "DTYPE" },
        { HR_OP_SOFT_MAX, 2, F32(8, 3, 4, 2), { F32(8, 3, 4, 2), BF16(8, 3, 1, 1) }, { ONE },
          "DTYPE" },
        { HR_OP_SOFT_MAX, 2, F32(8, 3, 4, 2), { F32(8, 3, 4, 2), F16(9, 3, 1, 1) }, { ONE },
          "SHAPE" },
        { HR_OP_SOFT_MAX, 2, F32(8, 3, 4, 2), { F32(8, 3, 4, 2), F16(8, 2, 1, 1) }, { ONE },
          "SHAPE" },
        { HR_OP_SOFT_MAX, 2, F32(8, 3, 4, 2), { F32(8, 3, 4, 2), F16(8, 3, 3, 1) }, { ONE },
          "SHAPE" },
        { HR_OP_SOFT_MAX, 2, F32(8, 3, 4, 2), { F32(8, 3, 4, 2), F16(8, 3, 0, 1) }, { ONE },
          "SHAPE" },
        { HR_OP_SOFT_MAX, 3, F32(8, 3, 4, 2),
          { F32(8, 3, 4, 2), F16(8, 5, 2, 1), F32(3, 1, 1, 1) }, { ONE }, "SHAPE" },
        { HR_OP_SOFT_MAX, 3, F32(8, 3, 4, 2),
          { F32(8, 3, 4, 2), F16(8, 5, 2, 1), F32(4, 2, 1, 1) }, { ONE }, "SHAPE" },
        { HR_OP_SOFT_MAX, 3, F32(8, 3, 4, 2),
          { F32(8, 3, 4, 2), F16(8, 5, 2, 1), F16(4, 1, 1, 1) }, { ONE }, "DTYPE" },

        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(8, 0, 0, ONE, 0, 0), NULL),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(6, 2, 100, ONE, 0, 2), NULL),
        ROPE_CASE(ROPE_X, I32(20, 1, 1, 1), ROPE_OF(8, 8, 0, ONE, 2, 0), NULL),
        ROPE_CASE(ROPE_X, I32(20, 1, 1, 1), ROPE_OF(4, 24, 0, ONE, 2, 0), NULL),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(8, 1, 0, ONE, 0, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(7, 0, 0, ONE, 0, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(0, 0, 0, ONE, 0, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(-2, 0, 0, ONE, 0, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(10, 0, 0, ONE, 0, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(8, 0, 0, ONE, 0, 2), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(8, 0, 0, ONE, 0, -2), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(8, 0, 0, ONE, 0, INT_MAX), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(8, 0, -1, ONE, 0, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(8, 0, 0, 0, 0, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(8, 0, 0, NOT_A_NUMBER, 0, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(20, 1, 1, 1), ROPE_OF(8, 8, 0, ONE, 0, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(20, 1, 1, 1), ROPE_OF(8, 8, 0, ONE, -1, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(20, 1, 1, 1), ROPE_OF(8, 24, 0, ONE, 2, 0), "PARAM"),
        ROPE_CASE(ROPE_X, I32(4, 1, 1, 1), ROPE_OF(8, 0, 0, ONE, 0, 0), "SHAPE"),
        ROPE_CASE(ROPE_X, I32(5, 2, 1, 1), ROPE_OF(8, 0, 0, ONE, 0, 0), "SHAPE"),
        ROPE_CASE(ROPE_X, I32(5, 1, 1, 1), ROPE_OF(8, 8, 0, ONE, 2, 0), "SHAPE"),
        ROPE_CASE(ROPE_X, F32(5, 1, 1, 1), ROPE_OF(8, 0, 0, ONE, 0, 0), "DTYPE"),
        ROPE_CASE(BF16(8, 3, 5, 2), I32(5, 1, 1, 1), ROPE_OF(8, 0, 0, ONE, 0, 0), "DTYPE"),
        { HR_OP_ROPE, 3, ROPE_X, { ROPE_X, I32(5, 1, 1, 1), F32(4, 1, 1, 1) },
          ROPE_OF(8, 0, 0, ONE, 0, 0), NULL },
        { HR_OP_ROPE, 3, ROPE_X, { ROPE_X, I32(5, 1, 1, 1), F32(3, 1, 1, 1) },
          ROPE_OF(8, 0, 0, ONE, 0, 0), "SHAPE" },
        { HR_OP_ROPE, 3, ROPE_X, { ROPE_X, I32(5, 1, 1, 1), F16(4, 1, 1, 1) },
          ROPE_OF(8, 0, 0, ONE, 0, 0), "DTYPE" },
        { HR_OP_ROPE_BACK, 2, ROPE_X, { ROPE_X, I32(4, 1, 1, 1) }, ROPE_OF(8, 0, 0, ONE, 0, 0),
          "SHAPE" },

        ATTEND(Q, K, V, MASK, NULL),
        ATTEND(Q, K, V, F16(9, 8, 6, 2), NULL),
        ATTEND(F16(8, 5, 6, 2), K, V, MASK, "DTYPE"),
        ATTEND(Q, I32(8, 7, 3, 1), V, MASK, "DTYPE"),
        ATTEND(Q, K, I32(16, 7, 3, 1), MASK, "DTYPE"),
        ATTEND(Q, F16(9, 7, 3, 1), V, MASK, "SHAPE"),
        ATTEND(Q, F16(8, 7, 4, 1), F16(16, 7, 4, 1), MASK, "SHAPE"),
        ATTEND(Q, F16(8, 7, 0, 1), F16(16, 7, 0, 1), MASK, "SHAPE"),
        ATTEND(Q, F16(8, 7, 3, 4), F16(16, 7, 3, 4), MASK, "SHAPE"),
        ATTEND(Q, K, F16(16, 6, 3, 1), MASK, "SHAPE"),
        ATTEND(Q, K, F16(16, 7, 1, 1), MASK, "SHAPE"),
        ATTEND(Q, K, V, F16(6, 5, 1, 1), "SHAPE"),
        ATTEND(Q, K, V, F16(7, 4, 1, 1), "SHAPE"),
        ATTEND(Q, K, V, F16(7, 5, 4, 1), "SHAPE"),
        ATTEND(Q, K, V, F16(7, 5, 0, 1), "SHAPE"),
        ATTEND(Q, K, V, F32(7, 5, 1, 1), "DTYPE"),
        { HR_OP_FLASH_ATTN_EXT, 3, F32(16, 6, 5, 2), { Q, K, V }, { ONE, ONE }, "PARAM" },
        { HR_OP_FLASH_ATTN_EXT, 3, F32(16, 6, 5, 2), { Q, K, V }, { ONE, MINUS_ONE }, "PARAM" },
        { HR_OP_FLASH_ATTN_EXT, 3, F32(16, 6, 5, 2), { Q, K, V }, { INFINITE }, "PARAM" },
        { HR_OP_FLASH_ATTN_EXT, 3, F32(16, 6, 5, 2), { Q, K, V }, { ONE, 0, NOT_A_NUMBER },
          "PARAM" },
        { HR_OP_FLASH_ATTN_EXT, 3, F32(16, 6, 5, 2), { Q, K, V }, { ONE, 0, 0, 1 }, "PARAM" },
        { HR_OP_FLASH_ATTN_EXT, 3, F32(16, 5, 6, 2), { Q, K, V }, { ONE }, "SHAPE" },
        { HR_OP_FLASH_ATTN_EXT, 5, F32(16, 6, 5, 2), { Q, K, V, MASK, F32(6, 1, 1, 1) }, { ONE },
          NULL },
        { HR_OP_FLASH_ATTN_EXT, 5, F32(16, 6, 5, 2), { Q, K, V, MASK, F32(5, 1, 1, 1) }, { ONE },
          "SHAPE" },
        { HR_OP_FLASH_ATTN_EXT, 5, F32(16, 6, 5, 2), { Q, K, V, MASK, F16(6, 1, 1, 1) }, { ONE },
          "DTYPE" },
        { HR_OP_FLASH_ATTN_EXT, 2, F32(16, 6, 5, 2), { Q, K }, { ONE }, "ARITY" },
};

HR_TEST(infer_matrix_cases) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++)
                infer_case_run(&cases[i], i);
}
