"""The runner of recorded operators on files that it has never seen, damaged ones above all.

Whatever a file says, the runner ends by itself: with its line of counts, and with words about what it
could not read. A case whose recorded result was changed fails, so that what passes means something.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_daemon import ROOT, build_folder

RECORDED = ROOT / "tests" / "golden" / "data" / "ops"
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
FAMILIES = ("layout", "rope", "mul_mat_id", "set_rows")
DAMAGES = 24

not_sanitized = pytest.mark.skipif(
    bool(os.environ.get("HEADRACE_SANITIZED")),
    reason="a sanitizer finds the write first, and ends programs with words of its own",
)


def run(*paths: Path | str) -> tuple[int, tuple[int, int, int] | None, str]:
    """The status, passed, failed and skipped cases, and the words about what was wrong."""
    command = [build_folder() / "tests" / "golden" / "golden_ops", *paths]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    found = COUNTS.search(done.stdout.decode(errors="replace"))
    words = (done.stdout + done.stderr).decode(errors="replace")
    counts = (int(found[1]), int(found[2]), int(found[3])) if found else None
    return done.returncode, counts, words


def copied(folder: Path, family: str) -> tuple[Path, Path]:
    """A family's text and its values, to be damaged."""
    paths = (folder / f"{family}.txt", folder / f"{family}.gguf")
    for path in paths:
        shutil.copy(RECORDED / path.name, path)
    return paths


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    text, _ = copied(tmp_path, "rope")
    status, counts, _ = run(text)
    assert status == 0 and counts and counts[0] > 0 and counts[1] == 0
    copied(tmp_path, "layout")
    status, both, _ = run(tmp_path)
    assert status == 0 and both and both[0] > counts[0]


def test_a_changed_result_fails(tmp_path: Path) -> None:
    text, values = copied(tmp_path, "rope")
    intact = values.read_bytes()
    values.write_bytes(intact[: len(intact) // 2] + bytes(len(intact) - len(intact) // 2))
    status, counts, words = run(text)
    assert status == 1 and counts and counts[1] > 0, words
    assert re.search(r"nmse|error|differ", words), words


def test_what_a_device_does_not_take_fails_unless_it_may(tmp_path: Path) -> None:
    """The CPU takes everything: an operator that it lacks is no reason to skip a case."""
    text, _ = copied(tmp_path, "rope")
    text.write_text(re.sub(r" ROPE ", " ROPE_OF_ANOTHER_KIND ", text.read_text()))
    status, counts, words = run(text)
    assert status == 1 and counts and counts[0] == counts[2] == 0 and counts[1] > 0, words
    assert words.count("UNSUPPORTED") == counts[1], words
    status, skipped, words = run("--allow-unsupported", text)
    assert status == 1 and skipped == (0, 0, counts[1]), words  # nothing passed


@not_sanitized
def test_a_kernel_that_writes_beside_its_result_is_found() -> None:
    status, counts, words = run("--stray", "write", RECORDED / "rope.txt")
    assert status == 1 and counts and counts[0] == 0 and counts[1] > 0
    assert words.count("bytes next to it were written") == counts[1]


@pytest.mark.parametrize(("guard", "where"), [("end", "behind"), ("start", "before")])
@pytest.mark.parametrize("stray", ["read", "write"])
def test_a_kernel_that_looks_beside_its_tensors_is_found(guard: str, where: str, stray: str) -> None:
    status, counts, words = run("--guard", guard, "--stray", stray, RECORDED / "rope.txt")
    assert status == 3 and counts is None
    assert re.search(rf"rope \d+ ROPE: touched memory {where} tensor \d+ \(ROPE\)", words), words
    status, counts, words = run("--guard", guard, RECORDED / "rope.txt")
    assert status == 0 and counts and counts[1] == 0, words


@not_sanitized
def test_guards_need_host_memory() -> None:
    status, counts, words = run("--isolated", "--guard", "end", RECORDED / "rope.txt")
    assert status == 2 and counts is None and "host memory" in words


def test_what_a_device_does_not_have_fails(tmp_path: Path) -> None:
    """On cpu without more ado; on another device it may be allowed."""
    text, _ = copied(tmp_path, "rope")
    _, intact, _ = run(text)
    assert intact
    text.write_text(text.read_text().replace(" ROPE ", " RPOE "))
    status, counts, words = run(text)
    assert status == 1 and counts and counts == (0, sum(intact), 0)
    assert words.count("UNSUPPORTED: op RPOE is not known") == counts[1]
    status, counts, words = run("--allow-unsupported", text)
    assert status == 1 and counts == (0, 0, sum(intact)) and "op RPOE is not known" in words


def test_blas_has_products_only() -> None:
    paths = (RECORDED / "rope.txt", RECORDED / "mul_mat_float.txt")
    status, counts, words = run("--device", "blas", "--batch-min", "1", *paths)
    if status == 77 or "not built" in words or counts is None:
        pytest.skip("a build without blas")
    assert status == 1 and counts[0] > 0 and counts[1] > 0 and counts[2] == 0
    assert "blas does not take this ROPE" in words
    status, allowed, _ = run("--device", "blas", "--batch-min", "1", "--allow-unsupported", *paths)
    assert status == 0 and allowed == (counts[0], 0, counts[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_damaged_files_end_with_words(tmp_path: Path, family: str) -> None:
    text, values = copied(tmp_path, family)
    intact = {path: path.read_bytes() for path in (text, values)}
    dice = random.Random(family)
    for turn in range(DAMAGES):
        path = (text, values)[turn % 2]
        whole = bytearray(intact[path])
        if turn % 6 < 2:
            del whole[dice.randrange(len(whole)) :]
        else:
            # in the values: their table at the start, whose lengths and offsets are believed by none
            room = len(whole) if path == text else min(len(whole), 4096)
            for _ in range(dice.randrange(1, 6)):
                whole[dice.randrange(room)] = dice.randrange(256)
        path.write_bytes(whole)
        status, counts, words = run(text)
        assert status in (0, 1), (turn, status, words)
        assert counts is not None, (turn, words)
        assert status == 0 or words.strip() != COUNTS.search(words)[0], (turn, words)  # type: ignore[index]
        path.write_bytes(intact[path])


@pytest.mark.skipif(not os.environ.get("HEADRACE_GGML"), reason="HEADRACE_GGML names no ggml")
def test_cases_recorded_now(tmp_path: Path) -> None:
    """What nobody has seen: drawn from a seed of today, computed by ggml, then by every instruction set."""
    seed = os.environ.get("HR_SEED", str(int(time.time()) // 86400))
    recorder = ROOT / "tests" / "golden" / "record_ops.py"
    command = [sys.executable, recorder, "--seed", seed, "--cases", "4", tmp_path]
    subprocess.run(command, check=True, timeout=900)
    for isa in ("portable", "avx2", "avx512", "auto"):
        status, counts, words = run("--isa", isa, tmp_path)
        assert status == 2 or (status == 0 and counts and counts[0] > 100), (seed, isa, words)


def test_what_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.txt", tmp_path):
        status, counts, words = run(path)
        assert status == 1 and counts == (0, 0, 0) and str(path.parent) in words, words
