"""Scenarios of several clients and several daemons: who waits for whom, and what is mixed up."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import headrace
import numpy as np
import pytest
import raw
from devices import start_daemon
from graphs import COPIES, floats, submit_ping_pong
from headrace import aio, errors
from raw import CANCELLED, Conn, pb
from run_daemon import Daemon, device

FULL = bool(os.environ.get("HEADRACE_FULL"))


def affine(factor: float, term: float) -> headrace.Graph:
    """y = factor x + term"""
    g = headrace.Graph()
    x = g.input("x", (64,))
    g.output(g.scale(x, factor, term), "y")
    return g


def canary_runs(client: headrace.Client) -> Callable[[], None]:
    """A second session's run, right each time it is called."""
    handle, count = client.submit(affine(2.0, 1.0)), iter(range(1 << 30))

    def run() -> None:
        value = float(next(count))
        assert handle.run({"x": np.full(64, value, np.float32)})["y"][0] == 2 * value + 1

    return run


# ---- B046: several endpoints ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemons() -> Iterator[list[Daemon]]:
    with ExitStack() as stack:
        one = [device("host", threads=1)]
        yield [stack.enter_context(start_daemon(devices=one)) for _ in range(8 if FULL else 4)]


@pytest.mark.parametrize("copies", COPIES)
def test_b046_stages_on_several_daemons(daemons: list[Daemon], copies: int) -> None:
    """Each value goes through all daemons, round robin, many on their way at once, replies taken in
    any order: none is stuck, none is mixed up."""
    chance = random.Random(copies)
    for count in range(2, len(daemons) + 1):
        with ExitStack() as stack:
            clients = [stack.enter_context(headrace.connect(d.address)) for d in daemons[:count]]
            stages = [
                client.submit(affine(0.5, float(number)), n_copies=copies)
                for number, client in enumerate(clients)
            ]
            checks = [canary_runs(stack.enter_context(headrace.connect(d.address)))
                      for d in daemons[:count]]  # fmt: skip
            under_way: list[tuple[int, np.ndarray, Any]] = []
            steps = 500 if FULL else 60
            left = {n: np.full(64, n, np.float32) for n in range(steps // count)}
            results: dict[int, np.ndarray] = {}
            stage_of = dict.fromkeys(left, 0)
            while left or under_way:
                while left and len(under_way) < 16:
                    number, value = left.popitem()
                    run = stages[stage_of[number]].run_async({"x": value}, timeout=10)
                    under_way.append((number, value, run))
                number, _, run = under_way.pop(chance.randrange(len(under_way)))
                value = run.result()["y"]
                stage_of[number] += 1
                if stage_of[number] == count:
                    results[number] = value
                else:
                    left[number] = value
            for check in checks:
                check()
        for number, value in results.items():
            expected = np.float32(number)
            for stage in range(count):
                expected = expected * np.float32(0.5) + np.float32(stage)
            assert np.array_equal(value, np.full(64, expected, np.float32))
        assert len(results) == steps // count


def test_b046_the_stuck_stage_is_told(daemons: list[Daemon]) -> None:
    """One daemon of three stands still: its call ends at the deadline, the others go on, and so does it
    when it wakes."""
    x = np.ones(64, np.float32)
    with ExitStack() as stack:
        clients = [stack.enter_context(headrace.connect(d.address)) for d in daemons[:3]]
        stages = [client.submit(affine(2.0, 0.0)) for client in clients]
        daemons[1].process.send_signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            failed = []
            runs = [stage.run_async({"x": x}, timeout=limit)
                    for stage, limit in zip(stages, (20, 0.3, 20), strict=True)]  # fmt: skip
            for number, run in enumerate(runs):
                try:
                    assert run.result()["y"][0] == 2
                except errors.DeadlineExceeded:
                    failed.append(number)
            assert failed == [1] and time.monotonic() - begun < 10
        finally:
            daemons[1].process.send_signal(signal.SIGCONT)
        for stage in stages:
            assert stage.run({"x": x})["y"][0] == 2


# ---- B063: one client object, many users ---------------------------------------------------------


@pytest.mark.parametrize("copies", COPIES)
def test_b063_threads_share_a_client(daemon: Daemon, canary: Any, copies: int) -> None:
    """32 threads, each with its own numbers: every reply reaches who asked."""
    rounds = 100 if FULL else 12
    wrong: list[str] = []
    with headrace.connect(daemon.address) as client:
        handles = [client.submit(affine(1.0, float(n)), n_copies=copies) for n in range(4)]

        def work(number: int) -> None:
            for i in range(rounds):
                value, term = float(number * 1000 + i), (number + i) % 4
                out = handles[term].run({"x": np.full(64, value, np.float32)})["y"]
                if not np.array_equal(out, np.full(64, value + term, np.float32)):
                    wrong.append(f"{number}: {out[0]}, not {value + term}")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    canary.check()


def test_b063_tasks_share_a_client(daemon: Daemon, canary: Any) -> None:
    """500 tasks; every seventh is cancelled, and takes nobody's reply with it."""

    async def one(handle: Any, number: int) -> None:
        out = (await handle.run({"x": np.full(64, number, np.float32)}))["y"]
        assert np.array_equal(out, np.full(64, 3.0 * number, np.float32))

    async def main() -> None:
        client = await aio.connect(daemon.address)
        async with client:
            handle = await client.submit(affine(3.0, 0.0))
            for start in range(0, 500, 50):  # as many as a session may have on their way
                tasks = [asyncio.create_task(one(handle, start + n)) for n in range(50)]
                await asyncio.sleep(0)
                for task in tasks[::7]:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                for number, end in enumerate(ends):
                    assert end is None or (number % 7 == 0 and isinstance(end, asyncio.CancelledError))
            await one(handle, 7)

    asyncio.run(main())
    canary.check()


def test_b063_no_lock_across_a_round_trip(launch: Callable[..., Daemon]) -> None:
    """While one thread waits for a long run, another's short calls come and go."""
    slow = launch(devices=[device("cpu0", threads=1, delay="600ms"), device("host", threads=1)])
    with headrace.connect(slow.address) as client:
        long = client.submit(affine(2.0, 0.0), pins={"*": "cpu0"})
        done: list[float] = []

        def wait() -> None:
            long.run({"x": np.ones(64, np.float32)})
            done.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        pings = 0
        while not done and pings < 20:
            client.quota()
            pings += 1
        assert pings == 20 and not done, "calls waited for the run"
        thread.join()


# ---- B080, B081: who has gone, who has cancelled -------------------------------------------------


@pytest.fixture
def slow(launch: Callable[..., Daemon]) -> Daemon:
    return launch(
        devices=[
            device("cpu0", threads=1, memory="isolated", delay="10ms"),
            device("cpu1", threads=1, memory="isolated", delay="10ms"),
            device("host", threads=1),
        ]
    )


@pytest.mark.parametrize("copies", COPIES)
def test_b080_nobody_works_for_who_has_gone(slow: Daemon, copies: int) -> None:
    """Ten runs of 400 splits, 10 ms each; their client is gone after the first began. The queued ones
    are dropped, the one that computes stops at a split, and somebody else's run comes at once."""
    with Conn(slow.address) as other:
        mine = submit_ping_pong(other, 16, hops=1, n_copies=1).handle
        before = other.stats()
        with Conn(slow.address) as gone:
            handle = submit_ping_pong(gone, 16, hops=200, n_copies=copies).handle
            for _ in range(10):
                gone.send(raw.RUN, pb.Run(handle=handle), floats([1.0] * 16))
            raw.eventually(lambda: other.stats()["runs_started_total"] > before["runs_started_total"])
        reply, out = other.call(raw.RUN, pb.Run(handle=mine), floats([3.0] * 16))
        assert out == floats([3.0] * 16)
        # 4 000 splits of 10 ms are what there would be to wait for.
        assert reply.queue_ns < 10_000_000_000
        key = f'requests_total{{type="RUN",code="{CANCELLED}"}}'
        raw.eventually(lambda: other.stats().get(key, 0) == before.get(key, 0) + 10)
        raw.eventually(lambda: other.stats()["runs_in_flight"] == 0)
        assert other.stats()["runs_started_total"] - before["runs_started_total"] <= copies + 1


@pytest.mark.parametrize("end", ["cancel", "disconnect"])
def test_b081_a_cancel_hits_its_own_run_only(daemon: Daemon, canary: Any, end: str) -> None:
    """A runs, B is queued and goes away: A's result is right, every time."""
    rounds = 1000 if FULL else 60
    with Conn(daemon.address) as a:
        mine = submit_ping_pong(a, 16).handle
        for number in range(rounds):
            data = struct.pack("<16f", *([float(number)] * 16))
            with Conn(daemon.address) as b:
                theirs = submit_ping_pong(b, 16).handle
                run = a.send(raw.RUN, pb.Run(handle=mine), data)
                queued = b.send(raw.RUN, pb.Run(handle=theirs), data)
                if end == "cancel":
                    b.send(raw.CANCEL, pb.Cancel(request_id=queued))
                    seen = {b.frame().call_id for _ in range(2)}
                    assert queued in seen and len(seen) == 2
                else:
                    b.close()
                assert a.reply(run)[1] == data
    canary.check()
