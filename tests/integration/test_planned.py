"""Bytes that are told: of sets and states where they are, and of whole graphs before anything is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import raw
from raw import F16, F32, INPUT, INVALID, NOT_FOUND, PRECONDITION, Q4_0, Q8_0, STATE, WEIGHT
from raw import Conn, Graph, pb
from run_daemon import Daemon, device

import headrace
from headrace import aio, errors

Q4_K = 12
#          type: bytes of a block, elements of a block
BLOCKS = {F32: (4, 1), F16: (2, 1), Q4_0: (18, 32), Q8_0: (34, 32), Q4_K: (144, 256)}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    devices = [
        device("cpu0", threads=1, memory="isolated"),
        device("cpu1", threads=1, memory="isolated"),
        device("host", threads=1),
    ]
    with Daemon(devices=devices) as running:
        yield running


@pytest.fixture
def served(daemon: Daemon) -> Daemon:
    """Nothing of an earlier test's session is held any more: it goes when its connection has gone."""

    def is_idle() -> bool:
        with Conn(daemon.address) as conn:
            stats = conn.stats()
        return stats["sessions"] == 1 and stats["objects"] == stats["weight_sets"] == 0

    raw.eventually(is_idle, 10.0)
    return daemon


def used(conn: Conn) -> dict[str, int]:
    reply, _ = conn.call(raw.DEVICES)
    return {one.name: one.memory_used for one in reply.devices}


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def size_of(type: int, ne: list[int]) -> int:
    size, block = BLOCKS[type]
    count = 1
    for extent in ne:
        count *= extent
    return count // block * size


# ---- sets and states -----------------------------------------------------------------------------


def put_reply(conn: Conn, name: str, tensors: Any, placement: list[tuple[str, str]]) -> Any:
    data = raw.contents(tensors)
    message = pb.WeightsPut(name=name, total_bytes=len(data), placement=raw.rules(placement))
    manifest = raw.manifest(tensors).SerializeToString()
    return conn.reply(conn.begin(raw.PUT, message, manifest, then=data))[0]


def test_b043_shares_that_were_asked_for(served: Daemon) -> None:
    """200 tensors at 0.49 to 0.51: off by no more than one of them, and both numbers are told."""
    one = 4 * 257
    tensors = [(f"t{i:03}", F32, [257], bytes(one)) for i in range(200)]
    with Conn(served.address) as conn:
        reply = put_reply(conn, "ratio", tensors, [("*", "fit:cpu0=0.49,cpu1=0.51")])
        shares = {one.device: one for one in reply.devices}
        assert set(shares) == {"cpu0", "cpu1"}
        total = 200 * one
        for name, ratio in (("cpu0", 0.49), ("cpu1", 0.51)):
            assert abs(shares[name].requested_bytes - ratio * total) <= 1
            assert abs(shares[name].planned_bytes - ratio * total) <= one
        assert sum(share.planned_bytes for share in shares.values()) == total


@pytest.mark.parametrize("where", ["cpu0", "host"])
def test_what_a_set_holds_is_what_the_device_has_less(served: Daemon, where: str) -> None:
    tensors = [("a", F32, [3], bytes(12)), ("b", Q8_0, [32, 5], bytes(170)),
               ("c", F32, [1000], bytes(4000))]  # fmt: skip
    with Conn(served.address) as conn:
        before = used(conn)
        reply = put_reply(conn, f"held-{where}", tensors, [("*", where)])
        (share,) = reply.devices
        assert (share.device, share.planned_bytes) == (where, 12 + 170 + 4000)
        assert share.requested_bytes == share.planned_bytes
        assert grown(before, used(conn)) == {where: share.held_bytes}
        assert share.held_bytes == 64 + 192 + 4032
        before = used(conn)
        message = pb.StateAlloc(placement=raw.rules([("*", where)]))
        made, _ = conn.call(raw.STATE_ALLOC, message, raw.manifest(tensors).SerializeToString())
        (share,) = made.devices
        assert (share.device, share.planned_bytes, share.held_bytes) == (where, 4182, 4288)
        assert grown(before, used(conn)) == {where: 4288}


# ---- dry runs ------------------------------------------------------------------------------------

HIDDEN, LAYERS = 512, 4


class Network:
    """Layers of products over weights of several block types, biases that need padding, a state."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.weights: list[tuple[str, int, list[int], bytes]] = []
        x = self.graph.leaf(INPUT, F32, [HIDDEN, 3], "x")
        leaves = []
        for layer in range(LAYERS):
            w = self.weight(f"blk.{layer}.w", (Q4_0, Q8_0, Q4_K, F16)[layer % 4], [HIDDEN, HIDDEN])
            b = self.weight(f"blk.{layer}.b", F32, [HIDDEN])
            s = self.weight(f"blk.{layer}.s", F32, [1])
            leaves.append((w, b, s, self.graph.leaf(STATE, F32, [HIDDEN, 3], f"blk.{layer}.cache")))
        for layer, (w, b, s, cache) in enumerate(leaves):
            for op, sources in (("MUL_MAT", (w, -1)), ("ADD", (-1, b)), ("MUL", (-1, s)),
                                ("ADD", (-1, cache))):  # fmt: skip
                chosen = tuple(x if source < 0 else source for source in sources)
                last = layer == LAYERS - 1 and cache in sources
                x = self.graph.node(op, F32, [HIDDEN, 3], chosen, output=last)

    def weight(self, name: str, type: int, ne: list[int]) -> int:
        self.weights.append((name, type, ne, bytes(size_of(type, ne))))
        return self.graph.leaf(WEIGHT, type, ne, name)

    @property
    def states(self) -> list[tuple[str, int, list[int], bytes]]:
        return [(f"blk.{layer}.cache", F32, [HIDDEN, 3], b"") for layer in range(LAYERS)]


RULES = [("blk.[01].*", "cpu0"), ("blk.*", "cpu1")]


@pytest.mark.parametrize("n_copies", [1, 3])
@pytest.mark.parametrize("placement", [RULES, [("*", "cpu1")], [("*", "fit:cpu0=1,cpu1=3")]])
def test_what_a_dry_run_predicts_is_what_is_measured(
    served: Daemon, placement: list[tuple[str, str]], n_copies: int
) -> None:
    network = Network()
    with Conn(served.address) as conn:
        before = used(conn)
        dry = conn.submit(
            network.graph, dry_run=True, n_copies=n_copies, planned=raw.rules(placement)
        )
        assert dry.handle == 0 and used(conn) == before, "nothing is taken"
        predicted = {one.device: one for one in dry.devices}
        info = conn.put(f"net-{placement}", network.weights, placement=placement)
        with_weights = used(conn)
        measured = grown(before, with_weights)
        assert set(measured) == {n for n, one in predicted.items() if one.weights_bytes}
        for name, size in measured.items():
            assert predicted[name].weights_bytes == pytest.approx(size, rel=0.01)
        manifest = raw.manifest(network.states).SerializeToString()
        message = pb.StateAlloc(placement=raw.rules(placement))
        state, _ = conn.call(raw.STATE_ALLOC, message, manifest)
        with_state = used(conn)
        measured = grown(with_weights, with_state)
        assert set(measured) == {n for n, one in predicted.items() if one.state_bytes}
        for name, size in measured.items():
            assert predicted[name].state_bytes == pytest.approx(size, rel=0.01)
        real = conn.submit(
            network.graph, weights=[info.handle], states=[state.handle], n_copies=n_copies
        )
        measured = grown(with_state, used(conn))
        assert set(measured) == {n for n, one in predicted.items() if one.compute_bytes}
        for name, size in measured.items():
            assert predicted[name].compute_bytes == pytest.approx(size, rel=0.01)
            assert predicted[name].copies_bytes <= predicted[name].compute_bytes
        assert real.origin == "hit", "the plan is the one that was asked about"
        assert list(real.devices) == list(dry.devices)
        assert (real.staging_bytes, real.n_copies) == (dry.staging_bytes, dry.n_copies)
        assert len(conn.run(real.handle, bytes(4 * HIDDEN * 3))) == 4 * HIDDEN * 3
        if placement == RULES:  # the middle travels from one device to the other, the input to the first
            assert predicted["cpu1"].copies_bytes >= n_copies * 4 * HIDDEN * 3


def test_some_leaves_there_and_some_planned(served: Daemon) -> None:
    network = Network()
    with Conn(served.address) as conn:
        info = conn.put("half", network.weights[:6], placement=[("*", "cpu0")])
        dry = conn.submit(
            network.graph, dry_run=True, weights=[info.handle], planned=raw.rules([("*", "cpu1")])
        )
        told = {one.device: one.weights_bytes for one in dry.devices}
        sizes = [-(-size_of(type, ne) // 64) * 64 for _, type, ne, _ in network.weights]
        assert told == {"cpu0": sum(sizes[:6]), "cpu1": sum(sizes[6:]), "host": 0}


def test_refusals(served: Daemon) -> None:
    network = Network()
    rules = raw.rules([("*", "cpu0")])
    with Conn(served.address) as conn:
        error = conn.submit_fails(network.graph, planned=rules)
        assert (error.code, error.reason) == (INVALID, "PLACEMENT")
        error = conn.submit_fails(network.graph, dry_run=True)
        assert (error.code, error.reason) == (PRECONDITION, "UNBOUND")
        error = conn.submit_fails(
            network.graph, dry_run=True, planned=raw.rules([("*", "nowhere")])
        )
        assert (error.code, error.reason) == (NOT_FOUND, "DEVICE")
        nameless = Graph()
        nameless.leaf(WEIGHT, F32, [4], "")
        nameless.node("ADD", F32, [4], (0, 0), output=True)
        error = conn.submit_fails(nameless, dry_run=True, planned=rules)
        assert (error.code, error.reason) == (INVALID, "NAME")
        twice = Graph()
        twice.leaf(WEIGHT, F32, [4], "w")
        twice.leaf(STATE, F32, [4], "w")  # another kind of leaf may have the name
        twice.node("ADD", F32, [4], (0, 1), output=True)
        assert conn.submit(twice, dry_run=True, planned=rules).split_count == 1


def test_blocking_and_asyncio_clients(served: Daemon) -> None:
    def graph() -> headrace.Graph:
        g = headrace.Graph()
        w = g.weight("w", (64, 256), "q4_K")
        g.output(g.mul_mat(w, g.input("x", (2, 256))), "y")
        return g

    async def ask() -> headrace.handles.PlanSummary:
        async with await aio.connect(served.address) as client:
            return (await client.submit(graph(), dry_run=True, planned={"w": "cpu1"})).plan

    with headrace.connect(served.address) as client:
        plan = client.submit(graph(), dry_run=True, planned={"w": "cpu1"}).plan
        shares = {share.device: share for share in plan.devices}
        assert shares["cpu1"].weights_bytes == 64 * 144 and shares["cpu1"].splits == 1
        assert asyncio.run(ask()).devices == plan.devices
        with pytest.raises(errors.InvalidArgument):
            client.submit(graph(), planned={"w": "cpu1"})
        weights = client.put("told", {"w": np.ones(100, np.float32)}, {"*": "cpu0"})
        assert weights.devices == (headrace.handles.PlacedShare("cpu0", 400, 400, 448),)
        state = client.state({"s": ("f32", (100,))}, {"*": "cpu1"})
        assert state.devices == (headrace.handles.PlacedShare("cpu1", 400, 400, 448),)
