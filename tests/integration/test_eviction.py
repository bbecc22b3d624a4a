"""Graphs make way for others of their session (DESIGN 4.6 to 4.8): the one that has been idle longest goes,
its handle answers with its digest, and the client library submits it again by itself."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import raw
from raw import EXHAUSTED, F32, INPUT, MORE, NOT_FOUND, Conn, Graph, pb
from run_daemon import Daemon, device

import headrace
from headrace import aio, errors

KIB = 1024


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    devices = [device("cpu0", threads=1, delay="20ms")]
    limits = {"session_graphs": 2}
    with Daemon(devices=devices, sections={"limits": limits}) as running:
        yield running


def times(count: int, width: int = 4) -> Graph:
    """out = x * 2 ** count"""
    graph = Graph()
    last = graph.leaf(INPUT, F32, [width], "x")
    for number in range(count):
        last = graph.node("ADD", F32, [width], (last, last), output=number == count - 1)
    return graph


ONES = struct.pack("<4f", 1, 1, 1, 1)


def run(conn: Conn, handle: int) -> float:
    out = conn.run(handle, ONES)
    values = struct.unpack("<4f", out)
    assert len(set(values)) == 1
    return values[0]


def stat(conn: Conn, reason: str) -> float:
    return conn.stats().get(f'graph_evictions_total{{reason="{reason}"}}', 0.0)


def gone(conn: Conn, handle: int, digest: bytes) -> None:
    messages = {raw.RUN: pb.Run, raw.EXPLAIN: pb.Explain, raw.RELEASE: pb.Release}
    for kind, message in ((kind, make(handle=handle)) for kind, make in messages.items()):
        error = conn.fails(kind, message, ONES if kind == raw.RUN else b"")
        assert (error.code, error.reason) == (NOT_FOUND, "GRAPH")
        assert error.error.digest == digest


def test_the_longest_idle_goes(served: Daemon) -> None:
    with Conn(served.address) as conn:
        before = stat(conn, "handles")
        handles = [conn.submit(times(number)).handle for number in (1, 2)]
        assert run(conn, handles[0]) == 2  # so the second is idle longer
        handles.append(conn.submit(times(3)).handle)
        gone(conn, handles[1], hashlib.sha256(times(2).encode().SerializeToString()).digest())
        assert run(conn, handles[0]) == 2 and run(conn, handles[2]) == 8
        assert stat(conn, "handles") == before + 1
        again = conn.submit(times(2)).handle
        assert again != handles[1] and run(conn, again) == 4
        gone(conn, handles[0], hashlib.sha256(times(1).encode().SerializeToString()).digest())
        # A graph that was given back has not been evicted.
        conn.call(raw.RELEASE, pb.Release(handle=again))
        error = conn.fails(raw.RUN, pb.Run(handle=again), ONES)
        assert (error.code, error.error.digest) == (NOT_FOUND, b"")


def test_an_evicted_handle_means_nothing_to_another_session(served: Daemon) -> None:
    with Conn(served.address) as conn, Conn(served.address) as stranger:
        kept = stranger.submit(times(5)).handle
        handles = [conn.submit(times(number)).handle for number in (1, 2, 3)]
        error = stranger.fails(raw.RUN, pb.Run(handle=handles[0]), ONES)
        assert (error.code, error.error.digest) == (NOT_FOUND, b"")
        assert run(stranger, kept) == 32, "graphs of other sessions stay"


def test_a_graph_in_use_stays(served: Daemon) -> None:
    with Conn(served.address) as conn:
        handles = [conn.submit(times(number)).handle for number in (1, 2)]
        calls = [conn.send(raw.RUN, pb.Run(handle=one), ONES) for one in handles * 25]
        error = conn.submit_fails(times(3))
        assert (error.code, error.reason, error.error.field) == (EXHAUSTED, "LIMIT", "session_graphs")
        assert (error.error.limit, error.error.actual) == (2, 3)
        for call in calls:
            conn.reply(call)
        third = conn.submit(times(3)).handle
        gone(conn, handles[0], hashlib.sha256(times(1).encode().SerializeToString()).digest())
        assert run(conn, third) == 8


def test_a_run_that_is_being_received_counts_as_use(launch: Callable[..., Daemon]) -> None:
    limits = {"limits": {"session_graphs": 1, "body_bytes": "4K", "upload_window_bytes": "4K"}}
    daemon = launch(devices=[device("cpu0", threads=1)], sections=limits)
    with Conn(daemon.address) as conn:
        wide = conn.submit(times(1, width=2048)).handle
        message = pb.Run(handle=wide, input_bytes=8192)
        call = conn.send(raw.RUN, message, bytes(4096), flags=MORE)
        assert conn.submit_fails(times(2)).code == EXHAUSTED
        conn.send(raw.DATA, pb.Data(offset=4096), bytes(4096), call_id=call)
        assert conn.reply(call)[1] == bytes(8192)
        assert run(conn, conn.submit(times(2)).handle) == 4


def test_what_is_remembered_is_bounded(launch: Callable[..., Daemon]) -> None:
    """1024 evictions of a session; an older handle is not found, like one that never was."""
    limits = {"limits": {"session_graphs": 1}}
    daemon = launch(devices=[device("cpu0", threads=1)], sections=limits)
    graphs = [times(1, width=width) for width in range(1, 1031)]
    with Conn(daemon.address) as conn:
        handles = [conn.submit(graph).handle for graph in graphs]
        digests = []
        for handle in handles[:-1]:
            error = conn.fails(raw.EXPLAIN, pb.Explain(handle=handle))
            assert (error.code, error.reason) == (NOT_FOUND, "GRAPH")
            digests.append(error.error.digest)
        assert digests[:5] == [b""] * 5 and len(digests[5:]) == 1024
        assert digests[5:] == [
            hashlib.sha256(one.encode().SerializeToString()).digest() for one in graphs[5:-1]
        ]


def test_dry_runs_and_failures_evict_nothing(served: Daemon) -> None:
    with Conn(served.address) as conn:
        handles = [conn.submit(times(number)).handle for number in (1, 2)]
        assert conn.submit(times(3), dry_run=True).handle == 0
        broken = Graph()
        broken.leaf(INPUT, F32, [4], "x")
        broken.node("ADD", F32, [5], (0, 0), output=True)
        conn.submit_fails(broken)
        conn.fails(raw.SUBMIT, pb.Submit(digest=bytes(32)))
        assert [run(conn, one) for one in handles] == [2, 4]


# ---- device memory -------------------------------------------------------------------------------


def wide(floats: int, kept: float | None = None) -> Graph:
    """out = x + x, or x + kept. A constant is the graph's own memory; what is computed lies in memory
    that the session's graphs share."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [floats], "x")
    other = x
    if kept is not None:
        data = struct.pack("<f", kept) * floats
        other = graph.leaf(raw.CONSTANT, F32, [floats], "c", constant=data)
    graph.node("ADD", F32, [floats], (x, other), output=True)
    return graph


@pytest.fixture(scope="module")
def small() -> Iterator[Daemon]:
    devices = [
        device("tiny", threads=1, memory="isolated", memory_cap="1M"),
        device("other", threads=1, memory="isolated", memory_cap="1M"),
        device("host", threads=1),
    ]
    with Daemon(devices=devices) as running:
        yield running


def on(name: str) -> list[Any]:
    return [pb.Pin(pattern="*", device=name)]


def test_memory_of_a_device_is_made_room_for(small: Daemon) -> None:
    count = 64 * KIB // 4  # floats: 64 KiB of constants each, so that about a dozen fit
    with Conn(small.address) as conn, Conn(small.address) as neighbour:
        theirs = neighbour.submit(wide(1000), pins=on("tiny"), n_copies=1).handle
        elsewhere = conn.submit(wide(count, 1.0), pins=on("other"), n_copies=1).handle
        kept = list(range(1, 25))
        handles = [
            conn.submit(wide(count, number), pins=on("tiny"), n_copies=1).handle for number in kept
        ]
        assert stat(conn, "memory") > 0
        gone_count = 0
        for number, handle in zip(kept, handles, strict=True):
            try:
                out = np.frombuffer(conn.run(handle, bytes(4 * count)), np.float32)
            except raw.RawError as error:
                assert (error.code, error.reason) == (NOT_FOUND, "GRAPH")
                gone_count += 1
                assert gone_count == number, "the oldest go first"
            else:
                assert (out == number).all()
        assert 0 < gone_count < 24
        assert len(conn.run(elsewhere, bytes(4 * count))) == 4 * count, "its memory is of no use"
        assert len(neighbour.run(theirs, bytes(4000))) == 4000


def test_memory_that_graphs_share_is_made_room_for(small: Daemon) -> None:
    """Growing takes the larger memory before it gives the smaller one back."""
    with Conn(small.address) as conn:
        first = wide(160 * KIB)
        handle = conn.submit(first, pins=on("tiny"), n_copies=1).handle
        large = conn.submit(wide(200 * KIB), pins=on("tiny"), n_copies=1).handle
        gone(conn, handle, hashlib.sha256(first.encode().SerializeToString()).digest())
        assert len(conn.run(large, bytes(800 * KIB))) == 800 * KIB


def test_what_never_fits_evicts_nothing(small: Daemon) -> None:
    with Conn(small.address) as conn:
        handle = conn.submit(wide(64 * KIB), pins=on("tiny"), n_copies=1).handle
        before = stat(conn, "memory")
        error = conn.submit_fails(wide(400 * KIB), pins=on("tiny"), n_copies=1)
        assert error.code == EXHAUSTED and error.error.actual > error.error.limit
        assert stat(conn, "memory") == before
        assert len(conn.run(handle, bytes(256 * KIB))) == 256 * KIB


def test_memory_in_use_is_not_taken(launch: Callable[..., Daemon]) -> None:
    devices = [
        device("tiny", threads=1, memory="isolated", memory_cap="1M", delay="300ms"),
        device("host", threads=1),
    ]
    daemon = launch(devices=devices)
    with Conn(daemon.address) as conn:
        big = wide(160 * KIB)
        handle = conn.submit(big, pins=on("tiny"), n_copies=1).handle
        calls = [conn.send(raw.RUN, pb.Run(handle=handle), bytes(640 * KIB)) for _ in range(3)]
        error = conn.submit_fails(wide(200 * KIB), pins=on("tiny"), n_copies=1)
        assert error.code == EXHAUSTED
        for call in calls:
            assert len(conn.reply(call)[1]) == 640 * KIB
        conn.submit(wide(200 * KIB), pins=on("tiny"), n_copies=1)
        gone(conn, handle, hashlib.sha256(big.encode().SerializeToString()).digest())


# ---- the client library --------------------------------------------------------------------------


def power(count: int) -> headrace.Graph:
    g = headrace.Graph()
    x = g.input("x", (8,))
    for _ in range(count):
        x = g.add(x, x)
    g.output(x, "y")
    return g


X = np.arange(8, dtype=np.float32)


@pytest.mark.parametrize("limit", [2, 3])
def test_blocking_client(launch: Callable[..., Daemon], limit: int) -> None:
    limits = {"limits": {"session_graphs": limit}}
    daemon = launch(devices=[device("cpu0", threads=1)], sections=limits)
    with headrace.connect(daemon.address) as client:
        handles = [client.submit(power(count)) for count in (1, 2, 3)]
        for _ in range(5):
            for count, handle in enumerate(handles, 1):
                assert (handle.run({"x": X})["y"] == X * 2**count).all()
        evictions = client.stats().value("graph_evictions_total", 'reason="handles"')
        assert evictions == (0 if limit == 3 else 16)  # by the third submit, and by each run
        assert "ADD" in handles[0].explain()
        for handle in handles:
            handle.release()
        with pytest.raises(errors.NotFound):
            handles[0].run({"x": X})


@pytest.mark.parametrize("limit", [2, 3])
def test_asyncio_client(launch: Callable[..., Daemon], limit: int) -> None:
    limits = {"limits": {"session_graphs": limit}}
    daemon = launch(devices=[device("cpu0", threads=1)], sections=limits)

    async def alternate() -> None:
        async with await aio.connect(daemon.address) as client:
            handles = [await client.submit(power(count)) for count in (1, 2, 3)]
            for _ in range(5):
                for count, handle in enumerate(handles, 1):
                    assert ((await handle.run({"x": X}))["y"] == X * 2**count).all()
            # Two at a time, in all pairs: each may find that the other has just been renewed.
            for first, second in ((0, 1), (1, 2), (2, 0)) * 3:
                results = await asyncio.gather(
                    *(handles[i].run({"x": X}) for i in (first, second, first, second))
                )
                for i, result in zip((first, second, first, second), results, strict=True):
                    assert (result["y"] == X * 2 ** (i + 1)).all()

    asyncio.run(alternate())
