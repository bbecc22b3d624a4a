"""Scenarios of mixtures: ids of experts, what is copied of them, and what stands in memory meanwhile."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

import pytest
import raw
from graphs import COPIES, floats, pins, scale, unfloats
from raw import EXHAUSTED, F32, I32, INPUT, WEIGHT, Conn, Graph, pb
from run_daemon import device

from headrace.trace import Trace

FULL = bool(os.environ.get("HEADRACE_FULL"))
EXPERTS, ROWS, WIDTH = 4, 3, 32


def weight_values() -> bytes:
    """Expert e is e + 1 everywhere."""
    return floats([float(e + 1) for e in range(EXPERTS) for _ in range(WIDTH * ROWS)])


def experts_graph(tokens: int, used: int, before: int = 1) -> Graph:
    """`before` nodes on the input, then the mixture."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [WIDTH, 1, tokens], "x")
    ids = graph.leaf(INPUT, I32, [used, tokens], "ids")
    w = graph.leaf(WEIGHT, F32, [WIDTH, ROWS, EXPERTS], "w_exps")
    for number in range(before):
        x = scale(graph, x, [WIDTH, 1, tokens], 1.0, name=f"n{number}")
    graph.node("MUL_MAT_ID", F32, [ROWS, used, tokens], (w, x, ids), name="mixed", output=True)
    return graph


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("where", ["cpu0", "host"])
@pytest.mark.parametrize(
    "ids",
    [(0, 1), (1, 0), (3, 3), (0, 0), (2, 3), (-1, 0), (0, EXPERTS), (2**31 - 1, 0), (0, -(2**31))],
)
def test_b036_expert_ids(daemon: Any, ids: tuple[int, int], where: str, copies: int) -> None:
    with Conn(daemon.address) as conn:
        held = conn.put(
            "experts", [("w_exps", F32, [WIDTH, ROWS, EXPERTS], weight_values())],
            placement=[("*", where)],
        )  # fmt: skip
        handle = conn.submit(experts_graph(1, 2), weights=[held.handle], n_copies=copies).handle
        data = floats([1.0] * WIDTH) + struct.pack("<2i", *ids)
        if all(0 <= one < EXPERTS for one in ids):
            out = unfloats(conn.run(handle, data))
            assert out == tuple(float(WIDTH * (one + 1)) for one in ids for _ in range(ROWS))
        else:
            error = conn.fails(raw.RUN, pb.Run(handle=handle), data)
            assert error.code == raw.RANGE and error.reason == "INDEX_VALUE"
            assert error.error.has_node
            good = conn.run(handle, floats([1.0] * WIDTH) + struct.pack("<2i", 1, 2))
            assert unfloats(good)[0] == 2.0 * WIDTH


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("before", [0, 1, 3])  # nodes of the split that come first
def test_b036_bytes_are_those_of_the_used_experts(daemon: Any, before: int, copies: int) -> None:
    """One, the first, the last, all, duplicates: each used expert travels once, in any position."""
    expert = 4 * WIDTH * ROWS
    with Conn(daemon.address) as conn:
        for used in ([1, 1], [0, 0], [3, 3], [0, 1, 2, 3], [2, 1, 2, 1], [3, 0]):
            held = conn.put(
                "e", [("w_exps", F32, [WIDTH, ROWS, EXPERTS], weight_values())],
                placement=[("*", "host")],
            )  # fmt: skip
            reply = conn.submit(
                experts_graph(1, len(used), before), weights=[held.handle], n_copies=copies,
                pins=pins(cpu0="*"),
            )  # fmt: skip
            data = floats([1.0] * WIDTH) + struct.pack(f"<{len(used)}i", *used)
            ran, out = conn.call(raw.RUN, pb.Run(handle=reply.handle), data)
            assert unfloats(out) == tuple(float(WIDTH * (e + 1)) for e in used for _ in range(ROWS))
            assert (ran.experts.misses, ran.experts.bytes) == (len(set(used)), expert * len(set(used)))
            again = conn.call(raw.RUN, pb.Run(handle=reply.handle), data)[0]
            assert (again.experts.hits, again.experts.bytes) == (len(set(used)), 0)
            conn.call(raw.RELEASE, pb.Release(handle=reply.handle))
            conn.call(raw.DROP, pb.WeightsDrop(handle=held.handle))


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("where", ["cpu0", "host"])
def test_b036_no_tokens(daemon: Any, where: str, copies: int) -> None:
    with Conn(daemon.address) as conn:
        held = conn.put(
            "e", [("w_exps", F32, [WIDTH, ROWS, EXPERTS], weight_values())], placement=[("*", where)]
        )
        reply = conn.submit(experts_graph(0, 2), weights=[held.handle], n_copies=copies)
        ran, out = conn.call(raw.RUN, pb.Run(handle=reply.handle), b"")
        assert out == b"" and ran.experts.bytes == 0


@pytest.mark.usefixtures("guarded")
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
        held = conn.put("experts", [("w_exps", F32, [WIDTH, ROWS, EXPERTS], weight_values())])
        handle = conn.submit(graph, weights=[held.handle], n_copies=copies).handle
        for best, second in ((0, 1), (3, 0), (2, 1)):
            values = [0.0] * EXPERTS
            values[best], values[second] = 9.0, 5.0
            out = unfloats(conn.run(handle, floats([1.0] * WIDTH) + floats(values)))
            assert out == tuple(float(WIDTH * (e + 1)) for e in (best, second) for _ in range(ROWS))


def layers(count: int, tokens: int) -> Graph:
    """`count` mixtures, one behind the other; the product of each is summed up and goes on."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [WIDTH, 1, tokens], "x")
    ids = graph.leaf(INPUT, I32, [1, tokens], "ids")
    members = [
        graph.leaf(WEIGHT, F32, [WIDTH, WIDTH, EXPERTS], f"blk.{i}.ffn_exps") for i in range(count)
    ]
    for number, w in enumerate(members):
        mixed = graph.node(
            "MUL_MAT_ID", F32, [WIDTH, 1, tokens], (w, x, ids), name=f"blk.{number}.mixed"
        )
        x = scale(graph, mixed, [WIDTH, 1, tokens], 0.5, name=f"blk.{number}.out",
                  output=number == count - 1)  # fmt: skip
    return graph


def identity_layers(count: int) -> list[tuple[str, int, list[int], bytes]]:
    """Expert e of each layer is the identity times e + 1."""
    values = [
        float(e + 1) if row == k else 0.0
        for e in range(EXPERTS) for row in range(WIDTH) for k in range(WIDTH)
    ]  # fmt: skip
    data = floats(values)
    return [(f"blk.{i}.ffn_exps", F32, [WIDTH, WIDTH, EXPERTS], data) for i in range(count)]


def trace_layers(conn: Conn, moe: Any, copies: int, tokens: int, where: str) -> tuple[Any, int]:
    """Runs three layers of host weights on one device, twice untraced; then the third run's trace, and
    how many bytes it brought."""
    graph = layers(3, tokens)
    reply = conn.submit(
        graph, weights=[moe.handle], pins=pins(**{where: "blk.*.[mo]*"}), n_copies=copies, op_offload=True
    )
    for number in range(3):
        values = [float((i + number) % 97) for i in range(WIDTH * tokens)]
        ids = [(t + number) % EXPERTS for t in range(tokens)]
        data = floats(values) + struct.pack(f"<{tokens}i", *ids)
        ran, body = conn.call(raw.RUN, pb.Run(handle=reply.handle, trace=number == 2), data)
        size = 4 * WIDTH * tokens
        assert unfloats(body[:size]) == tuple(
            values[t * WIDTH + k] * ((ids[t] + 1) / 2) ** 3
            for t in range(tokens) for k in range(WIDTH)
        )  # fmt: skip
    return Trace(pb.Trace.FromString(body[size:])), ran.copied_bytes


def arrive_ahead(trace: Any, layer_count: int) -> bool:
    """Whether every layer's weight was on its way while the layer before it was still being computed. In
    turn it would set out only after that, in every run; on a busy machine it may be late in some."""
    arrivals = [c for c in trace if c.kind in ("experts", "write")]
    computes = {c.split: c for c in trace if c.kind == "compute"}
    later = [c for c in arrivals if c.split - 1 in computes]
    assert len({c.split for c in later}) == layer_count - 1
    return all(one.begin_ns < computes[one.split - 1].end_ns for one in later)


def check_arrivals(conn: Conn, moe: Any, copies: int, tokens: int, where: str) -> None:
    for _ in range(20):
        trace, copied = trace_layers(conn, moe, copies, tokens, where)
        assert copied >= 3 * EXPERTS * 4 * WIDTH * WIDTH
        if arrive_ahead(trace, 3):
            return
    raise AssertionError("no layer's weight sets out before the layer before it is done")


@pytest.mark.parametrize("copies", COPIES)
def test_b038_the_next_layer_arrives_while_one_computes(
    launch_watched: Callable[..., Any], copies: int
) -> None:
    """Layer N + 1's experts travel to a device with memory of its own while it computes layer N. They
    do not stay (expert_bytes = 1), so every run brings them."""
    slow = launch_watched(
        devices=[
            device("cpu0", threads=1, memory="isolated", delay="30ms", expert_bytes=1),
            device("host", threads=1),
        ]
    )
    with Conn(slow.address) as conn:
        moe = conn.put("moe", identity_layers(3), placement=[("*_exps", "host")])
        check_arrivals(conn, moe, copies, 8, "cpu0")


def test_b028_experts_on_the_host_and_little_memory(launch_watched: Callable[..., Any]) -> None:
    """All *_exps stay on the host, four copies are asked for, the device's memory is ever shorter: four
    copies, then fewer, one, none; the reply says how many and every result is right."""
    tokens = 64
    found = []
    for cap in (600, 200, 120, 90, 70, 60, 50, 40, 20) if FULL else (600, 120, 70, 50, 20):
        tight = launch_watched(
            devices=[
                device("cpu0", threads=1, memory="isolated", memory_cap=f"{cap}K"),
                device("host", threads=1),
            ]
        )
        with Conn(tight.address) as conn:
            held = conn.put("moe", identity_layers(3), placement=[("*_exps", "host")])
            where = pins(cpu0="blk.0.*", host="blk.1.*") + pins(cpu0="blk.2.*")
            try:
                reply = conn.submit(
                    layers(3, tokens), weights=[held.handle], pins=where, n_copies=4
                )
            except raw.RawError as error:
                assert error.code == EXHAUSTED and error.error.actual > error.error.limit > 0
                found.append(0)
                continue
            found.append(reply.n_copies)
            assert reply.copies_reason
            for number in range(6):
                values = [float(i + number) for i in range(WIDTH * tokens)]
                ids = [(t + number) % EXPERTS for t in range(tokens)]
                out = unfloats(
                    conn.run(reply.handle, floats(values) + struct.pack(f"<{tokens}i", *ids))
                )
                assert out == tuple(
                    values[t * WIDTH + k] * ((ids[t] + 1) / 2) ** 3
                    for t in range(tokens) for k in range(WIDTH)
                )  # fmt: skip
    assert found == sorted(found, reverse=True) and found[0] == 4 and found[-1] == 0
    assert {1, 2, 3} & set(found)
