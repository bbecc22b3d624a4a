"""A CUDA toolkit is one only with the compiler and every header that the backend includes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CUDA = Path(__file__).resolve().parents[2] / "backends" / "cuda"


def find(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CUDA / "find_toolkit.py")],
        env={"CUDA_PATH": str(root), "PATH": str(root / "nowhere")},
        capture_output=True,
        text=True,
        check=False,
    )


def included() -> list[str]:
    """The toolkit's headers that the C files of the backend name."""
    lines = "".join(path.read_text() for path in sorted(CUDA.glob("*.[ch]")))
    return sorted(set(re.findall(r"#include <(cu\w+\.h)>", lines)))


def test_a_toolkit_has_a_compiler_and_all_headers(tmp_path: Path) -> None:
    headers = included()
    assert headers == ["cublasLt.h", "cuda.h"]
    parts = [tmp_path / "bin" / "nvcc", *(tmp_path / "include" / name for name in headers)]
    for part in parts:
        part.parent.mkdir(exist_ok=True)
        part.touch()
    answer = find(tmp_path)
    assert answer.returncode == 0
    assert answer.stdout.splitlines() == [str(parts[0]), str(tmp_path / "include")]


@pytest.mark.parametrize("missing", ["bin/nvcc", "include/cuda.h", "include/cublasLt.h"])
def test_without_one_of_them_it_is_none(tmp_path: Path, missing: str) -> None:
    for name in ("bin/nvcc", "include/cuda.h", "include/cublasLt.h"):
        if name != missing:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
    answer = find(tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
