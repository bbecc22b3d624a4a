"""Round trip of a run of one node, Unix socket and loopback TCP, beside a bare socket echo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from rows import Row  # noqa: E402
from run_daemon import Daemon, build_folder  # noqa: E402

RUNS = 3000
REPETITIONS = 7


def measure(address: str) -> dict[str, float]:
    program = build_folder() / "tests" / "bench" / "bench_rpc"
    command = [str(program), address, str(RUNS), str(REPETITIONS)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    return {key: median(line[key] for line in lines) / 1000 for key in lines[0]}


def run() -> list[Row]:
    rows: list[Row] = []
    with Daemon(tcp=True) as daemon:
        assert daemon.tcp_address is not None
        for name, address in (("unix", daemon.address), ("tcp", daemon.tcp_address)):
            times = measure(address)
            run_p50, run_p99 = times["run_p50"], times["run_p99"]
            echo = "bare socket echo"
            rows += [
                Row(f"{name} p50", run_p50, "us", echo, times["echo_p50"]),
                Row(f"{name} p99", run_p99, "us", echo, times["echo_p99"]),
                Row(f"{name} p99 over p50", run_p99, "us", f"{name} p50", run_p50, "<= 3"),
            ]
    return rows
