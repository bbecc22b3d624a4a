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
def replayed(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon that nobody has asked anything yet, configured as for the recording."""
    calls = getattr(request.node, "callspec", None)
    file = calls.params.get("file") if calls is not None else None
    sections = record.SECTIONS.get(file.stem, {}) if file is not None else {}
    with Daemon(devices=record.DEVICES, tcp=True, sections=sections) as daemon:
        yield daemon


def test_every_conversation_is_there() -> None:
    assert {file.stem for file in FILES} == set(record.CONVERSATIONS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_replay(replayed: Daemon, kind: str, file: Path) -> None:
    if kind == "tcp" and file.stem in record.LOCAL:
        pytest.skip("memory is passed over Unix sockets")
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


def frame_types() -> dict[str, str]:
    header = (ROOT / "proto" / "frame.h").read_text()
    return dict(re.findall(r"HR_FRAME_(\w+) = (\d+),", header))


def examples() -> list[tuple[str, str, str]]:
    """(conversation, mark, bytes) of what PROTOCOL.md shows; `...` at the end of a frame that is cut."""
    text = (ROOT / "proto" / "PROTOCOL.md").read_text()
    found = re.findall(r"^```hex(?: (\w+))? ([<>~])\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(name or "first", mark, re.sub(r"\s", "", body)) for name, mark, body in found]


def test_examples_are_recorded() -> None:
    told = {file.stem: list(streams.parse(file)) for file in FILES}
    for name, mark, body in examples():
        whole, _, cut = body.partition("...")
        assert not cut and any(
            mark == m and (line == body or (body != whole and line.startswith(whole)))
            for m, line in told[name]
        ), f"{name} {mark} {body[:80]}"


def directions(shown: set[tuple[str, int]]) -> None:
    """Each request, each reply, and what the daemon says unasked."""
    pushes = {4, 6, 7, 99}
    asked = {int(number) for number in frame_types().values()} - {4, 6, 7}
    assert {number for mark, number in shown if mark == ">"} >= asked
    assert {number & 0x7F for mark, number in shown if mark == "<" and number & 0x80} >= asked
    assert {number for mark, number in shown if mark in "<~" and not number & 0x80} >= pushes


def test_every_frame_type_is_recorded_and_shown() -> None:
    """A type that the code has and these lack is one that no other client can be written for."""
    directions({
        (mark, int(line[6:8], 16)) for file in FILES for mark, line in streams.parse(file)
        if mark in ("<", ">", "~")
    })  # fmt: skip
    directions({(mark, int(body[6:8], 16)) for _, mark, body in examples()})


def test_numbers_of_the_protocol() -> None:
    numbers = frame_types()
    text = (ROOT / "proto" / "PROTOCOL.md").read_text()
    shown = {name: number for number, name in re.findall(r"\| (\d+) \| ([A-Z_]+) ", text)}
    assert shown == numbers
    assert len(set(numbers.values())) == len(numbers)
