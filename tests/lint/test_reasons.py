"""Every reason that the code can give is in the table of proto/README.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("core", "backends", "scheduler", "proto", "daemon")
GIVEN = re.compile(r'HR_E_[A-Z_]+,\s*"([A-Z][A-Z_0-9]+)"')


def test_reasons_are_documented() -> None:
    table = (ROOT / "proto" / "README.md").read_text()
    given = {
        (reason, str(path.relative_to(ROOT)))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.c")
        for reason in GIVEN.findall(path.read_text())
    }
    assert len(given) > 50
    missing = sorted(
        f"{reason} ({path})" for reason, path in given if not re.search(rf"\b{reason}\b", table)
    )
    assert not missing
