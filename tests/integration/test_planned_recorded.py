"""What a dry run says of the recorded model graphs, on as many devices as they were recorded
with, is within one per cent of what is measured once weights, states and graph are there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import raw
import recorded_graphs
from raw import Conn, pb
from recorded_graphs import HOST, Recorded
from run_daemon import Daemon, device

FULL = bool(os.environ.get("HEADRACE_FULL"))


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    devices = [device(f"d{i}", threads=1, memory="isolated") for i in range(8)]
    with Daemon(devices=[*devices, device(HOST, threads=1)]) as running:
        yield running


def used(conn: Conn) -> dict[str, int]:
    return {one.name: one.memory_used for one in conn.call(raw.DEVICES)[0].devices}


def compare(told: dict[str, int], before: dict[str, int], after: dict[str, int], what: str) -> None:
    for name, size in told.items():
        assert size == pytest.approx(after[name] - before[name], rel=0.01), (what, name)


def check(conn: Conn, case: Recorded, n_copies: int) -> None:
    before = used(conn)
    keys = {"n_copies": n_copies, "op_offload": case.offload}
    dry = conn.submit(case.graph, dry_run=True, planned=raw.rules(case.rules), **keys)
    assert dry.handle == 0 and used(conn) == before, "nothing is taken"
    told = {one.device: one for one in dry.devices}
    assert all(told[name].splits and told[name].compute_bytes for name in case.devices - {HOST})
    weights = conn.put(f"set of {case.name}", case.weights, placement=case.rules)
    with_weights = used(conn)
    promised = {name: one.weights_bytes for name, one in told.items()}
    compare(promised, before, with_weights, "weights")
    states = []
    if case.states:
        message = pb.StateAlloc(placement=raw.rules(case.rules))
        manifest = raw.manifest(case.states).SerializeToString()
        states = [conn.call(raw.STATE_ALLOC, message, manifest)[0].handle]
    with_states = used(conn)
    promised = {name: one.state_bytes for name, one in told.items()}
    compare(promised, with_weights, with_states, "state")
    real = conn.submit(case.graph, weights=[weights.handle], states=states, **keys)
    bound = used(conn)
    promised = {name: one.compute_bytes for name, one in told.items()}
    compare(promised, with_states, bound, "compute")
    assert list(real.devices) == list(dry.devices)
    assert (real.split_count, real.staging_bytes, real.n_copies) == (
        dry.split_count, dry.staging_bytes, dry.n_copies)  # fmt: skip
    conn.run(real.handle, bytes(case.input_bytes))
    assert used(conn) == bound, "a run takes nothing"
    conn.call(raw.RELEASE, pb.Release(handle=real.handle))
    for state in states:
        conn.call(raw.STATE_FREE, pb.StateFree(handle=state))
    conn.call(raw.DROP, pb.WeightsDrop(handle=weights.handle))


@pytest.mark.parametrize("family", recorded_graphs.FAMILIES)
def test_recorded_graphs(served: Daemon, family: str) -> None:
    cases = list(recorded_graphs.read(family))
    assert len(cases) >= 6
    if not FULL:  # one of each family: the one on most devices
        cases = [max(cases, key=lambda case: (len(case.devices), case.name))]
    for case in cases:
        for n_copies in sorted({case.copies, 0, 1, 3, 16} if FULL else {case.copies, 0}):
            with Conn(served.address) as conn:  # a session: nothing is left of the one before
                check(conn, case, n_copies)
