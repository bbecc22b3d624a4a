"""Branch coverage of what reads a client's bytes and counts what it holds: frame, codec, validator, quota.

    .venv/bin/python tests/tools/coverage.py              builds build-coverage, runs its tests, reports
    .venv/bin/python tests/tools/coverage.py --report     only reports what an earlier run left
    .venv/bin/python tests/tools/coverage.py --lines      names the lines with branches that were never taken

What runs: the unit tests of core and proto, and of the daemon those of the accounts; nothing that comes past by
chance. Branches of assertions do not count: they are there never to be taken. Fails below the floors.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build-coverage"
GROUPS = {
    "frame": ["proto/frame.c"],
    "codec": ["proto/codec*.c", "proto/columns.c"],
    "validator": ["core/validate.c", "core/infer*.c", "core/tensor.c"],
    "quota": ["daemon/charge.c"],
}
# Shares in per cent, under which the run fails.
FLOORS = {"frame": 100.0, "codec": 100.0, "validator": 100.0, "quota": 100.0}
PROGRAM = re.compile(r"tests/unit/(core|proto)/test_\w+|tests/unit/daemon/test_daemon_charge")
ASSERTIONS = ("HR_ASSERT(", "HR_EXPECT")
PATH = "/usr/bin:/bin:" + os.environ.get("PATH", "")


@dataclass
class Found:
    taken: int = 0
    total: int = 0
    lines: set[int] = field(default_factory=set)  # with a branch that was never taken

    @property
    def share(self) -> float:
        return 100.0 * self.taken / self.total if self.total else 100.0


def call(*command: object, **variables: str) -> int:
    print("$", *command, flush=True)
    env = {**os.environ, "PATH": PATH, **variables}
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=env, check=False).returncode


def programs() -> list[str]:
    """Targets of the tests that run."""
    answer = subprocess.run(
        ["ninja", "-C", BUILD, "-t", "targets", "all"], capture_output=True, text=True, check=True
    )
    names = [line.partition(":")[0] for line in answer.stdout.splitlines()]
    return [name for name in names if PROGRAM.fullmatch(name)]


def build_and_run() -> bool:
    if not (BUILD / "build.ninja").exists():
        options = ["-Db_coverage=true", "-Doptimization=0", "-Dblas=disabled", "-Dcuda=disabled"]
        if call("meson", "setup", *options, BUILD) != 0:
            return False
    if call("ninja", "-C", BUILD, "build.ninja") != 0:  # knows of new tests then
        return False
    found = programs()
    if call("ninja", "-C", BUILD, *found) != 0:
        return False
    for old in BUILD.rglob("*.gcda"):  # of earlier runs
        old.unlink()
    return all([call(BUILD / program) == 0 for program in found])


def assertion_lines(source: Path) -> set[int]:
    """Lines of assertions, and those that they go on over."""
    found, depth = set(), 0
    for number, line in enumerate(source.read_text().splitlines(), 1):
        if depth > 0 or any(name in line for name in ASSERTIONS):
            found.add(number)
            depth += line.count("(") - line.count(")")
    return found


def measure() -> dict[str, Found]:
    """By source file, sums over all objects that were made of it."""
    taken: dict[tuple[str, int, int], int] = {}
    for data in sorted(BUILD.rglob("*.gcda")):
        answer = subprocess.run(
            ["gcov", "--branch-probabilities", "--json-format", "--stdout", str(data)],
            cwd=BUILD, capture_output=True, check=False,
        )  # fmt: skip
        for text in answer.stdout.decode("utf-8", "replace").splitlines():
            if not text.startswith("{"):
                continue
            for file in json.loads(text)["files"]:
                path = os.path.normpath(BUILD / file["file"])
                for line in file["lines"]:
                    for index, branch in enumerate(line["branches"]):
                        key = (os.path.relpath(path, ROOT), line["line_number"], index)
                        taken[key] = taken.get(key, 0) + branch["count"]
    found: dict[str, Found] = {}
    skipped: dict[str, set[int]] = {}
    for (path, line, _), count in taken.items():
        if path.startswith("..") or not path.endswith(".c"):
            continue
        if path not in skipped:
            skipped[path] = assertion_lines(ROOT / path)
        if line in skipped[path]:
            continue
        one = found.setdefault(path, Found())
        one.total += 1
        one.taken += count > 0
        if count == 0:
            one.lines.add(line)
    return found


def report(found: dict[str, Found], with_lines: bool) -> bool:
    """False: a group is below its floor."""
    good = True
    for group, patterns in GROUPS.items():
        files = sorted({str(path.relative_to(ROOT)) for one in patterns for path in ROOT.glob(one)})
        sum_taken = sum(found[name].taken for name in files if name in found)
        sum_total = sum(found[name].total for name in files if name in found)
        share = 100.0 * sum_taken / sum_total if sum_total else 0.0
        enough = sum_total > 0 and share >= FLOORS[group]
        words = "" if enough else f", the floor is {FLOORS[group]} %"
        print(f"{group:<12} {sum_taken:5} of {sum_total:5} branches  {share:5.1f} %{words}")
        good = good and enough
        for name in files:
            one = found.get(name, Found())
            print(f"    {name:<28} {one.taken:5} of {one.total:5}  {one.share:5.1f} %")
            if with_lines and one.lines:
                source = (ROOT / name).read_text().splitlines()
                for line in sorted(one.lines):
                    print(f"        {line:4}: {source[line - 1].strip()}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description="branch coverage of the parsers and the accounts")
    parser.add_argument("--report", action="store_true", help="no build and no tests")
    parser.add_argument("--lines", action="store_true", help="what was never taken, line by line")
    args = parser.parse_args()
    good = True if args.report else build_and_run()
    return 0 if report(measure(), args.lines) and good else 1


if __name__ == "__main__":
    sys.exit(main())
