"""Traces: when each command of a run began and ended, over the wire and as Chrome/Perfetto JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import client_tools
import numpy as np
import pytest
from client_tools import client_of, headrace_command, random
from run_daemon import Daemon, device

import headrace
from headrace import aio, errors, flows, trace
from headrace.graph import Graph
from headrace.trace import Command, Trace

DEVICES = (
    device("cpu0", backend="cpu", memory="isolated", threads=1),
    device("cpu1", backend="cpu", memory="isolated", threads=1),
    device("host", backend="cpu", threads=1),
)
SLOW = (
    device("cpu0", backend="cpu", memory="isolated", threads=1, delay="60ms"),
    device("cpu1", backend="cpu", memory="isolated", threads=1, delay="60ms"),
    device("host", backend="cpu", threads=1),
)
PINS = {"a*": "cpu0", "b*": "cpu1"}
BYTES = 4 * 64 * 4


@pytest.fixture(scope="module")
def client() -> Iterator[headrace.Client]:
    """A client of a daemon with two isolated devices and the host's."""
    with client_of(DEVICES) as made:
        yield made


def two_stages() -> Graph:
    g = Graph()
    g.output(g.name(g.sqr(g.name(g.sqr(g.input("x", (4, 64))), "a")), "b"), "b")
    return g


def check_times(found: Trace) -> None:
    """Commands of a queue follow each other, within the run."""
    ends: dict[str, int] = {}
    assert found.arrived_ns <= found.started_ns < found.ended_ns
    for command in found:
        assert found.started_ns <= command.begin_ns <= command.end_ns <= found.ended_ns
        assert ends.get(command.device, 0) <= command.begin_ns
        ends[command.device] = command.end_ns


def slices(events: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """The slices of the JSON whose arguments or fields are these."""
    return [
        e
        for e in events
        if e["ph"] == "X"
        and e["pid"] == trace.DEVICES
        and all({**e, **e["args"]}.get(key) == value for key, value in wanted.items())
    ]


def test_commands_of_a_run(client: headrace.Client) -> None:
    handle = client.submit(two_stages(), pins=PINS, n_copies=2)
    x = random(4, 64)
    plain = handle.run([x])
    assert plain.trace is None and plain.copied_bytes == BYTES
    for sequence in range(1, 4):
        result = handle.run([x], trace=True)
        assert (result["b"] == plain["b"]).all() and result["b"].flags.writeable
        found = result.trace
        assert found is not None and found.sequence == sequence and found.slot == sequence % 2
        assert found.n_copies == 2 and found.split_count == 2
        assert found.devices == ("cpu0", "cpu1", "host")
        shown = [(c.kind, c.device, c.split, c.name, c.nbytes) for c in found if c.event is None]
        assert shown == [
            ("input", "cpu0", 0, "x", BYTES),
            ("compute", "cpu0", 0, "", 0),
            ("copy", "cpu0", 1, "a", BYTES),
            ("compute", "cpu1", 1, "", 0),
            ("output", "cpu1", 2, "b", BYTES),
        ]
        check_times(found)
        record, wait = found.of("record", device="cpu0")[0], found.of("wait", device="cpu1")[0]
        assert record.event == wait.event and record.begin_ns <= wait.end_ns
        assert found.of("copy")[0].end_ns <= record.begin_ns
        assert wait.end_ns <= found.of("compute", split=1)[0].begin_ns
    assert handle.run([x], outputs=[], trace=True).trace is not None
    assert len(handle.run([x], outputs=["b"], trace=True)) == 1
    handle.release()


def test_the_json_shows_that_stages_overlap(tmp_path: Path) -> None:
    """Stage 1 of each run, while stage 2 of the run before it is under way."""
    runs = 4
    with client_of(SLOW) as client:
        handle = client.submit(two_stages(), pins=PINS, n_copies=2)
        xs = [random(4, 64, seed=seed) for seed in range(runs)]
        operations = [handle.run_async([x], trace=True) for x in xs]
        results = [operation.result() for operation in operations]
        stats = client.stats()
    assert stats.value("run_start_seconds_max") > 0
    assert stats.value("engine_blocked_total") == 0  # starting a run waits for no device
    for x, result in zip(xs, results, strict=True):
        assert np.allclose(result["b"], x**4)
    traces = [result.trace for result in results if result.trace is not None]
    assert sorted(t.sequence for t in traces) == list(range(runs))
    trace.save(tmp_path / "trace.json", traces)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    assert names == {(1, 0): "cpu0", (1, 1): "cpu1", (1, 2): "host",
                     (2, 0): "slot 0", (2, 1): "slot 1"}  # fmt: skip
    for run in range(runs - 1):
        (later,) = slices(events, name="split 0", run=run + 1, tid=0)
        (earlier,) = slices(events, name="split 1", run=run, tid=1)
        assert later["ts"] < earlier["ts"] + earlier["dur"]
        assert earlier["ts"] < later["ts"] + later["dur"]
        first = next(t for t in traces if t.sequence == run)
        second = next(t for t in traces if t.sequence == run + 1)
        assert second.of("compute", split=0)[0].overlaps(first.of("compute", split=1)[0])
    for track in (0, 1):
        mine = sorted(slices(events, tid=track), key=lambda e: (e["ts"], e["ts"] + e["dur"]))
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.001
                   for a, b in zip(mine, mine[1:], strict=False))  # fmt: skip
    arrows = [e for e in events if e["ph"] in "sf"]
    starts = {e["id"]: e for e in arrows if e["ph"] == "s"}
    ends = {e["id"]: e for e in arrows if e["ph"] == "f"}
    assert set(starts) == set(ends) and len(starts) >= runs
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"] and ends[number]["bp"] == "e"
        assert (start["tid"], ends[number]["tid"]) == (0, 1)
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == trace.RUNS]
    assert len(spans) == runs and {e["tid"] for e in spans} == {0, 1}


def test_a_trace_longer_than_a_body(client: headrace.Client) -> None:
    g = Graph()
    y = g.input("x", (4,))
    hops = 8000
    for hop in range(hops):
        y = g.name(g.scale(y, 1.0), f"{'ab'[hop % 2]}{hop}")
    g.output(y, f"b{hops}")
    handle = client.submit(g, pins=PINS)
    x = random(4)
    result = handle.run([x], trace=True)
    assert (result[0] == x).all()
    found = result.trace
    assert found is not None and len(found) * 40 > client.body_max
    assert len(found.of("compute")) == hops == found.split_count
    assert len(found.of("copy")) == hops - 1
    check_times(found)
    arrows = [e for e in trace.chrome([found])["traceEvents"] if e["ph"] == "s"]
    assert len(arrows) == hops - 1
    handle.release()


def test_runs_of_several_graphs_on_one_axis(client: headrace.Client) -> None:
    """Events of one graph have no arrows to another's."""
    first, second = (client.submit(two_stages(), pins=PINS, n_copies=2) for _ in range(2))
    traces = []
    for _ in range(2):
        for handle in (first, second):
            found = handle.run([random(4, 64)], trace=True).trace
            assert found is not None
            traces.append(found)
    assert {t.handle for t in traces} == {first.handle, second.handle}
    events = trace.chrome(traces)["traceEvents"]
    assert min(e["ts"] for e in events if "ts" in e) >= 0
    for e in (e for e in events if e["ph"] == "f"):
        (start,) = (s for s in events if s["ph"] == "s" and s["id"] == e["id"])
        owners = [
            {t.handle for t in traces
             for c in t if c.event is not None
             and abs((c.begin_ns - zero(traces)) / 1000 - start["ts"]) < 1e-6
             and t.devices.index(c.device) == start["tid"]},
            {t.handle for t in traces
             for c in t if c.event is not None
             and abs((c.end_ns - zero(traces)) / 1000 - e["ts"]) < 1e-6
             and t.devices.index(c.device) == e["tid"]},
        ]  # fmt: skip
        assert owners[0] & owners[1]
    first.release()
    second.release()


def zero(traces: list[Trace]) -> int:
    return min(t.arrived_ns for t in traces)


def test_memory_of_traces_is_charged() -> None:
    limits = {"limits": {"session_buffer_bytes": "1M"}}
    with client_of(DEVICES, sections=limits) as client:
        g = Graph()
        y = g.input("x", (4,))
        for hop in range(3000):
            y = g.name(g.scale(y, 1.0), f"{'ab'[hop % 2]}{hop}")
        g.output(y, "b3000")
        handle = client.submit(g, pins=PINS)
        x = np.ones(4, np.float32)
        with pytest.raises(errors.HeadraceError) as refused:
            handle.run([x], trace=True)
        assert refused.value.reason == "LIMIT" and refused.value.field == "session_buffer_bytes"
        assert (handle.run([x])[0] == x).all()
        small = client.submit(two_stages(), pins=PINS)
        for _ in range(20):
            assert small.run([random(4, 64)], trace=True).trace is not None


@pytest.mark.usefixtures("guarded")
def test_what_traces_held_is_given_back(daemon: Any) -> None:
    with headrace.connect(daemon.address, timeout=30) as client:
        handle = client.submit(two_stages(), pins=PINS, n_copies=4)
        operations = [handle.run_async([random(4, 64)], trace=True) for _ in range(20)]
        for operation in operations:
            found = operation.result().trace
            assert found is not None
            check_times(found)
        handle.run_async([random(4, 64)], trace=True)


def test_a_run_that_fails_and_the_next(client: headrace.Client) -> None:
    g = Graph()
    g.output(g.get_rows(g.input("x", (4, 8)), g.input("ids", (2,), "i32")), "y")
    handle = client.submit(g)
    x = random(4, 8)
    for _ in range(3):
        with pytest.raises(errors.OutOfRange):
            handle.run([x, [1, 9]], trace=True)
        good = handle.run([x, [1, 3]], trace=True)
        assert (good[0] == x[[1, 3]]).all() and good.trace is not None
        check_times(good.trace)
    handle.release()


def test_cancelled_while_traced() -> None:
    with client_of(SLOW) as client:
        handle = client.submit(two_stages(), pins=PINS, n_copies=2)
        operations = [handle.run_async([random(4, 64)], trace=True) for _ in range(4)]
        for operation in operations:
            operation.cancel()
        ended = 0
        for operation in operations:
            try:
                operation.result()
            except errors.Cancelled:
                ended += 1
        assert ended >= 3
        assert handle.run([random(4, 64)], trace=True).trace is not None


def test_asyncio_gathers_traces() -> None:
    async def work(address: str) -> list[Command]:
        async with await aio.connect(address) as client:
            handle = await client.submit(two_stages(), pins=PINS, n_copies=2)
            runs = (handle.run([random(4, 64)], trace=True) for _ in range(6))
            results = await asyncio.gather(*runs)
            return [c for r in results if r.trace for c in r.trace.of("compute")]

    with Daemon(devices=DEVICES) as daemon:
        assert len(asyncio.run(work(daemon.address))) == 12


# ---- experts -------------------------------------------------------------------------------------

EXPERTS, K = 8, 32
EXPERT_BYTES = K * K * 4


def mixture(
    client: headrace.Client, layers: int = 2, name: str = "experts"
) -> headrace.GraphHandle:
    """Layers of experts in host memory, each on a device of its own."""
    g = Graph()
    y = g.input("x", (1, 1, K))
    for layer in range(layers):
        w = g.weight(f"blk.{layer}.experts", (EXPERTS, K, K))
        ids = g.input(f"ids{layer}", (1, 2), "i32")
        y = g.name(g.mul_mat_id(w, y, ids), f"{'ab'[layer]}")
    g.output(y, "b")
    seed = 10 * len(name)  # sets with the same bytes are the same weights, histograms included
    tensors = {
        f"blk.{layer}.experts": random(EXPERTS, K, K, seed=seed + layer) for layer in range(layers)
    }
    weights = client.put(name, tensors, {"*": "host"})
    return client.submit(g, weights=[weights], pins=PINS, n_copies=2)


def test_experts_of_a_run(client: headrace.Client) -> None:
    handle = mixture(client)
    x = random(1, 1, K)
    before = client.stats()
    first = handle.run([x, [[1, 5]], [[7, 7]]], trace=True)
    assert (first.experts.hits, first.experts.misses, first.experts.nbytes) == (
        0, 3, 3 * EXPERT_BYTES,
    )  # fmt: skip
    assert first.experts.hit_rate == 0.0
    assert first.copied_bytes == 2 * K * 4 + 3 * EXPERT_BYTES
    assert first.trace is not None
    assert [(c.device, c.nbytes) for c in first.trace.of("experts")] == [
        ("cpu0", 2 * EXPERT_BYTES), ("cpu1", EXPERT_BYTES),
    ]  # fmt: skip
    second = handle.run([x, [[5, 1]], [[0, 7]]])
    assert (second.experts.hits, second.experts.misses) == (3, 1)
    assert second.experts.hit_rate == 0.75
    assert handle.run([x, [[5, 1]], [[0, 7]]]).experts.nbytes == 0
    groups = handle.explanation().experts
    assert [(g["device"], g["experts"], g["weights"], g["resident"]) for g in groups] == [
        ("cpu0", EXPERTS, 1, True), ("cpu1", EXPERTS, 1, True),
    ]  # fmt: skip
    assert groups[0]["uses"] == [0, 3, 0, 0, 0, 3, 0, 0]
    assert groups[1]["uses"] == [2, 0, 0, 0, 0, 0, 0, 3]
    assert "8 experts of 1 weights" in handle.explain()
    after = client.stats()
    for result, count in (("hit", 7), ("miss", 4)):
        label = f'result="{result}"'
        assert after.value("experts_total", label) - before.value("experts_total", label) == count
    assert client.submit(two_stages()).run([random(4, 64)]).experts.hit_rate == 1.0
    handle.release()


def test_the_histogram_of_a_layer(client: headrace.Client) -> None:
    """By the weights, whoever runs them, and in whichever graph."""
    name = 'a "mixture"'
    first, second = mixture(client, name=name), mixture(client, name=name)
    x = random(1, 1, K)
    for handle, ids in ((first, [3, 4]), (first, [3, 3]), (second, [4, 7])):
        handle.run([x, [ids], [[0, 1]]])
    first.release()

    def histogram(layer: int) -> dict[int, float]:
        found = client.stats().labelled("expert_uses_total")
        where = f'set="a _mixture_",tensor="blk.{layer}.experts",expert="'
        return {
            int(labels[len(where) : -1]): value
            for labels, value in found.items()
            if labels.startswith(where)
        }

    assert histogram(0) == {3: 2, 4: 2, 7: 1} and histogram(1) == {0: 3, 1: 3}
    assert 0 < client.stats().value("expert_hit_ratio") < 1
    second.release()
    held = [info.handle for info in client.weights() if info.name == name]
    while held and all(held):  # one handle per put
        client.drive(flows.weights.drop(held[0]), None)
        held = [info.handle for info in client.weights() if info.name == name]
    assert histogram(0) == histogram(1) == {}


def test_the_upload_of_a_layer_overlaps_the_computing_of_another() -> None:
    """The experts of layer 1 arrive on cpu1 for one run while cpu0 computes layer 0 of the next."""
    shown = 0
    with client_of(SLOW) as client:
        x = random(1, 1, K)
        for attempt in range(10):  # threads of a busy machine may miss each other for a while
            handle = mixture(client, name="experts" + "_" * attempt)  # none of which is there yet
            operations = [
                handle.run_async([x, [[run, run + 1]], [[run, run]]], trace=True)
                for run in range(6)
            ]
            traces = [operation.result().trace for operation in operations]
            for now, later in zip(traces, traces[1:], strict=False):
                assert now is not None and later is not None
                (upload,) = now.of("experts", device="cpu1")
                (compute,) = later.of("compute", device="cpu0")
                assert upload.nbytes == EXPERT_BYTES and upload.split == 1 and compute.split == 0
                shown += upload.overlaps(compute)
            if shown:
                break
    assert shown >= 1


def test_command_line(tmp_path: Path) -> None:
    client_tools.write_model(tmp_path / "tiny.gguf")
    with Daemon(devices=DEVICES, models=[tmp_path]) as daemon:
        where = ("--devices", "cpu0:2,cpu1:2")
        done = headrace_command(
            daemon, "trace", "tiny.gguf", *where, "--prompt", "hello", "--tokens", "3"
        )
        assert done.returncode == 0, done.stderr
        events = json.loads(done.stdout)["traceEvents"]
        runs = {e["args"]["run"] for e in events if e["ph"] == "X"}
        assert runs == {0, 1, 2}
        tracks = {e["tid"] for e in slices(events) if e["cat"] == "compute"}
        assert tracks == {0, 1}
        file = tmp_path / "generate.json"
        generate = ("generate", "tiny.gguf", *where, "--prompt", "hello", "--tokens", "2")
        done = headrace_command(daemon, *generate, "--ignore-end", "--trace", str(file))
        assert done.returncode == 0 and "2 runs" in done.stderr, done.stderr
        assert {e["ph"] for e in json.loads(file.read_text())["traceEvents"]} == set("MXsf")
        done = headrace_command(daemon, *generate, "--trace", str(tmp_path / "no" / "such"))
        assert done.returncode == 4 and "no/such" in done.stderr


def test_the_next_layer_arrives_while_this_one_is_computed(tmp_path: Path) -> None:
    """Weights in host memory come in on a queue of their own, within one run."""
    layers = 4
    ws = {f"w{i}": random(1, 64, seed=i) for i in range(layers)}
    g = Graph()
    y = g.input("x", (4, 64))
    for name in ws:
        y = g.name(g.mul(y, g.weight(name, (1, 64))), f"y{name}")
    g.output(y, "y")
    devices = (
        device("cpu0", backend="cpu", memory="isolated", threads=1, delay="100ms"),
        device("host", backend="cpu", threads=1),
    )
    with client_of(devices) as client:
        held = client.put("w", ws, {"*": "host"})
        handle = client.submit(g, weights=[held], pins={"y*": "cpu0"}, n_copies=1)
        x = random(4, 64, seed=9)
        result = handle.run([x], trace=True)
        waits = client.stats().value("engine_blocked_total")
    assert waits == 0
    assert np.allclose(result["y"], x * np.prod(list(ws.values()), axis=0), rtol=1e-5)
    found = result.trace
    assert found is not None and found.devices == ("cpu0", "host", "cpu0 uploads", "host uploads")
    check_times(found)
    uploads = found.of("write", device="cpu0 uploads")
    assert [c.name for c in uploads] == list(ws)[1:]  # the first has nothing to arrive beside
    for upload in uploads:
        (computed,) = found.of("compute", device="cpu0", split=upload.split)
        (before,) = found.of("compute", device="cpu0", split=upload.split - 1)
        assert upload.end_ns < before.end_ns  # not behind it: the computing takes 100 ms
        assert upload.end_ns <= computed.begin_ns
    trace.save(tmp_path / "trace.json", [found])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} >= {"cpu0 uploads"}
