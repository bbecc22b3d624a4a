"""GGUF: the key-value pairs and the tensor list.

parse_metadata() reads the key-value bytes that the daemon sends when it has loaded a file; GgufFile
reads a file on this side. Every length is checked against what is there.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.types import Array, TensorInfo, Type, as_ne, as_shape, tensor_bytes

_SCALARS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class GgufError(ValueError):
    """The bytes are no GGUF."""


class _Reader:
    """A cursor over bytes."""

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self.data = data
        self.at = at

    def u32(self) -> int:
        """The next 32-bit number."""
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        """The next 64-bit number."""
        return int(_U64.unpack(self.take(8))[0])

    def take(self, count: int) -> memoryview:
        """The next bytes."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise GgufError(f"truncated: {count} bytes wanted at {self.at} of {len(self.data)}")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def string(self) -> str:
        """The next string; what is no UTF-8 is kept as surrogates."""
        return str(self.take(self.u64()), "utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        """The next value of a type."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            kind, count = self.u32(), self.u64()
            if kind in _SCALARS:
                dtype = np.dtype(_SCALARS[kind])
                return np.frombuffer(self.take(count * dtype.itemsize), dtype)
            if count > len(self.data):
                raise GgufError(f"an array of {count} elements")
            return [self.value(kind) for _ in range(count)]
        if kind not in _SCALARS:
            raise GgufError(f"value type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def pairs(self, count: int) -> dict[str, Any]:
        """The next key-value pairs."""
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.string()
            if key in found:
                raise GgufError(f"{key} occurs twice")
            found[key] = self.value(self.u32())
        return found


def parse_metadata(raw: bytes | bytearray | memoryview, count: int) -> dict[str, Any]:
    """Key-value bytes as they stand in a file after the header's counts.

    Numbers become Python's, arrays of numbers numpy arrays, arrays of strings lists.
    """
    return _Reader(memoryview(raw)).pairs(count)


class GgufFile(Mapping[str, TensorInfo]):
    """A GGUF file, mapped: `metadata`, the tensors by name, and their bytes."""

    def __init__(self, path: str | Path) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = _Reader(memoryview(self._map))
        if bytes(reader.take(4)) != b"GGUF":
            raise GgufError(f"{path} does not begin with GGUF")
        self.version = reader.u32()
        if self.version not in (2, 3):
            raise GgufError(f"GGUF version {self.version}")
        self.format = f"GGUF version {self.version}"
        tensors, pairs = reader.u64(), reader.u64()
        self._pairs = (reader.at, pairs)
        self.metadata = reader.pairs(pairs)
        self._tensors: dict[str, TensorInfo] = {}
        self._offsets: dict[str, int] = {}
        for _ in range(tensors):
            name = reader.string()
            dims = reader.u32()
            if dims > 4:
                raise GgufError(f"{name} has {dims} dimensions")
            ne = [reader.u64() for _ in range(dims)] + [1] * (4 - dims)
            number = Type(reader.u32())
            if name in self._tensors:
                raise GgufError(f"{name} occurs twice")
            self._tensors[name] = TensorInfo(name, number, as_shape(ne, max(dims, 1)))
            self._offsets[name] = reader.u64()
        self.alignment = int(self.metadata.get("general.alignment", 32))
        if self.alignment < 1:
            raise GgufError(f"alignment {self.alignment}")
        self._start = -(-reader.at // self.alignment) * self.alignment
        self._check_places()

    def _check_places(self) -> None:
        """Contents lie as the daemon wants them: aligned, one behind the other, in the file."""
        previous = 0
        for info in self.values():
            begin = self._offsets[info.name]
            if begin % self.alignment:
                raise GgufError(f"{info.name} is not aligned to {self.alignment}")
            if begin < previous:
                raise GgufError(f"{info.name} precedes or overlaps the one before it")
            previous = begin + info.nbytes
            if info.nbytes and self._start + previous > len(self._map):
                raise GgufError(
                    f"{info.name} ends at byte {self._start + previous}, "
                    f"the file at {len(self._map)}"
                )

    def __getitem__(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def pairs(self) -> Iterator[tuple[str, memoryview]]:
        """The key-value pairs as they stand in the file: key, and the bytes of key and value."""
        at, count = self._pairs
        reader = _Reader(memoryview(self._map), at)
        for _ in range(count):
            at = reader.at
            key = reader.string()
            reader.value(reader.u32())
            yield key, reader.data[at : reader.at]

    def read(self, name: str) -> Array:
        """A tensor's bytes as uint8, one row per row of the tensor; not copied."""
        info = self._tensors[name]
        ne = as_ne(info.shape)
        start = self._start + self._offsets[name]
        raw = np.frombuffer(self._map, np.uint8, tensor_bytes(info.type, ne), start)
        return raw.reshape(*info.shape[:-1], info.type.row_bytes(ne[0]))
