"""The packages under test: what is built once for all tests of this folder."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests/tools", "tests/integration"):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python client as a wheel."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out)]
    if importlib.util.find_spec("hatchling"):  # else it is fetched once more
        command.append("--no-build-isolation")
    done = subprocess.run(
        [*command, ROOT / "client" / "python"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("*.whl")
    return found
