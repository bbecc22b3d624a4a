"""Products on the BLAS device beside the CPU device: from how many columns on BLAS wins, by type.

A ratio of 1 or more in a row means that BLAS is at least as fast there. The device's own choice
(`batch_min = 0`) follows these rows.
"""

from __future__ import annotations

import json
import subprocess

from rows import Row
from run_daemon import build_folder

SHAPES = ((576, 1536), (4096, 4096))  # rows, k
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_1", "q4_K")
COLUMNS = (8, 32, 64, 128, 256, 512, 1024, 2048)


def run() -> list[Row]:
    program = build_folder() / "tests" / "bench" / "bench_blas"
    if not program.exists():
        raise OSError("this build has no OpenBLAS: nothing to compare")
    rows: list[Row] = []
    for threads in (1, 2):
        for m, k in SHAPES:
            for kind in TYPES:
                command = [program, threads, m, k, kind, *COLUMNS]
                answer = subprocess.run(
                    [str(part) for part in command],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                for line in map(json.loads, answer.stdout.splitlines()):
                    columns = line["columns"]
                    rate = 2.0 * m * k * columns  # operations; by ns: GFLOP/s
                    rows.append(
                        Row(
                            f"{kind} {m}x{k} n={columns} {threads}t",
                            rate / line["blas_ns"],
                            "GFLOP/s",
                            "the cpu device",
                            rate / line["cpu_ns"],
                        )
                    )
    return rows
