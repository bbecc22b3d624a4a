"""stage_devices.py [--quick]: one to four logical devices on one GPU, n_copies 1 to 8: the same bits.

A random model of the Llama family, its layers spread over the devices. The first one alone with one
copy is what everything else has to equal, with single runs and with many in flight; it is itself held
against the CPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from stage import HOST, Array, Failure, distance, end, on_gpu, same_bits, serving

import headrace
from llama_runner import Runner  # isort: skip - beside the acceptance tests
from make_model import SHAPES, write  # isort: skip

STEPS = 4
BATCHES = 8
# Sums are made in another order than on the CPU.
NEAR = 1e-3


def tokens(count: int, first: int) -> list[int]:
    return [(7 * i + first) % 64 for i in range(count)]


def context(length: int) -> int:
    return length + 12


def sequence(runner: Runner, length: int) -> list[Array]:
    """A prompt of that length, then steps."""
    return runner.forced(tokens(length, 3), tokens(STEPS, 1))


def in_flight(runner: Runner, length: int) -> list[Array]:
    batches = [tokens(length, batch) for batch in range(BATCHES)]
    graph = runner.graph(length, runner.inputs(batches[0])[0])
    operations = [graph.run_async(runner.inputs(batch)[1]) for batch in batches]
    return [operation.result()["logits"][0] for operation in operations]


def both(
    client: headrace.Client, file: str, split: dict[str, int], copies: int, length: int
) -> list[Array]:
    runner = Runner(client, file, n_ctx=context(length), split=split, n_copies=copies)
    found = sequence(runner, length) + in_flight(runner, length // 2)
    for graph in runner.graphs.values():
        used = {share.device for share in graph.plan.devices if share.splits}
        if not set(split) <= used:
            raise Failure(f"{len(split)} devices, {copies} copies: only {sorted(used)} compute")
    return found


def work() -> str:
    quick = "--quick" in sys.argv[1:]
    counts, copies = ((1, 4), (8,)) if quick else (range(1, 5), range(1, 9))
    # Long enough for the kernels of many columns, short enough for a GPU that is none.
    shape, kind, length = ("least", "q8_0", 4) if quick else ("tiny", "q4_K", 80)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "random.gguf"
        write(file, SHAPES[shape], kind)
        with serving((HOST,), [file.parent]) as (_, client):
            on_cpu = sequence(Runner(client, file.name, n_ctx=context(length)), length)
        with serving(on_gpu(max(counts)), [file.parent]) as (_, client):
            plain = both(client, file.name, {"gpu0": 1}, 1, length)
            far = max(distance(a, b) for a, b in zip(plain, on_cpu, strict=False))
            if far > NEAR:
                raise Failure(f"the GPU is {far:.3g} away from the CPU")
            if len({values.tobytes() for values in plain[: len(on_cpu)]}) != len(on_cpu):
                raise Failure("different tokens gave the same logits")
            for count in counts:
                for n in copies:
                    if count == n == 1:
                        continue
                    split = {f"gpu{i}": 1 for i in range(count)}
                    found = both(client, file.name, split, n, length)
                    same_bits(f"{count} devices, {n} copies", found, plain)
    return (
        f"{max(counts)} devices, up to {max(copies)} copies: {len(plain)} results each, all of the "
        f"same bits; {far:.2g} from the CPU"
    )


if __name__ == "__main__":
    end(work)
