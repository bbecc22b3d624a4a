"""Element types: GGUF's numbers, block layouts and the numpy types they correspond to."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Type(enum.IntEnum):
    """An element type. The numbers are GGUF's and go over the wire."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42

    @property
    def block_elements(self) -> int:
        """Elements in one block; 1 for a plain type."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block; of one element for a plain type."""
        return _BLOCKS[self][1]

    @property
    def is_block(self) -> bool:
        """True for the quantised block types."""
        return _BLOCKS[self][0] > 1

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """numpy's type, or None where numpy has none (bf16 and the block types)."""
        return _DTYPES.get(self)

    def row_bytes(self, elements: int) -> int:
        """Bytes of `elements` consecutive elements."""
        block, size = _BLOCKS[self]
        if elements % block:
            raise ValueError(
                f"{elements} elements are no multiple of {self.name}'s block of {block}"
            )
        return elements // block * size


TypeLike = Type | str | int | np.dtype[Any] | type[Any]

_BLOCKS: dict[Type, tuple[int, int]] = {
    Type.F32: (1, 4), Type.F16: (1, 2), Type.BF16: (1, 2), Type.F64: (1, 8),
    Type.I8: (1, 1), Type.I16: (1, 2), Type.I32: (1, 4), Type.I64: (1, 8),
    Type.Q4_0: (32, 18), Type.Q4_1: (32, 20), Type.Q5_0: (32, 22), Type.Q5_1: (32, 24),
    Type.Q8_0: (32, 34), Type.Q8_1: (32, 36), Type.Q2_K: (256, 84), Type.Q3_K: (256, 110),
    Type.Q4_K: (256, 144), Type.Q5_K: (256, 176), Type.Q6_K: (256, 210), Type.Q8_K: (256, 292),
    Type.IQ1_S: (256, 50), Type.IQ1_M: (256, 56), Type.IQ2_XXS: (256, 66), Type.IQ2_XS: (256, 74),
    Type.IQ2_S: (256, 82), Type.IQ3_XXS: (256, 98), Type.IQ3_S: (256, 110), Type.IQ4_NL: (32, 18),
    Type.IQ4_XS: (256, 136), Type.TQ1_0: (256, 54), Type.TQ2_0: (256, 66), Type.MXFP4: (32, 17),
    Type.NVFP4: (64, 36), Type.Q1_0: (128, 18), Type.Q2_0: (64, 18),
}  # fmt: skip

_DTYPES: dict[Type, np.dtype[Any]] = {
    Type.F32: np.dtype("<f4"), Type.F16: np.dtype("<f2"), Type.F64: np.dtype("<f8"),
    Type.I8: np.dtype("i1"), Type.I16: np.dtype("<i2"), Type.I32: np.dtype("<i4"),
    Type.I64: np.dtype("<i8"),
}  # fmt: skip

_BY_DTYPE = {dtype: number for number, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class TensorInfo:
    """Name, type and numpy shape of a tensor that lives somewhere else."""

    name: str
    type: Type
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return tensor_bytes(self.type, as_ne(self.shape))


def as_type(value: TypeLike) -> Type:
    """A Type from a Type, its name ("f16", "q4_K"), its number, or a numpy type."""
    if isinstance(value, Type):
        return value
    if isinstance(value, str):
        try:
            return Type[value.upper()]
        except KeyError:
            pass
    elif isinstance(value, int) and not isinstance(value, bool):
        return Type(value)
    try:
        dtype: np.dtype[Any] = np.dtype(value)  # type: ignore[arg-type]
        return _BY_DTYPE[dtype.newbyteorder("<")]
    except (KeyError, TypeError):
        raise ValueError(f"no element type corresponds to {value!r}") from None


def as_ne(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Extents, fastest first, of a numpy shape of at most four dimensions."""
    if len(shape) > 4:
        raise ValueError(f"shape {tuple(shape)} has more than four dimensions")
    ne = [int(extent) for extent in reversed(shape)] + [1] * (4 - len(shape))
    if min(ne) < 0:
        raise ValueError(f"shape {tuple(shape)} has a negative extent")
    return ne[0], ne[1], ne[2], ne[3]


def as_shape(ne: Sequence[int], ndim: int | None = None) -> tuple[int, ...]:
    """The numpy shape of extents; `ndim` None drops leading dimensions of 1."""
    if ndim is None:
        ndim = next((i + 1 for i in (3, 2, 1) if ne[i] != 1), 1)
    return tuple(reversed(ne[:ndim]))


def tensor_bytes(number: Type, ne: Sequence[int]) -> int:
    """Bytes of a contiguous tensor."""
    return number.row_bytes(ne[0]) * ne[1] * ne[2] * ne[3]


def as_bytes(value: npt.ArrayLike, number: Type, shape: tuple[int, ...], what: str) -> memoryview:
    """The bytes of an array as the wire wants them: of that type and shape, contiguous.

    Does not copy an array that is right already. Block types and bf16 are given as an array of
    uint8 (or uint16 for bf16) with the right number of bytes.
    """
    dtype = number.dtype
    array = np.asarray(value)
    if dtype is None:
        raw = np.ascontiguousarray(array)
        wanted = tensor_bytes(number, as_ne(shape))
        if raw.dtype not in (np.uint8, np.uint16) or raw.nbytes != wanted:
            raise ValueError(
                f"{what}: {number.name} wants {wanted} bytes as uint8, not "
                f"{raw.nbytes} of {raw.dtype}"
            )
        return raw.reshape(-1).view(np.uint8).data
    if array.shape != shape:
        raise ValueError(f"{what}: shape {array.shape}, expected {shape}")
    if array.dtype != dtype:
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ValueError(f"{what}: {array.dtype} cannot stand for {number.name}")
        if array.dtype.kind in "iu" and dtype.kind in "iu" and array.size:
            range_ = np.iinfo(dtype)  # beyond which astype() wraps silently
            if array.min() < range_.min or array.max() > range_.max:
                raise ValueError(f"{what}: a value is beyond {number.name}")
        array = array.astype(dtype)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def from_bytes(raw: Array, number: Type, shape: tuple[int, ...]) -> Array:
    """An array over bytes, without a copy; uint16 for bf16, rows of uint8 for block types."""
    dtype = number.dtype
    if dtype is not None:
        return raw.view(dtype).reshape(shape)
    if number is Type.BF16:
        return raw.view("<u2").reshape(shape)
    return raw.reshape(*shape[:-1], number.row_bytes(shape[-1]))
