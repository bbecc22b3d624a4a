"""./bench: runs measurements, prints a table for each and writes build/bench/NAME.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from rows import machine, table  # noqa: E402
from run_daemon import ROOT, DaemonError, build_folder  # noqa: E402

RESULTS = ROOT / "build" / "bench"
# Each is a module bench_NAME.py here whose run() gives rows.
NAMES = tuple(
    sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
)

ENVIRONMENT = """environment:
  HEADRACE_BUILD=FOLDER   measures this build instead of build/
  HEADRACE_MODEL=FILE     measures `generate` with another GGUF file
  HEADRACE_GGML=PREFIX    a built ggml with its sources, the peer of `plan` and `rpc`
  HEADRACE_LLAMA_PYTHON=PYTHON   an interpreter with llama-cpp-python, the peer of `generate` and `ops`
  HEADRACE_PEERS=none     does without peers
"""
MISHAPS = (
    DaemonError, OSError, subprocess.SubprocessError, ImportError, ValueError, LookupError,
    AssertionError,
)  # fmt: skip


def measure(name: str, results: Path) -> None:
    module = importlib.import_module(f"bench_{name}")
    about = machine(build_folder())
    rows = module.run()
    print(f"\n{name}\n{table(rows)}", flush=True)
    results.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"rows": [row.as_json() for row in rows], "machine": about}, indent=1)
    (results / f"{name}.json").write_text(text + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./bench",
        description=__doc__,
        epilog=ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--list", action="store_true", help="name the measurements and end")
    parser.add_argument(
        "--ggml", metavar="PREFIX", help="a built ggml, the peer of `plan` (or HEADRACE_GGML)"
    )
    parser.add_argument(
        "--only", metavar="WORDS", action="append", help="rows of `ops` or parts of `gpu` that have all of these words"
    )
    parser.add_argument("--results", metavar="FOLDER", type=Path, help="where NAME.json is written")
    parser.add_argument("--quick", action="store_true", help="a first look at `ops`, `generate`, `gpu`")
    args = parser.parse_args()
    if args.only:
        os.environ["HEADRACE_BENCH_ONLY"] = "\n".join(args.only)
    if args.quick:
        os.environ["HEADRACE_BENCH_QUICK"] = "1"
    if args.ggml:
        os.environ["HEADRACE_GGML"] = str(Path(args.ggml).resolve())
    if args.list:
        print("\n".join(NAMES))
        return 0
    unknown = sorted(set(args.names) - set(NAMES))
    if unknown:
        parser.error(f"no measurement {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if os.getloadavg()[0] > 0.5:
        print("this machine is busy: the figures will be worse than it can do", file=sys.stderr)
    status = 0  # a goal that is missed is a row of the table, not a failure to measure
    for name in args.names or NAMES:
        try:
            measure(name, args.results or RESULTS)
        except MISHAPS as error:  # the others may still be measured
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
