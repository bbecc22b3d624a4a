"""PROGRESS while weights are read and copied: true numbers, in order, for those who asked for them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw
from raw import CANCELLED, F32, MORE, Conn, Graph, pb
from run_daemon import Daemon, device

import headrace
from headrace import aio

PROGRESS = 7
FLOATS = 6 << 20  # 24 MiB: twelve chunks, of which four are under way at most
OTHER = 100

# The isolated device waits this long before each split: while runs of a neighbour queue up there,
# copies get their turn between them, and a load lasts as long as the neighbour wants it to.
DEVICES = (
    device("slow", backend="cpu", threads=1, memory="isolated", delay="40ms"),
    device("host", backend="cpu", threads=1),
)


def gguf(path: Path) -> None:
    """Two tensors: one of FLOATS zeros but for its last value, and a short one."""
    infos = b""
    offset = 0
    for name, count in (("large", FLOATS), ("small", OTHER)):
        infos += struct.pack("<Q", len(name)) + name.encode()
        infos += struct.pack("<IQIQ", 1, count, 0, offset)
        offset += 4 * count
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + infos
    start = -(-len(head) // 32) * 32
    with path.open("wb") as file:
        file.write(head)
        file.truncate(start + 4 * (FLOATS + OTHER))
        file.seek(start + 4 * FLOATS - 4)
        file.write(struct.pack("<f", 7.0))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("models")
    gguf(folder / "m.gguf")
    with Daemon(devices=DEVICES, models=[folder]) as running:
        yield running


def hello(daemon: Daemon, *features: str) -> Conn:
    conn = Conn(daemon.address, hello=False)
    message = pb.Hello(protocol_min=1, protocol_max=1, features=["no-such-thing", *features])
    conn.greeting, _ = conn.call(raw.HELLO, message)
    conn.body_max = conn.greeting.limits.body_bytes_max
    return conn


class Neighbour:
    """Queues runs on the slow device; those that are left go with its connection."""

    def __init__(self, daemon: Daemon) -> None:
        self.conn = Conn(daemon.address)
        graph = Graph()
        x = graph.leaf(raw.INPUT, F32, [4], "x")
        graph.node("ADD", F32, [4], (x, x), output=True)
        pin = [pb.Pin(pattern="*", device="slow")]
        self.handle = self.conn.submit(graph, pins=pin, n_copies=1).handle

    def start(self, count: int) -> None:
        for _ in range(count):
            self.conn.send(raw.RUN, pb.Run(handle=self.handle), bytes(16))


def until_reply(conn: Conn, call: int) -> tuple[list[Any], raw.Frame]:
    told = []
    while True:
        frame = conn.next_of(call)
        if frame.type == PROGRESS:
            assert not frame.body
            told.append(pb.Progress.FromString(frame.message))
        elif frame.type != raw.CREDIT:
            return told, frame


def load_message(name: str, device_name: str) -> Any:
    rules = [pb.PlacementRule(pattern="large", device=device_name)]
    return pb.WeightsLoad(path="m.gguf", name=name, placement=rules)


def check(told: list[Any], total: int, phase: str) -> None:
    done = [one.done_bytes for one in told]
    assert {one.total_bytes for one in told} == {total}
    assert {one.phase for one in told} == {phase}
    assert done == sorted(set(done)), "it goes up, and nothing is said twice"
    assert done[-1] == total


def test_several_values_for_a_device_with_memory_of_its_own(served: Daemon) -> None:
    neighbour = Neighbour(served)
    with hello(served, "progress") as conn:
        assert "progress" in conn.greeting.features
        neighbour.start(60)
        call = conn.send(raw.LOAD, load_message("several", "slow"))
        told, frame = until_reply(conn, call)
        assert not frame.flags & raw.ERROR
        check(told, 4 * (FLOATS + OTHER), "load")
        assert len(told) >= 3
    neighbour.conn.close()


def test_a_mapped_file_is_read_before_the_load_is_answered(served: Daemon) -> None:
    with hello(served, "progress") as conn:
        call = conn.send(raw.LOAD, load_message("mapped", "host"))
        told, frame = until_reply(conn, call)
        assert not frame.flags & raw.ERROR
        check(told, 4 * (FLOATS + OTHER), "load")
        again = conn.send(raw.LOAD, load_message("mapped", "host"))
        assert until_reply(conn, again)[0] == [], "a set that is there: nothing to wait for"


def test_beyond_the_limit_nothing_is_read_ahead(launch: Callable[..., Daemon], tmp_path: Path) -> None:
    gguf(tmp_path / "m.gguf")
    limits = {"limits": {"resident_bytes": "1M"}}
    daemon = launch(devices=DEVICES, models=[tmp_path], sections=limits)
    with hello(daemon, "progress") as conn:
        told, frame = until_reply(conn, conn.send(raw.LOAD, load_message("limited", "host")))
        assert not frame.flags & raw.ERROR
        check(told, 4 * OTHER, "load")


def test_none_for_those_who_did_not_ask(served: Daemon) -> None:
    neighbour = Neighbour(served)
    with hello(served) as conn:
        neighbour.start(60)
        told, frame = until_reply(conn, conn.send(raw.LOAD, load_message("unasked", "slow")))
        assert not frame.flags & raw.ERROR and told == []
    neighbour.conn.close()


def test_placing_of_an_upload(served: Daemon) -> None:
    tensors = [("large", F32, [FLOATS], bytes(4 * FLOATS)), ("small", F32, [4], bytes(16))]
    with hello(served, "progress") as conn:
        for device_name, copied in (("slow", 4 * FLOATS), ("host", None)):
            message = pb.WeightsPut(
                name=f"put-{device_name}",
                total_bytes=len(raw.contents(tensors)),
                placement=[pb.PlacementRule(pattern="large", device=device_name)],
            )
            call = conn.send(
                raw.PUT, message, raw.manifest(tensors).SerializeToString(), flags=MORE
            )
            assert conn.stream(call, raw.contents(tensors))
            told, frame = until_reply(conn, call)
            assert not frame.flags & raw.ERROR
            if copied is None:
                assert told == [], "used where it arrived"
            else:
                # The short tensor shares the staging memory and is copied as well.
                check(told, copied + 16, "place")


def test_a_load_can_be_cancelled_half_way(served: Daemon) -> None:
    neighbour = Neighbour(served)
    with hello(served, "progress") as conn:
        neighbour.start(60)
        call = conn.send(raw.LOAD, load_message("cancelled", "slow"))
        first = conn.next_of(call)
        assert first.type == PROGRESS
        conn.call(raw.CANCEL, pb.Cancel(request_id=call))
        told, frame = until_reply(conn, call)
        assert frame.flags & raw.ERROR and frame.code == CANCELLED
        assert all(one.done_bytes < one.total_bytes for one in told)
        conn.ping()
        _, body = conn.call(raw.LIST)
        assert "cancelled" not in [one.name for one in pb.WeightSets.FromString(body).sets]
    neighbour.conn.close()


def test_blocking_client(served: Daemon) -> None:
    seen: list[tuple[int, int]] = []
    with headrace.connect(served.address) as client:
        loaded = client.load(
            "m.gguf", "blocking", {"large": "slow"}, progress=lambda d, t: seen.append((d, t))
        )
        assert {total for _, total in seen} == {loaded.info.nbytes}
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1] == (loaded.info.nbytes, loaded.info.nbytes)
        g = headrace.Graph()
        g.output(g.add(g.input("x", (FLOATS,)), g.weight("large", (FLOATS,))), "y")
        y = client.submit(g, weights=[loaded]).run({"x": np.zeros(FLOATS, np.float32)})["y"]
        assert y[-1] == 7.0 and not y[:-1].any()


def test_asyncio_client(served: Daemon) -> None:
    async def load() -> None:
        seen: list[tuple[int, int]] = []
        async with await aio.connect(served.address) as client:
            loaded = await client.load(
                "m.gguf", "async", {"large": "slow"}, progress=lambda d, t: seen.append((d, t))
            )
            assert seen[-1] == (loaded.info.nbytes, loaded.info.nbytes)
            assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    asyncio.run(load())


class Enough(Exception):
    """The caller has seen enough."""


def stop(done: int, total: int) -> None:
    raise Enough


def test_a_callback_that_raises_ends_the_call(served: Daemon) -> None:
    async def load() -> None:
        async with await aio.connect(served.address) as client:
            with pytest.raises(Enough):
                await client.load("m.gguf", "raises-too", {"large": "slow"}, progress=stop)
            await client.ping()

    with headrace.connect(served.address) as client:
        with pytest.raises(Enough):
            client.load("m.gguf", "raises", {"large": "slow"}, progress=stop)
        client.ping()
    asyncio.run(load())
