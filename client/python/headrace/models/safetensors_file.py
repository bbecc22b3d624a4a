"""Safetensors: the header of a file on this side, and its tensors' bytes."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.types import Array, TensorInfo, Type, as_ne

HEADER_BYTES_MAX = 100_000_000
SUFFIX = ".safetensors"
DTYPES = {
    "F32": Type.F32,
    "F16": Type.F16,
    "BF16": Type.BF16,
    "F64": Type.F64,
    "I8": Type.I8,
    "I16": Type.I16,
    "I32": Type.I32,
    "I64": Type.I64,
}


class SafetensorsError(ValueError):
    """The bytes are no safetensors file, or hold what the daemon does not take."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise SafetensorsError("a name twice in one object")
    return found


def _naturals(value: Any, name: str) -> list[int]:
    if not isinstance(value, list) or any(type(n) is not int or n < 0 for n in value):
        raise SafetensorsError(f"{name}: {value!r} is no list of natural numbers")
    return value


class SafetensorsFile(Mapping[str, TensorInfo]):
    """A safetensors file, mapped: `metadata`, the tensors by name, and their bytes."""

    def __init__(self, path: str | Path) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._map) < 8:
            raise SafetensorsError(f"{path} has {len(self._map)} bytes")
        size = int(struct.unpack_from("<Q", self._map)[0])
        self._start = 8 + size
        if size > HEADER_BYTES_MAX or self._start > len(self._map):
            raise SafetensorsError(f"a header of {size} bytes")
        try:
            header = json.loads(self._map[8 : self._start], object_pairs_hook=_unique)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise SafetensorsError(f"the header is no JSON: {error}") from None
        if not isinstance(header, dict):
            raise SafetensorsError("the header is no object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise SafetensorsError("__metadata__ is no object")
        self.format = "safetensors"
        self.metadata: dict[str, Any] = metadata
        self._tensors: dict[str, TensorInfo] = {}
        self._offsets: dict[str, int] = {}
        for name, entry in header.items():
            self._add(name, entry)
        self._check_places()

    def _check_places(self) -> None:
        """Contents lie as the daemon wants them: without gap or overlap, to the file's end."""
        end = 0
        for info in sorted(self.values(), key=lambda info: (self._offsets[info.name], info.nbytes)):
            if self._offsets[info.name] != end:
                raise SafetensorsError(f"{info.name} does not begin where another ends, at {end}")
            end += info.nbytes
        if self._start + end != len(self._map):
            raise SafetensorsError(
                f"the contents end at byte {self._start + end}, the file at {len(self._map)}"
            )

    def _add(self, name: str, entry: Any) -> None:
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise SafetensorsError(f"{name}: dtype, shape and data_offsets expected")
        shape = _naturals(entry["shape"], name)
        places = _naturals(entry["data_offsets"], name)
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
            raise SafetensorsError(f"{name}: dtype {entry['dtype']!r}")
        if len(shape) > 4 or len(places) != 2:
            raise SafetensorsError(f"{name}: {len(shape)} dimensions, {len(places)} offsets")
        info = TensorInfo(name, DTYPES[entry["dtype"]], tuple(shape))
        begin, end = places
        if end - begin != info.nbytes or self._start + end > len(self._map):
            raise SafetensorsError(f"{name}: {info.nbytes} bytes at {begin} to {end}")
        self._tensors[name] = info
        self._offsets[name] = begin

    def __getitem__(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def read(self, name: str) -> Array:
        """A tensor's bytes as uint8, one row per row of the tensor; not copied."""
        info = self._tensors[name]
        raw = np.frombuffer(
            self._map, np.uint8, info.nbytes, self._start + self._offsets[name]
        )
        return raw.reshape(*info.shape[:-1], info.type.row_bytes(as_ne(info.shape)[0]))
