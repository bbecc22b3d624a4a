"""Runs the fuzzers of a build folder, each for some time from its corpus.

    python tests/fuzz/run.py --build build-fuzz --seconds 120 [--only NAME]...

The folder is one of clang with -Dfuzz=true. With --planted (a build with -Dplanted_fault=true) each
fuzzer has to find the fault that was put there for it: an input that ends it, no lapse of time. Ends
with `N passed, M failed`; what a fuzzer found is kept in --findings. New inputs that cover more are
kept in --grow; the fewest that cover as much go into corpus/grown-NAME by
`libfuzzer_NAME -set_cover_merge=1 corpus/grown-NAME GROW/NAME`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"
INPUT_S = 60  # an input that takes longer is a finding
SLACK_S = 2 * INPUT_S
# The daemon's thread in fuzz_session ends with the process.
OPTIONS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:report_thread_leaks=0",
}


def fuzz(program: Path, seconds: int, findings: Path, grow: Path) -> tuple[int, str]:
    """Exit status and the last lines of one fuzzer; 0 is one that ran to its end."""
    name = program.name.removeprefix("libfuzzer_")
    grow.mkdir(parents=True, exist_ok=True)
    command = [
        program, f"-max_total_time={seconds}", "-rss_limit_mb=4096", f"-timeout={INPUT_S}",
        "-max_len=16384", "-handle_term=0", "-print_final_stats=1",
        f"-artifact_prefix={findings}/{name}-", grow, CORPUS / name,
    ]  # fmt: skip
    if (CORPUS / f"grown-{name}").is_dir():
        command.append(CORPUS / f"grown-{name}")
    try:
        done = subprocess.run(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **OPTIONS}, timeout=seconds + SLACK_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"did not end within {seconds + SLACK_S} s"
    return done.returncode, "\n".join(done.stdout.decode("utf-8", "replace").splitlines()[-25:])


def main() -> int:
    parser = argparse.ArgumentParser(description="runs fuzzers")
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--only", action="append", help="only these targets")
    parser.add_argument("--planted", action="store_true", help="each has to find its fault")
    parser.add_argument("--findings", type=Path, default=Path("."))
    parser.add_argument("--grow", type=Path, help="keeps new inputs in a folder for each target")
    args = parser.parse_args()
    programs = sorted((args.build / "tests" / "fuzz").glob("libfuzzer_*"))
    programs = [one for one in programs if one.is_file()]
    if args.only:
        programs = [one for one in programs if one.name.removeprefix("libfuzzer_") in args.only]
    passed = failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        findings = Path(scratch) / "findings" if args.planted else args.findings
        findings.mkdir(parents=True, exist_ok=True)
        for program in programs:
            name = program.name.removeprefix("libfuzzer_")
            grow = (args.grow or Path(scratch)) / name
            status, words = fuzz(program, args.seconds, findings, grow)
            crashes = [*findings.glob(f"{name}-crash-*")] if args.planted else []
            good = bool(crashes) if args.planted else status == 0
            passed, failed = passed + good, failed + (not good)
            found = "a fault" if status else "nothing"
            print(f"{name}: found {found}", flush=True)
            if not good:
                print(words, flush=True)
    if not programs:
        failed = 1
        print(f"no fuzzer in {args.build}: clang and -Dfuzz=true")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
