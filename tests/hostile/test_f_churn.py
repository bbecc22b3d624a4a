"""A soak (HOSTILE F1): clients come, upload, plan, run, cancel and die, over and over; the daemon's
memory and descriptors stay flat. Some seconds in ./check, minutes in the long form.
"""

from __future__ import annotations

import os
import random
import socket
import statistics
import struct
from pathlib import Path
from typing import Any

import pytest
import raw
from devices import has_address_sanitizer
from expect import SUM, TWO, refused, served
from raw import F32, INPUT, MORE, STATE, Conn, Graph, add_graph, pb

pytestmark = pytest.mark.usefixtures("guarded")

FULL = bool(os.environ.get("HEADRACE_FULL"))
WARM, ROUNDS = (300, 12000) if FULL else (40, 160)
PAGE = os.sysconf("SC_PAGESIZE")


def stateful(size: int) -> Graph:
    graph = Graph()
    x = graph.leaf(INPUT, F32, [size], "x")
    s = graph.leaf(STATE, F32, [size], "s")
    total = graph.node("ADD", F32, [size], (x, s), name="sum")
    graph.node("CPY", F32, [size], (total, s), view=(s, 0), output=True, name="write")
    return graph


class Churn:
    """One round after the other, the same ones for the same seed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.random = random.Random(1)

    def round(self) -> None:
        conn = Conn(self.address)
        for work in self.random.sample(self.works(), k=3):
            work(conn)
        if self.random.random() < 0.3:
            self._reset(conn)
        conn.close()

    def works(self) -> list[Any]:
        return [self.upload, self.half_an_upload, self.plan, self.run_and_cancel, self.states,
                self.flood, self.half_a_frame]  # fmt: skip

    def _reset(self, conn: Conn) -> None:
        conn.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def upload(self, conn: Conn) -> None:
        floats = self.random.choice([100, 5000, 60000])
        tensors = [("w", F32, [floats], self.random.randbytes(4 * floats))]
        where = self.random.choice(["cpu0", "cpu1", "host"])
        info = conn.put("churn", tensors, raw.tree_digest(raw.contents(tensors)), [("*", where)])
        if self.random.random() < 0.5:
            conn.call(raw.DROP, pb.WeightsDrop(handle=info.handle))

    def half_an_upload(self, conn: Conn) -> None:
        tensors = [("w", F32, [50000], bytes(200000))]
        message = pb.WeightsPut(name="half", total_bytes=200000)
        call = conn.send(raw.PUT, message, raw.manifest(tensors).SerializeToString(), flags=MORE)
        conn.stream(call, bytes(100000), last=False)

    def plan(self, conn: Conn) -> None:
        size = self.random.randrange(1, 400)
        pins = [pb.Pin(pattern="sum*", device=self.random.choice(["cpu0", "cpu1"]))]
        handle = conn.submit(add_graph(size), pins=pins).handle
        data = struct.pack(f"<{2 * size}f", *([1.0] * size + [2.0] * size))
        assert conn.run(handle, data) == struct.pack(f"<{size}f", *([3.0] * size))

    def run_and_cancel(self, conn: Conn) -> None:
        handle = conn.submit(add_graph()).handle
        for _ in range(4):
            run = conn.send(raw.RUN, pb.Run(handle=handle), TWO)
            conn.send(raw.CANCEL, pb.Cancel(request_id=run), flags=raw.END | raw.NOREPLY)
            frame = conn.next_of(run)
            if frame.flags & raw.ERROR:
                refused(frame, raw.CANCELLED, "CANCELLED")
            else:
                assert frame.body == SUM

    def states(self, conn: Conn) -> None:
        size = self.random.choice([8, 1000])
        manifest = raw.manifest([("s", F32, [size], b"")]).SerializeToString()
        state = conn.call(raw.STATE_ALLOC, pb.StateAlloc(), manifest)[0].handle
        handle = conn.submit(stateful(size), states=[state]).handle
        ones = struct.pack(f"<{size}f", *([1.0] * size))
        conn.run(handle, ones)
        assert conn.run(handle, ones) == struct.pack(f"<{size}f", *([2.0] * size))

    def flood(self, conn: Conn) -> None:
        handle = conn.submit(add_graph()).handle
        for _ in range(20):
            conn.send(raw.RUN, pb.Run(handle=handle), TWO)

    def half_a_frame(self, conn: Conn) -> None:
        other = Conn(self.address)
        other.raw(raw.header(raw.RUN, 9, 0, 100000) + bytes(50000))
        other.close()


def memory(daemon: Any) -> float:
    """MiB that are resident."""
    pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1])
    return pages * PAGE / (1 << 20)


def test_F01_churn_leaves_memory_and_descriptors_flat(address: str, daemon: Any) -> None:
    churn = Churn(address)
    for _ in range(WARM):
        churn.round()
    looks = []
    for number in range(ROUNDS):
        churn.round()
        if number % (ROUNDS // 40) == 0:
            looks.append(memory(daemon))
    third = len(looks) // 3
    early, late = statistics.median(looks[:third]), statistics.median(looks[-third:])
    # The address sanitizer keeps what is freed for a while, and looks for leaks itself at the end.
    assert late - early < 4.0 or has_address_sanitizer(daemon.process.pid), (
        f"memory grows: {early:.1f} to {late:.1f} MiB in {ROUNDS} rounds"
    )
    with Conn(address) as conn:
        served(conn)
