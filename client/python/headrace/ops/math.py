"""Element by element, reductions and norms."""

from __future__ import annotations

import math

from headrace.op import Glu, Op, Unary
from headrace.ops.base import GraphBase, Tensor, f32_word
from headrace.types import Type


def softplus(x: float) -> float:
    """log(1 + exp(x)); x itself where that is the same."""
    return x if x > 20 else math.log1p(math.exp(x))


class MathOps(GraphBase):
    """Operators on f32 (most also f16, bf16) whose result has the source's shape, and reductions.

    With `inplace` the result is written over the first source.
    """

    def add(self, a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
        """a + b, b repeated to a's shape; the result has a's type."""
        return self.binary(Op.ADD, a, b, inplace=inplace)

    def sub(self, a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
        """a - b."""
        return self.binary(Op.SUB, a, b, inplace=inplace)

    def mul(self, a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
        """a * b, element by element."""
        return self.binary(Op.MUL, a, b, inplace=inplace)

    def div(self, a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
        """a / b."""
        return self.binary(Op.DIV, a, b, inplace=inplace)

    def add1(self, a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
        """a plus the scalar b (one element)."""
        if b.size != 1:
            raise ValueError(f"add1: {b.shape} is no scalar")
        return self.like(Op.ADD1, a, (a, b), inplace=inplace)

    def add_id(self, a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
        """a[t, u] + b[ids[t, u]]: a (T, U, e), b (n, e), ids i32 (T, U)."""
        if a.ne[0] != b.ne[0] or a.ne[1] != ids.ne[0] or a.ne[2] != ids.ne[1]:
            raise ValueError(f"add_id: {a.shape}, {b.shape}, ids {ids.shape}")
        return self.like(Op.ADD_ID, a, (a, b, ids))

    def scale(self, x: Tensor, s: float, b: float = 0.0, *, inplace: bool = False) -> Tensor:
        """s * x + b."""
        return self.like(Op.SCALE, x, (x,), (f32_word(s), f32_word(b)), inplace=inplace)

    def clamp(self, x: Tensor, low: float, high: float, *, inplace: bool = False) -> Tensor:
        """x limited to [low, high]."""
        return self.like(Op.CLAMP, x, (x,), (f32_word(low), f32_word(high)), inplace=inplace)

    def leaky_relu(self, x: Tensor, slope: float, *, inplace: bool = False) -> Tensor:
        """x where positive, slope * x elsewhere."""
        return self.like(Op.LEAKY_RELU, x, (x,), (f32_word(slope),), inplace=inplace)

    def sqr(self, x: Tensor, *, inplace: bool = False) -> Tensor:
        """x * x."""
        return self.like(Op.SQR, x, (x,), inplace=inplace)

    def sqrt(self, x: Tensor, *, inplace: bool = False) -> Tensor:
        """Square root."""
        return self.like(Op.SQRT, x, (x,), inplace=inplace)

    def log(self, x: Tensor, *, inplace: bool = False) -> Tensor:
        """Natural logarithm."""
        return self.like(Op.LOG, x, (x,), inplace=inplace)

    def sin(self, x: Tensor, *, inplace: bool = False) -> Tensor:
        """Sine."""
        return self.like(Op.SIN, x, (x,), inplace=inplace)

    def cos(self, x: Tensor, *, inplace: bool = False) -> Tensor:
        """Cosine."""
        return self.like(Op.COS, x, (x,), inplace=inplace)

    def unary(self, x: Tensor, function: Unary, *, inplace: bool = False) -> Tensor:
        """One of UNARY's functions."""
        return self.like(Op.UNARY, x, (x,), (function,), inplace=inplace)

    def abs(self, x: Tensor) -> Tensor:
        """|x|."""
        return self.unary(x, Unary.ABS)

    def sgn(self, x: Tensor) -> Tensor:
        """-1, 0 or 1."""
        return self.unary(x, Unary.SGN)

    def neg(self, x: Tensor) -> Tensor:
        """-x."""
        return self.unary(x, Unary.NEG)

    def step(self, x: Tensor) -> Tensor:
        """1 where x > 0, else 0."""
        return self.unary(x, Unary.STEP)

    def tanh(self, x: Tensor) -> Tensor:
        """Hyperbolic tangent."""
        return self.unary(x, Unary.TANH)

    def elu(self, x: Tensor) -> Tensor:
        """x where positive, exp(x) - 1 elsewhere."""
        return self.unary(x, Unary.ELU)

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return self.unary(x, Unary.RELU)

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return self.unary(x, Unary.SIGMOID)

    def gelu(self, x: Tensor) -> Tensor:
        """GELU by tanh."""
        return self.unary(x, Unary.GELU)

    def gelu_quick(self, x: Tensor) -> Tensor:
        """x * sigmoid(1.702 x)."""
        return self.unary(x, Unary.GELU_QUICK)

    def gelu_erf(self, x: Tensor) -> Tensor:
        """GELU by the error function."""
        return self.unary(x, Unary.GELU_ERF)

    def silu(self, x: Tensor) -> Tensor:
        """x * sigmoid(x)."""
        return self.unary(x, Unary.SILU)

    def hardswish(self, x: Tensor) -> Tensor:
        """x * clamp((x + 3) / 6, 0, 1)."""
        return self.unary(x, Unary.HARDSWISH)

    def hardsigmoid(self, x: Tensor) -> Tensor:
        """clamp((x + 3) / 6, 0, 1)."""
        return self.unary(x, Unary.HARDSIGMOID)

    def exp(self, x: Tensor) -> Tensor:
        """e to the x."""
        return self.unary(x, Unary.EXP)

    def expm1(self, x: Tensor) -> Tensor:
        """exp(x) - 1."""
        return self.unary(x, Unary.EXPM1)

    def softplus(self, x: Tensor) -> Tensor:
        """log(1 + exp(x)); x above 20."""
        return self.unary(x, Unary.SOFTPLUS)

    def floor(self, x: Tensor) -> Tensor:
        """Rounded down."""
        return self.unary(x, Unary.FLOOR)

    def ceil(self, x: Tensor) -> Tensor:
        """Rounded up."""
        return self.unary(x, Unary.CEIL)

    def round(self, x: Tensor) -> Tensor:
        """Rounded to the nearest, halves away from zero."""
        return self.unary(x, Unary.ROUND)

    def trunc(self, x: Tensor) -> Tensor:
        """Rounded towards zero."""
        return self.unary(x, Unary.TRUNC)

    def xielu(self, x: Tensor, alpha_n: float, alpha_p: float, beta: float, eps: float) -> Tensor:
        """xIELU with its learned parameters before softplus."""
        words = [
            f32_word(value) for value in (beta + softplus(alpha_n), softplus(alpha_p), beta, eps)
        ]
        return self.like(Op.UNARY, x, (x,), (Unary.XIELU, *words))

    def glu(
        self,
        function: Glu,
        x: Tensor,
        gate: Tensor | None = None,
        *,
        swapped: bool = False,
        alpha: float = 0.0,
        limit: float = 0.0,
    ) -> Tensor:
        """act(x) * gate; without `gate`, x's rows hold the activated half, then the gate's.

        `swapped` exchanges the halves.
        """
        if gate is not None and (gate.ne != x.ne or gate.type is not x.type):
            raise ValueError(f"glu: {x!r} and {gate!r}")
        if gate is None and x.ne[0] % 2:
            raise ValueError(f"glu: a row of {x.ne[0]} has no halves")
        words: tuple[int, ...] = (function, swapped)
        if function is Glu.SWIGLU_OAI:
            words += (f32_word(alpha), f32_word(limit))
        ne = x.ne if gate is not None else (x.ne[0] // 2, *x.ne[1:])
        return self.node(Op.GLU, x.type, ne, (x,) if gate is None else (x, gate), words)

    def reglu(self, x: Tensor, gate: Tensor | None = None, *, swapped: bool = False) -> Tensor:
        """relu(x) * gate."""
        return self.glu(Glu.REGLU, x, gate, swapped=swapped)

    def geglu(self, x: Tensor, gate: Tensor | None = None, *, swapped: bool = False) -> Tensor:
        """gelu(x) * gate."""
        return self.glu(Glu.GEGLU, x, gate, swapped=swapped)

    def swiglu(self, x: Tensor, gate: Tensor | None = None, *, swapped: bool = False) -> Tensor:
        """silu(x) * gate."""
        return self.glu(Glu.SWIGLU, x, gate, swapped=swapped)

    def swiglu_oai(self, x: Tensor, gate: Tensor, alpha: float, limit: float) -> Tensor:
        """min(x, limit) * sigmoid(alpha * x) * (clamp(gate, -limit, limit) + 1)."""
        return self.glu(Glu.SWIGLU_OAI, x, gate, alpha=alpha, limit=limit)

    def geglu_erf(self, x: Tensor, gate: Tensor | None = None, *, swapped: bool = False) -> Tensor:
        """gelu_erf(x) * gate."""
        return self.glu(Glu.GEGLU_ERF, x, gate, swapped=swapped)

    def geglu_quick(
        self, x: Tensor, gate: Tensor | None = None, *, swapped: bool = False
    ) -> Tensor:
        """gelu_quick(x) * gate."""
        return self.glu(Glu.GEGLU_QUICK, x, gate, swapped=swapped)

    # ---- reductions ----------------------------------------------------------------------------

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all elements -> (1), x's type."""
        return self.node(Op.SUM, x.type, (1, 1, 1, 1), (x,), ndim=1)

    def sum_rows(self, x: Tensor) -> Tensor:
        """Sums over the last axis -> (..., 1)."""
        return self.node(Op.SUM_ROWS, x.type, (1, *x.ne[1:]), (x,))

    def mean(self, x: Tensor) -> Tensor:
        """Means over the last axis -> f32 (..., 1)."""
        return self.node(Op.MEAN, Type.F32, (1, *x.ne[1:]), (x,))

    def cumsum(self, x: Tensor) -> Tensor:
        """Running sums along the last axis."""
        return self.like(Op.CUMSUM, x, (x,))

    def argmax(self, x: Tensor) -> Tensor:
        """x (n, c) -> i32 (n): the index of each row's largest element."""
        if x.ne[2] != 1 or x.ne[3] != 1:
            raise ValueError(f"argmax: {x.shape} is no matrix")
        return self.node(Op.ARGMAX, Type.I32, (x.ne[1], 1, 1, 1), (x,), ndim=1)

    def argsort(self, x: Tensor, *, descending: bool = False) -> Tensor:
        """i32: the order that sorts each row; equal elements in any order."""
        return self.node(Op.ARGSORT, Type.I32, x.ne, (x,), (descending,))

    def top_k(self, x: Tensor, k: int) -> Tensor:
        """i32 (..., k): the indices of each row's k largest elements, in any order."""
        if not 0 < k <= x.ne[0]:
            raise ValueError(f"top_k: {k} of a row of {x.ne[0]}")
        return self.node(Op.TOP_K, Type.I32, (k, *x.ne[1:]), (x,))

    def count_equal(self, a: Tensor, b: Tensor) -> Tensor:
        """i64 (1): how many elements of two i32 tensors are equal."""
        if a.ne != b.ne:
            raise ValueError(f"count_equal: {a.shape} and {b.shape}")
        return self.node(Op.COUNT_EQUAL, Type.I64, (1, 1, 1, 1), (a, b), ndim=1)

    # ---- norms ---------------------------------------------------------------------------------

    def norm(self, x: Tensor, eps: float, *, inplace: bool = False) -> Tensor:
        """(x - mean) / sqrt(variance + eps) over the last axis."""
        return self.like(Op.NORM, x, (x,), (f32_word(eps),), inplace=inplace)

    def rms_norm(self, x: Tensor, eps: float, *, inplace: bool = False) -> Tensor:
        """x / sqrt(mean(x^2) + eps) over the last axis."""
        return self.like(Op.RMS_NORM, x, (x,), (f32_word(eps),), inplace=inplace)

    def group_norm(self, x: Tensor, groups: int, eps: float, *, inplace: bool = False) -> Tensor:
        """norm() over groups of channels: x (N, C, H, W)."""
        return self.like(Op.GROUP_NORM, x, (x,), (groups, f32_word(eps)), inplace=inplace)

    def l2_norm(self, x: Tensor, eps: float, *, inplace: bool = False) -> Tensor:
        """x / max(|x|, eps) over the last axis."""
        return self.like(Op.L2_NORM, x, (x,), (f32_word(eps),), inplace=inplace)
