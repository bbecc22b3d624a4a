"""A daemon that is ended and started again with 256 MiB of weights left with its manager
(tests/integration/manager.py): how long until it is ready, beside one that has nothing and to which the weights are
sent; what a client sees."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

for folder in ("tests/tools", "tests/integration", "client/python"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / folder))

import numpy as np  # noqa: E402
from manager import Manager  # noqa: E402
from rows import Row, is_quick  # noqa: E402
from run_daemon import device  # noqa: E402

import headrace  # noqa: E402

MIB = 1 << 20
BYTES = 256 * MIB
ENDS = (10, 5)  # kills, restarts
DEVICES = (device("cpu0", threads=1),)


def cold(data: dict[str, np.ndarray]) -> float:
    """From the start of a daemon that has nothing to the last byte of its weights, verified."""
    with Manager(devices=DEVICES) as manager:
        manager.stop()
        began = time.monotonic()
        manager.start()
        with headrace.connect(manager.address) as client:
            client.put("weights", data)
        return time.monotonic() - began


class Callers:
    """Connects all the time, over all ends."""

    def __init__(self, manager: Manager) -> None:
        self._address = manager.address.removeprefix("unix:")
        self._over = threading.Event()
        self.connects = self.refused = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        import socket

        while not self._over.is_set():
            with socket.socket(socket.AF_UNIX) as one:
                self.connects += 1
                try:
                    one.connect(self._address)
                except OSError:
                    self.refused += 1
            time.sleep(0.0002)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def run() -> list[Row]:
    data = {"w": np.random.default_rng(1).standard_normal(BYTES // 4, np.float32)}
    ones = np.ones(8, np.float32)
    ready: dict[str, list[float]] = {"kill": [], "restart": []}
    gaps: dict[str, list[float]] = {"kill": [], "restart": []}
    with Manager(devices=DEVICES) as manager, headrace.connect(manager.address) as client:
        weights = client.put("weights", data)
        graph = headrace.Graph()
        x, w = graph.input("x", (8,)), graph.weight("w", data["w"].shape)
        graph.output(graph.add(x, graph.view(w, (8,))))
        handle = client.submit(graph, weights=[weights])
        right = data["w"][:8] + 1
        assert np.array_equal(handle.run({"x": ones})[0], right)
        callers = Callers(manager)
        ends: list[tuple[str, Callable[[], object]]] = []
        kills, restarts = (2, 1) if is_quick() else ENDS
        ends += [("kill", manager.kill)] * kills + [("restart", manager.stop)] * restarts
        try:
            for name, end in ends:
                began = time.monotonic()
                end()
                ready[name].append(manager.start())
                # The client's next run is one that it sends, finds no answer for, and sends again.
                assert np.array_equal(handle.run({"x": ones})[0], right)
                gaps[name].append(time.monotonic() - began)
                assert client.stats().value("weight_bytes_hashed_total") == 0
        finally:
            callers.end()
    without = median(cold(data) for _ in range(1 if is_quick() else 3))
    rows = [
        Row(f"ready after {name}, 256 MiB kept, worst of {len(ready[name])}", max(ready[name]) * 1e3,
            "ms", goal="<= 100")
        for name in ready
    ]  # fmt: skip
    rows += [
        Row(f"from {name} to the client's next result", median(gaps[name]) * 1e3, "ms",
            "cold start and upload", without * 1e3)
        for name in gaps
    ]  # fmt: skip
    rows.append(Row(f"refused of {callers.connects} connects", callers.refused, "", goal="<= 0"))
    return rows
