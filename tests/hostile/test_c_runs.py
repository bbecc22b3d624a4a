"""Hostile runs (HOSTILE C): leaves that are bound to nothing, indices that lead out, writes into the
same memory, plans that explode, work that takes for ever."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
import raw
from expect import SUM, TWO, refused, served
from raw import (
    F16, F32, I32, I64, INPUT, INVALID, NOT_FOUND, PRECONDITION, RANGE, STATE, WEIGHT,
    Conn, Graph, add_graph, pb,
)  # fmt: skip
from run_daemon import device

pytestmark = pytest.mark.usefixtures("guarded")


def alloc(conn: Conn, name: str, ne: list[int]) -> int:
    manifest = raw.manifest([(name, F32, ne, b"")]).SerializeToString()
    return int(conn.call(raw.STATE_ALLOC, pb.StateAlloc(), manifest)[0].handle)


# ---- bindings ------------------------------------------------------------------------------------


def leaf_graph(type: int = F32, ne: list[int] | None = None, kind: int = WEIGHT) -> Graph:
    graph = Graph()
    graph.leaf(kind, type, ne or [4], "w")
    graph.node("CONT", type, ne or [4], (0,), output=True)
    return graph


def test_C14_leaves_bound_to_nothing(address: str) -> None:
    with Conn(address) as conn:
        for kind in (WEIGHT, STATE):
            told = refused(conn.submit_fails(leaf_graph(kind=kind)), PRECONDITION, "UNBOUND")
            assert "w" in told.words
        served(conn)


def test_C14_leaves_bound_to_something_else(address: str) -> None:
    with Conn(address) as conn:
        held = conn.put("set", [("w", F32, [4], bytes(16))])
        assert conn.submit(leaf_graph(), weights=[held.handle]).handle
        for graph in (leaf_graph(F16), leaf_graph(F32, [5]), leaf_graph(F32, [2, 2])):
            told = refused(conn.submit_fails(graph, weights=[held.handle]), INVALID, "LEAF")
            assert "[4,1,1,1]" in told.words, "names both shapes"
        error = conn.submit_fails(leaf_graph(kind=STATE), states=[held.handle])
        refused(error, NOT_FOUND, "STATE")
        served(conn)


@pytest.mark.parametrize("size", [0, 1, 63, 65, 128, 1 << 20])
def test_C14_inputs_of_another_size(address: str, size: int) -> None:
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        refused(conn.fails(raw.RUN, pb.Run(handle=handle), bytes(size)), INVALID, "SIZE")
        assert conn.run(handle, TWO) == SUM


@pytest.mark.parametrize("total", [1, 2**32, 2**63, 2**64 - 1, (256 << 20) + 1])
def test_C14_inputs_of_another_declared_size(address: str, total: int) -> None:
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        call = conn.send(raw.RUN, pb.Run(handle=handle, input_bytes=total), TWO, flags=raw.MORE)
        with pytest.raises(raw.RawError) as caught:
            conn.reply(call)
        refused(caught.value, INVALID, "SIZE")
        assert conn.run(handle, TWO) == SUM


@pytest.mark.parametrize(
    ("outputs", "code"),
    [([1], RANGE), ([2**32 - 1], RANGE), ([0, 1], INVALID), ([0] * 5000, INVALID)],
)
def test_C14_outputs_that_are_not_there(address: str, outputs: list[int], code: int) -> None:
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        error = conn.fails(raw.RUN, pb.Run(handle=handle, outputs=outputs), TWO)
        refused(error, code, "OUTPUT")
        assert conn.run(handle, TWO) == SUM


# ---- indices -------------------------------------------------------------------------------------


def gather() -> Graph:
    graph = Graph()
    graph.leaf(INPUT, F32, [4, 5], "rows")
    graph.leaf(INPUT, I32, [2], "ids")
    graph.node("GET_ROWS", F32, [4, 2], (0, 1), output=True)
    return graph


def scatter() -> Graph:
    """Writes rows into a state, reads the state back."""
    graph = Graph()
    graph.leaf(INPUT, F32, [4, 2], "rows")
    graph.leaf(INPUT, I64, [2], "ids")
    graph.leaf(STATE, F32, [4, 5], "s")
    written = graph.node("SET_ROWS", F32, [4, 5], (0, 1, 2), view=(2, 0))
    graph.node("CONT", F32, [4, 5], (written,), output=True)
    return graph


def experts() -> Graph:
    """Two experts chosen out of three."""
    graph = Graph()
    graph.leaf(INPUT, F32, [4, 2, 3], "experts")
    graph.leaf(INPUT, F32, [4, 1, 1], "x")
    graph.leaf(INPUT, I32, [2, 1], "ids")
    graph.node("MUL_MAT_ID", F32, [2, 2, 1], (0, 1, 2), output=True)
    return graph


BAD_IDS = [(-1, 0), (0, 5), (2**31 - 1, 0), (0, -(2**31)), (1, 6)]


@pytest.mark.parametrize("ids", BAD_IDS)
def test_C19_B073_gather_out_of_range(address: str, ids: tuple[int, int]) -> None:
    rows = struct.pack("<20f", *range(20))
    with Conn(address) as conn:
        handle = conn.submit(gather()).handle
        for _ in range(2):
            error = conn.fails(raw.RUN, pb.Run(handle=handle), rows + struct.pack("<2i", *ids))
            told = refused(error, RANGE, "INDEX_VALUE")
            assert told.has_node and told.node == 0
            good = conn.run(handle, rows + struct.pack("<2i", 4, 1))
            assert struct.unpack("<8f", good) == (16, 17, 18, 19, 4, 5, 6, 7)


@pytest.mark.parametrize("ids", [*BAD_IDS, (2**62, 0), (0, -(2**63))])
def test_C19_B071_scatter_out_of_range(address: str, ids: tuple[int, int]) -> None:
    rows = struct.pack("<8f", *range(1, 9))
    with Conn(address) as conn:
        handle = conn.submit(scatter(), states=[alloc(conn, "s", [4, 5])]).handle
        error = conn.fails(raw.RUN, pb.Run(handle=handle), rows + struct.pack("<2q", *ids))
        assert refused(error, RANGE, "INDEX_VALUE").has_node
        good = struct.unpack("<20f", conn.run(handle, rows + struct.pack("<2q", 4, 0)))
        assert good[:4] == (5, 6, 7, 8) and good[16:] == (1, 2, 3, 4)


@pytest.mark.parametrize("ids", [(-1, 0), (0, 3), (2**31 - 1, 0), (0, -(2**31))])
def test_C19_experts_out_of_range(address: str, ids: tuple[int, int]) -> None:
    data = struct.pack("<24f", *range(24)) + struct.pack("<4f", 1, 0, 0, 0)
    with Conn(address) as conn:
        handle = conn.submit(experts()).handle
        error = conn.fails(raw.RUN, pb.Run(handle=handle), data + struct.pack("<2i", *ids))
        assert refused(error, RANGE, "INDEX_VALUE").has_node
        good = conn.run(handle, data + struct.pack("<2i", 2, 0))
        assert struct.unpack("<4f", good) == (16, 20, 0, 4)


# ---- the same memory twice -----------------------------------------------------------------------


def test_C20_two_writes_of_the_same_view_keep_their_order(address: str) -> None:
    with Conn(address) as conn:
        state = alloc(conn, "s", [8])
        # A copy into part of a state goes through a view of it.
        graph = Graph()
        graph.leaf(INPUT, F32, [4], "a")
        graph.leaf(INPUT, F32, [4], "b")
        graph.leaf(STATE, F32, [8], "s")
        part = graph.node("VIEW", F32, [4], (2,), view=(2, 8), params=(8, 0))
        first = graph.node("CPY", F32, [4], (0, part), view=(part, 0))
        graph.node("CPY", F32, [4], (1, part), view=(part, 0), output=True)
        graph.node("SCALE", F32, [4], (first,), (0x3F800000, 0), output=True)
        handle = conn.submit(graph, states=[state]).handle
        for number in range(5):
            a, b = [float(number)] * 4, [float(number) + 0.5] * 4
            conn.run(handle, struct.pack("<8f", *a, *b))
            where = pb.StateRead(handle=state, tensor=0, offset=0, bytes=32)
            held = struct.unpack("<8f", conn.call(raw.STATE_READ, where)[1])
            assert held == (0, 0, *b, 0, 0), "the later write stays"
        served(conn)


# ---- plans that explode --------------------------------------------------------------------------


def alternating(nodes: int) -> Graph:
    graph = Graph()
    last = graph.leaf(INPUT, F32, [4], "x")
    for number in range(nodes):
        name = f"{'a' if number % 2 else 'b'}{number}"
        last = graph.node("SCALE", F32, [4], (last,), (0x3F800000, 0), number == nodes - 1, name)
    return graph


PINS = (("a*", "cpu0"), ("b*", "cpu1"))


def test_C22_a_split_for_every_node(address: str) -> None:
    """Planned and right; cancelled while it is planned; or too much, with the limit."""
    pins = [pb.Pin(pattern=pattern, device=name) for pattern, name in PINS]
    body = alternating(50000).encode().SerializeToString()
    with Conn(address) as conn:
        reply = conn.submit(alternating(500), pins=pins)
        assert sum(one.splits for one in reply.devices) == 500
        assert conn.run(reply.handle, TWO[:16]) == TWO[:16]
        conn.call(raw.RELEASE, pb.Release(handle=reply.handle))
        call = conn.begin(raw.SUBMIT, pb.Submit(pins=pins, graph_bytes=len(body)), body)
        found = conn.call(raw.CANCEL, pb.Cancel(request_id=call))[0].found
        try:
            reply = conn.reply(call)[0]
        except raw.RawError as error:
            assert found
            refused(error, raw.CANCELLED, "CANCELLED")
        else:
            assert sum(one.splits for one in reply.devices) == 50000
        served(conn)


# ---- handles -------------------------------------------------------------------------------------


def test_C25_handles_of_graphs_that_are_gone(address: str) -> None:
    """A handle is dead for ever, also when its place is taken again."""
    with Conn(address) as conn:
        dead: list[int] = []
        for _ in range(50):
            handle = conn.submit(add_graph(8)).handle
            assert handle not in dead
            conn.call(raw.RELEASE, pb.Release(handle=handle))
            dead.append(handle)
            for old in dead[-5:]:
                error = conn.fails(raw.RUN, pb.Run(handle=old), bytes(64))
                refused(error, NOT_FOUND, "GRAPH")
                refused(conn.fails(raw.RELEASE, pb.Release(handle=old)), NOT_FOUND, "GRAPH")
        alive = conn.submit(add_graph(8)).handle
        for old in dead:
            error = conn.fails(raw.RUN, pb.Run(handle=old), bytes(64))
            refused(error, NOT_FOUND, "GRAPH")
        assert conn.run(alive, TWO) == SUM


def test_C25_evicted_ones_answer_with_their_digest(address: str, launch_behind: Any) -> None:
    small = launch_behind(
        devices=[device("cpu0", threads=1)], sections={"limits": {"session_graphs": 2}}
    )
    with Conn(small) as conn:
        body = add_graph(8).encode().SerializeToString()
        first = conn.submit(add_graph(8)).handle
        for size in (9, 10, 11):
            conn.submit(add_graph(size))
        error = conn.fails(raw.RUN, pb.Run(handle=first), TWO)
        assert refused(error, NOT_FOUND, "GRAPH").digest == hashlib.sha256(body).digest()
        served(conn)
