"""What a measurement hands back: rows, whether they meet their goal, and the machine they ran on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

GOAL = re.compile(r"^(>=|<=|>|<)\s*(\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?))?$")


@dataclass(frozen=True)
class Row:
    """`goal` speaks about the ratio to the peer where there is a peer, else about the value."""

    what: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    goal: str | None = None

    @property
    def ratio(self) -> float | None:
        if self.peer_value is None or self.peer_value == 0:
            return None
        return self.value / self.peer_value

    @property
    def met(self) -> bool | None:
        """None where there is no goal, or where the goal's peer could not be measured."""
        measured = self.ratio if self.peer else self.value
        if self.goal is None or measured is None:
            return None
        match = GOAL.match(self.goal)
        if match is None:
            raise ValueError(f"goal {self.goal!r} is not understood")
        bound = float(Fraction(match.group(2)) / Fraction(match.group(3) or 1))
        return {
            ">=": measured >= bound,
            "<=": measured <= bound,
            ">": measured > bound,
            "<": measured < bound,
        }[match.group(1)]

    def as_json(self) -> dict[str, object]:
        return {
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": self.peer_value,
            "ratio": self.ratio,
            "goal": self.goal,
            "met": self.met,
        }


def is_wanted(what: str) -> bool:
    """Whether `./bench --only` asks for a row of that name: one of its texts has no word that is not in it."""
    asked = [text for text in os.environ.get("HEADRACE_BENCH_ONLY", "").split("\n") if text]
    words = what.split()
    return not asked or any(set(text.split()) <= set(words) for text in asked)


def is_quick() -> bool:
    """`./bench --quick`: a first look."""
    return bool(os.environ.get("HEADRACE_BENCH_QUICK"))


def table(rows: list[Row]) -> str:
    """Aligned columns for a person."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"

    cells = [("what", "value", "unit", "peer", "peer value", "ratio", "goal", "met")]
    for row in rows:
        met = {None: "-", True: "yes", False: "NO"}[row.met]
        cells.append(
            (
                row.what, number(row.value), row.unit, row.peer or "-", number(row.peer_value),
                number(row.ratio), row.goal or "-", met,
            )
        )  # fmt: skip
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    right = {1, 4, 5}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def machine(build: Path) -> dict[str, object]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        cpu = match.group(1) if match else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "compiler": compiler_of(build),
        "load_before": os.getloadavg()[0],
    }


def compiler_of(build: Path) -> str:
    """What Meson configured the build folder with; where it was built elsewhere, the one that is here."""
    found = first_match(["meson", "introspect", "--compilers", str(build)], r'"full_version":\s*"([^"]+)"')
    return found or first_match(["cc", "--version"], "(.+)") or "unknown"


def first_match(command: list[str], pattern: str) -> str | None:
    """In what the command says; None where there is no such command."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.search(pattern, answer.stdout)
    return match.group(1) if match else None
