"""Scenarios of ops that a device does not have: who takes them, what is written where, what is told."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

import client_tools  # noqa: F401 - the way to the recorded cases
import headrace
import pytest
import raw
import recorded
from graphs import (
    COPIES, bits, floats, pins, read_state, scale, state, unfloats, write_state,
)  # fmt: skip
from headrace import Op, Type
from headrace.explain import Explanation
from headrace.models.gguf_file import GgufFile
from raw import F32, I32, INPUT, PRECONDITION, STATE, WEIGHT, Conn, Graph, pb
from run_daemon import device
from test_client_ops import check

FULL = bool(os.environ.get("HEADRACE_FULL"))


def narrow_devices(*denied: str) -> list[Any]:
    """A device with memory of its own that lacks some ops, and the last one, which has all."""
    return [
        device("cpu0", threads=1, memory="isolated", deny_ops=",".join(denied)),
        device("host", threads=1),
    ]


@pytest.mark.parametrize("copies", COPIES)
def test_b006_writer_of_a_view_reaches_its_base(
    launch_watched: Callable[..., Any], copies: int
) -> None:
    """The scatter's own device cannot do it; what is written must be seen in the state."""
    narrow = launch_watched(devices=narrow_devices("SET_ROWS"))
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
        handle = conn.submit(graph, states=[held], n_copies=copies).handle
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


@pytest.mark.usefixtures("guarded")
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


@pytest.mark.usefixtures("guarded")
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
        assert (error.code, error.reason) == (PRECONDITION, "UNSOUND")
        assert unfloats(read_state(conn, held, 0, 96)) == tuple(cache)


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("far", ["FILL", "SET_ROWS", "VIEW"])
def test_b006_writer_of_a_view_of_a_computed_base(
    launch_watched: Callable[..., Any], far: str, copies: int
) -> None:
    """base = fill of f16, out = rows scattered into a window of it; then the base is read. Either op
    is out of the first device's reach, and the other is pinned to it."""
    narrow = launch_watched(devices=narrow_devices(*([far] if far != "VIEW" else [])))
    graph = Graph()
    rows = graph.leaf(INPUT, F32, [4, 2], "rows")
    ids = graph.leaf(INPUT, raw.I64, [2], "ids")
    wide = graph.leaf(INPUT, raw.F16, [4, 6], "wide")
    base = graph.node(int(Op.FILL), raw.F16, [4, 6], (wide,), (bits(1.0),), name="base")
    low = graph.node("VIEW", raw.F16, [4, 3], (base,), (24, 0), view=(base, 24), name="low")
    written = graph.node("SET_ROWS", raw.F16, [4, 3], (rows, ids, low), view=(base, 24), name="w")
    again = graph.node("VIEW", raw.F16, [4, 6], (base,), view=(base, 0), name="again")
    graph.node("CPY", F32, [4, 3], (written,), output=True, name="part")
    graph.node("CPY", F32, [4, 6], (again,), output=True, name="whole")
    with Conn(narrow.address) as conn:
        where = pins(cpu0="base" if far == "SET_ROWS" else "w")
        handle = conn.submit(graph, pins=where if far != "VIEW" else [], n_copies=copies).handle
        for number in range(4):
            values = [float(number), float(number + 7)]
            data = floats([values[0]] * 4 + [values[1]] * 4)
            out = unfloats(conn.run(handle, data + struct.pack("<2q", 2, 0) + bytes(48)))
            part = (values[1],) * 4 + (1.0,) * 4 + (values[0],) * 4
            assert out == part + (1.0,) * 12 + part


# ---- ops that fall back ---------------------------------------------------------------------------

BLOCKS = [number for number in Type if number.is_block]


@pytest.mark.parametrize("op", ["MUL_MAT", "MUL_MAT_ID", "GET_ROWS"])
@pytest.mark.parametrize("copies", COPIES)
def test_b008_weights_of_a_device_that_cannot(
    launch_watched: Callable[..., Any], op: str, copies: int
) -> None:
    """What takes a weight of any type falls back to the last device when the weight's own has no op at
    all. (Zeros in each type: what comes out is 0.)"""
    narrow = launch_watched(devices=narrow_devices("*"))
    with Conn(narrow.address) as conn:
        for type in [Type.F32, Type.F16, Type.BF16, *BLOCKS]:
            graph = Graph()
            ids = graph.leaf(INPUT, I32, [1, 2], "ids")
            x = graph.leaf(INPUT, F32, [256, 1, 2] if op == "MUL_MAT_ID" else [256, 2], "x")
            w = graph.leaf(WEIGHT, type, [256, 3, 2] if op == "MUL_MAT_ID" else [256, 3], "w")
            shape = {"MUL_MAT": [3, 2], "MUL_MAT_ID": [3, 1, 2], "GET_ROWS": [256, 1, 2]}[op]
            sources = {"MUL_MAT": (w, x), "MUL_MAT_ID": (w, x, ids), "GET_ROWS": (w, ids)}[op]
            if op == "GET_ROWS":
                shape, sources = [256, 2], (w, graph.node("RESHAPE", I32, [2], (ids,), view=(ids, 0)))
            graph.node(op, F32, shape, sources, output=True)
            rows = 6 if op == "MUL_MAT_ID" else 3
            data = bytes(256 // type.block_elements * type.block_bytes * rows)
            ne = [256, 3, 2] if op == "MUL_MAT_ID" else [256, 3]
            held = conn.put(f"w{type}", [("w", type, ne, data)], placement=[("*", "cpu0")])
            if not can_run(conn, graph):
                continue  # nobody's: GET_ROWS of a type that is only multiplied
            reply = conn.submit(graph, weights=[held.handle], n_copies=copies)
            assert {one.device for one in reply.devices if one.splits} == {"host"}
            out = conn.run(reply.handle, struct.pack("<2i", 1, 0) + floats([1.5] * 512))
            assert set(unfloats(out)) == {0.0}, type.name
            conn.call(raw.RELEASE, pb.Release(handle=reply.handle))
            conn.call(raw.DROP, pb.WeightsDrop(handle=held.handle))


def can_run(conn: Conn, graph: Graph) -> bool:
    """Does any device support every node?"""
    reply, table = conn.call(raw.OPS, pb.Ops(), graph.encode().SerializeToString())
    return all(
        any(table[n * reply.device_count : (n + 1) * reply.device_count])
        for n in range(reply.node_count)
    )


class Narrow:
    """A client that looks where its graphs are computed."""

    def __init__(self, client: headrace.Client) -> None:
        self.client, self.count = client, 0

    def submit(self, graph: headrace.Graph) -> headrace.GraphHandle:
        handle = self.client.submit(graph)
        assert {one.device for one in handle.plan.devices if one.splits} <= {"host"}
        self.count += 1
        return handle


def test_b008_every_op_falls_back(launch_watched: Callable[..., Any]) -> None:
    """Recorded cases of every family of ops: the first device supports none, the results are right."""
    place = recorded.ROOT / "tests" / "golden" / "data" / "ops"
    narrow = launch_watched(devices=narrow_devices("*"))
    ops = set()
    with headrace.connect(narrow.address) as client:
        looking = Narrow(client)
        for path in sorted(place.glob("*.txt")):
            file = GgufFile(path.with_suffix(".gguf"))
            for case in recorded.cases(place, path.stem)[:: 1 if FULL else 4]:
                try:
                    problem = check(looking, case, file)  # type: ignore[arg-type]
                except (NotImplementedError, headrace.errors.Unsupported):
                    continue
                assert problem == ""
                ops.add(case.op)
    assert looking.count > 60 and len(ops) > 40


@pytest.mark.parametrize("copies", COPIES)
def test_b008_what_nobody_has_is_refused_before_anything_runs(
    launch_watched: Callable[..., Any], copies: int
) -> None:
    nobody = launch_watched(devices=[device("host", threads=1, deny_ops="RMS_NORM")])
    graph = Graph()
    x = graph.leaf(INPUT, F32, [8], "x")
    doubled = scale(graph, x, [8], 2.0)
    graph.node("RMS_NORM", F32, [8], (doubled,), (bits(1e-5),), output=True)
    with Conn(nobody.address) as conn:
        before = conn.stats()["runs_started_total"]
        error = conn.submit_fails(graph, n_copies=copies)
        assert (error.code, error.reason) == (raw.UNSUPPORTED, "OP")
        assert error.error.has_node and error.error.node == 1
        assert conn.stats()["runs_started_total"] >= before


def limited(size: int) -> Graph:
    """The best 8 of `size` products with a weight."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [size], "x")
    w = graph.leaf(WEIGHT, F32, [size], "w")
    product = graph.node("MUL", F32, [size], (x, w), name="product")
    best = graph.node(int(Op.TOP_K), I32, [8], (product,), name="best")
    graph.node("GET_ROWS", F32, [1, 8], (graph.node(
        "RESHAPE", F32, [1, size], (product,), view=(product, 0)), best), name="values", output=True)
    return graph


@pytest.mark.parametrize("copies", COPIES)
def test_b018_a_limit_of_length_is_visible(launch_watched: Callable[..., Any], copies: int) -> None:
    """Up to 4096 values the device picks the best itself; above, the last one does, and that is said:
    by the reply, by EXPLAIN with cause and bytes, by a counter. `strict` refuses it."""
    narrow = launch_watched(devices=narrow_devices("TOP_K>4096"))
    sizes = [1024, 4095, 4096, 4097, 8192, 16384]
    if FULL:
        sizes = sorted({*range(1024, 16385, 512), *sizes})
    with Conn(narrow.address) as conn:
        for size in sizes:
            held = conn.put(
                f"w{size}", [("w", F32, [size], floats([2.0] * size))], placement=[("*", "cpu0")]
            )
            before = conn.stats()["fallback_nodes_total"]
            reply = conn.submit(limited(size), weights=[held.handle], n_copies=copies)
            fell = size > 4096
            assert reply.fallback_nodes == fell
            assert conn.stats()["fallback_nodes_total"] - before == fell
            body = conn.call(raw.EXPLAIN, pb.Explain(handle=reply.handle))[1]
            plan = Explanation(pb.Explanation.FromString(body))
            nodes = {node["name"]: node for node in plan.nodes}
            assert [n["name"] for n in plan.nodes if n["fallback"]] == ["best"] * fell
            assert nodes["best"]["device"] == ("host" if fell else "cpu0")
            assert nodes["best"]["cause"] and nodes["product"]["device"] == "cpu0"
            to_host = [
                copy for split in plan.splits if split["device"] == "host"
                for copy in split["inputs"] if copy["name"] == "product"
            ]  # fmt: skip
            assert sum(copy["bytes"] for copy in to_host) == (4 * size if fell else 0)
            values = [float((i * 7919) % size) for i in range(size)]
            out = unfloats(conn.run(reply.handle, floats(values)))
            assert sorted(out, reverse=True) == [2.0 * (size - 1 - i) for i in range(8)]
            if fell:
                error = conn.submit_fails(limited(size), weights=[held.handle], strict=True)
                assert (error.code, error.reason) == (PRECONDITION, "FALLBACK"), error
                assert error.error.has_node
            else:
                conn.submit(limited(size), weights=[held.handle], strict=True)
