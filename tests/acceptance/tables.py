"""The device tables of the acceptance tests, and where their reference data lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from run_daemon import Daemon, Device, device

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "tests" / "golden" / "data" / "llama" / "smollm2-135m-q4_1.json"
FLOAT_REFERENCE = ROOT / "tests" / "golden" / "data" / "llama" / "smollm2-135m-f32.json"
NIBBLE_REFERENCE = ROOT / "tests" / "golden" / "data" / "llama" / "smollm2-135m-q4_0.json"

# The fixture `start`: a daemon for a device table.
Start = Callable[[tuple[Device, ...]], Daemon]

ONE = (device("cpu0", backend="cpu", memory="isolated", threads=1),)
TWO = (
    device("cpu0", backend="cpu", memory="isolated", threads=1),
    device("cpu1", backend="cpu", memory="isolated", threads=1),
)
SHARED = (device("cpu0", backend="cpu"),)
BLAS = (device("blas0", backend="blas"), device("cpu0", backend="cpu"))
