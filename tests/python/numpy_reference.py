"""Evaluates an encoded graph with numpy: an oracle that shares nothing with the builder or the
daemon.

It reads the wire bytes (message Graph), keeps the memory of every tensor that is no view as bytes,
and looks at each tensor through its extents and strides, so that views and writes through views
mean what they say. Block types are dequantised; arithmetic is float32, or float64 where `exact` is
asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from headrace import headrace_pb2 as pb
from headrace.op import ABSENT, Glu, LeafKind, Op, Unary
from headrace.types import Type, tensor_bytes

Array = npt.NDArray[Any]
Memory = Mapping[str, Any]


@dataclass
class Node:
    """One tensor as the wire describes it."""

    op: int
    type: Type
    flags: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    kind: int
    sources: list[int]
    params: Array
    base: int
    offset: int
    name: str


def parse(encoded: bytes) -> tuple[list[Node], list[bytes]]:
    """Tensors (leaves first) and the bytes of the constants."""
    g = pb.Graph.FromString(encoded)
    total, leaves = len(g.type), g.leaf_count
    ne = np.array(g.ne, np.int64).reshape(total, 4)
    strides = dict(zip(g.stride_tensor, np.array(g.stride, np.uint64).reshape(-1, 4), strict=True))
    views = {t: (b, o) for t, b, o in zip(g.view_tensor, g.view_base, g.view_offset, strict=True)}
    ends = np.cumsum(g.name_length)
    source_ends, param_ends = np.cumsum(g.source_count), np.cumsum(g.param_count)
    sources, params = list(g.source), np.array(g.param, np.uint32)
    tensors: list[Node] = []
    for i in range(total):
        number = Type(g.type[i])
        if i in strides:
            nb = tuple(int(s) for s in strides[i])
        else:
            row = number.row_bytes(int(ne[i, 0]))
            nb = (number.block_bytes, row, row * int(ne[i, 1]), row * int(ne[i, 1] * ne[i, 2]))
        n = i - leaves
        name = g.names[int(ends[i]) - g.name_length[i] : int(ends[i])].decode() if g.names else ""
        base, offset = views.get(i, (-1, 0))
        tensors.append(
            Node(
                op=g.op[n] if n >= 0 else 0,
                type=number,
                flags=g.flags[i],
                ne=tuple(int(x) for x in ne[i]),
                nb=nb,
                kind=g.leaf_kind[i] if n < 0 else 0,
                sources=sources[source_ends[n] - g.source_count[n] : source_ends[n]]
                if n >= 0
                else [],
                params=params[param_ends[n] - g.param_count[n] : param_ends[n]]
                if n >= 0
                else params[:0],
                base=base,
                offset=int(offset),
                name=name,
            )
        )
    constants, at = [], 0
    for size in g.constant_bytes:
        constants.append(g.constants[at : at + size])
        at += size
    return tensors, constants


def dequantise(raw: Array, number: Type) -> Array:
    """Rows of uint8 -> rows of float32. NotImplementedError for types that `gguf` does not have."""
    import gguf

    if int(number) not in set(gguf.GGMLQuantizationType):
        raise NotImplementedError(f"gguf knows no type {int(number)}")
    return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(int(number))))


def stored(value: Array, number: Type) -> Array:
    """Values as a tensor of that type keeps them; bf16 as uint16, rounded to nearest even."""
    if number is Type.BF16:
        bits = np.ascontiguousarray(value, np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.asarray(value)


class Evaluator:
    """Runs one encoded graph. `weights` and `states` map names to arrays or to uint8 rows; states
    are changed in place. `cache` keeps dequantised weights by name and may serve several graphs.
    `exact`: floats are float64 within a node, and rounded to the type of its result.
    """

    def __init__(
        self,
        encoded: bytes,
        weights: Memory | None = None,
        states: Memory | None = None,
        cache: dict[str, Array] | None = None,
        *,
        exact: bool = False,
    ) -> None:
        self.exact = exact
        self.tensors, constants = parse(encoded)
        self.memory: dict[int, Array] = {}
        self.cache: dict[str, Array] = {} if cache is None else cache
        self.inputs: list[int] = []
        constant = iter(constants)
        for i, t in enumerate(self.tensors):
            if t.kind == LeafKind.CONSTANT:
                self.memory[i] = np.frombuffer(next(constant), np.uint8)
            elif t.kind == LeafKind.INPUT:
                self.inputs.append(i)
            elif t.kind:
                found = (weights if t.kind == LeafKind.WEIGHT else states) or {}
                self.memory[i] = found[t.name].reshape(-1).view(np.uint8)
                assert self.memory[i].nbytes == tensor_bytes(t.type, t.ne), t.name

    def run(self, inputs: Mapping[str, Any]) -> list[Array]:
        """Outputs in id order, with four axes."""
        for i in self.inputs:
            t = self.tensors[i]
            value = np.ascontiguousarray(inputs[t.name]).reshape(-1).view(np.uint8)
            assert value.nbytes == tensor_bytes(t.type, t.ne), t.name
            self.memory[i] = value
        outputs = []
        for i, t in enumerate(self.tensors):
            if not t.kind:
                self.compute(i)
        for i, t in enumerate(self.tensors):
            if t.flags & 2:
                outputs.append(np.array(self.window(i)))
        return outputs

    def window(self, i: int) -> Array:
        """Tensor i's elements where they lie, shape numpy's; plain types only."""
        t = self.tensors[i]
        root = i if t.base < 0 else t.base
        if root not in self.memory:
            r = self.tensors[root]
            self.memory[root] = np.zeros(tensor_bytes(r.type, r.ne), np.uint8)
        dtype = t.type.dtype or np.dtype("<u2")
        return np.ndarray(t.ne[::-1], dtype, self.memory[root].data, t.offset, t.nb[::-1])

    def value(self, i: int) -> Array:
        """Tensor i as floats or as its integers."""
        value = self.narrow(i)
        return value.astype(np.float64) if self.exact and value.dtype == np.float32 else value

    def narrow(self, i: int) -> Array:
        """Tensor i as float32 (block types, f16, bf16, f32) or as its integers."""
        t = self.tensors[i]
        if t.type.is_block:
            return self.blocks(i)
        elements = self.window(i)
        if t.type is Type.BF16:
            return np.asarray((elements.astype(np.uint32) << 16).view(np.float32))
        return elements.astype(np.float32) if t.type is Type.F16 else elements

    def blocks(self, i: int) -> Array:
        """A dequantised block tensor; those of weights are kept."""
        t = self.tensors[i]
        if t.kind == LeafKind.WEIGHT and t.name in self.cache:
            return self.cache[t.name]
        row = t.type.row_bytes(t.ne[0])
        root = i if t.base < 0 else t.base
        rows = np.ndarray(
            (*t.ne[:0:-1], row), np.uint8, self.memory[root].data, t.offset, (*t.nb[:0:-1], 1)
        )
        result = dequantise(np.ascontiguousarray(rows), t.type)
        if t.kind == LeafKind.WEIGHT:
            self.cache[t.name] = result
        return result

    def store(self, i: int, value: Array) -> None:
        """Writes a result, converting to the tensor's type."""
        target = self.window(i)
        with np.errstate(over="ignore"):
            target[...] = stored(value, self.tensors[i].type).reshape(target.shape)

    def compute(self, i: int) -> None:
        """Evaluates node i."""
        t = self.tensors[i]
        op = Op(t.op)
        if op in (Op.VIEW, Op.RESHAPE, Op.PERMUTE, Op.TRANSPOSE):
            return
        if op is Op.SET_ROWS:
            self.set_rows(i)
            return
        arguments = [None if s == ABSENT else self.value(s) for s in t.sources]
        if op is Op.CPY and len(arguments) > 1:
            arguments = arguments[:1]
        result = OPS[op](Call(t, arguments))
        if t.base < 0:
            self.memory.pop(i, None)
        self.store(i, result)

    def set_rows(self, i: int) -> None:
        """Writes rows into the destination that node i is a view of."""
        t = self.tensors[i]
        values, ids = self.value(t.sources[0]), self.window(t.sources[1])
        target = self.window(i)
        assert not t.type.is_block
        for b3 in range(values.shape[0]):
            for b2 in range(values.shape[1]):
                rows = ids[0, b3 % ids.shape[1], b2 % ids.shape[2]]
                target[b3, b2, rows] = stored(values[b3, b2], t.type)


@dataclass
class Call:
    """One node with its sources' values."""

    node: Node
    sources: list[Any]

    def word(self, i: int) -> int:
        """Parameter word i as int32."""
        return int(self.node.params[i].astype(np.int32)) if i < len(self.node.params) else 0

    def real(self, i: int) -> float:
        """Parameter word i as float32."""
        return (
            float(self.node.params[i : i + 1].view(np.float32)[0])
            if i < len(self.node.params)
            else 0.0
        )


def tile(value: Array, shape: tuple[int, ...]) -> Array:
    """value repeated to a shape."""
    return np.tile(value, [n // max(m, 1) for n, m in zip(shape, value.shape, strict=True)])


def erf(x: Array) -> Array:
    """The error function."""
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def gelu(x: Array) -> Array:
    """GELU by tanh."""
    return 0.5 * x * (1 + np.tanh(0.79788456080286535588 * x * (1 + 0.044715 * x * x)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) in float64."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x.astype(np.float64)))


UNARY: dict[int, Callable[[Array], Array]] = {
    Unary.ABS: np.abs, Unary.SGN: np.sign, Unary.NEG: np.negative,
    Unary.STEP: lambda x: (x > 0).astype(np.float32), Unary.TANH: np.tanh,
    Unary.ELU: lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    Unary.RELU: lambda x: np.maximum(x, 0), Unary.SIGMOID: sigmoid, Unary.GELU: gelu,
    Unary.GELU_QUICK: lambda x: x * sigmoid(1.702 * x), Unary.SILU: lambda x: x * sigmoid(x),
    Unary.HARDSWISH: lambda x: x * np.clip((x + 3) / 6, 0, 1),
    Unary.HARDSIGMOID: lambda x: np.clip((x + 3) / 6, 0, 1), Unary.EXP: np.exp,
    Unary.EXPM1: np.expm1, Unary.SOFTPLUS: lambda x: np.where(x > 20, x, np.log1p(np.exp(x))),
    Unary.GELU_ERF: lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), Unary.FLOOR: np.floor,
    Unary.CEIL: np.ceil, Unary.ROUND: lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    Unary.TRUNC: np.trunc,
}  # fmt: skip

GLU: dict[int, Callable[[Array], Array]] = {
    Glu.REGLU: UNARY[Unary.RELU], Glu.GEGLU: gelu, Glu.SWIGLU: UNARY[Unary.SILU],
    Glu.GEGLU_ERF: UNARY[Unary.GELU_ERF], Glu.GEGLU_QUICK: UNARY[Unary.GELU_QUICK],
}  # fmt: skip


def op_unary(c: Call) -> Array:
    """UNARY."""
    return UNARY[c.word(0)](c.sources[0])


def op_glu(c: Call) -> Array:
    """GLU."""
    if len(c.sources) == 2:
        x, gate = c.sources
    else:
        x, gate = np.split(c.sources[0], 2, axis=-1)
        if c.word(1):
            x, gate = gate, x
    if c.word(0) == Glu.SWIGLU_OAI:
        x = np.minimum(x, c.real(3))
        return x * sigmoid(c.real(2) * x) * (np.clip(gate, -c.real(3), c.real(3)) + 1)
    return GLU[c.word(0)](x) * gate


def op_rms_norm(c: Call) -> Array:
    """RMS_NORM."""
    x = c.sources[0].astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + c.real(0))


def op_norm(c: Call) -> Array:
    """NORM."""
    x = c.sources[0].astype(np.float64)
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + c.real(0))


def op_mul_mat(c: Call) -> Array:
    """MUL_MAT."""
    a, b = c.sources
    for axis in (0, 1):
        a = np.repeat(a, b.shape[axis] // a.shape[axis], axis)
    return np.asarray(b @ np.swapaxes(a, -1, -2))


def op_mul_mat_id(c: Call) -> Array:
    """MUL_MAT_ID."""
    experts, b, ids = c.sources
    tokens, used = ids.shape[2], ids.shape[3]
    out = np.empty((1, tokens, used, experts.shape[2]), b.dtype)
    for t in range(tokens):
        for u in range(used):
            out[0, t, u] = experts[0, ids[0, 0, t, u]] @ b[0, t, u % b.shape[2]]
    return out


def op_get_rows(c: Call) -> Array:
    """GET_ROWS."""
    x, ids = c.sources
    out = np.empty((ids.shape[1], ids.shape[2], ids.shape[3], x.shape[3]), x.dtype)
    for b3 in range(ids.shape[1]):
        for b2 in range(ids.shape[2]):
            out[b3, b2] = x[b3, b2, ids[0, b3, b2]]
    return out


def slopes(heads: int, max_bias: float) -> Array:
    """ALiBi's slope of each head."""
    if max_bias == 0:
        return np.ones(heads)
    n = 1 << int(math.floor(math.log2(heads)))
    m0, m1 = 2.0 ** (-max_bias / n), 2.0 ** (-max_bias / 2 / n)
    return np.array([m0 ** (h + 1) if h < n else m1 ** (2 * (h - n) + 1) for h in range(heads)])


def biased(x: Array, mask: Array | None, max_bias: float) -> Array:
    """x plus slope * mask, the mask's leading dimensions repeated."""
    if mask is None:
        return x
    m = mask[:, :, : x.shape[2]].astype(np.float64)
    m = np.tile(m, (x.shape[0] // m.shape[0], x.shape[1] // m.shape[1], 1, 1))
    return x + slopes(x.shape[1], max_bias)[None, :, None, None] * m


def normalised(x: Array, sinks: Array | None) -> Array:
    """Softmax over the last axis with an optional sink per head; NaN where all is -inf."""
    top = x.max(-1, keepdims=True)
    if sinks is not None:
        sink = sinks.reshape(1, -1, 1, 1).astype(np.float64)
        top = np.maximum(top, sink)
    with np.errstate(invalid="ignore"):
        e = np.exp(x - top)
        total = e.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sink - top)
        return np.asarray(e / total)


def op_soft_max(c: Call) -> Array:
    """SOFT_MAX."""
    x, mask, sinks = (*c.sources, None, None)[:3]
    return normalised(biased(x.astype(np.float64) * c.real(0), mask, c.real(1)), sinks)


def op_flash_attn_ext(c: Call) -> Array:
    """FLASH_ATTN_EXT."""
    q, k, v, mask, sinks = (*c.sources, None, None)[:5]
    k = np.repeat(k, q.shape[1] // k.shape[1], 1).astype(np.float64)
    v = np.repeat(v, q.shape[1] // v.shape[1], 1).astype(np.float64)
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2) * c.real(0)
    if c.real(2):
        scores = c.real(2) * np.tanh(scores / c.real(2))
    weights = np.nan_to_num(normalised(biased(scores, mask, c.real(1)), sinks))
    return np.swapaxes(weights @ v, 1, 2)


def rope_angles(c: Call, pairs: int) -> tuple[Array, Array]:
    """Cosines and sines (T, pairs) with YaRN's correction."""
    position = c.sources[1].reshape(-1).astype(np.float64)
    n_dims, n_ctx = c.word(1), c.word(4)
    base, scale, ext, attn = (c.real(i) for i in (5, 6, 7, 8))
    j = np.arange(pairs)
    theta = position[:, None] * base ** (-2.0 * j / n_dims)
    if len(c.sources) > 2:
        theta = theta / c.sources[2].reshape(-1)[:pairs].astype(np.float64)
    angle = theta * scale
    if ext:
        ends = [
            n_dims * math.log(n_ctx / (beta * 2 * math.pi)) / (2 * math.log(base))
            for beta in (c.real(9), c.real(10))
        ]
        low = max(0, math.floor(ends[0]))
        high = min(n_dims - 1, math.ceil(ends[1]))
        ramp = (1 - np.clip((j - low) / max(0.001, high - low), 0, 1)) * ext
        angle = angle * (1 - ramp) + theta * ramp
        attn *= 1 + 0.1 * math.log(1 / scale)
    return np.cos(angle) * attn, np.sin(angle) * attn


def op_rope(c: Call) -> Array:
    """ROPE, normal and NEOX."""
    x, n_dims, mode = np.array(c.sources[0], np.float64), c.word(1), c.word(2)
    assert mode in (0, 2)
    half = n_dims // 2
    cos, sin = (a[None, :, None, :] for a in rope_angles(c, half))
    if c.node.op == Op.ROPE_BACK:
        sin = -sin
    at = c.word(15)
    first = slice(at, at + n_dims, 2) if mode == 0 else slice(at, at + half)
    second = slice(at + 1, at + n_dims, 2) if mode == 0 else slice(at + half, at + n_dims)
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first], x[..., second] = a * cos - b * sin, a * sin + b * cos
    return x


def op_concat(c: Call) -> Array:
    """CONCAT."""
    return np.concatenate(c.sources, 3 - c.word(0))


def op_argsort(c: Call) -> Array:
    """ARGSORT."""
    x = c.sources[0]
    return np.argsort(-x if c.word(0) else x, -1, kind="stable").astype(np.int32)


def op_top_k(c: Call) -> Array:
    """TOP_K, in descending order."""
    return np.argsort(-c.sources[0], -1, kind="stable")[..., : c.node.ne[0]].astype(np.int32)


def op_add_id(c: Call) -> Array:
    """ADD_ID."""
    a, b, ids = c.sources
    return np.asarray(a + b[0, 0][ids[0, 0]][None])


def binary(f: Callable[[Array, Array], Array]) -> Callable[[Call], Array]:
    """An operator on two sources, the second repeated."""
    return lambda c: f(c.sources[0], tile(c.sources[1], c.sources[0].shape))


OPS: dict[Op, Callable[[Call], Array]] = {
    Op.ADD: binary(np.add), Op.SUB: binary(np.subtract), Op.MUL: binary(np.multiply),
    Op.DIV: binary(np.divide), Op.ADD1: binary(np.add), Op.ADD_ID: op_add_id,
    Op.SCALE: lambda c: c.sources[0] * np.float32(c.real(0)) + np.float32(c.real(1)),
    Op.CLAMP: lambda c: np.clip(c.sources[0], c.real(0), c.real(1)),
    Op.SQR: lambda c: np.square(c.sources[0]), Op.SQRT: lambda c: np.sqrt(c.sources[0]),
    Op.LOG: lambda c: np.log(c.sources[0]), Op.SIN: lambda c: np.sin(c.sources[0]),
    Op.COS: lambda c: np.cos(c.sources[0]), Op.UNARY: op_unary, Op.GLU: op_glu,
    Op.SUM: lambda c: c.sources[0].sum(dtype=np.float64),
    Op.SUM_ROWS: lambda c: c.sources[0].sum(-1, keepdims=True, dtype=np.float64),
    Op.MEAN: lambda c: c.sources[0].mean(-1, keepdims=True, dtype=np.float64),
    Op.CUMSUM: lambda c: c.sources[0].cumsum(-1, dtype=np.float64),
    Op.ARGMAX: lambda c: c.sources[0].argmax(-1).astype(np.int32), Op.ARGSORT: op_argsort,
    Op.TOP_K: op_top_k, Op.NORM: op_norm, Op.RMS_NORM: op_rms_norm, Op.MUL_MAT: op_mul_mat,
    Op.MUL_MAT_ID: op_mul_mat_id, Op.GET_ROWS: op_get_rows, Op.SOFT_MAX: op_soft_max,
    Op.ROPE: op_rope, Op.ROPE_BACK: op_rope, Op.FLASH_ATTN_EXT: op_flash_attn_ext,
    Op.CONCAT: op_concat, Op.REPEAT: lambda c: tile(c.sources[0], c.node.ne[::-1]),
    Op.DUP: lambda c: c.sources[0], Op.CONT: lambda c: c.sources[0],
    Op.CPY: lambda c: c.sources[0],
}  # fmt: skip


def evaluate(
    encoded: bytes,
    inputs: Mapping[str, Any],
    weights: Memory | None = None,
    states: Memory | None = None,
) -> list[Array]:
    """Outputs of one run."""
    return Evaluator(encoded, weights, states).run(inputs)
