"""tests/hostile/TABLE.md against the tests: every row has its tests, and they assert what it says.

A row is `| A01 | condition | tests | code and reason | state afterwards |`, or has `not built` for its
tests. What is checked:

- every row of ROWS is there once, in order;
- a row that is built names tests of tests/hostile that exist and bear its number, and every test that bears
  a number is named by that row;
- each of them runs under the fixture `guarded` and goes on afterwards: served(), a result, a call that must
  succeed, or the whole rest of a stream that is cut, itself or through a function of its module;
- each code and reason of the row is asserted by one of its tests: the code as a name, the reason as a
  text, beside a call of refused(), cut() or told(); a decorator with the row's number gives its texts;
- no more rows are not built than NOT_BUILT_MAX, which is none.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = (
    "A01 A02 A04 A05 A07 A08 A10 A11 A13 A14 A16 A17 A19 A20 A22 A23 A25 A26 "
    "B01 B02 B04 B05 B07 B08 B10 B11 "
    "C01 C02 C04 C05 C07 C08 C10 C11 C13 C14 C16 C17 C19 C20 C22 C23 C25 C26 "
    "D01 D02 D04 D05 D07 D08 D10 D11 D13 D14 "
    "E01 E02 E04 E05 E07 E08 E10 E11 E13 "
    "F01 F03 F04 F06 F07 F09 F10 F12 F13 "
    "G02 G03 G05 G06 G08 G09 G11 G12"
).split()
NOT_BUILT_MAX = 0
ASSERTIONS = {"refused", "cut", "told"}
GOES_ON = {"served", "run", "reply", "call", "put", "submit", "ping", "frame", "cut", "closed"}


@dataclass
class Row:
    number: str
    tests: list[str]
    outcomes: list[tuple[str, str]]  # code, reason
    state: str
    line: int
    is_built: bool


@dataclass
class Module:
    """What the functions of a file say, each with those that it calls and the constants it uses."""

    tree: ast.Module
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    constants: dict[str, ast.AST] = field(default_factory=dict)
    by_row: dict[str, set[str]] = field(default_factory=dict)  # texts of decorators
    is_guarded: bool = False

    def __post_init__(self) -> None:
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
                for mark in node.decorator_list:
                    self._decorated(mark)
            elif isinstance(node, ast.ClassDef):
                self.constants[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.constants[target.id] = node.value
        mark = self.constants.get("pytestmark")
        self.is_guarded = mark is not None and "guarded" in ast.dump(mark)

    def _decorated(self, mark: ast.expr) -> None:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name):
            texts = [one.value for one in mark.args if isinstance(one, ast.Constant)]
            if texts and re.fullmatch(r"[A-G]\d\d", str(texts[0])):
                self.by_row.setdefault(texts[0], set()).update(texts[1:])

    def reach(self, name: str) -> Iterator[ast.AST]:
        """The nodes of a function and of all of this module that it leads to."""
        seen: set[str] = set()
        due = [name]
        while due:
            at = due.pop()
            if at in seen:
                continue
            seen.add(at)
            root = self.functions.get(at) or self.constants.get(at)
            if root is None:
                continue
            for node in ast.walk(root):
                yield node
                if isinstance(node, ast.Name):
                    due.append(node.id)


@dataclass
class Said:
    names: set[str]
    texts: set[str]
    calls: set[str]
    fixtures: set[str]


def said(module: Module, name: str) -> Said:
    found = Said(set(), set(), set(), set())
    for node in module.reach(name):
        if isinstance(node, ast.Name):
            found.names.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.texts.add(node.value)
        elif isinstance(node, ast.Call):
            called = node.func
            found.calls.add(
                called.id if isinstance(called, ast.Name)
                else called.attr if isinstance(called, ast.Attribute) else ""
            )  # fmt: skip
    for number in numbered(name):
        found.texts |= module.by_row.get(number, set())
    found.fixtures = {one.arg for one in module.functions[name].args.args}
    # Reasons that are derived: kind.upper() of the texts in sight.
    if "upper" in found.calls:
        found.texts |= {text.upper() for text in found.texts}
    return found


def read_table(text: str) -> list[Row]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not re.fullmatch(r"[A-G]\d\d", cells[0] if cells else ""):
            continue
        cells += [""] * (5 - len(cells))
        tests = re.findall(r"`([\w.]+::\w+)`", cells[2])
        outcomes = re.findall(r"`([A-Z_]+) ([A-Z_0-9]+)`", cells[3])
        rows.append(
            Row(cells[0], tests, outcomes, cells[4], number, not cells[2].startswith("not built"))
        )
    return rows


def numbered(name: str) -> list[str]:
    """test_A05_A14_... -> ["A05", "A14"]"""
    match = re.match(r"test_((?:[A-G]\d\d_)+)", name)
    return match[1].strip("_").split("_") if match else []


def check_row(row: Row, modules: dict[str, Module]) -> Iterator[str]:
    asserted: set[tuple[str, str]] = set()
    if not row.tests:
        yield f"{row.number}: names no test"
    if not row.state:
        yield f"{row.number}: says nothing about the state afterwards"
    if not row.outcomes:
        yield f"{row.number}: names no code and reason (`OK OK` where there is none)"
    for test in row.tests:
        file, name = test.split("::")
        module = modules.get(file)
        if module is None or name not in module.functions:
            yield f"{row.number}: there is no {test}"
            continue
        if row.number not in numbered(name):
            yield f"{row.number}: {test} does not bear its number"
        what = said(module, name)
        if not module.is_guarded and "guarded" not in what.fixtures:
            yield f"{row.number}: {test} does not look at the daemon's state (fixture guarded)"
        if not what.calls & GOES_ON:
            yield f"{row.number}: {test} does not assert that the daemon still serves"
        for code, reason in row.outcomes:
            if code in what.names and reason in what.texts and what.calls & ASSERTIONS:
                asserted.add((code, reason))
            elif (code, reason) == ("OK", "OK") and any(
                isinstance(node, ast.Assert) for node in module.reach(name)
            ):
                asserted.add((code, reason))
    for code, reason in row.outcomes:
        if row.tests and (code, reason) not in asserted:
            yield f"{row.number}: no test of it asserts {code} {reason}"


def findings(folder: Path) -> list[str]:
    table = read_table((folder / "TABLE.md").read_text())
    modules = {
        path.name: Module(ast.parse(path.read_text())) for path in sorted(folder.glob("test_*.py"))
    }
    found = []
    if [row.number for row in table] != ROWS:
        missing = sorted(set(ROWS) - {row.number for row in table})
        found.append(f"rows are missing, twice or out of order; missing: {missing}")
    named = {(row.number, test) for row in table for test in row.tests}
    for file, module in modules.items():
        for name in module.functions:
            for number in numbered(name):
                if (number, f"{file}::{name}") not in named:
                    found.append(f"{number}: {file}::{name} is not in the table")
    for row in table:
        if row.is_built:
            found += check_row(row, modules)
    not_built = [row.number for row in table if not row.is_built]
    if len(not_built) > NOT_BUILT_MAX:
        found.append(f"{len(not_built)} rows are not built, at most {NOT_BUILT_MAX}: {not_built}")
    return found


def main() -> int:
    folder = ROOT / "tests" / "hostile"
    for line in (found := findings(folder)):
        print(line)
    not_built = [row.number for row in read_table((folder / "TABLE.md").read_text())
                 if not row.is_built]  # fmt: skip
    print(f"{len(ROWS)} rows, {len(not_built)} not built: {' '.join(not_built)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
