"""Cases of operators that nobody has seen, recorded from a real ggml in the form of the golden files.

    HEADRACE_GGML=FOLDER python tests/golden/record_ops.py [--seed N] [--cases N] [--op NAME]... FOLDER
    build/tests/golden/golden_ops FOLDER

HEADRACE_GGML names a folder with ggml's libraries somewhere below it. Shapes, types, parameters and how the
sources lie in memory are drawn from the seed; each case is made in a process of its own, and what ggml
aborts on is no case. For each operator one pair of files, NAME.txt and NAME.gguf, is written.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pickle
import struct
import sys
from collections import Counter
from collections.abc import Callable
from ctypes import c_bool as B
from ctypes import c_float as F
from ctypes import c_int as I
from ctypes import c_int64 as L
from ctypes import c_size_t as Z
from ctypes import c_void_p as P
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
ALIGNMENT = 32
MEMORY_BYTES = 1 << 26
F32, F16, I32, I64, BF16 = 0, 1, 26, 27, 30
FLOATS = (F32, F16, BF16)
# number: name, elements and bytes of a block
TYPES = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 10: ("q2_K", 256, 84), 11: ("q3_K", 256, 110),
    12: ("q4_K", 256, 144), 13: ("q5_K", 256, 176), 14: ("q6_K", 256, 210), 16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 26: ("i32", 1, 4),
    27: ("i64", 1, 8), 29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18),
    42: ("q2_0", 64, 18),
}  # fmt: skip
BLOCKS = tuple(number for number, (_, elements, _) in TYPES.items() if elements > 1)
# Those that ggml writes without a search: judged by their values, the others by their error.
WRITTEN = (2, 3, 6, 7, 8, 20)


class Tensor(ctypes.Structure):
    """struct ggml_tensor"""

    _fields_ = [
        ("type", I), ("buffer", P), ("ne", L * 4), ("nb", Z * 4), ("op", I), ("params", I * 16),
        ("flags", I), ("src", P * 10), ("view_src", P), ("view_offs", Z), ("data", P),
        ("name", ctypes.c_char * 64), ("extra", P), ("padding", ctypes.c_char * 8),
    ]  # fmt: skip


class InitParams(ctypes.Structure):
    _fields_ = [("bytes", Z), ("memory", P), ("no_alloc", B)]


class Library:
    """ggml's functions by name; every one gives a pointer unless said otherwise."""

    def __init__(self, folder: Path) -> None:
        flags = ctypes.RTLD_GLOBAL
        found = {path.name: path for path in sorted(folder.rglob("libggml*.so"))}
        self.base = ctypes.CDLL(str(found["libggml-base.so"]), flags)
        self.cpu = ctypes.CDLL(str(found["libggml-cpu.so"]), flags)
        self.cpu.ggml_cpu_init()

    def call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.base, f"ggml_{name}")
        function.restype = P
        return function(
            *(P(a) if isinstance(a, int) or a is None else a for a in arguments)
        )

    def text(self, name: str, value: int) -> str:
        function = getattr(self.base, f"ggml_{name}")
        function.restype = ctypes.c_char_p
        return str(function(I(value)).decode())


@dataclass
class Made:
    """What a process sends of its case: the lines of its tensors and the bytes of those stored."""

    lines: list[str]
    leaves: int
    stored: list[tuple[str, int, list[int], bytes]] = field(default_factory=list)


def bytes_of(tensor: Tensor) -> int:
    _, elements, size = TYPES[tensor.type]
    return int(np.prod([*tensor.ne], dtype=np.int64)) // elements * size


class Maker:
    """One case under construction: leaves first, whatever the order in which they are asked for."""

    def __init__(self, library: Library, seed: int) -> None:
        self.library = library
        self.rng = np.random.default_rng(seed)
        self.context = library.call("init", InitParams(MEMORY_BYTES, None, False))
        self.leaves: list[int] = []
        self.written: list[int] = []
        self.tolerance, self.metric, self.label = 1e-9, "nmse", ""

    # -- chance

    def below(self, most: int, least: int = 1) -> int:
        return int(self.rng.integers(least, most + 1))

    def pick(self, *choices: Any) -> Any:
        return choices[self.below(len(choices)) - 1]

    def chance(self, one_in: int) -> bool:
        return self.below(one_in) == 1

    def shape(self, most: int = 9, first: int = 70, axes: int = 4) -> Shape:
        """ne[0] .. ne[3], now and then wide enough for more than one chunk of a row."""
        wide = self.below(2600) if self.chance(12) else self.below(first)
        return (wide, *(self.below(most) for _ in range(axes - 1)), *(1,) * (4 - axes))

    # -- tensors

    def at(self, tensor: int) -> Tensor:
        return Tensor.from_address(tensor)

    def call(self, name: str, *arguments: Any) -> int:
        return int(self.library.call(name, self.context, *arguments))

    def leaf(
        self,
        type: int,
        ne: Shape,
        values: Array | None = None,
        low: float = -1,
        high: float = 1,
    ) -> int:
        made = self.call("new_tensor_4d", I(type), *(L(n) for n in ne))
        self.leaves.append(made)
        count = int(np.prod(ne, dtype=np.int64))
        if values is None:
            values = self.rng.uniform(low, high, count).astype(np.float32)
            # as activations and weights are: groups of unlike size
            if self.chance(3):
                groups = np.repeat(self.rng.uniform(0.1, 3, count // 16 + 1), 16)[
                    :count
                ]
                values = (values * groups).astype(np.float32)
        self.fill(self.at(made), np.ascontiguousarray(values))
        return made

    def fill(self, tensor: Tensor, values: Array) -> None:
        if tensor.type == F16:
            values = values.astype(np.float16)
        elif tensor.type == BF16:
            bits = values.astype(np.float32).view(np.uint32)
            values = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        elif tensor.type in BLOCKS:
            rows = max(1, values.size // tensor.ne[0])
            important = np.ones(tensor.ne[0], np.float32)
            quantize = self.library.base.ggml_quantize_chunk
            quantize.restype = Z
            if values.size:
                quantize(I(tensor.type), P(values.ctypes.data), P(tensor.data), L(0), L(rows),
                         L(tensor.ne[0]), P(important.ctypes.data))  # fmt: skip
            return
        if values.size:
            ctypes.memmove(tensor.data, values.ctypes.data, values.nbytes)

    def ids(self, ne: Shape, below: int, type: int = I32) -> int:
        dtype = np.int64 if type == I64 else np.int32
        return self.leaf(type, ne, self.rng.integers(0, below, ne[::-1]).astype(dtype))

    def lying(self, type: int, ne: Shape, dense: bool = False, **options: Any) -> int:
        """Of that shape, however it lies; `dense`: rows have no gaps."""
        kind = self.below(5)
        if kind == 1 and not dense and type not in BLOCKS:
            order = [int(axis) for axis in self.rng.permutation(4)]
            stored = tuple(ne[order[axis]] for axis in range(4))
            return self.call(
                "permute",
                self.leaf(type, stored, **options),
                *(I(axis) for axis in order),
            )
        if kind == 2 and dense:
            order = [0, *(1 + int(axis) for axis in self.rng.permutation(3))]
            stored = tuple(ne[order[axis]] for axis in range(4))
            return self.call(
                "permute",
                self.leaf(type, stored, **options),
                *(I(axis) for axis in order),
            )
        if kind == 3:
            unit = TYPES[type][1]
            wide = (
                ne[0] + unit * self.below(2, 0),
                *(n + self.below(2, 0) for n in ne[1:]),
            )
            base = self.leaf(type, wide, **options)
            nb = [*self.at(base).nb]
            offset = sum(
                self.below(w - n, 0) * step
                for w, n, step in zip(wide[1:], ne[1:], nb[1:], strict=True)
            )
            return self.call(
                "view_4d",
                base,
                *(L(n) for n in ne),
                Z(nb[1]),
                Z(nb[2]),
                Z(nb[3]),
                Z(offset),
            )
        return self.leaf(type, ne, **options)

    def rows(self, type: int, ne: Shape, **options: Any) -> int:
        return self.lying(type, ne, dense=True, **options)

    def row_of(self, type: int, most: int) -> int:
        """An extent 0 that the type allows."""
        unit = TYPES[type][1]
        return unit * self.below(max(1, most // unit))

    # -- writing it down

    def compute(self, out: int) -> Made:
        graph = self.library.call("new_graph", self.context)
        self.library.call("build_forward_expand", graph, out)
        count = self.library.base.ggml_graph_n_nodes(P(graph))
        nodes = [self.library.call("graph_node", graph, I(i)) for i in range(count)]
        order = [*self.leaves, *nodes]
        before = {leaf: self.bytes(leaf) for leaf in self.leaves}
        self.library.cpu.ggml_graph_compute_with_ctx(P(self.context), P(graph), I(1))
        made = Made([], len(self.leaves))
        for k, tensor in enumerate(order):
            self.describe(made, order, k, before.get(tensor))
            if tensor in before and before[tensor] != self.bytes(tensor):
                made.stored.append(self.stored(k, tensor, ".after", self.bytes(tensor)))
        return made

    def bytes(self, tensor: int) -> bytes:
        """In logical order."""
        t = self.at(tensor)
        _, elements, size = TYPES[t.type]
        ne = [t.ne[0] // elements, *t.ne[1:]]
        if 0 in ne:
            return b""
        last = sum((n - 1) * step for n, step in zip(ne, t.nb, strict=True)) + size
        memory = np.frombuffer(ctypes.string_at(t.data, last), np.uint8)
        window = np.lib.stride_tricks.as_strided(
            memory, (*ne[::-1], size), (*t.nb[::-1], 1)
        )
        return window.tobytes()

    def stored(
        self, k: int, tensor: int, suffix: str, content: bytes
    ) -> tuple[str, int, list[int], bytes]:
        t = self.at(tensor)
        return f"t{k}{suffix}", t.type, [*t.ne], content

    def describe(
        self, made: Made, order: list[int], k: int, before: bytes | None
    ) -> None:
        tensor = order[k]
        t = self.at(tensor)
        name = self.library.text("op_name", t.op)
        is_leaf = before is not None
        is_window = name in ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
        content = (
            before if before is not None else b"" if is_window else self.bytes(tensor)
        )
        is_stored = len(content) > 0 and not is_window
        after = is_leaf and before != self.bytes(tensor)
        sources = [order.index(s) if s else -1 for s in t.src]
        while sources and sources[-1] < 0:
            sources.pop()
        root, offset = -1, 0
        if t.view_src:
            root, offset = order.index(t.view_src), t.view_offs
        words = [f"{word & 0xFFFFFFFF:08x}" for word in t.params]
        while words and int(words[-1], 16) == 0:
            words.pop()
        role = "L" if is_leaf else "O" if k == len(order) - 1 else "I"
        fields = [
            "T", k, role, name, "-", TYPES[t.type][0], t.type, *t.ne, *t.nb, 0, root, offset,
            int(is_stored), int(after), len(sources), *sources, ",".join(words) or "-", "x",
        ]  # fmt: skip
        made.lines.append(" ".join(str(part) for part in fields))
        if is_stored:
            made.stored.append(self.stored(k, tensor, "", content))


CASES: dict[str, Callable[[Maker], int]] = {}


def case(function: Callable[[Maker], int]) -> Callable[[Maker], int]:
    CASES[function.__name__] = function
    return function


# ---- operators ------------------------------------------------------------------------------------


@case
def binary(m: Maker) -> int:
    ne = m.shape()
    part = tuple(m.pick(1, n) for n in ne)
    a = m.lying(m.pick(F32, F32, F16, BF16), ne)
    type = m.pick(F32, m.at(a).type)
    name = m.pick("add", "sub", "mul", "div", "add_inplace", "mul_inplace")
    m.tolerance = 1e-6 if m.at(a).type != F32 else 1e-12
    return m.call(name, a, m.lying(type, part, low=0.5, high=1.5))


@case
def add_blocks(m: Maker) -> int:
    type = m.pick(*WRITTEN)
    ne = (m.row_of(type, 300), m.below(6), m.below(3), m.below(2))
    m.tolerance = 1e-6
    return m.call("add", m.leaf(type, ne), m.leaf(F32, ne))


@case
def add_scalar(m: Maker) -> int:
    m.tolerance = 1e-6
    return m.call(
        "add1", m.rows(m.pick(F32, F16), m.shape()), m.leaf(F32, (1, 1, 1, 1))
    )


@case
def add_id(m: Maker) -> int:
    rows, used, tokens = m.below(9), m.below(5), m.below(7)
    ne0 = m.shape()[0]
    return m.call("add_id", m.rows(F32, (ne0, used, tokens, 1)), m.leaf(F32, (ne0, rows, 1, 1)),
                  m.ids((used, tokens, 1, 1), rows))  # fmt: skip


@case
def windows_set(m: Maker) -> int:
    ne = (m.below(40, 2), m.below(9, 2), m.below(4), m.below(3))
    name = m.pick("set", "acc", "set_inplace", "acc_inplace")
    type = m.pick(F32, I32) if name.startswith("set") else F32
    part = tuple(m.below(n) for n in ne)
    whole = m.leaf(
        type,
        ne,
        m.rng.integers(-99, 99, ne[::-1]).astype(np.int32) if type == I32 else None,
    )
    nb = [*m.at(whole).nb]
    offset = sum(
        m.below(n - p, 0) * step for n, p, step in zip(ne, part, nb, strict=True)
    )
    piece = m.leaf(
        type,
        part,
        m.rng.integers(-99, 99, part[::-1]).astype(np.int32) if type == I32 else None,
    )
    return m.call(name, whole, piece, Z(nb[1]), Z(nb[2]), Z(nb[3]), Z(offset))


@case
def functions(m: Maker) -> int:
    kind = m.below(16)
    x = m.rows(m.pick(F32, F32, F16, BF16), m.shape(), low=-4, high=4)
    m.tolerance = 1e-6
    if kind == 1:
        return m.call("scale_bias", m.leaf(F32, m.shape()), F(1.7), F(-0.3))
    if kind == 2:
        # ggml takes the rows of any tensor as if they followed one another
        return m.call("clamp", m.leaf(F32, m.shape(), low=-4, high=4), F(-0.5), F(m.pick(0.25, 1e9)))
    if kind == 3:
        return m.call("leaky_relu", m.leaf(F32, m.shape()), F(0.1), B(m.chance(2)))
    if kind == 4:
        return m.call(m.pick("sqr", "sin", "cos"), x)
    if kind == 5:
        return m.call(
            m.pick("sqrt", "log"), m.rows(m.pick(F32, F16), m.shape(), low=0.1, high=9)
        )
    if kind == 6:
        return m.call("fill", x, F(2.5))
    if kind == 7:
        return m.call(
            "xielu",
            m.leaf(F32, m.shape(), low=-4, high=4),
            F(0.8),
            F(0.7),
            F(0.5),
            F(-1e-6),
        )
    return m.call("unary", x, I(m.pick(*range(17), 18, 19, 20, 21)))


@case
def glu(m: Maker) -> int:
    ne = m.shape()
    type = m.pick(F32, F32, F16)
    m.tolerance = 1e-6
    if m.chance(3):
        pair = (ne[0] * 2, *ne[1:])
        return m.call(
            "glu",
            m.rows(type, pair, low=-3, high=3),
            I(m.pick(0, 1, 2, 4, 5)),
            B(m.chance(2)),
        )
    a, b = (m.rows(type, ne, low=-3, high=3) for _ in range(2))
    if m.chance(4):
        a, b = (m.rows(F32, ne, low=-9, high=9) for _ in range(2))
        return m.call("swiglu_oai", a, b, F(1.702), F(m.pick(7.0, 2.0)))
    return m.call("glu_split", a, b, I(m.pick(0, 1, 2, 4, 5)))


@case
def reductions(m: Maker) -> int:
    name = m.pick("sum", "sum_rows", "mean", "cumsum", "argmax", "count_equal")
    m.tolerance = 1e-10
    if name == "count_equal":
        ne = (*m.shape()[:2], 1, 1)  # ggml miscounts the rows of more dimensions
        return m.call(name, *(m.ids(ne, 3) for _ in range(2)))
    if name == "argmax":
        m.metric = "exact"
        return m.call(name, m.leaf(F32, (*m.shape()[:2], 1, 1)))
    type = m.pick(F32, F16, BF16) if name == "sum" else F32
    if type != F32:
        m.tolerance = 1e-5
    return m.call(name, m.rows(type, m.shape(), low=0, high=1))


@case
def sorted_rows(m: Maker) -> int:
    ne = m.shape(first=300)
    count = int(np.prod(ne))
    x = m.leaf(F32, ne, m.rng.permutation(count).astype(np.float32) - count // 2)
    m.metric = "exact"
    if m.chance(2):
        return m.call("argsort", x, I(m.below(1, 0)))
    m.metric = "rowset"
    return m.call("top_k", x, I(m.below(ne[0])))


@case
def norms(m: Maker) -> int:
    name = m.pick(
        "norm", "rms_norm", "l2_norm", "norm_inplace", "rms_norm_inplace", "group_norm"
    )
    eps = F(m.pick(1e-6, 1e-5, 0.1, 10.0))
    if name == "group_norm":
        ne = (m.below(20), m.below(9), m.below(13), m.below(3))
        return m.call(name, m.leaf(F32, ne), I(m.below(ne[2])), eps)
    return m.call(name, m.rows(F32, m.shape()), eps)


@case
def products(m: Maker) -> int:
    type = m.pick(*FLOATS, *BLOCKS)
    k, rows, columns = (
        m.row_of(type, 600),
        m.below(70),
        m.below(40) if m.chance(2) else m.below(9),
    )
    a2, a3 = m.below(3), m.below(2)
    a = m.rows(type, (k, rows, a2, a3))
    other = m.pick(F32, type) if type in (F16, BF16) else F32
    b = m.rows(other, (k, columns, a2 * m.below(3), a3 * m.below(2)))
    m.tolerance = 4e-6 if type in (3, 7) else 1e-9
    return m.call("mul_mat", a, b)


@case
def experts(m: Maker) -> int:
    type = m.pick(*FLOATS, *BLOCKS)
    k, rows, count, tokens = m.row_of(type, 300), m.below(40), m.below(8), m.below(40)
    used = m.below(count)
    order = np.stack([m.rng.permutation(count)[:used] for _ in range(tokens)]).astype(
        np.int32
    )
    ids = m.leaf(I32, (used, tokens, 1, 1), order)
    b = m.leaf(F32, (k, m.pick(1, used), tokens, 1))
    m.tolerance = 4e-6 if type in (3, 7) else 1e-9
    return m.call("mul_mat_id", m.leaf(type, (k, rows, count, 1)), b, ids)


@case
def outer_products(m: Maker) -> int:
    type = m.pick(F32, F32, 2, 8, 12)
    rows, k, columns = m.row_of(type, 256), m.below(30), m.below(20)
    a2, a3 = m.below(3), m.below(2)
    a = m.leaf(type, (rows, k, a2, a3))
    m.tolerance = 1e-11
    return m.call(
        "out_prod", a, m.lying(F32, (columns, k, a2 * m.below(2), a3 * m.below(2)))
    )


@case
def rows_taken(m: Maker) -> int:
    type = m.pick(*FLOATS, I32, *BLOCKS)
    ne = (m.row_of(type, 512), m.below(7), m.below(3), m.below(2))
    count = m.below(30)
    m.metric = "exact"
    if type == I32:
        a = m.ids(ne, 1000)
    else:
        a = m.rows(type, ne)
    return m.call("get_rows", a, m.ids((count, ne[2], ne[3], 1), ne[1]))


def to_type(m: Maker) -> int:
    return int(m.pick(*FLOATS, *WRITTEN, 39, 41, 42, 34, 35, 14, 12))


@case
def rows_written(m: Maker) -> int:
    type = to_type(m)
    ne0, total, planes, outer = m.row_of(type, 600), m.below(30), m.below(3), m.below(3)
    written = m.below(total)
    target = m.leaf(type, (ne0, total, planes, outer))
    i1, i2 = m.pick(1, planes), m.pick(1, outer)
    order = np.stack([m.rng.permutation(total)[:written] for _ in range(i1 * i2)])
    kind = m.pick(I32, I64)
    ids = m.leaf(
        kind, (written, i1, i2, 1), order.astype(np.int64 if kind == I64 else np.int32)
    )
    m.tolerance = 1e-6
    return m.call("set_rows", target, m.rows(F32, (ne0, written, planes, outer)), ids)


@case
def copies(m: Maker) -> int:
    kind, m.tolerance = m.below(5), 1e-6
    ne = m.shape()
    if kind == 1:
        return m.call(m.pick("cont", "dup"), m.lying(m.pick(*FLOATS), ne))
    if kind == 2:
        type = to_type(m)
        return m.call("cast", m.rows(F32, (m.row_of(type, 600), *ne[1:])), I(type))
    if kind == 3:
        type = m.pick(*BLOCKS)
        m.tolerance = 1e-12
        return m.call("cast", m.rows(type, (m.row_of(type, 600), *ne[1:])), I(F32))
    if kind == 4:
        source = m.lying(m.pick(*FLOATS), ne)
        return m.call("cpy", source, m.lying(m.pick(*FLOATS), ne))
    count = int(np.prod(ne))
    return m.call(
        "cpy",
        m.lying(m.pick(F32, F16), ne),
        m.leaf(m.pick(F32, F16, I32), (count, 1, 1, 1)),
    )


@case
def moves(m: Maker) -> int:
    kind, ne = m.below(9), m.shape()
    m.tolerance = 1e-12
    if kind == 1:
        axis = m.below(3, 0)
        other = tuple(m.below(9) if i == axis else n for i, n in enumerate(ne))
        type = m.pick(F32, F16, I32)
        return m.call("concat", m.lying(type, ne), m.lying(type, other), I(axis))
    if kind == 2:
        return m.call(
            "repeat_4d", m.rows(m.pick(F32, F16), ne), *(L(n * m.below(3)) for n in ne)
        )
    if kind == 3:
        return m.call(
            "repeat_back",
            m.leaf(F32, tuple(n * m.below(3) for n in ne)),
            m.leaf(F32, ne),
        )
    if kind == 4:
        name = m.pick("pad_ext", "pad_ext_circular")
        pads = [m.below(min(n, 4), 0) for n in ne for _ in range(2)]
        return m.call(name, m.rows(F32, ne), *(I(pad) for pad in pads))
    if kind == 5:
        return m.call(
            "pad_reflect_1d",
            m.leaf(F32, ne),
            *(I(m.below(ne[0] - 1, 0)) for _ in range(2)),
        )
    if kind == 6:
        return m.call("roll", m.leaf(F32, ne), *(I(m.below(2 * n, -2 * n)) for n in ne))
    if kind == 7:
        return m.call(
            "tri", m.leaf(F32, (ne[1] + 20, ne[1] + 20, *ne[2:])), I(m.below(3, 0))
        )
    if kind == 8:
        return m.call("diag", m.leaf(F32, (min(ne[0], 90), 1, *ne[2:])))
    x = m.leaf(F32, ne)
    return m.call(m.pick("diag_mask_inf", "diag_mask_zero"), x, I(m.below(9, 0)))


@case
def made_of_little(m: Maker) -> int:
    if m.chance(2):
        start, step = m.rng.uniform(-9, 9), m.rng.uniform(0.01, 3)
        return m.call("arange", F(start), F(start + m.rng.uniform(0.1, 99)), F(step))
    steps = m.leaf(F32, (m.below(9), 1, 1, 1), low=0, high=1000)
    m.tolerance = 1e-9
    return m.call("timestep_embedding", steps, I(m.below(65, 2)), I(m.pick(100, 10000)))


@case
def soft_max(m: Maker) -> int:
    ne = m.shape(first=300)
    mask = None
    bias = 0.0
    if m.chance(2):
        planes = [d for d in range(1, ne[2] + 1) if ne[2] % d == 0]
        outer = [d for d in range(1, ne[3] + 1) if ne[3] % d == 0]
        mask = m.leaf(
            m.pick(F32, F16),
            (ne[0], ne[1] + m.below(3, 0), m.pick(*planes), m.pick(*outer)),
        )
        bias = m.pick(0.0, 8.0, 1.5)
    x = m.leaf(F32, ne, low=-5, high=5)
    out = m.call("soft_max_ext", x, mask, F(m.pick(1.0, 0.3, -0.7)), F(bias))
    if m.chance(3):
        m.library.call(
            "soft_max_add_sinks", out, m.leaf(F32, (ne[2], 1, 1, 1), low=-3, high=3)
        )
    return out


@case
def rope(m: Maker) -> int:
    heads, tokens, batch, half = m.below(5), m.below(12), m.below(3), m.below(40)
    mode = m.pick(0, 2, 8, 24, 40)
    ne0 = 2 * half + (m.below(6, 0) if mode == 0 else 2 * m.below(3, 0))
    dims = 2 * m.below(half)
    if mode == 24:
        ne0, dims = 4 * half, 2 * half
    type = m.pick(F32, F32, F16)
    x = m.rows(type, (ne0, heads, tokens, batch))
    planes = 4 if mode & 8 else 1
    positions = m.ids((tokens * planes, 1, 1, 1), m.pick(50, 5000))
    pairs = dims if mode == 24 else dims // 2
    factors = m.leaf(F32, (pairs, 1, 1, 1), low=0.8, high=1.3) if m.chance(3) else None
    extended = m.pick(0.0, 0.0, 1.0, 0.5)
    tail = (I(mode), I(m.pick(0, 512, 4096)) if extended == 0 else I(m.pick(512, 4096)),
            F(m.pick(10000.0, 500000.0)), F(m.pick(1.0, 0.25, 2.0)), F(extended), F(m.pick(1.0, 1.3)),
            F(32.0), F(1.0))  # fmt: skip
    m.tolerance = 1e-7 if type == F32 else 1e-6
    back = m.pick("", "", "_back")
    if planes == 1:
        out = m.call("rope_ext" + back, x, positions, factors, I(dims), *tail)
    else:
        sections = (I * 4)(*(m.below(max(1, dims // 4), 0) for _ in range(4)))
        sections[m.below(2, 0)] += 1
        out = m.call(
            "rope_multi" + back, x, positions, factors, I(dims), sections, *tail
        )
    if mode != 24 and ne0 > dims and m.chance(2):
        m.library.call("rope_set_offset", out, I(m.below(ne0 - dims, 0)))
    return out


@case
def attention(m: Maker) -> int:
    shared, kv_heads, batch, size = (
        m.below(4),
        m.below(3),
        m.below(2),
        m.pick(16, 32, 64, 80, 128),
    )
    queries = m.pick(1, m.below(9), m.below(90))
    keys = m.pick(m.below(40), m.below(300), m.below(700))
    k_type = m.pick(*FLOATS, 2, 3, 6, 7, 8, 20)
    v_type = m.pick(k_type, k_type, *FLOATS, 8)
    unit = max(TYPES[k_type][1], TYPES[v_type][1])
    size = (size + unit - 1) // unit * unit
    value_size = m.pick(size, size, unit * m.below(max(1, 64 // unit)))
    q = m.rows(F32, (size, queries, shared * kv_heads, batch))
    k = m.rows(k_type, (size, keys, kv_heads, batch))
    v = m.rows(v_type, (value_size, keys, kv_heads, batch))
    mask, bias = None, 0.0
    if m.chance(2):
        values = m.rng.uniform(
            -1, 1, (m.pick(1, batch), m.pick(1, shared * kv_heads), queries, keys)
        )
        values[m.rng.uniform(size=values.shape) < 0.3] = -np.inf
        mask = m.leaf(F16, values.shape[::-1], values.astype(np.float32))
        bias = m.pick(0.0, 0.0, 8.0)
    out = m.call(
        "flash_attn_ext",
        q,
        k,
        v,
        mask,
        F(size**-0.5),
        F(bias),
        F(m.pick(0.0, 0.0, 10.0)),
    )
    if m.chance(3):
        m.library.call(
            "flash_attn_ext_add_sinks", out, m.leaf(F32, (shared * kv_heads, 1, 1, 1))
        )
    if m.chance(3):
        m.library.call("flash_attn_ext_set_prec", out, I(10))
    # f16 sums of values, in another order where ggml cuts the keys by its threads
    m.tolerance = 1e-4 if v_type in (F16,) else 1e-6
    return out


@case
def convolutions(m: Maker) -> int:
    kind = m.below(9)
    kw, kh, kd = m.below(4), m.below(4), m.below(3)
    w, h, d = (m.below(14, k + 3) for k in (kw, kh, kd))
    ic, oc, n = m.below(5), m.below(5), m.below(3)
    s, p, g = (
        [m.below(most, least) for _ in range(3)]
        for most, least in ((3, 1), (2, 0), (2, 1))
    )
    kernel_type = m.pick(F32, F16)
    m.tolerance = 1e-9
    if kind == 1:
        two = m.chance(2)
        shape = (kw, kh, ic, oc) if two else (kw, ic, oc, 1)
        image = (w + 4, h + 4, ic, n) if two else (w + 4, ic, n, 1)
        steps = (
            (s[0], s[1], p[0], p[1], g[0], g[1]) if two else (s[0], 0, p[0], 0, g[0], 0)
        )
        to = F16 if kernel_type == F16 and m.chance(2) else F32
        m.tolerance = 1e-7
        return m.call("im2col", m.leaf(kernel_type, shape), m.leaf(m.pick(F32, F32, F16) if to == F16 else F32, image),
                      *(I(x) for x in steps), B(two), I(to))  # fmt: skip
    if kind == 2:
        to = m.pick(F32, F16)
        m.tolerance = 1e-7
        return m.call("im2col_3d", m.leaf(kernel_type, (kw, kh, kd, ic * oc)), m.leaf(F32, (w, h, d + 3, ic * n)),
                      L(ic), *(I(x) for x in (*s, *p, *g)), I(to))  # fmt: skip
    if kind == 3:
        return m.call("conv_2d_direct", m.leaf(kernel_type, (kw, kh, ic, oc)), m.leaf(F32, (w + 4, h + 4, ic, n)),
                      *(I(x) for x in (*s[:2], *p[:2], *g[:2])))  # fmt: skip
    if kind in (4, 5):
        c = m.pick(ic, 17, 40)
        image = m.leaf(F32, (w + 4, h + 4, c, n))
        if kind == 5:
            stored = m.leaf(F32, (c, w + 4, h + 4, n))
            image = m.call("permute", stored, I(2), I(0), I(1), I(3))
        return m.call("conv_2d_dw_direct", m.leaf(kernel_type, (kw, kh, 1, c)), image,
                      *(I(x) for x in (*s[:2], *p[:2], *g[:2])))  # fmt: skip
    if kind == 6:
        return m.call("conv_3d_direct", m.leaf(kernel_type, (kw, kh, kd, ic * oc)), m.leaf(F32, (w, h, d + 3, ic * n)),
                      *(I(x) for x in (*s, *p, *g, ic, n, oc)))  # fmt: skip
    if kind == 7:
        return m.call("conv_transpose_1d", m.leaf(kernel_type, (kw, oc, ic, 1)), m.leaf(F32, (w, ic, 1, 1)),
                      I(s[0]), I(0), I(1))  # fmt: skip
    if kind == 8:
        return m.call(
            "conv_transpose_2d_p0",
            m.leaf(kernel_type, (kw, kh, oc, ic)),
            m.leaf(F32, (w, h, ic, 1)),
            I(s[0]),
        )  # of several images ggml computes one; fmt: skip
    columns = m.leaf(m.pick(*FLOATS), (kw * oc, w, 1, 1))
    m.tolerance = 1e-5
    return m.call(
        "col2im_1d",
        columns,
        I(s[0]),
        I(oc),
        I(m.below((kw - 1) // 2 if kw > 1 else 0, 0)),
    )


@case
def pools(m: Maker) -> int:
    ne = (m.below(20, 6), m.below(12, 6), m.below(4), m.below(3))
    k0, k1, s0, s1 = m.below(4), m.below(4), m.below(3), m.below(3)
    p0, p1 = m.below(k0 // 2, 0), m.below(k1 // 2, 0)
    x = m.leaf(m.pick(F32, F32, F16), ne)
    if m.chance(3):
        return m.call("pool_1d", x, I(m.below(1, 0)), I(k0), I(s0), I(p0))
    return m.call(
        "pool_2d", x, I(m.below(1, 0)), I(k0), I(k1), I(s0), I(s1), F(p0), F(p1)
    )


@case
def resized(m: Maker) -> int:
    ne = (m.below(20), m.below(12), m.below(4), m.below(3))
    mode = m.pick(0, 0, 1, 1, 2, 1 + 512, 1 + 256, 0 + 256, 2 + 256, 1 + 256 + 512)
    wanted = (
        m.below(40),
        m.below(30),
        ne[2] * m.pick(1, 1, 2),
        ne[3] * m.pick(1, 1, 2),
    )
    return m.call(
        "interpolate", m.leaf(F32, ne), *(L(n) for n in wanted), ctypes.c_uint32(mode)
    )


@case
def image_windows(m: Maker) -> int:
    kind, w = m.below(4), m.below(7, 2)
    channels, across, down = m.below(20), m.below(20), m.below(20)
    if kind == 1:
        return m.call("win_part", m.leaf(F32, (channels, across, down, 1)), I(w))
    if kind == 2:
        count = -(-across // w) * -(-down // w)
        return m.call(
            "win_unpart", m.leaf(F32, (channels, w, w, count)), I(across), I(down), I(w)
        )
    if kind == 3:
        return m.call(
            "get_rel_pos", m.leaf(F16, (channels, 2 * w - 1, 1, 1)), I(w), I(w)
        )
    q1, q2, batch = m.below(5), m.below(5), m.below(3)
    position = (w, q1, q2, batch)
    return m.call(
        "add_rel_pos",
        m.leaf(F32, (w * w, q1 * q2, batch, 1)),
        *(m.leaf(F32, position) for _ in range(2)),
    )


@case
def state_spaces(m: Maker) -> int:
    if m.chance(2):
        taps, channels, tokens, sequences = (
            m.pick(3, 4, m.below(6)),
            m.below(40),
            m.below(9),
            m.below(3),
        )
        return m.call("ssm_conv", m.leaf(F32, (tokens + taps - 1, channels, sequences, 1)),
                      m.leaf(F32, (taps, channels, 1, 1)))  # fmt: skip
    size, groups, tokens, sequences = (
        m.pick(16, 32, 128),
        m.below(3),
        m.below(9),
        m.below(3),
    )
    heads, slots = groups * m.below(3), m.below(4)
    is_first = m.chance(2)
    head = 1 if is_first else m.pick(16, 32, 64)
    snapshots = 1 if is_first else m.pick(1, 1, m.below(tokens))
    state = m.leaf(F32, (size, head, heads, slots + sequences))
    x = m.leaf(F32, (head, heads, tokens, sequences))
    dt = m.leaf(F32, (heads, tokens, sequences, 1))
    decay = m.leaf(F32, (size if is_first else 1, heads, 1, 1), low=-2, high=0)
    b, c = (m.leaf(F32, (size, groups, tokens, sequences)) for _ in range(2))
    order = m.rng.permutation(slots + sequences)[:sequences].astype(np.int32)
    return m.call(
        "ssm_scan",
        state,
        x,
        dt,
        decay,
        b,
        c,
        m.leaf(I32, (sequences, 1, 1, 1), order),
        L(snapshots),
    )


@case
def linear_attention(m: Maker) -> int:
    kind, size = m.below(3), m.pick(64, 64, 32, 16)
    heads, sequences = m.below(4), m.below(3)
    tokens = sequences * m.below(5)
    ne = (size, heads, tokens, 1)
    state = m.leaf(F32, (size * size * heads, sequences, 1, 1))
    if kind == 1:
        k, v, r = (m.leaf(F32, ne) for _ in range(3))
        return m.call(
            "rwkv_wkv6",
            k,
            v,
            r,
            m.leaf(F32, (size, heads, 1, 1)),
            m.leaf(F32, ne, low=0.2, high=1),
            state,
        )
    if kind == 2:
        m.leaves.remove(state)
        size = 64  # ggml's others are wrong on wide vectors
        ne = (size, heads, tokens, 1)
        state = m.leaf(F32, (size * size * heads, sequences, 1, 1))
        parts = [m.leaf(F32, ne, low=-0.3, high=0.3) for _ in range(6)]
        return m.call("rwkv_wkv7", *parts, state)
    k, v, q, g = (m.leaf(F32, ne, low=0, high=1) for _ in range(4))
    return m.call("gated_linear_attn", k, v, q, g, state, F(0.125))


@case
def delta_nets(m: Maker) -> int:
    size, heads, tokens, batch = (
        m.pick(16, 32, 64, 128),
        m.below(3),
        m.below(7),
        m.below(3),
    )
    repeat = m.below(3)
    q, k = (
        m.rows(F32, (size, heads, tokens, batch), low=-0.2, high=0.2) for _ in range(2)
    )
    v = m.rows(F32, (size, heads * repeat, tokens, batch))
    g = m.leaf(F32, (m.pick(1, size), heads * repeat, tokens, batch), low=-1, high=0)
    beta = m.leaf(F32, (1, heads * repeat, tokens, batch), low=0, high=1)
    state = m.leaf(F32, (size, size, heads * repeat, batch))
    return m.call("gated_delta_net", q, k, v, g, beta, state, L(m.below(tokens)))


@case
def triangles(m: Maker) -> int:
    n, columns, b2, b3 = m.below(40), m.below(90), m.below(3), m.below(3)
    values = np.tril(m.rng.uniform(-1, 1, (b3, b2, n, n))) + 4 * np.eye(n)
    a = m.leaf(F32, (n, n, b2, b3), values.astype(np.float32))
    return m.call(
        "solve_tri", a, m.leaf(F32, (columns, n, b2, b3)), B(True), B(True), B(False)
    )


@case
def hyper_connections(m: Maker) -> int:
    kind, size, tokens = m.below(3), m.shape()[0], m.below(9)
    if kind == 1:
        return m.call("dsv4_hc_comb", m.leaf(F32, (24, tokens, 1, 1)), m.leaf(F32, (3, 1, 1, 1)),
                      m.leaf(F32, (24, 1, 1, 1)), F(1e-6), I(m.below(20)))  # fmt: skip
    if kind == 2:
        return m.call(
            "dsv4_hc_pre",
            m.leaf(F32, (size, 4, tokens, 1)),
            m.leaf(F32, (4, tokens, 1, 1)),
        )
    return m.call("dsv4_hc_post", m.leaf(F32, (size, tokens, 1, 1)), m.leaf(F32, (size, 4, tokens, 1)),
                  m.leaf(F32, (4, tokens, 1, 1)), m.leaf(F32, (4, 4, tokens, 1)))  # fmt: skip


@case
def indexers(m: Maker) -> int:
    type = m.pick(F16, F32, 8)
    size, heads, tokens, keys, batch = (
        m.pick(32, 64, 128),
        m.below(8),
        m.below(9),
        m.below(70),
        m.below(3),
    )
    values = m.rng.uniform(-1, 1, (m.pick(1, batch), 1, tokens, keys)).astype(
        np.float32
    )
    m.tolerance = 1e-6
    return m.call("lightning_indexer", m.leaf(F32, (size, heads, tokens, batch)), m.leaf(type, (size, 1, keys, batch)),
                  m.leaf(F32, (heads, tokens, 1, batch)), m.leaf(F16, (keys, tokens, 1, values.shape[0]),
                  values))  # fmt: skip


# ---- files ----------------------------------------------------------------------------------------


def made_apart(library: Library, name: str, seed: int) -> tuple[Made, Maker] | None:
    """A case, made in a process of its own; None where ggml aborts."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        maker = Maker(library, seed)
        made = maker.compute(CASES[name](maker))
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump((made, maker.metric, maker.tolerance), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        sent = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0 or not sent:
        return None
    answer: tuple[Made, str, float] = pickle.loads(sent)
    return answer  # type: ignore[return-value]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def write_tensors(path: Path, tensors: list[tuple[str, int, list[int], bytes]]) -> None:
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 3, len(tensors), 1)
        + text("general.type")
        + struct.pack("<I", 8)
    )
    head += text("golden-ops")
    at = 0
    for name, type, ne, content in tensors:
        while len(ne) > 1 and ne[-1] == 1:
            ne = ne[:-1]
        head += text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, type, at)
        at += -(-len(content) // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for _, _, _, content in tensors:
            file.write(content + bytes(-len(content) % ALIGNMENT))


def record(
    library: Library, name: str, seed: int, cases: int, folder: Path
) -> Counter[str]:
    lines: list[str] = []
    tensors: list[tuple[str, int, list[int], bytes]] = []
    counts: Counter[str] = Counter()
    for i in range(cases):
        answer = made_apart(library, name, seed * 100003 + i)
        counts["aborted" if answer is None else "made"] += 1
        if answer is None:
            continue
        made, metric, tolerance = answer
        number = counts["made"] - 1
        out = len(made.lines) - 1
        op = made.lines[-1].split()[3]
        lines.append(
            f"C {number} {op} {metric} {tolerance:g} -1 {out + 1} {made.leaves} {out} seed={seed},i={i}"
        )
        lines += [*made.lines, "E"]
        tensors += [(f"c{number}.{suffix}", *rest) for suffix, *rest in made.stored]  # type: ignore[misc]
    (folder / f"{name}.txt").write_text(
        "\n".join([f"G golden-ops 1 {name} {counts['made']}", *lines]) + "\n"
    )
    write_tensors(folder / f"{name}.gguf", tensors)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="records cases of operators from ggml")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=40, help="of each kind")
    parser.add_argument(
        "--op", action="append", choices=[*CASES], help="only these kinds"
    )
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    if not os.environ.get("HEADRACE_GGML"):
        print("HEADRACE_GGML names no ggml", file=sys.stderr)
        return 77
    library = Library(Path(os.environ["HEADRACE_GGML"]))
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.op or CASES:
        counts = record(library, name, args.seed, args.cases, args.folder)
        print(
            f"{name:20} {counts['made']:4} made {counts['aborted']:4} aborted",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
