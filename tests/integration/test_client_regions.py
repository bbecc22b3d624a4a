"""Large arrays of the Python client through shared memory: the same results, and hardly a byte on the
socket; small ones, and those over TCP, as ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import raw
from run_daemon import device

import headrace
from headrace import errors
from headrace.sequences import Step

COUNT = 1 << 20


@pytest.fixture
def served(launch: Callable[..., Any]) -> Iterator[Any]:
    yield launch(
        devices=[device("cpu0", threads=1, memory="isolated"), device("host", threads=1)],
        tcp=True,
    )


def doubled() -> headrace.Graph:
    graph = headrace.Graph()
    x = graph.input("x", (COUNT,))
    graph.output(graph.add(x, x), "y")
    return graph


def moved(client: headrace.Client, work: Callable[[], object]) -> float:
    before = client.stats()
    work()
    after = client.stats()
    return sum(
        after.value(name) - before.value(name) for name in ("bytes_in_total", "bytes_out_total")
    )


@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_runs(served: Any, door: str) -> None:
    rng = np.random.default_rng(1)
    with headrace.connect(served.address if door == "unix" else served.tcp_address) as client:
        handle = client.submit(doubled())
        values = [rng.standard_normal(COUNT, np.float32) for _ in range(4)]

        def work() -> None:
            for value in values:
                assert np.array_equal(handle.run({"x": value})["y"], value + value)
            operations = [handle.run_async({"x": value}) for value in values]
            for value, operation in zip(values, operations, strict=True):
                assert np.array_equal(operation.result()["y"], value + value)

        bytes_moved = moved(client, work)
        if door == "tcp":
            assert bytes_moved > 8 * 8 * COUNT
        else:  # of the four that were started at once only one finds idle regions
            assert bytes_moved < 7 * 4 * COUNT
            assert 2 <= client.quota().value("session_held", 'what="regions"') <= 3


def test_threads_share_the_pool(served: Any) -> None:
    with headrace.connect(served.address) as client:
        handle = client.submit(doubled())
        wrong: list[int] = []

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(5):
                value = rng.standard_normal(COUNT, np.float32)
                if not np.array_equal(handle.run({"x": value})["y"], value + value):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert client.quota().value("session_held", 'what="regions"') <= 9


@pytest.mark.parametrize("where", ["host", "cpu0"])
def test_states(served: Any, where: str) -> None:
    value = np.random.default_rng(2).standard_normal(COUNT, np.float32)
    with headrace.connect(served.address) as client:
        state = client.state({"s": ("f32", (COUNT,)), "t": ("f32", (3,))}, {"*": where})

        def work() -> None:
            state.write("s", value)
            assert np.array_equal(state.read("s"), value)
            state.write("t", [1, 2, 3])
            assert state.read("t").tolist() == [1, 2, 3]

        assert moved(client, work) < 20000


def test_contents_are_passed(served: Any) -> None:
    data = {"w": np.random.default_rng(3).integers(0, 99, 3 * COUNT, np.int32)}
    with headrace.connect(served.address) as client:
        made: list[headrace.WeightSet] = []
        assert moved(client, lambda: made.append(client.put("w", data))) < 20000
        assert moved(client, lambda: made.append(client.put("w", data))) < 20000
        assert moved(client, lambda: made.append(client.put("v", data, digest=False))) < 20000
        assert [one.already for one in made] == [False, True, False]
        assert len({one.info.digest for one in made}) == 1
        graph = headrace.Graph()
        leaf = graph.weight("w", made[0]["w"].shape, made[0]["w"].type)
        graph.output(graph.cont(leaf), "out")
        for one in made:
            out = client.submit(graph, weights=[one]).run()["out"]
            assert np.array_equal(out, data["w"])
    with headrace.connect(served.address) as client:
        # The session's sets go after its connection.
        raw.eventually(
            lambda: client.quota().value("principal_held", 'what="descriptors"') == 0
        )


def test_without_room_for_regions(launch: Callable[..., Any]) -> None:
    """Where the daemon takes no region the socket does."""
    running = launch(
        devices=[device("host", threads=1)], sections={"limits": {"session_regions": 0}}
    )
    value = np.ones(COUNT, np.float32)
    with headrace.connect(running.address) as client:
        handle = client.submit(doubled())
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert np.array_equal(handle.run({"x": value})["y"], value + value)
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_failed_run_gives_its_regions_back(served: Any) -> None:
    with headrace.connect(served.address) as client:
        graph = headrace.Graph()
        table = graph.input("table", (COUNT // 4, 4))
        ids = graph.input("ids", (2,), "i32")
        graph.output(graph.get_rows(table, ids), "rows")
        handle = client.submit(graph)
        rows = np.arange(COUNT, dtype=np.float32).reshape(COUNT // 4, 4)
        for _ in range(3):
            with pytest.raises(errors.OutOfRange):
                handle.run({"table": rows, "ids": [0, 1 << 28]})
            good = handle.run({"table": rows, "ids": [2, 1]})["rows"]
            assert np.array_equal(good, rows[[2, 1]])
        assert client.quota().value("session_held", 'what="regions"') == 1


def test_sequences(served: Any) -> None:
    """What the steps take and give is passed as memory; results that are told step by step are not."""
    value = np.random.default_rng(4).standard_normal(COUNT, np.float32)
    with headrace.connect(served.address) as client:
        handle = client.submit(doubled())
        steps = [Step(handle, {"x": value}), Step(handle, feeds={"x": (0, "y")})]
        steps += [Step(handle, {"x": value * 3}, outputs=())]

        def work() -> None:
            for _ in range(2):
                results = client.sequence(steps)
                assert np.array_equal(results[0]["y"], value * 2)
                assert np.array_equal(results[1]["y"], value * 4)
                assert len(results[2]) == 0

        assert moved(client, work) < 40000
        assert client.quota().value("session_held", 'what="regions"') == 2
