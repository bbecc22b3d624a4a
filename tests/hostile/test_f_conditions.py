"""Hostile conditions of work (HOSTILE F6 to F13): work that waits for itself, floods, storms of deadlines,
numbers that are none, traces without end."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import raw
from expect import SUM, TWO, refused, served
from raw import DEADLINE, EXHAUSTED, F32, INPUT, INVALID, NOT_FOUND, Conn, Graph, add_graph, pb
from run_daemon import device

FULL = bool(os.environ.get("HEADRACE_FULL"))


@pytest.fixture(scope="module")
def daemon(door: str, start_behind: Any) -> Iterator[Any]:
    """`slow` takes 20 ms for each of its splits."""
    running = start_behind(
        door,
        devices=[
            device("slow", threads=1, memory="isolated", delay="20ms"),
            device("cpu1", threads=1, memory="isolated"),
            device("host", threads=1),
        ],
        sections={"limits": {"session_buffer_bytes": "64M", "tensor_bytes": "64M"}},
    )
    yield running
    running.stop()


pytestmark = pytest.mark.usefixtures("guarded")


def slow_graph(splits: int = 1) -> Graph:
    graph = Graph()
    last = graph.leaf(INPUT, F32, [8], "x")
    for number in range(splits):
        last = graph.node("SCALE", F32, [8], (last,), (0x3F800000, 0), name=f"slow{number}")
        last = graph.node("SCALE", F32, [8], (last,), (0x3F800000, 0), number == splits - 1,
                          f"other{number}")  # fmt: skip
    return graph


PINS = [("slow*", "slow"), ("other*", "cpu1")]


def submit_slow(conn: Conn, splits: int = 1) -> int:
    pins = [pb.Pin(pattern=pattern, device=name) for pattern, name in PINS]
    return int(conn.submit(slow_graph(splits), pins=pins).handle)


# ---- waiting for each other ----------------------------------------------------------------------


def steps(conn: Conn, *feeds: list[tuple[int, int, int]]) -> Any:
    """A SEQUENCE over two inputs a step; feeds: (input, step, output) of each step."""
    handle = conn.submit(add_graph()).handle
    message = pb.Sequence()
    for feed in feeds:
        step = message.steps.add(handle=handle)
        for leaf, source, output in feed:
            step.feeds.add(input=leaf, step=source, output=output)
    return message


@pytest.mark.parametrize("source", [0, 1, 2, 2**31, 2**32 - 1])
def test_F06_steps_that_wait_for_themselves(address: str, source: int) -> None:
    """A step is fed by earlier ones only: nothing can wait in a circle."""
    with Conn(address) as conn:
        message = steps(conn, [(0, source, 0)], [])
        error = conn.fails(raw.SEQUENCE, message, bytes(32 + 64))
        refused(error, INVALID, "FEED")
        served(conn)


def test_F06_nobody_grants_anything(address: str) -> None:
    """Uploads that never send, on connections that never read, hold up nobody and nothing."""
    with Conn(address) as conn:
        silent = [Conn(address) for _ in range(4)]
        tensors = [("t", F32, [1 << 18], bytes(1 << 20))]
        for one in silent:
            message = pb.WeightsPut(name="never", total_bytes=1 << 20)
            for _ in range(3):
                one.send(raw.PUT, message, raw.manifest(tensors).SerializeToString(), flags=raw.MORE)
        for _ in range(20):
            served(conn)
        for one in silent:
            one.close()


def test_F06_two_sessions_cross_three_devices(address: str) -> None:
    """Back and forth between the same devices, in both orders, with all slots in use."""
    ways = ((("slow*", "slow"), ("other*", "cpu1")), (("slow*", "cpu1"), ("other*", "slow")))
    with Conn(address) as one, Conn(address) as other:
        calls = []
        for conn, way in zip((one, other), ways, strict=True):
            pins = [pb.Pin(pattern=pattern, device=name) for pattern, name in way]
            handle = conn.submit(slow_graph(3), pins=pins).handle
            calls += [(conn, conn.send(raw.RUN, pb.Run(handle=handle), TWO[:32])) for _ in range(4)]
        for conn, call in calls:
            assert conn.reply(call)[1] == TWO[:32]
        served(one)
        served(other)


# ---- floods and deadlines ------------------------------------------------------------------------


def test_F07_a_flood_of_small_runs_beside_slow_ones(address: str) -> None:
    """Each gets on: a slow client's run is not put off by 60 of the other's in the queue, and theirs are
    all answered."""
    with Conn(address) as flood, Conn(address) as calm:
        quick = flood.submit(add_graph()).handle
        slow = submit_slow(calm, 2)
        for _ in range(3):
            calls = [flood.send(raw.RUN, pb.Run(handle=quick), TWO) for _ in range(60)]
            mine = calm.send(raw.RUN, pb.Run(handle=slow), TWO[:32])
            assert calm.reply(mine)[1] == TWO[:32]
            for call in calls:
                assert flood.reply(call)[1] == SUM
        served(calm)
        served(flood)


def test_F09_a_storm_of_deadlines(address: str) -> None:
    """Every run has one answer, its result or DEADLINE, whatever passes first."""
    with Conn(address) as conn:
        handle = submit_slow(conn)
        late = 0
        for timeout_ms in (1, 1, 5, 20, 30) * (10 if FULL else 2):
            calls = [
                conn.send(raw.RUN, pb.Run(handle=handle), TWO[:32], timeout_ms=timeout_ms)
                for _ in range(10)
            ]
            for call in calls:
                frame = conn.next_of(call)
                if frame.flags & raw.ERROR:
                    refused(frame, DEADLINE, "DEADLINE")
                    late += 1
                else:
                    assert frame.body == TWO[:32]
        assert late > 0
        conn.ping()
        assert not conn.held, "a second answer"
        served(conn)


def test_F09_a_deadline_while_the_answer_waits_to_be_read(address: str) -> None:
    """The result was there in time: it is the answer, and the only one."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [16], "x")
    graph.node("REPEAT", F32, [1 << 20], (x,), output=True)
    with Conn(address) as conn:
        handle = conn.submit(graph).handle
        good = 0
        for timeout_ms in (300, 3000):  # the latter on a machine that does much else
            calls = [conn.send(raw.RUN, pb.Run(handle=handle), TWO[:64], timeout_ms=timeout_ms)
                     for _ in range(6)]  # fmt: skip
            time.sleep(1.5 * timeout_ms / 1000)
            for call in calls:
                try:
                    good += conn.reply(call)[1] == TWO[:64] * (1 << 16)
                except raw.RawError as error:
                    refused(error, DEADLINE, "DEADLINE")
            if good:
                break
        assert good > 0
        conn.ping()
        assert not conn.held
        served(conn)


# ---- numbers -------------------------------------------------------------------------------------

NAN, INFINITY, DENORMAL = float("nan"), float("inf"), 1e-42


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, DENORMAL, -0.0, 3.4e38])
def test_F10_numbers_that_are_none(address: str, value: float) -> None:
    """Through sums, products, a norm and a softmax: a result of the right size, and the next run is
    right."""
    data = struct.pack("<64f", *([value] * 64))
    ones = struct.pack("<64f", *([1.0] * 64))
    graph = Graph()
    graph.leaf(INPUT, F32, [8, 8], "a")
    graph.leaf(INPUT, F32, [8, 8], "b")
    product = graph.node("MUL_MAT", F32, [8, 8], (0, 1))
    norm = graph.node("RMS_NORM", F32, [8, 8], (product,), (0x3727C5AC,))
    graph.node("SOFT_MAX", F32, [8, 8], (norm,), (0x3F800000, 0), output=True)
    total = graph.node("ADD", F32, [8, 8], (0, 1), output=True)
    assert total
    with Conn(address) as conn:
        handle = conn.submit(graph).handle
        expected = conn.run(handle, ones + ones)
        sums = struct.unpack("<64f", conn.run(handle, data + ones)[256:])
        want = struct.unpack("<f", struct.pack("<f", struct.unpack("<f", data[:4])[0] + 1.0))[0]
        assert all(one == want or (want != want and one != one) for one in sums)
        assert conn.run(handle, ones + ones) == expected
        served(conn)


def test_F10_tensors_of_two_billion_elements(address: str) -> None:
    """Counted in 64 bits and refused as too large, not by an accident."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [1], "x")
    graph.node("REPEAT", F32, [1 << 31], (x,), output=True)
    with Conn(address) as conn:
        told = refused(conn.submit_fails(graph), EXHAUSTED, "TENSOR_BYTES")
        assert told.limit == 64 << 20 and told.actual == 4 << 31
        served(conn)


def test_F10_batch_of_nothing(address: str) -> None:
    graph = Graph()
    graph.leaf(INPUT, F32, [8, 8], "w")
    graph.leaf(INPUT, F32, [8, 0], "x")
    graph.node("MUL_MAT", F32, [8, 0], (0, 1), output=True)
    with Conn(address) as conn:
        assert conn.run(conn.submit(graph).handle, bytes(256)) == b""
        served(conn)


# ---- traces --------------------------------------------------------------------------------------


def test_F13_every_run_is_traced(address: str) -> None:
    """1 000 traces: each is one run's, charged while it is there, and leaves nothing."""
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        for _ in range(1000 if FULL else 200):
            reply, body = conn.call(raw.RUN, pb.Run(handle=handle, trace=True), TWO)
            assert body[:32] == SUM and len(body) == 32 + reply.trace_bytes > 32
        error = conn.fails(raw.RUN, pb.Run(handle=handle + 1, trace=True), TWO)
        refused(error, NOT_FOUND, "GRAPH")
        held = [value for name, value in conn.stats().items()
                if name.startswith("principal_held") and "buffer_bytes" in name]  # fmt: skip
        assert sum(held) < 1 << 20
        served(conn)
