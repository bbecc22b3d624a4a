"""./bench writes what its README says, names what there is, and goes on after a measurement that fails."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "bench"
sys.path[:0] = [str(ROOT / "tests" / "tools"), str(BENCH)]

import bench  # noqa: E402
import unpack_ggml  # noqa: E402
from rows import GOAL, Row, machine  # noqa: E402

README = (BENCH / "README.md").read_text()


def table_keys(header: str) -> list[str]:
    """What stands in backquotes in the first column of the table with this header."""
    lines = README[README.index(header) :].splitlines()[2:]
    cells = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells += re.findall(r"`([^`]+)`", line.split("|")[1])
    return cells


def module(name: str, rows: list[Row] | Exception) -> ModuleType:
    made = ModuleType(f"bench_{name}")

    def run() -> list[Row]:
        if isinstance(rows, Exception):
            raise rows
        return rows

    made.run = run  # type: ignore[attr-defined]
    return made


def test_every_measurement_is_named() -> None:
    assert table_keys("| name | what it measures") == list(bench.NAMES)
    named = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"`{name}`" in named for name in bench.NAMES)


def script(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "bench", "--results", tmp_path, *words],
        env={**os.environ, "HEADRACE_PEERS": "none", "HEADRACE_MODEL": "none.gguf", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_another_build_is_measured(tmp_path: Path) -> None:
    """A folder of programs is taken as it is: bench_blas there says what is measured."""
    programs = tmp_path / "programs"
    for name in ("daemon/headraced", "tests/bench/bench_blas"):
        path = programs / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/ran\nexit 1\n")
        path.chmod(0o755)
    done = script(tmp_path, "blas", HEADRACE_BUILD=str(programs))
    assert done.returncode == 1 and "blas: " in done.stderr, done.stderr
    assert (tmp_path / "ran").read_text().splitlines() == ["tests/bench/bench_blas"]


def test_a_folder_that_is_no_build_is_named(tmp_path: Path) -> None:
    done = script(tmp_path, "blas", HEADRACE_BUILD=str(tmp_path / "none"))
    assert done.returncode == 1 and f"{tmp_path}/none is no build folder" in done.stderr
    assert not (tmp_path / "none").exists()


def test_help_names_what_the_environment_says() -> None:
    done = subprocess.run([ROOT / "bench", "--help"], capture_output=True, text=True, check=True)
    told = set(re.findall(r"HEADRACE_[A-Z_]+", (ROOT / "bench").read_text()))
    assert "HEADRACE_BUILD" in told and told == set(re.findall(r"HEADRACE_[A-Z_]+", done.stdout))


@pytest.mark.parametrize("name", bench.NAMES)
def test_goals_are_understood(name: str) -> None:
    tree = ast.parse((BENCH / f"bench_{name}.py").read_text())
    assert ast.get_docstring(tree)
    assert any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body)
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    goals = [text for text in texts if re.match(r"[<>]=? ?[\d.]", text)]
    assert all(GOAL.match(goal) for goal in goals), goals


def test_results_have_the_documented_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row("a", 1.0, "us", "peer", 2.0, "<= 1/3"), Row("b", 1.0, "us")]
    monkeypatch.setitem(sys.modules, "bench_x", module("x", rows))
    bench.measure("x", tmp_path)
    written = json.loads((tmp_path / "x.json").read_text())
    assert set(written) == {"rows", "machine"}
    for row in written["rows"]:
        assert list(row) == table_keys("| key | meaning")
    said = re.search(r"and the machine has (.*)\.\n", README)
    assert said
    assert set(written["machine"]) == set(re.findall(r"`([^`]+)`", said.group(1)))
    assert set(machine(tmp_path)) == set(written["machine"])


def test_others_are_measured_after_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "NAMES", ("x", "y"))
    monkeypatch.setattr(sys, "argv", ["./bench"])
    monkeypatch.setitem(sys.modules, "bench_x", module("x", ValueError("no such thing")))
    monkeypatch.setitem(sys.modules, "bench_y", module("y", [Row("b", 1.0, "us")]))
    assert bench.main() == 1
    assert "no such thing" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["y.json"]


def test_ggml_is_taken_out_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package, folder = tmp_path / "p.tar.gz", tmp_path / "ggml"
    inside = "p-1/vendor/llama.cpp/ggml/"
    names = ("p-1/README.md", f"{inside}CMakeLists.txt", f"{inside}src/a.c", f"{inside}../out.c")
    with tarfile.open(package, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    monkeypatch.setattr(sys, "argv", ["unpack_ggml.py", str(package), str(folder)])
    assert unpack_ggml.main() == 0
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["CMakeLists.txt", "ggml.pc.in", "src/a.c"]
    assert (folder / "src" / "a.c").read_text() == f"{inside}src/a.c"
    assert not (tmp_path / "out.c").exists()
    with tarfile.open(package, "w:gz"):
        pass
    assert unpack_ggml.main() == 1
    assert "no ggml" in capsys.readouterr().err
