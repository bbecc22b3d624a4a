/* Element-wise functions, reductions and norms. */
#include "tests/unit/core/refusals/refusal.h"

#define REAL "fhb"
#define X F32(8, 4, 2, 1)
#define SOURCE_IS_INTEGER { "DTYPE", "source 0 is i32", { TYPE(0, I32) } }

#define BINARY(op)                                                                                 \
        { op, X, 2, { X, F32(4, 2, 1, 1) }, { 0 }, .types = { REAL, REAL },                        \
          .refusals = REFUSALS({ "DTYPE", "source 1 is i32", { TYPE(1, I32) } },                   \
                               { "DTYPE", "source 1 is q8_0", { TYPE(1, Q8_0), NE(1, 0, 32) } },   \
                               SOURCE_IS_INTEGER,                                                  \
                               { "SHAPE", "source 1 [3,2,1,1] does not repeat to source 0",        \
                                 { NE(1, 0, 3) } },                                                \
                               { "SHAPE", "does not repeat", { NE(1, 0, 0) } }) }

#define MAP(op)                                                                                    \
        { op, X, 1, { X }, { 0 }, .types = { REAL }, .refusals = REFUSALS(SOURCE_IS_INTEGER) }

#define NORM(op)                                                                                   \
        { op, X, 1, { X }, { ONE }, .types = { "f" },                                              \
          .refusals = REFUSALS({ "PARAM", "epsilon is not finite", { WORD(0, NOT_A_NUMBER) } },    \
                               { "PARAM", "epsilon is negative", { WORD(0, MINUS_ONE) } },         \
                               { "DTYPE", "the source is f16, not f32", { TYPE(0, F16) } }) }

#define INDEX_DOES_NOT_FIT                                                                         \
        { "SIZE", "an index does not fit i32", { NE(0, 0, INT64_C(1) << 31), NE(0, 1, 0) } }

static const struct refusal_node nodes[] = {
        BINARY(HR_OP_ADD),
        BINARY(HR_OP_SUB),
        BINARY(HR_OP_MUL),
        BINARY(HR_OP_DIV),
        { HR_OP_ADD, { HR_TYPE_Q8_0, { 32, 4, 2, 1 } }, 2,
          { { HR_TYPE_Q8_0, { 32, 4, 2, 1 } }, F32(32, 1, 1, 1) }, { 0 }, .types = { NULL, REAL },
          .refusals = NO_REFUSALS },
        { HR_OP_SUB, F32(32, 4, 2, 1), 2, { F32(32, 4, 2, 1), F32(32, 1, 1, 1) }, { 0 },
          .refusals = REFUSALS({ "DTYPE", "source 0 is q8_0", { TYPE(0, Q8_0) } }) },
        { HR_OP_ADD1, X, 2, { X, F32(1, 1, 1, 1) }, { 0 }, .types = { REAL, REAL },
          .refusals = REFUSALS({ "SHAPE", "source 1 is no scalar", { NE(1, 0, 2) } },
                               { "SHAPE", "source 1 is no scalar", { NE(1, 3, 0) } }) },
        { HR_OP_ADD_ID, F32(8, 3, 5, 1), 3, { F32(8, 3, 5, 1), F32(8, 6, 1, 1), I32(3, 5, 1, 1) },
          { 0 }, .types = { REAL, REAL, "i" },
          .refusals = REFUSALS(
                  { "DTYPE", "ids are i64, not i32", { TYPE(2, I64) } },
                  { "SHAPE", "rows of source 1 have 7 elements, of source 0 8", { NE(1, 0, 7) } },
                  { "SHAPE", "rows of source 1", { NE(1, 2, 2) } },
                  { "SHAPE", "rows of source 1", { NE(1, 3, 2) } },
                  { "SHAPE", "ids do not match", { NE(2, 0, 2) } },
                  { "SHAPE", "ids do not match", { NE(2, 1, 4) } },
                  { "SHAPE", "ids do not match", { NE(0, 3, 2) } },
                  { "SHAPE", "ids do not match", { NE(2, 2, 2) } },
                  { "SHAPE", "ids do not match", { NE(2, 3, 2) } }) },
        { HR_OP_SCALE, X, 1, { X }, { ONE, ONE }, .types = { REAL },
          .refusals = REFUSALS({ "PARAM", "factor is not finite", { WORD(0, NOT_A_NUMBER) } },
                               { "PARAM", "bias is not finite", { WORD(1, INFINITE) } }) },
        { HR_OP_CLAMP, X, 1, { X }, { MINUS_ONE, INFINITE }, .types = { REAL },
          .refusals = REFUSALS({ "PARAM", "bounds 8 and nan", { WORD(0, EIGHT), WORD(1,
            NOT_A_NUMBER) } },
                               { "PARAM", "bounds 8 and 1", { WORD(0, EIGHT), WORD(1, ONE) } }) },
        MAP(HR_OP_SQR),
        MAP(HR_OP_SQRT),
        MAP(HR_OP_LOG),
        MAP(HR_OP_SIN),
        MAP(HR_OP_COS),
        MAP(HR_OP_CUMSUM),
        { HR_OP_FILL, X, 1, { X }, { NOT_A_NUMBER }, .types = { REAL },
          .refusals = REFUSALS(SOURCE_IS_INTEGER) },
        { HR_OP_LEAKY_RELU, X, 1, { X }, { ONE }, .types = { REAL },
          .refusals = REFUSALS({ "PARAM", "slope is not finite", { WORD(0, INFINITE) } }) },
        { HR_OP_UNARY, X, 1, { X }, { HR_UNARY_EXP }, .types = { REAL },
          .refusals = REFUSALS({ "PARAM", "function -1", { WORD(0, -1) } },
                               { "PARAM", "function 22", { WORD(0, HR_UNARY_COUNT) } },
                               { "PARAM", "unused word 1", { WORD(1, ONE) } }) },
        { HR_OP_UNARY, X, 1, { X }, { HR_UNARY_XIELU, ONE, ONE, ONE, ONE }, .types = { REAL },
          .refusals = REFUSALS(
                  { "PARAM", "xielu parameter is not finite", { WORD(1, NOT_A_NUMBER) } },
                  { "PARAM", "xielu parameter is not finite", { WORD(4, INFINITE) } }) },
        { HR_OP_GLU, X, 2, { X, X }, { HR_GLU_REGLU, 1 }, .types = { "f", "f" }, .dense = 3,
          .refusals = REFUSALS({ "PARAM", "function -1", { WORD(0, -1) } },
                               { "PARAM", "function 6", { WORD(0, HR_GLU_COUNT) } },
                               { "PARAM", "swapped is 2", { WORD(1, 2) } },
                               { "PARAM", "swapped is -1", { WORD(1, -1) } },
                               { "PARAM", "unused word 2", { WORD(2, ONE) } },
                               { "SHAPE", "the two sources differ in type or shape", { TYPE(1,
                                 F16) } },
                               { "SHAPE", "the two sources differ in type or shape", { NE(1, 1,
                                 3) } },
                               { "STRIDE", "rows of source 0 are not dense", { GAPS(0) } },
                               { "STRIDE", "rows of source 1 are not dense", { GAPS(1) } }) },
        { HR_OP_GLU, F32(4, 4, 2, 1), 1, { X }, { HR_GLU_SWIGLU_OAI, 0, ONE, INFINITE },
          .types = { REAL }, .dense = 1,
          .refusals = REFUSALS({ "PARAM", "alpha is not finite", { WORD(2, NOT_A_NUMBER) } },
                               { "PARAM", "a limit below 0", { WORD(3, MINUS_ONE) } },
                               { "PARAM", "a limit below 0", { WORD(3, NOT_A_NUMBER) } },
                               { "PARAM", "unused word 4", { WORD(4, 1) } },
                               { "SHAPE", "extent 0 is 7, not two halves", { NE(0, 0, 7) } }) },
        { HR_OP_SUM, F32(1, 1, 1, 1), 1, { X }, { 0 }, .types = { REAL },
          .refusals = REFUSALS(SOURCE_IS_INTEGER) },
        { HR_OP_SUM_ROWS, F32(1, 4, 2, 1), 1, { X }, { 0 }, .types = { REAL },
          .refusals = REFUSALS(SOURCE_IS_INTEGER) },
        { HR_OP_MEAN, F32(1, 4, 2, 1), 1, { X }, { 0 }, .types = { REAL },
          .refusals = REFUSALS(SOURCE_IS_INTEGER) },
        { HR_OP_ARGMAX, I32(4, 1, 1, 1), 1, { F32(8, 4, 1, 1) }, { 0 }, .types = { REAL },
          .refusals = REFUSALS(SOURCE_IS_INTEGER,
                               { "SHAPE", "the source is no matrix", { NE(0, 2, 2) } },
                               { "SHAPE", "the source is no matrix", { NE(0, 3, 2) } },
                               INDEX_DOES_NOT_FIT) },
        { HR_OP_ARGSORT, I32(8, 4, 2, 1), 1, { X }, { 1 }, .types = { REAL },
          .refusals = REFUSALS({ "PARAM", "order 2", { WORD(0, 2) } },
                               { "PARAM", "order -1", { WORD(0, -1) } }, INDEX_DOES_NOT_FIT) },
        { HR_OP_ARGSORT, I32(8, 4, 2, 1), 1, { X }, { 0 }, .types = { REAL },
          .refusals = NO_REFUSALS },
        { HR_OP_TOP_K, I32(3, 4, 2, 1), 1, { X }, { 0 }, .types = { REAL }, .free = FREE_SHAPE,
          .refusals = REFUSALS({ "SHAPE", "9 of 8 elements", { OWN_NE(0, 9) } },
                               { "SHAPE", "-1 of 8 elements", { OWN_NE(0, -1) } },
                               INDEX_DOES_NOT_FIT) },
        { HR_OP_COUNT_EQUAL, I64(1, 1, 1, 1), 2, { I32(8, 4, 1, 1), I32(8, 4, 1, 1) }, { 0 },
          .types = { "i", "i" },
          .refusals = REFUSALS({ "DTYPE", "both sources must be i32", { TYPE(0, F32) } },
                               { "DTYPE", "both sources must be i32", { TYPE(1, I64) } },
                               { "SHAPE", "the two sources differ in shape", { NE(1, 1, 3) } }) },
        NORM(HR_OP_NORM),
        NORM(HR_OP_RMS_NORM),
        NORM(HR_OP_L2_NORM),
        { HR_OP_GROUP_NORM, F32(8, 4, 6, 1), 1, { F32(8, 4, 6, 1) }, { 6, ONE }, .types = { "f" },
          .refusals = REFUSALS({ "PARAM", "epsilon is not finite", { WORD(1, INFINITE) } },
                               { "PARAM", "epsilon is negative", { WORD(1, MINUS_ONE) } },
                               { "PARAM", "0 groups of 6 channels", { WORD(0, 0) } },
                               { "PARAM", "-1 groups", { WORD(0, -1) } },
                               { "PARAM", "7 groups of 6 channels", { WORD(0, 7) } }) },
        { HR_OP_GROUP_NORM, F32(8, 0, 2, 1), 1, { F32(8, 0, 2, 1) }, { 6, ONE }, .types = { "f" },
          .refusals = NO_REFUSALS },
        { HR_OP_DIAG_MASK_INF, X, 1, { X }, { 3 }, .types = { REAL },
          .refusals = REFUSALS({ "PARAM", "n_past is -1", { WORD(0, -1) } }) },
        { HR_OP_DIAG_MASK_ZERO, X, 1, { X }, { 3 }, .types = { REAL },
          .refusals = REFUSALS({ "PARAM", "n_past is -1", { WORD(0, -1) } }) },
        { HR_OP_TIMESTEP_EMBEDDING, F32(7, 3, 1, 1), 1, { F32(3, 1, 1, 1) }, { 7, 100 },
          .types = { "f" },
          .refusals = REFUSALS({ "SHAPE", "the source is no vector of f32", { TYPE(0, F16) } },
                               { "SHAPE", "no vector", { NE(0, 1, 2) } },
                               { "SHAPE", "no vector", { NE(0, 2, 2) } },
                               { "SHAPE", "no vector", { NE(0, 3, 2) } },
                               { "PARAM", "dim and max_period must be above 0", { WORD(0, 0) } },
                               { "PARAM", "dim and max_period", { WORD(1, -1) } }) },
};

const struct refusal_table refusals_of_math = { "math", nodes, HR_ARRAY_LENGTH(nodes) };
