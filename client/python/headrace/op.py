"""The operators' numbers on the wire, and the function numbers of UNARY and GLU."""

from __future__ import annotations

import enum


class Op(enum.IntEnum):
    """An operator. Numbers are never changed and never reused."""

    NONE = 0
    VIEW = 1
    RESHAPE = 2
    PERMUTE = 3
    TRANSPOSE = 4
    DUP = 10
    CONT = 11
    CPY = 12
    GET_ROWS = 13
    SET_ROWS = 14
    CONCAT = 15
    REPEAT = 16
    REPEAT_BACK = 17
    SET = 18
    ACC = 19
    ADD = 30
    SUB = 31
    MUL = 32
    DIV = 33
    ADD1 = 34
    ADD_ID = 35
    SCALE = 36
    CLAMP = 37
    SQR = 38
    SQRT = 39
    LOG = 40
    SIN = 41
    COS = 42
    LEAKY_RELU = 43
    UNARY = 44
    GLU = 45
    SUM = 60
    SUM_ROWS = 61
    MEAN = 62
    CUMSUM = 63
    ARGMAX = 64
    ARGSORT = 65
    TOP_K = 66
    COUNT_EQUAL = 67
    NORM = 80
    RMS_NORM = 81
    GROUP_NORM = 82
    L2_NORM = 83
    MUL_MAT = 100
    MUL_MAT_ID = 101
    OUT_PROD = 102
    SOLVE_TRI = 103
    SOFT_MAX = 120
    ROPE = 121
    ROPE_BACK = 122
    FLASH_ATTN_EXT = 123
    DIAG_MASK_INF = 124
    DIAG_MASK_ZERO = 125
    DIAG = 126
    TRI = 127
    FILL = 128
    ARANGE = 129
    TIMESTEP_EMBEDDING = 130
    IM2COL = 150
    IM2COL_3D = 151
    CONV_2D = 152
    CONV_2D_DW = 153
    CONV_3D = 154
    CONV_TRANSPOSE_1D = 155
    CONV_TRANSPOSE_2D = 156
    COL2IM_1D = 157
    POOL_1D = 158
    POOL_2D = 159
    UPSCALE = 160
    PAD = 161
    PAD_REFLECT_1D = 162
    ROLL = 163
    WIN_PART = 164
    WIN_UNPART = 165
    GET_REL_POS = 166
    ADD_REL_POS = 167
    SSM_CONV = 180
    SSM_SCAN = 181
    RWKV_WKV6 = 182
    RWKV_WKV7 = 183
    GATED_LINEAR_ATTN = 184
    GATED_DELTA_NET = 185
    LIGHTNING_INDEXER = 186
    DSV4_HC_COMB = 187
    DSV4_HC_PRE = 188
    DSV4_HC_POST = 189


class Unary(enum.IntEnum):
    """Word 0 of UNARY's parameters."""

    ABS = 0
    SGN = 1
    NEG = 2
    STEP = 3
    TANH = 4
    ELU = 5
    RELU = 6
    SIGMOID = 7
    GELU = 8
    GELU_QUICK = 9
    SILU = 10
    HARDSWISH = 11
    HARDSIGMOID = 12
    EXP = 13
    EXPM1 = 14
    SOFTPLUS = 15
    GELU_ERF = 16
    XIELU = 17
    FLOOR = 18
    CEIL = 19
    ROUND = 20
    TRUNC = 21


class Glu(enum.IntEnum):
    """Word 0 of GLU's parameters."""

    REGLU = 0
    GEGLU = 1
    SWIGLU = 2
    SWIGLU_OAI = 3
    GEGLU_ERF = 4
    GEGLU_QUICK = 5


class LeafKind(enum.IntEnum):
    """What a leaf is."""

    WEIGHT = 1
    STATE = 2
    INPUT = 3
    CONSTANT = 4


FLAG_INPUT = 1
FLAG_OUTPUT = 2
ABSENT = 0xFFFFFFFF
