"""The wire without I/O: bytes in, events out. No sockets, no clock, no threads.

A Wire belongs to one connection. call() gives the frames of a request; upload() gives the next
frame of a body that is too long for one, as far as credit reaches. Received bytes go in through
feed(), or, without a copy, into buffer() followed by received(): a reply's body is read straight
into the memory that the caller of call() named, or into memory made for it.

States of a call:  open -> (uploading) -> reply begun -> ended. An ended call is forgotten; a reply
to a call that is not known is a protocol error, a reply to an abandoned one is skipped.
"""

from __future__ import annotations

import enum
import functools
import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from headrace import headrace_pb2 as pb
from headrace.errors import HeadraceError, ProtocolError, error_class

HEADER_BYTES = 32
VERSION = 1
REPLY = 0x80
PUSH_ID = 1 << 63
MESSAGE_BYTES_MAX = 65536
BODY_BYTES_MAX = 4 << 20
READ_BYTES = 16384
PROTOCOL = 1

END, MORE, ERROR, NOREPLY, FDS = 1, 2, 4, 8, 16

_HEADER = struct.Struct("<2sBBHHQIII")
_CRC = struct.Struct("<I")

Buffer = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    """Message numbers of requests; a reply adds REPLY."""

    HELLO = 1
    PING = 2
    CANCEL = 3
    CREDIT = 4
    DATA = 5
    GOAWAY = 6
    PROGRESS = 7
    DEVICES = 16
    OPS = 17
    WEIGHTS_QUERY = 32
    WEIGHTS_PUT = 33
    WEIGHTS_PUT_FD = 34
    WEIGHTS_LOAD = 35
    WEIGHTS_LIST = 36
    WEIGHTS_DROP = 37
    WEIGHTS_TENSORS = 38
    WEIGHTS_PURGE = 39
    STATE_ALLOC = 48
    STATE_READ = 49
    STATE_WRITE = 50
    STATE_SAVE = 51
    STATE_RESTORE = 52
    STATE_FORK = 53
    STATE_FREE = 54
    REGION_ADD = 64
    REGION_DROP = 65
    SUBMIT = 80
    RESERVE = 81
    EXPLAIN = 82
    RELEASE = 83
    RUN = 96
    SEQUENCE = 97
    SYNC = 98
    TAP = 99
    STATUS = 112
    STATS = 113
    QUOTA = 114
    TRACE = 115
    RELOAD = 116
    DRAIN = 117
    EVICT = 118
    HEALTH = 119
    METRICS = 120
    SESSIONS = 121
    PLANS = 122
    QUOTAS = 123


_PUSHES = (Kind.CREDIT, Kind.GOAWAY, Kind.PROGRESS, Kind.TAP)


# ---- CRC-32C -------------------------------------------------------------------------------------


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data: Buffer) -> int:
    """CRC-32C (Castagnoli) of any bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _position_tables(length: int) -> tuple[int, list[list[int]]]:
    """For a fixed length the CRC is a constant xor one table entry per byte and position."""
    tables = [list(_TABLE)]
    for _ in range(length - 1):
        tables.append([crc >> 8 ^ _TABLE[crc & 0xFF] for crc in tables[-1]])
    return crc32c(bytes(length)), tables[::-1]


_CRC_ZERO, _CRC_TABLES = _position_tables(28)


def header_crc(header: Buffer) -> int:
    """CRC-32C of exactly 28 bytes."""
    return functools.reduce(operator.xor, map(operator.getitem, _CRC_TABLES, header), _CRC_ZERO)


# ---- frames --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """A frame's header."""

    type: int
    flags: int
    call_id: int
    message_bytes: int
    body_bytes: int
    timeout_ms: int = 0


def encode_header(
    type: int,
    flags: int,
    call_id: int,
    message_bytes: int,
    body_bytes: int,
    timeout_ms: int,
    fd_count: int = 0,
) -> bytes:
    """The 32 bytes of a header."""
    head = _HEADER.pack(
        b"HR", VERSION, type, flags, fd_count, call_id, message_bytes, body_bytes, timeout_ms
    )
    return head + _CRC.pack(header_crc(head))


def decode_header(data: Buffer) -> Header:
    """Checks all that can be checked of 32 bytes; ProtocolError tells what is wrong."""
    magic, version, type, flags, fds, call_id, message_bytes, body_bytes, timeout = (
        _HEADER.unpack_from(data)
    )
    if magic != b"HR":
        raise ProtocolError("a frame does not begin with HR", reason="BAD_MAGIC")
    if version != VERSION:
        raise ProtocolError(f"framing version {version}", reason="BAD_VERSION")
    if _CRC.unpack_from(data, 28)[0] != header_crc(data[:28]):
        raise ProtocolError("a frame header's checksum is wrong", reason="BAD_HEADER_CRC")
    if not type & REPLY and type not in _PUSHES:
        raise ProtocolError(f"frame type {type} from the daemon", reason="BAD_TYPE")
    if flags & ~31 or flags & FDS or fds:
        raise ProtocolError(f"frame flags {flags:#x}, {fds} descriptors", reason="BAD_FLAGS")
    if message_bytes > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a message of {message_bytes} bytes", reason="MESSAGE_TOO_LONG")
    if body_bytes > BODY_BYTES_MAX:
        raise ProtocolError(f"a body of {body_bytes} bytes", reason="BODY_TOO_LONG")
    return Header(type, flags, call_id, message_bytes, body_bytes, timeout)


# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """A call has ended well. body: its memory, `into` where that was given."""

    call_id: int
    message: bytes
    body: memoryview


@dataclass(frozen=True, slots=True)
class Part:
    """One of several replies to a call that asked for them; the last one is its Reply."""

    call_id: int
    message: bytes
    body: memoryview


@dataclass(frozen=True, slots=True)
class Failure:
    """A call has ended badly; call_id 0: no call of ours is meant."""

    call_id: int
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Credit:
    """The call may send `bytes` more of its body; of contents that are pulled: from `offset` on."""

    call_id: int
    bytes: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call is."""

    call_id: int
    done: int
    total: int
    phase: str


@dataclass(frozen=True, slots=True)
class Tapped:
    """An observed run waits at a tap, until answer(). body: the tensor's bytes."""

    call_id: int
    tap: int
    tensor: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class GoingAway:
    """The daemon drains and takes no new requests."""

    reason: str
    retry_after: float


Event = Reply | Part | Failure | Credit | Progress | Tapped | GoingAway


class Source(Protocol):
    """Contents that the daemon asks for by offset."""

    def __len__(self) -> int: ...

    def slice(self, offset: int, size: int) -> Sequence[memoryview]:
        """The `size` bytes from `offset` on."""
        ...


@dataclass(slots=True)
class _Tap:
    """A push that is arriving."""

    tap: int
    tensor: int
    left: int
    pieces: list[bytearray] = field(default_factory=list)


@dataclass(slots=True)
class Call:
    """A request under way; a Wire's own."""

    call_id: int
    kind: int
    into: memoryview | None
    parts: bool = False
    frames: list[Buffer] = field(default_factory=list)
    body: list[memoryview] = field(default_factory=list)
    left: int = 0
    credit: int = 0
    sent: int = 0
    begun: bool = False
    abandoned: bool = False
    message: bytes = b""
    filled: int = 0
    taken: int = 0
    pieces: list[bytearray] = field(default_factory=list)
    tap: _Tap | None = None
    pull: Source | None = None
    resume: bool = False
    ranges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def uploading(self) -> bool:
        """Part of the body has not been handed out yet, or more of it may be asked for."""
        return self.left > 0 or self.pull is not None


_EMPTY = memoryview(b"")


def _flat(body: Buffer) -> memoryview:
    view = memoryview(body)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class Wire:
    """One connection's protocol state. Not thread-safe."""

    def __init__(self) -> None:
        self.body_max = 1 << 20
        self.message_max = MESSAGE_BYTES_MAX
        self.calls: dict[int, Call] = {}
        self.closed = False
        self._next_id = 1
        self._scratch = bytearray(HEADER_BYTES + MESSAGE_BYTES_MAX + READ_BYTES)
        self._view = memoryview(self._scratch)
        self._start = 0
        self._end = 0
        self._header: Header | None = None
        self._body: memoryview = _EMPTY
        self._body_at = 0
        self._events: list[Event] = []

    # ---- sending -------------------------------------------------------------------------------

    def call(
        self,
        kind: int,
        message: bytes,
        body: Sequence[Buffer] = (),
        *,
        pull: Source | None = None,
        resume: bool = False,
        fd_count: int = 0,
        timeout_ms: int = 0,
        into: memoryview | None = None,
        parts: bool = False,
    ) -> Call:
        """Begins a request. Send call.frames in order; while call.uploading, send upload(call).

        A body of at most body_max bytes travels in the request's frame; a longer one, whose total
        the message has declared, follows under credit. `pull`: contents that follow the body, as
        the daemon asks for them by offset; with `resume` only the reply tells that it wants no more.
        `fd_count`: descriptors that the caller sends along with the first byte.
        `parts`: every frame of the reply is a reply of its own, one after the other in `into`.
        """
        if len(message) > self.message_max:
            raise ValueError(f"a message of {len(message)} bytes, at most {self.message_max}")
        views = [_flat(part) for part in body if len(part)]
        total = sum(map(len, views))
        call = Call(self._next_id, kind, into, parts, resume=resume)
        self._next_id += 1
        inline = views if total <= self.body_max else []
        size = total if inline else 0
        call.body = [] if inline else views
        call.left = total - size
        call.pull = pull if pull is not None and len(pull) else None
        flags = (MORE if call.uploading else END) | (FDS if fd_count else 0)
        head = encode_header(kind, flags, call.call_id, len(message), size, timeout_ms, fd_count)
        call.frames = [head + message, *inline]
        self.calls[call.call_id] = call
        return call

    def upload(self, call: Call) -> list[Buffer]:
        """The next DATA frame, empty while there is no credit."""
        size = min(call.left, call.credit, self.body_max)
        if call.pull is not None and call.left == 0:
            return self._pulled(call, call.pull)
        if size == 0:
            return []
        parts: list[Buffer] = []
        need = size
        while need:
            piece = call.body[0][:need]
            need -= len(piece)
            parts.append(piece)
            if len(piece) == len(call.body[0]):
                call.body.pop(0)
            else:
                call.body[0] = call.body[0][len(piece) :]
        message = pb.Data(offset=call.sent).SerializeToString()
        call.sent += size
        call.left -= size
        call.credit -= size
        flags = MORE if call.uploading else END
        head = encode_header(Kind.DATA, flags, call.call_id, len(message), size, 0)
        return [head + message, *parts]

    def _pulled(self, call: Call, source: Source) -> list[Buffer]:
        """The next frame of what the daemon has asked for."""
        if not call.ranges:
            return []
        offset, length = call.ranges[0]
        size = min(length, self.body_max)
        if size == length:
            call.ranges.pop(0)
        else:
            call.ranges[0] = (offset + size, length - size)
        is_last = not call.resume and offset + size == len(source)
        if is_last:
            call.pull = None
        message = pb.Data(offset=offset).SerializeToString()
        flags = END if is_last else MORE
        head = encode_header(Kind.DATA, flags, call.call_id, len(message), size, 0)
        return [head + message, *source.slice(offset, size)]

    def cancel(self, call_id: int) -> list[Buffer]:
        """A CANCEL whose answer nobody waits for."""
        message = pb.Cancel(request_id=call_id).SerializeToString()
        call = self.call(Kind.CANCEL, message)
        call.abandoned = True
        return call.frames

    def answer(self, call_id: int, tap: int, *, stop: bool) -> list[Buffer]:
        """Lets a run that waits at a tap go on, or ends it. Nobody waits for the answer to that."""
        message = pb.Tap(run=call_id, tap=tap, stop=stop).SerializeToString()
        call = self.call(Kind.TAP, message)
        call.abandoned = True
        return call.frames

    def abandon(self, call_id: int) -> None:
        """Nobody waits for this call any more: its reply is skipped when it comes."""
        call = self.calls.get(call_id)
        if call is not None:
            call.abandoned = True
            call.left, call.body = 0, []
            call.pull = None

    # ---- receiving -----------------------------------------------------------------------------

    def feed(self, data: Buffer) -> list[Event]:
        """Takes received bytes, by copy."""
        events: list[Event] = []
        view = _flat(data)
        while len(view):
            target = self.buffer()
            count = min(len(target), len(view))
            target[:count] = view[:count]
            view = view[count:]
            events += self.received(count)
        return events

    def buffer(self) -> memoryview:
        """Where the next received bytes belong; never empty. Valid until received()."""
        if self._body_at < len(self._body):
            return self._body[self._body_at :]
        if self._start == self._end:
            self._start = self._end = 0
        elif len(self._scratch) - self._end < READ_BYTES:
            kept = self._end - self._start
            self._scratch[:kept] = self._scratch[self._start : self._end]
            self._start, self._end = 0, kept
        return self._view[self._end : min(self._end + READ_BYTES, len(self._scratch))]

    def received(self, count: int) -> list[Event]:
        """`count` bytes were put at the start of buffer(). Raises ProtocolError, for good."""
        if self.closed:
            raise ProtocolError("the connection has failed", reason="PROTOCOL")
        try:
            if self._body_at < len(self._body):
                self._body_at += count
                if self._body_at == len(self._body):
                    self._frame_done()
            else:
                self._end += count
                while self._advance():
                    pass
        except ProtocolError:
            self.closed = True
            raise
        events, self._events = self._events, []
        return events

    def _advance(self) -> bool:
        """Takes one frame, or as much of its body as is there; False when bytes are missing."""
        have = self._end - self._start
        if self._header is None:
            if have < HEADER_BYTES:
                return False
            head = decode_header(self._view[self._start : self._start + HEADER_BYTES])
            self._header = head
        else:
            head = self._header
        if have < HEADER_BYTES + head.message_bytes:
            return False
        at = self._start + HEADER_BYTES
        message = bytes(self._view[at : at + head.message_bytes])
        self._start = at + head.message_bytes
        self._body = self._destination(head, message)
        self._body_at = min(len(self._body), self._end - self._start)
        if self._body_at:
            self._body[: self._body_at] = self._view[self._start : self._start + self._body_at]
            self._start += self._body_at
        if self._body_at < len(self._body):
            return False
        self._frame_done()
        return True

    def _destination(self, head: Header, message: bytes) -> memoryview:
        """Where this frame's body goes; notes the message in its call."""
        call = self.calls.get(head.call_id)
        if head.type == Kind.TAP:
            return self._tapped(head, message, call)
        if call is not None and call.tap is not None:
            if head.type != Kind.DATA | REPLY or head.flags & ERROR:
                raise ProtocolError(f"frame type {head.type} inside a tap", reason="BAD_TYPE")
            return self._tap_piece(call.tap, head.body_bytes)
        if head.type in _PUSHES:
            self._pushed(head, message, call)
            if head.body_bytes:
                raise ProtocolError("a push with a body", reason="PROTOCOL")
            return _EMPTY
        if call is None:
            if not head.flags & ERROR:
                raise ProtocolError(
                    f"a reply to call {head.call_id}, which is not open", reason="BAD_ID"
                )
            self._events.append(Failure(0, self._error(head, message)))
            return memoryview(bytearray(head.body_bytes))
        expected = Kind.DATA | REPLY if call.begun else call.kind | REPLY
        if head.flags & ERROR:
            call.message = message
        elif head.type != expected:
            raise ProtocolError(
                f"frame type {head.type} where {expected} was due", reason="BAD_TYPE"
            )
        elif not call.begun:
            call.message, call.begun = message, not call.parts
        if call.into is not None and not head.flags & ERROR:
            end = call.filled + head.body_bytes
            if end > len(call.into):
                raise ProtocolError(
                    f"a reply of more than {len(call.into)} bytes", reason="BODY_TOO_LONG"
                )
            target = call.into[call.filled : end]
            call.filled = end
            return target
        if not head.body_bytes:
            return _EMPTY
        piece = bytearray(head.body_bytes)
        if not call.abandoned:
            call.pieces.append(piece)
        return memoryview(piece)

    def _tapped(self, head: Header, message: bytes, call: Call | None) -> memoryview:
        if call is None or call.kind != Kind.RUN or call.begun or call.tap is not None:
            raise ProtocolError("a tap of no run that is under way", reason="PROTOCOL")
        push = parse(pb.TapPush, message)
        call.tap = _Tap(push.tap, push.tensor, push.bytes)
        return self._tap_piece(call.tap, head.body_bytes)

    def _tap_piece(self, tap: _Tap, size: int) -> memoryview:
        if size > tap.left:
            raise ProtocolError("a tap of more bytes than it announced", reason="BODY_TOO_LONG")
        tap.left -= size
        piece = bytearray(size)
        tap.pieces.append(piece)
        return memoryview(piece)

    def _frame_done(self) -> None:
        """A frame is complete: ends its call if this was the last."""
        head, self._header = self._header, None
        self._body, self._body_at = _EMPTY, 0
        assert head is not None
        call = self.calls.get(head.call_id)
        if call is not None and call.tap is not None:
            tap = call.tap
            if tap.left == 0:
                call.tap = None
                if not call.abandoned:
                    body = memoryview(b"".join(tap.pieces))
                    self._events.append(Tapped(call.call_id, tap.tap, tap.tensor, body))
            return
        if head.type in _PUSHES or call is None:
            return
        if head.flags & ERROR:
            del self.calls[head.call_id]
            if not call.abandoned:
                self._events.append(Failure(head.call_id, self._error(head, call.message)))
        elif not head.flags & MORE:
            del self.calls[head.call_id]
            if not call.abandoned:
                self._events.append(Reply(head.call_id, call.message, _joined(call)))
        elif call.parts and not call.abandoned:
            self._events.append(Part(head.call_id, call.message, _joined(call)))
            call.pieces = []
            call.taken = call.filled

    def _pushed(self, head: Header, message: bytes, call: Call | None) -> None:
        if head.type == Kind.GOAWAY:
            goaway = parse(pb.GoAway, message)
            self._events.append(GoingAway(goaway.reason, goaway.retry_after_ms / 1000))
            return
        if head.type == Kind.PROGRESS:
            progress = parse(pb.Progress, message)
            if call is not None and not call.abandoned:
                self._events.append(
                    Progress(
                        head.call_id, progress.done_bytes, progress.total_bytes, progress.phase
                    )
                )
            return
        granted = parse(pb.Credit, message)
        if call is None:
            return
        if call.pull is not None and call.left == call.credit:
            self._asked(call, len(call.pull), granted.offset, granted.bytes)
        else:
            call.credit += granted.bytes
        self._events.append(Credit(head.call_id, granted.bytes, granted.offset))

    def _asked(self, call: Call, total: int, offset: int, size: int) -> None:
        if offset + size > total:
            raise ProtocolError(f"bytes beyond {total} are asked for", reason="PROTOCOL")
        if call.ranges and sum(call.ranges[-1]) == offset:
            offset, size = call.ranges[-1][0], call.ranges.pop()[1] + size
        call.ranges.append((offset, size))

    def _error(self, head: Header, message: bytes) -> HeadraceError:
        e = parse(pb.Error, message)
        code = e.code or head.timeout_ms
        return error_class(code, e.reason)(
            e.words,
            reason=e.reason,
            code=code,
            node=e.node if e.has_node else None,
            tensor=e.tensor if e.has_tensor else None,
            field=e.field,
            limit=e.limit,
            actual=e.actual,
            retry_after=e.retry_after_ms / 1000,
            digest=e.digest,
            written=tuple(e.written),
            step=e.step if e.has_step else None,
            traceparent=e.traceparent,
        )


def _joined(call: Call) -> memoryview:
    if call.into is not None:
        return call.into[call.taken : call.filled]
    if len(call.pieces) == 1:
        return memoryview(call.pieces[0])
    return memoryview(b"".join(call.pieces))


M = TypeVar("M", bound=Message)


def parse(kind: type[M], message: Buffer) -> M:
    """A message of the daemon's; ProtocolError when it is none."""
    result = kind()
    try:
        result.ParseFromString(bytes(message))
    except DecodeError as error:
        raise ProtocolError(f"{kind.__name__}: {error}", reason="PROTOCOL") from None
    return result
