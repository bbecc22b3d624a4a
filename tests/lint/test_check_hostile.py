"""The lint of tests/hostile finds each fault in a small table, and none in ours."""

from __future__ import annotations

from pathlib import Path

import check_hostile
import pytest

TABLE = """
| row | input or condition | tests | code and reason | state afterwards |
|---|---|---|---|---|
| A01 | garbage | `test_a.py::test_A01_garbage` | `INVALID BAD_MAGIC` | the end |
| A02 | no error | `test_a.py::test_A02_fine` | `OK OK` | goes on |
| A04 | later | not built | | |
"""
TESTS = """
pytestmark = pytest.mark.usefixtures("guarded")
REASON = "BAD_MAGIC"


def helper(conn):
    cut(conn, INVALID, REASON)


def test_A01_garbage(address):
    helper(Conn(address))


def test_A02_fine(address):
    with Conn(address) as conn:
        served(conn)
        assert True
"""
FAULTS = {
    "names no test": (TABLE.replace("`test_a.py::test_A01_garbage`", ""), TESTS),
    "there is no test_a.py::test_A01_gone": (TABLE.replace("A01_garbage", "A01_gone"), TESTS),
    "does not bear its number": (TABLE.replace("A01_garbage", "A02_fine"), TESTS),
    "is not in the table": (TABLE, TESTS + "\n\ndef test_A02_more(address):\n    pass\n"),
    "no test of it asserts INVALID BAD_MAGIC": (TABLE, TESTS.replace("BAD_MAGIC", "BAD_TYPE")),
    "no test of it asserts": (TABLE, TESTS.replace("INVALID", "EXHAUSTED")),
    "does not look at the daemon's state": (TABLE, TESTS.replace("guarded", "other")),
    "still serves": (TABLE, TESTS.replace("served(conn)", "pass")),
    "says nothing about the state": (TABLE.replace("| the end |", "| |"), TESTS),
    "names no code and reason": (TABLE.replace("`INVALID BAD_MAGIC`", ""), TESTS),
    "rows are missing": (TABLE.replace("| A04 |", "| A05 |"), TESTS),
    "not built, at most 1": (
        TABLE.replace("`test_a.py::test_A02_fine` | `OK OK`", "not built |"),
        TESTS.replace("A02_fine", "fine"),
    ),
}


def check(monkeypatch: pytest.MonkeyPatch, folder: Path, table: str, tests: str) -> list[str]:
    monkeypatch.setattr(check_hostile, "ROWS", ["A01", "A02", "A04"])
    monkeypatch.setattr(check_hostile, "NOT_BUILT_MAX", 1)
    (folder / "TABLE.md").write_text(table)
    (folder / "test_a.py").write_text(tests)
    return check_hostile.findings(folder)


def test_a_good_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check(monkeypatch, tmp_path, TABLE, TESTS) == []


@pytest.mark.parametrize("words", FAULTS)
def test_each_fault_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str) -> None:
    found = check(monkeypatch, tmp_path, *FAULTS[words])
    assert any(words in line for line in found), found


def test_our_table() -> None:
    assert check_hostile.findings(check_hostile.ROOT / "tests" / "hostile") == []
