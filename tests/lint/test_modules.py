"""One call of pytest can collect several folders: they lie on one path of modules."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# Programs, which nobody imports; pytest keeps the files of fixtures apart itself.
PROGRAMS = {"run.py", "conftest.py"}
FROM_CONFTEST = re.compile(r"^\s*(from conftest import|import conftest)\b", re.MULTILINE)


def modules() -> list[Path]:
    return [path for path in TESTS.rglob("*.py") if path.name not in PROGRAMS]


def test_no_two_modules_have_one_name() -> None:
    places = defaultdict(list)
    for path in modules():
        places[path.name].append(path.relative_to(TESTS))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
    assert len(places) > 100


def test_nobody_imports_fixtures() -> None:
    """`conftest` is whichever comes first on the path; what is shared has a module of its own."""
    assert [path for path in modules() if FROM_CONFTEST.search(path.read_text())] == []
    assert FROM_CONFTEST.search("    from conftest import start\n")
