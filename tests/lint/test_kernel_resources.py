"""The comparison of kernel resources finds what it should find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import check_kernel_resources  # noqa: E402

KNOWN = "# nvcc 1.0\na sm_80: registers 8\nb sm_80: registers 16\n"


@pytest.mark.parametrize(
    ("built", "status"),
    [
        (KNOWN, 0),
        (KNOWN.replace("16", "17"), 1),
        (KNOWN.replace("b sm_80: registers 16\n", ""), 1),
        (KNOWN + "c sm_80: registers 1\n", 1),
        (KNOWN.replace("1.0", "2.0").replace("16", "17"), 77),
    ],
)
def test_difference_is_told(tmp_path: Path, built: str, status: int) -> None:
    (tmp_path / "known").write_text(KNOWN)
    (tmp_path / "built").write_text(built)
    paths = [str(tmp_path / "known"), str(tmp_path / "built")]
    assert check_kernel_resources.main(paths) == status


def test_written_file_is_known(tmp_path: Path) -> None:
    (tmp_path / "built0").write_text("# nvcc 1.0\nb sm_80: registers 16\n")
    (tmp_path / "built1").write_text("# nvcc 1.0\na sm_80: registers 8\n")
    paths = [str(tmp_path / name) for name in ("known", "built0", "built1")]
    assert check_kernel_resources.main(["--write", *paths]) == 0
    assert (tmp_path / "known").read_text() == KNOWN
    assert check_kernel_resources.main(paths) == 0
