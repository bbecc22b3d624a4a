"""BLAS and the CPU share a model of floats: llama.cpp's choices, wherever its products are computed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
import pytest
from criterion import disagreements
from llama_runner import Runner
from quantised import quantised
from run_daemon import Daemon, device
from tables import BLAS, FLOAT_REFERENCE, Start
from test_llama_reference import PROMPTS

# The long prompt's products of floats, and none of the single steps'.
BATCHES = (device("blas0", backend="blas", batch_min=128), device("cpu0", backend="cpu"))
# From one column on: BLAS computes the single steps, too.
ALWAYS = (device("blas0", backend="blas", batch_min=1), device("cpu0", backend="cpu"))


@pytest.fixture(scope="module")
def float_model(
    start: Start, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The model's file with every weight as f32, made by the daemon."""
    path = quantised(start(BLAS).address, model, tmp_path_factory.mktemp("floats"), "f32")
    yield path
    path.unlink()


def test_the_floats_are_those_of_the_reference(float_model: Path) -> None:
    with float_model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert f'"sha256": "{digest}"' in FLOAT_REFERENCE.read_text()


@pytest.mark.parametrize("devices", [BATCHES, ALWAYS], ids=["batches", "always"])
def test_choices_with_products_on_blas(
    float_model: Path, float_reference: dict[str, Any], devices: Any
) -> None:
    with Daemon(models=[float_model.parent], devices=devices) as daemon:
        for name in PROMPTS:
            expected = float_reference[name]
            with headrace.connect(daemon.address) as client:
                runner = Runner(client, float_model.name)
                logits = runner.forced(expected["prompt_tokens"], expected["continuation"])
                assert len(logits) == 48
                assert not disagreements(logits, expected), name
                for (n_tokens, _), graph in runner.graphs.items():
                    splits = {share.device: share.splits for share in graph.plan.devices}
                    if devices is ALWAYS or n_tokens > 300:
                        assert splits["blas0"] > 0
