"""Devices that several principals and sessions want: what each of them gets, and who waits for whom."""

from __future__ import annotations

import hashlib
import itertools
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
import raw
from devices import has_address_sanitizer
from headrace import errors
from run_daemon import Daemon, device

WEIGHTS = {"light": 100, "heavy": 300}
TOKENS = {name: secrets.token_urlsafe(24) for name in WEIGHTS}


@pytest.fixture
def busy(launch: Callable[..., Daemon]) -> Daemon:
    """A device that takes 5 ms a run and is handed eight short runs at once; two principals."""
    sections: dict[str, dict[str, object]] = {
        f"principal {name}": {
            "token_sha256": hashlib.sha256(TOKENS[name].encode()).hexdigest(),
            "permissions": "run, admin",
            "weight": weight,
        }
        for name, weight in WEIGHTS.items()
    }
    return launch(
        devices=[device("cpu0", threads=1, delay="5ms"), device("host", threads=1)],
        sections=sections,
    )


def doubling(name: str = "y") -> headrace.Graph:
    g = headrace.Graph()
    x = g.input("x", (4,))
    g.output(g.add(x, x), name)
    return g


@dataclass(frozen=True)
class Times:
    """Of a run, by the daemon's clock: how fast the clients are does not count."""

    arrived: int
    started: int
    ended: int


class Session:
    """A client whose runs are traced."""

    def __init__(self, daemon: Daemon, principal: str) -> None:
        self.client = headrace.connect(daemon.address, credentials=TOKENS[principal].encode())
        self.handle = self.client.submit(doubling(), pins={"*": "cpu0"})
        self.seen: list[Times] = []

    def ask(self, value: float) -> Any:
        return self.handle.run_async({"x": np.full(4, value, np.float32)}, trace=True)

    def take(self, run: Any, value: float) -> Times:
        result = run.result()
        assert np.array_equal(result["y"], np.full(4, 2 * value, np.float32))
        self.seen.append(
            Times(result.trace.arrived_ns, result.trace.started_ns, result.trace.ended_ns)
        )
        return self.seen[-1]

    def work(self, stop: threading.Event) -> None:
        """Always has a few runs waiting, until told to stop."""
        waiting = [(self.ask(n), n) for n in range(4)]
        number = len(waiting)
        while waiting:
            self.take(*waiting.pop(0))
            if not stop.is_set():
                waiting.append((self.ask(number), number))
                number += 1


class Crowd:
    """Sessions that always want something, until the crowd is left."""

    def __init__(self, sessions: list[Session]) -> None:
        self.sessions, self.stop = sessions, threading.Event()
        self.threads = [threading.Thread(target=s.work, args=(self.stop,)) for s in sessions]

    def __enter__(self) -> Crowd:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()
        for session in self.sessions:
            session.client.close()

    def wait_for(self, count: int) -> None:
        """Until every session has seen the end of that many runs."""
        for _ in range(4000):
            if all(len(session.seen) >= count for session in self.sessions):
                return
            self.stop.wait(0.005)
        raise AssertionError([len(session.seen) for session in self.sessions])


def test_by_weight_whatever_the_number_of_sessions(busy: Daemon) -> None:
    """Seven sessions of the light principal against two of the heavy one: a quarter and three quarters
    of the device."""
    light = [Session(busy, "light") for _ in range(7)]
    heavy = [Session(busy, "heavy") for _ in range(2)]
    with Crowd(light + heavy) as crowd:
        crowd.wait_for(6)
    begin = max(session.seen[0].started for session in crowd.sessions)
    end = min(session.seen[-4].started for session in crowd.sessions)
    parts = [
        sum(begin <= run.started < end for session in sessions for run in session.seen)
        for sessions in (light, heavy)
    ]
    assert parts[1] > 40
    # A third, give or take the ends; by principals alone it were as many, by sessions 3.5 times.
    assert 0.2 * parts[1] <= parts[0] <= 0.55 * parts[1], parts


def test_a_small_one_waits_for_the_run_on_the_device_only(busy: Daemon) -> None:
    """However many runs the hog has queued, one that asks now and then comes after what is on the device, and
    after what is started while its bytes are read: one more, on a machine that does nothing else."""
    hogs = [Session(busy, "heavy") for _ in range(8)]
    small = Session(busy, "light")
    with Crowd(hogs) as crowd:
        for number in range(12):
            crowd.wait_for(number + 2)
            small.take(small.ask(number), number)
    small.client.close()
    before = sorted(
        sum(run.arrived < other.started < run.started for hog in hogs for other in hog.seen)
        for run in small.seen
    )
    assert before[len(before) // 2] <= 1 and before[-1] < 16, f"of 32 that wait: {before}"
    assert sum(run.started > run.arrived for run in small.seen) == len(small.seen)


def test_sessions_of_a_principal_take_turns(busy: Daemon) -> None:
    """One session with eight graphs, each with runs waiting, is one session all the same: it gets as much
    time of the device as the other, not eight times as much."""
    greedy, modest = Session(busy, "heavy"), Session(busy, "heavy")
    handles = [
        greedy.client.submit(doubling(f"y{i}"), pins={"*": "cpu0"}) for i in range(8)
    ]
    data = np.ones(4, np.float32)
    with Crowd([modest]) as crowd:
        crowd.wait_for(2)
        many = [handle.run_async({"x": data}, trace=True) for _ in range(8) for handle in handles]
        traces = [run.result().trace for run in many]
    # As long as both wait: all of theirs have come, one is left, and the next of mine is there.
    begun = max(trace.arrived_ns for trace in traces)
    last = max(trace.started_ns for trace in traces)
    mine = sorted((run for run in modest.seen if run.started > begun), key=lambda run: run.started)
    turns = [
        (one, [t for t in traces if one.started < t.started_ns < next_one.started])
        for one, next_one in itertools.pairwise(mine)
        if next_one.arrived < one.started and next_one.started < last
    ]
    assert len(turns) >= 5
    my_times = [one.ended - one.started for one, _ in turns]
    their_times = [t.ended_ns - t.started_ns for _, theirs in turns for t in theirs]
    off = abs(sum(their_times) - sum(my_times))
    longest = max(my_times + their_times)
    assert off <= 2 * longest + 0.2 * sum(my_times), f"{my_times} and {their_times}"
    greedy.client.close()


def test_b083_never_started_after_its_deadline(busy: Daemon) -> None:
    """50 ms behind more than a second of others: answered in time with how long it has waited, and never
    run."""
    with headrace.connect(busy.address, credentials=TOKENS["light"].encode()) as client:
        handle = client.submit(doubling(), pins={"*": "cpu0"})
        g = headrace.Graph()
        last = g.input("x", (4,))
        for number in range(5):
            last = g.name(g.scale(g.name(g.add(last, last), f"slow{number}"), 0.5), f"other{number}")
        g.output(last, "y")
        longer = client.submit(g, pins={"slow*": "cpu0", "other*": "host"})
        data = np.ones(4, np.float32)
        started = client.stats().value("runs_started_total")
        front = [longer.run_async({"x": data}) for _ in range(60)]
        for _ in range(2):
            with pytest.raises(errors.DeadlineExceeded) as caught:
                handle.run({"x": data}, timeout=0.05)
            if caught.value.field:  # the daemon's answer, not the client's own clock
                assert caught.value.field == "queue_ns"
                assert 0 < caught.value.limit <= 60e6
                assert caught.value.actual >= caught.value.limit
        for run in front:
            assert run.result()["y"][0] == 1
        assert client.stats().value("runs_started_total") == started + 60


def resident_bytes(daemon: Daemon) -> int:
    rollup = Path(f"/proc/{daemon.process.pid}/smaps_rollup").read_text()
    return 1024 * next(
        int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:")
    )


def test_an_idle_connection_costs_a_kibibyte(launch: Callable[..., Daemon]) -> None:
    """Each with a session of its own, after a hello and a ping."""
    daemon = launch(devices=[device("host", threads=1)])
    count, conns = 400, []
    try:
        for _ in range(32):  # what is taken once, and what malloc takes ahead
            conns.append(raw.Conn(daemon.address))
            conns[-1].ping()
        before = resident_bytes(daemon)
        for _ in range(count):
            conns.append(raw.Conn(daemon.address))
            conns[-1].ping()
        grown = resident_bytes(daemon) - before
        if has_address_sanitizer(daemon.process.pid):
            pytest.skip("what a sanitizer puts around each block counts as well")
        assert grown <= 1024 * count, grown / count
        assert conns[0].stats()["sessions"] == 32 + count
    finally:
        for conn in conns:
            conn.close()
