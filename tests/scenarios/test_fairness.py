"""Devices that several principals and sessions want: what each of them gets, and who waits for whom."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable
from typing import Any

import headrace
import numpy as np
import pytest
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


class Session:
    """Runs one thing after the other and notes in `events` what it does, in common order."""

    def __init__(self, daemon: Daemon, principal: str, name: str, events: list[str]) -> None:
        self.client = headrace.connect(daemon.address, credentials=TOKENS[principal].encode())
        self.handle = self.client.submit(doubling(), pins={"*": "cpu0"})
        self.name, self.events = name, events

    def run(self, value: float) -> None:
        data = np.full(4, value, np.float32)
        self.events.append(f"{self.name} asks")
        assert np.array_equal(self.handle.run({"x": data})["y"], data + data)
        self.events.append(f"{self.name} ends")

    def work(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            self.run(float(number))
            number += 1


class Crowd:
    """Sessions that always want something, until the crowd is left."""

    def __init__(self, sessions: list[Session]) -> None:
        self.sessions, self.stop = sessions, threading.Event()
        self.threads = [threading.Thread(target=s.work, args=(self.stop,)) for s in sessions]

    def __enter__(self) -> None:
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()
        for session in self.sessions:
            session.client.close()


def wait_for(events: list[str], event: str, count: int) -> None:
    poll = threading.Event()
    for _ in range(4000):
        if events.count(event) >= count:
            return
        poll.wait(0.005)
    raise AssertionError(f"{events.count(event)} of {count}: {event}")


def test_by_weight_whatever_the_number_of_sessions(busy: Daemon) -> None:
    """Seven sessions of the light principal against two of the heavy one: a quarter and three quarters
    of the device."""
    events: list[str] = []
    sessions = [Session(busy, "light", "light", events) for _ in range(7)]
    sessions += [Session(busy, "heavy", "heavy", events) for _ in range(2)]
    with Crowd(sessions):
        wait_for(events, "heavy ends", 20)  # everybody is there
        first = len(events)
        wait_for(events, "heavy ends", 110)
        seen = events[first:]
    light, heavy = seen.count("light ends"), seen.count("heavy ends")
    assert 0.2 * heavy <= light <= 0.5 * heavy, (light, heavy)  # a third, and what is on its way


def test_a_small_one_waits_for_the_run_on_the_device_only(busy: Daemon) -> None:
    """However many runs the hog has queued, one that asks now and then comes after what is on the
    device."""
    events: list[str] = []
    hogs = [Session(busy, "heavy", "hog", events) for _ in range(8)]
    small = Session(busy, "light", "small", events)
    with Crowd(hogs):
        wait_for(events, "hog ends", 16)
        for number in range(20):
            small.run(number)
            wait_for(events, "hog ends", 16 + 3 * (number + 1))
    small.client.close()
    asked = [i for i, event in enumerate(events) if event == "small asks"]
    ended = [i for i, event in enumerate(events) if event == "small ends"]
    waits = [events[a:b].count("hog ends") for a, b in zip(asked, ended, strict=True)]
    # The run that was on the device, and one whose end was told meanwhile; nobody's queue of eight.
    assert sorted(waits)[len(waits) // 2] <= 2, waits
    assert sum(wait > 3 for wait in waits) <= 1, waits


def test_sessions_of_a_principal_take_turns(busy: Daemon) -> None:
    """One session with eight graphs, each with a run waiting, is one session all the same."""
    events: list[str] = []
    greedy = headrace.connect(busy.address, credentials=TOKENS["heavy"].encode())
    handles = [greedy.submit(doubling(f"y{i}"), pins={"*": "cpu0"}) for i in range(8)]
    modest = Session(busy, "heavy", "modest", events)
    data = np.ones(4, np.float32)
    runs = [handle.run_async({"x": data}) for _ in range(5) for handle in handles]
    for number in range(10):
        modest.run(number)
        events.append(str(sum(run.done() for run in runs)))
    done = [int(event) for event in events if event.isdigit()]
    assert done[-1] < len(runs), "ten runs of the modest one come before forty of the greedy one"
    for run in runs:
        assert run.result()[0][0] == 2
    modest.client.close()
    greedy.close()


def test_b083_never_started_after_its_deadline(busy: Daemon) -> None:
    """50 ms behind 300 ms of others: answered in time with how long it has waited, and never run."""
    with headrace.connect(busy.address, credentials=TOKENS["light"].encode()) as client:
        handle = client.submit(doubling(), pins={"*": "cpu0"})
        data = np.ones(4, np.float32)
        started = client.stats().value("runs_started_total")
        front = [handle.run_async({"x": data}) for _ in range(60)]
        for _ in range(3):
            with pytest.raises(errors.DeadlineExceeded) as caught:
                handle.run({"x": data}, timeout=0.05)
            if caught.value.field:  # the daemon's answer, not the client's own clock
                assert caught.value.field == "queue_ns"
                assert 40e6 <= caught.value.limit <= 60e6
                assert caught.value.actual >= caught.value.limit
        for run in front:
            assert run.result()["y"][0] == 2
        assert client.stats().value("runs_started_total") == started + 60
