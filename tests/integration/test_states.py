"""States as a whole: saved, restored by the same or another daemon, forked; what each of them is not
disturbed by, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import numpy as np
import pytest
import raw
from headrace import aio, errors
from raw import F32, Conn, eventually, pb
from run_daemon import Daemon, device

SPEC = {"k": ("f16", (64, 32)), "v": ("q8_0", (3, 32)), "n": ("i32", (5,)), "long": ("f32", (400_000,))}
PLACES = {"k": "cpu0", "v": "cpu1", "n": "host", "long": "cpu0"}


@pytest.fixture(params=["unix", "tcp"])
def client(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[headrace.Client]:
    address = daemon.address if request.param == "unix" else daemon.tcp_address
    assert address is not None
    with headrace.connect(address) as made:
        yield made


def filled(client: headrace.Client, seed: int) -> tuple[headrace.State, dict[str, bytes]]:
    """A state over three devices, and the bytes of its tensors."""
    state = client.state({name: (kind, shape) for name, (kind, shape) in SPEC.items()}, PLACES)
    rng = np.random.default_rng(seed)
    for name, info in state.items():
        raw_bytes = rng.integers(0, 100, info.nbytes, np.uint8)
        client.drive(write_bytes(state, name, raw_bytes.tobytes()), None)
    return state, bytes_of(client, state)


def write_bytes(state: Any, name: str, data: bytes) -> Any:
    from headrace.flows import Request
    from headrace.wire import Kind

    message = pb.StateWrite(
        handle=state.handle, tensor=state.index(name), offset=0, bytes=len(data)
    )
    yield Request(Kind.STATE_WRITE, message.SerializeToString(), [data])


def read_bytes(state: Any, name: str) -> Any:
    from headrace.flows import Request
    from headrace.wire import Kind

    size = state[name].nbytes
    message = pb.StateRead(handle=state.handle, tensor=state.index(name), offset=0, bytes=size)
    reply = yield Request(Kind.STATE_READ, message.SerializeToString())
    return bytes(reply.body)


def bytes_of(client: headrace.Client, state: headrace.State) -> dict[str, bytes]:
    return {name: client.drive(read_bytes(state, name), None) for name in state}


def test_saved_and_restored(client: headrace.Client) -> None:
    state, wanted = filled(client, 1)
    assert all(set(data) != {0} for data in wanted.values())
    saved = state.save()
    client.drive(write_bytes(state, "n", bytes(20)), None)  # what has been saved stays
    again = client.restore(saved, PLACES)
    assert list(again) == list(SPEC) and again.nbytes == state.nbytes
    assert bytes_of(client, again) == wanted
    assert {share.device for share in again.devices} == {"cpu0", "cpu1", "host"}
    elsewhere = client.restore(saved)  # all on the last device
    assert bytes_of(client, elsewhere) == wanted
    assert elsewhere.save() == saved == again.save()
    for one in (state, again, elsewhere):
        one.free()


def test_restored_by_another_daemon(client: headrace.Client, launch: Callable[..., Daemon]) -> None:
    state, wanted = filled(client, 2)
    other = launch(devices=[device("host", threads=1)])
    with headrace.connect(other.address) as second:
        moved = second.restore(state.save())
        assert bytes_of(second, moved) == wanted
    state.free()


def test_fork_goes_its_own_way(client: headrace.Client) -> None:
    state, wanted = filled(client, 3)
    copy = state.fork()
    assert {s.device: s.planned_bytes for s in copy.devices} == {
        s.device: s.planned_bytes for s in state.devices
    }
    assert bytes_of(client, copy) == wanted
    client.drive(write_bytes(copy, "n", bytes(20)), None)
    assert bytes_of(client, state) == wanted
    state.free()
    rest = {name: data for name, data in bytes_of(client, copy).items() if name != "n"}
    assert rest == {name: data for name, data in wanted.items() if name != "n"}
    copy.free()


def counting(client: headrace.Client, state: headrace.State, place: str) -> Any:
    """Both tensors go up by one with each run."""
    g = headrace.Graph()
    one = g.constant(np.ones(16, np.float32))
    for name in ("a", "b"):
        s = g.state(name, (16,))
        g.output(g.cpy(g.add(s, one), s), f"new {name}")
    return client.submit(g, states=[state], pins={"*": place})


def test_between_two_runs(daemon: Daemon) -> None:
    """Saves and forks among runs see what all earlier runs, and no later ones, have written: both
    tensors alike, and as many runs as came before."""
    with headrace.connect(daemon.address) as client:
        state = client.state({"a": ("f32", (16,)), "b": ("f32", (16,))}, {"a": "cpu0", "b": "cpu1"})
        graph = counting(client, state, "cpu0")
        runs, seen = [], []
        for number in range(12):
            runs.append(graph.run_async(outputs=[]))
            kind = number % 3
            if kind == 1:
                seen.append((number + 1, state.fork()))
            elif kind == 2:
                seen.append((number + 1, client.restore(state.save())))
        for run in runs:
            run.result()
        for count, copy in seen:
            assert copy.read("a").tolist() == copy.read("b").tolist() == [count] * 16
            forked = counting(client, copy, "cpu0")  # and it works on
            forked.run(outputs=[])
            assert copy.read("b")[3] == count + 1
        assert state.read("a")[0] == 12


def test_charges_and_limits(launch: Callable[..., Daemon]) -> None:
    daemon = launch(
        devices=[device("host", threads=1)],
        sections={"limits": {"session_state_bytes": "40K", "session_states": 4,
                             "session_buffer_bytes": "1M"}},
    )  # fmt: skip
    with headrace.connect(daemon.address) as client:

        def held(what: str) -> float:
            return client.quota().value("session_held", f'what="{what}"')

        state = client.state({"s": ("f32", (4096,))})
        saved = state.save()
        forked = state.fork()
        assert held("state_bytes") == 2 * 16384 and held("states") == 2
        for refused in (state.fork, lambda: client.restore(saved)):
            with pytest.raises(errors.Exhausted) as caught:
                refused()
            assert caught.value.field == "session_state_bytes"
        eventually(lambda: held("state_bytes") == 2 * 16384 and held("states") == 2)
        forked.free()
        eventually(lambda: held("states") == 1)
        small = [client.state({"s": ("f32", (1,))}) for _ in range(3)]
        with pytest.raises(errors.Exhausted, match="session_states"):
            state.fork()
        for one in (state, *small):
            one.free()
        eventually(lambda: held("state_bytes") == held("buffer_bytes") == held("states") == 0)


def test_what_is_refused(daemon: Daemon) -> None:
    manifest = raw.manifest([("s", F32, [16], b"")]).SerializeToString()
    with Conn(daemon.address) as conn, Conn(daemon.address) as other:
        handle = conn.call(raw.STATE_ALLOC, pb.StateAlloc(), manifest)[0].handle
        before = conn.stats()["objects"]
        for kind, message in (
            (raw.STATE_SAVE, pb.StateSave(handle=handle)),
            (raw.STATE_FORK, pb.StateFork(handle=handle)),
        ):
            error = other.fails(kind, message)
            assert (error.code, error.reason) == (raw.NOT_FOUND, "STATE")
        for size, body in (
            (len(manifest), manifest + bytes(63)),
            (len(manifest), manifest + bytes(65)),
            (len(manifest), manifest),
            (len(manifest) + 65, manifest + bytes(64)),
            (1 << 40, manifest + bytes(64)),
        ):
            error = conn.fails(raw.STATE_RESTORE, pb.StateRestore(manifest_bytes=size), body)
            assert (error.code, error.reason) == (raw.INVALID, "SIZE"), size
        error = conn.fails(raw.STATE_RESTORE, pb.StateRestore(manifest_bytes=3), b"\xff\xff\xff" + bytes(64))
        assert error.code == raw.INVALID
        error = conn.fails(
            raw.STATE_RESTORE,
            pb.StateRestore(manifest_bytes=len(manifest), placement=raw.rules([("*", "none")])),
            manifest + bytes(64),
        )  # fmt: skip
        assert error.code == raw.NOT_FOUND
        eventually(lambda: conn.stats()["objects"] == before)
        conn.ping()


def test_fork_comes_in_its_turn(daemon: Daemon) -> None:
    """What is asked for behind a fork does not happen before it."""
    with Conn(daemon.address) as conn:
        body = raw.manifest([("s", F32, [4], b"")]).SerializeToString()
        state = conn.call(raw.STATE_ALLOC, pb.StateAlloc(), body)[0].handle
        for number in range(1, 41):
            before, after = (np.full(4, value, np.float32).tobytes() for value in (number, -number))
            write = pb.StateWrite(handle=state, bytes=16)
            calls = [
                conn.send(raw.STATE_WRITE, write, before),
                conn.send(raw.STATE_FORK, pb.StateFork(handle=state)),
                conn.send(raw.STATE_WRITE, write, after),
            ]
            copy = [conn.reply(call) for call in calls][1][0].handle
            assert conn.call(raw.STATE_READ, pb.StateRead(handle=copy, bytes=16))[1] == before
            assert conn.call(raw.STATE_READ, pb.StateRead(handle=state, bytes=16))[1] == after
            conn.call(raw.STATE_FREE, pb.StateFree(handle=copy))


@pytest.mark.parametrize("kind", [raw.STATE_SAVE, raw.STATE_FORK])
def test_gone_in_the_middle(daemon: Daemon, kind: int) -> None:
    """The peer leaves while its state is being copied: everything is given back."""
    with Conn(daemon.address) as watcher:
        before = watcher.stats()
        for _ in range(10):
            with Conn(daemon.address) as conn:
                body = raw.manifest([(f"s{i}", F32, [50_000], b"") for i in range(8)])
                handle = conn.call(raw.STATE_ALLOC, pb.StateAlloc(), body.SerializeToString())[0].handle
                conn.send(kind, pb.StateSave(handle=handle))
        used = 'device_memory_used_bytes{device="host"}'
        eventually(lambda: watcher.stats()["objects"] <= before["objects"])
        eventually(lambda: watcher.stats()[used] <= before[used])


def test_asyncio(daemon: Daemon) -> None:
    async def main() -> None:
        client = await aio.connect(daemon.address)
        async with client:
            state = await client.state({"s": ("f32", (8,))})
            await state.write("s", np.arange(8, dtype=np.float32))
            copy = await state.fork()
            again = await client.restore(await copy.save(), {"*": "cpu1"})
            assert (await again.read("s")).tolist() == list(range(8))
            assert (await client.adopt(again).read("s")).tolist() == list(range(8))

    asyncio.run(main())
