"""Commands about files on this side: inspect, quantize."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.cli.common import FileError, connected, mega, table, unusable
from headrace.cli.progress import progress, progress_of, silence
from headrace.errors import HeadraceError
from headrace.types import TensorInfo, Type

if TYPE_CHECKING:
    from headrace.models.gguf_file import GgufFile
    from headrace.models.safetensors_file import SafetensorsFile

LONG_FILE, INSPECT_PIECE = 64 << 20, 4 << 20  # bytes from which a bar is shown; bytes at once


def open_gguf(path: str) -> GgufFile:
    """A GGUF file on this side; a bar while a long one is read."""
    from headrace.models.gguf_file import GgufError, GgufFile

    try:
        if os.path.getsize(path) < LONG_FILE:
            return GgufFile(path)
        with progress(f"Reading {path}"):
            return GgufFile(path)
    except (GgufError, ValueError, OSError) as error:
        raise unusable(path, error) from error


def open_weights(path: str) -> GgufFile | SafetensorsFile:
    """A file of weights on this side: safetensors by its name, else GGUF."""
    from headrace.models.safetensors_file import SUFFIX, SafetensorsError, SafetensorsFile

    if not path.endswith(SUFFIX):
        return open_gguf(path)
    try:
        return SafetensorsFile(path)
    except (SafetensorsError, ValueError, OSError) as error:
        raise unusable(path, error) from error


def run_inspect(options: argparse.Namespace) -> int:
    """Metadata and tensors of a file."""
    file = open_weights(options.file)
    if options.tensor is not None:
        if options.tensor not in file:
            raise FileError(f"{options.file} has no tensor {options.tensor}")
        print_values(file, options.tensor)
        return 0
    print(
        f"{file.format}, {len(file)} tensors, {sum(t.nbytes for t in file.values()) / 1e6:.1f} MB"
    )
    print(f"types: {type_counts(file.values())}")
    for key, value in file.metadata.items():
        print(f"{key} = {shortened(value)}")
    if options.tensors:
        table(
            [
                ("tensor", "type", "shape", "bytes"),
                *(
                    (t.name, t.type.name.lower(), str(t.shape), str(t.nbytes))
                    for t in file.values()
                ),
            ]
        )
    return 0


def type_counts(tensors: Iterable[TensorInfo]) -> str:
    """How many tensors, and how many bytes, there are of each type."""
    found: dict[Type, tuple[int, int]] = {}
    for info in tensors:
        count, size = found.get(info.type, (0, 0))
        found[info.type] = (count + 1, size + info.nbytes)
    return ", ".join(
        f"{count} {number.name.lower()} ({mega(size)} MB)"
        for number, (count, size) in sorted(found.items(), key=lambda item: -item[1][1])
    )


def print_values(file: GgufFile | SafetensorsFile, name: str) -> None:
    """Statistics of a tensor's values; a bar when there are many."""
    import numpy as np
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    info = file[name]
    raw = file.read(name)
    raw = raw.reshape(-1, raw.shape[-1]) if raw.size else raw.reshape(0, 1)
    dtype = info.type.dtype
    step = max(1, INSPECT_PIECE // raw.shape[-1])
    pieces = range(0, len(raw), step)
    least, greatest = float("inf"), float("-inf")
    near = total = squares = 0.0
    zeros = count = 0
    print(f"{name}: {info.type.name.lower()} {info.shape}, {info.nbytes} bytes")
    with progress_of(name, raw.nbytes) if len(pieces) > 1 else silence() as advance:
        for at in pieces:
            piece = raw[at : at + step]
            try:
                values = np.asarray(
                    piece.view(dtype)
                    if dtype is not None
                    else dequantize(piece, GGMLQuantizationType(int(info.type))),
                    np.float64,
                )
            except (NotImplementedError, ValueError) as error:
                kind = info.type.name.lower()
                raise FileError(f"{name}: values of type {kind} cannot be shown here") from error
            # Sums of differences to a value near the mean: nothing is lost when squares are taken.
            if count == 0:
                near = float(values.flat[0]) if np.isfinite(values.flat[0]) else 0.0
            least = float(np.minimum(least, values.min()))
            greatest = float(np.maximum(greatest, values.max()))
            total += float((values - near).sum())
            squares += float(((values - near) ** 2).sum())
            zeros += int((values == 0).sum())
            count += values.size
            advance(piece.nbytes)
    if count:
        shift = total / count
        deviation = max(squares / count - shift * shift, 0.0) ** 0.5
        print(
            f"least {least:.6g}, greatest {greatest:.6g}, mean {near + shift:.6g}, "
            f"deviation {deviation:.6g}, zeros {zeros}"
        )


def run_quantize(options: argparse.Namespace) -> int:
    """A file with its weights as another type; figures to stderr."""
    from headrace.models.gguf_file import GgufError
    from headrace.models.quantize import choose, quantize

    if os.path.exists(options.target) and not options.force:
        raise FileError(f"{options.target} exists: --force replaces it")
    file = open_gguf(options.source)
    choices = choose(list(file.values()), options.type, options.keep, options.types)
    before = sum(choice.source.nbytes for choice in choices)
    with connected(options) as client:
        try:
            with progress_of(f"Writing {options.target}", before) as advance:
                quantize(
                    client,
                    file,
                    options.target,
                    choices,
                    options.type,
                    force=options.force,
                    advance=advance,
                )
        except HeadraceError:
            raise
        except (OSError, GgufError) as error:
            raise unusable(getattr(error, "filename", None) or options.source, error) from error
    after = [choice.target for choice in choices]
    print(
        f"{mega(before)} MB to {mega(sum(t.nbytes for t in after))} MB: {type_counts(after)}; "
        f"{sum(choice.kept for choice in choices)} tensors kept as they were",
        file=sys.stderr,
    )
    again = sum(choice.source.type.is_block and not choice.kept for choice in choices)
    if again:
        print(f"{again} tensors were rounded before: their errors add up", file=sys.stderr)
    return 0


def shortened(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, str):
        text = repr(value)
        return text if len(text) <= 100 else f"{text[:96]}...'"
    if hasattr(value, "__len__"):
        shown = ", ".join(str(item) for item in value[:6])
        return f"[{shown}{', ...' if len(value) > 6 else ''}] ({len(value)})"
    return str(value)
