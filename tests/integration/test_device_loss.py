"""A device is lost while clients use it: typed errors, then the same work on the other devices.

The daemon is the one of the tests (tests/fake/headraced-fake): two simulated devices, which are lost
as soon as a file of their name lies in a folder, and a CPU.
"""

from __future__ import annotations

import http.client
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw
from raw import F32, INPUT, STATE, WEIGHT, Conn, Graph, pb
from run_daemon import Daemon, build_folder, device, held_port

import headrace
from headrace import errors

DATA_LOSS, DEVICE_LOST, NOT_FOUND = 15, 14, 5
WIDTH = 32


class Fleet:
    def __init__(self, daemon: Daemon, folder: Path, port: int) -> None:
        self.daemon, self.folder = daemon, folder
        self.address = daemon.address
        self.http = port

    def lose(self, name: str) -> None:
        (self.folder / name).touch()


@pytest.fixture
def fleet(launch: Callable[..., Daemon], tmp_path: Path) -> Iterator[Fleet]:
    program = build_folder() / "tests" / "fake" / "headraced-fake"
    if not program.exists():
        pytest.skip(f"no {program}: a build without the option fake")
    port = held_port()
    daemon = launch(
        program=program,
        variables={"HEADRACE_FAKE_LOSE": str(tmp_path)},
        devices=(
            device("fake0", backend="fake"),
            device("fake1", backend="fake"),
            device("cpu0", backend="cpu", threads=1),
        ),
        # A run is to find that a device is lost, not the pulse between two of them.
        sections={"daemon": {"heartbeat": "3600s", "metrics": f"127.0.0.1:{port}"}},
    )
    yield Fleet(daemon, tmp_path, port)


def floats(value: float) -> bytes:
    return struct.pack(f"<{WIDTH}f", *[value] * WIDTH)


def chain() -> Graph:
    """x doubled three times; each node may be pinned by its name."""
    graph = Graph()
    last = graph.leaf(INPUT, F32, [WIDTH], "x")
    for name in ("a", "b", "c"):
        last = graph.node("ADD", F32, [WIDTH], (last, last), name=name, output=name == "c")
    return graph


def pins(**where: str) -> list[Any]:
    return [pb.Pin(pattern=pattern, device=name) for pattern, name in where.items()]


def run(conn: Conn, handle: int, value: float) -> float:
    reply = conn.call(raw.RUN, pb.Run(handle=handle), floats(value))[1]
    found = set(struct.unpack(f"<{WIDTH}f", reply))
    assert len(found) == 1
    return float(found.pop())


def error_of(conn: Conn, type: int, message: Any, body: bytes = b"") -> tuple[int, str, Any]:
    with pytest.raises(raw.RawError) as caught:
        conn.call(type, message, body)
    return caught.value.code, caught.value.reason, caught.value


def test_runs_fail_and_the_graph_is_planned_anew(fleet: Fleet) -> None:
    with Conn(fleet.address) as conn, Conn(fleet.address) as bystander:
        epoch = conn.greeting.epoch
        free = conn.submit(chain())
        there = conn.submit(chain(), pins=pins(a="fake0", b="fake1", c="cpu0"))
        elsewhere = bystander.submit(chain(), pins=pins(a="cpu0", b="fake1", c="cpu0"))
        assert run(conn, there.handle, 1.5) == 12.0
        assert run(conn, free.handle, 1.5) == 12.0
        assert run(bystander, elsewhere.handle, 2.0) == 16.0
        fleet.lose("fake0")
        code, reason, _ = error_of(conn, raw.RUN, pb.Run(handle=there.handle), floats(1.0))
        assert (code, reason) == (DEVICE_LOST, "DEVICE_LOST")
        # The handle is gone as one that was evicted, with the digest by which to submit again.
        code, reason, error = error_of(conn, raw.RUN, pb.Run(handle=there.handle), floats(1.0))
        assert (code, reason) == (NOT_FOUND, "GRAPH")
        assert error.error.digest == there.digest
        code, reason, error = error_of(conn, raw.RUN, pb.Run(handle=there.handle), floats(1.0))
        assert (code, reason, error.error.digest) == (NOT_FOUND, "GRAPH", there.digest)
        again = conn.submit(chain())
        assert again.origin in ("epoch", "new")
        assert [run(conn, again.handle, value) for value in (1.0, 2.0)] == [8.0, 16.0]
        # Who does not need the device notices nothing.
        assert run(bystander, elsewhere.handle, 3.0) == 24.0
        # A pin to it is an error, and a hello tells the new epoch.
        with pytest.raises(raw.RawError) as caught:
            conn.submit(chain(), pins=pins(a="fake0"))
        assert (caught.value.code, caught.value.reason) == (NOT_FOUND, "DEVICE")
        with Conn(fleet.address) as late:
            assert late.greeting.epoch == epoch + 1
            lost = [d for d in late.greeting.devices if d.description == "lost"]
            assert [(d.name, d.memory_total) for d in lost] == [("fake0", 0)]
        assert conn.stats()['graph_evictions_total{reason="device_lost"}'] >= 1
    assert re.search(r"1 of 3 devices lost and retired", fleet.daemon.log())


def test_health_tells_which_device_is_lost(fleet: Fleet) -> None:
    """Degraded in the figures and over HTTP; not ready, as the device is required."""
    with Conn(fleet.address) as conn:
        there = conn.submit(chain(), pins=pins(a="fake0", b="fake1", c="cpu0"))
        assert run(conn, there.handle, 1.5) == 12.0
        assert ask(fleet.http, "/degraded") == (200, "not degraded\n")
        fleet.lose("fake0")
        error_of(conn, raw.RUN, pb.Run(handle=there.handle), floats(1.0))
        assert conn.stats()["degraded"] == 1 and conn.stats()["ready"] == 0
    assert ask(fleet.http, "/degraded") == (503, "device fake0: lost\n")
    assert ask(fleet.http, "/ready") == (503, "a device is lost\n")
    assert ask(fleet.http, "/live") == (200, "live\n")


def ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_many_runs_in_flight_each_end_once(fleet: Fleet) -> None:
    with Conn(fleet.address) as conn:
        reply = conn.submit(chain(), pins=pins(a="fake0", b="fake1", c="cpu0"), n_copies=3)
        calls = [
            conn.send(raw.RUN, pb.Run(handle=reply.handle), floats(float(number)))
            for number in range(20)
        ]
        fleet.lose("fake1")
        calls += [
            conn.send(raw.RUN, pb.Run(handle=reply.handle), floats(1.0)) for _ in range(20)
        ]
        ends = []
        for call in calls:
            try:
                conn.reply(call)
                ends.append(0)
            except raw.RawError as error:
                ends.append(error.code)
        assert set(ends) <= {0, DEVICE_LOST, NOT_FOUND}
        assert ends[-1] in (DEVICE_LOST, NOT_FOUND)
        # Once lost, nothing succeeds: the successes come first.
        assert ends == sorted(ends, key=lambda code: code != 0)
        assert run(conn, conn.submit(chain()).handle, 1.0) == 8.0


def test_a_sequence_names_the_step_and_the_graph(fleet: Fleet) -> None:
    with Conn(fleet.address) as conn:
        here = conn.submit(chain(), pins=pins(a="cpu0", b="cpu0", c="cpu0"))
        there = conn.submit(chain(), pins=pins(a="fake0"))
        feed = pb.Feed(input=0, step=0, output=0)
        message = pb.Sequence(
            steps=[pb.Step(handle=here.handle), pb.Step(handle=there.handle, feeds=[feed])]
        )
        reply = conn.call(raw.SEQUENCE, message, floats(0.5))[1]
        assert set(struct.unpack(f"<{WIDTH}f", reply[-WIDTH * 4 :])) == {32.0}
        fleet.lose("fake0")
        code, _, _ = error_of(conn, raw.SEQUENCE, message, floats(0.5))
        assert code == DEVICE_LOST
        code, reason, error = error_of(conn, raw.SEQUENCE, message, floats(0.5))
        assert (code, reason) == (NOT_FOUND, "GRAPH")
        assert error.error.digest == there.digest
        assert "step 1" in error.error.words
        assert run(conn, here.handle, 1.0) == 8.0


def test_both_devices_may_go(fleet: Fleet) -> None:
    with Conn(fleet.address) as conn:
        for victim, pinned in (("fake1", "fake1"), ("fake0", "fake0")):
            reply = conn.submit(chain(), pins=pins(b=pinned))
            assert run(conn, reply.handle, 1.0) == 8.0
            fleet.lose(victim)
            code, _, _ = error_of(conn, raw.RUN, pb.Run(handle=reply.handle), floats(1.0))
            assert code == DEVICE_LOST
        reply = conn.submit(chain())
        assert run(conn, reply.handle, 4.0) == 32.0


def summed(kind: int) -> Graph:
    graph = Graph()
    x = graph.leaf(INPUT, F32, [WIDTH], "x")
    held = graph.leaf(kind, F32, [WIDTH], "held")
    graph.node("ADD", F32, [WIDTH], (x, held), name="sum", output=True)
    return graph


def put(conn: Conn, value: float, where: str) -> int:
    tensors = [("held", F32, [WIDTH], floats(value))]
    return int(conn.put("w", tensors, placement=[("*", where)]).handle)


def test_weights_and_states_of_the_device_are_lost(fleet: Fleet) -> None:
    table = raw.manifest([("held", F32, [WIDTH], b"")]).SerializeToString()
    with Conn(fleet.address) as conn:
        weights = put(conn, 5.0, "fake0")
        message = pb.StateAlloc(placement=raw.rules([("*", "fake0")]))
        state = int(conn.call(raw.STATE_ALLOC, message, table)[0].handle)
        with_weights = conn.submit(summed(WEIGHT), weights=[weights])
        with_state = conn.submit(summed(STATE), states=[state])
        assert run(conn, with_weights.handle, 1.0) == 6.0
        assert run(conn, with_state.handle, 1.0) == 1.0
        fleet.lose("fake0")
        code, _, _ = error_of(conn, raw.RUN, pb.Run(handle=with_weights.handle), floats(1.0))
        assert code == DEVICE_LOST
        for graph, keys in (
            (summed(WEIGHT), {"weights": [weights]}),
            (summed(STATE), {"states": [state]}),
        ):
            with pytest.raises(raw.RawError) as caught:
                conn.submit(graph, **keys)
            assert (caught.value.code, caught.value.reason) == (DATA_LOSS, "DEVICE")
            assert caught.value.error.has_tensor and caught.value.error.tensor == 1
        where = {"handle": state, "tensor": 0, "offset": 0, "bytes": WIDTH * 4}
        code, reason, _ = error_of(conn, raw.STATE_READ, pb.StateRead(**where))
        assert (code, reason) == (DATA_LOSS, "DEVICE")
        code, reason, _ = error_of(conn, raw.STATE_WRITE, pb.StateWrite(**where), floats(1.0))
        assert (code, reason) == (DATA_LOSS, "DEVICE")
        # The same bytes come in again, and go elsewhere; what is lost can still be given back.
        with pytest.raises(raw.RawError) as caught:
            put(conn, 5.0, "fake0")
        assert caught.value.code == NOT_FOUND
        fresh = put(conn, 5.0, "fake1")
        assert run(conn, conn.submit(summed(WEIGHT), weights=[fresh]).handle, 2.0) == 7.0
        conn.call(raw.STATE_FREE, pb.StateFree(handle=state))
        conn.call(raw.DROP, pb.WeightsDrop(handle=weights))


def test_the_client_submits_again(fleet: Fleet) -> None:
    graph = headrace.Graph()
    x = graph.input("x", (WIDTH,))
    graph.output(graph.add(x, x), "y")
    values = np.arange(WIDTH, dtype=np.float32)
    with headrace.connect(fleet.address) as client:
        handle = client.submit(graph)
        np.testing.assert_array_equal(handle.run([values])["y"], values * 2)
        fleet.lose("fake0")
        fleet.lose("fake1")
        for _ in range(3):
            try:
                handle.run([values])
            except errors.DeviceLost:
                continue
        np.testing.assert_array_equal(handle.run([values])["y"], values * 2)


def test_an_ordinary_build_has_no_such_backend(tmp_path: Path) -> None:
    config = tmp_path / "headrace.ini"
    config.write_text("[device a]\nbackend = fake\n[device b]\nbackend = cpu\n")
    program = build_folder() / "daemon" / "headraced"
    done = subprocess.run(
        [program, "--check-config", "--config", config], capture_output=True, text=True, check=False
    )
    assert done.returncode == 78
    assert "backend" in done.stderr and "fake" in done.stderr
