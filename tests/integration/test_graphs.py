"""Hostile graphs (HOSTILE C): cyclic, dangling, lying, wrapping, exploding. Each is a typed error
that names node or tensor, or a defined result; the connection goes on and still computes."""

from __future__ import annotations

import hashlib
import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
import raw
from raw import (
    ABSENT, CONSTANT, EXHAUSTED, F16, F32, I32, INPUT, INVALID, Q4_0, RANGE, STATE, UNSUPPORTED,
    WEIGHT, Conn, Graph, add_graph, pb,
)  # fmt: skip
from run_daemon import device

pytestmark = pytest.mark.usefixtures("guarded")

TWO = struct.pack("<16f", *range(16))
SUM = struct.pack("<8f", *(float(i + i + 8) for i in range(8)))


def still_works(conn: Conn) -> None:
    handle = conn.submit(add_graph()).handle
    assert conn.run(handle, TWO) == SUM
    conn.call(raw.RELEASE, pb.Release(handle=handle))


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

LIES: dict[str, tuple[Callable[[], Graph], int]] = {}


def lie(code: int) -> Callable[[Callable[[], Graph]], Callable[[], Graph]]:
    def keep(function: Callable[[], Graph]) -> Callable[[], Graph]:
        LIES[function.__name__] = (function, code)
        return function

    return keep


@lie(INVALID)
def source_is_itself() -> Graph:
    return one_node("ADD", [8], [8], sources=(0, 1))


@lie(INVALID)
def source_is_later() -> Graph:
    graph = inputs([8])
    graph.node("ADD", F32, [8], (0, 2))
    graph.node("ADD", F32, [8], (0, 1), output=True)
    return graph


@lie(INVALID)
def source_dangles() -> Graph:
    return one_node("ADD", [8], [8], sources=(0, 7))


@lie(INVALID)
def source_is_far_away() -> Graph:
    return one_node("ADD", [8], [8], sources=(0, 0x7FFFFFFF))


@lie(INVALID)
def source_is_absent() -> Graph:
    return one_node("ADD", [8], [8], sources=(0, ABSENT))


@lie(INVALID)
def view_of_itself() -> Graph:
    return one_node("VIEW", [8], [8], view=(1, 0))


@lie(INVALID)
def view_of_a_later_one() -> Graph:
    graph = inputs([8])
    graph.node("VIEW", F32, [8], (0,), view=(2, 0))
    graph.node("VIEW", F32, [8], (1,), view=(1, 0), output=True)
    return graph


@lie(INVALID)
def view_past_its_base() -> Graph:
    return one_node("VIEW", [8], [8], view=(0, 4), params=(4, 0))


@lie(INVALID)
def view_offset_wraps() -> Graph:
    return one_node("VIEW", [4], [8], view=(0, 2**64 - 8), params=(-8, -1))


@lie(INVALID)
def view_larger_than_its_base() -> Graph:
    return one_node("VIEW", [1 << 20], [8], view=(0, 0))


@lie(INVALID)
def view_with_strides_out_of_its_base() -> Graph:
    return one_node("VIEW", [4, 2], [8], view=(0, 0), strides=(4, 1 << 40, 1 << 41, 1 << 41))


@lie(INVALID)
def strides_wrap() -> Graph:
    return one_node("VIEW", [4, 3], [64], view=(0, 0), strides=(4, 2**63, 2**63, 2**63))


@lie(INVALID)
def too_few_sources() -> Graph:
    return one_node("ADD", [8], [8])


@lie(INVALID)
def no_sources() -> Graph:
    return one_node("ADD", [8], [8], sources=())


@lie(INVALID)
def too_many_sources() -> Graph:
    return one_node("ADD", [8], *[[8]] * 10)


@lie(INVALID)
def source_where_none_is_allowed() -> Graph:
    return one_node("RMS_NORM", [8], [8], [8], params=(0x3727C5AC,))


@lie(INVALID)
def op_unknown() -> Graph:
    return one_node(9, [8], [8], [8])


@lie(INVALID)
def op_huge() -> Graph:
    return one_node(0xFFFFFFFF, [8], [8], [8])


@lie(INVALID)
def op_none_as_node() -> Graph:
    return one_node("NONE", [8], [8])


@lie(INVALID)
def type_unknown() -> Graph:
    return one_node("ADD", [8], [8], [8], type=4711)


@lie(INVALID)
def type_removed() -> Graph:
    return one_node("ADD", [8], [8], [8], type=4)


@lie(INVALID)
def type_of_input_unknown() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, 255, [8], "a")
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie(INVALID)
def result_type_is_another() -> Graph:
    return one_node("ADD", [8], [8], [8], type=I32)


@lie(INVALID)
def block_is_cut() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, Q4_0, [33], "a")
    graph.leaf(INPUT, I32, [1], "ids")
    graph.node("GET_ROWS", F32, [33], (0, 1), output=True)
    return graph


@lie(INVALID)
def result_shape_is_larger() -> Graph:
    return one_node("ADD", [9], [8], [8])


@lie(INVALID)
def result_shape_is_smaller() -> Graph:
    return one_node("ADD", [7], [8], [8])


@lie(INVALID)
def shapes_do_not_broadcast() -> Graph:
    return one_node("ADD", [8], [8], [3])


@lie(INVALID)
def inner_extents_differ() -> Graph:
    return one_node("MUL_MAT", [2, 2], [8, 2], [9, 2])


@lie(INVALID)
def negative_extent() -> Graph:
    return one_node("ADD", [-8], [-8], [-8])


@lie(INVALID)
def extents_wrap() -> Graph:
    return one_node("ADD", [1 << 32, 1 << 32], [1 << 32, 1 << 32], [1 << 32, 1 << 32])


@lie(INVALID)
def bytes_wrap() -> Graph:
    return one_node("ADD", [1 << 62], [1 << 62], [1 << 62])


@lie(INVALID)
def padding_wraps() -> Graph:
    return one_node("CONT", [2**63 - 4], [2**63 - 4], type=24)


@lie(INVALID)
def reshape_to_another_size() -> Graph:
    return one_node("RESHAPE", [9], [8], view=(0, 0))


@lie(INVALID)
def reshape_wraps_to_the_same_size() -> Graph:
    return one_node("RESHAPE", [1 << 32, 1 << 32, 1, 8], [8], view=(0, 0))


@lie(INVALID)
def permute_twice_the_same_axis() -> Graph:
    return one_node("PERMUTE", [8, 4], [8, 4], params=(0, 0, 2, 3), view=(0, 0))


@lie(INVALID)
def permute_axis_7() -> Graph:
    return one_node("PERMUTE", [8, 4], [8, 4], params=(7, 0, 2, 3), view=(0, 0))


@lie(INVALID)
def concat_along_axis_9() -> Graph:
    return one_node("CONCAT", [16], [8], [8], params=(9,))


@lie(INVALID)
def unused_params_are_set() -> Graph:
    return one_node("ADD", [8], [8], [8], params=(1, 2, 3))


@lie(INVALID)
def too_many_params() -> Graph:
    return one_node("ADD", [8], [8], [8], params=(0,) * 17)


@lie(INVALID)
def unary_unknown() -> Graph:
    return one_node("UNARY", [8], [8], params=(99,))


@lie(INVALID)
def unary_negative() -> Graph:
    return one_node("UNARY", [8], [8], params=(-1,))


@lie(INVALID)
def rope_over_more_than_there_is() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8, 2, 3], "x")
    graph.leaf(INPUT, I32, [3], "positions")
    graph.node("ROPE", F32, [8, 2, 3], (0, 1), (0, 64, 0, 0, 0), output=True)
    return graph


@lie(INVALID)
def copy_to_something_smaller() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8], "a")
    graph.leaf(STATE, F32, [4], "s")
    graph.node("CPY", F32, [4], (0, 1), view=(1, 0), output=True)
    return graph


@lie(INVALID)
def scatter_of_other_widths() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8, 2], "rows")
    graph.leaf(raw.INPUT, raw.I64, [2], "ids")
    graph.leaf(STATE, F32, [9, 4], "s")
    graph.node("SET_ROWS", F32, [9, 4], (0, 1, 2), view=(2, 0), output=True)
    return graph


@lie(INVALID)
def scatter_into_a_weight() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8, 2], "rows")
    graph.leaf(INPUT, raw.I64, [2], "ids")
    graph.leaf(WEIGHT, F32, [8, 4], "w")
    graph.node("SET_ROWS", F32, [8, 4], (0, 1, 2), view=(2, 0), output=True)
    return graph


@lie(INVALID)
def leaf_of_no_kind() -> Graph:
    graph = Graph()
    graph.leaf(0, F32, [8], "a")
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie(INVALID)
def leaf_of_kind_99() -> Graph:
    graph = Graph()
    graph.leaf(99, F32, [8], "a")
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie(INVALID)
def unknown_flags() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [8], "a", flags=0xFFFFFFFF)
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie(INVALID)
def constant_of_another_size() -> Graph:
    graph = Graph()
    graph.leaf(CONSTANT, F32, [8], "c", constant=bytes(31))
    graph.node("CONT", F32, [8], (0,), output=True)
    return graph


@lie(INVALID)
def name_is_no_utf8() -> Graph:
    graph = add_graph()
    graph.leaves[0].name = b"\xff\xfe"
    return graph


@pytest.mark.parametrize("name", LIES)
def test_c_lying_graphs(address: str, name: str) -> None:
    build, code = LIES[name]
    with Conn(address) as conn:
        for dry_run in (True, False):
            error = conn.submit_fails(build(), dry_run=dry_run)
            assert error.code == code, error
            assert error.words and error.reason.isupper()
        still_works(conn)


@pytest.mark.parametrize(
    "name", ["source_is_later", "shapes_do_not_broadcast", "inner_extents_differ", "op_unknown"]
)
def test_errors_name_the_node(daemon: Any, name: str) -> None:
    with Conn(daemon.address) as conn:
        error = conn.submit_fails(LIES[name][0]())
        assert error.error.has_node and error.error.node == 0


def test_unsupported_names_node_and_op(launch: Callable[..., Any]) -> None:
    from run_daemon import device

    narrow = launch(devices=[device("cpu0", threads=1, deny_ops="SCALE,RMS_NORM")])
    graph = inputs([8], [8])
    total = graph.node("ADD", F32, [8], (0, 1))
    graph.node("SCALE", F32, [8], (total,), (0x40000000, 0), output=True)
    with Conn(narrow.address) as conn:
        error = conn.submit_fails(graph)
        assert (error.code, error.reason) == (UNSUPPORTED, "OP")
        assert error.error.has_node and error.error.node == 1 and "SCALE" in error.words
        still_works(conn)


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


@pytest.mark.parametrize("name", ENCODINGS)
def test_c01_lying_encodings(address: str, name: str) -> None:
    with Conn(address) as conn:
        body = ENCODINGS[name]
        error = conn.fails(raw.SUBMIT, pb.Submit(), body)
        assert error.code in (INVALID, EXHAUSTED, raw.NOT_FOUND), error
        still_works(conn)


def test_c01_every_byte_of_a_graph_changed(address: str) -> None:
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
                assert error.code in (INVALID, EXHAUSTED, UNSUPPORTED, raw.PRECONDITION,
                                      raw.NOT_FOUND), error  # fmt: skip
                continue
            conn.call(raw.RELEASE, pb.Release(handle=reply.handle))
        still_works(conn)


def test_digest_that_is_not_the_graphs(address: str) -> None:
    body = add_graph().encode().SerializeToString()
    with Conn(address) as conn:
        for digest in (bytes(32), hashlib.sha256(body + b"x").digest()):
            assert conn.fails(raw.SUBMIT, pb.Submit(digest=digest), body).code in (
                INVALID, raw.DATA_LOSS)  # fmt: skip
            assert conn.fails(raw.SUBMIT, pb.Submit(digest=digest)).code == raw.NOT_FOUND
        for digest in (b"", b"x", bytes(31)):
            assert conn.fails(raw.SUBMIT, pb.Submit(digest=digest)).code in (
                INVALID, raw.NOT_FOUND)  # fmt: skip
        still_works(conn)


# ---- sizes ---------------------------------------------------------------------------------------


def chain(nodes: int, width: int = 4) -> Graph:
    """Each node adds the previous one to itself: 2^nodes paths, if anybody walked them."""
    graph = inputs([width])
    last = 0
    for number in range(nodes):
        last = graph.node("ADD", F32, [width], (last, last), output=number == nodes - 1)
    return graph


def test_c05_diamonds_take_linear_time(address: str) -> None:
    with Conn(address) as conn:
        conn.submit(chain(60))
        begun = time.monotonic()
        conn.submit(chain(20000), dry_run=True)
        assert time.monotonic() - begun < 5.0
        reply = conn.submit(chain(60))
        out = conn.run(reply.handle, struct.pack("<4f", 1, 2, 0, -1))
        assert struct.unpack("<4f", out) == (2.0**60, 2.0**61, 0.0, -(2.0**60))


def test_c04_views_of_views(address: str) -> None:
    """10 000 deep: no recursion, no growth of time per level."""
    graph = inputs([4])
    last = 0
    for _ in range(10000):
        last = graph.node("VIEW", F32, [4], (last,), view=(last, 0))
    graph.node("ADD", F32, [4], (last, 0), output=True)
    with Conn(address) as conn:
        handle = conn.submit(graph).handle
        out = conn.run(handle, struct.pack("<4f", 1, 2, 3, 4))
        assert struct.unpack("<4f", out) == (2, 4, 6, 8)


def test_c02_empty_and_over_the_limit(launch: Callable[..., Any]) -> None:
    from run_daemon import device

    small = launch(
        devices=[device("cpu0", threads=1)],
        sections={"limits": {"graph_nodes": 100, "graph_bytes": "64K", "session_graphs": 3,
                             "tensor_bytes": "1M"}},
    )  # fmt: skip
    with Conn(small.address) as conn:
        assert conn.greeting.limits.graph_nodes_max == 100
        empty = Graph()
        empty.leaf(INPUT, F32, [8], "a")
        handle = conn.submit(empty).handle  # no node: a run computes nothing
        assert conn.run(handle, bytes(32)) == b""
        conn.call(raw.RELEASE, pb.Release(handle=handle))
        handle = conn.submit(chain(100)).handle
        error = conn.submit_fails(chain(101))
        assert (error.code, error.error.limit, error.error.actual) == (EXHAUSTED, 100, 101)
        error = conn.submit_fails(chain(1, width=(1 << 18) + 1))
        assert error.code == EXHAUSTED
        with_constant = Graph()
        with_constant.leaf(CONSTANT, F32, [20000], "c", constant=bytes(80000))
        with_constant.node("CONT", F32, [20000], (0,), output=True)
        assert conn.submit_fails(with_constant).code == EXHAUSTED
        conn.call(raw.RELEASE, pb.Release(handle=handle))
        # More handles than a session may hold: those that have been idle longest are gone.
        handles = [conn.submit(chain(number + 1)).handle for number in range(10)]
        for handle in handles[:7]:
            assert conn.fails(raw.RUN, pb.Run(handle=handle), bytes(16)).code == raw.NOT_FOUND
        for handle in handles[7:]:
            assert len(conn.run(handle, bytes(16))) == 16


@pytest.mark.parametrize("ne", [[0], [0, 5], [5, 0], [4, 0, 3]])
def test_c11_no_elements(address: str, ne: list[int]) -> None:
    graph = inputs(ne, ne)
    total = graph.node("ADD", F32, ne, (0, 1), output=True)
    graph.node("SCALE", F32, ne, (total,), (0x40000000, 0), output=True)
    with Conn(address) as conn:
        try:
            handle = conn.submit(graph).handle
        except raw.RawError as error:
            assert error.code == INVALID
            return
        assert conn.run(handle, b"") == b""


def test_c11_mul_mat_over_no_columns_is_zero(address: str) -> None:
    graph = one_node("MUL_MAT", [3, 2], [0, 3], [0, 2])
    with Conn(address) as conn:
        try:
            handle = conn.submit(graph).handle
        except raw.RawError as error:
            assert error.code == INVALID
            return
        assert conn.run(handle, b"") == bytes(24)


# ---- bindings ------------------------------------------------------------------------------------


def weight_graph(type: int = F32, ne: list[int] | None = None, kind: int = WEIGHT) -> Graph:
    graph = Graph()
    graph.leaf(kind, type, ne or [4], "w")
    graph.node("CONT", type, ne or [4], (0,), output=True)
    return graph


def test_c14_unbound_leaves(address: str) -> None:
    with Conn(address) as conn:
        for kind in (WEIGHT, STATE):
            error = conn.submit_fails(weight_graph(kind=kind))
            assert error.code in (raw.PRECONDITION, raw.NOT_FOUND)
            assert "w" in error.words
        still_works(conn)


def test_c14_bound_to_another_type_or_shape(address: str) -> None:
    with Conn(address) as conn:
        held = conn.put("set", [("w", F32, [4], bytes(16))])
        assert conn.submit(weight_graph(), weights=[held.handle]).handle
        for graph in (weight_graph(F16), weight_graph(F32, [5]), weight_graph(F32, [2, 2])):
            error = conn.submit_fails(graph, weights=[held.handle])
            assert error.code == INVALID
            assert "[4,1,1,1]" in error.words, "names both shapes"
        assert conn.submit_fails(weight_graph(kind=STATE), states=[held.handle]).code == (
            raw.NOT_FOUND
        )


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 63, 65, 128, 1 << 20])
def test_wrong_sizes_of_inputs(address: str, size: int) -> None:
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        assert conn.fails(raw.RUN, pb.Run(handle=handle), bytes(size)).code == INVALID
        assert conn.run(handle, TWO) == SUM


@pytest.mark.parametrize("total", [1, 2**32, 2**63, 2**64 - 1, (256 << 20) + 1])
def test_declared_sizes_of_inputs(address: str, total: int) -> None:
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        call = conn.send(raw.RUN, pb.Run(handle=handle, input_bytes=total), TWO, flags=raw.MORE)
        with pytest.raises(raw.RawError) as caught:
            conn.reply(call)
        assert caught.value.code in (INVALID, EXHAUSTED)
        assert conn.run(handle, TWO) == SUM


@pytest.mark.parametrize("outputs", [[1], [2**32 - 1], [0, 1], [0] * 5000])
def test_outputs_that_are_not_there(address: str, outputs: list[int]) -> None:
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        try:
            out = conn.run(handle, TWO, outputs=outputs)
        except raw.RawError as error:
            assert error.code in (INVALID, RANGE, EXHAUSTED)
        else:
            assert out == SUM * len(outputs) and max(outputs) == 0
        assert conn.run(handle, TWO) == SUM


def gather() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [4, 5], "rows")
    graph.leaf(INPUT, I32, [2], "ids")
    graph.node("GET_ROWS", F32, [4, 2], (0, 1), output=True)
    return graph


def scatter() -> Graph:
    """Adds nothing to rows, writes them into a state, reads the state back."""
    graph = Graph()
    graph.leaf(INPUT, F32, [4, 2], "rows")
    graph.leaf(INPUT, raw.I64, [2], "ids")
    graph.leaf(STATE, F32, [4, 5], "s")
    written = graph.node("SET_ROWS", F32, [4, 5], (0, 1, 2), view=(2, 0))
    graph.node("CONT", F32, [4, 5], (written,), output=True)
    return graph


BAD_IDS = [(-1, 0), (0, 5), (2**31 - 1, 0), (0, -(2**31)), (1, 6)]


@pytest.mark.parametrize("ids", BAD_IDS)
def test_c19_b073_gather_out_of_range(address: str, ids: tuple[int, int]) -> None:
    rows = struct.pack("<20f", *range(20))
    with Conn(address) as conn:
        handle = conn.submit(gather()).handle
        for _ in range(2):
            error = conn.fails(raw.RUN, pb.Run(handle=handle), rows + struct.pack("<2i", *ids))
            assert error.code == RANGE and error.error.has_node and error.error.node == 0
            good = conn.run(handle, rows + struct.pack("<2i", 4, 1))
            assert struct.unpack("<8f", good) == (16, 17, 18, 19, 4, 5, 6, 7)


@pytest.mark.parametrize("ids", [*BAD_IDS, (2**62, 0), (0, -(2**63))])
def test_c19_b071_scatter_out_of_range(address: str, ids: tuple[int, int]) -> None:
    rows = struct.pack("<8f", *range(1, 9))
    with Conn(address) as conn:
        alloc, _ = conn.call(
            raw.STATE_ALLOC, pb.StateAlloc(),
            raw.manifest([("s", F32, [4, 5], b"")]).SerializeToString(),
        )  # fmt: skip
        handle = conn.submit(scatter(), states=[alloc.handle]).handle
        error = conn.fails(raw.RUN, pb.Run(handle=handle), rows + struct.pack("<2q", *ids))
        assert error.code == RANGE and error.error.has_node
        good = struct.unpack("<20f", conn.run(handle, rows + struct.pack("<2q", 4, 0)))
        assert good[:4] == (5, 6, 7, 8) and good[16:] == (1, 2, 3, 4)


def test_c13_random_params_for_every_op(address: str) -> None:
    """64 random bytes as parameters of every op number: a typed answer each time."""
    rng = random.Random(17)
    with Conn(address) as conn:
        for op in range(200):
            for sources in (1, 2, 3):
                params = tuple(rng.randrange(2**32) for _ in range(16))
                graph = one_node(op, [4, 4], *[[4, 4]] * sources, params=params)
                try:
                    reply = conn.submit(graph, dry_run=True)
                except raw.RawError as error:
                    assert error.code in (INVALID, UNSUPPORTED, EXHAUSTED), (op, error)
                else:
                    assert reply.handle == 0
        still_works(conn)


def test_decided_slots_keep_to_the_limit(launch: Any) -> None:
    """`n_copies = 0` on two devices would be two; the operator allows one."""
    devices = [device(name, backend="cpu", threads=1, memory="isolated") for name in ("a0", "b0")]
    graph = Graph()
    x = graph.leaf(INPUT, F32, [8], "x")
    first = graph.node("ADD", F32, [8], (x, x), name="first")
    graph.node("ADD", F32, [8], (first, first), name="second", output=True)
    where = [pb.Pin(pattern="first", device="a0"), pb.Pin(pattern="second", device="b0")]
    host = device("host", backend="cpu", threads=1)
    for limit, expected in ((4, 2), (1, 1)):
        daemon = launch(devices=(*devices, host), sections={"limits": {"copies": limit}})
        with Conn(daemon.address) as conn:
            assert conn.submit(graph, pins=where).n_copies == expected
