"""Clients that die (HOSTILE F1, scenarios B080, B081): killed in mid-frame, in mid-run, in an
upload, while a long reply is on its way. Their work stops, their property is given back, and nobody else
notices."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raw
from expect import SUM, TWO, refused, served
from raw import F32, INPUT, MORE, STATE, Conn, Graph, add_graph, pb
from run_daemon import device

HERE = Path(raw.__file__).resolve().parent


@pytest.fixture(scope="module")
def daemon(door: str, start_behind: Any) -> Iterator[Any]:
    """`slow` takes 50 ms for each of its splits; the bystander's state lies on cpu1."""
    running = start_behind(
        door,
        devices=[
            device("slow", threads=1, memory="isolated", delay="50ms"),
            device("cpu1", threads=1, memory="isolated"),
            device("host", threads=1),
        ],
    )
    yield running
    running.stop()


pytestmark = pytest.mark.usefixtures("guarded")


def reset(conn: Conn) -> None:
    """Closes at once; on TCP with a reset."""
    conn.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    conn.close()


ENDS: dict[str, Callable[[Conn], None]] = {"close": Conn.close, "reset": reset}


def slow_graph(splits: int) -> Graph:
    """Goes back and forth between the slow device and another: `splits` times 50 ms."""
    graph = Graph()
    last = graph.leaf(INPUT, F32, [8], "x")
    for number in range(splits):
        last = graph.node("ADD", F32, [8], (last, last), name=f"slow{number}")
        last = graph.node(
            "SCALE", F32, [8], (last,), (0x3F000000, 0), output=number == splits - 1,
            name=f"other{number}",
        )  # fmt: skip
    return graph


PINS = {"pins": [("slow*", "slow"), ("other*", "host")]}


def submit_slow(conn: Conn, splits: int, **keys: Any) -> int:
    pins = [pb.Pin(pattern=pattern, device=name) for pattern, name in PINS["pins"]]
    reply = conn.submit(slow_graph(splits), pins=pins, **keys)
    assert {one.device: one.splits for one in reply.devices}["slow"] == splits
    return int(reply.handle)


LONG = 400  # splits: twenty seconds, unless something stops them
SOON_S = 10.0  # half of that, for a machine that does much else


def cancelled(conn: Conn) -> float:
    """Runs that were stopped; the bystander has none."""
    return conn.stats()['runs_total{end="cancelled"}']


def test_slow_graph_is_slow_and_right(address: str) -> None:
    with Conn(address) as conn:
        handle = submit_slow(conn, 3)
        begun = time.monotonic()
        out = conn.run(handle, struct.pack("<8f", *range(8)))
        assert time.monotonic() - begun > 0.14
        assert struct.unpack("<8f", out) == tuple(float(i) for i in range(8))
    with Conn(address) as after:
        served(after)


@pytest.mark.parametrize("end", ENDS)
def test_F01_gone_in_mid_run(address: str, end: str, daemon: Any) -> None:
    """It stops at the next split, not at the end."""
    conn = Conn(address)
    handle = submit_slow(conn, LONG)
    with Conn(address) as watcher:
        before = cancelled(watcher)
        conn.send(raw.RUN, pb.Run(handle=handle), bytes(32))
        conn.ping()  # the run has been taken
        time.sleep(0.12)  # and is somewhere in its middle
        ENDS[end](conn)
        raw.eventually(lambda: cancelled(watcher) == before + 1, SOON_S, "went on without its client")
        raw.eventually(lambda: watcher.stats()["graphs"] == 1, SOON_S)  # the bystander's
    with Conn(address) as after:
        served(after)


@pytest.mark.parametrize("end", ENDS)
def test_F01_B080_queued_runs_go_with_their_client(address: str, end: str) -> None:
    """Three minutes of runs: nobody waits for them, and none of them comes to its end."""
    conn = Conn(address)
    handle = submit_slow(conn, LONG)
    with Conn(address) as other:
        splits = 'device_splits_total{device="slow"}'
        before, stopped = other.stats()[splits], cancelled(other)
        for _ in range(10):
            conn.send(raw.RUN, pb.Run(handle=handle), bytes(32))
        conn.ping()  # all have been taken
        ENDS[end](conn)
        mine = submit_slow(other, 1)
        assert other.run(mine, bytes(32)) == bytes(32)
        raw.eventually(lambda: other.stats()["runs_in_flight"] <= 1, SOON_S)  # the bystander's
        assert cancelled(other) > stopped
        assert other.stats()[splits] - before == 1, "of 4 001 splits"
    with Conn(address) as after:
        served(after)


@pytest.mark.parametrize("end", ENDS)
def test_F01_gone_with_many_runs_in_flight(address: str, end: str) -> None:
    for _ in range(20):
        conn = Conn(address)
        handle = conn.submit(add_graph()).handle
        for _ in range(30):
            conn.send(raw.RUN, pb.Run(handle=handle), TWO)
        ENDS[end](conn)
    with Conn(address) as after:
        served(after)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_F01_gone_in_mid_frame(address: str, end: str, share: float) -> None:
    body = os.urandom(200000)
    message = pb.Run(handle=7).SerializeToString()
    frame = raw.header(raw.RUN, 5, len(message), len(body)) + message + body
    for _ in range(5):
        conn = Conn(address)
        conn.raw(frame[: int(len(frame) * share)])
        ENDS[end](conn)
    with Conn(address) as after:
        served(after)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("where", ["cpu1", "host", "slow"])
def test_F01_gone_in_an_upload(address: str, end: str, where: str) -> None:
    data = bytes(4 << 20)
    tensors = [("t", F32, [1 << 20], data)]
    message = pb.WeightsPut(
        name="up", total_bytes=len(data), placement=raw.rules([("*", where)])
    )
    for sent in (0, 100, 1 << 20, (4 << 20) - 1, 4 << 20):
        conn = Conn(address)
        call = conn.send(raw.PUT, message, raw.manifest(tensors).SerializeToString(), flags=MORE)
        conn.stream(call, data[:sent], last=sent == len(data))
        ENDS[end](conn)
    with Conn(address) as after:
        served(after)


@pytest.mark.parametrize("end", ENDS)
def test_F01_gone_while_a_long_reply_is_written(address: str, end: str) -> None:
    graph = Graph()
    x = graph.leaf(INPUT, F32, [16], "x")
    graph.node("REPEAT", F32, [4 << 20], (x,), output=True)
    for wait in (0.0, 0.02, 0.1):
        conn = Conn(address)
        handle = conn.submit(graph).handle
        for _ in range(3):
            conn.send(raw.RUN, pb.Run(handle=handle), bytes(64))
        time.sleep(wait)
        conn.socket.recv(1000)
        ENDS[end](conn)
    with Conn(address) as after:
        served(after)


@pytest.mark.parametrize("end", ENDS)
def test_F01_gone_while_reading_a_state(address: str, end: str) -> None:
    for where in ("cpu1", "slow", "host"):
        conn = Conn(address)
        alloc, _ = conn.call(
            raw.STATE_ALLOC, pb.StateAlloc(placement=raw.rules([("*", where)])),
            raw.manifest([("s", F32, [1 << 20], b"")]).SerializeToString(),
        )  # fmt: skip
        size = 4 << 20
        conn.send(raw.STATE_READ, pb.StateRead(handle=alloc.handle, bytes=size))
        call = conn.send(
            raw.STATE_WRITE, pb.StateWrite(handle=alloc.handle, bytes=size), b"", flags=MORE
        )
        conn.stream(call, bytes(2 << 20), last=False)
        ENDS[end](conn)
    with Conn(address) as after:
        served(after)


def test_F01_gone_while_its_state_is_written_by_a_run(address: str) -> None:
    graph = Graph()
    x = graph.leaf(INPUT, F32, [8], "x")
    s = graph.leaf(STATE, F32, [8], "s")
    total = graph.node("ADD", F32, [8], (x, s), name="slow0")
    graph.node("CPY", F32, [8], (total, s), view=(s, 0), output=True, name="slow1")
    for _ in range(5):
        conn = Conn(address)
        alloc, _ = conn.call(
            raw.STATE_ALLOC, pb.StateAlloc(placement=raw.rules([("*", "slow")])),
            raw.manifest([("s", F32, [8], b"")]).SerializeToString(),
        )  # fmt: skip
        handle = conn.submit(graph, states=[alloc.handle]).handle
        for _ in range(5):
            conn.send(raw.RUN, pb.Run(handle=handle), bytes(32))
        time.sleep(0.02)
        conn.close()
    with Conn(address) as after:
        served(after)


# ---- processes that are really killed ------------------------------------------------------------

CHILD = """
    import os, signal, sys, time
    sys.path.insert(0, {here!r})
    import raw
    from raw import Conn, add_graph, pb, header
    conn = Conn({address!r})
    handle = conn.submit(add_graph()).handle
    conn.run(handle, bytes(64))
    {action}
    print("ready", flush=True)
    while True:
        {loop}
"""

ACTIONS = {
    "mid-frame": ("conn.raw(header(raw.RUN, 99, 0, 100000) + bytes(50000))", "time.sleep(1)"),
    "mid-run": ("pass", "conn.run(handle, bytes(64))"),
    "flooding": ("pass", "conn.send(raw.RUN, pb.Run(handle=handle), bytes(64))"),
    "idle": ("pass", "time.sleep(1)"),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_F01_killed(daemon: Any, action: str) -> None:
    begin, loop = ACTIONS[action]
    source = textwrap.dedent(CHILD).format(here=str(HERE), address=daemon.address, action=begin, loop=loop)
    child = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        time.sleep(0.15)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        if child.stdout:
            child.stdout.close()
    with Conn(daemon.address) as after:
        served(after)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_F01_stopped_client_holds_up_nobody(daemon: Any) -> None:
    """SIGSTOP in the middle of everything; others go on while it stands."""
    begin, loop = ACTIONS["flooding"]
    source = textwrap.dedent(CHILD).format(here=str(HERE), address=daemon.address, action=begin, loop=loop)
    child = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGSTOP)
        with Conn(daemon.address) as conn:
            handle = conn.submit(add_graph()).handle
            for _ in range(100):
                assert conn.run(handle, TWO) == SUM
            assert stopped(child.pid), "it went on by itself"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        if child.stdout:
            child.stdout.close()
    with Conn(daemon.address) as after:
        served(after)


# ---- cancelling ----------------------------------------------------------------------------------


def test_F01_B081_cancelling_one_leaves_the_other(address: str) -> None:
    rounds = 300 if os.environ.get("HEADRACE_FULL") else 40
    with Conn(address) as keeper, Conn(address) as canceller:
        handle = keeper.submit(add_graph()).handle
        theirs = canceller.submit(add_graph()).handle
        for number in range(rounds):
            own = keeper.send(raw.RUN, pb.Run(handle=handle), TWO)
            run = canceller.send(raw.RUN, pb.Run(handle=theirs), TWO)
            canceller.send(raw.CANCEL, pb.Cancel(request_id=run))
            assert keeper.reply(own)[1] == SUM
            seen = {canceller.frame().call_id for _ in range(2)}
            assert run in seen and len(seen) == 2, number
    with Conn(address) as after:
        served(after)


def test_F01_cancel_stops_at_the_next_split(address: str) -> None:
    with Conn(address) as conn:
        handle = submit_slow(conn, LONG)
        run = conn.send(raw.RUN, pb.Run(handle=handle), bytes(32))
        time.sleep(0.1)
        begun = time.monotonic()
        reply, _ = conn.call(raw.CANCEL, pb.Cancel(request_id=run))
        assert reply.found
        with pytest.raises(raw.RawError) as caught:
            conn.reply(run)
        refused(caught.value, raw.CANCELLED, "CANCELLED")
        assert time.monotonic() - begun < SOON_S
        again, _ = conn.call(raw.CANCEL, pb.Cancel(request_id=run))
        assert not again.found
        out = conn.run(submit_slow(conn, 1), bytes(32))
        assert out == bytes(32)
    with Conn(address) as after:
        served(after)


def test_C26_B083_deadline_of_a_queued_run(address: str) -> None:
    """50 ms behind twenty seconds: answered in time, once, and never started."""
    with Conn(address) as conn:
        handle = submit_slow(conn, LONG, n_copies=1)
        first = conn.send(raw.RUN, pb.Run(handle=handle), bytes(32))
        late = [conn.send(raw.RUN, pb.Run(handle=handle), bytes(32), timeout_ms=50)
                for _ in range(3)]  # fmt: skip
        begun = time.monotonic()
        for call in late:
            with pytest.raises(raw.RawError) as caught:
                conn.reply(call)
            refused(caught.value, raw.DEADLINE, "DEADLINE")
        assert time.monotonic() - begun < SOON_S
        assert not conn.held, "they waited for the first one"
        assert conn.call(raw.CANCEL, pb.Cancel(request_id=first))[0].found
        with pytest.raises(raw.RawError) as caught:
            conn.reply(first)
        refused(caught.value, raw.CANCELLED, "CANCELLED")
        conn.ping()
        assert not conn.held, "a second reply"
        short = submit_slow(conn, 4, n_copies=1)
        runs = [conn.send(raw.RUN, pb.Run(handle=short), bytes(32), timeout_ms=ms) for ms in (0, 1)]
        assert conn.reply(runs[0])[1] == bytes(32)  # whatever becomes of the other
        with pytest.raises(raw.RawError) as caught:
            conn.reply(runs[1])
        refused(caught.value, raw.DEADLINE, "DEADLINE")
    with Conn(address) as after:
        served(after)


def test_C26_deadline_of_a_running_run(address: str) -> None:
    with Conn(address) as conn:
        handle = submit_slow(conn, LONG)
        begun = time.monotonic()
        error = conn.fails(raw.RUN, pb.Run(handle=handle), bytes(32), timeout_ms=120)
        refused(error, raw.DEADLINE, "DEADLINE")
        assert time.monotonic() - begun < SOON_S
        assert conn.run(submit_slow(conn, 1), bytes(32)) == bytes(32)
    with Conn(address) as after:
        served(after)
