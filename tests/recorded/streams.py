"""Recorded conversations: what a client of a released version sends, and what it was answered.

A file is text. `#` begins a comment; `> HEX` is a frame of the client's, header, message and body;
`< HEX` is the daemon's. Inside a frame of the client's `{name}` stands for the eight bytes of a
handle; after a frame of the daemon's `= name` says that its message's `handle` (or its set's) has
that name from here on. `@ HEX` is memory that is passed with the client's next frame, sealed, and
`@w HEX` memory that the daemon may write, too (Unix sockets only). `~ HEX` is a push of the daemon's
(CREDIT, PROGRESS, GOAWAY): how often and when they come may change, but one of that type for that
request comes.

A daemon of any later version must answer a replay alike: the same types, flags, ids, error codes
and reasons, the same bytes in bodies, the same values in messages but for what is never the same
(VOLATILE); fields that the recording does not know are no difference.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import raw

FOLDER = Path(__file__).resolve().parent / "v1"
# Of the daemon, the machine, the moment; words, which are for people; the length of a message that is
# a body, which later fields make longer.
VOLATILE = {
    "handle", "boot_id", "session_token", "daemon_version", "features", "limits", "devices",
    "epoch", "queue_ns", "run_ns", "users", "words", "staging_bytes", "retry_after_ms", "reallocs",
    "explanation_bytes",
    "version", "principal", "pid", "uptime_ms", "age_ms", "beats", "health", "ready", "connections", "sessions",
    "device_bytes", "bytes", "stats_bytes", "quota_bytes", "trace_bytes", "metrics_bytes", "tap_ns",
}  # fmt: skip
# Replies whose bodies hold figures of the moment.
MOMENTARY = {
    raw.STATS, raw.LIST, raw.EXPLAIN, raw.SESSIONS, raw.PLANS, raw.QUOTAS, raw.QUOTA, raw.TRACE,
    raw.METRICS,
}  # fmt: skip
PUSHES = (raw.CREDIT, raw.PROGRESS, raw.GOAWAY)
SEALS, WRITE_SEAL = 7, 8


def send_with(sock: Any, data: bytes, content: bytes, is_writable: bool) -> None:
    """A frame with a memfd of that content."""
    fd = os.memfd_create("recorded", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | (0 if is_writable else WRITE_SEAL))
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))
        assert sock.sendmsg([data], [rights]) == len(data)
    finally:
        os.close(fd)


class Recorder(raw.Conn):
    """A connection that writes down what passes."""

    def __init__(self, address: str, notes: str, features: tuple[str, ...] = ()) -> None:
        """features: none, and pushes are not recorded."""
        self.lines = [f"# {line}" for line in notes.splitlines()]
        self.names: dict[bytes, str] = {}
        self.pushed: set[tuple[int, int]] | None = set() if features else None
        super().__init__(address, hello=not features)
        if features:
            hello = raw.pb.Hello(protocol_min=1, protocol_max=1, features=features)
            self.greeting, _ = self.call(raw.HELLO, hello)
            self.body_max = self.greeting.limits.body_bytes_max

    def comment(self, words: str) -> None:
        self.lines.append(f"# {words}")

    def raw(self, data: bytes) -> None:
        text = data.hex()
        for handle, name in self.names.items():
            text = text.replace(handle.hex(), f"{{{name}}}")
        self.lines.append(f"> {text}")
        super().raw(data)

    def frame(self) -> raw.Frame:
        frame = super().frame()
        is_push = frame.type in PUSHES
        if is_push and (self.pushed is None or (frame.type, frame.call_id) in self.pushed):
            return frame
        if is_push and self.pushed is not None:
            self.pushed.add((frame.type, frame.call_id))
        head = raw.header(
            frame.type, frame.call_id, len(frame.message), len(frame.body), frame.flags, frame.code
        )
        mark = "~" if is_push else "<"
        self.lines.append(f"{mark} {(head + frame.message + frame.body).hex()}")
        handle = 0 if is_push else handle_of(frame)
        if handle:
            name = f"h{len(self.names) + 1}"
            self.names[struct.pack("<Q", handle)] = name
            self.lines.append(f"= {name}")
        return frame

    def call_with(
        self, type: int, message: Any, body: bytes, content: bytes, is_writable: bool
    ) -> Any:
        """A request that passes memory, and its reply's message."""
        data = message.SerializeToString()
        call_id = next(self.ids)
        head = raw.header(
            type, call_id, len(data), len(body), raw.END | raw.FDS, n_fds=1
        )
        self.lines += [f"{'@w' if is_writable else '@'} {content.hex()}", f"> {(head + data + body).hex()}"]
        send_with(self.socket, head + data + body, content, is_writable)
        return self.reply(call_id)[0]

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class Replayed(raw.Conn):
    """A connection that notes which pushes have come."""

    def __init__(self, address: str) -> None:
        self.pushed: set[tuple[int, int]] = set()
        super().__init__(address, hello=False)

    def frame(self) -> raw.Frame:
        frame = super().frame()
        if frame.type in PUSHES:
            self.pushed.add((frame.type, frame.call_id))
        return frame


def message_of(frame: raw.Frame) -> Any:
    """The message of a reply, or None for a type that has none here."""
    if frame.flags & raw.ERROR:
        return raw.pb.Error.FromString(frame.message)
    if frame.type == raw.TAP:
        return raw.pb.TapPush.FromString(frame.message)
    try:
        kind = raw.REPLIES[frame.type & ~raw.REPLY]
    except KeyError:
        return None
    return kind.FromString(frame.message)


def handle_of(frame: raw.Frame) -> int:
    message = message_of(frame)
    if message is None or frame.flags & raw.ERROR:
        return 0
    names = {field.name for field in message.DESCRIPTOR.fields}
    if "handle" in names:
        return int(message.handle)
    return int(message.set.handle) if "set" in names else 0


def parse(path: Path) -> Iterator[tuple[str, str]]:
    """(mark, text) line by line, without comments."""
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            mark, _, text = line.partition(" ")
            yield mark, text


def frame_of(data: bytes) -> raw.Frame:
    """A recorded frame."""
    magic, version, type, flags, _, call_id, message_bytes, body_bytes, code = struct.unpack(
        "<2sBBHHQIII", data[:28]
    )
    assert (magic, version) == (b"HR", 1)
    assert len(data) == 32 + message_bytes + body_bytes
    assert struct.unpack("<I", data[28:32])[0] == raw.crc32c(data[:28])
    return raw.Frame(
        type, flags, call_id, code, data[32 : 32 + message_bytes], data[32 + message_bytes :]
    )


def difference(was: Any, now: Any) -> str | None:
    """The first field of `was` that `now` answers otherwise."""
    for field, value in was.ListFields():
        if field.name in VOLATILE:
            continue
        other = getattr(now, field.name)
        if hasattr(value, "ListFields"):
            found = difference(value, other)
            if found:
                return f"{field.name}.{found}"
        elif field.message_type is not None:
            if len(value) != len(other):
                return f"{field.name}: {len(value)} and {len(other)}"
            for one, two in zip(value, other, strict=True):
                found = difference(one, two)
                if found:
                    return f"{field.name}.{found}"
        elif value != other:
            return f"{field.name}: {value!r} and {other!r}"
    return None


def compare(was: raw.Frame, now: raw.Frame) -> None:
    """AssertionError unless the answers are alike."""
    assert (now.type, now.flags, now.call_id, now.code) == (
        was.type, was.flags, was.call_id, was.code,
    )  # fmt: skip
    if was.type & ~raw.REPLY not in MOMENTARY or was.flags & raw.ERROR:
        assert now.body == was.body
    then = message_of(was)
    if then is not None:
        found = difference(then, message_of(now))
        assert found is None, found


def replay(path: Path, address: str) -> int:
    """Has a daemon answer a recording; returns the number of its frames."""
    names: dict[str, str] = {}
    frames = 0
    due: set[tuple[int, int]] = set()
    memory: tuple[bytes, bool] | None = None
    with Replayed(address) as conn:
        latest: raw.Frame | None = None
        for mark, text in parse(path):
            if mark == ">":
                data = bytes.fromhex(re.sub(r"\{(\w+)\}", lambda m: names[m.group(1)], text))
                sent = frame_of(data)
                while sent.type == raw.DATA and conn.credit.get(sent.call_id, 0) < len(sent.body):
                    assert conn.next_of(sent.call_id).type in (raw.CREDIT, raw.PROGRESS)
                if memory is None:
                    conn.raw(data)
                else:
                    send_with(conn.socket, data, *memory)
                    memory = None
            elif mark == "<":
                was = frame_of(bytes.fromhex(text))
                latest = conn.next_of(was.call_id)
                while latest.type in (raw.CREDIT, raw.PROGRESS):
                    latest = conn.next_of(was.call_id)
                compare(was, latest)
            elif mark == "~":
                push = frame_of(bytes.fromhex(text))
                due.add((push.type, push.call_id))
            elif mark in ("@", "@w"):
                memory = bytes.fromhex(text), mark == "@w"
            else:
                assert mark == "=" and latest is not None
                names[text] = struct.pack("<Q", handle_of(latest)).hex()
            frames += mark in (">", "<")
        while not due <= conn.pushed:
            conn.frame()
    return frames
