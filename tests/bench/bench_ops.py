"""Matrix products and attention on the CPU, operator by operator, beside ggml's in one run.

The peer is the libggml that lies in llama-cpp-python (HEADRACE_LLAMA_PYTHON names its interpreter), as
llama.cpp uses it: as it is, and with the weights interleaved when they are loaded, for the types that it
does that for. Without it there are no ratios. Both sides compute the same operators with the same number
of threads and take turns in every repetition; rows are medians.

One column reads weights at the speed of memory: those of 4096 x 4096 are compared with what plain reading
reaches in the same run. 512 columns of block types are compared with the dot products of bytes that the
processor can do at most; Q8_0, Q4_1 and Q5_0 also with `arithmetic = fast`, and f32 with OpenBLAS.

    ./bench ops --only 'q4_K n=8' --only 'f32 576x576 n=1 '      rows that hold all of these words
    ./bench ops --quick                                           few repetitions, one thread
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from rows import Row, is_quick, is_wanted  # noqa: E402
from run_daemon import build_folder  # noqa: E402

TYPES = {
    "f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0, "q5_0": 5.5,
    "q4_K": 4.5, "q5_K": 5.5, "q6_K": 6.5625, "iq4_nl": 4.5,
}  # fmt: skip
LARGE = ("q4_K", "q5_K", "q6_K")  # blocks of 256
FLOATS = ("f32", "f16", "bf16")
SLOWLY_ADDED = ("q8_0", "q4_1", "q5_0")  # in llama.cpp's order, which `arithmetic = fast` leaves
# rows x columns of the weights: a square, and SmolLM2's
SHAPES = [(4096, 4096), (576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576)]
COLUMNS = (1, 8, 64, 512)
# size of a head, heads, heads of keys; SmolLM2's and those of a larger model
HEADS = [(64, 9, 3), (128, 32, 8)]
KEYS = (512, 4096)
QUERIES = (1, 8, 512)
CYCLE_MIB = 320  # of weights behind one or a few columns: nothing stays in a cache
LAYERS = 30
BURST_NS = 30e6  # what one turn takes at least
PAUSE_S = 0.004  # threads of the other side stop spinning
NOT_SLOWER, FASTER, FASTER_SHARE = 0.98, 1.2, 0.7
GGML = {"ggml": "ggml", "repack": "ggml repack"}  # its ways, and what rows call them
OPENBLAS = "OpenBLAS"  # our BLAS device's way
AS_BLAS = 0.95


class Side:
    """A process that answers lines."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise OSError(f"no answer to {line!r}")
        return answer

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)


class Sides:
    """Ours, and whom it is measured beside."""

    def __init__(self) -> None:
        program = build_folder() / "tests" / "bench" / "bench_ops"
        python = os.environ.get("HEADRACE_LLAMA_PYTHON")
        self.ours, self.blas, self.ggml = Side([program]), Side([program]), None
        if python:
            self.ggml = Side([python, Path(__file__).with_name("ggml_ops_peer.py")])

    def peer(self, way: str | None) -> Side | None:
        return self.blas if way == OPENBLAS else self.ggml if way else None

    def ways(self, case: Case) -> list[str | None]:
        """Those that there is a side for; with none at all ours is measured alone."""
        return [way for way in case.peers if self.peer(way)] or [None]

    def close(self) -> None:
        for side in (self.ours, self.blas, self.ggml):
            if side:
                side.close()


@dataclass(frozen=True)
class Case:
    """One operator: how each side is asked for it, and what it amounts to."""

    what: str
    ours: str
    peers: dict[str, str]  # name of the peer's way -> its line
    amount: float  # bytes or operations
    unit: str
    yardstick: str = ""  # a line to our side
    share: str = ""  # the name of that row
    goal: str = ""


def product(name: str, m: int, k: int, n: int, threads: int, way: str) -> Case:
    mib = CYCLE_MIB if n <= 8 else 0
    shape = f"{name} {m} {k} {n} {threads} {mib}"
    what = f"{name} {m}x{k} n={n} {threads}t"
    bytes_all, operations = m * k * TYPES[name] / 8, 2.0 * m * k * n
    yardstick, share, goal = "", "", ""
    if n == 1 and (m, k) == (4096, 4096):
        yardstick, share, goal = f"read {threads} {CYCLE_MIB}", "of read bandwidth", ">= 0.9"
    elif n == 512 and (m, k) == (4096, 4096) and name not in FLOATS:
        yardstick, share, goal = f"peak int8 {threads}", "of int8 peak", ">= 0.5"
        if way == "cpu" and name in SLOWLY_ADDED:  # llama.cpp's order has no room for more
            goal = ""
    if way == "fast":
        what += " fast"
    peers = {peer: f"mul_mat {peer} {shape}" for peer in GGML}
    if name == "f32" and n == 512:
        peers[OPENBLAS] = f"mul_mat blas {shape}"
    return Case(
        what,
        f"mul_mat {way} {shape}",
        peers,
        bytes_all if n == 1 else operations,
        "GB/s" if n == 1 else "GFLOP/s",
        yardstick,
        share,
        goal,
    )


def attention(heads: tuple[int, int, int], keys: int, queries: int, threads: int) -> Case:
    size, count, key_heads = heads
    copies = LAYERS if queries == 1 else 4 if queries < 64 else 1
    line = f"attend {threads} {size} {count} {key_heads} {keys} {queries} {copies}"
    what = f"attention {count}/{key_heads}x{size} keys={keys} n={queries} {threads}t"
    operations = 4.0 * size * count * keys * queries
    return Case(what, line, {"ggml": line}, operations, "GFLOP/s")


def cases(threads: Sequence[int]) -> Iterator[Case]:
    for count in threads:
        for m, k in SHAPES:
            for name in TYPES:
                if name in LARGE and k % 256:
                    continue
                for n in COLUMNS:
                    yield product(name, m, k, n, count, "cpu")
                if name in SLOWLY_ADDED:
                    yield product(name, m, k, 512, count, "fast")
        for heads in HEADS:
            for keys in KEYS:
                for queries in QUERIES:
                    if queries <= keys:
                        yield attention(heads, keys, queries, count)


def opened(side: Side, line: str) -> int:
    """How many operators a pass has; 0 where the side has no such way."""
    answer = side.ask(line)
    return int(answer.split()[1]) if answer.startswith("ok") else 0


def turns(side: Side, count: int) -> Callable[[], float]:
    """ns an operator, measured over long enough a time; the first passes warm up."""
    one = float(side.ask("run 1"))
    one = min(one, float(side.ask("run 1")))
    passes = max(1, round(BURST_NS / (one * count)))
    return lambda: float(side.ask(f"run {passes}"))


def measure(case: Case, way: str | None, sides: Sides) -> tuple[float, ...] | None:
    """Medians of our ns, the peer's and the yardstick (0 without one), or None where there is no way."""
    ours, peer = sides.ours, sides.peer(way)
    count = opened(ours, case.ours)
    if not count:
        return None
    mine, theirs = turns(ours, count), None
    if peer and way:
        count = opened(peer, case.peers[way])
        if not count:
            return None
        theirs = turns(peer, count)
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    for _ in range(3 if is_quick() else 7):
        times[0].append(mine())
        if case.yardstick:
            times[2].append(float(ours.ask(case.yardstick)))
        time.sleep(PAUSE_S)
        if theirs:
            times[1].append(theirs())
            time.sleep(PAUSE_S)
    return tuple(median(values) if values else 0.0 for values in times)


def rows_of(case: Case, sides: Sides) -> list[Row]:
    rows: list[Row] = []
    for index, way in enumerate(sides.ways(case)):
        found = measure(case, way, sides)
        if not found:
            continue
        value, other, yardstick = found
        speed = case.amount / value
        against = case.amount / other if other else None
        name = GGML.get(way, way) if way else None
        goal = f">= {AS_BLAS if way == OPENBLAS else NOT_SLOWER}" if way else None
        rows.append(Row(case.what, speed, case.unit, name, against, goal))
        if yardstick and index == 0:
            what, goal = f"{case.what} {case.share}", case.goal or None
            rows.append(Row(what, speed, case.unit, "yardstick", yardstick, goal))
        print(f"{case.what}: {speed:.1f} {case.unit}, {name} {against}", file=sys.stderr)
    return rows


def summary(rows: list[Row]) -> list[Row]:
    ratios = [row.ratio for row in rows if row.ratio and row.peer in GGML.values()]
    if not ratios:
        return []
    good = sum(ratio >= NOT_SLOWER for ratio in ratios) / len(ratios)
    better = sum(ratio >= FASTER for ratio in ratios) / len(ratios)
    return [
        Row(f"rows not slower, of {len(ratios)}", good, f"ratio >= {NOT_SLOWER}", goal=">= 1"),
        Row(f"rows faster, of {len(ratios)}", better, f"ratio >= {FASTER}", goal=f">= {FASTER_SHARE}"),
        Row("median of all ratios", median(ratios), "ratio"),
    ]


def run() -> list[Row]:
    cores = len(os.sched_getaffinity(0))
    threads = [count for count in ((1,) if is_quick() else (1, 2)) if count <= cores]
    rows: list[Row] = []
    sides = Sides()
    try:
        for case in cases(threads):
            if is_wanted(case.what):
                rows += rows_of(case, sides)
    finally:
        sides.close()
    return rows + summary(rows)
