/* Views, copies and what moves elements. */
#include "tests/unit/core/refusals/refusal.h"

#define WINDOW_REFUSALS                                                                            \
        REFUSALS({ "DTYPE", "f16 into f32", { TYPE(1, F16) } },                                    \
                 { "DTYPE", "q8_0 into q8_0",                                                      \
                   { TYPE(0, Q8_0), TYPE(1, Q8_0), NE(0, 0, 32), NE(1, 0, 32) } },                 \
                 { "PARAM", "word 0 is -32", { WORD(0, -32) } },                                   \
                 { "PARAM", "word 1 is 130", { WORD(1, 130) } },                                   \
                 { "PARAM", "word 2 is -4", { WORD(2, -4) } },                                     \
                 { "PARAM", "word 3 is 2", { WORD(3, 2) } },                                       \
                 { "PARAM", "in place is 2", { WORD(4, 2) } },                                     \
                 { "PARAM", "in place is -1", { WORD(4, -1) } },                                   \
                 { "VIEW", "the window ends past the tensor", { WORD(3, 84) } },                   \
                 { "VIEW", "the window ends past the tensor", { WORD(0, 100) } },                  \
                 { "SIZE", "span does not fit 63 bits",                                            \
                   { NE(1, 1, INT64_C(1) << 40), WORD(0, INT_MAX - 3) } })
#define WINDOW_PARAMS { 32, 128, 128, 16 }

static const struct refusal_node nodes[] = {
        { HR_OP_VIEW, F32(8, 2, 2, 1), 1, { F32(8, 4, 2, 1) }, { 0 }, .free = FREE_SHAPE,
          .refusals = REFUSALS(
                  { "VIEW", "the offset does not fit", { WORD(1, INT_MIN) } },
                  { "VIEW", "declared at byte 0 of its base, its parameters say 4", { WORD(0,
                    4) } },
                  { "VIEW", "lies inside an element", { WORD(0, 2), OWN_OFFSET(2) } },
                  { "VIEW", "lies inside an element",
                    { WORD(0, 1), OWN_OFFSET(1), TYPE(0, Q8_0), OWN_TYPE(Q8_0), NE(0, 0, 32) } },
                  { "STRIDE", "stride 0 is 8, an element has 4 bytes", { OWN_NB(0, 8) } },
                  { "STRIDE", "stride 1 is 6", { OWN_NB(1, 6) } },
                  { "STRIDE", "stride 3 is 1", { OWN_NB(3, 1) } },
                  { "STRIDE", "stride 2 is 3",
                    { OWN_NB(2, 3), TYPE(0, Q8_0), OWN_TYPE(Q8_0), NE(0, 0, 32), OWN_NE(0, 32) } },
                  { "VIEW", "ends past its base", { OWN_NE(1, 9) } },
                  { "VIEW", "ends past its base", { WORD(0, 132), OWN_OFFSET(132) } },
                  { "SIZE", "span does not fit 63 bits",
                    { OWN_NE(3, 2), OWN_NB(3, INT64_MAX - 3) } }) },
        { HR_OP_RESHAPE, F32(16, 4, 1, 1), 1, { F32(8, 4, 2, 1) }, { 0 }, .contiguous = 1,
          .refusals = REFUSALS(
                  { "SHAPE", "declared elements differ from the source's 64", { OWN_NE(0, 15) } },
                  { "SHAPE", "declared elements differ", { OWN_NE(0, -16) } },
                  { "SHAPE", "declared elements differ", { OWN_NE(0, HALF_OF_63_BITS) } },
                  { "BLOCK", "not a multiple of the 32 elements of a q8_0 block",
                    { TYPE(0, Q8_0), NE(0, 0, 32), OWN_NE(1, 16) } }) },
        { HR_OP_PERMUTE, F32(4, 8, 2, 1), 1, { F32(8, 4, 2, 1) }, { 1, 0, 2, 3 },
          .refusals = REFUSALS(
                  { "PARAM", "axis 0 is -1", { WORD(0, -1) } },
                  { "PARAM", "axis 3 is 4", { WORD(3, 4) } },
                  { "PARAM", "an axis occurs twice", { WORD(0, 0) } },
                  { "DTYPE", "blocks of q8_0 lie along axis 0", { TYPE(0, Q8_0), NE(0, 0,
                    32) } }) },
        { HR_OP_PERMUTE, { HR_TYPE_Q8_0, { 32, 2, 4, 1 } }, 1, { { HR_TYPE_Q8_0, { 32, 4, 2,
          1 } } },
          { 0, 2, 1, 3 }, .refusals = NO_REFUSALS },
        { HR_OP_TRANSPOSE, F32(4, 8, 2, 1), 1, { F32(8, 4, 2, 1) }, { 0 },
          .refusals = REFUSALS(
                  { "DTYPE", "blocks of q8_0 lie along axis 0", { TYPE(0, Q8_0), NE(0, 0,
                    32) } }) },
        { HR_OP_DUP, F32(8, 4, 2, 1), 1, { F32(8, 4, 2, 1) }, { 0 }, .refusals = NO_REFUSALS },
        { HR_OP_CONT, F32(16, 4, 1, 1), 1, { F32(8, 4, 2, 1) }, { 0 },
          .refusals = REFUSALS({ "SHAPE", "declared elements differ", { OWN_NE(1, 5) } }) },
        { HR_OP_CPY, F16(32, 1, 1, 1), 2, { F32(8, 4, 1, 1), F16(32, 1, 1, 1) }, { 0 },
          .refusals = REFUSALS({ "SHAPE", "28 elements into 32", { NE(0, 0, 7) } }) },
        { HR_OP_CPY, F16(32, 1, 1, 1), 1, { F32(8, 4, 1, 1) }, { 0 }, .free = FREE_TYPE,
          .refusals = REFUSALS({ "SHAPE", "declared elements differ", { OWN_NE(0, 31) } }) },
        { HR_OP_GET_ROWS, F32(8, 4, 2, 3), 2, { F32(8, 5, 2, 3), I32(4, 2, 3, 1) }, { 0 },
          .types = { NULL, "i" }, .dense = 1,
          .refusals = REFUSALS(
                  { "DTYPE", "row ids are i64, not i32", { TYPE(1, I64) } },
                  { "SHAPE", "row ids do not match", { NE(1, 1, 3) } },
                  { "SHAPE", "row ids do not match", { NE(1, 2, 2) } },
                  { "SHAPE", "row ids do not match", { NE(1, 3, 2) } },
                  { "STRIDE", "rows are not dense", { GAPS(0) } }) },
        { HR_OP_GET_ROWS, I32(8, 4, 1, 1), 2, { I32(8, 5, 1, 1), I32(4, 1, 1, 1) }, { 0 },
          .dense = 1,
          .refusals = NO_REFUSALS },
        { HR_OP_SET_ROWS, F16(8, 9, 2, 2), 3,
          { F32(8, 4, 2, 2), I64(4, 2, 1, 1), F16(8, 9, 2, 2) }, { 0 },
          .types = { "fh", "il" }, .dense = 1 | 4,
          .refusals = REFUSALS(
                  { "DTYPE", "row ids are f32, not i32 or i64", { TYPE(1, F32) } },
                  { "DTYPE", "values are bf16, not f32 or f16", { TYPE(0, BF16) } },
                  { "SHAPE", "differ in a dimension other than 1", { NE(0, 0, 7) } },
                  { "SHAPE", "differ in a dimension other than 1", { NE(0, 2, 4) } },
                  { "SHAPE", "differ in a dimension other than 1", { NE(0, 3, 1) } },
                  { "SHAPE", "4 rows of values, 3 ids", { NE(1, 0, 3) } },
                  { "SHAPE", "ids do not repeat", { NE(1, 1, 0) } },
                  { "SHAPE", "ids do not repeat", { NE(1, 2, 0) } },
                  { "SHAPE", "ids do not repeat", { NE(1, 3, 2) } },
                  { "SHAPE", "ids do not repeat", { NE(1, 1, 3) } },
                  { "SHAPE", "ids do not repeat", { NE(1, 2, 3) } },
                  { "STRIDE", "rows are not dense", { GAPS(0) } },
                  { "STRIDE", "rows are not dense", { GAPS(2) } }) },
        { HR_OP_CONCAT, F32(8, 6, 1, 1), 2, { F32(8, 4, 1, 1), F32(8, 2, 1, 1) }, { 1 },
          .types = { "f", "f" },
          .refusals = REFUSALS(
                  { "PARAM", "dimension -1", { WORD(0, -1) } },
                  { "PARAM", "dimension 4", { WORD(0, 4) } },
                  { "DTYPE", "f32 and f16", { TYPE(1, F16) } },
                  { "SHAPE", "extent 0 is 8 and 7", { NE(1, 0, 7) } },
                  { "SHAPE", "extent 3 is 1 and 2", { NE(1, 3, 2) } },
                  { "SIZE", "the sum of the extents does not fit",
                    { TYPE(0, I8), TYPE(1, I8), NE(0, 0, 0), NE(1, 0, 0), NE(0, 1, MOST) } }) },
        { HR_OP_REPEAT, F32(8, 4, 3, 1), 1, { F32(4, 2, 1, 1) }, { 0 }, .free = FREE_SHAPE,
          .refusals = REFUSALS(
                  { "SIZE", "the elements do not fit 64 bits",
                    { OWN_NE(2, HALF_OF_63_BITS) } },
                  { "SIZE", "the elements do not fit 64 bits", { OWN_NE(2, -1) } },
                  { "SHAPE", "no multiple of the source's", { OWN_NE(0, 9) } },
                  { "SHAPE", "no multiple of the source's", { NE(0, 1, 0) } }) },
        { HR_OP_REPEAT_BACK, F32(4, 2, 1, 1), 1, { F32(8, 4, 3, 1) }, { 0 }, .free = FREE_SHAPE,
          .refusals = REFUSALS(
                  { "SIZE", "the elements do not fit 64 bits",
                    { OWN_NE(2, HALF_OF_63_BITS) } },
                  { "SHAPE", "no multiple of the declared one", { OWN_NE(0, 3) } },
                  { "SHAPE", "no multiple of the declared one", { OWN_NE(1, 0) } }) },
        { HR_OP_SET, F32(8, 4, 1, 1), 2, { F32(8, 4, 1, 1), F32(4, 2, 1, 1) }, WINDOW_PARAMS,
          .types = { "f", "f" }, .contiguous = 1, .refusals = WINDOW_REFUSALS },
        { HR_OP_SET, F32(8, 4, 1, 1), 2, { F32(8, 4, 1, 1), F32(0, 2, 1, 1) },
          { 32, 128, 128, INT_MAX - 3, 1 }, .contiguous = 1, .refusals = NO_REFUSALS },
        { HR_OP_ACC, F32(8, 4, 1, 1), 2, { F32(8, 4, 1, 1), F32(4, 2, 1, 1) }, WINDOW_PARAMS,
          .types = { "f", "f" }, .contiguous = 1, .refusals = WINDOW_REFUSALS },
        { HR_OP_PAD, F32(6, 5, 2, 1), 1, { F32(4, 3, 2, 1) }, { 1, 1, 0, 2 },
          .refusals = REFUSALS(
                  { "PARAM", "circular is 2", { WORD(8, 2) } },
                  { "PARAM", "circular is -1", { WORD(8, -1) } },
                  { "PARAM", "a negative pad in dimension 0", { WORD(0, -1) } },
                  { "PARAM", "a negative pad in dimension 3", { WORD(7, -1) } },
                  { "SHAPE", "nothing to go round in dimension 0", { NE(0, 0, 0), WORD(8, 1) } },
                  { "SHAPE", "nothing to go round in dimension 1",
                    { NE(0, 1, 0), WORD(8, 1), WORD(2, INT_MAX), WORD(3, INT_MAX) } },
                  { "SHAPE", "nothing to go round in dimension 1", { NE(0, 1, 0), WORD(8, 1) } },
                  { "SIZE", "extent 1 does not fit",
                    { TYPE(0, I8), NE(0, 0, 0), NE(0, 1, MOST), NE(0, 2, 1), WORD(2, 1) } },
                  { "SIZE", "extent 1 does not fit",
                    { TYPE(0, I8), NE(0, 0, 0), NE(0, 1, MOST), NE(0, 2, 1) } }) },
        { HR_OP_PAD, F32(4, 0, 2, 1), 1, { F32(4, 0, 2, 1) }, { [8] = 1 },
          .refusals = NO_REFUSALS },
        { HR_OP_PAD_REFLECT_1D, F32(8, 2, 1, 1), 1, { F32(5, 2, 1, 1) }, { 2, 1 },
          .refusals = REFUSALS(
                  { "PARAM", "pads must be at least 0 and below the extent", { WORD(0, -1) } },
                  { "PARAM", "pads must be", { WORD(1, -1) } },
                  { "PARAM", "pads must be", { WORD(0, 5) } },
                  { "PARAM", "pads must be", { WORD(1, 5) } }) },
        { HR_OP_ROLL, F32(5, 2, 1, 1), 1, { F32(5, 2, 1, 1) }, { INT_MIN, INT_MAX, -1, 1 },
          .refusals = NO_REFUSALS },
        { HR_OP_DIAG, F32(5, 5, 2, 3), 1, { F32(5, 1, 2, 3) }, { 0 },
          .refusals = REFUSALS({ "SHAPE", "extent 1 is 2, not 1", { NE(0, 1, 2) } }) },
        { HR_OP_TRI, F32(4, 4, 2, 1), 1, { F32(4, 4, 2, 1) }, { 3 },
          .refusals = REFUSALS({ "PARAM", "triangle -1", { WORD(0, -1) } },
                               { "PARAM", "triangle 4", { WORD(0, 4) } },
                               { "SHAPE", "not square", { NE(0, 0, 3) } }) },
        { HR_OP_ARANGE, F32(8, 1, 1, 1), 0, { { 0 } }, { 0, EIGHT, ONE },
          .refusals = REFUSALS(
                  { "PARAM", "start is not finite", { WORD(0, NOT_A_NUMBER) } },
                  { "PARAM", "stop is not finite", { WORD(1, INFINITE) } },
                  { "PARAM", "step is not finite", { WORD(2, NOT_A_NUMBER) } },
                  { "PARAM", "give no elements", { WORD(0, EIGHT) } },
                  { "PARAM", "give no elements", { WORD(2, MINUS_ONE) } },
                  { "PARAM", "give no elements", { WORD(2, 0) } },
                  { "SIZE", "too many elements", { WORD(2, TINY) } }) },
};

const struct refusal_table refusals_of_shape = { "shape", nodes, HR_ARRAY_LENGTH(nodes) };
