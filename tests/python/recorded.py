"""Reads the recorded operator cases: tensors, parameters and, on demand, their data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def folder() -> Path | None:
    """Where the recorded cases lie: HEADRACE_GOLDEN, or golden/ops beside the checkout."""
    places = [ROOT.parent / "shared" / "golden" / "ops", ROOT / "shared" / "golden" / "ops"]
    if os.environ.get("HEADRACE_GOLDEN"):
        places.insert(0, Path(os.environ["HEADRACE_GOLDEN"]) / "ops")
    return next((place for place in places if place.is_dir()), None)


@dataclass(frozen=True)
class GoldenTensor:
    """One T line."""

    index: int
    role: str
    op: str
    sub: str
    type: int
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int]
    view_of: int
    view_offset: int
    stored: bool
    extra: int
    sources: tuple[int, ...]
    params: tuple[int, ...]


@dataclass(frozen=True)
class GoldenCase:
    """One case of a family."""

    family: str
    number: int
    op: str
    metric: str
    tolerance: float
    out: int
    label: str
    tensors: tuple[GoldenTensor, ...]


def cases(place: Path, family: str) -> list[GoldenCase]:
    """All cases of a family."""
    found: list[GoldenCase] = []
    head: list[str] = []
    tensors: list[GoldenTensor] = []
    for line in (place / f"{family}.txt").read_text().splitlines():
        word = line.split(" ")
        if word[0] == "C":
            head, tensors = word, []
        elif word[0] == "T":
            tensors.append(_tensor(word))
        elif word[0] == "E":
            found.append(
                GoldenCase(
                    family,
                    int(head[1]),
                    head[2],
                    head[3],
                    float(head[4]),
                    int(head[8]),
                    head[9],
                    tuple(tensors),
                )
            )
    return found


def _quad(words: list[str]) -> tuple[int, int, int, int]:
    a, b, c, d = map(int, words)
    return a, b, c, d


def _tensor(word: list[str]) -> GoldenTensor:
    count = int(word[20])
    params = word[21 + count]
    return GoldenTensor(
        index=int(word[1]),
        role=word[2],
        op=word[3],
        sub=word[4],
        type=int(word[6]),
        ne=_quad(word[7:11]),
        nb=_quad(word[11:15]),
        view_of=int(word[16]),
        view_offset=int(word[17]),
        stored=word[18] == "1",
        extra=int(word[19]),
        sources=tuple(map(int, word[21 : 21 + count])),
        params=() if params == "-" else tuple(int(p, 16) for p in params.split(",")),
    )
