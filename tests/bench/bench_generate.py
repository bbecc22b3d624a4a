"""A prompt of 512 tokens and a generation of 128, beside llama.cpp: same file, same threads.

The model is measured as it is and as `headrace quantize` makes it in other types, which are kept in
build/bench; `--quick` measures the file itself with one thread.

llama.cpp runs in an environment of its own (HEADRACE_LLAMA_PYTHON names its interpreter); without it the
rows have no peer. Both sides measure the same: the prompt in one call up to the likeliest token after
it; then the likeliest ones, token by token. The peer finds them in its own process, ours are found by
the daemon, as Context.stream() has it. They take turns in every repetition.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Protocol

import headrace
from headrace.models.generate import Context, Model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from rows import Row, is_quick  # noqa: E402
from run_daemon import ROOT, Daemon, device  # noqa: E402

PROMPT = 512
TOKENS = 128
CONTEXT = 1024
THREADS = (1, 2)
REPETITIONS = 5
GOAL = ">= 0.98"
TYPES = ("q8_0", "q4_0", "f16")  # what the file is quantised to, besides what it is


class Side(Protocol):
    """Evaluates a prompt, then generates; the seconds of each."""

    def __call__(self, prompt: list[int]) -> tuple[float, float]: ...


@contextmanager
def ours(model: Path, threads: int) -> Iterator[Side]:
    table = (device("cpu0", backend="cpu", threads=threads),)
    with Daemon(models=[model.parent], devices=table) as daemon:
        with headrace.connect(daemon.address) as client:
            context = Model.load(client, model.name).context(CONTEXT)
            yield lambda prompt: measure(context, prompt)


def measure(context: Context, prompt: list[int]) -> tuple[float, float]:
    context.reset()
    start = time.perf_counter()
    tokens = context.stream(prompt, 1 + TOKENS, stop=frozenset())
    next(tokens)
    between = time.perf_counter()
    if sum(1 for _ in tokens) != TOKENS:
        raise ValueError("the context is too short")
    return between - start, time.perf_counter() - between


@contextmanager
def peer(model: Path, threads: int) -> Iterator[Side | None]:
    """llama.cpp in a process of its own, or None where it is not to be had."""
    python = os.environ.get("HEADRACE_LLAMA_PYTHON")
    if not python:
        yield None
        return
    script = Path(__file__).with_name("llama_peer.py")
    process = subprocess.Popen(
        [python, script, model, str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    stdin, stdout = process.stdin, process.stdout
    if not stdout.readline().startswith("ready"):
        raise OSError("llama.cpp did not start")

    def measure_peer(prompt: list[int]) -> tuple[float, float]:
        stdin.write(json.dumps({"prompt": prompt, "tokens": TOKENS}) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        return answer["prompt_s"], answer["generate_s"]

    try:
        yield measure_peer
    finally:
        stdin.close()
        process.wait(30)


def quantised(model: Path, name: str) -> Path:
    """The model in another type, made once."""
    target = ROOT / "build" / "bench" / f"{model.stem}.{name}.gguf"
    if target.exists() and target.stat().st_mtime >= model.stat().st_mtime:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    with Daemon() as daemon:
        command = [sys.executable, "-m", "headrace.cli", "quantize", "--force"]
        command += ["--connect", daemon.address, str(model), str(unfinished), name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return unfinished.replace(target)


def compare(model: Path, threads: int, kind: str) -> list[Row]:
    prompt = [random.Random(512).randrange(100, 40000) for _ in range(PROMPT)]
    names = (f"prompt of {PROMPT}", f"generation of {TOKENS}")
    counts = (PROMPT, TOKENS)
    with ours(model, threads) as we, peer(model, threads) as they:
        sides = [side for side in (we, they) if side is not None]
        times: list[list[tuple[float, float]]] = [[] for _ in sides]
        for repetition in range(REPETITIONS + 1):
            for side, seconds in zip(sides, times, strict=True):
                measured = side(prompt)
                if repetition > 0:  # the first one warms up
                    seconds.append(measured)
    rows = []
    for part, (name, count) in enumerate(zip(names, counts, strict=True)):
        speeds = [count / median(pair[part] for pair in seconds) for seconds in times]
        what = f"{kind}: {name}, {threads} thread{'s' * (threads > 1)}"
        llama = speeds[1] if len(speeds) > 1 else None
        rows.append(Row(what, speeds[0], "tokens/s", "llama.cpp", llama, GOAL))
    return rows


def run() -> list[Row]:
    model = Path(os.environ["HEADRACE_MODEL"]).resolve()
    cores = 1 if is_quick() else len(os.sched_getaffinity(0))
    files = {model.stem: model}
    if not is_quick():
        files |= {name: quantised(model, name) for name in TYPES}
    return [
        row
        for kind, file in files.items()
        for threads in THREADS
        if threads <= cores
        for row in compare(file, threads, kind)
    ]
