"""The README's Python example does what the README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from run_daemon import build_folder
from tables import ROOT, SHARED, Start

EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
OUTPUT = re.compile(r"```text\n(.*?)```", re.DOTALL)
ADDRESS = "unix:/tmp/headrace.sock"


def test_python_example(start: Start, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    examples = EXAMPLE.findall(text)
    assert len(examples) == 1
    example = examples[0]
    assert len(example.strip().splitlines()) <= 12
    assert example.count(ADDRESS) == 1
    expected = OUTPUT.search(text, text.index(example) + len(example))
    assert expected
    program = tmp_path / "example.py"
    program.write_text(example.replace(ADDRESS, start(SHARED).address))
    answer = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False, env=os.environ
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == expected.group(1)


def test_configurations_are_valid(tmp_path: Path) -> None:
    program = build_folder() / "daemon" / "headraced"
    blocks = re.findall(r"```ini\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        path = tmp_path / "headrace.ini"
        path.write_text(block)
        answer = subprocess.run(
            [program, "--config", path, "--check-config"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
