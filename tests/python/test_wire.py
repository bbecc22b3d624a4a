"""The I/O-free core: framing, replies in pieces, uploads under credit, broken peers."""

from __future__ import annotations

import struct

import pytest
from headrace import errors, wire
from headrace import headrace_pb2 as pb
from headrace.errors import ProtocolError
from headrace.uploads import Pieces
from headrace.wire import (
    Call, Credit, Failure, GoingAway, Kind, Progress, Reply, Tapped, Wire,
)  # fmt: skip
from peer import END, MORE, crc32c, error_frame, frame


def test_crc_known_values() -> None:
    assert wire.crc32c(b"123456789") == 0xE3069283
    assert wire.crc32c(bytes(32)) == 0x8A9136AA
    for data in (bytes(28), bytes(range(28)), b"\xff" * 28):
        assert wire.header_crc(data) == wire.crc32c(data) == crc32c(data)


def test_request_is_one_frame() -> None:
    w = Wire()
    call = w.call(Kind.RUN, b"msg", [b"ab", memoryview(b"cde")], timeout_ms=77)
    assert b"".join(call.frames) == frame(96, call.call_id, b"msg", b"abcde", word=77)
    assert not call.uploading


def test_reply_byte_by_byte_and_all_at_once() -> None:
    for step in (1, 7, 33, 10_000):
        w = Wire()
        a, b = w.call(Kind.DEVICES, b""), w.call(Kind.PING, b"")
        data = frame(0x82, b.call_id, b"pong", b"xy") + frame(0x90, a.call_id, b"devs")
        events = []
        for at in range(0, len(data), step):
            events += w.feed(data[at : at + step])
        assert [(e.call_id, e.message, bytes(e.body)) for e in events if isinstance(e, Reply)] == [
            (b.call_id, b"pong", b"xy"),
            (a.call_id, b"devs", b""),
        ]
        assert not w.calls


def test_long_reply_goes_into_the_callers_memory() -> None:
    w = Wire()
    memory = bytearray(100_000)
    call = w.call(Kind.RUN, b"", into=memoryview(memory))
    data = bytes(i * 7 % 256 for i in range(100_000))
    events = []
    stream = frame(0xE0, call.call_id, b"m", data[:60_000], MORE) + frame(
        0x85, call.call_id, pb.Data(offset=60_000).SerializeToString(), data[60_000:]
    )
    direct = 0
    while stream:
        target = w.buffer()
        if len(target) > wire.READ_BYTES:
            direct += 1
        count = min(len(target), len(stream))
        target[:count] = stream[:count]
        stream = stream[count:]
        events += w.received(count)
    (reply,) = events
    assert isinstance(reply, Reply) and reply.message == b"m"
    assert bytes(memory) == data and direct >= 1


def test_long_reply_without_memory_is_joined() -> None:
    w = Wire()
    call = w.call(Kind.EXPLAIN, b"")
    (reply,) = w.feed(
        frame(0xD2, call.call_id, b"", b"one ", MORE)
        + frame(0x85, call.call_id, b"", b"two ", MORE)
        + frame(0x85, call.call_id, b"", b"three")
    )
    assert isinstance(reply, Reply) and bytes(reply.body) == b"one two three"


def test_reply_longer_than_the_memory_is_refused() -> None:
    w = Wire()
    call = w.call(Kind.RUN, b"", into=memoryview(bytearray(3)))
    with pytest.raises(errors.ProtocolError) as caught:
        w.feed(frame(0xE0, call.call_id, b"", b"four"))
    assert caught.value.reason == "BODY_TOO_LONG"


def test_upload_waits_for_credit() -> None:
    w = Wire()
    w.body_max = 10
    body = bytes(range(25))
    call = w.call(Kind.STATE_WRITE, b"w", [body[:3], body[3:]])
    assert b"".join(call.frames) == frame(50, call.call_id, b"w", flags=MORE)
    assert call.uploading and w.upload(call) == []
    grant = frame(4, call.call_id, pb.Credit(bytes=16).SerializeToString())
    assert w.feed(grant) == [Credit(call.call_id, 16)]
    first, second = (b"".join(w.upload(call)) for _ in range(2))
    assert w.upload(call) == []
    assert first == frame(5, call.call_id, b"", body[:10], MORE)
    assert second == frame(
        5, call.call_id, pb.Data(offset=10).SerializeToString(), body[10:16], MORE
    )
    w.feed(grant)
    assert b"".join(w.upload(call)) == frame(
        5, call.call_id, pb.Data(offset=16).SerializeToString(), body[16:], END
    )
    assert not call.uploading


def credit(call: Call, size: int, offset: int = 0) -> bytes:
    return frame(4, call.call_id, pb.Credit(bytes=size, offset=offset).SerializeToString())


def test_contents_follow_the_body_inline() -> None:
    w = Wire()
    call = w.call(Kind.WEIGHTS_PUT, b"p", [b"manifest"], pull=Pieces([b"data"]))
    assert b"".join(call.frames) == frame(33, call.call_id, b"p", b"manifest", MORE)
    w.feed(credit(call, 4))
    assert b"".join(w.upload(call)) == frame(5, call.call_id, b"", b"data", END)
    assert not call.uploading


def test_contents_behind_a_long_body() -> None:
    w = Wire()
    w.body_max = 5
    call = w.call(Kind.WEIGHTS_PUT, b"p", [b"manifest"], pull=Pieces([b"da", b"", b"ta"]))
    assert b"".join(call.frames) == frame(33, call.call_id, b"p", b"", MORE)
    w.feed(frame(4, call.call_id, pb.Credit(bytes=8).SerializeToString()))
    sent = [b"".join(w.upload(call)) for _ in range(2)]
    assert w.upload(call) == []
    w.feed(frame(4, call.call_id, pb.Credit(bytes=4).SerializeToString()))
    sent.append(b"".join(w.upload(call)))
    offset = pb.Data(offset=5).SerializeToString()
    assert sent == [
        frame(5, call.call_id, b"", b"manif", MORE),
        frame(5, call.call_id, offset, b"est", MORE),
        frame(5, call.call_id, b"", b"data", END),
    ]
    assert not call.uploading


def test_contents_go_where_the_daemon_asks() -> None:
    w = Wire()
    w.body_max = 4
    data = bytes(range(20))
    call = w.call(
        Kind.WEIGHTS_PUT, b"p", [b"m"], pull=Pieces([data[:7], data[7:]]), resume=True
    )  # fmt: skip
    w.feed(credit(call, 6, 12) + credit(call, 2, 18) + credit(call, 3, 5))
    sent = []
    while frames := w.upload(call):
        sent.append(b"".join(frames))
    wanted = [(12, 16), (16, 20), (5, 8)]
    assert sent == [
        frame(5, call.call_id, pb.Data(offset=a).SerializeToString(), data[a:b], MORE)
        for a, b in wanted
    ]
    assert call.uploading
    w.feed(frame(0xA1, call.call_id, b"", b"", END))
    w.feed(credit(call, 1, 0))  # crossed the reply


def test_asking_beyond_the_contents_is_a_protocol_error() -> None:
    w = Wire()
    call = w.call(Kind.WEIGHTS_PUT, b"p", [b"m"], pull=Pieces([b"data"]), resume=True)
    with pytest.raises(ProtocolError):
        w.feed(credit(call, 4, 1))


def test_error_reply_becomes_its_class() -> None:
    w = Wire()
    call = w.call(Kind.SUBMIT, b"")
    (failure,) = w.feed(
        error_frame(
            80,
            call.call_id,
            3,
            "SHAPE",
            "no",
            has_node=True,
            node=4,
            has_tensor=True,
            tensor=9,
            field="ne",
            limit=1,
            actual=2,
            retry_after_ms=1500,
            digest=b"d",
        )
    )
    assert isinstance(failure, Failure)
    e = failure.error
    assert type(e) is errors.InvalidArgument and isinstance(e, errors.RequestError)
    assert (e.code, e.reason, e.words, e.node, e.tensor, e.field) == (3, "SHAPE", "no", 4, 9, "ne")
    assert (e.limit, e.actual, e.retry_after, e.digest) == (1, 2, 1.5, b"d")
    assert "SHAPE" in str(e) and "node 4" in str(e)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (1, "CANCELLED", errors.Cancelled),
        (4, "DEADLINE", errors.DeadlineExceeded),
        (5, "NOT_FOUND", errors.NotFound),
        (8, "MEMORY", errors.Exhausted),
        (11, "INDEX", errors.OutOfRange),
        (12, "OP", errors.Unsupported),
        (13, "INTERNAL", errors.InternalError),
        (13, "FATAL", errors.DaemonFailed),
        (14, "UNAVAILABLE", errors.Unavailable),
        (14, "DEVICE_LOST", errors.DeviceLost),
        (14, "EOF", errors.ConnectionLost),
        (15, "DIGEST", errors.DataLoss),
        (16, "UNAUTHENTICATED", errors.Unauthenticated),
        (3, "BAD_MAGIC", errors.ProtocolError),
        (3, "ARITY", errors.InvalidArgument),
        (99, "", errors.UnknownError),
    ],
)
def test_error_classes(code: int, reason: str, kind: type[errors.HeadraceError]) -> None:
    assert errors.error_class(code, reason) is kind


def test_pushes() -> None:
    w = Wire()
    message = pb.GoAway(reason="DRAIN", retry_after_ms=250).SerializeToString()
    assert w.feed(frame(6, wire.PUSH_ID | 1, message)) == [GoingAway("DRAIN", 0.25)]
    # Credit for a call that has ended meanwhile is nothing to worry about.
    assert w.feed(frame(4, 12345, pb.Credit(bytes=1).SerializeToString())) == []


def test_an_error_for_no_call_of_ours() -> None:
    w = Wire()
    (failure,) = w.feed(error_frame(0, 1 << 63, 3, "BAD_MAGIC", "garbage"))
    assert isinstance(failure, Failure) and failure.call_id == 0
    assert isinstance(failure.error, errors.ProtocolError)


def test_abandoned_calls_are_skipped() -> None:
    w = Wire()
    a, b = w.call(Kind.SYNC, b""), w.call(Kind.SYNC, b"")
    w.abandon(a.call_id)
    events = w.feed(frame(0xE2, a.call_id, b"", b"late") + frame(0xE2, b.call_id))
    assert [e.call_id for e in events if isinstance(e, Reply)] == [b.call_id]
    assert not w.calls


def broken(offset: int, value: bytes) -> bytes:
    """A reply to call 1 with a part of its header replaced and the checksum made right."""
    data = bytearray(frame(0x82, 1)[:28])
    data[offset : offset + len(value)] = value
    return bytes(data) + struct.pack("<I", crc32c(bytes(data)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (broken(0, b"XX"), "BAD_MAGIC"),
        (broken(2, b"\x02"), "BAD_VERSION"),
        (frame(0x82, 1)[:28] + b"\0\0\0\0", "BAD_HEADER_CRC"),
        (broken(3, b"\x02"), "BAD_TYPE"),
        (broken(3, b"\x90"), "BAD_TYPE"),
        (broken(4, b"\x20"), "BAD_FLAGS"),
        (broken(6, b"\x01"), "BAD_FLAGS"),
        (broken(8, b"\x07"), "BAD_ID"),
        (broken(16, struct.pack("<I", 1 << 20)), "MESSAGE_TOO_LONG"),
        (broken(20, struct.pack("<I", 1 << 30)), "BODY_TOO_LONG"),
    ],
)
def test_broken_frames(data: bytes, reason: str) -> None:
    w = Wire()
    w.call(Kind.PING, b"")
    with pytest.raises(errors.ProtocolError) as caught:
        w.feed(data)
    assert caught.value.reason == reason
    with pytest.raises(errors.ProtocolError):
        w.feed(frame(0x82, 1))


def test_a_message_that_is_none() -> None:
    w = Wire()
    call = w.call(Kind.PING, b"")
    with pytest.raises(errors.ProtocolError):
        w.feed(frame(0x82, call.call_id, b"\xff\xff\xff", flags=5))


def test_taps_of_a_run() -> None:
    """In one frame, in three, and before the reply; nothing of another kind between the pieces."""
    w = Wire()
    call = w.call(Kind.RUN, b"")
    push = pb.TapPush(tap=0, tensor=5, bytes=3).SerializeToString()
    (shown,) = w.feed(frame(99, call.call_id, push, b"abc"))
    assert shown == Tapped(call.call_id, 0, 5, memoryview(b"abc"))
    answer = w.answer(call.call_id, 0, stop=False)
    told = pb.Tap(run=call.call_id, tap=0).SerializeToString()
    assert b"".join(answer) == frame(99, call.call_id + 1, told)
    assert w.feed(frame(99 | 0x80, call.call_id + 1, pb.TapReply(found=True).SerializeToString())) == []
    push = pb.TapPush(tap=1, tensor=6, bytes=5).SerializeToString()
    assert w.feed(frame(99, call.call_id, push, b"ab", flags=MORE)) == []
    assert w.feed(frame(0x85, call.call_id, b"", b"cd", flags=MORE)) == []
    (shown,) = w.feed(frame(0x85, call.call_id, b"", b"e"))
    assert shown == Tapped(call.call_id, 1, 6, memoryview(b"abcde"))
    (reply,) = w.feed(frame(0x80 | 96, call.call_id, b"m", b"out"))
    assert isinstance(reply, Reply) and reply.body == b"out"


@pytest.mark.parametrize("case", ["nobody", "twice", "long", "reply", "not a run"])
def test_taps_that_break_the_rules(case: str) -> None:
    w = Wire()
    call = w.call(Kind.SYNC if case == "not a run" else Kind.RUN, b"")
    push = pb.TapPush(tap=0, tensor=5, bytes=3).SerializeToString()
    frames = {
        "nobody": [frame(99, 77, push, b"abc")],
        "twice": [frame(99, call.call_id, push, b"a", flags=MORE)] * 2,
        "long": [frame(99, call.call_id, push, b"abcd")],
        "reply": [frame(99, call.call_id, push, b"a", flags=MORE), frame(0xE0, call.call_id)],
        "not a run": [frame(99, call.call_id, push, b"abc")],
    }[case]
    with pytest.raises(errors.ProtocolError):
        for data in frames:
            w.feed(data)


def test_progress_of_a_call() -> None:
    w = Wire()
    call, other = w.call(Kind.WEIGHTS_LOAD, b""), w.call(Kind.WEIGHTS_LOAD, b"")
    told = pb.Progress(done_bytes=3, total_bytes=10, phase="load").SerializeToString()
    assert w.feed(frame(7, call.call_id, told)) == [Progress(call.call_id, 3, 10, "load")]
    w.abandon(other.call_id)
    assert w.feed(frame(7, other.call_id, told)) == []
    assert w.feed(frame(7, 12345, told)) == []
    (reply,) = w.feed(frame(0x80 | 35, call.call_id))
    assert isinstance(reply, Reply) and reply.call_id == call.call_id
    with pytest.raises(errors.ProtocolError):
        w.feed(frame(7, call.call_id, told, b"a push has no body"))
