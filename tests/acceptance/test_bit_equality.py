"""The same bits: with any number of copies, from a cached or a fresh plan, beside another client that
generates, and with the layers split over two devices.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from llama_runner import Array, Runner
from tables import ONE, TWO, Start

DECODED = 12
HALVES = {"cpu0": 15, "cpu1": 15}


def expect_equal(left: Sequence[Array], right: Sequence[Array]) -> None:
    assert len(left) == len(right)
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        assert a.tobytes() == b.tobytes(), (
            f"position {position}: largest difference {np.abs(a - b).max()}"
        )


def sequence(client: headrace.Client, file: str, prompt: dict[str, Any], **how: Any) -> list[Array]:
    """Logits after a prompt and after each of the first tokens of its continuation."""
    runner = Runner(client, file, **how)
    return runner.forced(prompt["prompt_tokens"], prompt["continuation"][:DECODED])


@pytest.fixture(scope="module")
def plain(start: Start, model: Path, reference: dict[str, Any]) -> dict[str, list[Array]]:
    """One isolated device, one copy: what everything else has to equal."""
    with headrace.connect(start(ONE).address) as client:
        return {
            name: sequence(client, model.name, prompt, n_copies=1)
            for name, prompt in reference.items()
        }


def test_logits_are_finite_and_differ(plain: dict[str, list[Array]]) -> None:
    """Equality below means something: these are numbers, and not always the same ones."""
    for logits in plain.values():
        assert all(np.isfinite(values).all() for values in logits)
        assert len({values.tobytes() for values in logits}) == len(logits)


@pytest.mark.parametrize("n_copies", [2, 4])
@pytest.mark.parametrize("name", ["twelve", "long"])
def test_more_copies(
    start: Start, model: Path, reference: Any, plain: Any, name: str, n_copies: int
) -> None:
    with headrace.connect(start(ONE).address) as client:
        expect_equal(sequence(client, model.name, reference[name], n_copies=n_copies), plain[name])


@pytest.mark.parametrize("devices", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("n_copies", [1, 2, 4])
def test_runs_in_flight(
    start: Start, model: Path, reference: Any, devices: Any, n_copies: int
) -> None:
    """Many runs under way at once, all over the same cache: each as if it were alone."""
    tokens = reference["long"]["prompt_tokens"]
    batches = [tokens[i : i + 16] for i in range(0, 256, 16)]
    split = HALVES if devices is TWO else None
    with headrace.connect(start(devices).address) as client:
        runner = Runner(client, model.name, n_copies=n_copies, split=split)
        alone = []
        for batch in batches:
            runner.restart()
            alone.append(runner.feed(batch))
        graph = runner.graph(16, runner.inputs(batches[0])[0])
        operations = [graph.run_async(runner.inputs(batch)[1]) for batch in batches]
        together = [operation.result()["logits"][0] for operation in operations]
    expect_equal(together, alone)


def test_fresh_and_cached_plan(start: Start, model: Path, reference: Any, plain: Any) -> None:
    prompt = reference["twelve"]
    with headrace.connect(start(ONE).address) as client:
        for fresh in (True, False, True):
            runner = Runner(client, model.name, n_copies=1)
            n_kv, values = runner.inputs(prompt["prompt_tokens"])
            graph = runner.graph(len(prompt["prompt_tokens"]), n_kv, fresh=fresh)
            assert (graph.plan.origin == "hit") is not fresh
            expect_equal([graph.run(values)["logits"][0]], plain["twelve"][:1])


def test_beside_a_second_client(start: Start, model: Path, reference: Any, plain: Any) -> None:
    """A second session generates all the time; neither sees the other."""
    daemon = start(ONE)
    stop, rounds, failures = threading.Event(), [0], []

    def generate() -> None:
        try:
            with headrace.connect(daemon.address) as other:
                while not stop.is_set():
                    expect_equal(
                        sequence(other, model.name, reference["one"], n_copies=2), plain["one"]
                    )
                    rounds[0] += 1
        except BaseException as failure:  # noqa: BLE001 - handed to the test
            failures.append(failure)

    thread = threading.Thread(target=generate)
    thread.start()
    try:
        with headrace.connect(daemon.address) as client:
            for name in ("twelve", "long"):
                expect_equal(sequence(client, model.name, reference[name]), plain[name])
    finally:
        stop.set()
        thread.join()
    assert not failures, failures[0]
    assert rounds[0] > 0


@pytest.mark.parametrize("n_copies", [1, 2, 4])
@pytest.mark.parametrize("name", ["twelve", "long"])
def test_layers_half_and_half(
    start: Start, model: Path, reference: Any, plain: Any, name: str, n_copies: int
) -> None:
    with headrace.connect(start(TWO).address) as client:
        runner = Runner(client, model.name, split=HALVES, n_copies=n_copies)
        prompt = reference[name]
        logits = runner.forced(prompt["prompt_tokens"], prompt["continuation"][:DECODED])
        for graph in runner.graphs.values():
            splits = {share.device: share.splits for share in graph.plan.devices}
            assert splits["cpu0"] >= 1 and splits["cpu1"] >= 1
            assert graph.plan.copied_bytes > 0
        expect_equal(logits, plain[name])
