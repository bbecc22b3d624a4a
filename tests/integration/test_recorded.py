"""Conversations of released versions, replayed: this daemon answers them alike. And the examples of
proto/PROTOCOL.md are what such a conversation holds, byte for byte.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tests" / "recorded") not in sys.path:
    sys.path.insert(0, str(ROOT / "tests" / "recorded"))

import record  # noqa: E402
import streams  # noqa: E402
from run_daemon import Daemon  # noqa: E402

FILES = sorted(streams.FOLDER.glob("*.txt"))


@pytest.fixture
def replayed() -> Iterator[Daemon]:
    """A daemon that nobody has asked anything yet."""
    with Daemon(devices=record.DEVICES, tcp=True) as daemon:
        yield daemon


def test_every_conversation_is_there() -> None:
    assert {file.stem for file in FILES} == set(record.CONVERSATIONS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_replay(replayed: Daemon, kind: str, file: Path) -> None:
    address = replayed.address if kind == "unix" else replayed.tcp_address
    assert address is not None
    assert streams.replay(file, address) >= 8


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x00\x00\x80\x40", b"\x00\x00\x80\x41"),  # a float of an output
        (b"x", b"y"),  # the name of a leaf: another digest
    ],
)
def test_another_answer_is_noticed(
    replayed: Daemon, tmp_path: Path, old: bytes, new: bytes
) -> None:
    """The comparison can fail: one byte of the recording is changed."""
    lines = (streams.FOLDER / "first.txt").read_text().splitlines()
    mark = "<" if len(old) > 1 else ">"
    at = next(
        i for i in range(len(lines) - 1, -1, -1) if lines[i][:1] == mark and old.hex() in lines[i]
    )
    head, tail = lines[at][: 2 + 64], lines[at][2 + 64 :]
    lines[at] = head + tail.replace(old.hex(), new.hex())
    changed = tmp_path / "changed.txt"
    changed.write_text("\n".join(lines))
    with pytest.raises(AssertionError):
        streams.replay(changed, replayed.address)


def test_examples_of_the_protocol() -> None:
    text = (ROOT / "proto" / "PROTOCOL.md").read_text()
    shown = [
        (mark, re.sub(r"\s", "", body))
        for mark, body in re.findall(r"^```hex ([<>])\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]
    first = [
        (mark, line) for mark, line in streams.parse(streams.FOLDER / "first.txt") if mark != "="
    ]
    assert len(shown) >= 8
    assert shown == first[: len(shown)]
    operate = [
        (mark, re.sub(r"\s", "", body))
        for mark, body in re.findall(
            r"^```hex operate ([<>])\n(.*?)^```", text, re.MULTILINE | re.DOTALL
        )
    ]
    told = list(streams.parse(streams.FOLDER / "operate.txt"))
    assert {int(body[6:8], 16) & 0x7F for _, body in operate} >= {112, 116, 117, 118, 119, 121, 122}
    assert all(one in told for one in operate)


def test_numbers_of_the_protocol() -> None:
    header = (ROOT / "proto" / "frame.h").read_text()
    numbers = {name: number for name, number in re.findall(r"HR_FRAME_(\w+) = (\d+),", header)}
    text = (ROOT / "proto" / "PROTOCOL.md").read_text()
    shown = {name: number for number, name in re.findall(r"\| (\d+) \| ([A-Z_]+) ", text)}
    assert shown == numbers
    assert len(set(numbers.values())) == len(numbers)
