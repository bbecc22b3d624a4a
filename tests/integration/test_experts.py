"""Experts of host weights on a device with memory of its own: what stays there, and what makes it stale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import raw
from run_daemon import Daemon, device

import headrace

EXPERTS, ROWS, WIDTH, USED = 16, 32, 64, 2
EXPERT_BYTES = 4 * ROWS * WIDTH


def weights(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((EXPERTS, ROWS, WIDTH)).astype(np.float32)


def mixture() -> headrace.Graph:
    g = headrace.Graph()
    w = g.weight("w", (EXPERTS, ROWS, WIDTH))
    x = g.input("x", (1, 1, WIDTH))
    g.output(g.mul_mat_id(w, x, g.input("ids", (1, USED), "i32")), "y")
    return g


def start(launch: Callable[..., Daemon], **keys: object) -> Daemon:
    return launch(
        devices=[
            device("iso", backend="cpu", threads=1, memory="isolated", **keys),
            device("host", backend="cpu", threads=1),
        ]
    )


X = np.random.default_rng(1).standard_normal((1, 1, WIDTH)).astype(np.float32)


def run(handle: Any, w: Any, ids: list[int]) -> None:
    y = np.asarray(handle.run({"x": X, "ids": np.array([ids], np.int32)})["y"]).reshape(USED, ROWS)
    want = np.stack([w[i].astype(np.float64) @ X.ravel() for i in ids])
    assert np.allclose(y, want, rtol=1e-4, atol=1e-4)


def misses(client: headrace.Client) -> float:
    return client.stats().value("experts_total", 'result="miss"')


@pytest.mark.parametrize(
    "given, stay",
    [
        (0, EXPERTS),  # no limit
        (EXPERTS * EXPERT_BYTES, EXPERTS),
        (4 * EXPERT_BYTES, 4),
        (1, 0),  # not even those of one run: nothing is kept
    ],
)
def test_memory_for_experts_is_a_device_setting(
    launch: Callable[..., Daemon], given: int, stay: int
) -> None:
    daemon = start(launch, expert_bytes=given)
    w = weights(3)
    with headrace.connect(daemon.address) as client:
        held = client.put("w", {"w": w}, {"*": "host"})
        handle = client.submit(mixture(), weights=[held], pins={"*": "iso"}, n_copies=1)
        share = next(d for d in handle.plan.devices if d.device == "iso")
        assert share.compute_bytes >= max(stay, USED) * EXPERT_BYTES
        assert share.compute_bytes < (max(stay, USED) + 1) * EXPERT_BYTES
        for first in (0, 2):  # four different ones
            run(handle, w, [first, first + 1])
        assert misses(client) == 4
        for first in (0, 2):  # again
            run(handle, w, [first, first + 1])
        assert misses(client) == (4 if stay >= 4 else 8)
        for first in range(4, EXPERTS, 2):
            run(handle, w, [first, first + 1])
        before = misses(client)
        run(handle, w, [0, 1])
        assert misses(client) - before == (0 if stay == EXPERTS else 2)


def test_a_set_of_the_same_name_is_another_set(launch: Callable[..., Daemon]) -> None:
    """Nothing writes into a set that is ready, so experts that stay never become stale: who uploads
    under a name again makes a set of its own, and the graphs of the old one keep theirs."""
    daemon = start(launch)
    old, new = weights(5), weights(6)
    with headrace.connect(daemon.address) as client:
        first = client.put("w", {"w": old}, {"*": "host"})
        before = client.submit(mixture(), weights=[first], pins={"*": "iso"})
        run(before, old, [3, 7])
        second = client.put("w", {"w": new}, {"*": "host"})
        assert second.handle != first.handle
        after = client.submit(mixture(), weights=[second], pins={"*": "iso"})
        assert after.plan.origin == "hit"
        for _ in range(2):
            run(after, new, [3, 7])
            run(before, old, [3, 7])
        client.drop(first)
        run(before, old, [7, 3])
        assert client.put("w", {"w": old}, {"*": "host"}).handle != first.handle
        run(after, new, [7, 3])


def test_a_graph_that_writes_into_a_weight_is_invalid(launch: Callable[..., Daemon]) -> None:
    daemon = start(launch)
    tensors = [("w", raw.F32, [8], bytes(32))]
    graph = raw.Graph()
    graph.leaf(raw.WEIGHT, raw.F32, [8], "w")
    graph.leaf(raw.INPUT, raw.F32, [8], "x")
    graph.node("CPY", raw.F32, [8], (1, 0), view=(0, 0), output=True)
    with raw.Conn(daemon.address) as conn:
        held = conn.put("w", tensors)
        error = conn.submit_fails(graph, weights=[held.handle])
        assert (error.code, error.reason) == (raw.INVALID, "ALIAS")
