"""The model in another type, as the daemon makes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def quantised(address: str, model: Path, folder: Path, name: str) -> Path:
    """`headrace quantize` by the daemon at `address`; folder/NAME.gguf."""
    path = folder / f"{name}.gguf"
    command = [sys.executable, "-m", "headrace.cli", "quantize", "--connect", address]
    subprocess.run([*command, str(model), str(path), name], check=True, capture_output=True)
    return path
