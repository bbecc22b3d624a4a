"""The first GPU: models end to end, as shares of what the same GPU copies and multiplies at most.

`HEADRACE_MODEL` and models of the 7B shape with random weights, which are made here, in memory where it
suffices. Decoding: tokens one at a time, and with runs in flight, where the GPU is never idle; what is
read of weights for it is held against the measured copy. Prefill: operations of the products and of
attention against the measured product of bf16 matrices. The host's cost of a step is the processor time
of the daemon, with the driver's graphs and without. The daemon's overhead is that of runs through the
socket beside the same plan in a process of its own (bench_socket.c).

HEADRACE_LLAMA_BENCH names a program that measures the same of a file with llama.cpp
(tests/gpu/llama_gpu_peer.cpp): MODEL PROMPT TOKENS -> {"prompt_s", "generate_s"}. `--only` takes parts:
peaks, demo, 7B q4_K, 7B q8_0, 7B f16, overhead. `--quick`: shapes for a GPU that is none.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / folder) for folder in ("tools", "gpu", "acceptance")]

import headrace  # noqa: E402
import numpy as np  # noqa: E402
from llama_runner import Runner  # noqa: E402
from make_model import SHAPES, Shape, write  # noqa: E402
from rows import Row, is_quick, is_wanted  # noqa: E402
from run_daemon import Daemon, build_folder, device, program_environment  # noqa: E402

KINDS = ("q4_K", "q8_0", "f16")
REPETITIONS = 5
LLAMA = "llama.cpp"
COPY, PRODUCT = "measured copy", "measured bf16 product"


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    shape: str
    kinds: tuple[str, ...]
    prompt: int
    steps: int
    in_flight: int
    copy_bytes: int
    side: int
    chain_layers: int
    chain_runs: int
    repetitions: int


WHOLE = Size("7b", KINDS, 4096, 96, 4, 1 << 30, 4096, 480, 400, REPETITIONS)
QUICK = Size("least", ("f16",), 4, 2, 2, 1 << 16, 64, 2, 3, 1)


def size() -> Size:
    return QUICK if is_quick() else WHOLE


def program(name: str) -> Path:
    found = build_folder() / "tests" / name
    if not found.exists():
        raise OSError("this build has no CUDA backend: nothing to measure")
    return found


def answer(*command: object) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
        env=program_environment(),
    )  # fmt: skip
    if done.returncode != 0:
        raise OSError(f"no GPU to measure: {done.stderr.strip()[-500:]}")
    return done.stdout


def peaks() -> dict[str, float | None]:
    """Bytes and operations a second that the GPU reaches at most."""
    found = answer(program("gpu/gpu_probe"), "peaks", 0, size().copy_bytes, size().side)
    return dict(json.loads(found))


def peak_rows(peak: dict[str, float | None]) -> Iterator[Row]:
    for name, key, unit, scale in (
        ("copy within the GPU, read and written", "copy", "GB/s", 1e9),
        ("copy to the GPU", "to_device", "GB/s", 1e9),
        ("copy from the GPU", "to_host", "GB/s", 1e9),
        (f"product of bf16 matrices, {size().side}", "matrix", "TFLOP/s", 1e12),
    ):
        value = peak[key]
        if value is not None:
            yield Row(f"peaks: {name}", value / scale, unit)


# ---- models --------------------------------------------------------------------------------------


@contextmanager
def serving(folder: Path, **keys: object) -> Iterator[tuple[Daemon, headrace.Client]]:
    table = (device("gpu0", backend="cuda", gpu=0, **keys), device("host", backend="cpu"))
    with Daemon(models=[folder], devices=table) as daemon:
        with headrace.connect(daemon.address) as client:
            yield daemon, client


def processor_seconds(pid: int) -> float:
    """Of all threads of another process."""
    return time.clock_gettime((~pid << 3) | 2)


class Meter:
    """A model on the GPU, and how long it takes."""

    def __init__(self, client: headrace.Client, pid: int, file: str) -> None:
        self.pid = pid
        n_ctx = -(-(size().prompt + size().steps) // 32) * 32
        self.runner = Runner(client, file, n_ctx=n_ctx, split={"gpu0": 1}, n_copies=2)
        vocabulary = self.runner.weights["token_embd.weight"].shape[0]
        draw = random.Random(512)
        self.tokens = [draw.randrange(vocabulary) for _ in range(n_ctx)]

    def prefill(self) -> float:
        self.runner.restart()
        began = time.perf_counter()
        logits = self.runner.feed(self.tokens[: size().prompt])
        seconds = time.perf_counter() - began
        if not np.isfinite(logits).all():
            raise ValueError("logits that are no numbers")
        return seconds

    def decode(self, in_flight: int) -> tuple[float, float]:
        """Seconds and the daemon's processor seconds of a step, from an empty cache on."""
        runner, count = self.runner, size().steps
        prepared = [runner.inputs([self.tokens[i]], i) for i in range(count)]
        graph = runner.graph(1, prepared[0][0])
        if any(n_kv != prepared[0][0] for n_kv, _ in prepared):
            raise ValueError("the steps need graphs of several sizes")
        before, began = processor_seconds(self.pid), time.perf_counter()
        under_way: list[Any] = []
        for _, values in prepared:
            under_way.append(graph.run_async(values))
            if len(under_way) == in_flight:
                under_way.pop(0).result()
        for operation in under_way:
            operation.result()
        seconds = time.perf_counter() - began
        return seconds / count, (processor_seconds(self.pid) - before) / count


def repeated(act: Callable[[], Any]) -> list[Any]:
    """After two that warm up: the second one records the driver's graphs."""
    return [act() for _ in range(size().repetitions + 2)][2:]


def llama(file: Path) -> tuple[float, float] | None:
    """Tokens a second of llama.cpp: prompt and generation."""
    peer = os.environ.get("HEADRACE_LLAMA_BENCH")
    if not peer:
        return None
    told = answer(peer, file, size().prompt, size().steps)
    seconds = json.loads(told.splitlines()[-1])
    return size().prompt / seconds["prompt_s"], size().steps / seconds["generate_s"]


def operations(shape: Shape, tokens: int) -> float:
    """Multiplications and additions of a prompt: its products, logits of one token, and attention, of
    which the half is masked."""
    head = shape.embedding * shape.vocabulary
    products = (shape.products - head) * tokens + head
    attention = shape.layers * tokens * tokens * shape.embedding
    return 2.0 * (products + attention)


def model_rows(
    what: str, file: Path, read: int, shape: Shape | None, peak: dict[str, float | None], goal: bool
) -> Iterator[Row]:
    """read: bytes of weights that a token needs."""
    with serving(file.parent) as (daemon, client):
        began = time.perf_counter()
        meter = Meter(client, daemon.process.pid, file.name)
        yield Row(f"{what}: loaded", file.stat().st_size / 1e9 / (time.perf_counter() - began), "GB/s")
        one = repeated(lambda: meter.decode(1))
        many = repeated(lambda: meter.decode(size().in_flight))
        prompt = median(repeated(meter.prefill))
    step, busy = (median(seconds for seconds, _ in found) for found in (one, many))
    host = median(cost for _, cost in one)
    peers = llama(file)
    tokens = size().prompt
    yield Row(
        f"{what}: prompt of {tokens}", tokens / prompt, "tokens/s", LLAMA,
        peers[0] if peers else None,
    )  # fmt: skip
    yield Row(f"{what}: generation", 1 / step, "tokens/s", LLAMA, peers[1] if peers else None)
    yield Row(f"{what}: generation, {size().in_flight} in flight", 1 / busy, "tokens/s")
    copy, product = peak["copy"], peak["matrix"]
    assert copy is not None
    yield Row(f"{what}: weights read", read / busy / 1e9, "GB/s", COPY, copy / 1e9, ">= 0.8")
    if shape:
        rate = operations(shape, tokens) / prompt / 1e12
        yield Row(
            f"{what}: prompt's products", rate, "TFLOP/s", PRODUCT,
            product / 1e12 if product else None, ">= 0.6" if goal else None,
        )  # fmt: skip
    with serving(file.parent, graphs="no") as (daemon, client):
        meter = Meter(client, daemon.process.pid, file.name)
        single = repeated(lambda: meter.decode(1))
    without = median(cost for _, cost in single)
    yield Row(
        f"{what}: host's cost of a step", host * 1e6, "us", "without graphs", without * 1e6
    )
    yield Row(
        f"{what}: a step", step * 1e6, "us", "without graphs",
        median(seconds for seconds, _ in single) * 1e6,
    )  # fmt: skip


@contextmanager
def room(needed: int) -> Iterator[Path]:
    """A folder with so much room, in memory if it can be."""
    for parent in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if parent.is_dir() and shutil.disk_usage(parent).free > needed + (needed >> 3):
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                yield Path(folder)
            return
    raise OSError(f"no room for {needed >> 20} MiB of random weights")


def random_rows(kind: str, peak: dict[str, float | None]) -> Iterator[Row]:
    shape = SHAPES[size().shape]
    elements = sum(columns * rows for columns, rows in shape.matrices().values())
    with room(elements * 2) as folder:
        file = folder / f"random-{kind}.gguf"
        read = write(file, shape, kind)
        yield from model_rows(f"7B {kind}", file, read, shape, peak, kind == "f16")


def demo_rows(peak: dict[str, float | None]) -> Iterator[Row]:
    named = os.environ.get("HEADRACE_MODEL")
    if not named:
        print("no HEADRACE_MODEL: no rows of a model that somebody uses", file=sys.stderr)
        return
    file = Path(named).resolve()
    # The embedding is the output matrix as well: all of the file is read.
    yield from model_rows("demo", file, file.stat().st_size, None, peak, False)


# ---- the daemon's part ---------------------------------------------------------------------------


def overhead() -> Iterator[Row]:
    socket = program("bench/bench_socket")
    host = device("host", backend="cpu", threads=1, deny_ops="*")
    for slots in (1, 2):
        with Daemon(devices=[device("gpu0", backend="cuda", gpu=0), host]) as daemon:
            lines = answer(
                socket, daemon.address, size().chain_runs, size().repetitions,
                size().chain_layers, slots, 8, "cuda",
            ).splitlines()  # fmt: skip
        samples = [json.loads(line) for line in lines]
        rates = {key: 1e9 / median(line[key] for line in samples) for key in ("socket", "inside")}
        yield Row(
            f"overhead: through the socket, {slots} slot{'s' * (slots > 1)}", rates["socket"],
            "runs/s", "in process", rates["inside"], ">= 0.98",
        )  # fmt: skip


def run() -> list[Row]:
    answer(program("gpu/gpu_probe"))
    peak = peaks()
    parts: Sequence[tuple[str, Callable[[], Iterator[Row]]]] = (
        ("peaks", lambda: peak_rows(peak)),
        ("demo", lambda: demo_rows(peak)),
        *(
            (f"7B {kind}", lambda kind=kind: random_rows(kind, peak))  # type: ignore[misc]
            for kind in size().kinds
        ),
        ("overhead", overhead),
    )
    rows = [row for name, part in parts if is_wanted(name) for row in part()]
    if not rows:
        raise ValueError("nothing of what is asked for can be measured here")
    return rows
