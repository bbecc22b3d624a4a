"""How wide lines are: up to 100 columns in C, CUDA and the code of the Python client, 120 for words in Python and for
tests in Python; a row of a table in a .def file is one line, up to 144."""

from __future__ import annotations

import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WIDE, WIDER, WIDEST = 100, 120, 144


def sources(*patterns: str) -> list[Path]:
    """Those that git knows of; without git, those that are there."""
    try:
        found = subprocess.run(
            ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no checkout of git")
    return [ROOT / name for name in found if (ROOT / name).exists()]


def too_wide(path: Path, columns: int) -> list[int]:
    lines = path.read_text("utf-8").splitlines()
    return [i for i, line in enumerate(lines, 1) if len(line) > columns]


def words(path: Path) -> Iterator[int]:
    """Lines of a comment or of a string over several lines."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_text = token.type == tokenize.STRING and token.string.endswith('"""')
            if is_text or token.type == tokenize.COMMENT:
                yield from range(token.start[0], token.end[0] + 1)


def findings(paths: list[Path], columns: int) -> list[str]:
    assert paths
    return [f"{path.relative_to(ROOT)}:{i}" for path in paths for i in too_wide(path, columns)]


def test_c_and_cuda() -> None:
    assert findings(sources("*.c", "*.h", "*.cu", "*.cuh"), WIDE) == []
    assert findings(sources("*.def"), WIDEST) == []


def test_python() -> None:
    assert findings(sources("*.py"), WIDER) == []
    found = {path: too_wide(path, WIDE) for path in sources("client/python/*.py")}
    code = {path.name: set(lines) - set(words(path)) for path, lines in found.items() if lines}
    assert {name: lines for name, lines in code.items() if lines} == {}


def test_what_is_wide_is_found(tmp_path: Path) -> None:
    path = tmp_path / "wide.py"
    path.write_text(f'"""{"w" * 100}"""\n{"x" * 100}\n{"x" * 101}\n# {"w" * 100}\n')
    assert too_wide(path, WIDE) == [1, 3, 4]
    assert set(words(path)) == {1, 4}
