"""SEQUENCE: runs chained in the daemon are the runs one by one, bit for bit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import graphs
import headrace
import headrace.aio
import headrace.sequences
import numpy as np
import pytest
import raw
from headrace import Step
from headrace.errors import Cancelled, DeadlineExceeded, HeadraceError
from raw import Conn, pb
from run_daemon import device

COPIES = [1, 2, 4]
WIDTH = 256
PINS = {"a*": "cpu0", "b*": "cpu1"}


def mixer() -> headrace.Graph:
    """y = tanh(x * 1.25 + s), kept in the state as well: order shows in the last bit."""
    g = headrace.Graph()
    x = g.input("x", (WIDTH,))
    s = g.state("s", (WIDTH,), "f32")
    scaled = g.name(g.scale(x, 1.25), "a.scaled")
    mixed = g.name(g.add(scaled, s), "b.mixed")
    y = g.output(g.tanh(mixed), "y")
    g.name(g.cpy(y, s), "b.kept")
    g.output(g.sum(y), "total")
    return g


@pytest.mark.parametrize("copies", COPIES)
def test_the_same_bits_as_run_by_run(daemon: Any, canary: Any, copies: int) -> None:
    rng = np.random.default_rng(7)
    first = rng.standard_normal(WIDTH).astype(np.float32)
    others = rng.standard_normal((4, WIDTH)).astype(np.float32)
    with headrace.connect(daemon.address) as client:
        states = [client.state({"s": ("f32", (WIDTH,))}, {"*": "cpu1"}) for _ in range(2)]
        one, two = (
            client.submit(mixer(), states=[s], pins=PINS, n_copies=copies) for s in states
        )
        # By hand: y of a run is x of the next, but for every third.
        expected, x = [], first
        for i in range(12):
            if i % 3 == 2:
                x = others[i // 3]
            result = one.run({"x": x})
            expected.append([result["y"].tobytes(), result["total"].tobytes()])
            assert result.sequence == i
            x = result["y"]
        steps = []
        for i in range(12):
            if i == 0:
                steps.append(Step(two, {"x": first}))
            elif i % 3 == 2:
                steps.append(Step(two, {"x": others[i // 3]}))
            else:
                steps.append(Step(two, feeds={"x": (i - 1, "y")}))
        results = client.sequence(steps)
        assert [[r["y"].tobytes(), r["total"].tobytes()] for r in results] == expected
        assert [r.sequence for r in results] == list(range(12))
        assert np.array_equal(states[0].read("s"), states[1].read("s"))
        canary.check()


def test_outputs_that_only_feed_stay_there(daemon: Any) -> None:
    g = headrace.Graph()
    x = g.input("x", (8,))
    g.output(g.add(x, x), "double")
    g.output(g.sqr(x), "square")
    with headrace.connect(daemon.address) as client:
        handle = client.submit(g)
        results = client.sequence(
            [
                Step(handle, {"x": np.arange(8)}, outputs=[]),
                Step(handle, feeds={"x": (0, "square")}, outputs=["double"]),
                Step(handle, feeds={"x": (0, "double")}, outputs=["square", "double"]),
                Step(handle, feeds={"x": (1, 0)}),
            ]
        )
        assert [len(r) for r in results] == [0, 1, 2, 2]
        n = np.arange(8, dtype=np.float32)
        assert np.array_equal(results[1]["double"], 2 * n * n)
        assert np.array_equal(results[2]["square"], 4 * n * n)
        assert np.array_equal(results[3]["square"], 4 * n**4)


def test_nothing_of_the_session_comes_between(launch: Callable[..., Any]) -> None:
    """A run sent after a sequence sees what its last step has left in the state."""
    slow = launch(devices=[device("cpu0", threads=1, delay="10ms"), device("host", threads=1)])
    g = headrace.Graph()
    x = g.input("x", (4,))
    s = g.state("s", (4,), "f32")
    y = g.output(g.add(s, x), "y")
    g.cpy(y, s)
    with headrace.connect(slow.address) as client:
        state = client.state({"s": ("f32", (4,))})
        handle = client.submit(g, states=[state], pins={"*": "cpu0"})
        results: list[Any] = []
        chain = threading.Thread(
            target=lambda: results.append(
                client.sequence([Step(handle, {"x": np.ones(4)}) for _ in range(10)])
            )
        )
        before = client.stats().value("runs_started_total")
        chain.start()
        raw.eventually(lambda: client.stats().value("runs_started_total") > before)
        last = handle.run({"x": np.ones(4)})
        chain.join()
        assert [r["y"][0] for r in results[0]] == list(range(1, 11))
        assert last["y"][0] == 11


def test_errors_name_the_step(daemon: Any) -> None:
    rows = headrace.Graph()
    ids = rows.input("ids", (2,), "i32")
    table = rows.constant(np.arange(12, dtype=np.float32).reshape(6, 2))
    rows.output(rows.get_rows(table, ids), "rows")
    with headrace.connect(daemon.address) as client:
        handle = client.submit(rows)

        def step(*values: int) -> Step:
            return Step(handle, {"ids": np.array(values, np.int32)})

        for bad in (0, 2, 4):
            steps = [step(0, 1) for _ in range(5)]
            steps[bad] = step(1, 77)
            with pytest.raises(HeadraceError, match=f"step {bad}") as caught:
                client.sequence(steps)
            assert caught.value.step == bad and caught.value.node is not None
        good = client.sequence([step(5, 0)])
        assert np.array_equal(good[0]["rows"], [[10, 11], [0, 1]])


def test_a_failing_step_names_what_it_has_written(daemon: Any) -> None:
    """Steps before it have written their states whole; of its own, those it got to."""
    g = headrace.Graph()
    x = g.input("x", (4,))
    ids = g.input("ids", (1,), "i32")
    first, second = g.state("first", (4,), "f32"), g.state("second", (4,), "f32")
    kept = g.name(g.cpy(x, first), "a.kept")
    picked = g.name(g.get_rows(g.reshape(kept, (4, 1)), ids), "b.picked")
    g.output(g.name(g.cpy(g.add(x, picked), second), "a.late"), "y")
    with headrace.connect(daemon.address) as client:
        states = client.state({"first": ("f32", (4,)), "second": ("f32", (4,))}, {"*": "cpu0"})
        handle = client.submit(g, states=[states], pins=PINS)

        def step(value: float, row: int) -> Step:
            return Step(handle, {"x": np.full(4, value), "ids": np.array([row], np.int32)})

        with pytest.raises(HeadraceError) as caught:
            client.sequence([step(1, 0), step(2, 9), step(3, 1)])
        assert caught.value.step == 1
        assert [g.tensor(t).name for t in caught.value.written] == ["first"]
        assert states.read("first").tolist() == [2] * 4
        assert states.read("second").tolist() == [2] * 4  # of the step before
        with pytest.raises(HeadraceError) as caught:
            handle.run({"x": np.full(4, 5), "ids": np.array([-1], np.int32)})
        assert [g.tensor(t).name for t in caught.value.written] == ["first"]


def test_stops_between_steps(launch: Callable[..., Any]) -> None:
    slow = launch(devices=[device("cpu0", threads=1, delay="100ms"), device("host", threads=1)])
    g = headrace.Graph()
    x = g.input("x", (4,))
    g.output(g.add(x, x), "y")
    with headrace.connect(slow.address) as client:
        handle = client.submit(g, pins={"*": "cpu0"})
        steps = [Step(handle, {"x": np.ones(4)})]
        steps += [Step(handle, feeds={"x": (i, "y")}) for i in range(60)]  # six seconds

        def started() -> float:
            return client.stats().value("runs_started_total")

        before = started()
        with pytest.raises(DeadlineExceeded):
            client.sequence(steps, timeout=0.1)
        client.sync()
        begun = started()
        operation = client.begin(
            headrace.sequences.sequence(steps, 0, client.body_max), None
        )
        raw.eventually(lambda: started() > begun)
        operation.cancel()
        with pytest.raises(Cancelled):
            operation.result()
        client.sync()
        assert 1 <= started() - before < 60, "of 122"
        out = client.sequence(steps[:11])[-1]["y"]
        assert out[0] == 2.0**11
        assert client.stats().value("runs_in_flight") == 0


def test_a_client_that_goes_leaves_nothing(launch: Callable[..., Any]) -> None:
    slow = launch(devices=[device("cpu0", threads=1, delay="20ms"), device("host", threads=1)])
    g = headrace.Graph()
    x = g.input("x", (4,))
    g.output(g.add(x, x), "y")
    with headrace.connect(slow.address) as watcher:
        for each in (False, True):
            with Conn(slow.address) as conn:
                handle = conn.submit(graphs.ping_pong(4), pins=graphs.pins(cpu0="*")).handle
                steps = [pb.Step(handle=handle) for _ in range(30)]
                conn.begin(raw.SEQUENCE, pb.Sequence(steps=steps, each=each), bytes(16 * 30))
                time.sleep(0.05)
        raw.eventually(lambda: watcher.stats().value("runs_in_flight") == 0, 10.0)
        raw.eventually(lambda: watcher.stats().value("sessions") == 1)
        assert watcher.stats().value("objects") == 0


def test_a_reply_per_step(daemon: Any) -> None:
    with Conn(daemon.address) as conn:
        handle = graphs.submit_ping_pong(conn, 16).handle
        data = [graphs.floats([float(i)] * 16) for i in range(5)]
        steps = [pb.Step(handle=handle) for _ in data]
        call = conn.begin(raw.SEQUENCE, pb.Sequence(steps=steps, each=True), b"".join(data))
        for i, expected in enumerate(data):
            frame = conn.next_of(call)
            assert frame.type == raw.SEQUENCE | raw.REPLY
            assert bool(frame.flags & raw.MORE) == (i < 4) != bool(frame.flags & raw.END)
            reply = pb.SequenceReply.FromString(frame.message)
            assert [list(one.output_bytes) for one in reply.steps] == [[64]]
            assert frame.body == expected
        conn.ping()
        steps[3].feeds.add(input=0, step=1, output=0)
        message = pb.Sequence(steps=steps, each=True)
        conn.begin(raw.SEQUENCE, message, b"".join(data[:3] + data[4:]))
        bodies = [conn.frame().body for _ in data]
        assert bodies == [data[0], data[1], data[2], data[1], data[4]]


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        ({"step": 2}, raw.INVALID, "FEED"),
        ({"step": 1}, raw.INVALID, "FEED"),
        ({"step": 2**31}, raw.INVALID, "FEED"),
        ({"output": 1}, raw.RANGE, "FEED"),
        ({"input": 1}, raw.RANGE, "FEED"),
        ({"twice": 1}, raw.INVALID, "FEED"),
        ({"other": 1}, raw.INVALID, "FEED"),
        ({"want": 3}, raw.RANGE, "OUTPUT"),
        ({"body": -1}, raw.INVALID, "SIZE"),
        ({"handle": 99}, raw.NOT_FOUND, "GRAPH"),
        ({"steps": 1000}, raw.EXHAUSTED, "LIMIT"),
        ({"steps": 0}, raw.INVALID, "DECODE"),
    ],
)
def test_what_is_no_sequence(
    daemon: Any, change: dict[str, int], code: int, reason: str
) -> None:
    with Conn(daemon.address) as conn:
        handle = graphs.submit_ping_pong(conn, 16).handle
        wider = graphs.submit_ping_pong(conn, 32).handle
        feed = {"input": 0, "step": 0, "output": 0}
        feed.update({key: value for key, value in change.items() if key in feed})
        steps = [pb.Step(handle=handle), pb.Step(handle=handle)]
        steps[1].feeds.add(**feed)
        if "twice" in change:
            steps[1].feeds.add(**feed)
        if "other" in change:
            steps[1].handle = wider
        if "want" in change:
            steps[0].outputs.append(change["want"])
        if "handle" in change:
            steps[1].handle = change["handle"]
        if "steps" in change:
            steps = [pb.Step(handle=handle)] * change["steps"]
        body = bytes(64 + change.get("body", 0))
        error = conn.fails(raw.SEQUENCE, pb.Sequence(steps=steps), body)
        assert (error.code, error.reason) == (code, reason)
        data = graphs.floats([1.0] * 16)
        assert conn.run(handle, data) == data


def test_sequence_with_asyncio(daemon: Any) -> None:
    async def main() -> None:
        async with await headrace.aio.connect(daemon.address) as client:
            g = headrace.Graph()
            x = g.input("x", (4,))
            g.output(g.add(x, x), "y")
            handle = await client.submit(g)
            steps = [Step(handle, {"x": np.ones(4)}), Step(handle, feeds={"x": (0, "y")})]
            results = await client.sequence(steps)
            assert results[1]["y"][0] == 4

    asyncio.run(main())


# ---- step by step --------------------------------------------------------------------------------


def doubling(client: Any, pinned: str | None = "*") -> Any:
    g = headrace.Graph()
    x = g.input("x", (4,))
    g.output(g.add(x, x), "y")
    return client.submit(g, pins={pinned: "cpu0"} if pinned else None)


def doublings(handle: Any, count: int) -> list[Step]:
    """1, 2, 4 ... are doubled."""
    return [Step(handle, {"x": np.ones(4)})] + [
        Step(handle, feeds={"x": (i, "y")}) for i in range(count - 1)
    ]


@pytest.mark.parametrize("copies", COPIES)
def test_steps_are_told_as_they_end(daemon: Any, copies: int) -> None:
    """In order, each once, the same results in one reply, by callback and by iteration."""
    g = headrace.Graph()
    x = g.input("x", (4,))
    y = g.scale(x, 2.0)
    g.output(g.add(y, x), "z")
    g.output(y, "y")
    with headrace.connect(daemon.address) as client:
        handle = client.submit(g, pins={"y": "cpu0", "z": "cpu1"}, n_copies=copies)
        assert handle.plan.split_count == 2
        steps = [Step(handle, {"x": np.arange(4)}, outputs=["z"])]
        steps += [Step(handle, feeds={"x": (i, "z")}, outputs=["y", "z"][: i % 3]) for i in range(9)]
        plain = client.sequence(steps)
        told: list[tuple[int, Any]] = []
        results = client.sequence(steps, on_step=lambda i, r: told.append((i, r)))
        assert [i for i, _ in told] == list(range(10))
        iterated = list(client.sequence_steps(steps))
        for one, other, third, (_, seen) in zip(plain, results, iterated, told, strict=True):
            for more in (other, third, seen):
                assert [v.tobytes() for v in one] == [v.tobytes() for v in more]


def test_a_step_arrives_before_the_next_has_ended(launch: Callable[..., Any]) -> None:
    """What is told is not held back: at the callback of a step the rest is still under way."""
    slow = launch(devices=[device("cpu0", threads=1, delay="60ms"), device("host", threads=1)])
    with headrace.connect(slow.address) as client, headrace.connect(slow.address) as watcher:
        seen: list[float] = []
        for result in client.sequence_steps(doublings(doubling(client), 4)):
            seen.append(float(result["y"][0]))
            if len(seen) < 4:
                assert watcher.stats().value("runs_in_flight") > 0
        assert seen == [2, 4, 8, 16]


def test_leaving_early_cancels_the_rest(launch: Callable[..., Any]) -> None:
    slow = launch(devices=[device("cpu0", threads=1, delay="30ms"), device("host", threads=1)])
    with headrace.connect(slow.address) as client:
        handle = doubling(client)
        steps = doublings(handle, 20)
        before = client.stats().value("runs_started_total")
        for number, result in enumerate(client.sequence_steps(steps)):
            assert result["y"][0] == 2.0 ** (number + 1)
            if number == 2:
                break

        def stop(number: int, result: Any) -> None:
            if number == 1:
                raise KeyError("enough")

        with pytest.raises(KeyError):
            client.sequence(steps, on_step=stop)
        client.sync()
        stats = client.stats()
        assert stats.value("runs_started_total") - before < 20
        assert stats.value("runs_in_flight") == 0
        assert client.sequence(steps)[-1]["y"][0] == 2.0**20


def test_steps_before_a_failure_are_told(daemon: Any) -> None:
    rows = headrace.Graph()
    ids = rows.input("ids", (1,), "i32")
    table = rows.constant(np.arange(12, dtype=np.float32).reshape(6, 2))
    rows.output(rows.get_rows(table, ids), "rows")
    with headrace.connect(daemon.address) as client:
        handle = client.submit(rows)
        steps = [Step(handle, {"ids": np.array([i], np.int32)}) for i in (1, 3, 6, 2)]
        seen = []
        with pytest.raises(HeadraceError) as caught:
            for result in client.sequence_steps(steps):
                seen.append(result["rows"].tolist())
        assert caught.value.step == 2
        assert seen == [[[2, 3]], [[6, 7]]]


def test_steps_of_a_graph_that_was_evicted(launch: Callable[..., Any]) -> None:
    """The graph is submitted again, and each step told once."""
    small = launch(sections={"limits": {"session_graphs": 2}})
    with headrace.connect(small.address) as client:
        handle = doubling(client, None)
        for width in (5, 6, 7):
            g = headrace.Graph()
            g.output(g.relu(g.input("x", (width,))), "y")
            client.submit(g)
        out = [r["y"][0] for r in client.sequence_steps(doublings(handle, 5))]
        assert out == [2, 4, 8, 16, 32]


def test_steps_with_asyncio(launch: Callable[..., Any]) -> None:
    slow = launch(devices=[device("cpu0", threads=1, delay="10ms"), device("host", threads=1)])

    async def main() -> None:
        async with await headrace.aio.connect(slow.address) as client:
            g = headrace.Graph()
            x = g.input("x", (4,))
            g.output(g.add(x, x), "y")
            handle = await client.submit(g, pins={"*": "cpu0"})
            steps = doublings(handle, 6)
            seen = [float(r["y"][0]) async for r in client.sequence_steps(steps)]
            assert seen == [2, 4, 8, 16, 32, 64]
            told: list[int] = []
            results = await client.sequence(steps, on_step=lambda i, r: told.append(i))
            assert told == list(range(6)) and results[5]["y"][0] == 64
            early = client.sequence_steps(doublings(handle, 30))
            assert (await anext(early))["y"][0] == 2
            await early.aclose()
            await client.sync()
            assert (await client.stats()).value("runs_in_flight") == 0

            def stop(number: int, result: Any) -> None:
                raise KeyError("enough")

            with pytest.raises(KeyError):
                await client.sequence(steps, on_step=stop)
            assert (await client.sequence(steps))[0]["y"][0] == 2

    asyncio.run(main())
