"""Fed llama.cpp's own greedy tokens, position by position, the daemon makes llama.cpp's choices."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from criterion import disagreements
from headrace.models.generate import Model
from quantised import quantised
from run_daemon import Daemon
from tables import BLAS, NIBBLE_REFERENCE, REFERENCE, SHARED, Start

PROMPTS = ("one", "twelve", "long")


def test_the_file_is_the_one_of_the_reference(model: Path) -> None:
    wanted = json.loads(REFERENCE.read_text())["sha256"]
    assert hashlib.sha256(model.read_bytes()).hexdigest() == wanted


@pytest.mark.parametrize("devices", [SHARED, BLAS], ids=["cpu", "cpu+blas"])
@pytest.mark.parametrize("name", PROMPTS)
def test_choices(
    start: Start, model: Path, reference: dict[str, Any], name: str, devices: Any
) -> None:
    expected = reference[name]
    assert len(expected["continuation"]) == 48
    with headrace.connect(start(devices).address) as client:
        context = Model.load(client, model.name).context(512)
        logits = [context.evaluate(expected["prompt_tokens"])]
        logits += [context.evaluate([token]) for token in expected["continuation"][:-1]]
        assert len(logits) == 48
        assert not disagreements(logits, expected)


def has_fused_multiply_add() -> bool:
    return " fma " in Path("/proc/cpuinfo").read_text()


@pytest.mark.skipif(not has_fused_multiply_add(), reason="no fused multiply-add here")
@pytest.mark.parametrize("name", PROMPTS)
def test_logits_have_the_bits_of_the_reference(
    start: Start, model: Path, reference: dict[str, Any], name: str
) -> None:
    """The order of additions is llama.cpp's, so nothing at all differs."""
    with headrace.connect(start(SHARED).address) as client:
        expect_bits(client, model.name, reference[name], 48)


def expect_bits(
    client: headrace.Client, file: str, expected: dict[str, Any], positions: int
) -> None:
    """The logits of llama.cpp's two best tokens, at the first positions."""
    context = Model.load(client, file).context(512)
    pending = expected["prompt_tokens"]
    for position, choice in enumerate(expected["continuation"][:positions]):
        logits = context.evaluate(pending)
        ids = [choice, expected["second"][position]]
        recorded = np.asarray(expected["logits"][position], np.float32)
        assert logits[ids].tolist() == recorded.tolist(), f"position {position}"
        pending = [choice]


@pytest.mark.skipif(not has_fused_multiply_add(), reason="no fused multiply-add here")
def test_bits_of_weights_that_llama_cpp_interleaves(
    start: Start, model: Path, tmp_path: Path
) -> None:
    """Q4_0 (as IQ4_NL and MXFP4) has another order of additions there than Q4_1, and so here."""
    reference = json.loads(NIBBLE_REFERENCE.read_text())
    file = quantised(start(SHARED).address, model, tmp_path, "q4_0")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == reference["sha256"]
    with (
        Daemon(models=[tmp_path], devices=SHARED) as daemon,
        headrace.connect(daemon.address) as client,
    ):
        for prompt in reference["prompts"]:
            expect_bits(client, file.name, prompt, 16)


def test_the_criterion_can_fail(reference: dict[str, Any]) -> None:
    """Logits that prefer another token at a position that is no tie are noticed."""
    expected = reference["twelve"]
    logits = [np.zeros(49152, np.float32) for _ in expected["continuation"]]
    for ours, choice in zip(logits, expected["continuation"], strict=True):
        ours[choice] = 1.0
    assert not disagreements(logits, expected)
    logits[7][0] = 2.0
    assert len(disagreements(logits, expected)) == 1
