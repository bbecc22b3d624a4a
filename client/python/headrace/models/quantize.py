"""Writes a GGUF file's weights as another element type, converted by the daemon's CPY.

choose() says what each tensor becomes; quantize() converts and writes. Key-value pairs are copied
byte for byte except general.file_type. Tensors travel as pieces of whole rows, so neither side
holds more than a few pieces at once, and a row's blocks do not depend on how it was cut.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from gguf.gguf_writer import GGUFWriter, WriterState

from headrace.client import Client
from headrace.errors import Unsupported
from headrace.graph import Graph
from headrace.handles import Limits, RunResult
from headrace.held import GraphHandle
from headrace.models.gguf_file import GgufError, GgufFile
from headrace.operation import Operation
from headrace.types import Array, TensorInfo, Type

FILE_TYPE = "general.file_type"
PIECE_BYTES = 8 << 20
"""Bytes of a piece as f32; one row at least."""
IN_FLIGHT = 2
GRAPHS_MAX = 8
NUMBERS = frozenset({Type.I8, Type.I16, Type.I32, Type.I64, Type.F64})
"""Types that hold no weights: such tensors are kept, and are no targets."""

KEPT = (
    "*_norm.weight", "*_norm.*.weight", "*ffn_gate_inp*", "*position_embd*", "*token_types*",
    "*ssm_conv1d*", "*shortconv.conv*", "*time_mix_*", "*altup*", "*laurel*",
)  # fmt: skip
"""Weights that lose more by rounding than their size is worth: norms, routers, small filters."""

_FALLBACK: dict[Type, Type] = {
    Type.Q2_K: Type.IQ4_NL, Type.Q3_K: Type.IQ4_NL, Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1,
    Type.Q6_K: Type.Q8_0, Type.IQ4_XS: Type.IQ4_NL, Type.TQ1_0: Type.Q4_0,
    Type.TQ2_0: Type.Q4_0, Type.NVFP4: Type.Q4_0, Type.Q1_0: Type.Q4_0, Type.Q2_0: Type.Q4_0,
}  # fmt: skip

_FILE_TYPES: dict[Type, int] = {
    Type.F32: 0, Type.F16: 1, Type.Q4_0: 2, Type.Q4_1: 3, Type.Q8_0: 7, Type.Q5_0: 8,
    Type.Q5_1: 9, Type.Q2_K: 10, Type.Q3_K: 11, Type.Q4_K: 14, Type.Q5_K: 16, Type.Q6_K: 18,
    Type.IQ4_NL: 25, Type.IQ4_XS: 30, Type.BF16: 32, Type.TQ1_0: 36, Type.TQ2_0: 37,
    Type.MXFP4: 38, Type.NVFP4: 39, Type.Q1_0: 40,
}  # fmt: skip
_FILE_TYPE_UNKNOWN = 1024

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Choice:
    """What becomes of one tensor."""

    source: TensorInfo
    target: TensorInfo

    @property
    def kept(self) -> bool:
        """The bytes are copied."""
        return self.source.type is self.target.type


def fitting(target: Type, row: int) -> Type:
    """`target`, or the type that stands in for it where a row is no multiple of its block.

    First a similar type with blocks of 32, then f16.
    """
    for number in (target, _FALLBACK.get(target, Type.F16)):
        if row % number.block_elements == 0:
            return number
    return Type.F16


def choose(
    tensors: Sequence[TensorInfo],
    target: Type,
    keep: Sequence[str] = (),
    types: Sequence[tuple[str, Type]] = (),
) -> list[Choice]:
    """What each tensor becomes.

    keep: globs over names of tensors that stay as they are; they win over everything. types: globs
    with a type of their own, the first match counts. Of the others, tensors of at least two
    dimensions whose name ends in "weight" become `target`, unless KEPT has them.
    """
    for number in (target, *(number for _, number in types)):
        if number in NUMBERS:
            raise ValueError(f"{number.name.lower()} is no type of weights")

    def wanted(info: TensorInfo) -> Type:
        if info.type in NUMBERS or any(fnmatchcase(info.name, glob) for glob in keep):
            return info.type
        for glob, number in types:
            if fnmatchcase(info.name, glob):
                return fitting(number, info.shape[-1])
        if len(info.shape) < 2 or not info.name.endswith("weight"):
            return info.type
        if any(fnmatchcase(info.name, glob) for glob in KEPT):
            return info.type
        return fitting(target, info.shape[-1])

    return [Choice(info, TensorInfo(info.name, wanted(info), info.shape)) for info in tensors]


def piece_rows(limits: Limits, row: int) -> int:
    """Rows of `row` elements that travel together: one at least."""
    least = min(
        limits.tensor_bytes_max, limits.run_bytes_max, limits.output_queue_bytes_max // IN_FLIGHT
    )
    return max(1, min(PIECE_BYTES, least) // max(4 * row, 1))


class Converter:
    """Casts rows in the daemon; keeps the graphs of the latest shapes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._handles: OrderedDict[tuple[Type, Type, int, int], GraphHandle] = OrderedDict()
        self._direct: dict[tuple[Type, Type], bool] = {}

    def pieces(self, source: Type, target: Type, rows: Array, row: int) -> Iterator[Array]:
        """Bytes of `rows` (uint8, one row of `row` elements each) as `target`, in order."""
        count = piece_rows(self._client.hello.limits, row)
        pending: deque[Operation[RunResult]] = deque()
        for start in range(0, len(rows), count):
            piece = rows[start : start + count]
            content = piece if source.dtype is None else piece.view(source.dtype)
            handle = self._handle(source, target, len(piece), row)
            pending.append(handle.run_async({"x": content}))
            if len(pending) >= IN_FLIGHT:
                yield pending.popleft().result()["y"]
        while pending:
            yield pending.popleft().result()["y"]

    def check(self, source: Type, target: Type) -> None:
        """Raises Unsupported when no device has what pieces() of these types needs."""
        key = (source, target)
        if key in self._direct:
            return
        row = max(source.block_elements, target.block_elements)
        for direct in (True, False):
            graph = cast_graph(source, target, 1, row, direct)
            if self._client.ops(graph).any(axis=1).all():
                self._direct[key] = direct
                return
        raise Unsupported(
            f"no device of the daemon converts {source.name.lower()} to {target.name.lower()}",
            reason="QUANTIZE",
        )

    def _handle(self, source: Type, target: Type, rows: int, row: int) -> GraphHandle:
        key = (source, target, rows, row)
        handle = self._handles.get(key)
        if handle is None:
            self.check(source, target)
            direct = self._direct[source, target]
            handle = self._client.submit(cast_graph(source, target, rows, row, direct))
            self._handles[key] = handle
        self._handles.move_to_end(key)
        most = max(1, min(GRAPHS_MAX, self._client.hello.limits.session_graphs_max))
        while len(self._handles) > most:
            self._handles.popitem(last=False)[1].release()
        return handle


def cast_graph(source: Type, target: Type, rows: int, row: int, direct: bool) -> Graph:
    """x (rows, row) of type `source` -> y as `target`, through f32 unless `direct`."""
    graph = Graph()
    x = graph.input("x", (rows, row), source)
    if not direct and source is not Type.F32:
        x = graph.cast(x, Type.F32)
    graph.output(graph.cast(x, target), "y")
    return graph


def quantize(
    client: Client,
    file: GgufFile,
    path: str | Path,
    choices: Sequence[Choice],
    target: Type,
    *,
    force: bool = False,
    advance: Advance = lambda count: None,
) -> None:
    """Writes `file` with the tensors as chosen; the file appears when it is whole.

    target: what general.file_type says. advance: told the bytes of the source as they are done.
    FileExistsError when there is something at `path`, unless `force`.
    """
    path = Path(path)
    converter = Converter(client)
    for choice in choices:
        if not choice.kept:
            converter.check(choice.source.type, choice.target.type)
    with replacing(path, force) as temporary:
        writer = GGUFWriter(temporary, "")
        try:
            begin(writer, file, choices, target)
            for choice in choices:
                write_tensor(writer, converter, file, choice, advance)
            writer.flush()
            assert writer.fout is not None
            os.fsync(writer.fout[0].fileno())
        finally:
            writer.close()


@contextmanager
def replacing(path: Path, force: bool) -> Iterator[Path]:
    """A new file beside `path` that takes its place in the end, or goes when something fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        if path.exists() and not force:
            raise FileExistsError(f"{path} exists")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def begin(writer: GGUFWriter, file: GgufFile, choices: Sequence[Choice], target: Type) -> None:
    """Header, key-value pairs and the list of tensors."""
    number = _FILE_TYPES.get(target, _FILE_TYPE_UNKNOWN)
    name = FILE_TYPE.encode()
    pair = struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, number)
    pairs = {key: bytes(raw) for key, raw in file.pairs()} | {FILE_TYPE: pair}
    writer.kv_data = [dict.fromkeys(pairs)]  # type: ignore[list-item]  # only counted
    writer.data_alignment = file.alignment
    for choice in choices:
        info = choice.target
        writer.add_tensor_info(
            info.name,
            info.shape,
            np.dtype(np.float32),  # not uint8: the shape counts elements
            info.nbytes,
            info.type,  # type: ignore[arg-type]  # the number, also where the package has none
        )
    writer.write_header_to_file()
    assert writer.fout is not None
    for raw in pairs.values():
        writer.fout[0].write(raw)
    writer.state = WriterState.KV_DATA
    writer.write_ti_data_to_file()


def write_tensor(
    writer: GGUFWriter, converter: Converter, file: GgufFile, choice: Choice, advance: Advance
) -> None:
    """One tensor's bytes."""
    assert writer.fout is not None
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    source, target = choice.source, choice.target
    rows = file.read(source.name)
    row = source.shape[-1]
    rows = rows.reshape(-1, rows.shape[-1]) if rows.size else rows.reshape(0, 1)
    if choice.kept:
        step = max(1, PIECE_BYTES // rows.shape[-1])
        done: Iterator[Array] = (rows[at : at + step] for at in range(0, len(rows), step))
    else:
        done = converter.pieces(source.type, target.type, rows, row)
    written = told = 0
    for piece in done:
        out.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        written += piece.nbytes
        share = written * source.nbytes // target.nbytes
        advance(share - told)
        told = share
    if written != target.nbytes:
        raise GgufError(f"{target.name}: {written} bytes instead of {target.nbytes}")
    writer.write_padding(out, out.tell())
