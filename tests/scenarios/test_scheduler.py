"""Scenarios of splitting, placing and copying, with the right values asserted."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
import raw
from graphs import (
    COPIES, explain, floats, pins, scale, state, submit_ping_pong, unfloats, write_state,
)  # fmt: skip
from raw import F32, INPUT, INVALID, STATE, Conn, Graph, pb
from run_daemon import device

pytestmark = pytest.mark.usefixtures("guarded")
FULL = bool(os.environ.get("HEADRACE_FULL"))


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("leaves", [31, 64, 200, 1000, *([10000] if FULL else [])])
def test_b001_many_inputs_of_one_split(daemon: Any, leaves: int, copies: int) -> None:
    """The sum of `leaves` states of one device, computed on another: one split, as many inputs."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [4], "x")
    members = [graph.leaf(STATE, F32, [4], f"s{i}") for i in range(leaves)]
    last = x
    for i, one in enumerate(members):
        last = graph.node("ADD", F32, [4], (last, one), name=f"n{i}", output=i == leaves - 1)
    with Conn(daemon.address) as conn:
        held = state(conn, [(f"s{i}", F32, [4]) for i in range(leaves)], "cpu0")
        for i in (0, 1, leaves - 1):
            write_state(conn, held, i, floats([float(i)] * 4))
        reply = conn.submit(graph, states=[held], pins=pins(cpu1="n*"), n_copies=copies)
        splits = {one.device: one.splits for one in reply.devices}
        assert splits["cpu1"] == 1 and reply.copied_bytes >= 16 * leaves
        for number in range(3):
            out = unfloats(conn.run(reply.handle, floats([float(number)] * 4)))
            assert out == (float(number + 1 + leaves - 1),) * 4


@pytest.mark.parametrize("copies", COPIES)
def test_b003_planning_changes_nothing(daemon: Any, copies: int) -> None:
    with Conn(daemon.address) as conn:
        first = submit_ping_pong(conn, 16, n_copies=copies)
        again = submit_ping_pong(conn, 16, n_copies=copies)
        fresh = submit_ping_pong(conn, 16, n_copies=copies, fresh=True)
        assert again.origin == "hit" and fresh.origin != "hit"
        assert first.digest == again.digest == fresh.digest
        text = explain(conn, first.handle)
        data = floats([i / 3 for i in range(16)])
        for one in (first, first, again, fresh, again, first):
            assert conn.run(one.handle, data) == data
            # What is stored under the digest is what was sent: it is found again by it alone.
            stored = conn.submit_digest(first.digest, pins=pins(cpu0="a*", cpu1="b*"), n_copies=copies)
            assert stored.origin == "hit" and stored.digest == first.digest
            assert explain(conn, first.handle) == text == explain(conn, stored.handle)
            conn.call(raw.RELEASE, pb.Release(handle=stored.handle))
        assert explain(conn, fresh.handle) == text


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("shape", [(3, 5), (15, 2), (16, 16), (17, 33), (64, 1), (1, 64)])
def test_b011_strided_view_between_devices(
    daemon: Any, shape: tuple[int, int], copies: int
) -> None:
    """A transposed window with gaps, of one device's tensor, consumed on another."""
    width, height = shape
    graph = Graph()
    x = graph.leaf(INPUT, F32, [width + 3, height], "x")
    base = scale(graph, x, [width + 3, height], 2.0, name="a0")
    row = 4 * (width + 3)
    window = graph.node(
        "VIEW", F32, [width, height], (base,), (4, 0), view=(base, 4), name="a1",
        strides=(4, row, row * height, row * height),
    )  # fmt: skip
    turned = graph.node(
        "TRANSPOSE", F32, [height, width], (window,), view=(base, 4), name="a2",
        strides=(row, 4, row * height, row * height),
    )  # fmt: skip
    graph.node("CONT", F32, [height, width], (turned,), name="b0", output=True)
    values = [float(i % 1000) for i in range((width + 3) * height)]
    expected = [2 * values[y * (width + 3) + 1 + x] for x in range(width) for y in range(height)]
    with Conn(daemon.address) as conn:
        reply = conn.submit(graph, pins=pins(cpu0="a*", cpu1="b*"), n_copies=copies)
        for _ in range(3):
            assert list(unfloats(conn.run(reply.handle, floats(values)))) == expected


@pytest.mark.parametrize("copies", COPIES)
def test_b015_something_larger_while_a_run_is_under_way(
    launch_watched: Callable[..., Any], copies: int
) -> None:
    slow = launch_watched(
        devices=[
            device("cpu0", threads=1, memory="isolated", delay="20ms"),
            device("cpu1", threads=1, memory="isolated"),
            device("host", threads=1),
        ]
    )
    with Conn(slow.address) as conn:
        handle = submit_ping_pong(conn, 1000, 3, n_copies=copies).handle
        data = floats([float(i) for i in range(1000)])
        for size in (2000, 100000, 1000000):
            call = conn.begin(raw.RUN, pb.Run(handle=handle), data)
            larger = submit_ping_pong(conn, size, n_copies=copies).handle
            assert conn.reply(call)[1] == data
            wide = floats([1.0] * size)
            assert conn.run(larger, wide) == wide


# ---- 64 bits -------------------------------------------------------------------------------------


def test_b020_b076_large_extents_and_strides(launch: Callable[..., Any]) -> None:
    """Planned only: nothing of it is ever allocated."""
    large = launch(
        devices=[device("host", threads=1)], sections={"limits": {"run_bytes": "1T"}}
    )
    ne = [1536, 2048, 288, 1]
    sizes = [4, 4 * 1536, 4 * 1536 * 2048, 4 * 1536 * 2048 * 288]
    graph = Graph()
    x = graph.leaf(INPUT, F32, ne, "x")
    turned = graph.node(
        "PERMUTE", F32, [1536, 288, 2048, 1], (x,), (0, 2, 1, 3), view=(x, 0),
        strides=(sizes[0], sizes[2], sizes[1], sizes[3]),
    )  # fmt: skip
    graph.node("CONT", F32, [1536, 288, 2048, 1], (turned,), output=True)
    with Conn(large.address) as conn:
        reply = conn.submit(graph, dry_run=True)
        planned = sum(one.compute_bytes for one in reply.devices)
        assert planned >= 2 * sizes[3], "input and result"
        assert planned < 2.02 * sizes[3] * reply.n_copies
    for bad in (2**31, 2**62, 2**63 - 1):
        graph = Graph()
        x = graph.leaf(INPUT, F32, [bad, 4, 4, 4], "x")
        graph.node("CONT", F32, [bad, 4, 4, 4], (x,), output=True)
        with Conn(large.address) as conn:
            assert conn.submit_fails(graph, dry_run=True).code in (INVALID, raw.EXHAUSTED)


@pytest.mark.parametrize("far", [2**32 - 4, 2**32, 5 * 2**30, 2**35])
def test_b020_b076_a_stride_beyond_32_bits(launch_watched: Callable[..., Any], far: int) -> None:
    """Two rows that lie `far` bytes apart in a tensor that is only planned: the bytes that the plan
    tells are exact, and one step further is out of the base."""
    large = launch_watched(
        devices=[device("host", threads=1)], sections={"limits": {"run_bytes": "1T"}}
    )
    width = far // 4 + 8

    def windowed(offset: int, row: int) -> Graph:
        graph = Graph()
        x = graph.leaf(INPUT, F32, [width], "x")
        window = graph.node(
            "VIEW", F32, [8, 2], (x,), (offset & 0xFFFFFFFF, offset >> 32), view=(x, offset),
            strides=(4, row, 2 * row, 2 * row),
        )  # fmt: skip
        graph.node("CONT", F32, [8, 2], (window,), output=True)
        return graph

    with Conn(large.address) as conn:
        reply = conn.submit(windowed(0, far), dry_run=True)
        planned = sum(one.compute_bytes for one in reply.devices)
        assert 4 * width + 64 <= planned <= (4 * width + 64) * reply.n_copies + 4096
        for offset, row in ((4, far), (0, far + 4), (0, 2**63 - 4), (2**63 - 4, 4)):
            error = conn.submit_fails(windowed(offset, row), dry_run=True)
            assert error.code in (INVALID, raw.RANGE), (offset, row)
            assert error.error.has_tensor or error.error.has_node


@pytest.mark.parametrize("copies", COPIES)
def test_b030_same_ops_other_offsets(daemon: Any, copies: int) -> None:
    """A window that moves: each position is its own plan, and none shows another one's rows."""
    with Conn(daemon.address) as conn:
        held = state(conn, [("cache", F32, [4, 2048])], "cpu0")
        write_state(conn, held, 0, floats([float(i // 4) for i in range(4 * 2048)]))
        handles = {}
        for past in (0, 512, 1024, 512, 2040, 0):
            graph = Graph()
            x = graph.leaf(INPUT, F32, [4], "x")
            cache = graph.leaf(STATE, F32, [4, 2048], "cache")
            window = graph.node(
                "VIEW", F32, [4, 8], (cache,), (16 * past, 0), view=(cache, 16 * past)
            )
            graph.node("ADD", F32, [4, 8], (window, x), output=True)
            reply = conn.submit(graph, states=[held], n_copies=copies)
            handles[past] = reply.handle
            for position, handle in handles.items():
                out = unfloats(conn.run(handle, floats([0.5] * 4)))
                assert out[::4] == tuple(position + row + 0.5 for row in range(8))


@pytest.mark.parametrize("copies", COPIES)
def test_b031_two_graphs_take_turns(daemon: Any, copies: int) -> None:
    with Conn(daemon.address) as first, Conn(daemon.address) as second:
        handles = []
        for conn in (first, second):
            for factor in (2.0, 3.0):
                graph = Graph()
                x = graph.leaf(INPUT, F32, [8], "x")
                scale(graph, x, [8], factor, output=True)
                handles.append((conn, conn.submit(graph, n_copies=copies).handle, factor))
        assert len({handle for _, handle, _ in handles}) == 4
        for other, handle, _ in handles:  # of one's own only
            stranger = second if other is first else first
            error = stranger.fails(raw.RUN, pb.Run(handle=handle), bytes(32))
            assert (error.code, error.reason) == (raw.NOT_FOUND, "GRAPH")
        for number in range(25):
            for conn, handle, factor in handles:
                out = unfloats(conn.run(handle, floats([float(number)] * 8)))
                assert out == (number * factor,) * 8


def test_b031_an_evicted_graph_comes_back_by_itself(launch_watched: Callable[..., Any]) -> None:
    """More graphs than the session may have, in turn: by hand NOT_FOUND with the digest, by the client
    library nothing is noticed but a counter."""
    few = launch_watched(
        devices=[device("host", threads=1)], sections={"limits": {"session_graphs": 3}}
    )
    with headrace.connect(few.address) as client:
        handles = []
        for factor in range(5):
            g = headrace.Graph()
            g.output(g.scale(g.input("x", (4,)), float(factor)), "y")
            handles.append(client.submit(g))
        for number in range(3 if not FULL else 50):
            for factor, handle in enumerate(handles):
                out = handle.run({"x": np.full(4, number, np.float32)})["y"]
                assert out.tolist() == [float(number * factor)] * 4
        assert client.stats().labelled("graph_evictions_total")['reason="handles"'] > 5
    with Conn(few.address) as conn:
        graphs = []
        for factor in range(5):
            graph = Graph()
            scale(graph, graph.leaf(INPUT, F32, [4], "x"), [4], float(factor), output=True)
            graphs.append(conn.submit(graph))
        error = conn.fails(raw.RUN, pb.Run(handle=graphs[0].handle), bytes(16))
        assert (error.code, error.reason) == (raw.NOT_FOUND, "GRAPH")
        assert error.error.digest == graphs[0].digest
