"""The stages, the most telling first: what each needs, runs and takes for a success."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine import environment, find_sanitizer

CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$", re.MULTILINE)
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error")
HAZARDS = re.compile(r"RACECHECK SUMMARY: (\d+) hazard")

Command = list[object]


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was said"


def told_of_gpu(text: str) -> str:
    """What the first usable GPU is, and how long it took to open it."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    gpu = next(one for one in found if one["usable"])
    without = "" if gpu["products"] else "; no cuBLASLt"
    return f"{gpu['description']}, opened in {gpu['open_ms']:.0f} ms{without}"


def told_of_rows(text: str) -> str:
    """Of a bench: how many rows there are, and the goals that are missed."""
    lines = [line for line in text.splitlines() if re.match(r"(peaks|demo|7B \w+|overhead): ", line)]
    missed = [re.split(r"\s{2,}", line) for line in lines if line.endswith("NO")]
    words = "; ".join(f"{cells[0]}: {cells[-3]} of {cells[-2]}" for cells in missed)
    return f"{len(lines)} rows" + (f", missed: {words}" if missed else "")


def judge_code(code: int, text: str) -> str | None:
    return None if code == 0 else f"{last_words(text)} (status {code})"


def judge_probe(code: int, text: str) -> str | None:
    """Opening the driver; "no driver" and "no GPU" are what run.py looks for."""
    if code != 0:
        return last_words(text)
    if '"usable": true' not in text:
        return "no GPU of this machine can be used"
    return None


def judge_whole(code: int, text: str) -> str | None:
    """A program of the harness: what is skipped is not proven."""
    found = CLOSING.findall(text)
    if not found:
        return f"it did not end well: {last_words(text)} (status {code})"
    passed, failed, skipped = (int(number or 0) for number in found[-1])
    if code != 0 or failed or skipped or not passed:
        return f"{passed} passed, {failed} failed, {skipped} skipped (status {code})"
    return None


def judge_golden(code: int, text: str) -> str | None:
    """Operators that the device does not take are skipped; some it must take."""
    found = CLOSING.findall(text)
    if not found:
        return f"it did not end well: {last_words(text)} (status {code})"
    passed, failed, _ = (int(number or 0) for number in found[-1])
    return None if code == 0 and passed and not failed else f"{last_words(text)} (status {code})"


def judge_sanitizer(pattern: re.Pattern[str]) -> Callable[[int, str], str | None]:
    def judge(code: int, text: str) -> str | None:
        found = pattern.findall(text)
        if not found:
            return f"the sanitizer has no summary: {last_words(text)} (status {code})"
        if code != 0 or any(int(number) for number in found):
            return f"{', '.join(found)} found, see the log (status {code})"
        return None

    return judge


@dataclass(frozen=True)
class Stage:
    name: str
    about: str  # what it proves
    commands: Callable[[Path, bool], Sequence[Command]]  # (root, quick)
    judge: Callable[[int, str], str | None]  # (exit status, output) -> what is wrong, if anything
    parts: tuple[str, ...] = ("base",)
    expected: float = 10  # seconds, on a large GPU
    seconds: float = 120  # and then it is stopped
    needs_sanitizer: bool = False
    tell: Callable[[str], str] = last_words  # what is said of a success


def program(root: Path, path: str, *arguments: object) -> Command:
    """A program of the build, with its libraries."""
    libraries = environment(root)["HEADRACE_TEST_LIBRARIES"]
    return ["env", f"LD_LIBRARY_PATH={libraries}", root / "build" / path, *arguments]


def script(root: Path, name: str, quick: bool, *arguments: object) -> Command:
    return [sys.executable, root / "tests" / "gpu" / name, *arguments, *(["--quick"] * quick)]


def recorded(root: Path, folder: str, names: Sequence[str] = ()) -> list[Path]:
    files = sorted((root / folder).glob("*.txt"))
    return [file for file in files if not names or file.stem in names]


CONFORMANCE = tuple(f"tests/conformance/conformance_cuda_{part}" for part in ("device", "queue"))
GOLDEN = ("tests/golden/golden_ops", "--device", "cuda")
SMALL = "tests/golden/data/ops"
# One of each way that threads of a block work together.
RACES = ("flash_attn", "mul_mat_float", "mul_mat_kq", "norm", "reduce", "soft_max")
# The fake driver takes long over products.
QUICK = ("binary", "reduce")


def probe(root: Path, quick: bool) -> list[Command]:
    return [program(root, "tests/gpu/gpu_probe")]


def conformance(root: Path, quick: bool) -> list[Command]:
    return [program(root, path) for path in CONFORMANCE]


def golden_small(root: Path, quick: bool) -> list[Command]:
    return [program(root, *GOLDEN, *recorded(root, SMALL, QUICK if quick else ()))]


def golden(root: Path, quick: bool) -> list[Command]:
    return [program(root, *GOLDEN, *recorded(root, "golden/ops"))]


def devices(root: Path, quick: bool) -> list[Command]:
    return [script(root, "stage_devices.py", quick)]


def experts(root: Path, quick: bool) -> list[Command]:
    return [script(root, "stage_experts.py", quick)]


def model(root: Path, quick: bool) -> list[Command]:
    folder = root / "model"
    return [script(root, "stage_model.py", False, folder / "model.gguf", folder / "reference.json")]


def sanitized(tool: str, root: Path, commands: Sequence[Command]) -> list[Command]:
    """Its errors are an exit status of their own; it looks at children as well."""
    before: Command = [find_sanitizer(), "--tool", tool, "--error-exitcode", 9]
    return [[*command[:2], *before, *command[2:]] for command in commands]


def memcheck(root: Path, quick: bool) -> list[Command]:
    return sanitized("memcheck", root, [*golden_small(root, quick), *conformance(root, quick)])


def racecheck(root: Path, quick: bool) -> list[Command]:
    files = recorded(root, SMALL, QUICK if quick else RACES)
    return sanitized("racecheck", root, [program(root, *GOLDEN, *files)])


def bench(part: str) -> Callable[[Path, bool], list[Command]]:
    def commands(root: Path, quick: bool) -> list[Command]:
        results = root / "results" / part.replace(" ", "-").lower()
        front = [sys.executable, root / "tests" / "bench" / "bench.py", "gpu", "--only", part]
        return [[*front, "--results", results, *(["--quick"] * quick)]]

    return commands


def llama(root: Path, quick: bool) -> list[Command]:
    return [script(root, "build_llama.py", False, root / "llama")]


STAGES = (
    Stage("driver", "the driver opens, GPUs are what they are, copies are tested", probe, judge_probe,
          expected=5, seconds=60, tell=told_of_gpu),
    Stage("conformance", "the device interface on the real driver", conformance, judge_whole,
          expected=10, seconds=90),
    Stage("golden-small", "each family of operators against recorded results", golden_small,
          judge_golden, expected=15, seconds=120),
    Stage("devices", "one to four devices on a GPU, 1 to 8 copies: the same bits", devices, judge_code,
          expected=20, seconds=120),
    Stage("experts", "experts of host weights: the same bits, none missing", experts, judge_code,
          expected=15, seconds=90),
    Stage("model", "a model end to end by the CPU's criterion", model, judge_code, ("base", "model"),
          expected=15, seconds=90),
    Stage("golden", "all recorded operators", golden, judge_golden, ("base", "golden"),
          expected=60, seconds=240),
    Stage("memcheck", "no access outside its memory", memcheck, judge_sanitizer(ERRORS),
          expected=90, seconds=240, needs_sanitizer=True),
    Stage("racecheck", "no race in a block", racecheck, judge_sanitizer(HAZARDS),
          expected=60, seconds=180, needs_sanitizer=True),
    Stage("bench-peaks", "what the GPU copies and multiplies at most", bench("peaks"), judge_code,
          expected=10, seconds=60, tell=told_of_rows),
    Stage("llama", "llama.cpp is built, to be measured beside", llama, judge_code, ("base", "llama"),
          expected=300, seconds=540),
    Stage("bench-f16", "7B shape, F16", bench("7B f16"), judge_code, expected=60, seconds=200, tell=told_of_rows),
    Stage("bench-q4_K", "7B shape, Q4_K", bench("7B q4_K"), judge_code, expected=40, seconds=150, tell=told_of_rows),
    Stage("bench-q8_0", "7B shape, Q8_0", bench("7B q8_0"), judge_code, expected=50, seconds=150, tell=told_of_rows),
    Stage("bench-demo", "the model that somebody uses", bench("demo"), judge_code, ("base", "model"),
          expected=20, seconds=90, tell=told_of_rows),
    Stage("bench-overhead", "what the daemon adds to the same plan", bench("overhead"), judge_code,
          expected=20, seconds=90, tell=told_of_rows),
)  # fmt: skip
