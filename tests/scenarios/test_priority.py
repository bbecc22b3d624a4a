"""Runs of several sessions on one busy device: who comes first, and that all come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
from run_daemon import device


def doubling() -> headrace.Graph:
    g = headrace.Graph()
    x = g.input("x", (4,))
    g.output(g.add(x, x), "y")
    return g


@pytest.fixture
def busy(launch: Callable[..., Any]) -> Any:
    """One device that takes 10 ms a run, one run at a time."""
    return launch(
        devices=[device("cpu0", threads=1, delay="10ms"), device("host", threads=1)],
        sections={"limits": {"device_runs": 1}},
    )


class Worker:
    """A session that runs one thing after the other and notes when each was over."""

    def __init__(self, address: str, ends: list[str], name: str, priority: int) -> None:
        self.client = headrace.connect(address)
        self.handle = self.client.submit(doubling(), pins={"*": "cpu0"})
        self.ends, self.name, self.priority = ends, name, priority

    def start(self, count: int, value: float) -> threading.Thread:
        def work() -> None:
            for i in range(count):
                data = np.full(4, value + i, np.float32)
                out = self.handle.run({"x": data}, priority=self.priority)["y"]
                assert np.array_equal(out, data + data)
                self.ends.append(self.name)

        thread = threading.Thread(target=work)
        thread.start()
        return thread


def test_higher_priority_goes_first(busy: Any) -> None:
    """Five sessions fill the device; the one of high priority gets in between all the time."""
    ends: list[str] = []
    low = [Worker(busy.address, ends, f"low{i}", -1) for i in range(5)]
    high = Worker(busy.address, ends, "high", 7)
    threads = [worker.start(10, 10.0 * i) for i, worker in enumerate(low)]
    threads.append(high.start(10, 100))
    for thread in threads:
        thread.join()
    assert len(ends) == 60
    # Every other run is one of the high ones as long as there are any.
    assert [i for i, name in enumerate(ends) if name == "high"][-1] < 45
    assert high.client.stats().value("engine_device_waits_total") > 0
    for worker in [*low, high]:
        worker.client.close()


def test_nobody_starves(busy: Any) -> None:
    """Three sessions of high priority keep the device busy; the low one is served all the same."""
    ends: list[str] = []
    high = [Worker(busy.address, ends, f"high{i}", 1000) for i in range(3)]
    low = Worker(busy.address, ends, "low", -1000)
    threads = [worker.start(40, 10.0 * i) for i, worker in enumerate(high)]
    threads.append(low.start(3, 50))
    for thread in threads:
        thread.join()
    positions = [i for i, name in enumerate(ends) if name == "low"]
    assert len(positions) == 3
    # At most 16 come before each; up to three are on their way when it arrives.
    assert positions[0] <= 30
    assert all(b - a <= 25 for a, b in zip(positions, positions[1:], strict=False))
    for worker in [*high, low]:
        worker.client.close()


def test_order_inside_a_session_stays(busy: Any) -> None:
    """Priority orders sessions, not the runs of one: its states see them as they were sent."""
    g = headrace.Graph()
    x = g.input("x", (1,))
    s = g.state("s", (1,), "f32")
    y = g.output(g.add(g.scale(s, 2.0), x), "y")
    g.cpy(y, s)
    with headrace.connect(busy.address) as client:
        state = client.state({"s": ("f32", (1,))})
        handle = client.submit(g, states=[state], pins={"*": "cpu0"})
        runs = [
            handle.run_async({"x": np.array([i], np.float32)}, priority=i) for i in range(10)
        ]
        expected, last = [], 0.0
        for i in range(10):
            last = 2 * last + i
            expected.append(last)
        assert [float(run.result()["y"][0]) for run in runs] == expected


def test_cancelled_while_it_waits(busy: Any) -> None:
    ends: list[str] = []
    with headrace.connect(busy.address) as one, headrace.connect(busy.address) as two:
        first = one.submit(doubling(), pins={"*": "cpu0"})
        second = two.submit(doubling(), pins={"*": "cpu0"})
        data = np.ones(4, np.float32)
        front = [first.run_async({"x": data}) for _ in range(5)]
        back = [second.run_async({"x": data}, priority=9) for _ in range(5)]
        for run in back:
            run.cancel()
        for run in front:
            assert run.result()["y"][0] == 2
        for run in back:
            try:
                run.result()
            except headrace.errors.Cancelled:
                ends.append("cancelled")
        assert ends
        assert second.run({"x": data})["y"][0] == 2
