"""What the acceptance tests share: the model, a daemon per device table, reference data."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tools"))

from run_daemon import Daemon, Device  # noqa: E402
from tables import FLOAT_REFERENCE, REFERENCE, Start  # noqa: E402

DEFAULT_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def model() -> Path:
    """The model's file; ./check puts it there."""
    path = Path(os.environ.get("HEADRACE_TEST_MODEL") or DEFAULT_CACHE / MODEL_NAME)
    if not path.exists():
        pytest.skip(f"no {path}: ./check fetches it")
    return path.resolve()


@pytest.fixture(scope="session")
def reference() -> dict[str, Any]:
    """llama.cpp's choices by the prompt's name."""
    data = json.loads(REFERENCE.read_text())
    return {prompt["name"]: prompt for prompt in data["prompts"]}


@pytest.fixture(scope="session")
def float_reference() -> dict[str, Any]:
    """The same for the model whose weights are the same numbers as floats."""
    data = json.loads(FLOAT_REFERENCE.read_text())
    return {prompt["name"]: prompt for prompt in data["prompts"]}


@pytest.fixture(scope="module")
def start(model: Path) -> Iterator[Start]:
    """start(devices) gives a daemon with that device table; one per table and test module. Each must
    stop cleanly in the end.
    """
    running: dict[tuple[Device, ...], Daemon] = {}

    def get(devices: tuple[Device, ...]) -> Daemon:
        if devices not in running:
            running[devices] = Daemon(models=[model.parent], devices=devices)
        return running[devices]

    yield get
    for daemon in running.values():
        daemon.stop()
