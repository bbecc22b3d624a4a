"""Graphs under construction for test_properties: random shapes, types, layouts and values from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.graph import Graph
from headrace.ops.base import Tensor
from headrace.types import Type

Array = np.ndarray[Any, Any]


class Maker:
    """A graph under construction and the values of its inputs."""

    def __init__(self, seed: int, wild: bool = False) -> None:
        self.wild = wild
        self.rng = np.random.default_rng(seed)
        self.graph = Graph()
        self.values: dict[str, Array] = {}

    def below(self, most: int, least: int = 1) -> int:
        return int(self.rng.integers(least, most + 1))

    def shape(self, most: int = 24, axes: int | None = None) -> tuple[int, ...]:
        return tuple(
            self.below(most if i else 70) for i in range(axes or self.below(4))
        )[::-1]

    def leaf(self, values: Array, type: Type) -> Tensor:
        name = f"i{len(self.values)}"
        self.values[name] = values
        shape = values.shape
        if type.is_block:
            shape = (*shape[:-1], shape[-1] // type.block_bytes * type.block_elements)
        return self.graph.input(name, shape, type)

    def floats(self, shape: tuple[int, ...], type: Type = Type.F32) -> Array:
        values = self.rng.standard_normal(shape).astype(np.float32)
        if type is Type.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16)
        return values if type.dtype is None else values.astype(type.dtype)

    def plain(self, shape: tuple[int, ...], type: Type = Type.F32) -> Tensor:
        """Floats of that shape, contiguous unless it is the wild form."""
        if self.wild:
            return self.operand(shape, type)
        return self.leaf(self.floats(shape, type), type)

    def operand(self, shape: tuple[int, ...], type: Type = Type.F32) -> Tensor:
        """Floats of that shape, however they lie in memory."""
        return self.laid_out(
            shape, lambda stored: self.leaf(self.floats(stored, type), type)
        )

    def laid_out(
        self, shape: tuple[int, ...], leaf: Callable[[tuple[int, ...]], Tensor]
    ) -> Tensor:
        kind = self.below(4)
        if kind == 1 and len(shape) > 1:
            order = [int(axis) for axis in self.rng.permutation(len(shape))]
            stored = tuple(shape[order.index(i)] for i in range(len(shape)))
            return self.graph.permute(leaf(stored), order)
        if kind == 2:
            wide = tuple(extent + self.below(3, 0) for extent in shape)
            whole = leaf(wide)
            first = [self.below(w - n, 0) for w, n in zip(wide, shape, strict=True)]
            offset = sum(f * s for f, s in zip(first, whole.strides, strict=True))
            return self.graph.view(whole, shape, whole.strides, offset)
        return leaf(shape)

    def rows(self, shape: tuple[int, ...], type: Type) -> Tensor:
        """Contiguous rows of any type, with gaps between planes now and then."""
        if not type.is_block:
            return self.plain(shape, type)
        import gguf

        number = gguf.GGMLQuantizationType(int(type))
        return self.leaf(gguf.quants.quantize(self.floats(shape), number), type)

    def ids(self, shape: tuple[int, ...], below: int) -> Tensor:
        return self.integers(self.rng.integers(0, below, shape))

    def integers(self, values: Array) -> Tensor:
        values = values.astype(np.int32)
        if not self.wild:
            return self.leaf(values, Type.I32)
        made = self.laid_out(
            values.shape, lambda stored: self.leaf(np.zeros(stored, np.int32), Type.I32)
        )
        # The values go where the tensor's elements lie in its leaf.
        leaf = made if made.is_leaf else self.graph.leaves[-1]
        memory = self.values[leaf.name]
        offset = made.offset
        window: Array = np.ndarray(
            values.shape, np.int32, memory.data, offset, made.strides
        )
        window[...] = values
        return made


FLOATS = (Type.F32, Type.F16, Type.BF16)
# Types that the package gguf can quantise to.
BLOCKS = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0)


def pick(m: Maker, *choices: Any) -> Any:
    return choices[m.below(len(choices)) - 1]
