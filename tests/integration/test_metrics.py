"""The figures as text: over the wire and over HTTP, well formed, complete, and true."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw
from client_tools import ONE
from monitoring import get
from run_daemon import Daemon, build_folder, device, held_port

import headrace

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r'headrace_([a-z_]+)(?:\{((?:[a-z_]+="[^"\\]*",?)+)\})? (-?[0-9.e+-]+|\+Inf)')
IN_STATS_ONLY = {"expert_uses_total", "session_held"}


def families() -> dict[str, tuple[str, str]]:
    """The table: name -> kind, help."""
    text = (ROOT / "daemon" / "metrics.def").read_text()
    return {
        name: (kind, words)
        for name, kind, words in re.findall(r'X\((\w+), (\w+), "([^"]+)"\)', text)
    }


def parse(text: str) -> dict[str, float]:
    """Values by name{labels}; every rule of the format that can be broken here is checked."""
    values: dict[str, float] = {}
    family, seen = "", set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2].removeprefix("headrace_")
            assert family not in seen, f"{family} comes twice"
            seen.add(family)
            assert line.split(" ", 3)[3] == families()[family][1]
        elif line.startswith("# TYPE "):
            assert line.split()[2:] == [f"headrace_{family}", families()[family][0]]
        else:
            found = LINE.fullmatch(line)
            assert found, line
            name, labels, value = found.groups()
            kind = families()[family][0]
            endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert name in {family + ending for ending in endings}
            key = name + (f"{{{labels}}}" if labels else "")
            assert key not in values, f"{key} comes twice"
            values[key] = float(value)
    return values


def run_some(client: headrace.Client, count: int) -> None:
    graph = headrace.Graph()
    x = graph.input("x", (4,))
    graph.output(x + x)
    handle = client.submit(graph)
    for _ in range(count):
        handle.run({"x": np.ones(4, np.float32)})


@pytest.fixture
def watched() -> Iterator[tuple[Daemon, str]]:
    port = held_port()
    sections = {"daemon": {"metrics": f"127.0.0.1:{port}"}}
    with Daemon(devices=ONE, sections=sections) as daemon:
        yield daemon, f"http://127.0.0.1:{port}"


def test_text_is_well_formed_and_says_what_happened(watched: tuple[Daemon, str]) -> None:
    daemon, url = watched
    with headrace.connect(daemon.address) as client:
        run_some(client, 7)
        values = parse(client.metrics())
        assert values['requests_total{type="RUN",code="0"}'] == 7
        assert values['runs_total{end="ok"}'] == 7
        assert values["connections"] == 1
        for stage in ("upload", "queue", "compute", "read_back", "plan"):
            wanted = 1 if stage == "plan" else 7
            assert values[f'stage_seconds_count{{stage="{stage}"}}'] == wanted
            rows = [
                value for key, value in values.items()
                if key.startswith("stage_seconds_bucket") and f'stage="{stage}"' in key
            ]  # fmt: skip
            assert rows == sorted(rows) and rows[-1] == wanted
            assert values[f'stage_seconds_sum{{stage="{stage}"}}'] > 0
        status, text = get(url + "/metrics")
        assert status == 200
        over_http = parse(text)
        assert over_http['runs_total{end="ok"}'] == 7
        # The same rows, but for those of the question itself.
        assert set(values) <= set(over_http)
        assert {key for key in set(over_http) - set(values) if "METRICS" not in key} == set()


def test_every_figure_of_stats_is_in_the_table(watched: tuple[Daemon, str]) -> None:
    daemon, _ = watched
    with headrace.connect(daemon.address) as client:
        run_some(client, 1)
        names = {stat.name for stat in client.stats()}
    table = families()
    histograms = {name for name, (kind, _) in table.items() if kind == "histogram"}
    known = set(table) | {f"{n}{e}" for n in histograms for e in ("_bucket", "_sum", "_count")}
    assert names - known - IN_STATS_ONLY == set()
    # And none in the table that nobody ever sets.
    source = (ROOT / "daemon" / "metrics.c").read_text()
    assert [name for name in table if f'"{name}' not in source] == []


def test_only_an_operator_may_ask(launch: Callable[..., Daemon]) -> None:
    sections = {"principal worker": {"uid": 0, "permissions": "run, load"}}
    daemon = launch(devices=ONE, sections=sections)
    with headrace.connect(daemon.address) as client:
        with pytest.raises(headrace.errors.PermissionDenied):
            client.metrics()


def test_health_and_what_is_not_there(watched: tuple[Daemon, str]) -> None:
    _, url = watched
    assert get(url + "/live") == (200, "live\n")
    seen = get(url + "/ready")
    while seen == (503, "a device has not computed anything yet\n"):
        seen = get(url + "/ready")
    assert seen == (200, "ready\n")
    assert get(url + "/degraded") == (200, "not degraded\n")
    assert get(url + "/")[0] == 404
    request = urllib.request.Request(url + "/metrics", data=b"x" * 100000, method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)
    assert caught.value.code == 405


def test_slow_and_rude_peers_hold_nothing_up(watched: tuple[Daemon, str]) -> None:
    daemon, url = watched
    port = int(url.rpartition(":")[2])
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    for one in slow:
        one.sendall(b"GET /metr")
    rude = socket.create_connection(("127.0.0.1", port))
    rude.sendall(b"\xff" * 70000 + b"\r\n\r\n")
    for _ in range(30):  # connections that go away while their answer is made
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(get(url + "/metrics")[0])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    with headrace.connect(daemon.address) as client:
        run_some(client, 20)
    for thread in threads:
        thread.join()
    assert results == [200] * 8
    for one in (*slow, rude):
        one.close()


def test_a_draining_daemon_is_not_ready(watched: tuple[Daemon, str]) -> None:
    daemon, url = watched
    graph = headrace.Graph()
    x = graph.input("x", (4,))
    graph.output(x + x)
    with headrace.connect(daemon.address) as client:
        handle = client.submit(graph, taps=[graph.nodes[0]])
        seen: list[tuple[int, str]] = []

        raw.eventually(lambda: get(url + "/ready")[0] == 200)

        def look(tensor: object, value: object) -> bool:
            daemon.process.terminate()  # the run goes on while the daemon drains
            for _ in range(200):
                seen.append(get(url + "/ready"))
                if seen[-1][0] == 503:
                    break
            return True

        handle.run({"x": np.ones(4, np.float32)}, observe=look)
    assert seen[-1] == (503, "draining\n")


def test_every_device_has_a_pulse(launch: Callable[..., Daemon]) -> None:
    """Also one that only multiplies, one with memory of its own, and a slow one."""
    port = held_port()
    devices = (
        device("blas", backend="blas"),
        device("own", backend="cpu", threads=1, memory="isolated"),
        device("slow", backend="cpu", threads=1, delay="50ms"),
        device("host", backend="cpu", threads=2),
    )
    sections = {"daemon": {"metrics": f"127.0.0.1:{port}", "heartbeat": "20ms"}}
    daemon = launch(devices=devices, sections=sections)
    with headrace.connect(daemon.address) as client:
        for _ in range(200):
            values = parse(client.metrics())
            beats = [values[f'device_heartbeats_total{{device="{one.name}",result="right"}}']
                     for one in devices]  # fmt: skip
            if min(beats) >= 3:
                break
            run_some(client, 5)
        assert min(beats) >= 3
        assert values["ready"] == 1 and values["degraded"] == 0
        wrong = [v for k, v in values.items() if k.startswith("device_heartbeats") and "wrong" in k]
        assert wrong == [0] * len(devices)
    assert get(f"http://127.0.0.1:{port}/ready") == (200, "ready\n")


def test_the_watchdog_is_fed(
    launch: Callable[..., Daemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While everything moves, and no more once the process stands still."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        daemon = launch(devices=ONE)
        program = build_folder() / "daemon" / "headraced"
        if b"libsystemd.so" not in program.read_bytes():
            pytest.skip("built without libsystemd")
        fed = 0
        while fed < 5:
            fed += manager.recv(4096) == b"WATCHDOG=1"
        # A run that takes long, step by step, is no reason to stop.
        graph = headrace.Graph()
        x = graph.input("x", (256, 256))
        for _ in range(60):
            x = graph.mul_mat(x, x)
        graph.output(x)
        with headrace.connect(daemon.address) as client:
            handle = client.submit(graph)
            running = [handle.run_async({"x": np.ones((256, 256), np.float32)}) for _ in range(8)]
            for one in running:
                one.result()
        while manager.recv(4096) != b"WATCHDOG=1":
            pass
        os.kill(daemon.process.pid, signal.SIGSTOP)
        manager.settimeout(0.05)
        try:
            while True:  # what had been sent before
                manager.recv(4096)
        except TimeoutError:
            pass
        manager.settimeout(1)
        with pytest.raises(TimeoutError):
            manager.recv(4096)
        os.kill(daemon.process.pid, signal.SIGCONT)
        manager.settimeout(20)
        while manager.recv(4096) != b"WATCHDOG=1":
            pass
