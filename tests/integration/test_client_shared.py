"""One client for many: threads and tasks with deadlines and cancellations of all kinds, against a real daemon. Whoever
gets an answer gets its own, and what nobody waited for leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import raw
from run_daemon import device

import headrace
from headrace import aio, errors

ENDS = (errors.DeadlineExceeded, errors.Cancelled)
SIZES = (4, 1000, 300_000)  # within the first read, a frame, a region on Unix sockets


@pytest.fixture
def served(launch: Callable[..., Any]) -> Iterator[Any]:
    yield launch(
        devices=[
            device("slow", threads=1, delay="2ms"),
            device("cpu0", threads=1, memory="isolated"),
            device("host", threads=1),
        ],
        tcp=True,
    )


def doubler(size: int) -> headrace.Graph:
    graph = headrace.Graph()
    x = graph.input("x", (size,))
    graph.output(graph.add(x, x), "y")
    return graph


def is_doubled(result: Any, size: int, value: float) -> bool:
    out = result["y"]
    return out.shape == (size,) and bool((out == 2 * value).all())


def nothing_is_left(client: headrace.Client) -> bool:
    stats = client.stats()
    return stats.value("runs_in_flight") == 0


@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_threads_with_deadlines_and_cancels(served: Any, door: str) -> None:
    """Eight threads; interrupted system calls (a timer's signal), tiny deadlines, cancels at any moment."""
    ticks = 0

    def tick(number: int, at: object) -> None:
        nonlocal ticks
        ticks += 1

    before = signal.signal(signal.SIGALRM, tick)
    address = served.address if door == "unix" else served.tcp_address
    wrong: list[str] = []
    ended: list[str] = []
    with headrace.connect(address, timeout=60) as client:
        handles = [
            client.submit(doubler(size), pins={"*": where})
            for size in SIZES
            for where in ("slow", "cpu0")
        ]

        def work(seed: int) -> None:
            rng = random.Random(seed)
            for turn in range(60):
                handle = rng.choice(handles)
                size = handle.inputs[0].shape[0]
                value = float(seed * 1000 + turn)
                timeout = rng.choice([None, None, 0.0005, 0.002, 0.01])
                x = np.full(size, value, np.float32)
                operation = None
                try:
                    operation = handle.run_async({"x": x}, timeout=timeout)
                    if rng.random() < 0.3:
                        time.sleep(rng.random() * 0.003)
                        operation.cancel()
                    if rng.random() < 0.2:
                        client.ping(timeout=rng.choice([None, 0.001]))
                    if not is_doubled(operation.result(), size, value):
                        wrong.append(f"{seed} {turn}")
                    ended.append("done")
                except ENDS as error:
                    ended.append(type(error).__name__)
                except BaseException as error:
                    wrong.append(repr(error))
                # After a ping that was late: what is not waited for may have sent half of its input.
                if operation is not None and not operation.done():
                    operation.cancel()

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for thread in threads:
                thread.start()
            work(9)  # the main thread is the one that signals interrupt
            for thread in threads:
                thread.join()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert not wrong, wrong
        assert ticks > 0 and "done" in ended and len(set(ended)) > 1, set(ended)
        raw.eventually(lambda: nothing_is_left(client))
        assert not client._transport._pending and not client._transport._waiting


@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_tasks_with_deadlines_and_cancels(served: Any, door: str) -> None:
    """Tasks are cancelled while they wait to send, while memory is passed, while the reply is on its way."""

    async def one(client: aio.AsyncClient, handle: aio.AsyncGraphHandle, seed: int) -> str:
        rng = random.Random(seed)
        size = handle.inputs[0].shape[0]
        x = np.full(size, float(seed), np.float32)
        timeout = rng.choice([None, None, None, 0.001, 0.02])
        try:
            result = await handle.run({"x": x}, timeout=timeout)
        except ENDS as error:
            return type(error).__name__
        assert is_doubled(result, size, float(seed))
        return "done"

    async def work() -> None:
        rng = random.Random(3)
        address = served.address if door == "unix" else served.tcp_address
        async with await aio.connect(address, timeout=60) as client:
            handles = [
                await client.submit(doubler(size), pins={"*": where})
                for size in SIZES
                for where in ("slow", "cpu0")
            ]
            ended: list[Any] = []
            for turn in range(8):
                tasks = [
                    asyncio.create_task(one(client, rng.choice(handles), turn * 1000 + i))
                    for i in range(40)
                ]
                for _ in range(20):
                    await asyncio.sleep(rng.choice([0, 0, rng.random() * 0.002]))
                    rng.choice(tasks).cancel()
                ended += await asyncio.gather(*tasks, return_exceptions=True)
            kinds = {e if isinstance(e, str) else type(e).__name__ for e in ended}
            assert {"done", "CancelledError"} <= kinds
            assert kinds <= {"done", "CancelledError", "DeadlineExceeded", "Cancelled"}
            for handle in handles:
                assert await one(client, handle, 7 * 8) in ("done", "DeadlineExceeded")
            await client.sync()
            assert not client._connection._replies

    asyncio.run(work())


def test_large_arrays_of_tasks_are_passed_as_memory(served: Any) -> None:
    """On a Unix socket neither weights, inputs, outputs nor states of asyncio's client go through the socket."""
    count = 1 << 20
    value = np.random.default_rng(1).standard_normal(count, np.float32)

    async def moved(client: aio.AsyncClient) -> float:
        stats = await client.stats()
        return stats.value("bytes_in_total") + stats.value("bytes_out_total")

    async def work(address: str) -> float:
        async with await aio.connect(address) as client:
            before = await moved(client)
            weights = await client.put("w", {"w": value})
            graph = headrace.Graph()
            x, w = graph.input("x", (count,)), graph.weight("w", (count,))
            graph.output(graph.add(x, w), "y")
            handle = await client.submit(graph, weights=[weights])
            results = await asyncio.gather(*(handle.run({"x": value * i}) for i in range(3)))
            for i, result in enumerate(results):
                assert np.array_equal(result["y"], value * np.float32(i) + value)
            state = await client.state({"s": ("f32", (count,))})
            await state.write("s", value)
            assert np.array_equal(await state.read("s"), value)
            return await moved(client) - before

    assert asyncio.run(work(served.address)) < 40_000
    assert asyncio.run(work(served.tcp_address)) > 4 * count
