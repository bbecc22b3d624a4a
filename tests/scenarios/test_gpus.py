"""Scenarios of GPUs, with the daemon that brings a CUDA driver of its own: no GPU is needed. Skipped
where the CUDA toolkit was missing when the daemon was built."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raw
from bystander import Bystander
from graphs import COPIES, bits, floats, ping_pong, pins, scale, submit_ping_pong, unfloats
from raw import F32, I32, INPUT, WEIGHT, Conn, Graph, pb
from run_daemon import build_folder, device
from test_mixtures import check_arrivals, identity_layers

from headrace.explain import Explanation

FULL = bool(os.environ.get("HEADRACE_FULL"))
DEVICES = [
    device("cpu0", backend="cuda", gpu=0),
    device("cpu1", backend="cuda", gpu=1),
    device("gpu0", backend="cuda", gpu=0),  # for whom nobody else counts
    device("gpu1", backend="cuda", gpu=1),
    device("host", backend="cpu", threads=1),
]


@pytest.fixture
def gpus(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Starts a daemon with two GPUs and two devices on each; variables of its environment."""
    program = Path("daemon", "headraced")
    if os.environ.get("HEADRACE_TEST_BACKEND") != "cuda":
        program = Path("tests", "cuda") / program
    if not (build_folder() / program).exists():
        pytest.skip(f"no {program} in the build: the CUDA toolkit is missing")

    def start(devices: Any = DEVICES, **variables: str) -> Any:
        return launch(devices=devices, program=build_folder() / program, variables=variables)

    return start


def graph_counts(conn: Conn, name: str) -> dict[str, int]:
    stats = conn.stats()
    return {
        event: int(stats.get(f'device_graphs_total{{device="{name}",event="{event}"}}', 0))
        for event in ("captured", "updated", "replayed", "failed")
    }


def pinned_bytes(conn: Conn, name: str) -> int:
    return int(conn.stats().get(f'device_pinned_bytes{{device="{name}"}}', 0))


def await_pinned(conn: Conn, name: str, least: int, most: int) -> None:
    for _ in range(1000):
        if least <= pinned_bytes(conn, name) <= most:
            return
        time.sleep(0.01)
    assert least <= pinned_bytes(conn, name) <= most


def test_weights_that_stay_on_the_host_are_locked(gpus: Any) -> None:
    """Experts in memory of the host, which a GPU reads with every run: locked beside the runs as far as
    the device may, and let go before their memory goes (the driver tells at the daemon's end)."""
    experts, rows, width, page = 8, 64, 256, 4096
    size = 4 * experts * rows * width
    values = floats([float(e + 1) for e in range(experts) for _ in range(rows * width)])
    devices = [
        device("gpu0", backend="cuda", gpu=0, expert_bytes=4 * rows * width * 2),
        device("gpu1", backend="cuda", gpu=1, pin_bytes=10 * page),
        device("host", backend="cpu", threads=1),
    ]
    running = gpus(devices=devices)
    with Conn(running.address) as conn:
        for name, least, most in (("gpu0", size - 2 * page, size), ("gpu1", 10 * page, 10 * page)):
            graph = Graph()
            x = graph.leaf(INPUT, F32, [width, 1, 1], "x")
            ids = graph.leaf(INPUT, I32, [2, 1], "ids")
            w = graph.leaf(WEIGHT, F32, [width, rows, experts], "w_exps")
            graph.node("MUL_MAT_ID", F32, [rows, 2, 1], (w, x, ids), name="mixed", output=True)
            put = [("w_exps", F32, [width, rows, experts], values)]
            held = conn.put(name, put, placement=[("*", "host")])
            handle = conn.submit(graph, weights=[held.handle], pins=pins(**{name: "*"})).handle
            for turn in range(20):
                one, other = turn % experts, (turn * 3 + 1) % experts
                data = floats([1.0] * width) + struct.pack("<2i", one, other)
                out = unfloats(conn.run(handle, data))
                assert out == tuple(float(width * (e + 1)) for e in (one, other) for _ in range(rows))
                if turn == 9:
                    await_pinned(conn, name, least, most)
            assert f'device_pins_failed_total{{device="{name}"}}' in conn.stats()
            assert conn.stats()[f'device_pins_failed_total{{device="{name}"}}'] == 0


def two_stages(width: int) -> Graph:
    """y = -x * 16, four nodes on each of two devices, which are several launches."""
    graph = Graph()
    last = graph.leaf(INPUT, F32, [width], "x")
    for number in range(8):
        name = f"{'a' if number < 4 else 'b'}{number}"
        factor = -2.0 if number == 2 else 2.0
        if number in (0, 4, 6):
            last = graph.node("CONT", F32, [width], (last,), name=name)
            continue
        last = scale(graph, last, [width], factor, name=name, output=number == 7)
    return graph


def run_stages(conn: Conn, handle: int, width: int, value: float) -> None:
    expected = tuple(-32.0 * (value + i) for i in range(width))
    assert unfloats(conn.run(handle, floats([value + i for i in range(width)]))) == expected


@pytest.mark.parametrize("copies", COPIES)
def test_b033_recording_goes_on_after_shapes_have_changed(gpus: Any, copies: int) -> None:
    """Shapes change ten times, then one stays; and all that once more. A split is recorded at its
    second equal run, and replayed from then on."""
    runs = 100 if FULL else 30
    where = pins(gpu0="a*", gpu1="b*")
    running = gpus()
    with Conn(running.address) as conn, Bystander(running.address) as canary:
        for phase in (1, 2):
            before = graph_counts(conn, "gpu0")
            for width in range(5, 15):
                handle = conn.submit(two_stages(width), pins=where, n_copies=copies).handle
                run_stages(conn, handle, width, 1.0)
                conn.call(raw.RELEASE, pb.Release(handle=handle))
            assert graph_counts(conn, "gpu0") == before
            width = 40 + phase
            reply = conn.submit(two_stages(width), pins=where, n_copies=copies)
            assert reply.n_copies == copies
            for number in range(runs):
                run_stages(conn, reply.handle, width, float(number))
                if number == 0:
                    assert graph_counts(conn, "gpu0") == before
            for name in ("gpu0", "gpu1"):
                counts = graph_counts(conn, name)
                slots = counts["captured"]  # slots of the same memory share what is recorded
                assert 1 <= slots <= copies
                assert counts["updated"] == (phase - 1) * slots  # what phase 1 has left
                assert counts["replayed"] == phase * (runs - slots)
                assert counts["failed"] == 0
            conn.call(raw.RELEASE, pb.Release(handle=reply.handle))
        canary.check()


def test_b033_two_graphs_in_turn_replay_their_own(gpus: Any) -> None:
    """Two graphs of one form, other factors and other widths, take turns; then the session's memory
    grows under them. Each gives its own result, every time."""
    with Conn(gpus().address) as conn:
        handles = []
        for factor, width in ((2.0, 8), (3.0, 8), (5.0, 32)):
            graph = Graph()
            x = graph.leaf(INPUT, F32, [width], "x")
            first = scale(graph, x, [width], factor, name="a0")
            first = graph.node("CONT", F32, [width], (first,), name="a")
            second = graph.node("SCALE", F32, [width], (first,), (bits(1.0), bits(1.0)), name="a1")
            scale(graph, second, [width], 1.0, name="a2", output=True)
            handles.append((conn.submit(graph, pins=pins(gpu0="*")).handle, factor, width))
        for number in range(8):
            for handle, factor, width in handles:
                out = unfloats(conn.run(handle, floats([float(number)] * width)))
                assert out == (number * factor + 1.0,) * width
            if number == 4:
                conn.submit(ping_pong(100000), pins=pins(gpu0="*"))
        assert graph_counts(conn, "gpu0")["replayed"] > 6


@pytest.mark.parametrize("name", ["cuGraphInstantiate", "cuGraphLaunch"])
def test_b033_what_the_driver_refuses_is_launched_all_the_same(gpus: Any, name: str) -> None:
    with Conn(gpus(HEADRACE_FAKE_CUDA_FAIL=name).address) as conn:
        handle = conn.submit(two_stages(9), pins=pins(gpu0="a*", gpu1="b*")).handle
        for number in range(20):
            run_stages(conn, handle, 9, float(number))
        counts = graph_counts(conn, "gpu0")
        assert counts["failed"] >= 2 and counts["replayed"] == 0


def through_host(conn: Conn) -> set[tuple[str, str]]:
    """Pairs that the counters name."""
    found = set()
    for key in conn.stats():
        if key.startswith("device_copies_through_host{"):
            labels = dict(part.split("=") for part in key[key.index("{") + 1 : -1].split(","))
            found.add((labels["from"].strip('"'), labels["to"].strip('"')))
    return found


ON_GPU = {0: ("cpu0", "gpu0"), 1: ("cpu1", "gpu1")}


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("broken", ["", "0-1", "1-0", "0-1,1-0"])
def test_b041_a_pair_that_changes_bytes_goes_through_the_host(
    gpus: Any, broken: str, copies: int
) -> None:
    """Bits flip on the way from one GPU to the other: found at the start, said, and gone round."""
    pairs = [tuple(map(int, pair.split("-"))) for pair in broken.split(",") if pair]
    running = gpus(HEADRACE_FAKE_CUDA_BREAK=broken)
    with Conn(running.address) as conn, Bystander(running.address) as canary:
        assert through_host(conn) == {
            (a, b) for one, other in pairs for a in ON_GPU[one] for b in ON_GPU[other]
        }
        log = running.log()
        for a, b in (("cpu0", "cpu1"), ("cpu1", "cpu0")):
            told = f"copies from {a} to {b} go through the host" in log
            assert told == ((a, b) in through_host(conn))
        reply = submit_ping_pong(conn, 3000, 3, n_copies=copies)
        report = conn.call(raw.EXPLAIN, pb.Explain(handle=reply.handle))[1]
        ways = {
            (copy["source"], split["device"]): copy["method"]
            for split in Explanation(pb.Explanation.FromString(report)).splits
            for copy in split["inputs"]
        }
        assert ways["cpu0", "cpu1"] == ("staged" if (0, 1) in pairs else "direct")
        assert ways["cpu1", "cpu0"] == ("staged" if (1, 0) in pairs else "direct")
        for number in range(100 if FULL else 20):
            data = floats([float(number * 7 + i) for i in range(3000)])
            assert conn.run(reply.handle, data) == data
        canary.check()


@pytest.mark.parametrize("copies", COPIES)
def test_b038_weights_pass_a_stream_of_their_own(gpus: Any, copies: int) -> None:
    """Layers of a mixture on a GPU, weights on the host: the used experts pass the pinned ring of the
    stream for uploads, the next layer's while one is computed. They do not stay, so every run brings
    them."""
    tokens = 8  # as many as are computed column by column, which takes longest
    short = device("gpu0", backend="cuda", gpu=0, expert_bytes=1)
    running = gpus([short if d.name == "gpu0" else d for d in DEVICES])
    with Conn(running.address) as conn, Bystander(running.address) as canary:
        moe = conn.put("moe", identity_layers(3), placement=[("*_exps", "host")])
        check_arrivals(conn, moe, copies, tokens, "gpu0")
        canary.check()


@pytest.mark.parametrize("rules", ["headrace", "ggml"])
def test_large_batches_on_host_weights_run_on_a_gpu(gpus: Any, rules: str) -> None:
    """op_offload: the first GPU that asks takes the product, its weight travels, and the result has the
    bits that it has on the host."""
    width = 64
    running = gpus()
    x = [float(i % 7 - 3) for i in range(width * 256)]
    weight = floats([float((i // width) == (i % width)) for i in range(width * width)])  # identity
    with Conn(running.address) as conn:
        held = conn.put("w", [("w", F32, [width, width], weight)], placement=[("*", "host")])

        def product(rows: int, offload: bool) -> tuple[str | None, str]:
            graph = Graph()
            w = graph.leaf(raw.WEIGHT, F32, [width, width], "w")
            graph.leaf(INPUT, F32, [width, rows], "x")
            graph.node("MUL_MAT", F32, [width, rows], (w, 1), output=True)
            reply = conn.submit(
                graph, weights=[held.handle], op_offload=offload, rules=int(rules == "ggml")
            )
            _, body = conn.call(raw.EXPLAIN, pb.Explain(handle=reply.handle))
            (node,) = Explanation(pb.Explanation.FromString(body)).nodes
            data = x[: width * rows]
            assert list(unfloats(conn.run(reply.handle, floats(data)))) == data
            return node["device"], node["cause"]

        assert product(256, True) == ("cpu0", "1.off")
        assert product(256, False) == ("host", "1.wgt0")
        assert product(2, True) == ("host", "1.wgt0")
