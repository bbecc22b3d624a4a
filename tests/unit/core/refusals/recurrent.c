/* Recurrences over tokens and the small operators of the models around them. */
#include "tests/unit/core/refusals/refusal.h"

#define REAL "fhb"
#define X F32(8, 2, 6, 1)
#define WKV_STATE F32(128, 3, 1, 1)
#define BIG (INT64_C(1) << 32)

#define WKV_REFUSALS(state)                                                                        \
        { "DTYPE", "source 0 is f16, not f32", { TYPE(0, F16) } },                                 \
                { "STRIDE", "source 1 is not contiguous", { APART(1) } },                          \
                { "STRIDE", "rows of source 0 are not dense", { GAPS(0) } },                       \
                { "SHAPE", "source 1 is [7,2,6,1], not [8,2,6,1]", { NE(1, 0, 7) } },              \
                { "SHAPE", "source 1 is [8,3,6,1]", { NE(1, 1, 3) } },                             \
                { "SHAPE", "source 1 is [8,2,5,1]", { NE(1, 2, 5) } },                             \
                { "SHAPE", "source 1 is [8,2,6,2]", { NE(1, 3, 2) } },                             \
                { "SHAPE", "source 0 is [8,2,6,2]", { NE(0, 3, 2) } },                             \
                { "SHAPE", "6 tokens for 4 sequences", { NE(state, 1, 4) } },                      \
                { "SHAPE", "6 tokens for 0 sequences", { NE(state, 1, 0) } },                      \
                { "SHAPE", "is [127,3,1,1], not [128,3,1,1]", { NE(state, 0, 127) } },             \
                { "SHAPE", "is [128,3,2,1], not [128,3,1,1]", { NE(state, 2, 2) } }

#define SCAN_STATE F32(16, 4, 6, 3)
#define SCAN_B F32(16, 2, 8, 2)

static const struct refusal_node nodes[] = {
        { HR_OP_SSM_CONV, F32(32, 6, 2, 1), 2, { F32(8, 32, 2, 1), F32(3, 32, 1, 1) }, { 0 },
          .types = { "f", "f" }, .dense = 3,
          .refusals = REFUSALS(
                  { "SHAPE", "an outer dimension is not 1", { NE(0, 3, 2) } },
                  { "SHAPE", "an outer dimension is not 1", { NE(1, 2, 2) } },
                  { "SHAPE", "an outer dimension is not 1", { NE(1, 3, 2) } },
                  { "SHAPE", "32 channels, weights for 31", { NE(1, 1, 31) } },
                  { "SHAPE", "0 weights on 8 elements", { NE(1, 0, 0) } },
                  { "SHAPE", "10 weights on 8 elements", { NE(1, 0, 10) } }) },
        { HR_OP_SSM_SCAN, F32(384 + 768, 1, 1, 1), 7,
          { SCAN_STATE, F32(4, 6, 8, 2), F32(6, 8, 2, 1), F32(16, 6, 1, 1), SCAN_B, SCAN_B,
            I32(2, 1, 1, 1) }, { 1 }, .types = { "f", "f", "f", "f", "f", "f", "i" },
          .dense = 0x7e, .contiguous = 1,
          .refusals = REFUSALS(
                  { "PARAM", "0 snapshots", { WORD(0, 0) } },
                  { "PARAM", "-1 snapshots", { WORD(0, -1) } },
                  { "STRIDE", "source 0 is not contiguous", { APART(0) } },
                  { "STRIDE", "rows of source 6 are not dense", { GAPS(6) } },
                  { "SHAPE", "heads of 4 by 6, states of 5 by 6", { NE(0, 1, 5) } },
                  { "SHAPE", "heads of 4 by 6, states of 4 by 5", { NE(0, 2, 5) } },
                  { "SHAPE", "source 2 is [5,8,2,1], not [6,8,2,1]", { NE(2, 0, 5) } },
                  { "SHAPE", "a decay of 15 elements with 1 snapshots", { NE(3, 0, 15) } },
                  { "SHAPE", "a decay of 16 elements with 2 snapshots", { WORD(0, 2) } },
                  { "SHAPE", "source 3 is [16,5,1,1], not [16,6,1,1]", { NE(3, 1, 5) } },
                  { "SHAPE", "4 groups of 6 heads", { NE(4, 1, 4) } },
                  { "SHAPE", "0 groups of 6 heads", { NE(4, 1, 0) } },
                  { "SHAPE", "source 4 is [16,2,7,2], not [16,2,8,2]", { NE(4, 2, 7) } },
                  { "SHAPE", "source 5 is [16,3,8,2], not [16,2,8,2]", { NE(5, 1, 3) } },
                  { "SHAPE", "source 6 is [3,1,1,1], not [2,1,1,1]", { NE(6, 0, 3) } }) },
        /* More states than 63 bits count; as many as they do, and outputs before them. */
        { HR_OP_SSM_SCAN, F32(3, 1, 1, 1), 7,
          { F32(1, 1, 1, 1), F32(1, 1, 2, 1), F32(1, 2, 1, 1), F32(1, 1, 1, 1), F32(1, 1, 2, 1),
            F32(1, 1, 2, 1), I32(1, 1, 1, 1) }, { 1 }, .refusals = REFUSALS(
                  { "SIZE", "an extent does not fit 63 bits",
                    { NE(0, 0, INT64_C(1) << 40), NE(4, 0, INT64_C(1) << 40),
                      NE(5, 0, INT64_C(1) << 40), WORD(0, INT_MAX) } },
                  { "SIZE", "an extent does not fit 63 bits",
                    { NE(0, 1, BIG), NE(1, 0, BIG), WORD(0, INT_MAX) } }),
          .dense = 0x7e, .contiguous = 1 },
        { HR_OP_RWKV_WKV6, F32(16, 6 + 24, 1, 1), 6, { X, X, X, F32(8, 2, 1, 1), X, WKV_STATE },
          { 0 },
          .types = { "f", "f", "f", "f", "f", "f" }, .contiguous = 0x3f,
          .refusals = REFUSALS(WKV_REFUSALS(5),
                               { "SHAPE", "source 3 is [8,2,6,1], not [8,2,1,1]", { NE(3, 2, 6) } },
                               { "SHAPE", "source 3 is [8,2,1,2]", { NE(3, 3, 2) } }) },
        { HR_OP_RWKV_WKV7, F32(16, 6 + 24, 1, 1), 7, { X, X, X, X, X, X, WKV_STATE }, { 0 },
          .types = { "f", "f", "f", "f", "f", "f", "f" }, .contiguous = 0x7f,
          .refusals = REFUSALS(WKV_REFUSALS(6)) },
        { HR_OP_GATED_LINEAR_ATTN, F32(16, 6 + 24, 1, 1), 5, { X, X, X, X, WKV_STATE }, { ONE },
          .types = { "f", "f", "f", "f", "f" }, .contiguous = 0x1f,
          .refusals = REFUSALS(WKV_REFUSALS(4),
                               { "PARAM", "scale is not finite", { WORD(0, INFINITE) } }) },
        { HR_OP_GATED_LINEAR_ATTN, F32(0, 0, 1, 1), 5,
          { F32(0, 0, 0, 1), F32(0, 0, 0, 1), F32(0, 0, 0, 1), F32(0, 0, 0, 1), F32(0, 3, 1, 1) },
          { ONE }, .types = { "f", "f", "f", "f", "f" },
          .refusals = REFUSALS(
                  { "SIZE", "an extent does not fit 63 bits",
                    { NE(0, 0, BIG), NE(1, 0, BIG), NE(2, 0, BIG), NE(3, 0, BIG) } },
                  { "SIZE", "an extent does not fit 63 bits",
                    { NE(0, 0, BIG >> 2), NE(1, 0, BIG >> 2), NE(2, 0, BIG >> 2), NE(3, 0,
                      BIG >> 2),
                      NE(4, 1, INT64_C(1) << 50) } }) },
        { HR_OP_GATED_DELTA_NET, F32(64, 8 + 32, 1, 1), 6,
          { F32(16, 2, 4, 1), F32(16, 2, 4, 2), F32(16, 4, 4, 2), F32(16, 4, 4, 2), F32(1, 4, 4, 2),
            F32(16, 16, 4, 2) }, { 1 }, .types = { "f", "f", "f", "f", "f", "f" }, .dense = 0x1f,
          .contiguous = 0x20,
          .refusals = REFUSALS(
                  { "PARAM", "0 snapshots", { WORD(0, 0) } },
                  { "SHAPE", "source 0 is [15,2,4,1], not [16,2,4,1]", { NE(0, 0, 15) } },
                  { "SHAPE", "source 1 is [16,2,3,2], not [16,2,4,2]", { NE(1, 2, 3) } },
                  { "SHAPE", "source 0 has 3 heads and 1 sequences, values 4 and 2", { NE(0, 1,
                    3) } },
                  { "SHAPE", "source 1 has 0 heads", { NE(1, 1, 0) } },
                  { "SHAPE", "source 1 has 2 heads and 0 sequences", { NE(1, 3, 0) } },
                  { "SHAPE", "source 1 has 2 heads and 3 sequences", { NE(1, 3, 3) } },
                  { "SHAPE", "a gate of 2 elements", { NE(3, 0, 2) } },
                  { "SHAPE", "source 3 is [16,4,4,1], not [16,4,4,2]", { NE(3, 3, 1) } },
                  { "SHAPE", "source 4 is [2,4,4,2], not [1,4,4,2]", { NE(4, 0, 2) } },
                  { "SHAPE", "source 5 is [16,15,4,2], not [16,16,4,2]", { NE(5, 1, 15) } },
                  { "STRIDE", "source 5 is not contiguous", { APART(5) } }) },
        /* No heads of the values, so that the rows alone count. */
        { HR_OP_GATED_DELTA_NET, F32(0, 3, 1, 1), 6,
          { F32(1, 1, 2, 1), F32(1, 1, 2, 1), F32(1, 0, 2, 1), F32(1, 0, 2, 1), F32(1, 0, 2, 1),
            F32(1, 1, 0, 1) }, { 1 }, .dense = 0,
          .refusals = REFUSALS(
                  { "SIZE", "an extent does not fit 63 bits",
                    { NE(2, 3, 2 * BIG), NE(3, 3, 2 * BIG), NE(4, 3, 2 * BIG), NE(5, 3, 2 * BIG),
                      WORD(0, INT_MAX) } },
                  { "SIZE", "an extent does not fit 63 bits",
                    { NE(2, 3, BIG), NE(3, 3, BIG), NE(4, 3, BIG), NE(5, 3, BIG),
                      WORD(0, INT_MAX) } }) },
        { HR_OP_SOLVE_TRI, F32(3, 10, 2, 2), 2, { F32(10, 10, 2, 2), F32(3, 10, 2, 2) }, { 0 },
          .types = { "f", "f" }, .dense = 3,
          .refusals = REFUSALS(
                  { "SHAPE", "source 0 is [11,10,2,2], not [10,10,2,2]", { NE(0, 0, 11) } },
                  { "SHAPE", "source 0 is [10,10,2,1]", { NE(0, 3, 1) } }) },
        { HR_OP_LIGHTNING_INDEXER, F32(20, 2, 1, 2), 4,
          { F32(64, 4, 2, 2), F16(64, 1, 20, 2), F32(4, 2, 1, 2), F16(20, 2, 1, 1) }, { 0 },
          .types = { "f", REAL, "f", "h" }, .dense = 0xf,
          .refusals = REFUSALS(
                  { "DTYPE", "source 0 is f16, not f32", { TYPE(0, F16) } },
                  { "DTYPE", "source 2 is f16, not f32", { TYPE(2, F16) } },
                  { "DTYPE", "source 3 is f32, not f16", { TYPE(3, F32) } },
                  { "DTYPE", "keys are i8", { TYPE(1, I8) } },
                  { "STRIDE", "rows of source 3 are not dense", { GAPS(3) } },
                  { "SHAPE", "source 1 is [64,2,20,2], not [64,1,20,2]", { NE(1, 1, 2) } },
                  { "SHAPE", "source 2 is [5,2,1,2], not [4,2,1,2]", { NE(2, 0, 5) } },
                  { "SHAPE", "source 3 is [19,2,1,1], not [20,2,1,1]", { NE(3, 0, 19) } },
                  { "SHAPE", "0 masks for 2 sequences", { NE(3, 3, 0) } },
                  { "SHAPE", "3 masks for 2 sequences", { NE(3, 3, 3) } }) },
        { HR_OP_DSV4_HC_COMB, F32(4, 4, 7, 1), 3, { F32(24, 7, 1, 1), F32(3, 1, 1, 1), F32(24, 1,
          1, 1) },
          { ONE, 4 }, .types = { "f", "f", "f" }, .dense = 7,
          .refusals = REFUSALS(
                  { "PARAM", "epsilon is not finite", { WORD(0, NOT_A_NUMBER) } },
                  { "PARAM", "epsilon is negative", { WORD(0, MINUS_ONE) } },
                  { "PARAM", "0 iterations", { WORD(1, 0) } },
                  { "PARAM", "65537 iterations, 1 to 65536 are possible", { WORD(1, 65537) } },
                  { "SHAPE", "source 0 is [23,7,1,1], not [24,7,1,1]", { NE(0, 0, 23) } },
                  { "SHAPE", "2 scales, 3 are needed", { NE(1, 0, 2) } },
                  { "SHAPE", "source 1 is [3,2,1,1], not [3,1,1,1]", { NE(1, 1, 2) } },
                  { "SHAPE", "source 2 is [23,1,1,1], not [24,1,1,1]", { NE(2, 0, 23) } }) },
        { HR_OP_DSV4_HC_PRE, F32(31, 7, 1, 1), 2, { F32(31, 4, 7, 1), F32(4, 7, 1, 1) }, { 0 },
          .types = { "f", "f" }, .dense = 3,
          .refusals = REFUSALS(
                  { "SHAPE", "0 streams, 1 in the outer dimension", { NE(0, 1, 0) } },
                  { "SHAPE", "4 streams, 2 in the outer dimension", { NE(0, 3, 2) } },
                  { "SHAPE", "source 1 is [4,6,1,1], not [4,7,1,1]", { NE(1, 1, 6) } }) },
        { HR_OP_DSV4_HC_POST, F32(31, 4, 7, 1), 4,
          { F32(31, 7, 1, 1), F32(31, 4, 7, 1), F32(4, 7, 1, 1), F32(4, 4, 7, 1) }, { 0 },
          .types = { "f", "f", "f", "f" }, .dense = 0xf,
          .refusals = REFUSALS(
                  { "SHAPE", "no streams", { NE(1, 1, 0) } },
                  { "SHAPE", "source 0 is [31,7,2,1], not [31,7,1,1]", { NE(0, 2, 2) } },
                  { "SHAPE", "source 1 is [30,4,7,1], not [31,4,7,1]", { NE(1, 0, 30) } },
                  { "SHAPE", "source 2 is [5,7,1,1], not [4,7,1,1]", { NE(2, 0, 5) } },
                  { "SHAPE", "source 3 is [4,3,7,1], not [4,4,7,1]", { NE(3, 1, 3) } }) },
};

const struct refusal_table refusals_of_recurrent = { "recurrent", nodes, HR_ARRAY_LENGTH(nodes) };
