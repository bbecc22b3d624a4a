"""Hostile graphs (HOSTILE C): cyclic, dangling, lying, wrapping, exploding. Each is a typed error
that names node or tensor, or a defined result; the connection goes on and still computes."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
import raw
from expect import refused, served
from raw import (
    ABSENT, CONSTANT, DATA_LOSS, EXHAUSTED, F32, I32, INPUT, INVALID, NOT_FOUND, Q4_0, STATE,
    UNSUPPORTED, WEIGHT, Conn, Graph, add_graph, pb,
)  # fmt: skip
from run_daemon import device

pytestmark = pytest.mark.usefixtures("guarded")
FULL = bool(os.environ.get("HEADRACE_FULL"))

def inputs(*shapes: list[int], type: int = F32) -> Graph:
    graph = Graph()
    for number, shape in enumerate(shapes):
        graph.leaf(INPUT, type, shape, f"i{number}")
    return graph


def one_node(op: str | int, ne: list[int], *shapes: list[int], sources: Any = None, type: int = F32,
             params: tuple[int, ...] = (), **keys: Any) -> Graph:  # fmt: skip
    graph = inputs(*shapes)
    sources = tuple(range(len(shapes))) if sources is None else sources
    graph.node(op, type, ne, sources, params, output=True, name="node", **keys)
    return graph


# ---- lies about the graph ------------------------------------------------------------------------

# name -> (row, builder, reason); every one of them is INVALID.
LIES: dict[str, tuple[str, Callable[[], Graph], str]] = {}


def lie(row: str, reason: str) -> Callable[[Callable[[], Graph]], Callable[[], Graph]]:
    def keep(function: Callable[[], Graph]) -> Callable[[], Graph]:
        LIES[function.__name__] = (row, function, reason)
        return function

    return keep


def lies(row: str) -> Any:
    return pytest.mark.parametrize("name", [name for name, one in LIES.items() if one[0] == row])


@lie("C04", "SOURCE")
def source_is_itself() -> Graph:
    return one_node("ADD", [8], [8], sources=(0, 1))


@lie("C04", "SOURCE")
def source_is_later() -> Graph:
    graph = inputs([8])
    graph.node("ADD", F32, [8], (0, 2))
    graph.node("ADD", F32, [8], (0, 1), output=True)
    return graph


@lie("C04", "COLUMN")
def source_dangles() -> Graph:
    return one_node("ADD", [8], [8], sources=(0, 7))


@lie("C04", "COLUMN")
def source_is_far_away() -> Graph:
    return one_node("ADD", [8], [8], sources=(0, 0x7FFFFFFF))


@lie("C16", "ARITY")
def source_is_absent() -> Graph:
    return one_node("ADD", [8], [8], sources=(0, ABSENT))


@lie("C04", "VIEW")
def view_of_itself() -> Graph:
    return one_node("VIEW", [8], [8], view=(1, 0))


@lie("C04", "VIEW")
def view_of_a_later_one() -> Graph:
    graph = inputs([8])
    graph.node("VIEW", F32, [8], (0,), view=(2, 0))
    graph.node("VIEW", F32, [8], (1,), view=(1, 0), output=True)
    return graph


@lie("C13", "VIEW")
def view_past_its_base() -> Graph:
    return one_node("VIEW", [8], [8], view=(0, 4), params=(4, 0))


@lie("C13", "VIEW")
def view_offset_wraps() -> Graph:
    return one_node("VIEW", [4], [8], view=(0, 2**64 - 8), params=(-8, -1))


@lie("C13", "VIEW")
def view_larger_than_its_base() -> Graph:
    return one_node("VIEW", [1 << 20], [8], view=(0, 0))


@lie("C13", "VIEW")
def view_with_strides_out_of_its_base() -> Graph:
    return one_node("VIEW", [4, 2], [8], view=(0, 0), strides=(4, 1 << 40, 1 << 41, 1 << 41))


@lie("C10", "SIZE")
def strides_wrap() -> Graph:
    return one_node("VIEW", [4, 3], [64], view=(0, 0), strides=(4, 2**63, 2**63, 2**63))


@lie("C16", "ARITY")
def too_few_sources() -> Graph:
    return one_node("ADD", [8], [8])


@lie("C16", "ARITY")
def no_sources() -> Graph:
    return one_node("ADD", [8], [8], sources=())


@lie("C16", "ARITY")
def too_many_sources() -> Graph:
    return one_node("ADD", [8], *[[8]] * 10)


@lie("C16", "ARITY")
def source_where_none_is_allowed() -> Graph:
    return one_node("RMS_NORM", [8], [8], [8], params=(0x3727C5AC,))


@lie("C16", "OP")
def op_unknown() -> Graph:
    return one_node(9, [8], [8], [8])


@lie("C16", "OP")
def op_huge() -> Graph:
    return one_node(0xFFFFFFFF, [8], [8], [8])


@lie("C16", "OP")
def op_none_as_node() -> Graph:
    return one_node("NONE", [8], [8])


@lie("C07", "DTYPE")
def type_unknown() -> Graph:
    return one_node("ADD", [8], [8], [8], type=4711)


@lie("C07", "DTYPE")
def type_removed() -> Graph:
    return one_node("ADD", [8], [8], [8], type=4)


@lie("C07", "DTYPE")
def type_of_input_unknown() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, 255, [8], "a")
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie("C07", "DTYPE")
def result_type_is_another() -> Graph:
    return one_node("ADD", [8], [8], [8], type=I32)


@lie("C08", "BLOCK")
def block_is_cut() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, Q4_0, [33], "a")
    graph.leaf(INPUT, I32, [1], "ids")
    graph.node("GET_ROWS", F32, [33], (0, 1), output=True)
    return graph


@lie("C16", "SHAPE")
def result_shape_is_larger() -> Graph:
    return one_node("ADD", [9], [8], [8])


@lie("C16", "SHAPE")
def result_shape_is_smaller() -> Graph:
    return one_node("ADD", [7], [8], [8])


@lie("C16", "SHAPE")
def shapes_do_not_broadcast() -> Graph:
    return one_node("ADD", [8], [8], [3])


@lie("C16", "SHAPE")
def inner_extents_differ() -> Graph:
    return one_node("MUL_MAT", [2, 2], [8, 2], [9, 2])


@lie("C10", "SIZE")
def negative_extent() -> Graph:
    return one_node("ADD", [-8], [-8], [-8])


@lie("C10", "SIZE")
def extents_wrap() -> Graph:
    return one_node("ADD", [1 << 32, 1 << 32], [1 << 32, 1 << 32], [1 << 32, 1 << 32])


@lie("C10", "SIZE")
def bytes_wrap() -> Graph:
    return one_node("ADD", [1 << 62], [1 << 62], [1 << 62])


@lie("C10", "SIZE")
def padding_wraps() -> Graph:
    return one_node("CONT", [2**63 - 4], [2**63 - 4], type=24)


@lie("C10", "SHAPE")
def reshape_to_another_size() -> Graph:
    return one_node("RESHAPE", [9], [8], view=(0, 0))


@lie("C10", "SIZE")
def reshape_wraps_to_the_same_size() -> Graph:
    return one_node("RESHAPE", [1 << 32, 1 << 32, 1, 8], [8], view=(0, 0))


@lie("C17", "PARAM")
def permute_twice_the_same_axis() -> Graph:
    return one_node("PERMUTE", [8, 4], [8, 4], params=(0, 0, 2, 3), view=(0, 0))


@lie("C17", "PARAM")
def permute_axis_7() -> Graph:
    return one_node("PERMUTE", [8, 4], [8, 4], params=(7, 0, 2, 3), view=(0, 0))


@lie("C17", "PARAM")
def concat_along_axis_9() -> Graph:
    return one_node("CONCAT", [16], [8], [8], params=(9,))


@lie("C17", "PARAM")
def unused_params_are_set() -> Graph:
    return one_node("ADD", [8], [8], [8], params=(1, 2, 3))


@lie("C17", "COLUMN")
def too_many_params() -> Graph:
    return one_node("ADD", [8], [8], [8], params=(0,) * 17)


@lie("C17", "PARAM")
def unary_unknown() -> Graph:
    return one_node("UNARY", [8], [8], params=(99,))


@lie("C17", "PARAM")
def unary_negative() -> Graph:
    return one_node("UNARY", [8], [8], params=(-1,))


@lie("C17", "PARAM")
def rope_over_more_than_there_is() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8, 2, 3], "x")
    graph.leaf(INPUT, I32, [3], "positions")
    graph.node("ROPE", F32, [8, 2, 3], (0, 1), (0, 64, 0, 0, 0), output=True)
    return graph


@lie("C20", "SHAPE")
def copy_to_something_smaller() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8], "a")
    graph.leaf(STATE, F32, [4], "s")
    graph.node("CPY", F32, [4], (0, 1), view=(1, 0), output=True)
    return graph


@lie("C20", "SHAPE")
def scatter_of_other_widths() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8, 2], "rows")
    graph.leaf(raw.INPUT, raw.I64, [2], "ids")
    graph.leaf(STATE, F32, [9, 4], "s")
    graph.node("SET_ROWS", F32, [9, 4], (0, 1, 2), view=(2, 0), output=True)
    return graph


@lie("C20", "ALIAS")
def scatter_into_a_weight() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8, 2], "rows")
    graph.leaf(INPUT, raw.I64, [2], "ids")
    graph.leaf(WEIGHT, F32, [8, 4], "w")
    graph.node("SET_ROWS", F32, [8, 4], (0, 1, 2), view=(2, 0), output=True)
    return graph


@lie("C16", "LEAF")
def leaf_of_no_kind() -> Graph:
    graph = Graph()
    graph.leaf(0, F32, [8], "a")
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie("C16", "LEAF")
def leaf_of_kind_99() -> Graph:
    graph = Graph()
    graph.leaf(99, F32, [8], "a")
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie("C16", "FLAG")
def unknown_flags() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8], "a", flags=0xFFFFFFFF)
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie("C10", "COLUMN")
def constant_of_another_size() -> Graph:
    graph = Graph()
    graph.leaf(CONSTANT, F32, [8], "c", constant=bytes(31))
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie("C16", "UTF8")
def name_is_no_utf8() -> Graph:
    graph = add_graph()
    graph.leaves[0].name = b"\xff\xfe"
    return graph


def told(address: str, name: str) -> None:
    """The lie is refused with its reason, by a dry run too, and the connection goes on."""
    _, build, reason = LIES[name]
    with Conn(address) as conn:
        for dry_run in (True, False):
            refused(conn.submit_fails(build(), dry_run=dry_run), INVALID, reason)
        served(conn)


@lies("C04")
def test_C04_cycles_and_what_is_not_there(address: str, name: str) -> None:
    """Reasons: SOURCE, VIEW, COLUMN."""
    told(address, name)


@lies("C07")
def test_C07_types_that_are_none(address: str, name: str) -> None:
    """Reasons: DTYPE."""
    told(address, name)


@lies("C08")
def test_C08_cut_blocks(address: str, name: str) -> None:
    """Reasons: BLOCK."""
    told(address, name)


@lies("C10")
def test_C10_sizes_that_wrap(address: str, name: str) -> None:
    """Reasons: SIZE, SHAPE, COLUMN."""
    told(address, name)


@lies("C13")
def test_C13_views_out_of_their_base(address: str, name: str) -> None:
    """Reasons: VIEW."""
    told(address, name)


@lies("C16")
def test_C16_arity_and_shapes(address: str, name: str) -> None:
    """Reasons: ARITY, SHAPE, OP, LEAF, FLAG, UTF8."""
    told(address, name)


@lies("C17")
def test_C17_params_that_are_none(address: str, name: str) -> None:
    """Reasons: PARAM, COLUMN."""
    told(address, name)


@lies("C20")
def test_C20_writes_into_what_may_not_be_written(address: str, name: str) -> None:
    """Reasons: ALIAS, SHAPE."""
    told(address, name)


@pytest.mark.parametrize(
    "name", ["source_is_later", "shapes_do_not_broadcast", "inner_extents_differ", "op_unknown"]
)
def test_errors_name_the_node(daemon: Any, name: str) -> None:
    with Conn(daemon.address) as conn:
        error = conn.submit_fails(LIES[name][1]())
        assert error.error.has_node and error.error.node == 0


def test_unsupported_names_node_and_op(launch: Callable[..., Any]) -> None:
    narrow = launch(devices=[device("cpu0", threads=1, deny_ops="SCALE,RMS_NORM")])
    graph = inputs([8], [8])
    total = graph.node("ADD", F32, [8], (0, 1))
    graph.node("SCALE", F32, [8], (total,), (0x40000000, 0), output=True)
    with Conn(narrow.address) as conn:
        error = conn.submit_fails(graph)
        assert (error.code, error.reason) == (UNSUPPORTED, "OP")
        assert error.error.has_node and error.error.node == 1 and "SCALE" in error.words
        served(conn)


# ---- lies about the encoding ---------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def with_field(number: int, data: bytes) -> bytes:
    """The good graph with one more occurrence of a length-delimited field."""
    good = add_graph().encode().SerializeToString()
    return good + varint(number << 3 | 2) + varint(len(data)) + data


ENCODINGS = {
    "empty": b"",
    "leaf_count 2^32-1": pb.Graph(leaf_count=2**32 - 1).SerializeToString(),
    "leaf_count beyond the columns": add_graph().encode().SerializeToString() + b"\x08\x07",
    "one more op": with_field(2, struct.pack("<I", 30)),
    "half an op": with_field(2, b"\x1e\0"),
    "one more type": with_field(3, struct.pack("<I", 0)),
    "one more extent": with_field(5, struct.pack("<q", 1)),
    "one more source": with_field(8, struct.pack("<I", 0)),
    "source count 2^32-1": with_field(7, struct.pack("<I", 2**32 - 1)),
    "one more parameter": with_field(10, struct.pack("<I", 0)),
    "one more name length": with_field(16, struct.pack("<I", 0)),
    "names cut": with_field(17, b"x"),
    "view without base": with_field(11, struct.pack("<I", 2)),
    "view of tensor 2^32-1": with_field(11, struct.pack("<I", 2**32 - 1))
    + varint(12 << 3 | 2) + b"\4" + bytes(4) + varint(13 << 3 | 2) + b"\x08" + bytes(8),
    "strides of tensor 99": with_field(14, struct.pack("<I", 99))
    + varint(15 << 3 | 2) + b"\x20" + bytes(32),
    "constants for nobody": with_field(19, b"1234"),
    "trailing byte": add_graph().encode().SerializeToString() + b"\x08",
    "length past the end": add_graph().encode().SerializeToString() + b"\x12\xff\xff\x03",
    "groups": b"\x0b" * 100,
    "noise": random.Random(3).randbytes(2000),
}  # fmt: skip


# What is not refused with COLUMN.
OTHER_REASONS = {
    "empty": "SIZE", "leaf_count 2^32-1": "LIMIT", "half an op": "DECODE",
    "trailing byte": "DECODE", "length past the end": "DECODE", "groups": "DECODE",
    "noise": "DECODE",
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODINGS)
def test_C01_counts_that_lie(address: str, name: str) -> None:
    reason = OTHER_REASONS.get(name, "COLUMN")
    with Conn(address) as conn:
        error = conn.fails(raw.SUBMIT, pb.Submit(), ENCODINGS[name])
        told = refused(error, EXHAUSTED if reason == "LIMIT" else INVALID, reason)
        if reason == "LIMIT":
            assert (told.limit, told.actual) == (500000, 2**32 - 1)
        served(conn)


def test_C01_every_byte_of_a_graph_changed(address: str) -> None:
    """Accepted or refused, never anything else, and what is accepted runs."""
    good = bytearray(add_graph().encode().SerializeToString())
    rng = random.Random(11)
    with Conn(address) as conn:
        for at in range(len(good)):
            bad = bytearray(good)
            bad[at] ^= 1 << rng.randrange(8)
            try:
                reply, _ = conn.call(raw.SUBMIT, pb.Submit(), bytes(bad))
            except raw.RawError as error:
                assert error.code in (INVALID, EXHAUSTED, UNSUPPORTED, raw.PRECONDITION), error
                refused(error, error.code, error.reason)
                continue
            conn.call(raw.RELEASE, pb.Release(handle=reply.handle))
        served(conn)


def test_C01_digest_that_is_not_the_graphs(address: str) -> None:
    body = add_graph().encode().SerializeToString()
    with Conn(address) as conn:
        for digest in (bytes(32), hashlib.sha256(body + b"x").digest()):
            refused(conn.fails(raw.SUBMIT, pb.Submit(digest=digest), body), DATA_LOSS, "DIGEST")
            refused(conn.fails(raw.SUBMIT, pb.Submit(digest=digest)), NOT_FOUND, "GRAPH")
        for digest in (b"x", bytes(31)):
            refused(conn.fails(raw.SUBMIT, pb.Submit(digest=digest)), INVALID, "DECODE")
        served(conn)


# ---- sizes ---------------------------------------------------------------------------------------


def chain(nodes: int, width: int = 4) -> Graph:
    """Each node adds the previous one to itself: 2^nodes paths, if anybody walked them."""
    graph = inputs([width])
    last = 0
    for number in range(nodes):
        last = graph.node("ADD", F32, [width], (last, last), output=number == nodes - 1)
    return graph


def test_C05_diamonds(address: str) -> None:
    """60 levels have 2^60 paths; 100 000 nodes are planned while others work."""
    with Conn(address) as conn:
        handle = conn.submit(chain(60)).handle
        conn.submit(chain(100000 if FULL else 20000), dry_run=True)
        out = conn.run(handle, struct.pack("<4f", 1, 2, 0, -1))
        assert struct.unpack("<4f", out) == (2.0**60, 2.0**61, 0.0, -(2.0**60))
        served(conn)


def test_C04_views_of_views(address: str) -> None:
    """No recursion: a stack would not hold them."""
    graph = inputs([4])
    last = 0
    for _ in range(100000 if FULL else 20000):
        last = graph.node("VIEW", F32, [4], (last,), view=(last, 0))
    graph.node("ADD", F32, [4], (last, 0), output=True)
    with Conn(address) as conn:
        handle = conn.submit(graph).handle
        out = conn.run(handle, struct.pack("<4f", 1, 2, 3, 4))
        assert struct.unpack("<4f", out) == (2, 4, 6, 8)
        served(conn)


def test_C02_empty_and_over_the_limit(launch_behind: Any, address: str) -> None:
    small = launch_behind(
        devices=[device("cpu0", threads=1)],
        sections={"limits": {"graph_nodes": 100, "graph_bytes": "64K", "session_graphs": 3,
                             "tensor_bytes": "1M"}},
    )  # fmt: skip
    with Conn(small) as conn:
        assert conn.greeting.limits.graph_nodes_max == 100
        empty = Graph()
        empty.leaf(INPUT, F32, [8], "a")
        handle = conn.submit(empty).handle  # no node: a run computes nothing
        assert conn.run(handle, bytes(32)) == b""
        conn.call(raw.RELEASE, pb.Release(handle=handle))
        handle = conn.submit(chain(100)).handle
        told = refused(conn.submit_fails(chain(101)), EXHAUSTED, "LIMIT")
        assert (told.limit, told.actual) == (100, 101)
        refused(conn.submit_fails(chain(1, width=(1 << 18) + 1)), EXHAUSTED, "TENSOR_BYTES")
        with_constant = Graph()
        with_constant.leaf(CONSTANT, F32, [20000], "c", constant=bytes(80000))
        with_constant.node("CONT", F32, [20000], (0,), output=True)
        refused(conn.submit_fails(with_constant), EXHAUSTED, "LIMIT")
        conn.call(raw.RELEASE, pb.Release(handle=handle))
        # More handles than a session may hold: those that have been idle longest are gone.
        handles = [conn.submit(chain(number + 1)).handle for number in range(10)]
        for handle in handles[:7]:
            refused(conn.fails(raw.RUN, pb.Run(handle=handle), bytes(16)), NOT_FOUND, "GRAPH")
        for handle in handles[7:]:
            assert len(conn.run(handle, bytes(16))) == 16
        served(conn)


# ---- nothing at all, and anything ----------------------------------------------------------------

EMPTY = [[0], [0, 5], [5, 0], [4, 0, 3]]


@pytest.mark.parametrize("ne", EMPTY)
def test_C11_no_elements(address: str, ne: list[int]) -> None:
    graph = inputs(ne, ne)
    total = graph.node("ADD", F32, ne, (0, 1), output=True)
    graph.node("SCALE", F32, ne, (total,), (0x40000000, 0), output=True)
    with Conn(address) as conn:
        assert conn.run(conn.submit(graph).handle, b"") == b""
        product = one_node("MUL_MAT", [3, 2], [0, 3], [0, 2])
        assert conn.run(conn.submit(product).handle, b"") == bytes(24), "sums of nothing"
        served(conn)


def test_C11_every_op_over_nothing(address: str) -> None:
    """A defined result of no bytes, or an error; whatever is accepted is run, too."""
    ran = 0
    with Conn(address) as conn:
        for op in range(1, 200):
            for count in (1, 2, 3):
                graph = one_node(op, [0, 4], *[[0, 4]] * count)
                try:
                    handle = conn.submit(graph).handle
                except raw.RawError as error:
                    assert error.code in (INVALID, UNSUPPORTED), (op, error)
                    refused(error, error.code, error.reason)
                    continue
                assert conn.run(handle, b"") == b"", op
                conn.call(raw.RELEASE, pb.Release(handle=handle))
                ran += 1
        assert ran > 10
        served(conn)


NAN, INF, MINUS_ONE = 0x7FC00000, 0x7F800000, 0xBF800000


@pytest.mark.parametrize("eps", [NAN, INF, 0xFF800000, MINUS_ONE])
@pytest.mark.parametrize("op", ["RMS_NORM", 80])
def test_C17_epsilon_that_is_none(address: str, op: str | int, eps: int) -> None:
    with Conn(address) as conn:
        refused(conn.submit_fails(one_node(op, [8], [8], params=(eps,))), INVALID, "PARAM")
        served(conn)


def test_C17_random_params_for_every_op(address: str) -> None:
    """64 random bytes as parameters of every op number: a typed answer each time."""
    rng = random.Random(17)
    with Conn(address) as conn:
        for op in range(200):
            for sources in (1, 2, 3):
                params = tuple(rng.randrange(2**32) for _ in range(16))
                graph = one_node(op, [4, 4], *[[4, 4]] * sources, params=params)
                error = conn.submit_fails(graph, dry_run=True)
                reasons = ("PARAM", "OP", "ARITY", "SHAPE", "DTYPE", "LEAF", "ALIAS", "SOURCE", "VIEW")
                assert error.reason in reasons, (op, error)
                refused(error, INVALID, error.reason)
        served(conn)
