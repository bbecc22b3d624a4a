/* Shapes and preconditions of recurrences, linear attention and their companions. */
#include "tests/unit/core/infer_case.h"

#include <limits.h>

#define EPSILON 0x358637bd /* 1e-6 */
#define MINUS_ONE (-0x40800000)
#define INFINITE 0x7f800000

/* state[16,4,6,3] x[4,6,8,2] dt[6,8,2] A B,C[16,2,8,2] ids[2]: 384 outputs, 768 of state */
#define SCAN(state, decay, b, ids)                                                                 \
        { state, F32(4, 6, 8, 2), F32(6, 8, 2, 1), decay, b, F32(16, 2, 8, 2), ids }
#define SCAN_STATE F32(16, 4, 6, 3)
#define SCAN_B F32(16, 2, 8, 2)
#define SCAN_IDS I32(2, 1, 1, 1)

#define X F32(8, 2, 6, 1)
#define WKV_STATE F32(128, 3, 1, 1)

static const struct infer_case cases[] = {
        { HR_OP_SSM_CONV, 2, F32(32, 6, 2, 1), { F32(8, 32, 2, 1), F32(3, 32, 1, 1) }, { 0 },
          NULL },
        { HR_OP_SSM_CONV, 2, F32(32, 0, 2, 1), { F32(2, 32, 2, 1), F32(3, 32, 1, 1) }, { 0 },
          NULL },
        { HR_OP_SSM_CONV, 2, F32(32, 0, 2, 1), { F32(1, 32, 2, 1), F32(3, 32, 1, 1) }, { 0 },
          "SHAPE" },
        { HR_OP_SSM_CONV, 2, F32(32, 9, 2, 1), { F32(8, 32, 2, 1), F32(0, 32, 1, 1) }, { 0 },
          "SHAPE" },
        { HR_OP_SSM_CONV, 2, F32(32, 6, 2, 1), { F32(8, 32, 2, 1), F32(3, 31, 1, 1) }, { 0 },
          "SHAPE" },
        { HR_OP_SSM_CONV, 2, F32(32, 6, 2, 1), { F16(8, 32, 2, 1), F32(3, 32, 1, 1) }, { 0 },
          "DTYPE" },

        { HR_OP_SSM_SCAN, 7, F32(384 + 768, 1, 1, 1),
          SCAN(SCAN_STATE, F32(1, 6, 1, 1), SCAN_B, SCAN_IDS), { 1 }, NULL },
        { HR_OP_SSM_SCAN, 7, F32(384 + 768, 1, 1, 1),
          SCAN(SCAN_STATE, F32(16, 6, 1, 1), SCAN_B, SCAN_IDS), { 1 }, NULL },
        { HR_OP_SSM_SCAN, 7, F32(384 + 3 * 768, 1, 1, 1),
          SCAN(SCAN_STATE, F32(1, 6, 1, 1), SCAN_B, SCAN_IDS), { 3 }, NULL },
        { HR_OP_SSM_SCAN, 7, F32(384 + 3 * 768, 1, 1, 1),
          SCAN(SCAN_STATE, F32(16, 6, 1, 1), SCAN_B, SCAN_IDS), { 3 }, "SHAPE" },
        { HR_OP_SSM_SCAN, 7, F32(384, 1, 1, 1),
          SCAN(SCAN_STATE, F32(1, 6, 1, 1), SCAN_B, SCAN_IDS), { 0 }, "PARAM" },
        { HR_OP_SSM_SCAN, 7, F32(384, 1, 1, 1),
          SCAN(SCAN_STATE, F32(1, 6, 1, 1), SCAN_B, SCAN_IDS), { -1 }, "PARAM" },
        { HR_OP_SSM_SCAN, 7, F32(384 + 768, 1, 1, 1),
          SCAN(SCAN_STATE, F32(1, 5, 1, 1), SCAN_B, SCAN_IDS), { 1 }, "SHAPE" },
        { HR_OP_SSM_SCAN, 7, F32(384 + 768, 1, 1, 1),
          SCAN(SCAN_STATE, F32(1, 6, 1, 1), F32(16, 4, 8, 2), SCAN_IDS), { 1 }, "SHAPE" },
        { HR_OP_SSM_SCAN, 7, F32(384 + 768, 1, 1, 1),
          SCAN(SCAN_STATE, F32(1, 6, 1, 1), F32(16, 0, 8, 2), SCAN_IDS), { 1 }, "SHAPE" },
        { HR_OP_SSM_SCAN, 7, F32(384 + 768, 1, 1, 1),
          SCAN(F32(16, 4, 5, 3), F32(1, 6, 1, 1), SCAN_B, SCAN_IDS), { 1 }, "SHAPE" },
        { HR_OP_SSM_SCAN, 7, F32(384 + 768, 1, 1, 1),
          SCAN(SCAN_STATE, F32(1, 6, 1, 1), SCAN_B, I32(3, 1, 1, 1)), { 1 }, "SHAPE" },
        { HR_OP_SSM_SCAN, 7, F32(384 + 768, 1, 1, 1),
          SCAN(SCAN_STATE, F32(1, 6, 1, 1), SCAN_B, F32(2, 1, 1, 1)), { 1 }, "DTYPE" },
        { HR_OP_SSM_SCAN, 7, F32(0, 1, 1, 1),
          { F32(1 << 30, 1 << 10, 0, 1), F32(1 << 10, 0, 1, 1), F32(0, 1, 1, 1), F32(1, 0, 1, 1),
            F32(1 << 30, 1, 1, 1), F32(1 << 30, 1, 1, 1), I32(1, 1, 1, 1) },
          { INT_MAX }, "SIZE" },

        { HR_OP_RWKV_WKV6, 6, F32(16, 6 + 24, 1, 1), { X, X, X, F32(8, 2, 1, 1), X, WKV_STATE },
          { 0 }, NULL },
        { HR_OP_RWKV_WKV6, 6, F32(16, 6 + 24, 1, 1), { X, X, X, X, X, WKV_STATE }, { 0 }, "SHAPE" },
        { HR_OP_RWKV_WKV6, 6, F32(16, 6 + 32, 1, 1),
          { X, X, X, F32(8, 2, 1, 1), X, F32(128, 4, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_RWKV_WKV6, 6, F32(16, 6, 1, 1),
          { X, X, X, F32(8, 2, 1, 1), X, F32(128, 0, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_RWKV_WKV6, 6, F32(16, 6 + 24, 1, 1),
          { X, X, X, F32(8, 2, 1, 1), X, F32(127, 3, 1, 1) }, { 0 }, "SHAPE" },
        { HR_OP_RWKV_WKV7, 7, F32(16, 6 + 24, 1, 1), { X, X, X, X, X, X, WKV_STATE }, { 0 }, NULL },
        { HR_OP_RWKV_WKV7, 7, F32(16, 6 + 24, 1, 1),
          { X, X, X, X, F32(8, 2, 5, 1), X, WKV_STATE }, { 0 }, "SHAPE" },
        { HR_OP_RWKV_WKV7, 7, F32(16, 6 + 24, 1, 1),
          { X, X, X, X, F16(8, 2, 6, 1), X, WKV_STATE }, { 0 }, "DTYPE" },
        { HR_OP_RWKV_WKV7, 6, F32(16, 6 + 24, 1, 1), { X, X, X, X, X, X }, { 0 }, "ARITY" },
        { HR_OP_GATED_LINEAR_ATTN, 5, F32(16, 6 + 24, 1, 1), { X, X, X, X, WKV_STATE },
          { EPSILON }, NULL },
        { HR_OP_GATED_LINEAR_ATTN, 5, F32(16, 6 + 24, 1, 1), { X, X, X, X, WKV_STATE },
          { INFINITE }, "PARAM" },

        { HR_OP_GATED_DELTA_NET, 6, F32(64, 8 + 32, 1, 1),
          { F32(16, 2, 4, 1), F32(16, 2, 4, 2), F32(16, 4, 4, 2), F32(1, 4, 4, 2),
            F32(1, 4, 4, 2), F32(16, 16, 4, 2) }, { 1 }, NULL },
        { HR_OP_GATED_DELTA_NET, 6, F32(64, 8 + 96, 1, 1),
          { F32(16, 2, 4, 1), F32(16, 2, 4, 2), F32(16, 4, 4, 2), F32(16, 4, 4, 2),
            F32(1, 4, 4, 2), F32(16, 16, 4, 2) }, { 3 }, NULL },
        { HR_OP_GATED_DELTA_NET, 6, F32(64, 8 + 32, 1, 1),
          { F32(16, 3, 4, 1), F32(16, 2, 4, 2), F32(16, 4, 4, 2), F32(1, 4, 4, 2),
            F32(1, 4, 4, 2), F32(16, 16, 4, 2) }, { 1 }, "SHAPE" },
        { HR_OP_GATED_DELTA_NET, 6, F32(64, 8 + 32, 1, 1),
          { F32(16, 2, 4, 0), F32(16, 2, 4, 2), F32(16, 4, 4, 2), F32(1, 4, 4, 2),
            F32(1, 4, 4, 2), F32(16, 16, 4, 2) }, { 1 }, "SHAPE" },
        { HR_OP_GATED_DELTA_NET, 6, F32(64, 8 + 32, 1, 1),
          { F32(16, 2, 4, 1), F32(16, 2, 4, 2), F32(16, 4, 4, 2), F32(2, 4, 4, 2),
            F32(1, 4, 4, 2), F32(16, 16, 4, 2) }, { 1 }, "SHAPE" },
        { HR_OP_GATED_DELTA_NET, 6, F32(64, 8, 1, 1),
          { F32(16, 2, 4, 1), F32(16, 2, 4, 2), F32(16, 4, 4, 2), F32(1, 4, 4, 2),
            F32(1, 4, 4, 2), F32(16, 16, 4, 2) }, { 0 }, "PARAM" },

        { HR_OP_SOLVE_TRI, 2, F32(3, 10, 2, 2), { F32(10, 10, 2, 2), F32(3, 10, 2, 2) }, { 0 },
          NULL },
        { HR_OP_SOLVE_TRI, 2, F32(3, 10, 2, 2), { F32(10, 11, 2, 2), F32(3, 10, 2, 2) }, { 0 },
          "SHAPE" },
        { HR_OP_SOLVE_TRI, 2, F32(3, 10, 2, 2), { F32(10, 10, 2, 1), F32(3, 10, 2, 2) }, { 0 },
          "SHAPE" },
        { HR_OP_LIGHTNING_INDEXER, 4, F32(20, 2, 1, 2),
          { F32(64, 4, 2, 2), Q8_0(64, 1, 20, 2), F32(4, 2, 1, 2), F16(20, 2, 1, 1) }, { 0 },
          NULL },
        { HR_OP_LIGHTNING_INDEXER, 4, F32(20, 2, 1, 2),
          { F32(64, 4, 2, 2), I32(64, 1, 20, 2), F32(4, 2, 1, 2), F16(20, 2, 1, 1) }, { 0 },
          "DTYPE" },
        { HR_OP_LIGHTNING_INDEXER, 4, F32(20, 2, 1, 2),
          { F32(64, 4, 2, 2), F16(64, 1, 20, 2), F32(4, 2, 1, 2), F32(20, 2, 1, 1) }, { 0 },
          "DTYPE" },
        { HR_OP_LIGHTNING_INDEXER, 4, F32(20, 2, 1, 2),
          { F32(64, 4, 2, 2), F16(64, 1, 20, 2), F32(4, 2, 1, 2), F16(20, 2, 1, 0) }, { 0 },
          "SHAPE" },
        { HR_OP_LIGHTNING_INDEXER, 4, F32(20, 2, 1, 2),
          { F32(64, 4, 2, 2), F16(64, 1, 20, 2), F32(5, 2, 1, 2), F16(20, 2, 1, 1) }, { 0 },
          "SHAPE" },
        { HR_OP_DSV4_HC_COMB, 3, F32(4, 4, 7, 1),
          { F32(24, 7, 1, 1), F32(3, 1, 1, 1), F32(24, 1, 1, 1) }, { EPSILON, 4 }, NULL },
        { HR_OP_DSV4_HC_COMB, 3, F32(4, 4, 7, 1),
          { F32(24, 7, 1, 1), F32(2, 1, 1, 1), F32(24, 1, 1, 1) }, { EPSILON, 4 }, "SHAPE" },
        { HR_OP_DSV4_HC_COMB, 3, F32(4, 4, 7, 1),
          { F32(15, 7, 1, 1), F32(3, 1, 1, 1), F32(15, 1, 1, 1) }, { EPSILON, 4 }, "SHAPE" },
        { HR_OP_DSV4_HC_COMB, 3, F32(4, 4, 7, 1),
          { F32(24, 7, 1, 1), F32(3, 1, 1, 1), F32(24, 1, 1, 1) }, { EPSILON, 0 }, "PARAM" },
        { HR_OP_DSV4_HC_COMB, 3, F32(4, 4, 7, 1),
          { F32(24, 7, 1, 1), F32(3, 1, 1, 1), F32(24, 1, 1, 1) }, { EPSILON, INT_MAX }, "PARAM" },
        { HR_OP_DSV4_HC_COMB, 3, F32(4, 4, 7, 1),
          { F32(24, 7, 1, 1), F32(3, 1, 1, 1), F32(24, 1, 1, 1) }, { MINUS_ONE, 4 }, "PARAM" },
        { HR_OP_DSV4_HC_PRE, 2, F32(31, 7, 1, 1), { F32(31, 4, 7, 1), F32(4, 7, 1, 1) }, { 0 },
          NULL },
        { HR_OP_DSV4_HC_PRE, 2, F32(31, 7, 1, 1), { F32(31, 4, 7, 1), F32(4, 6, 1, 1) }, { 0 },
          "SHAPE" },
        { HR_OP_DSV4_HC_POST, 4, F32(31, 4, 7, 1),
          { F32(31, 7, 1, 1), F32(31, 4, 7, 1), F32(4, 7, 1, 1), F32(4, 4, 7, 1) }, { 0 }, NULL },
        { HR_OP_DSV4_HC_POST, 4, F32(31, 4, 7, 1),
          { F32(31, 7, 1, 1), F32(31, 4, 7, 1), F32(4, 7, 1, 1), F32(4, 3, 7, 1) }, { 0 },
          "SHAPE" },
        { HR_OP_DSV4_HC_POST, 4, F32(31, 4, 7, 1),
          { F32(31, 6, 1, 1), F32(31, 4, 7, 1), F32(4, 7, 1, 1), F32(4, 4, 7, 1) }, { 0 },
          "SHAPE" },
};

HR_TEST(infer_recurrent_cases) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++)
                infer_case_run(&cases[i], i);
}
