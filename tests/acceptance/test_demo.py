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


def test_a_terminated_demo_stops_its_daemon(model: Path) -> None:
    command = [sys.executable, ROOT / "tests" / "tools" / "demo.py", model]
    process = subprocess.Popen(
        [*command, "--prompt=x", "--tokens=3000", "--ignore-end"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stderr
    line = process.stderr.readline()
    folder = Path(line.split()[-1]).parent
    assert folder.is_dir(), line
    process.stdout.read(1)  # it generates
    process.terminate()
    assert process.wait(60) == 143
    assert not folder.exists()
