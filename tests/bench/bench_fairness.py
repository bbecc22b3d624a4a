"""Small clients beside a hog, and beside idle connections: what they notice of the others.

31 clients, each a principal of its own, run a graph of one node and think for some milliseconds, over and
over: alone, and beside a hog whose four sessions have 16 runs each on their way, all the time, of a graph
that is one split. Then 64 such clients alone, and with 1 000 connections open that do nothing. Sides take
turns. A client may be held up by the split that is on the device when it comes, and by nothing else of the
hog's: the goal is twice the unloaded 99th percentile and one split.

Memory of an idle connection is what the daemon grows by for 1 000 of them, each with a session.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from rows import Row  # noqa: E402
from run_daemon import Daemon, build_folder, device  # noqa: E402

REPETITIONS = 5
SECONDS = 1.5
SMALL, ACTIVE, IDLE = 31, 64, 1000
THINK_US = 10000
HOGS, LAYERS = 4, 120
DEVICES = (device("cpu0", backend="cpu", threads=1),)


def measure(daemon: Daemon, small: int, hogs: int, idle: int, tokens: bool) -> dict[str, float]:
    """One line of the program, in microseconds."""
    command = [
        build_folder() / "tests" / "bench" / "bench_fairness", daemon.address, small, THINK_US,
        SECONDS, hogs, LAYERS, idle, int(tokens),
    ]  # fmt: skip
    answer = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True
    )
    line: dict[str, float] = json.loads(answer.stdout)
    return {key: line[key] / 1000 for key in ("p50", "p99", "split")} | {
        "hog_rate": line["hog_runs"] / SECONDS
    }


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {key: median(line[key] for line in samples) for key in samples[0]}


def anonymous_bytes(daemon: Daemon) -> int:
    rollup = Path(f"/proc/{daemon.process.pid}/smaps_rollup").read_text()
    return 1024 * next(
        int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:")
    )


def beside_a_hog() -> list[Row]:
    sections: dict[str, dict[str, object]] = {
        f"principal p{i}": {
            "token_sha256": hashlib.sha256(f"token-{i}".encode()).hexdigest(),
            "permissions": "run",
        }
        for i in range(SMALL + 1)
    }
    alone: list[dict[str, float]] = []
    beside: list[dict[str, float]] = []
    with Daemon(devices=DEVICES, sections=sections) as daemon:
        for _ in range(REPETITIONS):
            alone.append(measure(daemon, SMALL, 0, 0, True))
            beside.append(measure(daemon, SMALL, HOGS, 0, True))
    unloaded, loaded = medians(alone), medians(beside)
    bound = 2 * unloaded["p99"] + loaded["split"]
    return [
        Row(f"{SMALL} clients, p50 alone", unloaded["p50"], "us"),
        Row(f"{SMALL} clients, p99 alone", unloaded["p99"], "us"),
        Row("the hog's split", loaded["split"], "us"),
        Row("the hog's runs meanwhile", loaded["hog_rate"], "runs/s"),
        Row(f"{SMALL} clients, p50 beside a hog", loaded["p50"], "us"),
        Row(f"{SMALL} clients, p99 beside a hog", loaded["p99"], "us",
            "2 x p99 alone + split", bound, "<= 1"),
    ]  # fmt: skip


def beside_idle_ones() -> list[Row]:
    alone: list[dict[str, float]] = []
    beside: list[dict[str, float]] = []
    limits: dict[str, object] = {"connections": 4096}
    with Daemon(devices=DEVICES, sections={"limits": limits}) as daemon:
        for _ in range(REPETITIONS):
            alone.append(measure(daemon, ACTIVE, 0, 0, False))
            beside.append(measure(daemon, ACTIVE, 0, IDLE, False))
    unloaded, loaded = medians(alone), medians(beside)
    return [
        Row(f"{ACTIVE} clients, p99 alone", unloaded["p99"], "us"),
        Row(f"{ACTIVE} clients, p99 beside {IDLE} idle", loaded["p99"], "us",
            "2 x p99 alone", 2 * unloaded["p99"], "<= 1"),
    ]  # fmt: skip


def memory() -> list[Row]:
    program = build_folder() / "tests" / "bench" / "bench_fairness"
    with Daemon(devices=DEVICES) as daemon:
        measure(daemon, 1, 0, 64, False)
        before = anonymous_bytes(daemon)
        command = [program, daemon.address, 0, THINK_US, 2, 0, 1, IDLE, 0]
        with subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE
        ) as idle:
            most = before
            while idle.poll() is None:
                most = max(most, anonymous_bytes(daemon))
    return [Row("memory of an idle connection", (most - before) / IDLE, "bytes", goal="<= 1024")]


def run() -> list[Row]:
    return beside_a_hog() + beside_idle_ones() + memory()
