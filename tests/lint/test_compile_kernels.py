"""Compiled kernels are taken over only if the same command made them of the same sources."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "backends" / "cuda"))

import compile_kernels  # noqa: E402

NAMES = ["rows.made", "rows.fatbin", "rows.resources", "rows.read"]
COMMAND = ["13.0", "rows.cu", "-O3"]


class Builds:
    """A source, a header that builds generate, and two build folders; the other has built."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "rows.cu"
        self.other, self.here = folder / "other", folder / "here"
        self.source.write_text("kernel")
        for build in (self.other, self.here):
            build.mkdir()
            (build / "generated.h").write_text("table")
        record = {
            "command": COMMAND,
            "sources": {
                str(self.source): compile_kernels.digest(str(self.source)),
                "generated.h": compile_kernels.digest(str(self.other / "generated.h")),
            },
        }
        (self.other / NAMES[0]).write_text(json.dumps(record))
        for name in NAMES[1:]:
            (self.other / name).write_text(f"contents of {name}")

    def take(self, command: list[str] = COMMAND, other: Path | None = None) -> bool:
        return compile_kernels.taken_over(
            other or self.other, NAMES, command, self.here, self.here
        )

    def here_has(self) -> list[str]:
        return sorted(path.name for path in self.here.iterdir())


def test_the_same_is_taken_over(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    assert builds.take()
    for name in NAMES:
        assert (builds.here / name).read_bytes() == (builds.other / name).read_bytes()


CHANGES: dict[str, Callable[[Builds], object]] = {
    "source": lambda builds: builds.source.write_text("other kernel"),
    "source is gone": lambda builds: builds.source.unlink(),
    "generated header": lambda builds: (builds.here / "generated.h").write_text("other table"),
    "cut off": lambda builds: (builds.other / NAMES[0]).write_text('{"command": ["13.0"'),
    "nothing compiled": lambda builds: (builds.other / NAMES[1]).unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_not(tmp_path: Path, change: str) -> None:
    builds = Builds(tmp_path)
    CHANGES[change](builds)
    assert not builds.take()
    assert builds.here_has() == ["generated.h"]


def test_another_command_or_the_same_folder_is_not(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    assert not builds.take(command=[*COMMAND, "-lineinfo"])
    assert not builds.take(other=builds.here)
    assert builds.here_has() == ["generated.h"]


def test_sources_are_those_of_the_project_and_of_the_build(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    depfile = builds.here / "rows.d"
    header = builds.here / "generated.h"
    depfile.write_text(f"rows.S: {builds.source} \\\n {header} /usr/include/stdio.h\n")
    found = compile_kernels.sources(depfile, str(builds.source.parent), builds.here)
    assert sorted(found) == sorted([str(builds.source), "generated.h"])
    assert found["generated.h"] == compile_kernels.digest(str(header))
