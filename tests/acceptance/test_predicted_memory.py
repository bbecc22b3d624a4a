"""What a dry run says that a model will take, device by device, before anything is loaded, is within one
per cent of what is then measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from run_daemon import Daemon, device
from tables import Start

import headrace
from headrace.models.generate import Model
from headrace.models.llama import LlamaGraph, kv_state, layer_placement

FULL = bool(os.environ.get("HEADRACE_FULL"))
N_CTX = 512
FOUR = tuple(
    device(f"cpu{i}", backend="cpu", threads=1, memory="isolated") for i in range(3)
) + (device("host", backend="cpu", threads=1),)  # fmt: skip
SPLITS: list[dict[str, int]] = [
    {"cpu0": 30},
    {"cpu0": 15, "cpu1": 15},
    {"cpu2": 3, "cpu0": 20, "cpu1": 7},
    {"cpu1": 10, "host": 20},
]


def used(client: headrace.Client) -> dict[str, float]:
    found = client.stats().labelled("device_memory_used_bytes")
    return {label.split('"')[1]: value for label, value in found.items()}


@pytest.fixture(scope="module")
def described(start: Start, model: Path) -> Any:
    """Configuration and tensors, by a daemon that only maps the file."""
    daemon = start((device("host", backend="cpu", threads=1),))
    with headrace.connect(daemon.address) as client:
        known = Model.load(client, model.name)
        return known.config, known.weights


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: "-".join(split))
def test_a_dry_run_tells_what_a_model_takes(
    start: Start, model: Path, described: Any, split: dict[str, int]
) -> None:
    config, tensors = described
    daemon: Daemon = start(FOUR)
    rules = layer_placement(None, split)
    forms = [(1, 256, 0), (64, 256, 4)]
    if FULL:
        forms += [(1, 256, 1), (64, 512, 2), (17, 512, 16), (512, 512, 0)]
    with headrace.connect(daemon.address) as client:
        before = used(client)

        def build(n_tokens: int, n_kv: int) -> headrace.Graph:
            return LlamaGraph(config, tensors, n_tokens=n_tokens, n_kv=n_kv, n_ctx=N_CTX).graph

        dry = [
            client.submit(build(tokens, kv), dry_run=True, planned=rules, n_copies=copies).plan
            for tokens, kv, copies in forms
        ]
        assert used(client) == before  # nothing has been taken
        weights = client.load(model.name, f"predicted@{split}", rules)
        loaded = used(client)
        state = client.state(kv_state(config, N_CTX), rules)
        allocated = used(client)
        for (tokens, kv, copies), plan in zip(forms, dry, strict=True):
            client.reset()
            held = used(client)
            handle = client.submit(
                build(tokens, kv), weights=[weights], states=[state], n_copies=copies
            )
            taken = used(client)
            for share in plan.devices:
                name = share.device
                measured = {
                    "weights": loaded[name] - before[name],
                    "state": allocated[name] - loaded[name],
                    "compute": taken[name] - held[name],
                }
                if name == "host":  # maps the file instead of taking memory for it
                    assert share.weights_bytes > 0 or "host" not in split
                    del measured["weights"]
                told = {
                    "weights": share.weights_bytes,
                    "state": share.state_bytes,
                    "compute": share.compute_bytes,
                }
                for what, size in measured.items():
                    assert told[what] == pytest.approx(size, rel=0.01), (name, what, tokens, copies)
            assert [s.splits for s in plan.devices] == [s.splits for s in handle.plan.devices]
            assert plan.n_copies == handle.plan.n_copies
            handle.release()
        state.free()
        client.drop(weights)
        client.reset()
