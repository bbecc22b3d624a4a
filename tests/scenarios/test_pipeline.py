"""Scenarios of slots, copies, memory and cancelling across devices."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

import pytest
import raw
from graphs import (
    COPIES, bits, floats, pins, read_state, scale, state, submit_ping_pong, unfloats, write_state,
)  # fmt: skip
from raw import EXHAUSTED, F32, INPUT, STATE, Conn, Graph, pb
from run_daemon import device

pytestmark = pytest.mark.usefixtures("guarded")
FULL = bool(os.environ.get("HEADRACE_FULL"))


@pytest.mark.parametrize("copies", [1, 2, 3, 4, 8])
def test_b010_b021_echo_in_order(daemon: Any, copies: int) -> None:
    """As many runs in flight as the daemon takes, each with its own number: every answer is its
    own, none twice, none missing."""
    count = 2000 if FULL else 300
    with Conn(daemon.address) as conn:
        reply = submit_ping_pong(conn, 64, n_copies=copies)
        assert reply.n_copies <= copies
        calls: list[int] = []
        answers: list[tuple[Any, bytes]] = []
        for number in range(count):
            calls.append(conn.send(raw.RUN, pb.Run(handle=reply.handle), floats([number] * 64)))
            if len(calls) >= 40:
                answers.append(conn.reply(calls.pop(0)))
        answers += [conn.reply(call) for call in calls]
        for number, (run, body) in enumerate(answers):
            assert set(unfloats(body)) == {float(number)}
            assert (run.sequence, run.slot) == (number, number % reply.n_copies)
        assert len(answers) == count


def test_slots_follow_each_other(daemon: Any) -> None:
    with Conn(daemon.address) as conn:
        reply = submit_ping_pong(conn, 64, n_copies=4)
        slots = [
            conn.call(raw.RUN, pb.Run(handle=reply.handle), floats([1.0] * 64))[0].slot
            for _ in range(12)
        ]
        assert slots == [(slots[0] + i) % reply.n_copies for i in range(12)]


def layered(layers: int, width: int) -> Graph:
    """A chain of x -> silu-free arithmetic with a state that every run changes."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [width], "x")
    held = graph.leaf(STATE, F32, [width], "sum")
    last = x
    for number in range(layers):
        name = f"{'a' if number < layers // 2 else 'b'}{number}"
        last = graph.node("RMS_NORM", F32, [width], (last,), (bits(1e-5),), name=name)
        last = graph.node("ADD", F32, [width], (last, x), name=name)
    total = graph.node("ADD", F32, [width], (held, last), name="b-sum")
    graph.node("CPY", F32, [width], (total, held), view=(held, 0), name="b-keep", output=True)
    graph.node("SCALE", F32, [width], (last,), (bits(1.0), 0), name="b-out", output=True)
    return graph


@pytest.mark.parametrize("fresh", [False, True])
def test_b023_the_same_bits_with_any_number_of_copies(daemon: Any, fresh: bool) -> None:
    """Outputs of neighbouring runs, and a state that all of them change, bit for bit."""
    width, runs = 256, 20
    found = set()
    for copies in (1, 2, 4):
        with Conn(daemon.address) as conn:
            held = state(conn, [("sum", F32, [width])], "cpu1")
            reply = conn.submit(
                layered(8, width), states=[held], n_copies=copies, fresh=fresh,
                pins=pins(cpu0="a*", cpu1="b*"),
            )  # fmt: skip
            calls = [
                conn.send(raw.RUN, pb.Run(handle=reply.handle),
                          floats([(i * 31 + n * 7) % 101 / 10 for i in range(width)]))
                for n in range(runs)
            ]  # fmt: skip
            outs = [conn.reply(call)[1] for call in calls]
            found.add((b"".join(outs), read_state(conn, held, 0, 4 * width)))
    assert len(found) == 1
    outs_joined, last_state = found.pop()
    assert outs_joined[-8 * width : -4 * width] == last_state


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("wanted", [(1, 2), (0, 3), (0, 1, 2, 3), ()])
def test_b023_some_of_the_batches_give_outputs(
    daemon: Any, wanted: tuple[int, ...], copies: int
) -> None:
    """Four batches, all under way at once; outputs of the wanted ones, and the state that all of them
    change, are those of one batch after the other."""
    width = 64
    found = []
    for n_copies, at_once in ((1, 1), (copies, 4)):
        with Conn(daemon.address) as conn:
            held = state(conn, [("sum", F32, [width])], "cpu1")
            reply = conn.submit(
                layered(6, width), states=[held], n_copies=n_copies,
                pins=pins(cpu0="a*", cpu1="b*"),
            )  # fmt: skip
            outs, calls = [], []
            for turn in range(8 if FULL else 2):
                for batch in range(4):
                    data = floats([(i * 13 + batch + 4 * turn) % 31 / 7 for i in range(width)])
                    message = pb.Run(handle=reply.handle, no_outputs=batch not in wanted)
                    calls.append((conn.send(raw.RUN, message, data), batch in wanted))
                    while len(calls) >= at_once:
                        call, gives = calls.pop(0)
                        body = conn.reply(call)[1]
                        assert len(body) == (8 * width if gives else 0)
                        outs.append(body)
            outs += [conn.reply(call)[1] for call, _ in calls]
            found.append((outs, read_state(conn, held, 0, 4 * width)))
    assert found[0] == found[1]


def test_b025_no_copies_where_nothing_can_overlap(daemon: Any) -> None:
    graph = Graph()
    x = graph.leaf(INPUT, F32, [8], "x")
    scale(graph, x, [8], 2.0, output=True, name="only")
    with Conn(daemon.address) as conn:
        reply = conn.submit(graph, pins=pins(cpu0="only"))
        assert reply.n_copies == 1 and "one device" in reply.copies_reason
        # Decode on two devices: the first layer, and the head that chooses the token, on one of them.
        over = submit_ping_pong(conn, 64)
        assert over.n_copies == 1 or "under way" in over.copies_reason
        graph = Graph()
        last = graph.leaf(INPUT, F32, [8], "x")
        for name in ("a.embed", "b.layers", "a.head"):
            last = scale(graph, last, [8], 2.0, name=name, output=name == "a.head")
        back = conn.submit(graph, pins=pins(cpu0="a*", cpu1="b*"))
        assert back.n_copies == 1 and "needed until it ends" in back.copies_reason
        asked = conn.submit(graph, pins=pins(cpu0="a*", cpu1="b*"), n_copies=4)
        assert asked.n_copies == 4 and asked.copies_reason == "as asked"
        for handle in (back.handle, asked.handle, back.handle):
            assert unfloats(conn.run(handle, floats([1.5] * 8))) == (12.0,) * 8
        # One after the other on each is the other case: two may be under way.
        graph = Graph()
        first = scale(graph, graph.leaf(INPUT, F32, [8], "x"), [8], 2.0, name="a0")
        scale(graph, first, [8], 2.0, name="b0", output=True)
        reply = conn.submit(graph, pins=pins(cpu0="a*", cpu1="b*"))
        assert reply.n_copies == 2 and "under way at once" in reply.copies_reason


@pytest.mark.parametrize("copies", range(1, 9))
def test_b026_predicted_memory_is_what_is_taken(daemon: Any, copies: int) -> None:
    with Conn(daemon.address) as conn:
        size = 40000
        plan = submit_ping_pong(conn, size, 3, n_copies=copies, dry_run=True)
        predicted = {one.device: one.compute_bytes for one in plan.devices}
        before = conn.stats()
        reply = submit_ping_pong(conn, size, 3, n_copies=copies)
        after = conn.stats()
        assert reply.n_copies == plan.n_copies
        for name, bytes_ in predicted.items():
            key = f'device_memory_used_bytes{{device="{name}"}}'
            taken = after[key] - before[key]
            assert abs(taken - bytes_) <= max(0.01 * bytes_, 4096), (name, taken, bytes_)


def test_b028_fewer_copies_where_memory_is_short(launch: Callable[..., Any]) -> None:
    """8 copies do not fit; what fits is taken, and the reply says so."""
    tight = launch(
        devices=[
            device("cpu0", threads=1, memory="isolated", memory_cap="3M"),
            device("cpu1", threads=1, memory="isolated", memory_cap="3M"),
            device("host", threads=1),
        ]
    )
    size = 100000  # 400 KB a tensor
    with Conn(tight.address) as conn:
        found = {}
        for copies in (1, 2, 4, 8):
            reply = submit_ping_pong(conn, size, 2, n_copies=copies)
            found[copies] = reply.n_copies
            data = floats([float(i % 97) for i in range(size)])
            assert conn.run(reply.handle, data) == data
            conn.call(raw.RELEASE, pb.Release(handle=reply.handle))
        assert found[1] == 1 and found[8] < 8, found
        error = conn.submit_fails(_too_large(), pins=pins(cpu1="a*"))
        assert error.code == EXHAUSTED and error.error.actual > error.error.limit > 0


def _too_large() -> Graph:
    graph = Graph()
    x = graph.leaf(INPUT, F32, [16], "x")
    wide = graph.node("REPEAT", F32, [1 << 20], (x,), name="a0")
    doubled = scale(graph, wide, [1 << 20], 2.0, name="a1")
    graph.node("ADD", F32, [1 << 20], (wide, doubled), name="a2", output=True)
    return graph


def test_b028_pinned_too_large(launch: Callable[..., Any]) -> None:
    tight = launch(
        devices=[
            device("cpu0", threads=1, memory="isolated", memory_cap="3M"),
            device("host", threads=1),
        ]
    )
    with Conn(tight.address) as conn:
        error = conn.submit_fails(_too_large(), pins=pins(cpu0="a*"), n_copies=4)
        assert error.code == EXHAUSTED and "cpu0" in error.words
        assert error.error.actual > error.error.limit > 0
        handle = conn.submit(_too_large(), pins=pins(host="a*")).handle
        assert unfloats(conn.run(handle, floats([1.0] * 16)))[:16] == (3.0,) * 16


def test_b043_a_wanted_ratio_does_not_drift(daemon: Any) -> None:
    count, size = 200, 1024  # no device rounds these up
    tensors = [(f"t{i}", F32, [size], bytes(4 * size)) for i in range(count)]
    with Conn(daemon.address) as conn:
        before = conn.stats()
        message = pb.WeightsPut(
            name="ratio", total_bytes=count * 4 * size,
            placement=raw.rules([("*", "fit:cpu0=0.49,cpu1=0.51")]),
        )  # fmt: skip
        reply = conn.call(
            raw.PUT, message, raw.manifest(tensors).SerializeToString(), then=raw.contents(tensors)
        )[0]
        after = conn.stats()
        told = {one.device: one for one in reply.devices}
        for name, share in (("cpu0", 0.49), ("cpu1", 0.51)):
            key = f'device_memory_used_bytes{{device="{name}"}}'
            wanted = share * count * 4 * size
            assert abs(told[name].requested_bytes - wanted) <= 1
            assert abs(told[name].planned_bytes - wanted) <= 4 * size  # a granule: one tensor
            assert after[key] - before[key] == told[name].held_bytes
        assert sum(one.planned_bytes for one in reply.devices) == count * 4 * size


@pytest.mark.parametrize("copies", COPIES)
def test_b070_copies_between_equal_tensors_only(daemon: Any, copies: int) -> None:
    """A copy into a state of another device; the state outside the window stays as it was."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [8], "x")
    s = graph.leaf(STATE, F32, [32], "s")
    doubled = scale(graph, x, [8], 2.0, name="a0")
    window = graph.node("VIEW", F32, [8], (s,), (32, 0), view=(s, 32), name="b0")
    graph.node("CPY", F32, [8], (doubled, window), view=(s, 32), name="b1", output=True)
    with Conn(daemon.address) as conn:
        held = state(conn, [("s", F32, [32])], "cpu1")
        write_state(conn, held, 0, floats([7.0] * 32))
        reply = conn.submit(graph, states=[held], n_copies=copies, pins=pins(cpu0="a*", cpu1="b*"))
        for number in range(5):
            out = unfloats(conn.run(reply.handle, floats([float(number)] * 8)))
            assert out == (2.0 * number,) * 8
            whole = unfloats(read_state(conn, held, 0, 128))
            assert whole == (7.0,) * 8 + (2.0 * number,) * 8 + (7.0,) * 16


@pytest.mark.parametrize("copies", COPIES)
def test_states_and_runs_in_the_order_sent(daemon: Any, copies: int) -> None:
    """Writes, runs and reads of one session, sent without waiting, happen in that order. (45 runs:
    fewer than a session may have in flight.)"""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [4], "x")
    s = graph.leaf(STATE, F32, [4], "s")
    total = graph.node("ADD", F32, [4], (s, x), name="a0")
    graph.node("CPY", F32, [4], (total, s), view=(s, 0), name="a1", output=True)
    with Conn(daemon.address) as conn:
        held = state(conn, [("s", F32, [4])], "cpu0")
        handle = conn.submit(graph, states=[held], n_copies=copies).handle
        where = {"handle": held, "tensor": 0, "offset": 0, "bytes": 16}
        expected, calls = [], []
        for number in range(15):
            start = float(100 * number)
            conn.send(raw.STATE_WRITE, pb.StateWrite(**where), floats([start] * 4))
            for step in range(3):
                conn.send(raw.RUN, pb.Run(handle=handle, no_outputs=True), floats([1.0] * 4))
            calls.append(conn.send(raw.STATE_READ, pb.StateRead(**where)))
            expected.append((start + 3,) * 4)
        for call, values in zip(calls, expected, strict=True):
            assert unfloats(conn.reply(call)[1]) == values


def test_sync_comes_after_everything(daemon: Any) -> None:
    with Conn(daemon.address) as conn:
        reply = submit_ping_pong(conn, 64, n_copies=4)
        runs = [conn.send(raw.RUN, pb.Run(handle=reply.handle), bytes(256)) for _ in range(20)]
        sync = conn.send(raw.SYNC)
        order = [conn.frame().call_id for _ in range(21)]
        assert order[-1] == sync and sorted(order[:-1]) == runs


def test_numbers_of_the_wire_are_little_endian(daemon: Any) -> None:
    with Conn(daemon.address) as conn:
        reply = submit_ping_pong(conn, 2)
        data = struct.pack("<2f", 1.5, -2.0)
        assert conn.run(reply.handle, data) == bytes.fromhex("0000c03f000000c0")
