/* Shapes and preconditions of views, copies and everything that only moves elements. */
#include "tests/unit/core/infer_case.h"

#include <limits.h>

#define ONE 0x3f800000
#define NOT_A_NUMBER 0x7fc00000
#define TINY 0x00800000
#define Q4_0(...) { HR_TYPE_Q4_0, { __VA_ARGS__ } }
#define I64(...) { HR_TYPE_I64, { __VA_ARGS__ } }
#define X F32(8, 3, 4, 2)

static const struct infer_case cases[] = {
        { HR_OP_DUP, 1, X, { X }, { 0 }, NULL },
        { HR_OP_DUP, 1, F32(8, 3, 8, 1), { X }, { 0 }, "SHAPE" },
        { HR_OP_DUP, 1, X, { X }, { 1 }, "PARAM" },
        { HR_OP_CONT, 1, F32(8, 12, 2, 1), { X }, { 0 }, NULL },
        { HR_OP_CONT, 1, F32(8, 12, 1, 1), { X }, { 0 }, "SHAPE" },
        { HR_OP_CONT, 1, F16(8, 12, 2, 1), { X }, { 0 }, "DTYPE" },
        { HR_OP_CPY, 1, F16(8, 3, 4, 2), { X }, { 0 }, NULL },
        { HR_OP_CPY, 1, F16(8, 3, 4, 1), { X }, { 0 }, "SHAPE" },
        { HR_OP_CPY, 2, X, { X, F32(8, 3, 4, 1) }, { 0 }, "SHAPE" },
        { HR_OP_CPY, 2, X, { X, X }, { 0 }, "VIEW" }, /* it has to say what it writes into */

        { HR_OP_GET_ROWS, 2, F32(8, 5, 4, 2), { X, I32(5, 4, 2, 1) }, { 0 }, NULL },
        { HR_OP_GET_ROWS, 2, I32(8, 5, 4, 2), { I32(8, 3, 4, 2), I32(5, 4, 2, 1) }, { 0 }, NULL },
        { HR_OP_GET_ROWS, 2, F32(8, 5, 4, 2), { X, I64(5, 4, 2, 1) }, { 0 }, "DTYPE" },
        { HR_OP_GET_ROWS, 2, F32(8, 5, 4, 2), { X, F32(5, 4, 2, 1) }, { 0 }, "DTYPE" },
        { HR_OP_GET_ROWS, 2, F32(8, 5, 4, 2), { X, I32(5, 3, 2, 1) }, { 0 }, "SHAPE" },
        { HR_OP_GET_ROWS, 2, F32(8, 5, 4, 2), { X, I32(5, 4, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_GET_ROWS, 2, F32(8, 5, 4, 2), { X, I32(5, 4, 2, 2) }, { 0 }, "SHAPE" },
        { HR_OP_GET_ROWS, 2, F16(8, 5, 4, 2), { F16(8, 3, 4, 2), I32(5, 4, 2, 1) }, { 0 },
          "DTYPE" },

        { HR_OP_SET_ROWS, 3, X, { F32(8, 5, 4, 2), I32(5, 2, 1, 1), F16(8, 9, 4, 2) }, { 0 },
          "DTYPE" }, /* the result is what it writes into */
        { HR_OP_SET_ROWS, 3, F16(8, 9, 4, 2),
          { F32(8, 5, 4, 2), F32(5, 2, 1, 1), F16(8, 9, 4, 2) }, { 0 }, "DTYPE" },
        { HR_OP_SET_ROWS, 3, F16(8, 9, 4, 2),
          { BF16(8, 5, 4, 2), I32(5, 2, 1, 1), F16(8, 9, 4, 2) }, { 0 }, "DTYPE" },
        { HR_OP_SET_ROWS, 3, F16(8, 9, 4, 2),
          { F32(7, 5, 4, 2), I32(5, 2, 1, 1), F16(8, 9, 4, 2) }, { 0 }, "SHAPE" },
        { HR_OP_SET_ROWS, 3, F16(8, 9, 4, 2),
          { F32(8, 5, 3, 2), I32(5, 2, 1, 1), F16(8, 9, 4, 2) }, { 0 }, "SHAPE" },
        { HR_OP_SET_ROWS, 3, F16(8, 9, 4, 2),
          { F32(8, 5, 4, 2), I32(6, 2, 1, 1), F16(8, 9, 4, 2) }, { 0 }, "SHAPE" },
        { HR_OP_SET_ROWS, 3, F16(8, 9, 4, 2),
          { F32(8, 5, 4, 2), I32(5, 3, 1, 1), F16(8, 9, 4, 2) }, { 0 }, "SHAPE" },
        { HR_OP_SET_ROWS, 3, F16(8, 9, 4, 2),
          { F32(8, 5, 4, 2), I64(5, 0, 1, 1), F16(8, 9, 4, 2) }, { 0 }, "SHAPE" },
        { HR_OP_SET_ROWS, 3, F16(8, 9, 4, 2),
          { F32(8, 5, 4, 2), I64(5, 2, 1, 2), F16(8, 9, 4, 2) }, { 0 }, "SHAPE" },
        { HR_OP_SET_ROWS, 3, F16(8, 9, 4, 2),
          { F32(8, 5, 4, 2), I64(5, 2, 1, 1), F16(8, 9, 4, 2) }, { 0 }, "VIEW" },

        { HR_OP_CONCAT, 2, F32(8, 3, 9, 2), { X, F32(8, 3, 5, 2) }, { 2 }, NULL },
        { HR_OP_CONCAT, 2, F32(8, 3, 9, 2), { X, F32(8, 3, 5, 2) }, { 4 }, "PARAM" },
        { HR_OP_CONCAT, 2, F32(8, 3, 9, 2), { X, F32(8, 3, 5, 2) }, { -1 }, "PARAM" },
        { HR_OP_CONCAT, 2, F32(8, 3, 9, 2), { X, F32(8, 2, 5, 2) }, { 2 }, "SHAPE" },
        { HR_OP_CONCAT, 2, F32(8, 3, 9, 2), { X, F16(8, 3, 5, 2) }, { 2 }, "DTYPE" },
        { HR_OP_REPEAT, 1, F32(16, 3, 8, 2), { X }, { 0 }, NULL },
        { HR_OP_REPEAT, 1, F32(12, 3, 8, 2), { X }, { 0 }, "SHAPE" },
        { HR_OP_REPEAT, 1, F32(8, 3, 4, 2), { F32(0, 3, 4, 2) }, { 0 }, "SHAPE" },
        { HR_OP_REPEAT_BACK, 1, F32(4, 3, 2, 1), { X }, { 0 }, NULL },
        { HR_OP_REPEAT_BACK, 1, F32(3, 3, 2, 1), { X }, { 0 }, "SHAPE" },

        { HR_OP_SET, 2, F32(8, 4, 1, 1), { F32(8, 4, 1, 1), F32(3, 2, 1, 1) }, { 32, 64, 64, 8 },
          NULL },
        { HR_OP_SET, 2, F32(8, 4, 1, 1), { F32(8, 4, 1, 1), F32(3, 2, 1, 1) }, { 32, 64, 64, 88 },
          "VIEW" },
        { HR_OP_SET, 2, F32(8, 4, 1, 1), { F32(8, 4, 1, 1), F32(3, 2, 1, 1) },
          { INT_MAX - 3, 64, 64, 8 }, "VIEW" },
        { HR_OP_SET, 2, F32(8, 4, 1, 1), { F32(8, 4, 1, 1), F32(3, 2, 1, 1) }, { 30, 64, 64, 8 },
          "PARAM" },
        { HR_OP_SET, 2, F32(8, 4, 1, 1), { F32(8, 4, 1, 1), F32(3, 2, 1, 1) }, { -32, 64, 64, 8 },
          "PARAM" },
        { HR_OP_SET, 2, F32(8, 4, 1, 1), { F32(8, 4, 1, 1), F32(3, 2, 1, 1) },
          { 32, 64, 64, 8, 2 }, "PARAM" },
        { HR_OP_ACC, 2, F32(8, 4, 1, 1), { F32(8, 4, 1, 1), F16(3, 2, 1, 1) }, { 32, 64, 64, 8 },
          "DTYPE" },
        { HR_OP_SET, 2, Q4_0(32, 4, 1, 1), { Q4_0(32, 4, 1, 1), Q4_0(32, 2, 1, 1) },
          { 18, 18, 18, 0 }, "DTYPE" },

        { HR_OP_PAD, 1, F32(11, 3, 4, 3), { X }, { 1, 2, 0, 0, 0, 0, 0, 1 }, NULL },
        { HR_OP_PAD, 1, F32(11, 3, 4, 3), { X }, { 1, 2, 0, 0, 0, 0, 0, 1, 2 }, "PARAM" },
        { HR_OP_PAD, 1, F32(7, 3, 4, 2), { X }, { -1 }, "PARAM" },
        { HR_OP_PAD, 1, F32(2, 3, 4, 2), { F32(0, 3, 4, 2) }, { 1, 1, 0, 0, 0, 0, 0, 0, 1 },
          "SHAPE" },
        { HR_OP_PAD_REFLECT_1D, 1, F32(17, 3, 4, 2), { X }, { 7, 2 }, NULL },
        { HR_OP_PAD_REFLECT_1D, 1, F32(18, 3, 4, 2), { X }, { 8, 2 }, "PARAM" },
        { HR_OP_PAD_REFLECT_1D, 1, F32(8, 3, 4, 2), { X }, { -1, 1 }, "PARAM" },
        { HR_OP_ROLL, 1, X, { X }, { INT_MIN, INT_MAX, -1, 1 }, NULL },
        { HR_OP_ROLL, 1, X, { X }, { 0, 0, 0, 0, 1 }, "PARAM" },
        { HR_OP_DIAG, 1, F32(8, 8, 4, 2), { F32(8, 1, 4, 2) }, { 0 }, NULL },
        { HR_OP_DIAG, 1, F32(8, 8, 4, 2), { X }, { 0 }, "SHAPE" },
        { HR_OP_TRI, 1, F32(8, 8, 1, 1), { F32(8, 8, 1, 1) }, { 3 }, NULL },
        { HR_OP_TRI, 1, F32(8, 8, 1, 1), { F32(8, 8, 1, 1) }, { 4 }, "PARAM" },
        { HR_OP_TRI, 1, X, { X }, { 0 }, "SHAPE" },
        { HR_OP_ARANGE, 0, F32(3, 1, 1, 1), { F32(0) }, { 0, 0x40400000, ONE }, NULL },
        { HR_OP_ARANGE, 0, F32(3, 1, 1, 1), { F32(0) }, { 0, 0x40400000, 0 }, "PARAM" },
        { HR_OP_ARANGE, 0, F32(0, 1, 1, 1), { F32(0) }, { ONE, 0, ONE }, "PARAM" },
        { HR_OP_ARANGE, 0, F32(3, 1, 1, 1), { F32(0) }, { 0, NOT_A_NUMBER, ONE }, "PARAM" },
        { HR_OP_ARANGE, 0, F32(3, 1, 1, 1), { F32(0) }, { 0, ONE, TINY }, "SIZE" },
        { HR_OP_RESHAPE, 1, F32(24, 8, 1, 1), { X }, { 0 }, "VIEW" }, /* declared without a base */
        { HR_OP_RESHAPE, 1, F32(24, 9, 1, 1), { X }, { 0 }, "SHAPE" },
        { HR_OP_PERMUTE, 1, F32(3, 8, 4, 2), { X }, { 1, 0, 2, 2 }, "PARAM" },
        { HR_OP_PERMUTE, 1, F32(3, 8, 4, 2), { X }, { 1, 0, 2, 4 }, "PARAM" },
        { HR_OP_PERMUTE, 1, F32(3, 8, 4, 2), { X }, { -1, 0, 2, 3 }, "PARAM" },
        { HR_OP_PERMUTE, 1, Q4_0(32, 32, 1, 1), { Q4_0(32, 32, 1, 1) }, { 1, 0, 2, 3 }, "DTYPE" },
        { HR_OP_TRANSPOSE, 1, Q4_0(32, 32, 1, 1), { Q4_0(32, 32, 1, 1) }, { 0 }, "DTYPE" },
        { HR_OP_VIEW, 1, X, { X }, { 0 }, "VIEW" },
        { HR_OP_VIEW, 1, X, { X }, { -1, -1 }, "VIEW" },
};

HR_TEST(infer_shape_cases) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++)
                infer_case_run(&cases[i], i);
}
