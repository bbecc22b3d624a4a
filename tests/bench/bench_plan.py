"""Planning and dispatching on devices that compute nothing, beside ggml's scheduler if there is one.

A miss is planned, placed and proven anew; a hit comes from the bytes of the wire; ggml splits and
allocates the same graph, in a program compiled against it here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import ggml  # noqa: E402
from rows import Row  # noqa: E402
from run_daemon import build_folder  # noqa: E402

REPETITIONS = 5
# Layers, GPUs, copies. 32 layers are 996 nodes, 80 are 2484.
DECODE = [(layers, gpus, copies) for layers in (32, 80) for gpus in (1, 2, 4, 8) for copies in (1, 4)]
SIZES = [(32, 2, 1), (322, 2, 1), (3225, 2, 1)]


@dataclass(frozen=True)
class Case:
    layers: int
    gpus: int
    copies: int

    @property
    def name(self) -> str:
        return f"{self.layers} layers, {self.gpus} GPU, {self.copies} copies"


def lines(command: list[str], stdin: bytes | None = None) -> dict[str, float]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    answer = subprocess.run(
        command, input=stdin, stdout=subprocess.PIPE, check=True, env=environment
    )
    return dict(json.loads(answer.stdout))


def program() -> str:
    return str(build_folder() / "tests" / "bench" / "bench_plan")


def measure(case: Case, peer: str | None) -> tuple[dict[str, float], dict[str, float]]:
    """Medians of ours and of the peer's, which take turns."""
    shape = [str(case.layers), str(case.gpus)]
    graph = subprocess.run(
        [program(), "--print", *shape], stdout=subprocess.PIPE, check=True
    ).stdout
    ours, theirs = [], []
    for _ in range(REPETITIONS):
        ours.append(lines([program(), *shape, str(case.copies)]))
        if peer:
            theirs.append(lines([peer, str(case.copies)], graph))
    middle = {key: median(line[key] for line in ours) for key in ours[0]}
    return middle, {key: median(line[key] for line in theirs) for key in theirs[0]} if theirs else {}


def run() -> list[Row]:
    rows: list[Row] = []
    peer = ggml.build("ggml_plan_peer", ("ggml-base",))
    per_node: dict[str, list[float]] = {"miss": [], "hit from wire": []}
    for case in [Case(*values) for values in DECODE]:
        ours, theirs = measure(case, peer)
        name = case.name
        rows += [
            Row(f"{name}: miss", ours["miss"], "ns/node", ggml.NAME, theirs.get("miss"), "<= 1"),
            Row(f"{name}: hit from wire", ours["hit_wire"], "ns/node", goal="<= 150"),
            Row(f"{name}: dispatch", ours["dispatch"], "ns/split", goal="<= 100"),
            Row(f"{name}: dispatch", ours["dispatch"], "ns/split", ggml.NAME, theirs.get("dispatch")),
        ]
    for case in [Case(*values) for values in SIZES]:
        ours, theirs = measure(case, peer)
        name = f"{ours['nodes']:.0f} nodes, {case.gpus} GPU"
        per_node["miss"].append(ours["miss"])
        per_node["hit from wire"].append(ours["hit_wire"])
        rows += [
            Row(f"{name}: miss", ours["miss"], "ns/node", ggml.NAME, theirs.get("miss"), "<= 1"),
            Row(f"{name}: hit from wire", ours["hit_wire"], "ns/node", goal="<= 150"),
        ]
    rows.append(Row("hit by handle", ours["handle"] / 1000, "us", goal="<= 1"))
    rows += [
        Row(f"{what}: 100k over 1k nodes", values[-1], "ns/node", "1k nodes", values[0], "<= 4")
        for what, values in per_node.items()
    ]
    return rows
