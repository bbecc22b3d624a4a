"""Calls that fail (HOSTILE F3, F4): the n-th allocation and the n-th call to the system, for every n of a
session that uses everything. The daemon lives, every answer is right or a typed error, weights that were
acknowledged stay right, and nothing is left when the session has gone.

./check tries every n-th of them, the long form all.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import raw
from baseline import held
from expect import SUM, TWO, refused, served
from inject import EVERY, SHORT, Injection
from raw import F32, INPUT, STATE, WEIGHT, Conn, Graph, add_graph, pb
from run_daemon import Daemon, device
from descriptors import SIZE_SEALS, WRITE, memfd, send_fd
from weights_tools import KEY, gguf

FULL = bool(os.environ.get("HEADRACE_FULL"))
WEIGHTS = [("w", F32, [1000], struct.pack("<1000f", *range(1000))),
           ("v", F32, [8], struct.pack("<8f", *range(8)))]  # fmt: skip
CONTENTS = raw.contents(WEIGHTS)
DIGEST = raw.tree_digest(CONTENTS)


def reader(name: str, count: int) -> Graph:
    """out = x + weight"""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [count], "x")
    w = graph.leaf(WEIGHT, F32, [count], name)
    graph.node("ADD", F32, [count], (x, w), output=True)
    return graph


def stateful() -> Graph:
    """s += x, and out = s"""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [8], "x")
    s = graph.leaf(STATE, F32, [8], "s")
    total = graph.node("ADD", F32, [8], (x, s), name="sum")
    written = graph.node("CPY", F32, [8], (total, s), view=(s, 0), name="write")
    graph.node("CONT", F32, [8], (written,), output=True)
    return graph


class Session:
    """A fixed conversation that uses all services. Each step is right or a typed error."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.errors: list[raw.RawError] = []

    def go(self) -> None:
        try:
            with Conn(self.address) as conn:
                self._all(conn)
        except TimeoutError:
            raise AssertionError("no answer at all") from None
        except (raw.Closed, raw.RawError, OSError):  # the hello's error; an end that the peer made
            pass

    def _try(self, function: Any, *args: Any, **keys: Any) -> Any:
        try:
            return function(*args, **keys)
        except raw.RawError as error:
            refused(error, error.code, error.reason)
            # A descriptor that cannot be examined is no memfd.
            nobodys = error.code not in (raw.INVALID, raw.PERMISSION)
            assert nobodys or error.reason == "NOT_MEMFD", error
            self.errors.append(error)
            return None

    def _all(self, conn: Conn) -> None:
        self._try(conn.ping)
        self._graphs(conn)
        for placement in (None, [("*", "cpu0")]):
            self._weights(conn, placement)
        self._files(conn)
        if self.address.startswith("unix"):
            self._passed(conn)
        self._states(conn)
        self._sequence(conn)
        self._try(conn.call, raw.DEVICES)
        self._try(conn.call, raw.LIST)
        self._try(conn.stats)
        self._try(conn.call, raw.SYNC)

    def _graphs(self, conn: Conn) -> None:
        reply = self._try(conn.submit, add_graph())
        if not reply:
            return
        for trace in (False, True):
            out = self._try(conn.call, raw.RUN, pb.Run(handle=reply.handle, trace=trace), TWO)
            assert out is None or out[1][:32] == SUM
        self._try(conn.call, raw.EXPLAIN, pb.Explain(handle=reply.handle))
        self._try(conn.call, raw.RELEASE, pb.Release(handle=reply.handle))

    def _weights(self, conn: Conn, placement: Any) -> None:
        info = self._try(conn.put, "set", WEIGHTS, DIGEST, placement)
        if not info:
            return
        assert info.digest == DIGEST
        self._read(conn, info.handle)
        self._try(conn.call, raw.DROP, pb.WeightsDrop(handle=info.handle))

    def _files(self, conn: Conn) -> None:
        loaded = self._try(conn.call, raw.LOAD, pb.WeightsLoad(path="good.gguf"))
        if loaded:
            self._read(conn, loaded[0].set.handle)

    def _passed(self, conn: Conn) -> None:
        """Contents in a memfd, inputs and outputs of a run in regions."""
        seals = SIZE_SEALS | WRITE
        with_contents = memfd(CONTENTS, seals)
        shared = memfd(TWO + bytes(4096 - len(TWO)))
        try:
            message = pb.WeightsPut(name="passed", total_bytes=len(CONTENTS), digest=DIGEST)
            manifest = raw.manifest(WEIGHTS).SerializeToString()
            call = send_fd(conn, raw.PUT_FD, message, manifest, [with_contents])
            put = self._try(conn.reply, call)
            if put:
                self._read(conn, put[0].set.handle)
            message = pb.RegionAdd(bytes=4096, writable=True)
            region = self._try(conn.reply, send_fd(conn, raw.REGION_ADD, message, b"", [shared]))
            reply = self._try(conn.submit, add_graph())
            if region and reply:
                run = pb.Run(handle=reply.handle, input_region=region[0].handle)
                out = self._try(conn.call, raw.RUN, run)
                assert out is None or out[1] == SUM
        finally:
            os.close(with_contents)
            os.close(shared)

    def _read(self, conn: Conn, handle: int) -> None:
        reply = self._try(conn.submit, reader("w", 1000), weights=[handle])
        if reply:
            out = self._try(conn.run, reply.handle, bytes(4000))
            assert out is None or out == WEIGHTS[0][3], "weights that were acknowledged are wrong"

    def _states(self, conn: Conn) -> None:
        manifest = raw.manifest([("s", F32, [8], b"")]).SerializeToString()
        placed = pb.StateAlloc(placement=raw.rules([("*", "cpu1")]))
        alloc = self._try(conn.call, raw.STATE_ALLOC, placed, manifest)
        if not alloc:
            return
        handle = alloc[0].handle
        data = struct.pack("<8f", *range(8))
        write = pb.StateWrite(handle=handle, tensor=0, offset=0, bytes=32)
        if not self._try(conn.call, raw.STATE_WRITE, write, data):
            return
        read = self._try(conn.call, raw.STATE_READ, pb.StateRead(handle=handle, bytes=32))
        assert read is None or read[1] == data
        reply = self._try(conn.submit, stateful(), states=[handle])
        if reply:
            out = self._try(conn.run, reply.handle, data)
            assert out is None or out == struct.pack("<8f", *(2.0 * i for i in range(8)))
        self._try(conn.call, raw.STATE_FREE, pb.StateFree(handle=handle))

    def _sequence(self, conn: Conn) -> None:
        reply = self._try(conn.submit, add_graph())
        if not reply:
            return
        message = pb.Sequence()
        message.steps.add(handle=reply.handle)
        message.steps.add(handle=reply.handle).feeds.add(input=0, step=0, output=0)
        out = self._try(conn.call, raw.SEQUENCE, message, TWO + bytes(32))
        assert out is None or out[1] == SUM + SUM


class Rig:
    """A daemon under injection, and a client that keeps weights in it."""

    def __init__(self, injection: Injection, daemon: Daemon, address: str) -> None:
        self.injection, self.daemon, self.address = injection, daemon, address
        self.keeper = Conn(daemon.address)
        self.kept = self.keeper.put("kept", WEIGHTS, DIGEST, [("w", "cpu0")]).handle
        self.graph = self.keeper.submit(reader("w", 1000), weights=[self.kept]).handle
        for _ in range(3):
            Session(address).go()  # caches are warm
        self.before = self.quiet()

    def whole(self) -> None:
        """The daemon lives; the keeper's weights are right, in the run and from the store."""
        assert self.daemon.process.poll() is None, self.daemon.last_words()
        assert self.keeper.run(self.graph, bytes(4000)) == WEIGHTS[0][3]
        served(self.keeper)

    def quiet(self) -> dict[str, float]:
        """What the daemon holds when everything has settled."""
        looks: list[dict[str, float]] = [held(self.daemon)]

        def settled() -> bool:
            looks.append(held(self.daemon))
            return looks[-1] == looks[-2]

        raw.eventually(settled)
        return looks[-1]

    def session(self, kind: str, countdown: int) -> int:
        """One session with the n-th call failing; how many failed."""
        session = Session(self.address)
        self.injection.arm(kind, countdown)
        try:
            session.go()
        finally:
            self.injection.disarm()
        self.whole()
        if kind == "malloc":
            for error in session.errors:
                assert error.reason in ("EXHAUSTED", "DEVICE_MEMORY", "HOST_MEMORY"), error
                refused(error, raw.EXHAUSTED, error.reason)
        return self.injection.fired()

    def nothing_is_left(self) -> None:
        raw.eventually(lambda: self.quiet() == self.before, 5.0)


@pytest.fixture(scope="module")
def rig(
    door: str, start_behind: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("inject")
    (folder / "good.gguf").write_bytes(gguf(WEIGHTS, KEY, 1))
    injection = Injection(folder)
    daemon = start_behind(
        door,
        devices=[
            device("cpu0", threads=1, memory="isolated"),
            device("cpu1", threads=1, memory="isolated"),
            device("host", threads=1),
        ],
        models=[folder],
        variables=injection.variables,
    )
    found = Rig(injection, daemon, daemon.tls_address or daemon.address)
    yield found
    found.keeper.close()
    daemon.stop()


@pytest.fixture
def guarded(rig: Rig) -> Iterator[None]:
    """As everywhere here, but with the keeper as bystander: whoever works beside the session would
    meet the failures that are meant for it."""
    yield
    rig.whole()
    rig.nothing_is_left()


pytestmark = pytest.mark.usefixtures("guarded")

# Of a session's calls one in so many fails in ./check: the first ten all; a handshake allocates much.
STEPS = {"malloc": 13, "recv": 2, "send": 2, "accept": 1, "mmap": 1, "open": 1, "write": 2,
         "read": 2, "thread": 1}  # fmt: skip


def every_call(rig: Rig, kind: str) -> None:
    """n = 1, 2, ... until a whole session meets no failure."""
    n, step = 1, STEPS[kind]
    if kind == "malloc" and rig.address.startswith("tls"):
        step *= 6
    while rig.session(kind, n):
        n += 1 if FULL or n < 10 else step
        assert n < 100000, "there is no end of it"
    last = Session(rig.address)
    last.go()
    assert not last.errors, last.errors
    rig.nothing_is_left()


def test_F03_the_nth_allocation(rig: Rig) -> None:
    blocks, size = rig.injection.live()
    every_call(rig, "malloc")
    for _ in range(3):
        Session(rig.address).go()
    rig.nothing_is_left()
    more = rig.injection.live()
    assert more[0] - blocks <= 64 and more[1] - size <= 1 << 20, "memory that nobody gave back"


@pytest.mark.parametrize("kind", [kind for kind in STEPS if kind != "malloc"])
def test_F04_the_nth_call(rig: Rig, kind: str) -> None:
    every_call(rig, kind)


@pytest.mark.parametrize("kind", ["recv", "send", "accept", "read", "write"])
@pytest.mark.parametrize("period", [2, 3, 7])
def test_F04_interrupted_all_the_time(rig: Rig, kind: str, period: int) -> None:
    """Every second call ends with EINTR: nobody notices."""
    rig.injection.arm(kind, 1, errno.EINTR, EVERY, period)
    try:
        session = Session(rig.address)
        session.go()
        with Conn(rig.address) as conn:
            served(conn)
    finally:
        rig.injection.disarm()
    assert not session.errors
    rig.whole()
    rig.nothing_is_left()


@pytest.mark.parametrize("kind", ["recv", "send"])
@pytest.mark.parametrize("mode", ["one byte", "not now"])
def test_F04_sockets_that_move_little(rig: Rig, kind: str, mode: str) -> None:
    """One byte at a time, and EAGAIN every other time: everything still comes through."""
    if mode == "one byte":
        rig.injection.arm(kind, 1, 0, SHORT)
    else:
        rig.injection.arm(kind, 1, errno.EAGAIN, EVERY, 2)
    try:
        session = Session(rig.address)
        session.go()
        with Conn(rig.address) as conn:
            served(conn)
    finally:
        rig.injection.disarm()
    assert rig.injection.fired() > 0
    assert not session.errors
    rig.whole()
    rig.nothing_is_left()
