"""Operators that write into windows, mask and make tensors, for numpy_reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from headrace.op import Op
from numpy_reference import Call

Array = npt.NDArray[Any]


def window(c: Call) -> tuple[Array, Array]:
    """A copy of source 0, and source 1's place in it; strides and offset are bytes of f32 or i32."""
    whole = np.array(c.sources[0], order="C")
    scale = whole.itemsize // 4
    strides = [c.word(2) * scale, c.word(1) * scale, c.word(0) * scale, whole.itemsize]
    shape = c.sources[1].shape
    return whole, np.ndarray(shape, whole.dtype, whole.data, c.word(3) * scale, strides)


def op_set(c: Call) -> Array:
    """SET."""
    whole, part = window(c)
    part[...] = c.sources[1]
    return whole


def op_acc(c: Call) -> Array:
    """ACC."""
    whole, part = window(c)
    part[...] += c.sources[1]
    return whole


def masked(value: float) -> Callable[[Call], Array]:
    """What lies behind the diagonal, `n_past` further on, becomes a value."""
    return lambda c: np.where(
        np.tri(*c.sources[0].shape[-2:], c.word(0), dtype=bool), c.sources[0], value
    )


def op_tri(c: Call) -> Array:
    """TRI."""
    x, kind = c.sources[0], c.word(0)
    return np.triu(x, kind) if kind < 2 else np.tril(x, 2 - kind)


def op_diag(c: Call) -> Array:
    """DIAG."""
    x = c.sources[0]
    return np.where(np.eye(x.shape[-1], dtype=bool), x, 0)


def op_arange(c: Call) -> Array:
    """ARANGE."""
    steps = np.arange(c.node.ne[0], dtype=np.float32)
    return np.float32(c.real(0)) + np.float32(c.real(2)) * steps.reshape(1, 1, 1, -1)


def op_timestep_embedding(c: Call) -> Array:
    """TIMESTEP_EMBEDDING."""
    size, half = c.word(0), c.word(0) // 2
    angles = c.sources[0].reshape(-1, 1) * np.exp(
        -np.log(c.word(1)) * np.arange(half) / max(half, 1)
    )
    rest = np.zeros((len(angles), size % 2))
    return np.concatenate([np.cos(angles), np.sin(angles), rest], -1)[None, None]


OPS: dict[Op, Callable[[Call], Array]] = {
    Op.SET: op_set, Op.ACC: op_acc, Op.TRI: op_tri, Op.DIAG: op_diag, Op.ARANGE: op_arange,
    Op.DIAG_MASK_ZERO: masked(0), Op.DIAG_MASK_INF: masked(-np.inf),
    Op.FILL: lambda c: np.full_like(c.sources[0], c.real(0)),
    Op.LEAKY_RELU: lambda c: np.where(c.sources[0] > 0, c.sources[0], c.sources[0] * c.real(0)),
    Op.TIMESTEP_EMBEDDING: op_timestep_embedding,
}  # fmt: skip
