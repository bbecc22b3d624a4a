"""Runs through the socket: round trips, what they cost the daemon, and throughput.

Round trips of a run of one node beside ggml's RPC (its server with one CPU device of one thread, over
loopback TCP, the only transport it has) and beside a bare socket echo; they take turns.

The control path is the processor time of the daemon's loop and engine from the bytes of a run to the
device's queue, as bench_control.c says: the device sleeps while runs are taken in, so that nothing ends
meanwhile, and nothing spins, so that waiting is not taken for work. A burst of 16 is one read from the
socket; one after the other wakes the loop and reads for each run; alone, caches are cold and the device
has to be woken as well. What a process takes that is woken by the same bytes, reads them and does nothing
stands beside it.

Throughput is that of runs of some milliseconds on one single-threaded device, through the socket with 8
requests in flight and, in turn, in a process that calls the scheduler itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import ggml  # noqa: E402
from rows import Row  # noqa: E402
from run_daemon import Daemon, build_folder, device, held_port  # noqa: E402

RUNS = 3000
REPETITIONS = 7
BURSTS = 480
DELAY_MS = 10
CHAIN_LAYERS = 120
CHAIN_RUNS = 100
ECHO = "bare socket echo"
RPC = "ggml RPC"
BARE = "waking and reading"


def lines(program: str | Path, *arguments: object) -> list[dict[str, float]]:
    command = [str(program), *(str(argument) for argument in arguments)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def ours(name: str) -> Path:
    return build_folder() / "tests" / "bench" / name


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {key: median(line[key] for line in samples) for key in samples[0]} if samples else {}


@contextmanager
def ggml_server() -> Iterator[tuple[str, str] | None]:
    """The peer's program and the endpoint of its running server, or None without ggml."""
    program = ggml.build("ggml_rpc_peer", ("ggml-rpc", "ggml-cpu", "ggml-base"))
    if not program:
        yield None
        return
    endpoint = f"127.0.0.1:{held_port()}"
    server = subprocess.Popen(
        [program, "serve", endpoint], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            time.sleep(0.05)
            first = subprocess.run(
                [program, "run", endpoint, "200"], capture_output=True, check=False
            )
            if first.returncode == 0:
                yield program, endpoint
                return
        raise OSError("ggml's RPC server does not answer")
    finally:
        server.terminate()
        server.wait(10)


def round_trips() -> list[Row]:
    rows: list[Row] = []
    with Daemon(tcp=True) as daemon, ggml_server() as peer:
        assert daemon.tcp_address is not None
        addresses = {"unix": daemon.address, "tcp": daemon.tcp_address}
        samples: dict[str, list[dict[str, float]]] = {"unix": [], "tcp": [], "peer": []}
        for _ in range(REPETITIONS):
            for name, address in addresses.items():
                samples[name] += lines(ours("bench_rpc"), address, RUNS, 1)
            if peer:
                samples["peer"] += lines(peer[0], "run", peer[1], RUNS)
    theirs = medians(samples["peer"])
    for name in addresses:
        times = {key: value / 1000 for key, value in medians(samples[name]).items()}
        p50, p99 = times["run_p50"], times["run_p99"]
        for what, value, goal in (("p50", p50, "<= 1/3"), ("p99", p99, None)):
            rpc = theirs[f"run_{what}"] / 1000 if theirs else None
            rows.append(Row(f"{name} {what}", value, "us", RPC, rpc, goal))
            rows.append(Row(f"{name} {what}", value, "us", ECHO, times[f"echo_{what}"]))
        rows.append(Row(f"{name} p99 over p50", p99, "us", f"{name} p50", p50, "<= 3"))
    return rows


def control_path() -> list[Row]:
    rows: list[Row] = []
    table = [device("cpu0", backend="cpu", threads=1, spin="0us", delay=f"{DELAY_MS}ms")]
    # All of a burst is handed to the device.
    sections = {"daemon": {"spin": "0us"}, "limits": {"device_runs": 64, "device_ahead": "10s"}}
    with Daemon(devices=table, sections=sections) as daemon:
        for what, burst, spacing_us, goal in (
            ("16 at once", 16, 0, "<= 5"),
            ("one after the other", 16, 100, "<= 5"),
            ("alone, after a sleep", 1, 0, None),
        ):
            samples = lines(
                ours("bench_control"), daemon.address, daemon.process.pid, burst,
                BURSTS // burst, DELAY_MS, spacing_us,
            )  # fmt: skip
            cost, bare = (medians(samples)[key] / 1000 for key in ("control", "bare"))
            what = f"bytes to queue, processor time, {what}"
            rows.append(Row(what, cost, "us", goal=goal))
            rows.append(Row(what, cost, "us", BARE, bare))
            rows.append(Row(f"{what}, beyond {BARE}", cost - bare, "us", goal="<= 5"))
    return rows


def throughput() -> list[Row]:
    rows: list[Row] = []
    for slots in (1, 2):
        with Daemon(devices=[device("cpu0", backend="cpu", threads=1)]) as daemon:
            samples = lines(
                ours("bench_socket"), daemon.address, CHAIN_RUNS, REPETITIONS, CHAIN_LAYERS, slots, 8
            )
        rate = {key: 1e9 / value for key, value in medians(samples).items()}
        what = f"through the socket, {slots} slot{'s' * (slots > 1)}"
        rows.append(
            Row(what, rate["socket"], "runs/s", "in process", rate["inside"], ">= 0.98")
        )
    return rows


def run() -> list[Row]:
    return round_trips() + control_path() + throughput()
