"""What the daemon remembers of itself: the ring that is always on, as Chrome/Perfetto JSON."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_tools import client_of, headrace_command, random
from run_daemon import Daemon, device

import headrace
from headrace import Step, aio, errors
from headrace import headrace_pb2 as pb
from headrace.flows import Flow, Request
from headrace.graph import Graph
from headrace.wire import Kind

DEVICES = (
    device("cpu0", backend="cpu", memory="isolated", threads=1),
    device("cpu1", backend="cpu", memory="isolated", threads=1),
    device("host", backend="cpu", threads=1),
)
PINS = {"a*": "cpu0", "b*": "cpu1"}
REQUESTS, ON_DEVICES = 1, 2  # processes of the JSON


def two_stages() -> Graph:
    g = Graph()
    g.output(g.name(g.sqr(g.name(g.sqr(g.input("x", (4, 64))), "a")), "b"), "b")
    return g


class History:
    """The events, sorted out."""

    def __init__(self, text: str) -> None:
        self.text = json.loads(text)
        events = self.text["traceEvents"]
        self.slices = [e for e in events if e["ph"] == "X"]
        self.arrows = [e for e in events if e["ph"] in "stf"]
        self.tracks = {
            e["tid"]: e["args"]["name"]
            for e in events
            if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == ON_DEVICES
        }

    def requests(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.slices if e["cat"] == "request" and e["name"] == kind]

    def way(self, request: int) -> list[str]:
        """Where the arrows of a request go, slice by slice; checks that each hits one."""
        steps = []
        for arrow in (a for a in self.arrows if a["id"] == request):
            hit = [
                e
                for e in self.slices
                if (e["pid"], e["tid"], e["ts"]) == (arrow["pid"], arrow["tid"], arrow["ts"])
                and e["args"]["request"] == request
                and e["cat"] != "upload"  # begins with its request
            ]
            assert hit, arrow
            where = self.tracks[arrow["tid"]] + ":" if arrow["pid"] == ON_DEVICES else ""
            steps.append(where + hit[-1]["name"])
        return steps

    def check_nesting(self) -> None:
        """Slices of a track lie inside each other or apart."""
        tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for e in self.slices:
            span = (round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000))
            tracks.setdefault((e["pid"], e["tid"]), []).append(span)
        for spans in tracks.values():
            open_ends: list[float] = []
            for begin, end in sorted(spans, key=lambda s: (s[0], -s[1])):
                while open_ends and open_ends[-1] <= begin:
                    open_ends.pop()
                assert not open_ends or end <= open_ends[-1]
                open_ends.append(end)


def test_arrows_lead_from_the_request_over_the_devices_to_the_reply() -> None:
    x = random(4, 64)
    with client_of(DEVICES) as client:
        handle = client.submit(two_stages(), pins=PINS, n_copies=2)
        operations = [handle.run_async([x]) for _ in range(8)]
        for operation in operations:
            operation.result()
        history = History(client.trace())
    history.check_nesting()
    assert list(history.tracks.values()) == [
        "cpu0", "cpu1", "host", "cpu0 uploads", "cpu1 uploads", "host uploads",
    ]
    runs = history.requests("RUN")
    assert len(runs) == 8 and {r["args"]["code"] for r in runs} == {0}
    for run in runs:
        request = run["args"]["request"]
        # The input goes to cpu0, its result to cpu1, whose result is read back.
        assert [step for step in history.way(request) if step != "wait"] == [
            "RUN", "queue", "run", "cpu0:copy", "cpu0:split 0", "cpu0:copy", "cpu1:split 1",
            "cpu1:copy", "reply",
        ]
        own = [e for e in history.slices if e["args"]["request"] == request and e is not run]
        assert {e["cat"] for e in own} >= {"upload", "queue", "run", "reply", "copy", "compute"}
        assert {e["args"]["bytes"] for e in own if e["cat"] == "copy"} == {4 * 64 * 4}
        for e in own:  # all of it within the request
            assert run["ts"] <= e["ts"] and e["ts"] + e["dur"] <= run["ts"] + run["dur"] + 1e-3
    (submit,) = history.requests("SUBMIT")
    assert history.way(submit["args"]["request"]) == ["SUBMIT", "queue", "plan"]
    phases = [a["ph"] for a in history.arrows if a["id"] == submit["args"]["request"]]
    assert phases == ["s", "t", "f"]


def test_failures_and_sequences_are_there_too() -> None:
    with client_of(DEVICES) as client:
        handle = client.submit(two_stages(), pins=PINS)
        with pytest.raises(errors.NotFound):
            client.drive(lost_handle(), 5.0)
        first = Step(handle, {"x": random(4, 64)})
        client.sequence([first, Step(handle, feeds={"x": (0, "b")})])
        history = History(client.trace())
    history.check_nesting()
    assert [r["args"]["code"] for r in history.requests("RELEASE")] == [5]
    (sequence,) = history.requests("SEQUENCE")
    own = [e for e in history.slices if e["args"]["request"] == sequence["args"]["request"]]
    assert [e["args"]["sequence"] for e in own if e["cat"] == "run"] == [0, 1]
    assert [e["name"] for e in own if e["cat"] == "compute"] == ["split 0", "split 1"] * 2


def lost_handle() -> Flow[None]:
    yield Request(Kind.RELEASE, pb.Release(handle=12345).SerializeToString())


def test_a_request_in_flight_is_there() -> None:
    slow = (device("host", backend="cpu", threads=1, delay="2s"),)
    with client_of(slow) as client:
        handle = client.submit(two_stages())
        running = handle.run_async([random(4, 64)])
        history = History(client.trace())
        for _ in range(100):
            if history.requests("RUN"):
                break
            history = History(client.trace(own=True))
        (run,) = history.requests("RUN")
        assert run["args"]["open"] is True and "code" not in run["args"] and run["dur"] > 0
        running.result()
        (run,) = History(client.trace()).requests("RUN")
        assert run["args"]["code"] == 0


def test_only_the_latest_is_kept_and_asked_for(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=DEVICES, sections={"daemon": {"trace_spans": "64"}})
    with headrace.connect(daemon.address) as client:
        for _ in range(200):
            client.ping()
        history = History(client.trace())
        assert 32 <= len(history.requests("PING")) <= 64
        numbers = [e["args"]["request"] for e in history.requests("PING")]
        assert numbers == sorted(numbers) and numbers[-1] > 190
        assert history.text["otherData"]["spans"] == len(history.slices)
        assert History(client.trace(latest=3600)).requests("PING")
    off = launch(devices=DEVICES, sections={"daemon": {"trace_spans": "0"}})
    with headrace.connect(off.address) as client:
        client.ping()
        assert not History(client.trace()).slices


def test_others_may_see_what_was_done_for_them(launch: Callable[..., Daemon]) -> None:
    daemon = launch(
        devices=DEVICES,
        sections={
            f"principal {name}": {
                "token_sha256": hashlib.sha256(name.encode()).hexdigest(),
                "permissions": permissions,
            }
            for name, permissions in (("admin", "run, admin"), ("runner", "run"))
        },
    )
    with (
        headrace.connect(daemon.address, credentials=b"admin") as admin,
        headrace.connect(daemon.address, credentials=b"runner") as runner,
    ):
        for client in (admin, runner):
            client.submit(two_stages(), pins=PINS).run([random(4, 64)])
        with pytest.raises(errors.PermissionDenied):
            runner.trace()
        mine, everything = History(runner.trace(own=True)), History(admin.trace())
    assert {r["args"]["principal"] for r in mine.requests("RUN")} == {"runner"}
    assert {e["args"]["request"] for e in mine.slices} == {
        e["args"]["request"] for e in mine.slices if e["cat"] == "request"
    }
    assert [e["name"] for e in mine.slices if e["cat"] == "compute"] == ["split 0", "split 1"]
    assert {r["args"]["principal"] for r in everything.requests("RUN")} == {"admin", "runner"}


def test_from_asyncio_and_the_command_line(daemon: Daemon, tmp_path: Path) -> None:
    async def ask() -> str:
        async with await aio.connect(daemon.address) as client:
            await client.ping()
            return await client.trace(latest=60)

    assert History(asyncio.run(ask())).requests("PING")
    done = headrace_command(daemon, "history", "--latest", "60")
    assert done.returncode == 0 and History(done.stdout).requests("HELLO")
    file = tmp_path / "history.json"
    done = headrace_command(daemon, "history", "--own", "-o", str(file))
    assert done.returncode == 0 and History(file.read_text()).requests("HELLO")
    assert headrace_command(daemon, "history", "-o", str(tmp_path / "no" / "x")).returncode == 4
    assert headrace_command(daemon, "history", "--latest", "-1").returncode == 2


def unbound() -> headrace.Graph:
    """Its weight is in no set."""
    graph = headrace.Graph()
    graph.output(graph.cont(graph.weight("nowhere", (4,))))
    return graph


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def test_requests_belong_to_the_trace_of_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(4, 64)
    with client_of(DEVICES) as client:
        handle = client.submit(two_stages(), pins=PINS, traceparent=PARENT)
        plain = handle.run([x])
        given = handle.run([x], traceparent=PARENT)
        with headrace.tracing(PARENT):
            results = [handle.run([x]), handle.run_async([x]).result()]
            results += client.sequence([Step(handle, {"x": x})])
            told: list[headrace.RunResult] = []
            results += client.sequence(
                [Step(handle, {"x": x})], on_step=lambda _, result: told.append(result)
            )
            with pytest.raises(headrace.errors.FailedPrecondition) as refused:
                client.submit(unbound())
            none = handle.run([x], traceparent="")
        monkeypatch.setenv("TRACEPARENT", PARENT)
        results.append(handle.run([x]))
        for odd in (PARENT.upper(), PARENT + "0", "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
                    "x" * 500, "\x1b[2J\n", "\u2028"):
            assert not handle.run([x], traceparent=odd).traceparent
        history = History(client.trace())
    assert not plain.traceparent and not none.traceparent
    spans = []
    assert told[0].traceparent == results[3].traceparent
    for answer in (handle, given, *results, refused.value):
        version, trace, span, flags = answer.traceparent.split("-")
        assert (version, trace, flags) == ("00", TRACE, "01")
        spans.append(span)
    assert len({*spans, "00f067aa0ba902b7"}) == len(spans) + 1
    named = [r for r in history.slices if r["args"].get("traceparent")]
    assert {r["args"]["traceparent"] for r in named} == {PARENT}
    assert {r["args"]["span"] for r in named} == set(spans)
    assert sorted(r["name"] for r in named) == ["RUN"] * 4 + ["SEQUENCE"] * 2 + ["SUBMIT"] * 2
