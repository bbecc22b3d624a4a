"""Hostile frames (HOSTILE A): what breaks the conversation ends it with one error, what breaks one
request ends that one, and nobody else notices."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from typing import Any

import pytest
import raw
from expect import SUM, TWO, cut, refused, served
from raw import (
    DATA, END, F32, HELLO, INVALID, MORE, NOT_FOUND, PING, PRECONDITION, RANGE, UNSUPPORTED, Conn,
    add_graph, header, pb,
)  # fmt: skip
from run_daemon import device

pytestmark = pytest.mark.usefixtures("guarded")

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(190))


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
def test_A01_garbage_closes(address: str, kind: str) -> None:
    with Conn(address, hello=False) as conn:
        conn.raw(GARBAGE[kind])
        cut(conn, INVALID, "BAD_MAGIC")


def test_A01_is_counted(address: str) -> None:
    with Conn(address) as watcher:
        before = watcher.stats()["protocol_errors_total"]
        with Conn(address, hello=False) as conn:
            conn.raw(bytes(64))
            conn.closed()
        assert watcher.stats()["protocol_errors_total"] == before + 1


def test_A02_every_flipped_bit_of_a_header(address: str) -> None:
    good = header(PING, 1, 9)
    for bit in range(256):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with Conn(address, hello=False) as conn:
            conn.raw(bytes(bad))
            reason = "BAD_MAGIC" if bit < 16 else "BAD_VERSION" if bit < 24 else "BAD_HEADER_CRC"
            cut(conn, INVALID, reason)


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
def test_A04_little_before_the_hello(
    address: str, message_bytes: int, body_bytes: int, reason: str
) -> None:
    with Conn(address, hello=False) as conn:
        conn.raw(header(HELLO, 1, message_bytes, body_bytes))
        cut(conn, INVALID, reason)


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
def test_A04_lengths_over_the_limit(
    address: str, message_bytes: int, body_bytes: int, reason: str
) -> None:
    with Conn(address) as conn:
        conn.raw(header(raw.RUN, 9, message_bytes, body_bytes))
        error = cut(conn, INVALID, reason)
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
def test_A05_A14_fields_out_of_the_rules(
    address: str, fields: dict[str, int], reason: str, hello: bool
) -> None:
    with Conn(address, hello=hello) as conn:
        conn.raw(header(**{"type": PING, "call_id": 77, **fields}))
        cut(conn, INVALID, reason)


@pytest.mark.parametrize("kind", [7, 100, 127, 0x80, 0x81, 0xE0, 255])
def test_A05_unknown_types_are_skipped(address: str, kind: int) -> None:
    with Conn(address) as conn:
        error = conn.fails(kind, b"some message", b"some body" * 1000)
        refused(error, UNSUPPORTED, "MESSAGE")
        served(conn)


def test_A07_unknown_fields_and_features(address: str) -> None:
    message = pb.Hello(protocol_min=1, protocol_max=9, features=["GREASE-1", "x" * 40])
    unknown = b"\xf8\x3f\x01" + b"\xfa\x3f\x05grease"[:2] + b"\x05greas" + b"\xfd\x3f\1\2\3\4"
    with Conn(address, hello=False) as conn:
        reply, _ = conn.call(HELLO, message.SerializeToString() + unknown)
        assert reply.protocol == 1
        assert not any("GREASE" in feature for feature in reply.features)
        served(conn)


@pytest.mark.parametrize("kind", [PING, raw.RUN, raw.SUBMIT, raw.PUT, raw.STATS, raw.CANCEL])
def test_A08_request_before_the_hello(address: str, kind: int) -> None:
    with Conn(address, hello=False) as conn:
        conn.send(kind, b"")
        cut(conn, PRECONDITION, "HELLO")


def test_A08_second_hello(address: str) -> None:
    with Conn(address) as conn:
        conn.send(HELLO, pb.Hello(protocol_min=1, protocol_max=1))
        cut(conn, PRECONDITION, "HELLO")


@pytest.mark.parametrize(("low", "high"), [(2, 9), (0, 0), (9, 2)])
def test_A08_version_mismatch_names_both(address: str, low: int, high: int) -> None:
    with Conn(address, hello=False) as conn:
        conn.send(HELLO, pb.Hello(protocol_min=low, protocol_max=high))
        error = cut(conn, PRECONDITION, "VERSION")
        assert f"{low} to {high}" in error.words and "1 to 1" in error.words


def test_A08_unknown_resume_token_is_no_way_in(address: str) -> None:
    with Conn(address, hello=False) as conn:
        message = pb.Hello(protocol_min=1, protocol_max=1, resume_token=bytes(32))
        refused(conn.fails(HELLO, message), NOT_FOUND, "SESSION")
        conn.call(HELLO, pb.Hello(protocol_min=1, protocol_max=1))
        served(conn)


def test_A11_half_close_still_gets_replies(address: str) -> None:
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        ids = [conn.send(raw.RUN, pb.Run(handle=handle), TWO) for _ in range(20)]
        conn.socket.shutdown(socket.SHUT_WR)
        frames = conn.closed()
        assert [frame.call_id for frame in frames] == ids
        assert all(frame.body == SUM for frame in frames)


@pytest.mark.parametrize("count", [1, 15000])
@pytest.mark.parametrize("end", ["shutdown", "close"])
def test_A11_half_close_ends_an_upload(address: str, count: int, end: str) -> None:
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
            frames = [frame for frame in conn.closed() if frame.type != raw.CREDIT]
            assert [frame.call_id for frame in frames] == [call]
            refused(frames[0], raw.CANCELLED, "CANCELLED")


def pings(first: int, count: int) -> bytes:
    one = pb.Ping(cookie=5).SerializeToString()
    return b"".join(header(PING, first + i, len(one)) + one for i in range(count))


def test_A13_pings_without_reading(address: str) -> None:
    """As many answers as pings, once somebody reads; until then a bounded queue."""
    with Conn(address) as conn:
        writer = threading.Thread(target=conn.socket.sendall, args=(pings(1000, 10000),))
        writer.start()
        time.sleep(0.1)
        for number in range(10000):
            assert conn.frame().call_id == 1000 + number
        writer.join()
        served(conn)


def test_A13_nobody_ever_reads(address: str, launch_behind: Any) -> None:
    """The queue has its bound, and the connection its end."""
    limits = {"output_queue_bytes": "64K", "body_bytes": "64K", "output_timeout": "400ms"}
    target = launch_behind(devices=[raw_device()], sections={"limits": limits})
    with Conn(target) as watcher, Conn(target) as conn:
        with pytest.raises((TimeoutError, ConnectionError)):
            for number in range(200):
                conn.socket.sendall(pings(1000 + 10000 * number, 10000))
        raw.eventually(lambda: watcher.stats()["connections"] == 1)
        served(watcher)


def test_A14_id_in_flight_used_again(address: str, launch_behind: Any) -> None:
    target = launch_behind(devices=[raw_device(delay="300ms")])
    with Conn(target) as conn:
        handle = conn.submit(add_graph()).handle
        call_id = next(conn.ids)
        run = pb.Run(handle=handle).SerializeToString()
        conn.raw(header(raw.RUN, call_id, len(run), len(TWO)) + run + TWO + header(PING, call_id))
        frames = conn.closed()
        own = [frame for frame in frames if frame.call_id == call_id]
        assert len(own) == 1 and own[0].body == SUM and own[0].type == raw.RUN | raw.REPLY
        (other,) = [frame for frame in frames if frame.call_id != call_id]
        refused(other, INVALID, "BAD_ID")


def raw_device(**keys: object) -> Any:
    from run_daemon import device

    return device("cpu0", backend="cpu", threads=1, **keys)


def test_A10_body_that_stops_half_way(address: str, launch_behind: Any) -> None:
    target = launch_behind(
        devices=[raw_device()], sections={"limits": {"progress_timeout": "300ms"}}
    )
    with Conn(target) as watcher:
        with Conn(target) as conn:
            body = add_graph().encode().SerializeToString()
            message = pb.Submit().SerializeToString()
            conn.raw(header(raw.SUBMIT, 9, len(message), len(body)) + message + body[:-1])
            errors = {frame.call_id: frame for frame in conn.closed()}
            refused(errors[1 << 63], raw.DEADLINE, "PROGRESS")
            refused(errors[9], raw.CANCELLED, "CANCELLED")
        raw.eventually(lambda: watcher.stats()["connections"] == 1)
        held = [value for name, value in watcher.stats().items() if "buffer_bytes" in name]
        assert not any(held), "reserved for what never came"
        served(watcher)


def test_A10_silence_before_the_hello(address: str, launch_behind: Any) -> None:
    target = launch_behind(devices=[raw_device()], sections={"limits": {"hello_timeout": "800ms"}})
    with Conn(target, hello=False) as conn:
        conn.raw(header(HELLO, 1, 4)[:7])
        cut(conn, raw.UNAUTHENTICATED, "HELLO_TIMEOUT")
    with Conn(target) as conn:
        served(conn)


def test_A10_the_daemons_own_absence_is_no_delay(address: str, launch_behind: Any) -> None:
    """What came in time is read, though the daemon was stopped until long after the deadlines."""
    limits = {"hello_timeout": "1500ms", "progress_timeout": "1500ms"}
    target = launch_behind(devices=[raw_device()], sections={"limits": limits})
    pid = launch_behind.daemon.process.pid
    with Conn(target) as inside, Conn(target, hello=False) as newcomer:
        raw.eventually(lambda: inside.stats()["connections"] == 2)
        ping = header(PING, 1 << 20)
        inside.raw(ping[:7])
        os.kill(pid, signal.SIGSTOP)
        try:
            inside.raw(ping[7:])
            hello = newcomer.send(HELLO, pb.Hello(protocol_min=1, protocol_max=1))
            time.sleep(2)
        finally:
            os.kill(pid, signal.SIGCONT)
        newcomer.reply(hello)
        served(newcomer)
        inside.reply(1 << 20)
        served(inside)


def test_A16_run_and_cancel(address: str) -> None:
    """Every run and every cancel has exactly one reply."""
    with Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        for _ in range(300):
            run = conn.send(raw.RUN, pb.Run(handle=handle), TWO)
            cancel = conn.send(raw.CANCEL, pb.Cancel(request_id=run))
            seen = sorted(frame.call_id for frame in (conn.frame(), conn.frame()))
            assert seen == [run, cancel]
        assert conn.run(handle, TWO) == SUM


def test_A16_cancelled_and_sent_again_at_once(address: str) -> None:
    """1 000 runs at once, each cancelled: one answer each, and devices are never handed more than
    their bound."""
    with Conn(address) as conn, Conn(address) as watcher:
        handle = conn.submit(add_graph()).handle
        for _ in range(5):
            runs = []
            for _ in range(50):
                runs.append(conn.send(raw.RUN, pb.Run(handle=handle), TWO))
                conn.send(raw.CANCEL, pb.Cancel(request_id=runs[-1]), flags=END | raw.NOREPLY)
            assert watcher.stats()["runs_in_flight"] <= 64 + 1  # the session's, the bystander's
            for run in runs:
                frame = conn.next_of(run)
                if frame.flags & raw.ERROR:
                    refused(frame, raw.CANCELLED, "CANCELLED")
                else:
                    assert frame.body == SUM
        assert not conn.held
        assert conn.run(handle, TWO) == SUM


@pytest.fixture
def rig(launch_behind: Any) -> Any:
    return launch_behind


def test_A16_cancelled_too_often(rig: Any) -> None:
    """Runs and cancels as fast as they go: a second's worth, then the connection ends, and every request that
    was taken has had its one answer."""
    address = rig(
        devices=[device("host", threads=1)], sections={"limits": {"principal_cancels": 50}}
    )
    with Conn(address) as watcher, Conn(address) as conn:
        handle = conn.submit(add_graph()).handle
        runs = []
        for _ in range(300):
            runs.append(conn.send(raw.RUN, pb.Run(handle=handle), TWO))
            conn.send(raw.CANCEL, pb.Cancel(request_id=runs[-1]), flags=END | raw.NOREPLY)
        *answers, last = conn.closed()
        if last.call_id in runs:  # one that was in flight when the error was sent
            answers, last = [*answers, last], next(one for one in answers if one.call_id >> 63)
            answers.remove(last)
        error = refused(last, raw.EXHAUSTED, "RATE")
        assert (error.field, error.limit) == ("principal_cancels", 50)
        assert 50 <= len(answers) < 300
        assert len({one.call_id for one in answers}) == len(answers)
        for one in answers:
            if one.flags & raw.ERROR:
                refused(one, raw.CANCELLED, "CANCELLED")
            else:
                assert one.body == SUM
        assert watcher.stats()["rates_exceeded_total"] == 1
        served(watcher)


def test_A17_cancel_of_what_is_not_there(address: str) -> None:
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
        served(conn)


def begin_upload(conn: Conn, floats: int = 100000) -> tuple[int, bytes]:
    data = bytes(4 * floats)
    tensors = [("t", F32, [floats], data)]
    message = pb.WeightsPut(name="up", total_bytes=len(raw.contents(tensors)))
    call = conn.send(raw.PUT, message, raw.manifest(tensors).SerializeToString(), flags=MORE)
    frame = conn.next_of(call)
    assert frame.type == raw.CREDIT and conn.credit[call] > 0
    return call, raw.contents(tensors)


@pytest.mark.parametrize("fault", ["skip", "overlap", "beyond", "wrap", "early end", "late end"])
def test_A19_data_out_of_the_rules(address: str, fault: str) -> None:
    with Conn(address) as conn:
        call, data = begin_upload(conn)
        conn.send(DATA, pb.Data(offset=0), data[:1000], call_id=call, flags=MORE)
        offset, piece, flags, reason = {
            "skip": (1001, data[:10], MORE, "OFFSET"),
            "overlap": (999, data[:10], MORE, "OFFSET"),
            "beyond": (1000, data + bytes(100), END, "SIZE"),
            "wrap": (2**64 - 1, data[:10], MORE, "OFFSET"),
            "early end": (1000, data[:10], END, "END"),
            "late end": (1000, data[1000:], MORE, "END"),
        }[fault]
        conn.send(DATA, pb.Data(offset=offset), piece, call_id=call, flags=flags)
        with pytest.raises(raw.RawError) as caught:
            conn.reply(call)
        refused(caught.value, RANGE, reason)
        conn.send(DATA, pb.Data(offset=1000), data[:10], call_id=call, flags=END)  # late: dropped
        served(conn)


def test_A19_data_beyond_the_credit(address: str, launch_behind: Any) -> None:
    """What was never granted is refused: bytes taken in are at most the credit given out."""
    limits = {"body_bytes": "64K", "upload_window_bytes": "64K"}
    with Conn(launch_behind(devices=[raw_device()], sections={"limits": limits})) as conn:
        call, data = begin_upload(conn, 1 << 20)
        sent, granted = 0, conn.credit[call]
        assert granted < len(data)
        for size in (16384, 65536, 65536, 65536):
            conn.send(DATA, pb.Data(offset=sent), bytes(size), call_id=call, flags=MORE)
            sent += size
        with pytest.raises(raw.RawError) as caught:
            conn.reply(call)  # were all of it taken, this would wait for more in vain
        refused(caught.value, RANGE, "CREDIT")
        assert conn.credit[call] < sent
        served(conn)


def test_A19_data_for_nobody(address: str) -> None:
    with Conn(address) as conn:
        conn.send(DATA, pb.Data(offset=0), bytes(1000), call_id=4711, flags=MORE)
        conn.send(raw.CREDIT, pb.Credit(bytes=2**63))
        served(conn)


KINDS = [raw.PING, raw.CANCEL, raw.OPS, raw.PUT, raw.LOAD, raw.DROP, raw.TENSORS, raw.STATE_ALLOC,
         raw.STATE_READ, raw.STATE_WRITE, raw.STATE_FREE, raw.STATE_SAVE, raw.STATE_RESTORE,
         raw.STATE_FORK, raw.SUBMIT, raw.EXPLAIN, raw.RELEASE,
         raw.RUN, raw.SYNC, raw.STATS, raw.LIST, raw.DEVICES]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_A20_A25_messages_that_are_none(address: str, kind: int) -> None:
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
    found = set()
    with Conn(address) as conn:
        for case in cases:
            try:
                conn.call(kind, case)
            except raw.RawError as error:
                found.add(error.reason)
                assert error.code in (INVALID, NOT_FOUND, raw.EXHAUSTED)
                refused(error, error.code, error.reason)
        assert "DECODE" in found or kind in (raw.SYNC, raw.STATS, raw.LIST, raw.DEVICES), found
        assert found <= {"DECODE", "UTF8", "SIZE", "LIMIT", "GRAPH", "WEIGHTS", "STATE", "MANIFEST"}
        served(conn)


@pytest.mark.parametrize("kind", [raw.RUN, raw.RELEASE, raw.EXPLAIN, raw.STATE_READ])
def test_A25_trailing_bytes(address: str, kind: int) -> None:
    message = {raw.RUN: pb.Run(handle=5), raw.RELEASE: pb.Release(handle=5),
               raw.EXPLAIN: pb.Explain(handle=5),
               raw.STATE_READ: pb.StateRead(handle=5)}[kind]  # fmt: skip
    with Conn(address) as conn:
        error = conn.fails(kind, message.SerializeToString() + b"\x09\1\2")
        refused(error, INVALID, "DECODE")
        served(conn)


def test_A20_bodies_where_none_belong(address: str) -> None:
    with Conn(address) as conn:
        for kind in (raw.STATS, raw.LIST, raw.SYNC, raw.DEVICES):
            refused(conn.fails(kind, b"", bytes(5000)), INVALID, "SIZE")
        served(conn)


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
        refused(frames[4], NOT_FOUND, "GRAPH")
