"""Clients that do everything at once, drawn from a seed: requests of all kinds that nobody waits for, on shared
objects, cancelled, answered too early, twice or never, while an operator looks and evicts.

Each request that a connection sends gets exactly one end, and none is an error of the daemon's own.
"""

from __future__ import annotations

import os
import random
import select
import struct
from collections import Counter
from typing import Any

import raw
from descriptors import memfd, send_fd
from raw import F32, INPUT, MORE, STATE, WEIGHT, Conn, Graph, pb

WIDTH = 64
BYTES = 4 * WIDTH
WEIGHTS = [("w", F32, [WIDTH], struct.pack(f"<{WIDTH}f", *range(WIDTH)))]
ZEROES = bytes(2 * BYTES)


def stateful() -> Graph:
    """y = (x + w) + s, kept in s; a device for each of its nodes."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [WIDTH], "x")
    w = graph.leaf(WEIGHT, F32, [WIDTH], "w")
    s = graph.leaf(STATE, F32, [WIDTH], "s")
    first = graph.node("ADD", F32, [WIDTH], (x, w), name="a")
    y = graph.node("ADD", F32, [WIDTH], (first, s), name="b", output=True)
    graph.node("CPY", F32, [WIDTH], (y, s), view=(s, 0), output=True, name="c")
    return graph


def pins(random: random.Random, devices: list[str]) -> list[Any]:
    return [pb.Pin(pattern=name, device=random.choice(devices)) for name in "abc"]


class Mob:
    """One connection of it. The objects of its session are shared with those that joined it."""

    def __init__(self, address: str, seed: int, devices: list[str], first: Mob | None = None) -> None:
        self.random = random.Random(seed)
        self.devices = devices
        self.conn = Conn(address, session="mob")
        if first:
            self.conn.close()
            self.conn = joined(address, first)
        self.has_fds = address.startswith("unix:")
        self.open: dict[int, Any] = {}  # calls without an end, and the bytes that an upload owes
        self.ends: Counter[str] = Counter()
        conn = self.conn
        self.sets = [conn.put("mob", WEIGHTS, raw.tree_digest(raw.contents(WEIGHTS))).handle]
        manifest = raw.manifest([("s", F32, [WIDTH], b"")]).SerializeToString()
        self.states = [conn.call(raw.STATE_ALLOC, pb.StateAlloc(), manifest)[0].handle for _ in "12"]
        self.regions = [0]
        if self.has_fds:
            fd = memfd(bytes(4096))
            call = send_fd(conn, raw.REGION_ADD, pb.RegionAdd(bytes=4096, writable=True), b"", [fd])
            self.regions.append(conn.reply(call)[0].handle)
            os.close(fd)
        self.graphs = [self._submitted(taps) for taps in ([], [3, 4], [4, 5])]

    def _submitted(self, taps: list[int]) -> int:
        return int(
            self.conn.submit(
                stateful(), weights=self.sets[:1], states=self.states[:1], taps=taps,
                pins=pins(self.random, self.devices), n_copies=self.random.choice([0, 1, 3]),
            ).handle
        )  # fmt: skip

    # -- what it asks

    def ask(self) -> None:
        kinds = [self.run, self.run, self.sequence, self.cancel, self.cancel, self.state, self.state,
                 self.upload, self.submit, self.let_go, self.look, self.tap, self.region]  # fmt: skip
        self.random.choice(kinds)()

    def send(self, type: int, message: Any = b"", body: bytes = b"", owed: bytes = b"",
             flags: int = raw.END) -> None:  # fmt: skip
        late = self.random.choice([0, 0, 0, 0, 1, 5])
        call = self.conn.send(type, message, body, flags=flags, timeout_ms=late)
        self.open[call] = owed

    def _places(self) -> dict[str, int]:
        """Regions for inputs, outputs, both or neither, at times where nothing fits."""
        found = {}
        if self.random.random() < 0.4 and (region := self.random.choice(self.regions)):
            found.update(input_region=region, input_offset=self.random.choice([0, 256, 4090]))
        if self.random.random() < 0.4 and (region := self.random.choice(self.regions)):
            found.update(output_region=region, output_offset=self.random.choice([512, 3072, 4096]))
        return found

    def run(self) -> None:
        where = self._places()
        message = pb.Run(handle=self.random.choice(self.graphs), priority=self.random.randrange(-3, 4),
                         observe=self.random.random() < 0.5, trace=self.random.random() < 0.3, **where)  # fmt: skip
        self.send(raw.RUN, message, b"" if "input_region" in where else ZEROES[:BYTES])

    def sequence(self) -> None:
        count, where = self.random.randrange(1, 5), self._places()
        steps = [pb.Step(handle=self.random.choice(self.graphs)) for _ in range(count)]
        for number in range(1, count):
            if fed := self.random.random() < 0.5:
                steps[number].feeds.add(input=0, step=number - int(fed), output=0)
        body = b"".join(b"" if step.feeds else ZEROES[:BYTES] for step in steps)
        message = pb.Sequence(steps=steps, each=self.random.random() < 0.3, **where)
        self.send(raw.SEQUENCE, message, b"" if "input_region" in where else body)

    def cancel(self) -> None:
        if self.open:
            self.send(raw.CANCEL, pb.Cancel(request_id=self.random.choice(list(self.open))))

    def state(self) -> None:
        handle = self.random.choice(self.states)
        kind = self.random.randrange(5)
        if kind == 0:
            self.send(raw.STATE_READ, pb.StateRead(handle=handle, bytes=BYTES))
        elif kind == 1:
            self.send(raw.STATE_WRITE, pb.StateWrite(handle=handle, bytes=BYTES), ZEROES[:BYTES])
        elif kind == 2:
            self.send(raw.STATE_SAVE, pb.StateSave(handle=handle))
        else:
            self.send(raw.STATE_FORK, pb.StateFork(handle=handle))

    def upload(self) -> None:
        """Whole, with a bit that is wrong, or never sent: of one digest, and of others."""
        data = raw.contents(WEIGHTS) if self.random.random() < 0.6 else self.random.randbytes(BYTES)
        tensors = [("w", F32, [WIDTH], data)]
        digest = raw.tree_digest(data)
        owed = self.random.choice([data, data, bytes(len(data)), b""])
        body = raw.manifest(tensors).SerializeToString()
        share = self.random.randrange(2)
        place = raw.rules([("*", self.random.choice(self.devices))])
        message = pb.WeightsPut(name="mob", total_bytes=len(data), digest=digest, share=share,
                                placement=place, resume=self.random.random() < 0.5)  # fmt: skip
        self.send(raw.PUT, message, body, owed, flags=MORE)

    def submit(self) -> None:
        graph = stateful().encode().SerializeToString()
        sets, states = self.random.choice(self.sets), self.random.choice(self.states)
        message = pb.Submit(digest=raw.hashlib.sha256(graph).digest(), weights=[sets], states=[states],
                            pins=pins(self.random, self.devices), taps=self.random.choice([[], [3]]))  # fmt: skip
        self.send(raw.SUBMIT, message, graph)

    def let_go(self) -> None:
        """What others may be using at this moment. What is left keeps the rest going."""
        kind = self.random.randrange(3)
        if kind == 0 and len(self.graphs) > 2:
            self.send(raw.RELEASE, pb.Release(handle=self._taken(self.graphs)))
        elif kind == 1 and len(self.states) > 2:
            self.send(raw.STATE_FREE, pb.StateFree(handle=self._taken(self.states)))
        elif len(self.sets) > 1:
            self.send(raw.DROP, pb.WeightsDrop(handle=self._taken(self.sets)))

    def _taken(self, handles: list[int]) -> int:
        """A handle that is used on for a while, although it has gone, at times."""
        one = self.random.choice(handles)
        if self.random.random() < 0.8:
            handles.remove(one)
        return one

    def look(self) -> None:
        kind, message = self.random.choice([
            (raw.EXPLAIN, pb.Explain(handle=self.random.choice(self.graphs))),
            (raw.QUERY, pb.WeightsQuery(digests=raw.tree_digest(raw.contents(WEIGHTS)))),
            (raw.LIST, pb.WeightsList()), (raw.TENSORS, pb.WeightsTensors(handle=self.sets[0])),
            (raw.SYNC, b""), (raw.STATS, b""), (raw.QUOTA, b""), (raw.SESSIONS, b""),
            (raw.PLANS, b""), (raw.QUOTAS, b""), (raw.HEALTH, b""), (raw.TRACE, pb.TraceAsk(own=True)),
            (raw.PURGE, b""), (raw.METRICS, b""), (raw.STATUS, b""),
            (raw.EVICT, pb.Evict(what=self.random.choice(["plans", "uploads", "experts", "sessions"]))),
        ])  # fmt: skip
        self.send(kind, message)

    def tap(self) -> None:
        """An answer to what may not wait, or not there."""
        if self.open:
            run = self.random.choice(list(self.open))
            self.send(raw.TAP, pb.Tap(run=run, tap=self.random.randrange(3)))

    def region(self) -> None:
        if not self.has_fds:
            return
        if self.random.random() < 0.5 and len(self.regions) > 2:
            self.send(raw.REGION_DROP, pb.RegionDrop(handle=self._taken(self.regions[1:])))
            return
        fd = memfd(bytes(4096) if self.random.random() < 0.8 else bytes(100))
        call = send_fd(self.conn, raw.REGION_ADD, pb.RegionAdd(bytes=4096, writable=True), b"", [fd])
        self.open[call] = b""
        os.close(fd)

    # -- what it hears

    def hear(self, timeout_s: float) -> bool:
        """The frames that have come, or the first that comes. False: none did."""
        heard = False
        while self._is_readable(0 if heard else timeout_s):
            self._take(self.conn.frame())
            heard = True
        return heard

    def _is_readable(self, timeout_s: float) -> bool:
        pending = getattr(self.conn.socket, "pending", None)
        if pending and pending():
            return True
        return bool(select.select([self.conn.socket.fileno()], [], [], timeout_s)[0])

    def _take(self, frame: raw.Frame) -> None:
        call = frame.call_id
        if call >> 63 or frame.type in (raw.GOAWAY, raw.PROGRESS):
            return
        if frame.type == raw.TAP:
            if self.random.random() < 0.9:
                tap = pb.TapPush.FromString(frame.message).tap
                answer = pb.Tap(run=call, tap=tap, stop=self.random.random() < 0.1)
                self.conn.send(raw.TAP, answer, flags=raw.END | raw.NOREPLY)
            return
        if frame.type == raw.CREDIT:
            credit, owed = pb.Credit.FromString(frame.message), self.open.get(call, b"")
            if owed:
                part = owed[credit.offset : credit.offset + credit.bytes]
                self.conn.send(raw.DATA, pb.Data(offset=credit.offset), part, call_id=call, flags=MORE)
            return
        assert call in self.open, f"an end for {call}, which has had one: {frame}"
        if frame.flags & raw.ERROR:
            error = frame.error
            assert error.code != raw.INTERNAL, error
            self.ends[f"{error.code} {error.reason}"] += 1
        elif frame.flags & MORE:
            return
        else:
            self.ends["0"] += 1
            self._keep(frame)
        del self.open[call]

    def _keep(self, frame: raw.Frame) -> None:
        lists = {raw.SUBMIT: self.graphs, raw.PUT: self.sets, raw.STATE_FORK: self.states,
                 raw.REGION_ADD: self.regions}  # fmt: skip
        type = frame.type & ~raw.REPLY
        if type in lists:
            handle = raw.REPLIES[type].FromString(frame.message)
            lists[type].append(handle.set.handle if type == raw.PUT else handle.handle)

    def riot(self, requests: int) -> None:
        for _ in range(requests):
            self.ask()
            self.hear(self.random.choice([0, 0, 0.001]))

    def settle(self, timeout_s: float = raw.TIMEOUT_S) -> None:
        """Cancels what is left, until everything has had its one end."""
        patience = raw.Patience(timeout_s)
        asked: set[int] = set()
        while self.open:
            for call in [one for one in self.open if one not in asked]:
                asked.add(call)
                cancel = self.conn.send(raw.CANCEL, pb.Cancel(request_id=call))
                asked.add(cancel)
                self.open[cancel] = b""
            if not self.hear(0.05):
                assert patience.lasts(), f"without an end: {self.open}"


def joined(address: str, first: Mob) -> Conn:
    conn = Conn(address, hello=False)
    hello = pb.Hello(protocol_min=1, protocol_max=1, session_name="mob",
                     resume_token=first.conn.greeting.session_token)  # fmt: skip
    conn.greeting, _ = conn.call(raw.HELLO, hello)
    conn.body_max = conn.greeting.limits.body_bytes_max
    return conn

