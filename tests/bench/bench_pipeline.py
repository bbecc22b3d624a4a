"""Two CPU devices of one thread each, a stage on either: throughput, and decoding with more slots.

Decoding with more slots is compared with 1 slot repetition by repetition: the row's figure is what 1 slot
takes times the median of these ratios. The same with 1 slot, bound once more, has a row as well: how far it
is from 1 is how far to trust the others.

HEADRACE_BENCH_FIFO=1 measures with real-time priority, where the system allows it: for a machine that
others use at the same time. It takes both processors for about a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from rows import Row  # noqa: E402
from run_daemon import build_folder  # noqa: E402

REPETITIONS = 15
ROUNDS = 4
STAGE_MS = 5.5


def measure() -> list[dict[str, float]]:
    """Milliseconds per run of each arrangement, for each repetition."""
    program = build_folder() / "tests" / "bench" / "bench_pipeline"
    command = [str(program), str(REPETITIONS), str(ROUNDS), str(STAGE_MS)]
    if os.environ.get("HEADRACE_BENCH_FIFO"):
        command.append("fifo")
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def run() -> list[Row]:
    lines = measure()
    times = {key: median(line[key] for line in lines) for key in lines[0]}
    one = 1000 / min(times["one_1"], times["one_2"])
    peer = "one device, both stages"
    rows = [
        Row(
            f"two stages, {slots} slots",
            1000 / times[f"two_{slots}"],
            "runs/s",
            peer,
            one,
            ">= 1.9",
        )
        for slots in (2, 3, 4)
    ]
    rows.append(Row("two stages, 1 slot", 1000 / times["two_1"], "runs/s", peer, one))
    rows.append(Row("no pipeline: both apart", 1000 / times["apart"], "runs/s", peer, one))
    for name, what in (("decode", "decode, client waits"), ("state", "decode, chained by a state")):
        base = times[f"{name}_1"]
        for which, slots, goal in (
            ("2", "2 slots", "<= 1.02"),
            ("4", "4 slots", "<= 1.02"),
            ("again", "1 slot once more", None),
        ):
            ratio = median(line[f"{name}_{which}"] / line[f"{name}_1"] for line in lines)
            rows.append(Row(f"{what}, {slots}", base * ratio, "ms", "1 slot", base, goal))
    return rows
