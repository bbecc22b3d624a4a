"""Hostile frames (HOSTILE A): what breaks the conversation ends it with one error, what breaks one
request ends that one, and nobody else notices."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
import raw
from raw import DATA, END, F32, HELLO, MORE, PING, Conn, add_graph, header, pb

pytestmark = pytest.mark.usefixtures("guarded")

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(190))
TWO = struct.pack("<16f", *range(16))
SUM = struct.pack("<8f", *(float(i + i + 8) for i in range(8)))


def only_error(conn: Conn, timeout_s: float = 5.0) -> Any:
    """The stream ends after exactly one error."""
    frames = conn.closed(timeout_s)
    assert len(frames) == 1, frames
    return frames[0].error


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    "tls": TLS_HELLO,
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "text": b"hello, is anybody there? I am a port scanner, more or less. 1234",
    "nearly": b"HX" + header(PING, 1)[2:],
    "random": random.Random(7).randbytes(4096),
    "shifted": b"\0" + header(HELLO, 1),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_a01_garbage_closes(address: str, kind: str) -> None:
    with Conn(address, hello=False) as conn:
        begun = time.monotonic()
        conn.raw(GARBAGE[kind])
        assert only_error(conn).reason == "BAD_MAGIC"
        assert time.monotonic() - begun < 1.0


def test_a01_is_counted(address: str) -> None:
    with Conn(address) as watcher:
        before = watcher.stats()["protocol_errors_total"]
        with Conn(address, hello=False) as conn:
            conn.raw(bytes(64))
            conn.closed()
        assert watcher.stats()["protocol_errors_total"] == before + 1


def test_a02_every_flipped_bit_of_a_header(address: str) -> None:
    good = header(PING, 1, 9)
    for bit in range(256):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with Conn(address, hello=False) as conn:
            conn.raw(bytes(bad))
            reason = only_error(conn).reason
        expected = "BAD_MAGIC" if bit < 16 else "BAD_VERSION" if bit < 24 else "BAD_HEADER_CRC"
        assert reason == expected, f"bit {bit}"


@pytest.mark.parametrize(
    ("message_bytes", "body_bytes", "reason"),
    [
        (1025, 0, "MESSAGE_TOO_LONG"),
        (65536, 0, "MESSAGE_TOO_LONG"),
        (2**32 - 1, 0, "MESSAGE_TOO_LONG"),
        (0, 1, "BODY_TOO_LONG"),
        (0, 2**32 - 1, "BODY_TOO_LONG"),
    ],
)
def test_a04_little_before_the_hello(
    address: str, message_bytes: int, body_bytes: int, reason: str
) -> None:
    with Conn(address, hello=False) as conn:
        conn.raw(header(HELLO, 1, message_bytes, body_bytes))
        assert only_error(conn).reason == reason


@pytest.mark.parametrize(
    ("message_bytes", "body_bytes", "reason"),
    [
        (65537, 0, "MESSAGE_TOO_LONG"),
        (2**32 - 1, 0, "MESSAGE_TOO_LONG"),
        (0, (1 << 20) + 1, "BODY_TOO_LONG"),
        (0, 2**32 - 1, "BODY_TOO_LONG"),
        (2**32 - 1, 2**32 - 1, "MESSAGE_TOO_LONG"),
    ],
)
def test_a03_lengths_over_the_limit(
    address: str, message_bytes: int, body_bytes: int, reason: str
) -> None:
    with Conn(address) as conn:
        conn.raw(header(raw.RUN, 9, message_bytes, body_bytes))
        error = only_error(conn)
        assert error.reason == reason
        assert error.limit > 0 and error.actual > error.limit


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"flags": 32}, "BAD_FLAGS"),
        ({"flags": 0x8001}, "BAD_FLAGS"),
        ({"flags": 0xFFFF}, "BAD_FLAGS"),
        ({"version": 0}, "BAD_VERSION"),
        ({"version": 2}, "BAD_VERSION"),
        ({"version": 255}, "BAD_VERSION"),
        ({"type": 0}, "BAD_TYPE"),
        ({"call_id": 0}, "BAD_ID"),
        ({"call_id": 1 << 63}, "BAD_ID"),
        ({"call_id": 2**64 - 1}, "BAD_ID"),
        ({"n_fds": 17}, "BAD_FDS"),
        ({"n_fds": 65535}, "BAD_FDS"),
    ],
)
@pytest.mark.parametrize("hello", [False, True])
def test_a05_a14_fields_out_of_the_rules(
    address: str, fields: dict[str, int], reason: str, hello: bool
) -> None:
    with Conn(address, hello=hello) as conn:
        conn.raw(header(**{"type": PING, "call_id": 77, **fields}))
        assert only_error(conn).reason == reason


@pytest.mark.parametrize("kind", [7, 100, 127, 0x80, 0x81, 0xE0, 255])
def test_a05_unknown_types_are_skipped(address: str, kind: int) -> None:
    with Conn(address) as conn:
        error = conn.fails(kind, b"some message", b"some body" * 1000)
        assert error.code == raw.UNSUPPORTED
        conn.ping()


def test_a07_unknown_fields_and_features(address: str) -> None:
    message = pb.Hello(protocol_min=1, protocol_max=9, features=["GREASE-1", "x" * 40])
    unknown = b"\xf8\x3f\x01" + b"\xfa\x3f\x05grease"[:2] + b"\x05greas" + b"\xfd\x3f\1\2\3\4"
    with Conn(address, hello=False) as conn:
        reply, _ = conn.call(HELLO, message.SerializeToString() + unknown)
        assert reply.protocol == 1
        assert not any("GREASE" in feature for feature in reply.features)
        conn.ping()


@pytest.mark.parametrize("kind", [PING, raw.RUN, raw.SUBMIT, raw.PUT, raw.STATS, raw.CANCEL])
def test_a08_request_before_the_hello(address: str, kind: int) -> None:
    with Conn(address, hello=False) as conn:
        conn.send(kind, b"")
        assert only_error(conn).code == raw.PRECONDITION


def test_a08_second_hello(address: str) -> None:
    with Conn(address) as conn:
        conn.send(HELLO, pb.Hello(protocol_min=1, protocol_max=1))
        assert only_error(conn).code == raw.PRECONDITION


@pytest.mark.parametrize(("low", "high"), [(2, 9), (0, 0), (9, 2)])
def test_a08_version_mismatch_names_both(address: str, low: int, high: int) -> None:
    with Conn(address, hello=False) as conn:
        conn.send(HELLO, pb.Hello(protocol_min=low, protocol_max=high))
        error = only_error(conn)
        assert error.code == raw.PRECONDITION
        assert f"{low} to {high}" in error.words and "1 to 1" in error.words


def test_a09_unknown_resume_token_is_no_way_in(address: str) -> None:
    with Conn(address, hello=False) as conn:
        message = pb.Hello(protocol_min=1, protocol_max=1, resume_token=bytes(32))
        assert conn.fails(HELLO, message).code == raw.NOT_FOUND
        conn.call(HELLO, pb.Hello(protocol_min=1, protocol_max=1))
        conn.ping()


def test_a11_half_close_still_gets_replies(address: str) -> None:
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        ids = [conn.send(raw.RUN, pb.Run(handle=handle), TWO) for _ in range(20)]
        conn.socket.shutdown(socket.SHUT_WR)
        frames = conn.closed()
        assert [frame.call_id for frame in frames] == ids
        assert all(frame.body == SUM for frame in frames)


@pytest.mark.parametrize("count", [1, 15000])
@pytest.mark.parametrize("end", ["shutdown", "close"])
def test_a11_half_close_ends_an_upload(address: str, count: int, end: str) -> None:
    """What is still to come will never come: the upload is over, whatever stage it is in (with many
    tensors the end comes while room is being made)."""
    tensors = [(str(i), F32, [1], bytes(4)) for i in range(count)]
    manifest = raw.manifest(tensors).SerializeToString()
    message = pb.WeightsPut(name="up", total_bytes=64 * count)
    for wait in (0.0, 0.0, 0.001, 0.02):
        with Conn(address) as conn:
            call = conn.send(raw.PUT, message, manifest, flags=MORE)
            time.sleep(wait)
            if end == "close":
                continue
            conn.socket.shutdown(socket.SHUT_WR)
            frames = [frame for frame in conn.closed(5.0) if frame.type != raw.CREDIT]
            assert [frame.call_id for frame in frames] == [call]
            assert frames[0].error.code == raw.CANCELLED


def test_a13_pings_without_reading(address: str) -> None:
    with Conn(address) as conn:
        one = pb.Ping(cookie=5).SerializeToString()
        data = b"".join(header(PING, i, len(one)) + one for i in range(1000, 11000))
        conn.socket.settimeout(0.2)
        sent = 0
        while sent < len(data):
            try:
                sent += conn.socket.send(data[sent : sent + 65536])
            except TimeoutError:  # it reads no further: that is the bound
                break
        conn.socket.settimeout(raw.TIMEOUT_S)
        whole = (sent - sent % (32 + len(one))) // (32 + len(one))
        for i in range(whole):
            assert conn.frame().call_id == 1000 + i


def test_a14_id_in_flight_used_again(address: str, launch: Callable[..., Any]) -> None:
    slow = launch(devices=[raw_device(delay="300ms")], tcp=True)
    target = slow.address if address.startswith("unix") else slow.tcp_address
    with Conn(target) as conn:
        handle = conn.submit(add_graph()).handle
        call_id = conn.send(raw.RUN, pb.Run(handle=handle), TWO)
        conn.send(PING, pb.Ping(cookie=1), call_id=call_id)
        frames = conn.closed()
        own = [frame for frame in frames if frame.call_id == call_id]
        assert len(own) == 1 and own[0].body == SUM and own[0].type == raw.RUN | raw.REPLY
        errors = [frame.error.reason for frame in frames if frame.call_id != call_id]
        assert errors == ["BAD_ID"]


def raw_device(**keys: object) -> Any:
    from run_daemon import device

    return device("cpu0", backend="cpu", threads=1, **keys)


def test_a10_body_that_stops_half_way(address: str, launch: Callable[..., Any]) -> None:
    quick = launch(
        devices=[raw_device()], tcp=True, sections={"limits": {"progress_timeout": "300ms"}}
    )
    target = quick.address if address.startswith("unix") else quick.tcp_address
    with Conn(target) as watcher:
        with Conn(target) as conn:
            body = add_graph().encode().SerializeToString()
            message = pb.Submit().SerializeToString()
            conn.raw(header(raw.SUBMIT, 9, len(message), len(body)) + message + body[:-1])
            frames = conn.closed(5.0)
            assert raw.DEADLINE in [frame.error.code for frame in frames]
        raw.eventually(lambda: watcher.stats()["connections"] == 1)


def test_a10_silence_before_the_hello(address: str, launch: Callable[..., Any]) -> None:
    quick = launch(
        devices=[raw_device()], tcp=True, sections={"limits": {"hello_timeout": "200ms"}}
    )
    target = quick.address if address.startswith("unix") else quick.tcp_address
    with Conn(target, hello=False) as conn:
        conn.raw(header(HELLO, 1, 4)[:7])
        begun = time.monotonic()
        conn.closed(5.0)
        assert 0.1 < time.monotonic() - begun < 3.0


def test_a16_run_and_cancel(address: str) -> None:
    """Every run and every cancel has exactly one reply."""
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        for _ in range(300):
            run = conn.send(raw.RUN, pb.Run(handle=handle), TWO)
            cancel = conn.send(raw.CANCEL, pb.Cancel(request_id=run))
            seen = sorted(frame.call_id for frame in (conn.frame(), conn.frame()))
            assert seen == [run, cancel]
        assert conn.run(handle, TWO) == SUM


def test_a17_cancel_of_what_is_not_there(address: str) -> None:
    with Conn(address) as conn, Conn(address) as other:
        handle = other.submit(add_graph()).handle
        for target in (12345, 0, 2**64 - 1, 1):
            reply, _ = conn.call(raw.CANCEL, pb.Cancel(request_id=target))
            assert not reply.found
        own = next(conn.ids)
        reply, _ = conn.call(raw.CANCEL, pb.Cancel(request_id=own), call_id=own)
        # The other connection uses the same numbers; nothing of its is cancelled.
        for _ in range(50):
            run = other.send(raw.RUN, pb.Run(handle=handle), TWO)
            conn.call(raw.CANCEL, pb.Cancel(request_id=run))
            assert other.reply(run)[1] == SUM


def begin_upload(conn: Conn, floats: int = 100000) -> tuple[int, bytes]:
    data = bytes(4 * floats)
    tensors = [("t", F32, [floats], data)]
    message = pb.WeightsPut(name="up", total_bytes=len(raw.contents(tensors)))
    call = conn.send(raw.PUT, message, raw.manifest(tensors).SerializeToString(), flags=MORE)
    frame = conn.next_of(call)
    assert frame.type == raw.CREDIT and conn.credit[call] > 0
    return call, raw.contents(tensors)


@pytest.mark.parametrize("fault", ["skip", "overlap", "beyond", "wrap", "early end", "late end"])
def test_a19_data_out_of_the_rules(address: str, fault: str) -> None:
    with Conn(address) as conn:
        call, data = begin_upload(conn)
        conn.send(DATA, pb.Data(offset=0), data[:1000], call_id=call, flags=MORE)
        offset, piece, flags = {
            "skip": (1001, data[:10], MORE),
            "overlap": (999, data[:10], MORE),
            "beyond": (1000, data + bytes(100), END),
            "wrap": (2**64 - 1, data[:10], MORE),
            "early end": (1000, data[:10], END),
            "late end": (1000, data[1000:], MORE),
        }[fault]
        conn.send(DATA, pb.Data(offset=offset), piece, call_id=call, flags=flags)
        with pytest.raises(raw.RawError) as caught:
            conn.reply(call)
        assert caught.value.code == raw.RANGE
        conn.send(DATA, pb.Data(offset=1000), data[:10], call_id=call, flags=END)  # late: dropped
        conn.ping()


def test_a19_data_beyond_the_credit(address: str, launch: Callable[..., Any]) -> None:
    """What was never granted is refused: bytes taken in are at most the credit given out."""
    limits = {"body_bytes": "64K", "upload_window_bytes": "64K"}
    narrow = launch(devices=[raw_device()], tcp=True, sections={"limits": limits})
    with Conn(narrow.address if address.startswith("unix") else narrow.tcp_address) as conn:
        call, data = begin_upload(conn, 1 << 20)
        sent, granted = 0, conn.credit[call]
        assert granted < len(data)
        for size in (16384, 65536, 65536, 65536):
            conn.send(DATA, pb.Data(offset=sent), bytes(size), call_id=call, flags=MORE)
            sent += size
        with pytest.raises(raw.RawError) as caught:
            conn.reply(call)  # were all of it taken, this would wait for more in vain
        assert caught.value.code == raw.RANGE
        assert conn.credit[call] < sent
        conn.ping()


def test_a19_data_for_nobody(address: str) -> None:
    with Conn(address) as conn:
        conn.send(DATA, pb.Data(offset=0), bytes(1000), call_id=4711, flags=MORE)
        conn.send(raw.CREDIT, pb.Credit(bytes=2**63))
        conn.ping()


KINDS = [raw.PING, raw.CANCEL, raw.OPS, raw.PUT, raw.LOAD, raw.DROP, raw.TENSORS, raw.STATE_ALLOC,
         raw.STATE_READ, raw.STATE_WRITE, raw.STATE_FREE, raw.SUBMIT, raw.EXPLAIN, raw.RELEASE,
         raw.RUN, raw.SYNC, raw.STATS, raw.LIST, raw.DEVICES]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a20_a25_messages_that_are_none(address: str, kind: int) -> None:
    """Broken protobuf ends the request with INVALID; the connection goes on."""
    rng = random.Random(kind)
    cases = [
        b"\x08",  # a field without its value
        b"\xff" * 12,  # a varint without end
        b"\x0a\xff\xff\xff\xff\x0f",  # a length of 4 GiB
        b"\x07",  # wire type 7
        b"\x0b\x0b\x0b",  # groups
        b"\x00\x00",  # field 0
        *(rng.randbytes(size) for size in (1, 3, 30, 300, 3000)),
    ]
    with Conn(address) as conn:
        for case in cases:
            try:
                conn.call(kind, case)
            except raw.RawError as error:
                assert error.code in (raw.INVALID, raw.NOT_FOUND, raw.EXHAUSTED, raw.RANGE,
                                      raw.PRECONDITION)  # fmt: skip
                assert error.words and len(error.words.encode()) <= 256
        conn.ping()


@pytest.mark.parametrize("kind", [raw.RUN, raw.RELEASE, raw.EXPLAIN, raw.STATE_READ])
def test_a25_trailing_bytes(address: str, kind: int) -> None:
    message = {raw.RUN: pb.Run(handle=5), raw.RELEASE: pb.Release(handle=5),
               raw.EXPLAIN: pb.Explain(handle=5),
               raw.STATE_READ: pb.StateRead(handle=5)}[kind]  # fmt: skip
    with Conn(address) as conn:
        assert conn.fails(kind, message.SerializeToString() + b"\x09\1\2").code == raw.INVALID
        conn.ping()


def test_a20_bodies_where_none_belong(address: str) -> None:
    with Conn(address) as conn:
        for kind in (raw.STATS, raw.LIST, raw.SYNC, raw.DEVICES):
            try:
                conn.call(kind, b"", bytes(5000))
            except raw.RawError as error:
                assert error.code == raw.INVALID
        conn.ping()


def conversation() -> bytes:
    """hello, ping, submit, run of an unknown handle."""
    hello = pb.Hello(protocol_min=1, protocol_max=1).SerializeToString()
    ping = pb.Ping(cookie=1).SerializeToString()
    graph = add_graph().encode().SerializeToString()
    run = pb.Run(handle=3).SerializeToString()
    return (
        header(HELLO, 1, len(hello)) + hello
        + header(PING, 2, len(ping)) + ping
        + header(raw.SUBMIT, 3, 0, len(graph)) + graph
        + header(raw.RUN, 4, len(run), 64) + run + TWO
    )  # fmt: skip


def test_b091_cut_at_every_byte(address: str) -> None:
    data = conversation()
    step = 1 if os.environ.get("HEADRACE_FULL") else 3
    for size in range(0, len(data), step):
        with Conn(address, hello=False) as conn:
            conn.raw(data[:size])


def test_b078_drip_byte_by_byte(address: str) -> None:
    with Conn(address, hello=False) as conn:
        for byte in conversation():
            conn.raw(bytes([byte]))
        kinds = sorted(conn.frame().type & 127 for _ in range(4))
        assert kinds == [HELLO, PING, raw.SUBMIT, raw.RUN]


def test_all_frames_in_one_piece(address: str) -> None:
    with Conn(address, hello=False) as conn:
        conn.raw(conversation())
        frames = {frame.call_id: frame for frame in (conn.frame() for _ in range(4))}
        assert sorted(frames) == [1, 2, 3, 4]
        assert frames[4].error.code == raw.NOT_FOUND


def test_d10_announced_descriptors_that_do_not_come(address: str) -> None:
    with Conn(address) as conn:
        conn.raw(header(PING, 9, 0, 0, END | raw.FDS, n_fds=1))
        conn.closed(5.0)


@pytest.mark.parametrize("count", [1, 3, 17, 200])
def test_d10_descriptors_nobody_asked_for(daemon: Any, count: int) -> None:
    with Conn(daemon.address) as conn:
        pipe = os.pipe()
        try:
            message = pb.Ping(cookie=0x1234).SerializeToString()
            frame = header(PING, 9, len(message)) + message
            socket.send_fds(conn.socket, [frame], [pipe[0]] * count)
            conn.closed(5.0)
        finally:
            os.close(pipe[0])
            os.close(pipe[1])
