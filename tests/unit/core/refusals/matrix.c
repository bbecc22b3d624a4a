/* Products, SOFT_MAX, ROPE and attention. */
#include "tests/unit/core/refusals/refusal.h"

#define REAL "fhb"
#define Q8_0(...) { HR_TYPE_Q8_0, { __VA_ARGS__ } }

/* 0, n_dims, mode, 0, n_ctx_orig, six floats, four sections, n_offs */
#define ROPE_PARAMS(dims, mode, section, offset)                                                   \
        { 0, dims, mode, 0, 0, ONE, ONE, 0, ONE, ONE, ONE, section, 0, 0, 0, offset }
#define ROPE_X F32(8, 3, 5, 2)

#define ROPE(op)                                                                                   \
        { op, ROPE_X, 3, { ROPE_X, I32(5, 1, 1, 1), F32(4, 1, 1, 1) }, ROPE_PARAMS(6, 0, 0, 2),    \
          .types = { "fh", "i", "f" }, .dense = 1, .contiguous = 2 | 4, .free = FREE_PARAMS,       \
          .refusals = REFUSALS(                                                                    \
                  { "PARAM", "words 0 and 3 are not used", { WORD(0, 1) } },                       \
                  { "PARAM", "words 0 and 3 are not used", { WORD(3, 1) } },                       \
                  { "PARAM", "mode 1", { WORD(2, 1) } },                                           \
                  { "PARAM", "n_dims is 0", { WORD(1, 0) } },                                      \
                  { "PARAM", "n_dims is 5", { WORD(1, 5) } },                                      \
                  { "PARAM", "n_dims is -2", { WORD(1, -2) } },                                    \
                  { "PARAM", "rotates 6 dimensions from 4 on, a row has 8", { WORD(15, 4) } },     \
                  { "PARAM", "rotates 6 dimensions from -2 on", { WORD(15, -2) } },                \
                  { "PARAM", "rotates 6 dimensions from 2147483647 on", { WORD(15, INT_MAX) } },   \
                  { "PARAM", "n_ctx_orig is negative", { WORD(4, -1) } },                          \
                  { "PARAM", "a rope parameter is not finite", { WORD(5, NOT_A_NUMBER) } },        \
                  { "PARAM", "a rope parameter is not finite", { WORD(7, INFINITE) } },            \
                  { "PARAM", "a rope parameter is not finite", { WORD(10, NOT_A_NUMBER) } },       \
                  { "PARAM", "freq_base is not above 0", { WORD(5, 0) } },                         \
                  { "PARAM", "freq_base is not above 0", { WORD(5, MINUS_ONE) } },                 \
                  { "DTYPE", "source 0 is bf16", { TYPE(0, BF16) } },                              \
                  { "DTYPE", "source 1 is f32, not i32", { TYPE(1, F32) } },                       \
                  { "STRIDE", "rows of source 0 are not dense", { GAPS(0) } },                     \
                  { "SHAPE", "4 positions for 5 tokens", { NE(1, 0, 4) } },                        \
                  { "SHAPE", "5 positions for 5 tokens", { NE(1, 1, 2) } },                        \
                  { "SHAPE", "positions for", { GAPS(1) } },                                       \
                  { "DTYPE", "source 2 is f16, not f32", { TYPE(2, F16) } },                       \
                  { "SHAPE", "2 frequency factors for 6 dimensions", { NE(2, 0, 2) } },            \
                  { "SHAPE", "4 frequency factors", { NE(2, 1, 0) } },                             \
                  { "SHAPE", "4 frequency factors", { GAPS(2) } }) }

static const struct refusal_node nodes[] = {
        { HR_OP_MUL_MAT, F32(4, 5, 6, 2), 2, { F32(8, 4, 3, 1), F32(8, 5, 6, 2) }, { 10, 1 },
          .types = { REAL, REAL }, .dense = 1,
          .refusals = REFUSALS(
                  { "PARAM", "precision 1", { WORD(0, 1) } },
                  { "PARAM", "hint 2", { WORD(1, 2) } },
                  { "PARAM", "hint -1", { WORD(1, -1) } },
                  { "SHAPE", "rows of 9 and of 8 elements", { NE(0, 0, 9) } },
                  { "SHAPE", "no multiples of source 0's", { NE(0, 2, 4) } },
                  { "SHAPE", "no multiples of source 0's", { NE(0, 3, 3) } },
                  { "SHAPE", "no multiples of source 0's", { NE(0, 2, 0) } },
                  { "DTYPE", "source 1 is i32", { TYPE(1, I32) } },
                  { "DTYPE", "source 0 is i8", { TYPE(0, I8) } },
                  { "STRIDE", "rows of source 0 are not dense", { GAPS(0) } }) },
        { HR_OP_MUL_MAT, F32(4, 5, 0, 1), 2, { F32(8, 4, 0, 1), F32(8, 5, 0, 1) }, { 0 },
          .types = { REAL, REAL }, .refusals = NO_REFUSALS },
        { HR_OP_MUL_MAT_ID, F32(4, 2, 5, 1), 3,
          { Q8_0(32, 4, 6, 1), F32(32, 1, 5, 1), I32(2, 5, 1, 1) }, { 10 },
          .types = { REAL, REAL, "i" }, .dense = 1,
          .refusals = REFUSALS(
                  { "PARAM", "precision 9", { WORD(0, 9) } },
                  { "DTYPE", "source 2 is i64, not i32", { TYPE(2, I64) } },
                  { "DTYPE", "source 1 is i32", { TYPE(1, I32) } },
                  { "DTYPE", "source 1 is q8_0", { TYPE(1, Q8_0) } },
                  { "DTYPE", "source 0 is i16", { TYPE(0, I16) } },
                  { "SHAPE", "rows of 64 and of 32 elements", { NE(0, 0, 64) } },
                  { "SHAPE", "an outer dimension is not 1", { NE(0, 3, 2) } },
                  { "SHAPE", "an outer dimension is not 1", { NE(1, 3, 2) } },
                  { "SHAPE", "an outer dimension is not 1", { NE(2, 2, 2) } },
                  { "SHAPE", "an outer dimension is not 1", { NE(2, 3, 2) } },
                  { "SHAPE", "ids of 4 tokens, activations of 5", { NE(2, 1, 4) } },
                  { "SHAPE", "2 used experts, 3 rows of activations", { NE(1, 1, 3) } },
                  { "SHAPE", "2 used experts, 0 rows of activations", { NE(1, 1, 0) } },
                  { "STRIDE", "rows of source 0 are not dense", { TYPE(0, F32), GAPS(0) } }) },
        { HR_OP_OUT_PROD, F32(4, 5, 6, 2), 2, { F32(4, 8, 3, 1), F32(5, 8, 6, 2) }, { 0 },
          .types = { REAL, "f" },
          .refusals = REFUSALS(
                  { "SHAPE", "7 and 8 rows", { NE(0, 1, 7) } },
                  { "SHAPE", "no multiples of source 0's", { NE(0, 2, 4) } },
                  { "SHAPE", "no multiples of source 0's", { NE(0, 3, 3) } },
                  { "DTYPE", "source 0 is i32", { TYPE(0, I32) } },
                  { "DTYPE", "source 1 is f16, not f32", { TYPE(1, F16) } }) },
        { HR_OP_SOFT_MAX, F32(8, 3, 4, 2), 3, { F32(8, 3, 4, 2), F16(8, 5, 2, 1), F32(4, 1, 1, 1) },
          { ONE, ONE }, .types = { "f", "fh", "f" }, .dense = 1 | 2, .contiguous = 4,
          .refusals = REFUSALS(
                  { "PARAM", "scale is not finite", { WORD(0, NOT_A_NUMBER) } },
                  { "PARAM", "max_bias is not finite", { WORD(1, INFINITE) } },
                  { "PARAM", "max_bias is negative", { WORD(1, MINUS_ONE) } },
                  { "PARAM", "max_bias without a mask", { ABSENT(1) } },
                  { "DTYPE", "source 0 is f16, not f32", { TYPE(0, F16) } },
                  { "DTYPE", "the mask is bf16", { TYPE(1, BF16) } },
                  { "STRIDE", "rows of source 0 are not dense", { GAPS(0) } },
                  { "STRIDE", "rows of source 1 are not dense", { GAPS(1) } },
                  { "SHAPE", "the mask does not cover source 0", { NE(1, 0, 9) } },
                  { "SHAPE", "the mask does not cover source 0", { NE(1, 1, 2) } },
                  { "SHAPE", "the mask does not cover source 0", { NE(1, 2, 3) } },
                  { "SHAPE", "the mask does not cover source 0", { NE(1, 2, 0) } },
                  { "SHAPE", "the mask does not cover source 0", { NE(1, 3, 3) } },
                  { "DTYPE", "source 2 is f16, not f32", { TYPE(2, F16) } },
                  { "SHAPE", "3 sinks for 4 heads", { NE(2, 0, 3) } },
                  { "SHAPE", "4 sinks for 4 heads", { NE(2, 1, 2) } },
                  { "SHAPE", "4 sinks for 4 heads", { GAPS(2) } }) },
        { HR_OP_SOFT_MAX, F32(8, 3, 4, 2), 1, { F32(8, 3, 4, 2) }, { ONE }, .types = { "f" },
          .dense = 1,
          .refusals = REFUSALS({ "PARAM", "max_bias without a mask", { WORD(1, ONE) } }) },
        ROPE(HR_OP_ROPE),
        ROPE(HR_OP_ROPE_BACK),
        { HR_OP_ROPE, ROPE_X, 2, { ROPE_X, I32(20, 1, 1, 1) }, ROPE_PARAMS(8, 8, 2, 0),
          .types = { "fh", "i" }, .dense = 1, .contiguous = 2, .free = FREE_PARAMS,
          .refusals = REFUSALS({ "PARAM", "a section is negative", { WORD(12, -1) } },
                               { "PARAM", "all sections are empty", { WORD(11, 0) } },
                               { "SHAPE", "5 positions for 5 tokens", { NE(1, 0, 5) } },
                               { "PARAM", "mode 16", { WORD(2, 16) } }) },
        { HR_OP_ROPE, ROPE_X, 3, { ROPE_X, I32(20, 1, 1, 1), F32(4, 1, 1, 1) },
          ROPE_PARAMS(4, 24, 2, 0), .types = { "fh", "i", "f" }, .dense = 1, .contiguous = 2 | 4,
          .free = FREE_PARAMS,
          .refusals = REFUSALS({ "SHAPE", "3 frequency factors for 4 dimensions", { NE(2, 0, 3) } },
                               { "PARAM", "vision needs n_dims of half a row", { WORD(1, 2) } },
                               { "PARAM", "vision needs n_dims of half a row and no offset",
                                 { WORD(15, 1) } }) },
        { HR_OP_ROPE, ROPE_X, 2, { ROPE_X, I32(20, 1, 1, 1) }, ROPE_PARAMS(8, 40, 2, 0),
          .types = { "fh", "i" }, .dense = 1, .contiguous = 2, .free = FREE_PARAMS,
          .refusals = NO_REFUSALS },
        { HR_OP_ROPE, ROPE_X, 2, { ROPE_X, I32(5, 1, 1, 1) }, ROPE_PARAMS(8, 2, 0, 0),
          .types = { "fh", "i" }, .dense = 1, .contiguous = 2, .free = FREE_PARAMS,
          .refusals = NO_REFUSALS },
        { HR_OP_FLASH_ATTN_EXT, F32(16, 6, 5, 2), 3,
          { F32(8, 5, 6, 2), F16(8, 7, 3, 1), F16(16, 7, 3, 1) }, { ONE },
          .types = { "f", REAL, REAL }, .dense = 7,
          .refusals = REFUSALS({ "PARAM", "max_bias without a mask", { WORD(1, ONE) } }) },
        { HR_OP_FLASH_ATTN_EXT, F32(16, 6, 5, 2), 5,
          { F32(8, 5, 6, 2), F16(8, 7, 3, 1), F16(16, 7, 3, 1), F16(7, 5, 3, 2), F32(6, 1, 1, 1) },
          { ONE, ONE, ONE, 10 }, .types = { "f", REAL, REAL, "h", "f" }, .dense = 7,
          .contiguous = 8 | 16,
          .refusals = REFUSALS(
                  { "PARAM", "precision 1", { WORD(3, 1) } },
                  { "PARAM", "a parameter is not finite", { WORD(0, INFINITE) } },
                  { "PARAM", "a parameter is not finite", { WORD(1, NOT_A_NUMBER) } },
                  { "PARAM", "a parameter is not finite", { WORD(2, NOT_A_NUMBER) } },
                  { "PARAM", "max_bias is negative", { WORD(1, MINUS_ONE) } },
                  { "PARAM", "max_bias without a mask", { ABSENT(3) } },
                  { "DTYPE", "source 0 is f16, not f32", { TYPE(0, F16) } },
                  { "STRIDE", "rows of source 0 are not dense", { GAPS(0) } },
                  { "STRIDE", "rows of source 2 are not dense", { GAPS(2) } },
                  { "DTYPE", "keys are i32, values f16", { TYPE(1, I32) } },
                  { "DTYPE", "keys are f16, values i32", { TYPE(2, I32) } },
                  { "SHAPE", "queries of 8 elements, keys of 9", { NE(1, 0, 9) } },
                  { "SHAPE", "no multiples of the keys'", { NE(1, 2, 4) } },
                  { "SHAPE", "no multiples of the keys'", { NE(1, 3, 3) } },
                  { "SHAPE", "no multiples of the keys'", { NE(1, 2, 0) } },
                  { "SHAPE", "values and keys differ", { NE(2, 1, 6) } },
                  { "SHAPE", "values and keys differ", { NE(2, 2, 1) } },
                  { "SHAPE", "values and keys differ", { NE(2, 3, 2) } },
                  { "DTYPE", "source 3 is f32, not f16", { TYPE(3, F32) } },
                  { "STRIDE", "the mask is not contiguous", { APART(3) } },
                  { "SHAPE", "the mask does not cover keys and queries", { NE(3, 0, 6) } },
                  { "SHAPE", "the mask does not cover keys and queries", { NE(3, 1, 4) } },
                  { "SHAPE", "the mask does not cover keys and queries", { NE(3, 2, 4) } },
                  { "SHAPE", "the mask does not cover keys and queries", { NE(3, 3, 3) } },
                  { "DTYPE", "source 4 is f16, not f32", { TYPE(4, F16) } },
                  { "SHAPE", "5 sinks for 6 heads", { NE(4, 0, 5) } },
                  { "SHAPE", "6 sinks for 6 heads", { NE(4, 2, 2) } },
                  { "SHAPE", "6 sinks for 6 heads", { GAPS(4) } }) },
};

const struct refusal_table refusals_of_matrix = { "matrix", nodes, HR_ARRAY_LENGTH(nodes) };
