"""Every scenario, B001 to B095, has its tests.

A test of scenario B001 is a function whose name has `b001` (or `B001`) in it, in one of FOLDERS. Together
the tests of a scenario run beside a client that must not notice (`guarded`, `canary`, `launch_watched`, or
a Bystander), and those of the scheduler's scenarios, B001 to B043, with 1, 2
and 4 slots (a parameter `copies`), unless WITHOUT says why not.

    python tests/lint/check_scenarios.py [ROOT]      one line per finding
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("tests/scenarios", "tests/integration", "tests/hostile", "tests/systemd")
SCENARIOS = (
    1, 3, 5, 6, 8, 10, 11, 13, 15, 16, 18, 20, 21, 23, 25, 26, 28, 30, 31, 33, 35, 36, 38, 40, 41, 43,
    45, 46, 48, 50, 51, 53, 55, 56, 58, 60, 61, 63, 65, 66, 68, 70, 71, 73, 75, 76, 78, 80, 81, 83, 85, 86, 88,
    90, 91, 93, 95,
)  # fmt: skip
SLOTS_UP_TO = 43
WATCHERS = {"guarded", "canary", "canary_runs", "launch_watched", "Bystander"}
# What a scenario's tests do without, and why.
WITHOUT = {
    ("copies", 20): "nothing runs: only planned",
    ("copies", 25): "asks for 4 and for as many as are of use: how many it gets is what it tests",
    ("copies", 28): "asks for 1, 2, 4 and 8 slots itself: how many it gets is what it tests",
    ("copies", 43): "loads weights, runs nothing",
    ("canary", 90): "the daemon never starts",
    ("canary", 93): "at the start, when nobody is served yet",
}


def functions(root: Path) -> Iterator[tuple[ast.FunctionDef, bool]]:
    """Every test function, and whether its module has a watcher for all."""
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("test_*.py")):
            module = ast.parse(path.read_text(), str(path))
            marks = [
                ast.unparse(statement)
                for statement in module.body
                if isinstance(statement, ast.Assign) and "pytestmark" in ast.unparse(statement.targets)
            ]
            watched = any(word in mark for word in WATCHERS for mark in marks)
            for statement in module.body:
                if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_"):
                    yield statement, watched


def findings(root: Path) -> list[str]:
    """What is missing, in words."""
    has: dict[int, set[str]] = defaultdict(set)
    for function, watched in functions(root):
        words = set(re.findall(r"\w+", ast.unparse(function)))
        traits = {"test"}
        if "copies" in {argument.arg for argument in function.args.args}:
            traits.add("copies")
        if watched or words & WATCHERS:
            traits.add("canary")
        for number in re.findall(r"[bB](\d{3})(?=_|$)", function.name):
            has[int(number)] |= traits
    found = []
    for number in SCENARIOS:
        if "test" not in has[number]:
            found.append(f"B{number:03}: no test is named after it")
            continue
        for trait, words in (("copies", "runs with 1, 2 and 4 slots"), ("canary", "is watched")):
            if trait == "copies" and number > SLOTS_UP_TO:
                continue
            lacks = trait not in has[number]
            if lacks and (trait, number) not in WITHOUT:
                found.append(f"B{number:03}: none of its tests {words}")
            if not lacks and (trait, number) in WITHOUT:
                found.append(f"B{number:03}: {words}, and WITHOUT says that it does not")
    return found


def main() -> int:
    """Prints what is missing."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    found = findings(root)
    print("\n".join(found) or f"{len(SCENARIOS)} scenarios have their tests")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
