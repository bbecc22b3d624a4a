"""Runs the suites of ./check and adds up what they say.

A suite is a build folder of Meson whose tests run under `meson test`, or a folder of pytest. Each
prints one line here and its whole output into build/check/NAME.log. A test program of the C harness
counts by its closing line `N passed, M failed, K skipped`, any other program as one test, pytest by
its JUnit file. A suite that cannot run counts as one failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "check"
RECORDED = ROOT.parent / "shared" / "golden"
CLOSING_LINE = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$", re.MULTILINE)
TAIL_LINES = 40
PROCESSORS = min(len(os.sched_getaffinity(0)), 8)
# Debian's python3 comes first: it has the module that the generator of nanopb needs.
BUILD_PATH = "/usr/bin:/bin:" + os.environ.get("PATH", "")


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass
class Result:
    count: Count
    log: Path
    details: list[str] = field(default_factory=list)  # what to show of a failure


@dataclass(frozen=True)
class Suite:
    name: str
    run: Callable[[], Result]
    full_only: bool = False


def say(*words: object) -> None:
    print(*words, flush=True)


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}


def execute(
    command: Sequence[str | Path], log: Path, env: dict[str, str], append: bool = False
) -> int:
    with log.open("ab" if append else "wb") as out:
        out.write(("$ " + " ".join(map(str, command)) + "\n").encode())
        out.flush()
        return subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


def tail(path: Path) -> list[str]:
    return path.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:]


# ---- C: build folders --------------------------------------------------------------------------


def build(
    folder: Path, options: Sequence[str], compiler: str | None, log: Path, target: str = "all"
) -> bool:
    env = environment(PATH=BUILD_PATH, **({"CC": compiler} if compiler else {}))
    if not (folder / "build.ninja").exists():
        wipe = ["--wipe"] if (folder / "meson-private").exists() else []
        if execute(["meson", "setup", *wipe, *options, folder, ROOT], log, env) != 0:
            return False
    return execute(["ninja", "-C", folder, target], log, env, append=True) == 0


def meson_suite(
    name: str,
    folder: Path,
    options: Sequence[str],
    compiler: str | None = None,
    env: dict[str, str] | None = None,
    slower: int = 1,
) -> Suite:
    """Builds, with warnings as errors, and runs every test that Meson knows there."""

    def run() -> Result:
        log = LOGS / f"{name}.log"
        if not build(folder, ["-Dwerror=true", *options], compiler, log):
            return Result(Count(failed=1), log, ["the build failed:", *tail(log)])
        command = ["meson", "test", "-C", folder, "--no-rebuild", "--timeout-multiplier", slower]
        changes = {"PATH": BUILD_PATH, **(env or {})}
        # The file of an earlier pass must not be taken for this one's.
        records = folder / "meson-logs" / "testlog.json"
        records.unlink(missing_ok=True)
        code = execute([str(part) for part in command], log, environment(**changes), append=True)
        return read_meson_log(records, code, log)

    return Suite(name, run)


def read_meson_log(records: Path, code: int, log: Path) -> Result:
    if not records.exists():
        return Result(Count(failed=1), log, ["meson test wrote no results:", *tail(log)])
    result = Result(Count(), log)
    for line in records.read_text("utf-8", "replace").splitlines():
        record = json.loads(line)
        output = record.get("stdout") or ""
        count = count_of_program(record["result"], output)
        result.count += count
        if count.failed:
            lines = (output + (record.get("stderr") or "")).splitlines()
            result.details += [f"{record['name']}: {record['result']}", *lines[-TAIL_LINES:]]
    if code != 0 and result.count.failed == 0:
        result.count.failed = 1
        result.details += tail(log)
    if result.count.passed + result.count.failed + result.count.skipped == 0:
        result.count.failed = 1
        result.details += ["no test ran"]
    return result


def count_of_program(outcome: str, output: str) -> Count:
    closing = CLOSING_LINE.findall(output)
    if closing:
        count = Count(*(int(number or 0) for number in closing[-1]))
        # A program that counts no failure and yet failed (a sanitizer's report at its end).
        if outcome not in ("OK", "EXPECTEDFAIL", "SKIP") and count.failed == 0:
            count.failed = 1
        return count
    if outcome in ("OK", "EXPECTEDFAIL"):
        return Count(passed=1)
    return Count(skipped=1) if outcome == "SKIP" else Count(failed=1)


def deal(files: Sequence[Path], hands: int) -> list[list[Path]]:
    """The files in up to `hands` lots of about the same number of bytes; at least one lot."""
    lots: list[list[Path]] = [[] for _ in range(max(1, min(hands, len(files))))]
    bytes_of = [0] * len(lots)
    for file in sorted(files, key=lambda path: path.stat().st_size, reverse=True):
        least = bytes_of.index(min(bytes_of))
        lots[least].append(file)
        bytes_of[least] += file.stat().st_size
    return lots


def program_suite(
    name: str,
    folder: Path,
    command: Sequence[str],
    data: Path,
    may_lack_program: bool = False,
    processes: int = 1,
) -> Suite:
    """A test program over data that lie outside the checkout; skipped where they do not.

    The files of the folder are dealt out to that many processes.
    """

    def run() -> Result:
        log = LOGS / f"{name}.log"
        if not data.is_dir():
            return Result(Count(skipped=1), log)
        if may_lack_program and not (folder / command[0]).exists():
            return Result(Count(skipped=1), log)
        if not (folder / command[0]).exists():
            return Result(Count(failed=1), log, [f"{folder / command[0]} has not been built"])
        hands = deal(sorted(data.glob("*.txt")), processes)
        logs = [LOGS / f"{name}.{index}.log" for index in range(len(hands))]
        with ThreadPoolExecutor(len(hands)) as pool:
            codes = list(
                pool.map(
                    lambda hand, part: execute(
                        [folder / command[0], *command[1:], *hand], part, environment()
                    ),
                    hands,
                    logs,
                )
            )
        result = Result(Count(), log)
        for code, part in zip(codes, logs, strict=True):
            output = part.read_text("utf-8", "replace")
            count = count_of_program("OK" if code == 0 else "FAIL", output)
            result.count += count
            result.details += tail(part) if count.failed else []
        log.write_text("".join(part.read_text("utf-8", "replace") for part in logs))
        return result

    return Suite(name, run)


def fuzz_suite(
    name: str, folder: Path, options: Sequence[str], arguments: Sequence[str]
) -> Suite:
    """Builds the fuzzers with clang and runs each for some time; see tests/fuzz/run.py."""

    def run() -> Result:
        log = LOGS / f"{name}.log"
        if not build(folder, ["-Dfuzz=true", "-Doptimization=1", "-Ddebug=true",
                              "-Db_lundef=false", "-Dblas=disabled", "-Dcuda=disabled", *options],
                     "clang", log, "fuzzers"):  # fmt: skip
            return Result(Count(failed=1), log, ["the build failed:", *tail(log)])
        command = [sys.executable, ROOT / "tests" / "fuzz" / "run.py", "--build", folder,
                   "--findings", LOGS / name, *arguments]  # fmt: skip
        code = execute(command, log, environment(), append=True)
        count = count_of_program("OK" if code == 0 else "FAIL", log.read_text("utf-8", "replace"))
        return Result(count, log, tail(log) if count.failed else [])

    return Suite(name, run)


def coverage_suite() -> Suite:
    """Every branch of what reads a client's bytes is taken by its own tests; tests/tools/coverage.py."""

    def run() -> Result:
        log = LOGS / "coverage.log"
        command = [sys.executable, ROOT / "tests" / "tools" / "coverage.py", "--lines"]
        code = execute(command, log, environment())
        return Result(Count(int(code == 0), int(code != 0)), log, tail(log) if code else [])

    return Suite("coverage", run)


# ---- Python ------------------------------------------------------------------------------------


def install(section: str, log: Path) -> None:
    """Debian packages that one suite alone needs; without them its tests say what they lack."""
    script = f'root="{ROOT}"; . "$root/tests/tools/setup.sh"; ensure_packages {section}'
    execute(["bash", "-c", script], log, environment())


def pytest_suite(
    name: str,
    folders: Iterable[str],
    env: dict[str, str],
    full_only: bool = False,
    may_lack_daemon: bool = False,
    packages: str = "",
) -> Suite:
    def run() -> Result:
        if packages:
            install(packages, LOGS / f"{name}.packages.log")
        log, junit = LOGS / f"{name}.log", LOGS / f"{name}.xml"
        junit.unlink(missing_ok=True)
        daemon = Path(env.get("HEADRACE_BUILD", "")) / "daemon" / "headraced"
        if may_lack_daemon and not daemon.exists():
            log.write_text(f"skipped: there is no {daemon}\n")
            return Result(Count(skipped=1), log)
        if "HEADRACE_BUILD" in env and not daemon.exists():
            return Result(Count(failed=1), log, [f"did not run: there is no {daemon}"])
        present = [folder for folder in folders if any((ROOT / folder).rglob("test_*.py"))]
        if not present:
            return Result(Count(failed=1), log, [f"no test below {', '.join(folders)}"])
        # The tests of one file share a daemon: a file stays in one process.
        spread = ["-n", str(PROCESSORS), "--dist", "loadfile"]
        command = [sys.executable, "-m", "pytest", "-q", "-ra", f"--junitxml={junit}", *spread]
        command += present
        code = execute(command, log, environment(**env))
        return read_junit(junit, code, log)

    return Suite(name, run, full_only)


def read_junit(junit: Path, code: int, log: Path) -> Result:
    if not junit.exists():
        return Result(Count(failed=1), log, ["pytest wrote no results:", *tail(log)])
    count = Count()
    for suite in xml.parse(junit).getroot().iter("testsuite"):
        tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        count += Count(max(tests - failed - skipped, 0), failed, skipped)
    if code != 0 and count.failed == 0:
        count.failed = 1
    return Result(count, log, tail(log) if count.failed else [])


def mypy_suite() -> Suite:
    def run() -> Result:
        log = LOGS / "types.log"
        command = [sys.executable, "-m", "mypy", "--config-file", "client/python/pyproject.toml"]
        code = execute([*command, "client/python/headrace"], log, environment())
        return Result(Count(int(code == 0), int(code != 0)), log, tail(log) if code else [])

    return Suite("types", run)


# ---- the list ----------------------------------------------------------------------------------


def suites(full: bool) -> list[Suite]:
    """Cheap ones first: what fails early is seen early."""
    main, asan = ROOT / "build-check", ROOT / "build-asan"
    long_form = {"HEADRACE_FULL": "1"} if full else {}
    sanitizers = {
        # An allocation that is too large is an answer that the code has to cope with.
        "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:"
        "allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    }
    # The kernels of the GPU are the same in all builds, and the compiler of them is slow.
    kernels = f"-Dgpu_kernels={main / 'backends' / 'cuda'}"
    # Lines are all that a sanitizer's report needs; more takes the compiler twice as long.
    debug = ["-Dbuildtype=debugoptimized", "-Db_lundef=false", "-Dc_args=-g1", kernels]
    at_main = {**long_form, "HEADRACE_BUILD": str(main)}
    at_asan = {
        **long_form,
        **sanitizers,
        "HEADRACE_BUILD": str(asan),
        "HEADRACE_SANITIZED": "1",
    }
    found = [
        meson_suite("c", main, [], env=long_form),
        # The whole recorded sets; the parts of them in tests/golden/data run with suite c.
        program_suite("golden-plans", main, ["tests/golden/golden_plans"], RECORDED / "plans"),
        program_suite("golden-ops", main, ["tests/golden/golden_ops"], RECORDED / "ops"),
        # A device of one operator: the rest is not its.
        program_suite(
            "golden-ops-blas",
            main,
            [
                "tests/golden/golden_ops",
                "--device",
                "blas",
                "--batch-min",
                "1",
                "--allow-unsupported",
            ],
            RECORDED / "ops",
        ),
        program_suite(
            "golden-ops-cuda",
            main,
            ["tests/golden/golden_ops_cuda_checked", "--device", "cuda"],
            RECORDED / "ops",
            may_lack_program=True,
            processes=PROCESSORS,
        ),
        pytest_suite(
            "lint", ["tests/lint", "tests/tools"], {**long_form, "HEADRACE_LINT_BUILD": str(main)}
        ),
        mypy_suite(),
        pytest_suite("python", ["tests/python"], at_main),
        pytest_suite("integration", ["tests/integration"], at_main),
        pytest_suite("systemd", ["tests/systemd"], at_main, packages="systemd"),
        pytest_suite(
            "packages",
            ["tests/packages"],
            at_main,
            packages="operation packages" if full else "operation",
        ),
        pytest_suite("hostile", ["tests/hostile"], at_main),
        pytest_suite("scenarios", ["tests/scenarios"], at_main),
        # On two GPUs of the fake driver; built only where the CUDA toolkit is.
        pytest_suite(
            "scenarios-cuda",
            ["tests/scenarios"],
            {
                **long_form,
                "HEADRACE_BUILD": str(main / "tests" / "cuda"),
                "HEADRACE_TEST_BACKEND": "cuda",
            },
            may_lack_daemon=True,
        ),
        # The scripts for a machine with a GPU, on the fake driver.
        pytest_suite("gpu", ["tests/gpu"], at_main),
        pytest_suite("acceptance", ["tests/acceptance"], at_main),
        meson_suite(
            "c-sanitized",
            asan,
            [*debug, "-Db_sanitize=address,undefined"],
            env={**long_form, **sanitizers},
            slower=5,
        ),
        meson_suite("c-clang", ROOT / "build-clang", [kernels], compiler="clang", env=long_form),
    ]
    if full:
        found += [
            coverage_suite(),
            fuzz_suite(
                "fuzz", ROOT / "build-fuzz", ["-Db_sanitize=address,undefined"],
                ["--seconds", "180"],
            ),
            fuzz_suite(
                "fuzz-threads", ROOT / "build-fuzz-tsan", ["-Db_sanitize=thread"],
                ["--seconds", "120"],
            ),
            fuzz_suite(
                "fuzz-planted", ROOT / "build-fuzz-planted",
                ["-Db_sanitize=none", "-Dplanted_fault=true"],
                ["--seconds", "240", "--planted"],
            ),
            pytest_suite("integration-sanitized", ["tests/integration"], at_asan),
            pytest_suite("hostile-sanitized", ["tests/hostile"], at_asan),
            pytest_suite("scenarios-sanitized", ["tests/scenarios"], at_asan),
            meson_suite(
                "c-threads",
                ROOT / "build-tsan",
                [*debug, "-Db_sanitize=thread"],
                env={**long_form, **sanitizers},
                slower=10,
            ),
        ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="./check", description="builds and runs every suite")
    parser.add_argument("--full", action="store_true", help="the long forms too")
    parser.add_argument("--only", metavar="SUITE", action="append", help="only these suites")
    parser.add_argument("--list", action="store_true", help="name the suites and end")
    args = parser.parse_args()
    chosen = suites(args.full)
    if args.list:
        print("\n".join(suite.name for suite in chosen))
        return 0
    if args.only:
        unknown = set(args.only) - {suite.name for suite in chosen}
        if unknown:
            parser.error(f"no suite {', '.join(sorted(unknown))}")
        chosen = [suite for suite in chosen if suite.name in args.only]
    LOGS.mkdir(parents=True, exist_ok=True)
    total = Count()
    for suite in chosen:
        start = time.monotonic()
        try:
            result = suite.run()
        except (OSError, ValueError, KeyError, xml.ParseError) as error:
            result = Result(Count(failed=1), LOGS / f"{suite.name}.log", [f"did not run: {error}"])
        seconds = time.monotonic() - start
        say(f"{suite.name:<22} {result.count!s:<42} {seconds:6.1f} s")
        if result.count.failed:
            say("\n".join("    " + line for line in result.details))
            say(f"    all of it: {result.log}")
        total += result.count
    say(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
