"""Connections that end at every byte of every message (HOSTILE F1): a second connection of a session says
the beginning of a request that would be fine, and is gone. What the session has stays as it was.

./check cuts at every few bytes, the long form at each.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import raw
from expect import SUM, TWO, served
from raw import END, F32, INPUT, MORE, STATE, WEIGHT, Conn, Graph, add_graph, pb

pytestmark = pytest.mark.usefixtures("guarded")

FULL = bool(os.environ.get("HEADRACE_FULL"))
STEPS = {"unix": 1 if FULL else 5, "tls": 1 if FULL else 29}
TENSORS = [("w", F32, [8], struct.pack("<8f", *range(8)))]
FLOATS = struct.pack("<8f", *range(8))


def bound_graph() -> Graph:
    """out = x + w + s"""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [8], "x")
    w = graph.leaf(WEIGHT, F32, [8], "w")
    s = graph.leaf(STATE, F32, [8], "s")
    total = graph.node("ADD", F32, [8], (x, w), name="first")
    graph.node("ADD", F32, [8], (total, s), output=True, name="out")
    return graph


class Owner:
    """The session's first connection, with one of everything."""

    def __init__(self, address: str) -> None:
        self.conn = Conn(address)
        self.token = self.conn.greeting.session_token
        self.weights = self.conn.put("owned", TENSORS).handle
        manifest = raw.manifest([("s", F32, [8], b"")]).SerializeToString()
        self.state = self.conn.call(raw.STATE_ALLOC, pb.StateAlloc(), manifest)[0].handle
        self.conn.call(
            raw.STATE_WRITE, pb.StateWrite(handle=self.state, offset=0, bytes=32), FLOATS
        )
        self.graph = self.conn.submit(
            bound_graph(), weights=[self.weights], states=[self.state]
        ).handle

    def whole(self) -> None:
        out = struct.unpack("<8f", self.conn.run(self.graph, FLOATS))
        assert out == tuple(3.0 * i for i in range(8))
        read = pb.StateRead(handle=self.state, offset=0, bytes=32)
        assert self.conn.call(raw.STATE_READ, read)[1] == FLOATS
        served(self.conn)


def frame(kind: int, message: Any = b"", body: bytes = b"", flags: int = END, call_id: int = 7,
          timeout_ms: int = 0, n_fds: int = 0) -> bytes:  # fmt: skip
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return raw.header(kind, call_id, len(data), len(body), flags, timeout_ms, n_fds) + data + body


def examples(owner: Owner) -> dict[int, list[bytes]]:
    """Of every request: frames that would be accepted."""
    submit = pb.Submit(weights=[owner.weights], states=[owner.state],
                       pins=[pb.Pin(pattern="first", device="cpu0")])  # fmt: skip
    body = bound_graph().encode().SerializeToString()
    contents = raw.contents(TENSORS)
    manifest = raw.manifest(TENSORS).SerializeToString()
    half = len(contents) // 2
    upload = (
        frame(raw.PUT, pb.WeightsPut(name="up", total_bytes=len(contents),
                                     digest=raw.tree_digest(contents)), manifest, MORE)
        + frame(raw.DATA, pb.Data(offset=0), contents[:half], MORE)
        + frame(raw.DATA, pb.Data(offset=half), contents[half:], END)
    )  # fmt: skip
    sequence = pb.Sequence()
    sequence.steps.add(handle=owner.graph)
    sequence.steps.add(handle=owner.graph).feeds.add(input=0, step=0, output=0)
    reserve = pb.Reserve(graphs=[pb.Submit(weights=[owner.weights], states=[owner.state],
                                           graph_bytes=len(body))])  # fmt: skip
    where = {"handle": owner.state, "tensor": 0, "offset": 0, "bytes": 32}
    found = {
        raw.HELLO: [],  # below: on connections that have not said it
        raw.PING: [frame(raw.PING, pb.Ping(cookie=1), b"a body")],
        raw.CANCEL: [frame(raw.CANCEL, pb.Cancel(request_id=99))],
        raw.CREDIT: [frame(raw.CREDIT, pb.Credit(bytes=1 << 20))],
        raw.DATA: [frame(raw.DATA, pb.Data(offset=5), b"data for nobody", MORE)],
        raw.DEVICES: [frame(raw.DEVICES)],
        raw.OPS: [frame(raw.OPS, b"", add_graph().encode().SerializeToString())],
        raw.QUERY: [frame(raw.QUERY, pb.WeightsQuery(digests=raw.tree_digest(contents) + bytes(32)))],
        raw.PUT: [upload],
        # Their descriptors never come: the whole frames are cut, too.
        raw.PUT_FD: [frame(raw.PUT_FD, pb.WeightsPut(name="fd", total_bytes=len(contents)), manifest,
                           END | raw.FDS, n_fds=1)],
        raw.REGION_ADD: [frame(raw.REGION_ADD, pb.RegionAdd(bytes=4096), b"", END | raw.FDS,
                               n_fds=1)],
        raw.REGION_DROP: [frame(raw.REGION_DROP, pb.RegionDrop(handle=5))],
        raw.LOAD: [frame(raw.LOAD, pb.WeightsLoad(path="nothing.gguf", name="x"))],
        raw.LIST: [frame(raw.LIST)],
        raw.DROP: [frame(raw.DROP, pb.WeightsDrop(handle=owner.weights))],
        raw.TENSORS: [frame(raw.TENSORS, pb.WeightsTensors(handle=owner.weights))],
        raw.PURGE: [frame(raw.PURGE)],
        raw.STATE_ALLOC: [frame(raw.STATE_ALLOC, pb.StateAlloc(), manifest)],
        raw.STATE_READ: [frame(raw.STATE_READ, pb.StateRead(**where))],
        raw.STATE_WRITE: [frame(raw.STATE_WRITE, pb.StateWrite(**where), FLOATS[::-1])],
        raw.STATE_SAVE: [frame(raw.STATE_SAVE, pb.StateSave(handle=owner.state))],
        raw.STATE_RESTORE: [frame(raw.STATE_RESTORE, pb.StateRestore(manifest_bytes=len(manifest)),
                                  manifest + contents)],
        raw.STATE_FORK: [frame(raw.STATE_FORK, pb.StateFork(handle=owner.state))],
        raw.STATE_FREE: [frame(raw.STATE_FREE, pb.StateFree(handle=owner.state))],
        raw.SUBMIT: [frame(raw.SUBMIT, submit, body)],
        raw.RESERVE: [frame(raw.RESERVE, reserve, body)],
        raw.EXPLAIN: [frame(raw.EXPLAIN, pb.Explain(handle=owner.graph))],
        raw.RELEASE: [frame(raw.RELEASE, pb.Release(handle=owner.graph))],
        raw.RUN: [frame(raw.RUN, pb.Run(handle=owner.graph), FLOATS, timeout_ms=1000)],
        raw.SEQUENCE: [frame(raw.SEQUENCE, sequence, FLOATS)],
        raw.SYNC: [frame(raw.SYNC)],
        raw.TAP: [frame(raw.TAP, pb.Tap(run=7, tap=0))],
        raw.STATS: [frame(raw.STATS)],
        QUOTA: [frame(QUOTA)],
        METRICS: [frame(METRICS)],
        TRACE: [frame(TRACE, pb.TraceAsk(latest_ms=1, spans_max=9))],
        raw.STATUS: [frame(raw.STATUS)],
        raw.RELOAD: [frame(raw.RELOAD)],
        raw.DRAIN: [frame(raw.DRAIN, pb.Drain(limit_ms=60000))],
        raw.EVICT: [frame(raw.EVICT, pb.Evict(what="uploads"))],
        raw.HEALTH: [frame(raw.HEALTH)],
        raw.SESSIONS: [frame(raw.SESSIONS, pb.Sessions(after=1))],
        raw.PLANS: [frame(raw.PLANS, pb.Plans(after_session=1, after_graph=1))],
        raw.QUOTAS: [frame(raw.QUOTAS, pb.Quotas(after=1))],
    }
    return found


QUOTA, TRACE, METRICS = 114, 115, 120
# Only the daemon sends them.
PUSHES = {raw.GOAWAY, 7}


def join(address: str, token: bytes) -> Conn:
    conn = Conn(address, hello=False)
    conn.call(raw.HELLO, pb.Hello(protocol_min=1, protocol_max=1, resume_token=token))
    return conn


def on_the_wire(conn: Conn, data: bytes) -> tuple[Any, bytes]:
    """The socket below, and what goes over it: records, behind TLS."""
    if hasattr(conn.socket, "sealed"):
        return conn.socket.plain, conn.socket.sealed(data)
    return conn.socket, data


@pytest.fixture
def owner(address: str) -> Iterator[Owner]:
    found = Owner(address)
    yield found
    found.conn.close()


def requests_of_the_daemon(address: str) -> set[int]:
    """Those of the protocol's numbers that are answered by a method."""
    text = (raw.ROOT / "proto" / "frame.h").read_text()
    numbers = {int(one) for one in re.findall(r"HR_FRAME_[A-Z_]+ = (\d+),", text) if int(one) < 128}
    found = set()
    for number in numbers - PUSHES - {raw.DATA, raw.HELLO, raw.CREDIT}:
        with Conn(address) as conn:
            call = conn.send(number, b"\xff")
            try:
                answer = conn.next_of(call)
            except raw.Closed:  # it wants descriptors
                found.add(number)
                continue
            if not (answer.flags & raw.ERROR and answer.error.reason == "MESSAGE"):
                found.add(number)
    return found


def test_F01_every_request_has_an_example(owner: Owner) -> None:
    missing = requests_of_the_daemon(owner.conn.address) - set(examples(owner))
    assert not missing, f"no example of requests {sorted(missing)}"
    owner.whole()


def test_F01_cut_at_every_byte_of_every_message(address: str, door: str, owner: Owner) -> None:
    step = STEPS[door]
    number = 0
    for wholes in examples(owner).values():
        for whole in wholes:
            size = len(whole) if door == "unix" else len(whole) + 22
            for cut in range(number % step, size, step):
                conn = join(address, owner.token)
                plain, data = on_the_wire(conn, whole)
                plain.sendall(data[: min(cut, len(data) - 1)])  # never whole
                if cut % 2:  # at once, and with a reset where there are resets
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                conn.close()
                number += 1
        owner.whole()


def test_F01_cut_at_every_byte_of_a_hello(address: str, door: str, owner: Owner) -> None:
    hello = pb.Hello(protocol_min=1, protocol_max=1, features=["progress"], client_name="cut",
                     session_name="cut", credentials=b"", resume_token=owner.token)  # fmt: skip
    whole = frame(raw.HELLO, hello)
    for cut in range(0, len(whole), STEPS[door]):
        with Conn(address, hello=False) as conn:
            plain, data = on_the_wire(conn, whole)
            plain.sendall(data[:cut])
    owner.whole()


def test_F01_cut_while_each_reply_is_on_its_way(address: str, owner: Owner) -> None:
    """The request is whole, and its client gone before the answer: the next one gets its own."""
    changing = {raw.DROP, raw.STATE_FREE, raw.RELEASE, raw.STATE_WRITE, raw.DRAIN}
    for kind, wholes in examples(owner).items():
        for whole in wholes if kind not in changing else ():
            for _ in range(5):
                conn = join(address, owner.token)
                conn.raw(whole)
                conn.close()
    raw.eventually(lambda: owner.conn.stats()["connections"] <= 3)
    owner.whole()
    assert owner.conn.run(owner.conn.submit(add_graph()).handle, TWO) == SUM
