"""Every message that the codec can decode is decoded by a fuzzer."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DECODER = re.compile(r"\bhr_wire_(\w+)_decode\(")
# The macros of proto/operate.h and of fuzz_codec.c that make such names, and those of lists.
ONE = re.compile(r"^\s*(?:HR_WIRE_OPERATE_CODEC|AGAIN)\((\w+)\);", re.MULTILINE)
LIST = re.compile(r"^\s*(?:HR_WIRE_LIST_CODEC|LIST_AGAIN)\((\w+)\);", re.MULTILINE)


def decoders(text: str) -> set[str]:
    return {*DECODER.findall(text), *ONE.findall(text), *(f"{one}s" for one in LIST.findall(text))}


def test_every_decoder_is_fuzzed() -> None:
    headers = "".join(path.read_text() for path in (ROOT / "proto").glob("*.h"))
    fuzzers = "".join(path.read_text() for path in (ROOT / "tests" / "fuzz").glob("*.c"))
    there = decoders(headers) - {"x"}  # how the head of codec.h names them all
    assert len(there) > 40
    assert sorted(there - decoders(fuzzers)) == []
