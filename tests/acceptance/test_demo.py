"""What ./demo does once everything is installed and built: text to stdout, the rest to stderr."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tables import ROOT


def demo(model: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tests" / "tools" / "demo.py", model, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_capital_of_france(model: Path) -> None:
    answer = demo(model, "--prompt=The capital of France is", "--tokens=32")
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout
    for words in (r"tokens/s", r"\bhits?\b", r"\bmiss(es)?\b", r"\bsplits?\b", r"cpu0"):
        assert re.search(words, answer.stderr), f"{words} is not in {answer.stderr}"
    assert "stopped cleanly" in answer.stderr


def test_sampling_follows_its_seed(model: Path) -> None:
    options = ["--prompt=Once upon a time", "--tokens=16", "--temperature=0.9", "--top-k=50"]
    texts = [demo(model, *options, f"--seed={seed}").stdout for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].strip()


@pytest.mark.parametrize("option", ["--tokens=none", "--no-such-option"])
def test_a_wrong_option_fails(model: Path, option: str) -> None:
    answer = demo(model, "--prompt=x", option)
    assert answer.returncode != 0
    assert answer.stdout == ""
