"""Observed runs: every tap shows what has been computed so far, the run waits, and may be stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import raw
from raw import CANCELLED, DATA, DEADLINE, END, INVALID, MORE, REPLY, RUN, TAP, Conn, pb
from run_daemon import Daemon

import headrace
from headrace import Tensor, aio
from headrace.errors import Cancelled, InvalidArgument

N = 16
TAP_TIMEOUT_S = 0.4

Values = list[tuple[str, np.ndarray[Any, Any]]]


def chain(width: int = N) -> headrace.Graph:
    """x -> a = 2x -> b = a + s -> s += b (in place) -> c = first half of s -> d = 3c, on three devices."""
    g = headrace.Graph()
    x = g.input("x", [width])
    s = g.state("s", [width])
    a = g.name(g.scale(x, 2.0), "a")
    b = g.name(g.add(a, s), "b")
    w = g.name(g.add(s, b, inplace=True), "w")
    c = g.name(g.view(w, [width // 2]), "c")
    g.output(g.name(g.scale(c, 3.0), "d"), "d")
    return g


def expected(x: Any, s: Any) -> dict[str, Any]:
    a = 2 * x
    b = a + s
    w = s + b
    return {"a": a, "b": b, "w": w, "c": w[: len(w) // 2], "d": 3 * w[: len(w) // 2]}


PINS = {"a": "cpu0", "b": "cpu1", "d": "cpu0"}


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[headrace.Client]:
    with headrace.connect(daemon.address) as one:
        yield one


@pytest.mark.parametrize("copies", [1, 2, 4])
def test_every_node_is_shown_in_order(client: headrace.Client, copies: int) -> None:
    with_state = client.state({"s": ("f32", [N])}, {"s": "host"})
    handle = client.submit(chain(), states=[with_state], pins=PINS, taps=["*"], n_copies=copies)
    s = np.zeros(N, np.float32)
    for number in range(5):
        x = np.arange(N, dtype=np.float32) + number
        seen: Values = []
        observed = number % 2 == 0
        want = expected(x, s)
        result = handle.run(
            [x], observe=(lambda t, v: seen.append((t.name, v.copy()))) if observed else None
        )
        np.testing.assert_array_equal(result["d"], want["d"])
        assert [name for name, _ in seen] == (list("abwcd") if observed else [])
        assert result.taps == len(seen)
        for name, value in seen:
            np.testing.assert_array_equal(value, want[name], err_msg=name)
        s = want["w"]
    np.testing.assert_array_equal(with_state.read("s"), s)


def test_observed_or_not_the_bits_are_the_same(client: headrace.Client) -> None:
    """Taps inside what would be one pass, and a plan without any."""
    rng = np.random.default_rng(7)
    g = headrace.Graph()
    x = g.input("x", [7, 96])
    w = g.input("w", [96])
    y = g.name(g.mul(g.rms_norm(x, 1e-5), w), "y")
    z = g.name(g.silu(y), "z")
    g.output(g.mul(z, x), "o")
    data = {
        "x": rng.standard_normal((7, 96), np.float32),
        "w": rng.standard_normal(96, np.float32),
    }
    plain = client.submit(g).run(data)["o"]
    tapped = client.submit(g, taps=["y", "z"])
    shown: Values = []
    assert np.array_equal(tapped.run(data)["o"], plain)
    observed = tapped.run(data, observe=lambda t, v: shown.append((t.name, v)))
    assert np.array_equal(observed["o"], plain)
    assert [name for name, _ in shown] == ["y", "z"]
    assert np.array_equal(shown[1][1] * data["x"], plain)


def test_windows_with_gaps(client: headrace.Client) -> None:
    g = headrace.Graph()
    x = g.input("x", [6, 8])
    t = g.name(g.transpose(g.scale(x, 2.0)), "t")
    g.output(g.cont(t), "o")
    data = np.arange(48, dtype=np.float32).reshape(6, 8)
    shown: Values = []
    client.submit(g, taps=[t]).run([data], observe=lambda node, v: shown.append((node.name, v)))
    np.testing.assert_array_equal(shown[0][1], 2 * data.T)


def test_long_taps_come_in_pieces(client: headrace.Client) -> None:
    """Three MiB, with bodies of at most one."""
    count = (3 << 20) // 4 + 5
    assert count * 4 > 2 * client.body_max
    g = headrace.Graph()
    x = g.input("x", [count])
    a = g.name(g.scale(x, 0.5), "a")
    b = g.name(g.scale(a, 4.0), "b")
    g.output(b, "o")
    data = np.arange(count, dtype=np.float32)
    shown: list[Any] = []
    result = client.submit(g, taps=[a, b]).run([data], observe=lambda _, v: shown.append(v))
    np.testing.assert_array_equal(shown[0], data * np.float32(0.5))
    np.testing.assert_array_equal(shown[1], data * 2)
    np.testing.assert_array_equal(result["o"], data * 2)


@pytest.mark.parametrize("where", list("abwcd"))
def test_stop(client: headrace.Client, where: str) -> None:
    held = client.state({"s": ("f32", [N])}, {"s": "host"})
    graph = chain()
    handle = client.submit(graph, states=[held], pins=PINS, taps=["*"], n_copies=2)
    x = np.ones(N, np.float32)
    seen: list[str] = []

    def observe(tensor: Tensor, value: Any) -> bool:
        seen.append(tensor.name)
        return tensor.name != where

    with pytest.raises(Cancelled) as caught:
        handle.run([x], observe=observe)
    assert caught.value.reason == "TAP_STOP"
    assert seen == list("abwcd")[: "abwcd".index(where) + 1]
    wrote = "abwcd".index(where) >= 2
    assert [graph.tensor(t).name for t in caught.value.written] == (["s"] if wrote else [])
    # Steps up to the tap have happened, later ones have not, and the graph goes on.
    s = x * (2 if wrote else 0)
    np.testing.assert_array_equal(held.read("s"), s)
    np.testing.assert_array_equal(handle.run([x])["d"], expected(x, s)["d"])


def test_other_runs_of_the_session_wait_and_other_sessions_do_not(daemon: Daemon) -> None:
    waits, go_on = threading.Event(), threading.Event()
    order: list[str] = []
    with headrace.connect(daemon.address) as mine, headrace.connect(daemon.address) as other:
        held = mine.state({"s": ("f32", [N])}, {"s": "host"})
        handle = mine.submit(chain(), states=[held], pins=PINS, taps=["b"], n_copies=4)
        x = np.ones(N, np.float32)

        def observe(tensor: Tensor, value: Any) -> None:
            waits.set()
            assert go_on.wait(20)
            order.append("shown")

        def run() -> None:
            handle.run([x], observe=observe)

        def later() -> None:
            handle.run([x])
            order.append("later")

        threads = [threading.Thread(target=run), threading.Thread(target=later)]
        threads[0].start()
        assert waits.wait(20)
        threads[1].start()
        theirs = other.state({"s": ("f32", [N])}, {"s": "host"})
        their = other.submit(chain(), states=[theirs], pins=PINS)
        for _ in range(3):
            their.run([x])
        assert order == []
        go_on.set()
        for thread in threads:
            thread.join(20)
        assert order == ["shown", "later"]
        np.testing.assert_array_equal(held.read("s"), 6 * x)


def test_a_callback_that_raises_ends_the_run(client: headrace.Client) -> None:
    held = client.state({"s": ("f32", [N])}, {"s": "host"})
    handle = client.submit(chain(), states=[held], pins=PINS, taps=["b"])

    def observe(tensor: Tensor, value: Any) -> None:
        raise RuntimeError("enough")

    x = np.ones(N, np.float32)
    with pytest.raises(RuntimeError, match="enough"):
        handle.run([x], observe=observe)
    client.sync()
    np.testing.assert_array_equal(held.read("s"), 0 * x)
    np.testing.assert_array_equal(handle.run([x])["d"], expected(x, 0 * x)["d"])


def test_asyncio(daemon: Daemon) -> None:
    async def main() -> None:
        async with await aio.connect(daemon.address) as client:
            held = await client.state({"s": ("f32", [N])}, {"s": "host"})
            handle = await client.submit(chain(), states=[held], pins=PINS, taps=["b", "d"])
            x = np.ones(N, np.float32)
            seen: list[str] = []
            result = await handle.run([x], observe=lambda t, v: seen.append(t.name))
            assert seen == ["b", "d"] and result.taps == 2
            with pytest.raises(Cancelled) as caught:
                await handle.run([x], observe=lambda t, v: t.name != "d")
            assert caught.value.reason == "TAP_STOP" and len(caught.value.written) == 1

            def fail(tensor: Tensor, value: Any) -> bool:
                raise RuntimeError("enough")

            with pytest.raises(RuntimeError, match="enough"):
                await handle.run([x], observe=fail)
            await client.sync()
            np.testing.assert_array_equal(await held.read("s"), 6 * x)

    asyncio.run(main())


def test_what_is_no_tap(client: headrace.Client) -> None:
    graph = chain()
    held = client.state({"s": ("f32", [N])}, {"s": "host"})
    with pytest.raises(ValueError, match="no node"):
        client.submit(graph, states=[held], taps=["nobody"])
    with pytest.raises(ValueError, match="no node"):
        client.submit(graph, states=[held], taps=[graph.leaves[0]])
    plain = client.submit(graph, states=[held])
    with pytest.raises(InvalidArgument) as caught:
        plain.run([np.ones(N, np.float32)], observe=lambda t, v: None)
    assert caught.value.reason == "TAP"


# ---- by hand -------------------------------------------------------------------------------------


@pytest.fixture
def impatient(launch: Callable[..., Daemon]) -> Daemon:
    return launch(sections={"limits": {"tap_timeout": f"{int(TAP_TIMEOUT_S * 1000)}ms"}})


def twice(conn: Conn, taps: list[int]) -> int:
    """x -> 2x (node 1) -> 4x (node 2)."""
    graph = raw.Graph()
    x = graph.leaf(raw.INPUT, raw.F32, [4], "x")
    for number in (1, 2):
        x = graph.node("ADD", raw.F32, [4], (x, x), name=f"n{number}", output=number == 2)
    return int(conn.submit(graph, taps=taps).handle)


def begin(conn: Conn, handle: int, **keys: Any) -> int:
    data = np.arange(4, dtype=np.float32).tobytes()
    return conn.send(RUN, pb.Run(handle=handle, observe=True), data, **keys)


def take_tap(conn: Conn, run: int) -> tuple[Any, list[float]]:
    frame = conn.next_of(run)
    assert frame.type == TAP and frame.flags == END
    push = pb.TapPush.FromString(frame.message)
    assert push.bytes == len(frame.body)
    return push, np.frombuffer(frame.body, np.float32).tolist()


def answer(conn: Conn, run: int, tap: int, stop: bool = False) -> bool:
    reply, _ = conn.call(TAP, pb.Tap(run=run, tap=tap, stop=stop))
    return bool(reply.found)


@pytest.mark.parametrize("taps", [[0], [2, 1], [1, 1], [7]])
def test_taps_are_nodes_in_order(daemon: Daemon, taps: list[int]) -> None:
    with Conn(daemon.address) as conn:
        with pytest.raises(raw.RawError) as caught:
            twice(conn, taps)
        assert (caught.value.code, caught.value.reason) == (INVALID, "TAP")


def test_answers_that_mean_nobody(daemon: Daemon) -> None:
    with Conn(daemon.address) as conn, Conn(daemon.address) as other:
        run = begin(conn, twice(conn, [1, 2]))
        push, value = take_tap(conn, run)
        assert (push.tap, push.tensor, value) == (0, 1, [0, 2, 4, 6])
        assert not answer(conn, run, 1)  # it does not wait there
        assert not answer(conn, run + 100, 0)  # no such run
        assert not answer(other, run, 0)  # not on this connection
        assert answer(conn, run, 0)
        push, value = take_tap(conn, run)
        assert (push.tap, push.tensor, value) == (1, 2, [0, 4, 8, 12])
        assert answer(conn, run, 1)
        reply, body = conn.reply(run)
        assert reply.taps == 2 and reply.tap_ns > 0
        assert np.frombuffer(body, np.float32).tolist() == [0, 4, 8, 12]
        assert not answer(conn, run, 1)
        assert not answer(conn, conn.begin(raw.SYNC, b"", b""), 0)


def test_a_client_that_never_answers(impatient: Daemon) -> None:
    with Conn(impatient.address) as conn, Conn(impatient.address) as other:
        handle = twice(conn, [1])
        start = time.monotonic()
        run = begin(conn, handle)
        take_tap(conn, run)
        other.ping()
        with pytest.raises(raw.RawError) as caught:
            conn.reply(run)
        assert (caught.value.code, caught.value.reason) == (DEADLINE, "TAP_TIMEOUT")
        assert time.monotonic() - start >= TAP_TIMEOUT_S
        assert not answer(conn, run, 0)
        run = begin(conn, handle)  # the graph goes on
        take_tap(conn, run)
        assert answer(conn, run, 0)
        conn.reply(run)


def test_a_client_that_vanishes(daemon: Daemon) -> None:
    """The run ends, and everything that it held is given back."""
    with Conn(daemon.address) as watcher:
        before = stat(watcher, "objects")
        conn = Conn(daemon.address)
        run = begin(conn, twice(conn, [1]))
        take_tap(conn, run)
        assert stat(watcher, "runs_in_flight") == 1
        conn.close()
        deadline = time.monotonic() + 20
        while stat(watcher, "runs_in_flight") or stat(watcher, "objects") != before:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("where", range(5))
def test_a_cancel_names_what_has_been_written(daemon: Daemon, where: int) -> None:
    """Cancelled where it waits, at a b w c or d: w writes the state."""
    with Conn(daemon.address) as conn:
        tensors = raw.manifest([("s", raw.F32, [N], b"")]).SerializeToString()
        held = conn.call(raw.STATE_ALLOC, pb.StateAlloc(), tensors)[0].handle
        where_pinned = [pb.Pin(pattern=name, device=one) for name, one in PINS.items()]
        handle = conn.submit(
            chain().encode(), states=[held], taps=range(2, 7), pins=where_pinned, n_copies=2
        ).handle
        run = conn.send(RUN, pb.Run(handle=handle, observe=True), bytes(4 * N))
        for tap in range(where):
            take_tap(conn, run)
            assert answer(conn, run, tap)
        take_tap(conn, run)
        conn.call(raw.CANCEL, pb.Cancel(request_id=run))
        with pytest.raises(raw.RawError) as caught:
            conn.reply(run)
        assert caught.value.code == CANCELLED and caught.value.reason != "TAP_STOP"
        assert list(caught.value.error.written) == ([1] if where >= 2 else [])


def stat(conn: Conn, name: str) -> float:
    _, body = conn.call(raw.STATS)
    return float(next(s.value for s in pb.Stats.FromString(body).stats if s.name == name))


def test_cancel_and_deadline_reach_a_run_that_waits(daemon: Daemon) -> None:
    with Conn(daemon.address) as conn:
        handle = twice(conn, [1])
        run = begin(conn, handle)
        take_tap(conn, run)
        conn.call(raw.CANCEL, pb.Cancel(request_id=run))
        with pytest.raises(raw.RawError) as caught:
            conn.reply(run)
        assert caught.value.code == CANCELLED
        run = begin(conn, handle, timeout_ms=200)
        take_tap(conn, run)
        with pytest.raises(raw.RawError) as caught:
            conn.reply(run)
        assert caught.value.code == DEADLINE and caught.value.reason != "TAP_TIMEOUT"
        run = begin(conn, handle)
        take_tap(conn, run)
        assert answer(conn, run, 0)
        conn.reply(run)


@pytest.mark.parametrize("end", ["answer", "stop", "cancel", "close"])
def test_an_answer_before_the_tap_has_been_read(daemon: Daemon, end: str) -> None:
    """24 MiB that the socket does not take at once: the run goes on when it has."""
    count = 6 << 20
    graph = raw.Graph()
    x = graph.leaf(raw.INPUT, raw.F32, [4], "x")
    x = graph.node("REPEAT", raw.F32, [count], (x,), name="wide")
    graph.node("ADD", raw.F32, [count], (x, x), name="out", output=True)
    with Conn(daemon.address) as conn, Conn(daemon.address) as watcher:
        handle = int(conn.submit(graph, taps=[1]).handle)
        data = np.arange(4, dtype=np.float32).tobytes()
        run = conn.send(RUN, pb.Run(handle=handle, observe=True, no_outputs=True), data)
        shown = stat(watcher, "taps_total")
        while stat(watcher, "taps_total") == shown and stat(watcher, "runs_in_flight") == 0:
            time.sleep(0.01)
        if end == "close":
            conn.close()
            deadline = time.monotonic() + 20
            while stat(watcher, "runs_in_flight"):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return
        first = conn.next_of(run)
        assert first.type == TAP and first.flags == MORE
        if end == "cancel":
            conn.send(raw.CANCEL, pb.Cancel(request_id=run), flags=END | raw.NOREPLY)
        else:
            conn.send(TAP, pb.Tap(run=run, tap=0, stop=end == "stop"), flags=END | raw.NOREPLY)
        got = len(first.body)
        while got < 4 * count:
            frame = conn.next_of(run)
            assert frame.type == DATA | REPLY and pb.Data.FromString(frame.message).offset == got
            got += len(frame.body)
            assert frame.flags == (END if got == 4 * count else MORE)
        if end == "answer":
            assert conn.reply(run)[0].taps == 1
            return
        with pytest.raises(raw.RawError) as caught:
            conn.reply(run)
        assert caught.value.code == CANCELLED


def test_a_drain_ends_a_run_that_waits(launch: Callable[..., Daemon]) -> None:
    daemon = launch(sections={"daemon": {"drain_timeout": "300ms"}})
    with Conn(daemon.address) as conn:
        run = begin(conn, twice(conn, [1]))
        take_tap(conn, run)
        daemon.stop()
