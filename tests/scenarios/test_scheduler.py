"""Scenarios of splitting, placing and copying, with the right values asserted."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

import pytest
import raw
from graphs import (
    COPIES, bits, explain, floats, pins, read_state, scale, state, submit_ping_pong, unfloats,
    write_state,
)  # fmt: skip
from raw import F32, I32, INPUT, INVALID, STATE, WEIGHT, Conn, Graph, pb
from run_daemon import device

pytestmark = pytest.mark.usefixtures("guarded")
FULL = bool(os.environ.get("HEADRACE_FULL"))


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("leaves", [31, 64, 1000, *([10000] if FULL else [])])
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
        outs = {conn.run(one.handle, data) for one in (first, again, fresh, first, again)}
        assert outs == {data}
        assert explain(conn, first.handle) == text == explain(conn, fresh.handle)


def test_b006_writer_of_a_view_reaches_its_base(launch: Callable[..., Any]) -> None:
    """The scatter's own device cannot do it; what is written must be seen in the state."""
    narrow = launch(
        devices=[
            device("cpu0", threads=1, memory="isolated", deny_ops="SET_ROWS"),
            device("host", threads=1),
        ]
    )
    graph = Graph()
    rows = graph.leaf(INPUT, F32, [4, 2], "rows")
    ids = graph.leaf(INPUT, raw.I64, [2], "ids")
    s = graph.leaf(STATE, F32, [4, 6], "s")
    low = graph.node("VIEW", F32, [4, 3], (s,), (48, 0), view=(s, 48))
    written = graph.node("SET_ROWS", F32, [4, 3], (rows, ids, low), view=(s, 48))
    graph.node("CONT", F32, [4, 3], (written,), output=True)
    with Conn(narrow.address) as conn:
        held = state(conn, [("s", F32, [4, 6])], "cpu0")
        write_state(conn, held, 0, floats([1.0] * 24))
        handle = conn.submit(graph, states=[held]).handle
        data = floats([2.0] * 4 + [3.0] * 4) + struct.pack("<2q", 2, 0)
        expected = [3.0] * 4 + [1.0] * 4 + [2.0] * 4
        assert unfloats(conn.run(handle, data)) == tuple(expected)
        assert unfloats(read_state(conn, held, 0, 96)) == tuple([1.0] * 12 + expected)


def cache_graph(op: str) -> Graph:
    """A window of a state, a cache, is written by `op`, then read by a node of its own."""
    graph = Graph()
    rows = graph.leaf(INPUT, F32, [4, 2], "rows")
    ids = graph.leaf(INPUT, raw.I64, [2], "ids")
    s = graph.leaf(STATE, F32, [4, 6], "s")
    if op == "SET_ROWS":
        low = graph.node("VIEW", F32, [4, 3], (s,), (48, 0), view=(s, 48))
        written = graph.node("SET_ROWS", F32, [4, 3], (rows, ids, low), view=(s, 48), name="w")
    else:
        low = graph.node("VIEW", F32, [4, 2], (s,), (48, 0), view=(s, 48))
        sources = (rows, low) if op == "CPY" else (low, rows)
        written = graph.node(op, F32, [4, 2], sources, view=(s, 48), name="w")
    graph.node("CONT", F32, [4, 3 if op == "SET_ROWS" else 2], (written,), name="o", output=True)
    return graph


def cache_after(op: str, cache: list[float], rows: list[float], ids: tuple[int, int]) -> list[float]:
    """What the op makes of the cache."""
    cache = list(cache)
    for i, row in enumerate(ids if op == "SET_ROWS" else (0, 1)):
        for k in range(4):
            at = 12 + 4 * row + k
            cache[at] = rows[4 * i + k] + (cache[at] if op == "ADD" else 0.0)
    return cache


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("writer", ["cpu0", "cpu1", "host"])
@pytest.mark.parametrize("op", ["SET_ROWS", "CPY", "ADD"])
def test_b006_cache_on_one_device_writer_on_another(
    daemon: Any, op: str, writer: str, copies: int
) -> None:
    """rules = headrace: what the writer makes, wherever it is pinned, is in the cache at once."""
    with Conn(daemon.address) as conn:
        held = state(conn, [("s", F32, [4, 6])], "cpu0")
        cache = [float(i) for i in range(24)]
        write_state(conn, held, 0, floats(cache))
        handle = conn.submit(
            cache_graph(op), states=[held], pins=pins(**{writer: "w"}), n_copies=copies
        ).handle
        for number in range(5):
            rows = [float(100 * number + k) for k in range(8)]
            ids = ((number + 1) % 3, number % 3)
            out = unfloats(conn.run(handle, floats(rows) + struct.pack("<2q", *ids)))
            cache = cache_after(op, cache, rows, ids)
            assert out == tuple(cache[12 : 12 + len(out)])
            assert unfloats(read_state(conn, held, 0, 96)) == tuple(cache)


@pytest.mark.parametrize("op", ["SET_ROWS", "CPY", "ADD"])
def test_b006_the_reference_leaves_the_writer_where_it_is(daemon: Any, op: str) -> None:
    """rules = ggml: by itself the writer goes where the cache is; pinned elsewhere it would write
    into memory out of its reach, and such a plan is refused before anything runs.
    """
    with Conn(daemon.address) as conn:
        held = state(conn, [("s", F32, [4, 6])], "cpu0")
        cache = [float(i) for i in range(24)]
        write_state(conn, held, 0, floats(cache))
        graph = cache_graph(op)
        handle = conn.submit(graph, states=[held], rules=1).handle
        rows = [float(50 + k) for k in range(8)]
        out = unfloats(conn.run(handle, floats(rows) + struct.pack("<2q", 2, 0)))
        cache = cache_after(op, cache, rows, (2, 0))
        assert out == tuple(cache[12 : 12 + len(out)])
        error = conn.submit_fails(graph, states=[held], rules=1, pins=pins(cpu1="w"))
        assert (error.code, error.reason) == (raw.PRECONDITION, "UNSOUND")
        assert unfloats(read_state(conn, held, 0, 96)) == tuple(cache)


WEIGHT_TYPES = {"f32": (0, 4, 1), "f16": (1, 2, 1), "q4_0": (2, 18, 32), "q8_0": (8, 34, 32),
                "q5_1": (7, 24, 32), "q4_K": (12, 144, 256), "q6_K": (14, 210, 256)}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_b008_weights_of_a_device_that_cannot(launch: Callable[..., Any], name: str) -> None:
    """The product of a weight on a device without products falls back to the last one."""
    type, size, block = WEIGHT_TYPES[name]
    narrow = launch(
        devices=[
            device("cpu0", threads=1, memory="isolated", deny_ops="MUL_MAT"),
            device("host", threads=1),
        ]
    )
    data = bytes(256 // block * size * 3)  # zeros in every type
    graph = Graph()
    x = graph.leaf(INPUT, F32, [256, 2], "x")
    w = graph.leaf(WEIGHT, type, [256, 3], "w")
    graph.node("MUL_MAT", F32, [3, 2], (w, x), output=True)
    with Conn(narrow.address) as conn:
        held = conn.put("w", [("w", type, [256, 3], data)], placement=[("*", "cpu0")])
        reply = conn.submit(graph, weights=[held.handle])
        assert {one.device for one in reply.devices if one.splits} == {"host"}
        out = unfloats(conn.run(reply.handle, floats([1.5] * 512)))
        assert out == (0.0,) * 6


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("shape", [(3, 5), (16, 16), (17, 33), (64, 1)])
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


def test_b015_something_larger_while_a_run_is_under_way(launch: Callable[..., Any]) -> None:
    slow = launch(devices=[device("cpu0", threads=1, delay="100ms"), device("cpu1", threads=1)])
    with Conn(slow.address) as conn:
        handle = submit_ping_pong(conn, 1000, 3).handle
        data = floats([float(i) for i in range(1000)])
        for size in (2000, 100000, 1000000):
            call = conn.begin(raw.RUN, pb.Run(handle=handle), data)
            larger = submit_ping_pong(conn, size).handle
            assert conn.reply(call)[1] == data
            wide = floats([1.0] * size)
            assert conn.run(larger, wide) == wide


def test_b018_fallback_is_visible(launch: Callable[..., Any]) -> None:
    narrow = launch(
        devices=[
            device("cpu0", threads=1, memory="isolated", deny_ops="RMS_NORM"),
            device("host", threads=1),
        ]
    )
    graph = Graph()
    x = graph.leaf(INPUT, F32, [64], "x")
    w = graph.leaf(WEIGHT, F32, [64], "w")
    product = graph.node("MUL", F32, [64], (x, w), name="product")
    graph.node("RMS_NORM", F32, [64], (product,), (bits(1e-5),), name="normed", output=True)
    with Conn(narrow.address) as conn:
        held = conn.put("w", [("w", F32, [64], floats([2.0] * 64))], placement=[("*", "cpu0")])
        reply = conn.submit(graph, weights=[held.handle])
        text = explain(conn, reply.handle)
        line = next(line for line in text.splitlines() if "normed" in line)
        assert "host" in line, text
        out = unfloats(conn.run(reply.handle, floats([3.0] * 64)))
        assert all(abs(value - 1.0) < 1e-5 for value in out)


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


def test_b030_same_ops_other_offsets(daemon: Any) -> None:
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
            reply = conn.submit(graph, states=[held])
            handles[past] = reply.handle
            for position, handle in handles.items():
                out = unfloats(conn.run(handle, floats([0.5] * 4)))
                assert out[::4] == tuple(position + row + 0.5 for row in range(8))


def test_b031_two_graphs_take_turns(daemon: Any) -> None:
    with Conn(daemon.address) as first, Conn(daemon.address) as second:
        handles = []
        for conn in (first, second):
            for factor in (2.0, 3.0):
                graph = Graph()
                x = graph.leaf(INPUT, F32, [8], "x")
                scale(graph, x, [8], factor, output=True)
                handles.append((conn, conn.submit(graph).handle, factor))
        for number in range(25):
            for conn, handle, factor in handles:
                out = unfloats(conn.run(handle, floats([float(number)] * 8)))
                assert out == (number * factor,) * 8


# ---- experts -------------------------------------------------------------------------------------

EXPERTS, ROWS, WIDTH = 4, 3, 32


def experts_graph(tokens: int, used: int) -> Graph:
    graph = Graph()
    x = graph.leaf(INPUT, F32, [WIDTH, 1, tokens], "x")
    ids = graph.leaf(INPUT, I32, [used, tokens], "ids")
    w = graph.leaf(WEIGHT, F32, [WIDTH, ROWS, EXPERTS], "w_exps")
    first = scale(graph, x, [WIDTH, 1, tokens], 1.0)
    graph.node("MUL_MAT_ID", F32, [ROWS, used, tokens], (w, first, ids), output=True)
    return graph


@pytest.mark.parametrize("where", ["cpu0", "host"])
@pytest.mark.parametrize(
    "ids",
    [(0, 1), (1, 0), (3, 3), (0, 0), (2, 3), (-1, 0), (0, EXPERTS), (2**31 - 1, 0), (0, -(2**31))],
)
def test_b036_expert_ids(daemon: Any, ids: tuple[int, int], where: str) -> None:
    with Conn(daemon.address) as conn:
        weights = [float(e + 1) for e in range(EXPERTS) for _ in range(WIDTH * ROWS)]
        held = conn.put(
            "experts", [("w_exps", F32, [WIDTH, ROWS, EXPERTS], floats(weights))],
            placement=[("*", where)],
        )  # fmt: skip
        handle = conn.submit(experts_graph(1, 2), weights=[held.handle]).handle
        data = floats([1.0] * WIDTH) + struct.pack("<2i", *ids)
        if all(0 <= one < EXPERTS for one in ids):
            out = unfloats(conn.run(handle, data))
            assert out == tuple(float(WIDTH * (one + 1)) for one in ids for _ in range(ROWS))
        else:
            error = conn.fails(raw.RUN, pb.Run(handle=handle), data)
            assert error.code == raw.RANGE and error.error.has_node
            good = conn.run(handle, floats([1.0] * WIDTH) + struct.pack("<2i", 1, 2))
            assert unfloats(good)[0] == 2.0 * WIDTH


def test_b036_no_tokens(daemon: Any) -> None:
    with Conn(daemon.address) as conn:
        held = conn.put("e", [("w_exps", F32, [WIDTH, ROWS, EXPERTS], bytes(4 * 384))])
        try:
            handle = conn.submit(experts_graph(0, 2), weights=[held.handle]).handle
        except raw.RawError as error:
            assert error.code == INVALID
            return
        assert conn.run(handle, b"") == b""


@pytest.mark.parametrize("copies", COPIES)
def test_b035_ids_live_as_long_as_they_are_needed(daemon: Any, copies: int) -> None:
    """ids = a window on a sort's result; large tensors come and go before they are used."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [WIDTH, 1, 1], "x")
    scores = graph.leaf(INPUT, F32, [EXPERTS, 1], "scores")
    w = graph.leaf(WEIGHT, F32, [WIDTH, ROWS, EXPERTS], "w_exps")
    order = graph.node("ARGSORT", I32, [EXPERTS, 1], (scores,), (1,), name="order")
    row = 4 * EXPERTS
    ids = graph.node("VIEW", I32, [2, 1], (order,), view=(order, 0), strides=(4, row, row, row))
    last = x
    for number in range(12):
        wide = graph.node("REPEAT", F32, [WIDTH, 64, 64], (last,))
        window = graph.node(
            "VIEW", F32, [WIDTH, 1, 1], (wide,), view=(wide, 0),
            strides=(4, 4 * WIDTH, 4 * WIDTH, 4 * WIDTH),
        )  # fmt: skip
        last = scale(graph, window, [WIDTH, 1, 1], 1.0, name=f"n{number}")
    graph.node("MUL_MAT_ID", F32, [ROWS, 2, 1], (w, last, ids), output=True)
    with Conn(daemon.address) as conn:
        weights = [float(e + 1) for e in range(EXPERTS) for _ in range(WIDTH * ROWS)]
        held = conn.put("experts", [("w_exps", F32, [WIDTH, ROWS, EXPERTS], floats(weights))])
        handle = conn.submit(graph, weights=[held.handle], n_copies=copies).handle
        for best, second in ((0, 1), (3, 0), (2, 1)):
            values = [0.0] * EXPERTS
            values[best], values[second] = 9.0, 5.0
            out = unfloats(conn.run(handle, floats([1.0] * WIDTH) + floats(values)))
            assert out == tuple(float(WIDTH * (e + 1)) for e in (best, second) for _ in range(ROWS))
