"""The device table of most tests, and starting a daemon that may not have been built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from run_daemon import Daemon, build_folder, device

HOST = device("host", backend="cpu", threads=1)
THREE_DEVICES = (
    device("cpu0", backend="cpu", threads=1, memory="isolated"),
    device("cpu1", backend="cpu", threads=1, memory="isolated"),
    HOST,
)
if os.environ.get("HEADRACE_TEST_BACKEND") == "cuda":
    # The same names, so that every test says what it always says. With one GPU both are on it.
    SECOND = 0 if os.environ.get("HEADRACE_TEST_GPUS") == "1" else 1
    THREE_DEVICES = (
        device("cpu0", backend="cuda", gpu=0), device("cpu1", backend="cuda", gpu=SECOND), HOST
    )  # fmt: skip


def require_daemon() -> None:
    program = build_folder() / "daemon" / "headraced"
    if not program.exists():
        pytest.skip(f"no {program}: build first, or set HEADRACE_BUILD")


def has_address_sanitizer(pid: int) -> bool:
    return "libasan" in Path(f"/proc/{pid}/maps").read_text()


def start_daemon(**keys: Any) -> Daemon:
    require_daemon()
    return Daemon(**keys)
