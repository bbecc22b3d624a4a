"""Compute memory that the graphs of a session share: reservations, reallocations, their refusal.

Every graph here sends its input through devices and gives something simple back, so that a result
shows at once whether memory was somebody else's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import graphs
import headrace
import headrace.aio
import numpy as np
import pytest
import raw
from headrace.errors import FailedPrecondition
from raw import Conn, pb
from run_daemon import device

COPIES = [1, 2, 4]
FULL = bool(os.environ.get("HEADRACE_FULL"))


def chain(width: int, links: int = 6, devices: int = 2, keep: int = 0) -> headrace.Graph:
    """x + links; node i is named d0.. or d1..; `keep` early values live until the end."""
    g = headrace.Graph()
    x = g.input("x", (width,))
    one = g.constant(np.ones(width, np.float32))
    kept = []
    for i in range(links):
        x = g.name(g.add(x, one), f"d{i % devices}.{i}")
        if i < keep:
            kept.append(x)
    for i, value in enumerate(kept):
        x = g.name(g.add(x, g.name(g.sub(value, value), f"d0.zero{i}")), f"d0.end{i}")
    g.output(x, "y")
    return g


PINS = {"d0.*": "cpu0", "d1.*": "cpu1", "y": "cpu0"}


def check_run(handle: headrace.GraphHandle, links: int = 6, value: float = 1.0) -> None:
    width = handle.input_shapes[0][0]
    out = handle.run({"x": np.full(width, value, np.float32)})["y"]
    assert np.array_equal(out, np.full(width, value + links, np.float32))


def used(client: headrace.Client) -> dict[str, float]:
    """Of cpu0 and cpu1; the bystander works on the host's."""
    found = client.stats().labelled("device_memory_used_bytes")
    return {label: value for label, value in found.items() if "cpu" in label}


@pytest.mark.parametrize("copies", COPIES)
def test_b005_reserve_keeps_pins(daemon: Any, canary: Any, copies: int) -> None:
    with headrace.connect(daemon.address) as client:
        worst = chain(40000)
        with client.reserve([worst], pins=PINS, n_copies=copies) as held:
            (graph,) = held.graphs
            assert graph.n_copies == copies and graph.pipelined == (copies > 1)
            assert graph.copies_reason
            splits = {share.device: share.splits for share in held.devices}
            assert splits["cpu0"] > 0 and splits["cpu1"] > 0 and splits["host"] == 0
            for width in (1000, 16, 40000, 7):
                smaller = client.submit(
                    chain(width), pins=PINS, n_copies=copies, realloc_fail=True
                )
                assert smaller.plan.reallocs == 0 and smaller.plan.realloc is None
                assert smaller.plan.reserved == (width == 40000)
                shares = {share.device: share.splits for share in smaller.plan.devices}
                assert shares == splits
                check_run(smaller)
                assert smaller.run({"x": np.zeros(width, np.float32)}).moves == 0
                smaller.release()
        canary.check()


def test_b005_why_nothing_is_pipelined(daemon: Any) -> None:
    with headrace.connect(daemon.address) as client:
        held = client.reserve([chain(64, devices=1)], pins={"*": "cpu0"})
        assert not held.graphs[0].pipelined and held.graphs[0].n_copies == 1
        assert held.graphs[0].copies_reason
        held.release()
        held.release()  # gone already


@pytest.mark.parametrize("copies", COPIES)
def test_reserved_bytes_are_those_taken(daemon: Any, copies: int) -> None:
    with headrace.connect(daemon.address) as client:
        before = used(client)
        held = client.reserve(
            [chain(30000), chain(20000, keep=5)], pins=PINS, n_copies=copies
        )
        taken = used(client)
        for share in held.devices[:2]:
            key = f'device="{share.device}"'
            assert abs(taken[key] - before[key] - share.compute_bytes) <= max(
                0.01 * share.compute_bytes, 4096
            )
        for graph in (chain(30000), chain(20000, keep=5)):
            handle = client.submit(graph, pins=PINS, n_copies=copies)
            assert handle.plan.reserved and handle.plan.origin == "hit"
            check_run(handle)
        assert used(client) == taken  # submitting took nothing
        held.release()
        check_run(handle)
        assert handle.plan.reallocs == 0
        handle.release()
        client.reset()


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("how", ["count", "fail"])
def test_b013_two_graphs_with_other_lifetimes(
    launch_watched: Callable[..., Any], how: str, copies: int
) -> None:
    """Equal node counts, different live ranges, alternating; with realloc = fail as well."""
    both = [chain(4000, links=10, keep=5), chain(4000, links=20)]
    links = [10, 20]
    running = launch_watched(
        devices=[device("cpu0", threads=1, memory="isolated"), device("host", threads=1)],
        sections={"daemon": {"realloc": how}},
    )
    with headrace.connect(running.address) as client:
        assert len({len(graph.nodes) for graph in both}) == 1
        pins = {"*": "cpu0"}
        # Without a reservation the larger one, second, makes the memory grow.
        small = client.submit(both[1], pins=pins, n_copies=copies)
        assert small.plan.reallocs == 0
        if how == "count":
            large = client.submit(both[0], pins=pins, n_copies=copies)
            assert large.plan.reallocs == 1 and large.plan.realloc is not None
            grown = large.plan.realloc
            assert grown.device == "cpu0" and 0 < grown.old_bytes < grown.new_bytes
            assert (both[0].leaves + both[0].nodes)[grown.tensor].name == grown.name != ""
            assert small.run({"x": np.zeros(4000, np.float32)}).moves == 1
            assert client.stats().value("reallocations_total") == 1
            large.release()
        else:
            with pytest.raises(FailedPrecondition) as caught:
                client.submit(both[0], pins=pins, n_copies=copies)
            error = caught.value
            assert error.reason == "REALLOC" and "cpu0" in str(error)
            assert error.tensor is not None and 0 < error.limit < error.actual
        check_run(small, 20)
        small.release()
        assert client.reset().reallocs == 0
        client.reserve(both, pins=pins, n_copies=copies)
        for number in range(1000 if FULL else 60):
            handle = client.submit(both[number % 2], pins=pins, n_copies=copies)
            assert handle.plan.reallocs == 0
            check_run(handle, links[number % 2], float(number))
            handle.release()
        assert client.stats().value("reallocations_total") == (1 if how == "count" else 0)


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("growing", ["reserve", "submit"])
def test_b015_reserve_while_a_run_is_under_way(
    launch_watched: Callable[..., Any], growing: str, copies: int
) -> None:
    """Another connection of the session asks for more in the middle of a long run, and gives it
    back in the middle of another."""
    slow = launch_watched(
        devices=[
            device("cpu0", threads=1, memory="isolated", delay="5ms"),
            device("cpu1", threads=1, memory="isolated", delay="5ms"),
            device("host", threads=1),
        ]
    )
    with headrace.connect(slow.address) as first:
        token = first.hello.session_token
        with headrace.connect(slow.address, token=token) as second:
            handle = first.submit(chain(1000), pins=PINS, n_copies=copies)
            ones = np.ones(1000, np.float32)
            for width in (2000, 50000, 400000):
                run = handle.run_async({"x": ones})
                larger: Any
                if growing == "reserve":
                    larger = second.reserve([chain(width)], pins=PINS, n_copies=copies)
                else:
                    larger = second.submit(chain(width), pins=PINS, n_copies=copies)
                another = handle.run_async({"x": ones * 2})
                assert np.array_equal(run.result()["y"], ones * 7)
                assert np.array_equal(another.result()["y"], ones * 8)
                if growing == "submit":
                    check_run(larger)
                run = handle.run_async({"x": ones * 3})
                larger.release()
                second.reset()
                assert np.array_equal(run.result()["y"], ones * 9)
            end = time.monotonic() + 10
            while used(first)['device="cpu0"'] >= 100000:  # nothing of the large ones stays
                assert time.monotonic() < end
                time.sleep(0.01)


def test_b015_released_in_flight_frees_afterwards(launch_watched: Callable[..., Any]) -> None:
    slow = launch_watched(
        devices=[
            device("cpu0", threads=1, memory="isolated", delay="50ms"),
            device("cpu1", threads=1, memory="isolated", delay="50ms"),
            device("host", threads=1),
        ]
    )
    with headrace.connect(slow.address) as client:
        before = used(client)
        graph = chain(200000)
        held = client.reserve([graph], pins=PINS)
        handle = client.submit(graph, pins=PINS)
        assert handle.plan.reserved
        run = handle.run_async({"x": np.ones(200000, np.float32)})
        held.release()
        handle.release()
        assert np.array_equal(run.result()["y"], np.full(200000, 7, np.float32))
        client.sync()
        client.reset()
        assert used(client) == before


@pytest.mark.parametrize("copies", COPIES)
def test_b016_one_device_grows_though_the_total_shrinks(
    daemon: Any, canary: Any, copies: int
) -> None:
    """P1 has two equal large tensors, one a device; P2 a larger one on one device only. The total of
    P2 is smaller, and yet that device's memory has to grow."""
    first, second = chain(20000), chain(30000, devices=1)
    with headrace.connect(daemon.address) as client:
        p1 = client.submit(first, pins=PINS, n_copies=copies)
        p2 = client.submit(second, pins={"*": "cpu1"}, n_copies=copies)
        totals = [sum(s.compute_bytes for s in p.plan.devices) for p in (p1, p2)]
        assert totals[1] < totals[0]
        assert p2.plan.reallocs == 1 and p2.plan.realloc is not None
        assert p2.plan.realloc.device == "cpu1"
        for _ in range(500 if FULL else 10):
            check_run(p1)
            check_run(p2)
        # Memory of a GPU grows where it is, and nobody has to move.
        moves = int(os.environ.get("HEADRACE_TEST_BACKEND") != "cuda")
        assert p1.run({"x": np.zeros(20000, np.float32)}).moves == moves
        with pytest.raises(FailedPrecondition, match="cpu0"):
            client.submit(chain(60000, devices=1), pins={"*": "cpu0"}, realloc_fail=True)
        check_run(p1)
        canary.check()


def test_memory_is_held_once(daemon: Any) -> None:
    """Ten graphs of a session take what the largest passes through, and another session its own."""
    with headrace.connect(daemon.address) as client, headrace.connect(daemon.address) as other:
        before = used(client)['device="cpu0"']

        def taken() -> float:
            return used(client)['device="cpu0"'] - before

        def submit(where: headrace.Client, width: int) -> headrace.GraphHandle:
            g = headrace.Graph()
            x = g.input("x", (width,))
            for _ in range(4):
                x = g.add(x, x)
            g.output(x, "y")
            return where.submit(g, pins={"*": "cpu0"})

        submit(client, 50000)
        alone = taken()
        for i in range(10):
            handle = submit(client, 40000 + i)
            assert handle.run({"x": np.ones(40000 + i, np.float32)})["y"][-1] == 16
        assert taken() == alone
        submit(other, 50000)
        assert taken() == 2 * alone
        handle.release()


def test_reset_drops_every_reservation(daemon: Any) -> None:
    with headrace.connect(daemon.address) as client:
        before = used(client)
        for width in (1000, 2000, 4000):
            client.reserve([chain(width)], pins=PINS)
        last = client.reserve([chain(100)], pins=PINS)
        kept = client.submit(chain(500), pins=PINS)
        assert kept.plan.reallocs == 0
        reply = client.reset()
        assert reply.handle == 0 and reply.reallocs == 0 and not reply.graphs
        last.release()  # gone already
        check_run(kept)
        kept.release()
        client.reset()
        assert used(client) == before


def test_what_is_no_reservation(daemon: Any) -> None:
    with headrace.connect(daemon.address) as client:
        before = used(client)
        unbound = headrace.Graph()
        unbound.output(unbound.relu(unbound.weight("w", (4,))), "y")
        with pytest.raises(FailedPrecondition, match="graph 1") as caught:
            client.reserve([chain(64), unbound])
        assert caught.value.reason == "UNBOUND"
        assert used(client) == before
    with Conn(daemon.address) as conn:
        graph = graphs.ping_pong(16)
        encoded = graph.encode().SerializeToString()
        one = pb.Submit(graph_bytes=len(encoded))
        error = conn.fails(raw.RESERVE, pb.Reserve(graphs=[one, one]), encoded)
        assert error.code == raw.INVALID and error.reason == "SIZE"
        one.dry_run = True
        error = conn.fails(raw.RESERVE, pb.Reserve(graphs=[one]), encoded)
        assert error.code == raw.INVALID and error.reason == "RESERVE"
        error = conn.fails(raw.RESERVE, pb.Reserve(graphs=[pb.Submit(digest=bytes(32))]))
        assert error.code == raw.NOT_FOUND and error.error.digest == bytes(32)
        error = conn.fails(raw.RESERVE, pb.Reserve(graphs=[pb.Submit()] * 1000))
        assert error.code == raw.EXHAUSTED


def test_reserve_with_asyncio(daemon: Any) -> None:
    async def main() -> None:
        async with await headrace.aio.connect(daemon.address) as client:
            async with await client.reserve([chain(3000), chain(5000)], pins=PINS) as held:
                assert len(held.graphs) == 2
                handle = await client.submit(chain(4000), pins=PINS, realloc_fail=True)
                out = await handle.run({"x": np.ones(4000, np.float32)})
                assert out["y"][0] == 7 and handle.plan.reallocs == 0
            assert (await client.reset()).reallocs == 0

    asyncio.run(main())


@pytest.mark.parametrize("copies", COPIES)
def test_b040_a_view_follows_its_weight(daemon: Any, canary: Any, copies: int) -> None:
    """A window on a weight; the weight moves to another device: loaded there, dropped here. Graphs
    submitted before keep what they were bound to, graphs submitted after see the new place."""
    g = headrace.Graph()
    w = g.weight("w", (6, 8))
    window = g.view(w, (2, 8), offset=2 * w.nb[1])
    x = g.input("x", (2, 8))
    g.output(g.name(g.add(window, x), "sum"), "sum")
    first = np.arange(48, dtype=np.float32).reshape(6, 8)
    zeros = np.zeros((2, 8), np.float32)
    with headrace.connect(daemon.address) as client:
        before = used(client)
        here = client.put("b040", {"w": first}, {"*": "cpu0"})
        old = client.submit(g, weights=[here], n_copies=copies)
        assert np.array_equal(old.run({"x": zeros})["sum"], first[2:4])
        there = client.put("b040-moved", {"w": first + 100}, {"*": "cpu1"})
        client.drop(here)
        new = client.submit(g, weights=[there], n_copies=copies)
        for _ in range(5):
            assert np.array_equal(old.run({"x": zeros})["sum"], first[2:4])
            assert np.array_equal(new.run({"x": zeros})["sum"], first[2:4] + 100)
        with pytest.raises(headrace.HeadraceError) as caught:
            client.submit(g, weights=[here])
        assert caught.value.reason == "WEIGHTS"
        old.release()
        assert np.array_equal(new.run({"x": zeros})["sum"], first[2:4] + 100)
        new.release()
        client.drop(there)
        client.reset()
        assert used(client) == before
        canary.check()
