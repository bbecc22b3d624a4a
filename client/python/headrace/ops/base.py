"""What a graph is made of: tensors, leaves and nodes, and their encoding as wire columns.

A graph is built front to back: a node names only tensors that exist. Inside, extents and strides
are kept fastest first (`ne`, `nb`), as the wire and GGUF have them; everything public is in
numpy's order. encode() freezes the graph.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headrace.op import ABSENT, FLAG_INPUT, FLAG_OUTPUT, LeafKind, Op
from headrace.types import Array, Type, TypeLike, as_bytes, as_ne, as_shape, as_type, tensor_bytes

Quad = tuple[int, int, int, int]
_PACK_F32 = struct.Struct("<f")
_PACK_U32 = struct.Struct("<I")
_PACK_2U32 = struct.Struct("<II")
_PACK_U64 = struct.Struct("<Q")


def f32_word(value: float) -> int:
    """A float32's bit pattern."""
    return int(_PACK_U32.unpack(_PACK_F32.pack(value))[0])


def u64_words(value: int) -> tuple[int, int]:
    """The low and the high word of a 64-bit number."""
    low, high = _PACK_2U32.unpack(_PACK_U64.pack(value))
    return low, high


def contiguous(number: Type, ne: Quad) -> Quad:
    """Strides in bytes of a contiguous tensor."""
    nb0 = number.block_bytes
    nb1 = ne[0] // number.block_elements * nb0
    nb2 = nb1 * ne[1]
    return nb0, nb1, nb2, nb2 * ne[2]


class Tensor:
    """One tensor of a graph: a leaf or the result of a node. Read only."""

    __slots__ = (
        "base",
        "data",
        "flags",
        "graph",
        "index",
        "kind",
        "name",
        "nb",
        "ndim",
        "ne",
        "offset",
        "op",
        "params",
        "sources",
        "type",
    )  # fmt: skip

    def __init__(self, graph: GraphBase, op: Op, number: Type, ne: Quad, ndim: int) -> None:
        self.graph = graph
        self.index = 0
        self.op = op
        self.kind: LeafKind | None = None
        self.type = number
        self.ne = ne
        self.nb: Quad = contiguous(number, ne)
        self.ndim = ndim
        self.sources: tuple[Tensor | None, ...] = ()
        self.params: tuple[int, ...] = ()
        self.base: Tensor | None = None
        self.offset = 0
        self.flags = 0
        self.name = ""
        self.data: memoryview | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in numpy's order."""
        return as_shape(self.ne, self.ndim)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes, in numpy's order."""
        return as_shape(self.nb, self.ndim)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps."""
        return tensor_bytes(self.type, self.ne)

    @property
    def is_contiguous(self) -> bool:
        """Elements follow each other without gaps, in order; extents of 1 have no stride."""
        expected = contiguous(self.type, self.ne)
        return all(self.ne[i] == 1 or self.nb[i] == expected[i] for i in range(4))

    @property
    def is_leaf(self) -> bool:
        """Weight, state, input or constant."""
        return self.kind is not None

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        what = self.kind.name.lower() if self.kind else self.op.name
        return f"<Tensor{name} {what} {self.type.name.lower()} {self.shape}>"

    def __add__(self, other: Tensor) -> Tensor:
        return self.graph.binary(Op.ADD, self, other)

    def __sub__(self, other: Tensor) -> Tensor:
        return self.graph.binary(Op.SUB, self, other)

    def __mul__(self, other: Tensor) -> Tensor:
        return self.graph.binary(Op.MUL, self, other)

    def __truediv__(self, other: Tensor) -> Tensor:
        return self.graph.binary(Op.DIV, self, other)


T = TypeVar("T", bound="GraphBase")


class GraphBase:
    """Leaves, nodes, outputs and their encoding; the operators are added by the ops modules."""

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        self.nodes: list[Tensor] = []
        self._names: dict[str, Tensor] = {}
        self._encoded: bytes | None = None
        self._digest: bytes | None = None

    # ---- leaves --------------------------------------------------------------------------------

    def _leaf(self, kind: LeafKind, number: Type, shape: Sequence[int], name: str) -> Tensor:
        self._check_open()
        leaf = Tensor(self, Op.NONE, number, as_ne(shape), len(shape))
        if name and kind is not LeafKind.CONSTANT:
            if name in self._names:
                raise ValueError(f"the graph already has a leaf named {name!r}")
            self._names[name] = leaf
        number.row_bytes(leaf.ne[0])
        leaf.kind, leaf.name, leaf.index = kind, name, len(self.leaves)
        self.leaves.append(leaf)
        return leaf

    def weight(self, name: str, shape: Sequence[int], type: TypeLike = Type.F32) -> Tensor:
        """A read-only tensor of a weight set, found there by its name."""
        return self._leaf(LeafKind.WEIGHT, as_type(type), shape, name)

    def state(self, name: str, shape: Sequence[int], type: TypeLike = Type.F32) -> Tensor:
        """A writable tensor of a state, found there by its name."""
        return self._leaf(LeafKind.STATE, as_type(type), shape, name)

    def input(self, name: str, shape: Sequence[int], type: TypeLike = Type.F32) -> Tensor:
        """A tensor whose content each run carries."""
        leaf = self._leaf(LeafKind.INPUT, as_type(type), shape, name)
        leaf.flags |= FLAG_INPUT
        return leaf

    def constant(
        self,
        value: npt.ArrayLike,
        type: TypeLike | None = None,
        *,
        name: str = "",
        shape: Sequence[int] | None = None,
    ) -> Tensor:
        """A tensor whose content is part of the graph.

        A float64 or int64 list becomes f32 or i32 unless `type` says otherwise. Block types are
        given as uint8 with `type` and `shape`.
        """
        array = np.asarray(value)
        if type is None and not isinstance(value, np.ndarray):
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
        number = as_type(array.dtype if type is None else type)
        extents = tuple(array.shape if shape is None else shape)
        data = as_bytes(array, number, extents, name or "constant")
        leaf = self._leaf(LeafKind.CONSTANT, number, extents, name)
        leaf.data = data
        return leaf

    # ---- nodes ---------------------------------------------------------------------------------

    def node(
        self,
        op: Op,
        number: Type,
        ne: Sequence[int],
        sources: Sequence[Tensor | None],
        params: Iterable[int] = (),
        *,
        ndim: int | None = None,
        over: Tensor | None = None,
        offset: int = 0,
        nb: Quad | None = None,
        name: str = "",
    ) -> Tensor:
        """Appends a node with a declared result; the operators' methods call this.

        `ne` and `nb` are fastest first. `over` names a tensor whose memory the result is a window
        on, `offset` bytes after that tensor's own start.
        """
        self._check_open()
        extents = (int(ne[0]), int(ne[1]), int(ne[2]), int(ne[3]))
        if min(extents) < 0:
            raise ValueError(f"{op.name}: negative extent in {as_shape(extents, 4)}")
        least = next((i + 1 for i in (3, 2, 1) if extents[i] != 1), 1)
        if ndim is None:
            ndim = max((s.ndim for s in sources if s is not None), default=1)
        result = Tensor(self, op, number, extents, max(ndim, least))
        for source in sources:
            if source is not None and source.graph is not self:
                raise ValueError(f"{op.name}: {source!r} belongs to another graph")
        result.sources = tuple(sources)
        result.params = tuple(int(word) & 0xFFFFFFFF for word in params)
        if len(result.params) > 16:
            raise ValueError(f"{op.name}: more than 16 parameter words")
        if over is not None:
            result.base = over.base if over.base is not None else over
            result.offset = over.offset + offset
        if nb is not None:
            result.nb = nb
        result.name = name
        result.index = len(self.nodes)
        self.nodes.append(result)
        return result

    def like(
        self,
        op: Op,
        x: Tensor,
        sources: Sequence[Tensor | None],
        params: Iterable[int] = (),
        *,
        inplace: bool = False,
    ) -> Tensor:
        """A node whose result has x's type and shape; with `inplace` it is written over x."""
        if inplace:
            return self.node(op, x.type, x.ne, sources, params, ndim=x.ndim, over=x, nb=x.nb)
        return self.node(op, x.type, x.ne, sources, params, ndim=x.ndim)

    def binary(self, op: Op, a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
        """a (op) b, b repeated to a's shape."""
        for i in range(4):
            if b.ne[i] == 0 and a.ne[i] == 0:
                continue
            if b.ne[i] == 0 or a.ne[i] % b.ne[i]:
                raise ValueError(f"{op.name}: {b.shape} does not repeat to {a.shape}")
        return self.like(op, a, (a, b), inplace=inplace)

    # ---- outputs and names ---------------------------------------------------------------------

    def output(self, x: Tensor, name: str | None = None) -> Tensor:
        """Marks x as something a run may read back; returns x. x must be contiguous."""
        self._check_open()
        if not x.is_contiguous:
            raise ValueError(f"{x!r} is not contiguous: give cont() of it as output")
        x.flags |= FLAG_OUTPUT
        if name is not None:
            x.name = name
        return x

    def name(self, x: Tensor, name: str) -> Tensor:
        """Names a node, for pins, EXPLAIN and errors; returns x."""
        self._check_open()
        if x.is_leaf:
            raise ValueError("a leaf keeps the name it was made with")
        x.name = name
        return x

    @property
    def inputs(self) -> list[Tensor]:
        """Input leaves in the order in which a run carries them."""
        return [leaf for leaf in self.leaves if leaf.kind is LeafKind.INPUT]

    @property
    def outputs(self) -> list[Tensor]:
        """Outputs in the order in which a run returns them."""
        return [t for t in (*self.leaves, *self.nodes) if t.flags & FLAG_OUTPUT]

    def tensor(self, number: int) -> Tensor:
        """The tensor with that id (leaves first, then nodes), as errors name it."""
        count = len(self.leaves)
        return self.leaves[number] if number < count else self.nodes[number - count]

    def _check_open(self) -> None:
        if self._encoded is not None:
            raise RuntimeError("the graph has been encoded and cannot be changed any more")

    # ---- encoding ------------------------------------------------------------------------------

    @property
    def digest(self) -> bytes:
        """SHA-256 of the encoded graph."""
        if self._digest is None:
            self._digest = hashlib.sha256(self.encode()).digest()
        return self._digest

    def encode(self) -> bytes:
        """The graph as message Graph. The same bytes at each call; the graph is frozen by it."""
        if self._encoded is None:
            self._encoded = _encode(self.leaves, self.nodes)
        return self._encoded


def _ids(tensors: Iterable[Tensor | None], leaf_count: int) -> list[int]:
    return [
        ABSENT if t is None else t.index if t.kind is not None else t.index + leaf_count
        for t in tensors
    ]


def _encode(leaves: list[Tensor], nodes: list[Tensor]) -> bytes:
    every = leaves + nodes
    count = len(leaves)
    names = [t.name.encode() for t in every]
    constants = [t.data for t in leaves if t.data is not None]
    views = [t for t in every if t.base is not None]
    strided = [t for t in every if t.nb != contiguous(t.type, t.ne)]
    columns: list[tuple[int, str, list[int] | Array]] = [
        (2, "<u4", [t.op for t in nodes]),
        (3, "<u4", [t.type for t in every]),
        (4, "<u4", [t.flags for t in every]),
        (5, "<i8", np.array([t.ne for t in every], "<i8").reshape(-1)),
        (6, "<u4", [t.kind or 0 for t in leaves]),
        (7, "<u4", [len(t.sources) for t in nodes]),
        (8, "<u4", _ids((s for t in nodes for s in t.sources), count)),
        (9, "<u4", [len(t.params) for t in nodes]),
        (10, "<u4", [word for t in nodes for word in t.params]),
        (11, "<u4", _ids(views, count)),
        (12, "<u4", _ids((t.base for t in views), count)),
        (13, "<u8", [t.offset for t in views]),
        (14, "<u4", _ids(strided, count)),
        (15, "<u8", [stride for t in strided for stride in t.nb]),
        (16, "<u4", [len(name) for name in names]),
        (17, "", []),
        (18, "<u8", [len(data) for data in constants]),
    ]
    parts: list[bytes | memoryview] = [b"\x08" + varint(count)]
    for field, dtype, values in columns:
        body = b"".join(names) if not dtype else np.asarray(values, dtype).tobytes()
        if body:
            parts += (varint(field << 3 | 2), varint(len(body)), body)
    if constants:
        parts += (varint(19 << 3 | 2), varint(sum(map(len, constants))), *constants)
    return b"".join(parts)


def varint(value: int) -> bytes:
    """Protobuf's variable-length number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
