"""Clients of a daemon that is killed and started again under them: nobody is refused, and what may be done twice is
asked again, once, by the client library."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import time

import headrace
import numpy as np
import pytest
import raw
from headrace import aio, errors
from manager import Manager, managed
from run_daemon import built_with_systemd, device

pytestmark = pytest.mark.skipif(not built_with_systemd(), reason="built without libsystemd")

DEVICES = [device("cpu0", threads=1)]
SLOW = [device("slow", threads=1, delay="600ms"), device("cpu0", threads=1)]


def doubler(client: headrace.Client, weights: list[headrace.WeightSet], count: int = 8) -> headrace.GraphHandle:
    graph = headrace.Graph()
    x = graph.input("x", (count,))
    w = graph.weight("w", (count,)) if weights else x
    graph.output(graph.add(x, w))
    return client.submit(graph, weights=weights)


def end_a_run(manager: Manager) -> None:
    """Kills the daemon while a run is in flight, and starts it again."""
    with headrace.connect(manager.address) as other:
        raw.eventually(lambda: other.stats().value("runs_in_flight") == 1)
        manager.kill()
    manager.start()


def test_runs_go_on_over_kills_and_restarts() -> None:
    """Weights are found by name, the graph is planned again, the run is sent again: the caller notices nothing."""
    ones = np.ones(8, np.float32)
    with managed(devices=DEVICES) as manager, headrace.connect(manager.address) as client:
        weights = client.put("set", {"w": ones * 5})
        handle = doubler(client, [weights])
        old = weights.handle
        for turn in range(4):
            assert handle.run({"x": ones * turn})[0].tolist() == [turn + 5.0] * 8
            if turn % 2:
                manager.restart()
            else:
                manager.kill()
                manager.start()
        assert handle.run({"x": ones})[0].tolist() == [6.0] * 8
        assert weights.handle != old
        assert client.stats().value("weight_bytes_hashed_total") == 0


def test_an_unanswered_run_is_sent_again() -> None:
    """The daemon is killed while it computes; large inputs go through memory of the old session."""
    large = np.ones(1 << 18, np.float32)
    with managed(devices=SLOW) as manager, headrace.connect(manager.address) as client:
        graph = headrace.Graph()
        x = graph.input("x", large.shape)
        graph.output(graph.add(x, x))
        handle = client.submit(graph, pins={"*": "slow"})
        assert handle.run({"x": large})[0][0] == 2
        killer = threading.Thread(target=end_a_run, args=(manager,))
        killer.start()
        assert handle.run({"x": large * 3})[0].tolist() == [6.0] * large.size
        killer.join()
        assert client.stats().value("runs_total", 'end="ok"') == 1


def test_only_once() -> None:
    """A second end of the daemon during the same request is the caller's; the next request begins anew."""
    with managed(devices=SLOW) as manager, headrace.connect(manager.address) as client:
        graph = headrace.Graph()
        x = graph.input("x", (4,))
        graph.output(graph.add(x, x))
        handle = client.submit(graph, pins={"*": "slow"})
        operation = handle.run_async({"x": np.ones(4, np.float32)})
        killer = threading.Thread(target=lambda: [end_a_run(manager) for _ in range(2)])
        killer.start()
        with pytest.raises(errors.ConnectionLost):
            operation.result()
        killer.join()
        assert handle.run({"x": np.ones(4, np.float32)})[0].tolist() == [2.0] * 4


def test_what_writes_states_is_not_sent_again() -> None:
    with managed(devices=DEVICES) as manager, headrace.connect(manager.address) as client:
        state = client.state({"s": ("f32", (8,))})
        graph = headrace.Graph()
        x, s = graph.input("x", (8,)), graph.state("s", (8,))
        graph.output(graph.cpy(graph.add(s, x), s), "out")
        handle = client.submit(graph, states=[state])
        assert handle.run({"x": np.ones(8, np.float32)})["out"].tolist() == [1.0] * 8
        manager.kill()
        manager.start()
        with pytest.raises(errors.ConnectionLost):
            handle.run({"x": np.ones(8, np.float32)})
        client.ping()  # this may, and finds the new daemon
        with pytest.raises(errors.NotFound):
            state.read("s")
        with pytest.raises(errors.NotFound):
            handle.run({"x": np.ones(8, np.float32)})


def test_who_does_not_want_it_is_told() -> None:
    with managed(devices=DEVICES) as manager:
        with headrace.connect(manager.address, resend=False) as client:
            manager.kill()
            manager.start()
            with pytest.raises(errors.ConnectionLost):
                client.ping()


def test_no_daemon_comes_back() -> None:
    """One attempt, at once: what failed first is what is told."""
    manager = Manager(devices=DEVICES)
    try:
        manager.start()
        with headrace.connect(manager.address) as client:
            for sock in manager.listening:
                sock.close()
            os.unlink(manager.address.removeprefix("unix:"))
            manager.kill()
            with pytest.raises(errors.ConnectionLost) as caught:
                client.ping()
            assert caught.value.reason == "EOF"
    finally:
        manager.close()


def test_a_daemon_that_drains_refuses_and_the_next_answers() -> None:
    with managed(devices=SLOW) as manager, headrace.connect(manager.address) as client:
        graph = headrace.Graph()
        x = graph.input("x", (4,))
        graph.output(graph.add(x, x))
        slow = client.submit(graph, pins={"*": "slow"})
        operation = slow.run_async({"x": np.ones(4, np.float32)})
        client.ping()
        again = threading.Thread(target=manager.restart)
        again.start()
        manager.wait_for("stopping", lambda: "STOPPING=1" in manager.told)
        assert client.stats().value("uptime_seconds") >= 0  # refused by the old, answered by the new
        assert operation.result()[0].tolist() == [2.0] * 4  # finished by the old
        again.join()


def test_nobody_is_refused_over_ten_kills_and_five_restarts() -> None:
    """Thousands of connects, each of which says hello or goes at once."""
    refused: list[OSError] = []
    connects = 0
    over = threading.Event()
    lock = threading.Lock()

    def call(path: str) -> None:
        nonlocal connects
        while not over.is_set():
            try:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.connect(path)
            except OSError as error:
                refused.append(error)
            with lock:
                connects += 1
            time.sleep(0.0005)

    with Manager(devices=DEVICES, supervise=True) as manager:
        with headrace.connect(manager.address) as client:
            weights = client.put("kept", {"w": np.ones(8, np.float32)})
            handle = doubler(client, [weights])
            threads = [
                threading.Thread(target=call, args=(manager.address.removeprefix("unix:"),))
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            try:
                for turn in range(15):
                    raw.eventually(lambda turn=turn: connects >= 150 * turn, 20)
                    if turn % 3 == 2:
                        manager.restart()
                    else:
                        manager.kill()
                        manager.wait_ready()
                    assert handle.run({"x": np.ones(8, np.float32)})[0].tolist() == [2.0] * 8
            finally:
                over.set()
                for thread in threads:
                    thread.join()
        assert refused == [] and connects > 2000
        assert manager.starts == 16


# ---- asyncio -------------------------------------------------------------------------------------


def plus(weight: bool, count: int = 8) -> headrace.Graph:
    graph = headrace.Graph()
    x = graph.input("x", (count,))
    graph.output(graph.add(x, graph.weight("w", (count,)) if weight else x))
    return graph


def test_tasks_go_on_over_kills_and_restarts() -> None:
    """Many tasks share a client; each gets its own answer, over kills and restarts."""
    ones = np.ones(8, np.float32)

    async def work(manager: Manager) -> None:
        async with await aio.connect(manager.address) as client:
            weights = await client.put("set", {"w": ones * 5})
            handle = await client.submit(plus(True), weights=[weights])
            old = weights.handle
            for turn in range(4):
                results = await asyncio.gather(
                    *(handle.run({"x": ones * (turn * 100 + i)}) for i in range(20))
                )
                assert [r[0][0] for r in results] == [turn * 100 + i + 5.0 for i in range(20)]
                if turn % 2:
                    await asyncio.to_thread(manager.restart)
                else:
                    manager.kill()
                    await asyncio.to_thread(manager.start)
            assert (await handle.run({"x": ones}))[0].tolist() == [6.0] * 8
            assert weights.handle != old

    with managed(devices=DEVICES) as manager:
        asyncio.run(work(manager))


def test_an_unanswered_run_of_a_task_is_sent_again_and_only_once() -> None:
    """Large inputs go through memory of the old session. A second end of the daemon is the caller's."""
    large = np.ones(1 << 18, np.float32)

    async def work(manager: Manager) -> None:
        async with await aio.connect(manager.address) as client:
            graph = plus(False, large.size)
            handle = await client.submit(graph, pins={"*": "slow"})
            assert (await handle.run({"x": large}))[0][0] == 2
            task = asyncio.create_task(handle.run({"x": large * 3}))
            await asyncio.to_thread(end_a_run, manager)
            assert (await task)[0].tolist() == [6.0] * large.size
            assert (await client.stats()).value("runs_total", 'end="ok"') == 1
            task = asyncio.create_task(handle.run({"x": large}))
            await asyncio.to_thread(end_a_run, manager)
            await asyncio.to_thread(end_a_run, manager)
            with pytest.raises(errors.ConnectionLost):
                await task

    with managed(devices=SLOW) as manager:
        asyncio.run(work(manager))


def test_tasks_that_are_cancelled_while_requests_are_sent_again() -> None:
    """Whoever makes the new connection may be cancelled meanwhile: the others go on and get their own answers."""
    rng = random.Random(5)

    async def work(manager: Manager) -> None:
        async with await aio.connect(manager.address) as client:
            handle = await client.submit(plus(False))
            for _ in range(4):
                tasks = [
                    asyncio.create_task(handle.run({"x": np.full(8, i, np.float32)}))
                    for i in range(24)
                ]
                await asyncio.sleep(0)
                manager.kill()
                starting = asyncio.create_task(asyncio.to_thread(manager.start))
                cancelled = rng.sample(range(24), 12)
                for i in cancelled:
                    await asyncio.sleep(rng.random() * 0.004)
                    tasks[i].cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                await starting
                for i, result in enumerate(results):
                    if i in cancelled and isinstance(result, asyncio.CancelledError):
                        continue
                    assert not isinstance(result, BaseException), result
                    assert result[0].tolist() == [2.0 * i] * 8
            before = len(os.listdir("/proc/self/fd"))
            await client.ping()
            assert len(os.listdir("/proc/self/fd")) <= before

    with managed(devices=DEVICES) as manager:
        asyncio.run(work(manager))


def test_tasks_are_told_what_is_not_sent_again() -> None:
    async def work(manager: Manager) -> None:
        async with await aio.connect(manager.address) as client, await aio.connect(
            manager.address, resend=False
        ) as plain:
            state = await client.state({"s": ("f32", (8,))})
            graph = headrace.Graph()
            x, s = graph.input("x", (8,)), graph.state("s", (8,))
            graph.output(graph.cpy(graph.add(s, x), s), "out")
            handle = await client.submit(graph, states=[state])
            await handle.run({"x": np.ones(8, np.float32)})
            manager.kill()
            await asyncio.to_thread(manager.start)
            with pytest.raises(errors.ConnectionLost):
                await handle.run({"x": np.ones(8, np.float32)})
            with pytest.raises(errors.ConnectionLost):
                await plain.ping()
            await client.ping()

    with managed(devices=DEVICES) as manager:
        asyncio.run(work(manager))


# ---- within the deadline -------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["blocking", "asyncio"])
def test_within_the_deadline_of_the_call(library: str) -> None:
    """Nobody accepts any more: what would be sent again ends when its call does."""

    async def ask(address: str) -> float:
        async with await aio.connect(address) as client:
            stop()
            began = time.monotonic()
            with pytest.raises(errors.ConnectionLost):
                await client.ping(timeout=0.5)
            return time.monotonic() - began

    manager = Manager(devices=DEVICES)

    def stop() -> None:
        manager.kill()

    try:
        manager.start()
        if library == "asyncio":
            took = asyncio.run(ask(manager.address))
        else:
            with headrace.connect(manager.address) as client:
                stop()
                began = time.monotonic()
                with pytest.raises(errors.ConnectionLost):
                    client.ping(timeout=0.5)
                took = time.monotonic() - began
        assert took < 20  # of a minute that connecting may take
    finally:
        manager.close()


@pytest.mark.parametrize("library", ["blocking", "asyncio"])
def test_a_broken_connection_finds_its_session_again(library: str) -> None:
    """The daemon waits for a session: what was asked for last is asked again in it, and its states are there."""
    grace = {"daemon": {"session_grace": "20s"}}

    async def work(address: str) -> None:
        async with await aio.connect(address) as client:
            state = await client.state({"s": ("f32", (8,))})
            await state.write("s", np.arange(8, dtype=np.float32))
            handle = await client.submit(plus(False))
            transport = client._connection._transport
            assert transport is not None
            transport.abort()
            await asyncio.sleep(0)
            result = await handle.run({"x": np.ones(8, np.float32)})
            assert result[0].tolist() == [2.0] * 8
            assert (await state.read("s")).tolist() == list(range(8))

    with Manager(devices=DEVICES, sections=grace) as manager:
        if library == "asyncio":
            asyncio.run(work(manager.address))
            return
        with headrace.connect(manager.address) as client:
            state = client.state({"s": ("f32", (8,))})
            state.write("s", np.arange(8, dtype=np.float32))
            handle = client.submit(plus(False))
            client._transport._sock.shutdown(socket.SHUT_RDWR)
            assert handle.run({"x": np.ones(8, np.float32)})[0].tolist() == [2.0] * 8
            assert state.read("s").tolist() == list(range(8))
