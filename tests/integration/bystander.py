"""A client that does nothing wrong, while somebody else does.

In a thread and a session of its own it runs a graph whose results it can compute itself, with state
and weights, over and over, and uploads a small weight set with a digest now and then. check()
(called when it is left) says whether every result was right, and that work went on after the last look.
"""

from __future__ import annotations

import struct
import threading
import time
from types import TracebackType

import raw
from raw import F32, INPUT, STATE, WEIGHT, Conn, Graph, pb

COUNT = 64


def _graph() -> Graph:
    """out = (x + w) + s, s from a state, w from a weight set."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [COUNT], "x")
    w = graph.leaf(WEIGHT, F32, [COUNT], "w")
    s = graph.leaf(STATE, F32, [COUNT], "s")
    first = graph.node("ADD", F32, [COUNT], (x, w), name="first")
    graph.node("ADD", F32, [COUNT], (first, s), output=True, name="out")
    return graph


class Bystander:
    def __init__(self, address: str, where: str = "cpu1") -> None:
        """where: the device of its state."""
        self.conn = Conn(address, session="bystander")
        weights = [("w", F32, [COUNT], struct.pack(f"<{COUNT}f", *range(COUNT)))]
        self.set = self.conn.put("bystander", weights, raw.tree_digest(raw.contents(weights)))
        state = [("s", F32, [COUNT], b"")]
        self.state = self.conn.call(
            raw.STATE_ALLOC, pb.StateAlloc(placement=raw.rules([("*", where)])),
            raw.manifest(state).SerializeToString(),
        )[0].handle  # fmt: skip
        self.conn.call(
            raw.STATE_WRITE,
            pb.StateWrite(handle=self.state, tensor=0, offset=0, bytes=4 * COUNT),
            struct.pack(f"<{COUNT}f", *(1000.0 * i for i in range(COUNT))),
        )
        self.handle = self.conn.submit(
            _graph(), weights=[self.set.handle], states=[self.state]
        ).handle
        self.runs = 0
        self.slowest_s = 0.0
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _once(self) -> None:
        number = self.runs
        inputs = struct.pack(f"<{COUNT}f", *([float(number)] * COUNT))
        begun = time.monotonic()
        out = struct.unpack(f"<{COUNT}f", self.conn.run(self.handle, inputs))
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
        expected = tuple(float(number + i + 1000 * i) for i in range(COUNT))
        assert out == expected, f"run {number}: wrong result"
        if number % 50 == 0:
            data = [("t", F32, [256], struct.pack("<256f", *([float(number)] * 256)))]
            info = self.conn.put("small", data, raw.tree_digest(raw.contents(data)))
            self.conn.call(raw.DROP, pb.WeightsDrop(handle=info.handle))
        self.runs += 1

    def _work(self) -> None:
        try:
            while not self.stop.is_set():
                self._once()
                time.sleep(0.001)
        except BaseException as error:  # noqa: BLE001 - told by check()
            self.error = error

    def check(self) -> None:
        """Every result so far was right, and two more come."""
        before = self.runs
        end = time.monotonic() + raw.TIMEOUT_S
        while self.error is None and self.runs < before + 2 and time.monotonic() < end:
            time.sleep(0.002)
        if self.error is not None:
            raise AssertionError(f"the bystander met: {self.error!r}") from self.error
        assert self.runs >= before + 2, "the bystander does not get on"

    def __enter__(self) -> Bystander:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.check()
        finally:
            self.stop.set()
            self.thread.join(raw.TIMEOUT_S)
            self.conn.close()
