"""The bundle and its stages, on the fake driver: unpacked elsewhere, run without this checkout's Python.

What is not proven here is the GPU: that takes a machine that has one (README.md).
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (HERE, ROOT / "tests" / "bench", ROOT / "tests" / "tools"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import bundle as bundling  # noqa: E402
import machine  # noqa: E402
import run as running  # noqa: E402
from rows import Row, table  # noqa: E402
from run_daemon import build_folder  # noqa: E402
from stages import STAGES, Stage, judge_golden, judge_probe, judge_sanitizer, judge_whole  # noqa: E402
from stages import ERRORS, HAZARDS, judge_code, told_of_rows  # noqa: E402

LIMIT_MB = 12
# The same ways again, other types.
LEFT_OUT = ("bench-q4_K", "bench-q8_0", "bench-demo")
SANITIZER = """#!/bin/sh
while [ "$1" != --error-exitcode ]; do shift; done
shift 2
"$@" || exit
echo "========= ERROR SUMMARY: ${PLANTED:-0} errors"
echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
"""

Front = Callable[..., "subprocess.CompletedProcess[str]"]


def fake_driver() -> Path:
    folder = build_folder() / "tests" / "cuda"
    if not (folder / "libcuda.so.1").exists():
        pytest.skip("this build has no fake CUDA driver: the CUDA toolkit is missing")
    return folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A small bundle in pieces."""
    fake_driver()
    out = tmp_path_factory.mktemp("bundle")
    (out / "base.tar.gz.9of9").touch()  # an earlier bundle's
    command = [HERE / "bundle.sh", "--build", build_folder(), "--small", "--limit", str(LIMIT_MB), out]
    environment = {**os.environ, "python": sys.executable}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    files = sorted(out.iterdir())
    assert [Path(line.split()[-1]) for line in told.stdout.splitlines()] == files
    return files


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machine")


@pytest.fixture(scope="module")
def front(place: Path) -> Front:
    """run.sh on a machine that has python3, numpy and this driver, and another home."""
    numpy_folder = Path(np.__file__).parent
    for folder in (numpy_folder, numpy_folder.with_name("numpy.libs")):
        if folder.exists():
            (place / "site").mkdir(exist_ok=True)
            (place / "site" / folder.name).symlink_to(folder)
    tool = place / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(SANITIZER)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"

    def act(*arguments: object, driver: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "HOME": "/nonexistent",
            "PATH": f"{tool.parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHON": str(base),
            "PYTHONPATH": str(place / "site"),
            "HEADRACE_FAKE_CUDA_SEED": "0",
            **({"LD_LIBRARY_PATH": str(fake_driver())} if driver else {}),
            **variables,
        }
        command = [HERE / "run.sh", "--root", place / "root", "--quick", *map(str, arguments)]
        return subprocess.run(
            command, env=environment, cwd=place, capture_output=True, text=True, check=False
        )

    return act


def status_of(told: str, stage: str) -> str:
    found = re.findall(rf"^(\w+) +{re.escape(stage)} ", told, re.MULTILINE)
    return found[0] if found else "not named"


def without(*names: str) -> list[str]:
    return [word for name in (*LEFT_OUT, *names) for word in ("--skip", name)]


def test_bundle_is_cut_into_pieces(parts: list[Path]) -> None:
    names = [part.name for part in parts]
    pieces = [name for name in names if name.startswith("base")]
    count = len(pieces)
    assert count > 1
    assert pieces == [f"base.tar.gz.{i}of{count}" for i in range(1, count + 1)]
    assert names[count:] == ["golden.tar.gz", "model.tar.gz"]
    assert all(part.stat().st_size <= LIMIT_MB * 10**6 for part in parts)


def test_stages_pass_as_their_parts_arrive(parts: list[Path], front: Front, tmp_path: Path) -> None:
    base = [part for part in parts if part.name.startswith("base")]
    first = front(*base[:-1])
    assert first.returncode == 1  # nothing has been proven
    assert {status_of(first.stdout, stage.name) for stage in STAGES} == {"wait"}

    second = front(base[-1], *without(), OUT=str(tmp_path / "out"))
    ran = [s.name for s in STAGES if s.parts == ("base",) and s.name not in LEFT_OUT]
    for name in ran:
        assert status_of(second.stdout, name) == "pass", second.stdout
    for name in ("model", "golden", "llama"):
        assert status_of(second.stdout, name) == "wait"
    assert second.returncode == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["exit_status"] == 0
    assert sorted(results["waiting"]) == ["golden", "llama", "model"]
    assert {name: told["status"] for name, told in results["stages"].items()} == dict.fromkeys(ran, "pass")
    whats = [row["what"] for row in results["bench 7b-f16"]["rows"]]
    assert "7B f16: generation" in whats and "7B f16: weights read" in whats
    logs = (tmp_path / "out" / "logs.txt").read_text()
    assert "==== conformance" in logs and "a_queue" in logs

    rest = [part for part in parts if part not in base]
    third = front(*rest, *without())
    assert third.returncode == 0
    assert {status_of(third.stdout, name) for name in ("model", "golden")} == {"pass"}
    assert third.stdout.count("earlier: ") == len(ran)


def plant_in_reference(root: Path) -> None:
    """Another choice, which is no tie."""
    file = root / "model" / "reference.json"
    reference = json.loads(file.read_text())
    prompt = reference["prompts"][1]
    prompt["continuation"][2] = (prompt["continuation"][2] + 1) % 64
    prompt["logits"][2] = [9.0, 1.0]
    file.write_text(json.dumps(reference))


def test_a_fault_fails_its_stage_and_the_others_go_on(
    front: Front, parts: list[Path], place: Path
) -> None:
    if not (place / "root" / "model.part").exists():
        front(*parts, "--only", "driver")
    plant_in_reference(place / "root")
    again = ("--again", "--only", "driver", "--only", "model", "--only", "golden", "--only", "memcheck")
    found = front(*again, PLANTED="3")
    assert found.returncode == 1
    assert status_of(found.stdout, "driver") == "pass"
    assert status_of(found.stdout, "golden") == "pass"
    assert re.search(r"^fail  model .*four, 1 devices: position 2", found.stdout, re.MULTILINE)
    assert re.search(r"^fail  memcheck +3 found", found.stdout, re.MULTILINE)
    assert "2 passed, 2 failed, 0 skipped" in found.stdout


def test_a_call_that_fails_is_seen(front: Front, parts: list[Path]) -> None:
    only = ("--again", "--only", "driver", "--only", "conformance", "--only", "golden-small")
    found = front(*only, HEADRACE_FAKE_CUDA_FAIL="cuLaunchKernel")
    assert found.returncode == 1
    assert status_of(found.stdout, "driver") == "pass"
    assert status_of(found.stdout, "conformance") == status_of(found.stdout, "golden-small") == "fail"


@pytest.mark.parametrize("variables", [{"HEADRACE_FAKE_CUDA_FAIL": "cuInit"}, {}])
def test_without_a_driver_nothing_is_proven(
    front: Front, parts: list[Path], tmp_path: Path, variables: dict[str, str]
) -> None:
    if not variables and "libcuda.so.1" in machine.known_to_the_loader():
        pytest.skip("this machine has a driver")
    found = front("--again", driver=bool(variables), OUT=str(tmp_path), **variables)
    assert found.returncode == 77
    assert re.search(r"^fail  driver +no driver: ", found.stdout, re.MULTILINE)
    assert "nothing is proven here" in found.stdout
    assert status_of(found.stdout, "conformance") == "not named"
    assert json.loads((tmp_path / "results.json").read_text())["exit_status"] == 77


def test_bench_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    fake_driver()
    if "libcuda.so.1" in machine.known_to_the_loader():
        pytest.skip("this machine has a driver")
    command = [sys.executable, ROOT / "tests" / "bench" / "bench.py", "gpu", "--results", tmp_path]
    hidden = ("LD_LIBRARY_PATH", "HEADRACE_TEST_LIBRARIES")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert "gpu: OSError: no GPU to measure: no driver: " in told.stderr
    assert not list(tmp_path.iterdir())


# ---- without a bundle ----------------------------------------------------------------------------


def stage(name: str, *commands: list[object], seconds: float = 5, parts: tuple[str, ...] = ()) -> Stage:
    return Stage(
        name, "a test's", lambda root, quick: list(commands), judge_code, parts, expected=0.1,
        seconds=seconds,
    )  # fmt: skip


def test_stages_are_stopped_and_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = (
        stage("good", ["echo", "yes"]),
        stage("slow", ["sleep", "60"], seconds=0.2),
        stage("gone", ["/no/such/program"]),
        stage("bad", ["echo", "fine"], ["sh", "-c", "echo it broke; exit 3"], ["echo", "never"]),
        stage("later", ["echo", "yes"], parts=("other",)),
        stage("last", ["echo", "still"]),
    )
    monkeypatch.setattr(running, "STAGES", made)
    assert running.main(["--root", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert re.search(r"^pass  good +yes", told, re.MULTILINE)
    assert re.search(r"^fail  slow +not over after 0 s", told, re.MULTILINE)
    assert re.search(r"^fail  gone +/no/such/program: No such file", told, re.MULTILINE)
    assert re.search(r"^fail  bad +it broke \(status 3\)", told, re.MULTILINE)
    assert re.search(r"^wait  later +for the part other", told, re.MULTILINE)
    assert re.search(r"^pass  last +still", told, re.MULTILINE)
    assert told.endswith("2 passed, 3 failed, 0 skipped, 1 waiting\n")
    assert "never" not in (tmp_path / "logs" / "bad.log").read_text().replace("$ echo never", "")
    # What has failed is run again, what has passed is not; and without time nothing starts.
    assert running.main(["--root", str(tmp_path), "--only", "good", "--only", "bad"]) == 1
    told = capsys.readouterr().out
    assert "good           earlier: yes" in told and "1 passed, 1 failed" in told
    assert running.main(["--root", str(tmp_path), "--again", "--only", "good", "--seconds", "0"]) == 0
    assert "for a call with time left" in capsys.readouterr().out


def test_nothing_of_a_stage_is_left_and_results_are_there_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A daemon in a session of its own, of a stage that is stopped and of one that ends."""
    number, seen = tmp_path / "number", tmp_path / "seen"
    leave = f"setsid sleep 300 & echo $! > {number}"
    # Of a process that has ended and that nobody has waited for, nothing is said there.
    look = f"grep -q sleep /proc/$(cat {number})/cmdline || echo gone"
    made = (
        stage("good", ["true"]),
        stage("slow", ["sh", "-c", f"{leave}; sleep 60"], seconds=0.5),
        stage("look", ["sh", "-c", f"{look} > {seen}; cat $OUT/results.json"]),
        stage("left", ["sh", "-c", leave]),
        stage("look-again", ["sh", "-c", f"{look} >> {seen}"]),
    )
    monkeypatch.setattr(running, "STAGES", made)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    assert running.main(["--root", str(tmp_path / "root")]) == 1
    assert seen.read_text().split() == ["gone", "gone"]
    assert "4 passed, 1 failed" in capsys.readouterr().out
    earlier = (tmp_path / "root" / "logs" / "look.log").read_text()
    assert '"slow"' in earlier and '"exit_status": 1' in earlier


@pytest.mark.parametrize(
    ("judge", "code", "text", "wrong"),
    [
        (judge_whole, 0, "11 passed, 0 failed, 0 skipped\n", None),
        (judge_whole, 0, "1 passed, 0 failed, 10 skipped\n", "10 skipped"),
        (judge_whole, 1, "11 passed, 0 failed, 0 skipped\n", "status 1"),
        (judge_whole, 0, "11 passed, 1 failed, 0 skipped\n", "1 failed"),
        (judge_whole, -11, "", "nothing was said"),
        (judge_golden, 0, "9 passed, 0 failed, 40 skipped\n", None),
        (judge_golden, 0, "0 passed, 0 failed, 40 skipped\n", "0 passed"),
        (judge_golden, 1, "9 passed, 1 failed, 0 skipped\n", "1 failed"),
        (judge_golden, 139, "binary\n", "binary"),
        (judge_probe, 0, '{"gpu": 0, "usable": true}\n', None),
        (judge_probe, 0, '{"gpu": 0, "usable": false}\n', "no GPU"),
        (judge_probe, 1, "no driver: none\n", "no driver: none"),
        (judge_sanitizer(ERRORS), 0, "========= ERROR SUMMARY: 0 errors\n", None),
        (judge_sanitizer(ERRORS), 9, "========= ERROR SUMMARY: 2 errors\n", "2 found"),
        (judge_sanitizer(ERRORS), 0, "no such tool\n", "no summary"),
        (judge_sanitizer(HAZARDS), 0, "RACECHECK SUMMARY: 0 hazards displayed (0 errors)\n", None),
        (judge_sanitizer(HAZARDS), 0, "RACECHECK SUMMARY: 4 hazards displayed (4 errors)\n", "4 found"),
    ],
)
def test_what_is_taken_for_a_success(
    judge: Callable[[int, str], str | None], code: int, text: str, wrong: str | None
) -> None:
    found = judge(code, text)
    assert found is None if wrong is None else found is not None and wrong in found


def test_missed_goals_are_named() -> None:
    rows = [
        Row("7B f16: generation", 90.0, "tokens/s", "llama.cpp", None),
        Row("7B f16: weights read", 1.0, "GB/s", "measured copy", 2.0, ">= 0.8"),
        Row("overhead: a", 99.0, "runs/s", "in process", 100.0, ">= 0.98"),
    ]
    assert told_of_rows(table(rows)) == "3 rows, missed: 7B f16: weights read: 0.500 of >= 0.8"


def test_a_library_that_was_named_goes_before_the_loaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "known_to_the_loader", lambda: "\tlibcuda.so.1 (libc6) => /x\n")
    monkeypatch.setattr(machine, "toolkit_folders", lambda: [tmp_path / "toolkit"])
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda name: "")
    assert machine.find_libraries() == {
        "libcuda.so.1": "the loader's", "libcublasLt.so.13": "nowhere"
    }  # fmt: skip
    (tmp_path / "toolkit" / "lib64").mkdir(parents=True)
    (tmp_path / "toolkit" / "lib64" / "libcublasLt.so.13").touch()
    assert machine.find_libraries()["libcublasLt.so.13"] == str(tmp_path / "toolkit" / "lib64")
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert machine.find_libraries()["libcuda.so.1"] == str(tmp_path)
    assert str(tmp_path / "toolkit" / "lib64") in machine.environment(tmp_path)["HEADRACE_TEST_LIBRARIES"]


@pytest.mark.parametrize(("size", "limit", "sizes"), [(10, 10, [10]), (11, 10, [6, 5]), (31, 10, [8, 8, 8, 7])])
def test_pieces_are_whole_and_within_the_limit(
    tmp_path: Path, size: int, limit: int, sizes: list[int]
) -> None:
    archive = tmp_path / "a.tar.gz"
    content = bytes(range(size))
    archive.write_bytes(content)
    pieces = bundling.cut(archive, limit)
    assert [piece.stat().st_size for piece in pieces] == sizes
    assert b"".join(piece.read_bytes() for piece in pieces) == content


@pytest.mark.parametrize("limit", ["0", "61", "-1"])
def test_no_part_beyond_what_travels(tmp_path: Path, limit: str) -> None:
    with pytest.raises(SystemExit):
        bundling.main(["--build", str(tmp_path), "--limit", limit, str(tmp_path / "out")])


def test_a_build_without_the_programs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundling.main(["--build", str(tmp_path), "--small", str(tmp_path / "out")]) == 1
    assert "bundle.sh: there is no" in capsys.readouterr().err


def test_parts_that_are_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.tar.gz", "a.zip", "a.tar.gz.3of2", "a.tar.gz.xof2", "a.tar.gz.1"):
        (tmp_path / name).write_bytes(b"nothing")
        assert running.main(["--root", str(tmp_path / "root"), str(tmp_path / name)]) == 1
        assert "fail  unpacking" in capsys.readouterr().out


def test_every_stage_is_described() -> None:
    told = (HERE / "README.md").read_text()
    named = re.findall(r"^\| `([\w-]+)` \|", told, re.MULTILINE)
    assert named == [one.name for one in STAGES]
