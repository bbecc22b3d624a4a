"""Hostile uploads, state ranges and descriptors (HOSTILE D). Nothing is visible before it is complete
and verified; what a connection brings along is closed with it."""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import Any

import pytest
import raw
from expect import refused, served
from raw import (
    CANCELLED, DATA_LOSS, END, EXHAUSTED, F32, INPUT, INVALID, MORE, NOT_FOUND, PING, Q8_0, RANGE,
    STATE, Conn, Graph, pb,
)  # fmt: skip
from weights_tools import BIG, FLOATS, begin_put, names, pick, refusal

pytestmark = pytest.mark.usefixtures("guarded")


# ---- uploads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_D01_upload_that_stops(address: str, share: float) -> None:
    """Invisible, and gone with its connection; the next one of the same name is whole."""
    data = raw.contents(BIG)
    with Conn(address) as watcher:
        with Conn(address) as conn:
            call = begin_put(conn, BIG)
            conn.stream(call, data[: int(len(data) * share)], last=False)
            assert "up" not in names(watcher) and "up" not in names(conn)
        raw.eventually(lambda: watcher.stats()["weight_sets_in_work"] <= 1)
        assert "up" not in names(watcher)
        assert watcher.put("up", BIG).digest == raw.tree_digest(data)
        served(watcher)


def test_D01_cancelled_upload(address: str) -> None:
    data = raw.contents(BIG)
    with Conn(address) as conn:
        call = begin_put(conn, BIG)
        conn.stream(call, data[:100000], last=False)
        reply, _ = conn.call(raw.CANCEL, pb.Cancel(request_id=call))
        assert reply.found
        refused(refusal(conn, call), CANCELLED, "CANCELLED")
        assert conn.put("up", BIG).handle
        served(conn)


def test_D01_two_uploads_of_the_same(address: str) -> None:
    with Conn(address) as first, Conn(address) as second:
        data = raw.contents(BIG)
        calls = [(conn, begin_put(conn, BIG, raw.tree_digest(data))) for conn in (first, second)]
        for conn, call in calls:
            conn.stream(call, data)
        for conn, call in calls:
            info = conn.reply(call)[0].set
            handle = conn.submit(pick("small", 3), weights=[info.handle]).handle
            assert conn.run(handle, bytes(12)) == BIG[1][3]
            served(conn)


@pytest.mark.parametrize("at", [0, 4 * FLOATS // 2, -1])
@pytest.mark.parametrize("where", ["host", "cpu0"])
def test_D02_one_wrong_bit(address: str, at: int, where: str) -> None:
    data = bytearray(raw.contents(BIG))
    digest = raw.tree_digest(bytes(data))
    data[at] ^= 1
    with Conn(address) as conn:
        call = begin_put(conn, BIG, digest, placement=raw.rules([("*", where)]))
        conn.stream(call, bytes(data))
        refused(refusal(conn, call), DATA_LOSS, "DIGEST")
        assert "up" not in names(conn)
        assert conn.put("up", BIG, digest).digest == digest
        served(conn)


def test_D04_the_whole_digest_is_compared(address: str) -> None:
    """Each of its 256 bits: a set that differs from the key in one of them is another one."""
    tensors = [("t", F32, [16], bytes(range(64)))]
    digest = raw.tree_digest(raw.contents(tensors))
    with Conn(address) as conn:
        kept = conn.put("kept", tensors, digest)
        for bit in range(256):
            near = bytearray(digest)
            near[bit // 8] ^= 1 << bit % 8
            call = begin_put(conn, tensors, bytes(near))
            conn.stream(call, raw.contents(tensors))
            refused(refusal(conn, call), DATA_LOSS, "DIGEST")
        assert conn.put("again", tensors, digest).digest == kept.digest == digest
        served(conn)


def change(**fields: Any) -> Any:
    manifest = raw.manifest(BIG)
    for name, value in fields.items():
        field = getattr(manifest, name)
        if isinstance(value, bytes):
            setattr(manifest, name, value)
        else:
            del field[:]
            field.extend(value)
    return manifest


MANIFEST_REASONS = {
    "MANIFEST", "SIZE", "LIMIT", "DTYPE", "BLOCK", "NAME", "UTF8", "COLUMN", "TENSOR_BYTES",
    "TOTAL_BYTES",
}  # fmt: skip
LYING_MANIFESTS = {
    "empty": pb.Manifest(),
    "name lengths too long": change(name_lengths=[3, 6]),
    "name lengths too short": change(name_lengths=[3, 4]),
    "name lengths wrap": change(name_lengths=[2**32 - 1, 9]),
    "an empty name": change(name_lengths=[0, 8]),
    "the same name": change(names=b"smallsmall", name_lengths=[5, 5]),
    "a name with a zero": change(names=b"b\0gsmall"),
    "no UTF-8": change(names=b"\xff\xfe\xfdsmall"),
    "a long name": change(names=b"n" * 300, name_lengths=[295, 5]),
    "one type": change(type=[0]),
    "three types": change(type=[0, 0, 0]),
    "no such type": change(type=[0, 255]),
    "a removed type": change(type=[4, 0]),
    "a cut block": change(type=[0, Q8_0]),
    "one extent less": change(ne=[FLOATS, 1, 1, 1, 3, 1, 1]),
    "negative extent": change(ne=[FLOATS, 1, 1, 1, -3, 1, 1, -1]),
    "extents wrap": change(ne=[2**32, 2**32, 1, 1, 3, 1, 1, 1]),
    "bytes wrap": change(ne=[2**62, 1, 1, 1, 3, 1, 1, 1]),
    "sum wraps": change(ne=[2**61 - 1, 1, 1, 1, 2**61 - 1, 1, 1, 1]),
    "larger than announced": change(ne=[FLOATS + 16, 1, 1, 1, 3, 1, 1, 1]),
    "smaller than announced": change(ne=[16, 1, 1, 1, 3, 1, 1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("kind", LYING_MANIFESTS)
def test_D02_lying_manifests(address: str, kind: str) -> None:
    manifest = LYING_MANIFESTS[kind].SerializeToString()
    with Conn(address) as conn:
        for total in (len(raw.contents(BIG)), 2**64 - 1, 2**63):
            call = conn.send(
                raw.PUT, pb.WeightsPut(name="up", total_bytes=total), manifest, flags=MORE
            )
            error = refusal(conn, call)
            assert error.code in (INVALID, EXHAUSTED), error
            assert error.reason in MANIFEST_REASONS, error
            refused(error, error.code, error.reason)
        if "announced" not in kind:
            error = conn.fails(raw.STATE_ALLOC, pb.StateAlloc(), manifest)
            assert error.code in (INVALID, EXHAUSTED) and error.reason in MANIFEST_REASONS, error
        served(conn)


@pytest.mark.parametrize("total", [0, 1, 2**32, 2**64 - 1])
def test_D02_totals_that_are_not_the_manifests(address: str, total: int) -> None:
    with Conn(address) as conn:
        call = begin_put(conn, BIG, total_bytes=total)
        if total == 2**64 - 1:
            refused(refusal(conn, call), EXHAUSTED, "LIMIT")
        else:
            refused(refusal(conn, call), INVALID, "SIZE")
        assert conn.put("up", BIG).handle


@pytest.mark.parametrize("digest", [b"x", bytes(31), bytes(33)])
def test_D02_digests_of_another_length(address: str, digest: bytes) -> None:
    with Conn(address) as conn:
        refused(refusal(conn, begin_put(conn, BIG, digest)), INVALID, "DECODE")
        served(conn)


# ---- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "offset", "size", "reason"),
    [
        (0, 0, 64, ""), (1, 0, 8, ""), (0, 64, 0, ""), (0, 3, 5, ""),
        (0, 0, 65, "SIZE"), (0, 64, 1, "SIZE"), (0, 65, 0, "OFFSET"),
        (0, 1, 2**64 - 1, "SIZE"), (0, 2**64 - 1, 1, "OFFSET"), (0, 2**63, 2**63, "OFFSET"),
        (2, 0, 1, "TENSOR"), (2**32 - 1, 0, 1, "TENSOR"),
    ],
)  # fmt: skip
def test_D05_ranges_of_a_state(
    address: str, tensor: int, offset: int, size: int, reason: str
) -> None:
    tensors = [("a", F32, [16], b""), ("b", F32, [2], b"")]
    with Conn(address) as conn:
        alloc, _ = conn.call(
            raw.STATE_ALLOC, pb.StateAlloc(), raw.manifest(tensors).SerializeToString()
        )
        where = {"handle": alloc.handle, "tensor": tensor, "offset": offset, "bytes": size}
        data = bytes(range(1, size + 1)) if size < 100 else b"1234"
        if not reason:
            conn.call(raw.STATE_WRITE, pb.StateWrite(**where), data)
            assert conn.call(raw.STATE_READ, pb.StateRead(**where))[1] == data
        else:
            refused(conn.fails(raw.STATE_READ, pb.StateRead(**where)), RANGE, reason)
            flags = END if size < 100 else MORE
            call = conn.send(raw.STATE_WRITE, pb.StateWrite(**where), data, flags=flags)
            refused(refusal(conn, call), RANGE, reason)
            conn.call(raw.STATE_FREE, pb.StateFree(handle=alloc.handle))
            refused(conn.fails(raw.STATE_READ, pb.StateRead(**where)), NOT_FOUND, "STATE")
        served(conn)


def test_D14_a_state_that_goes_while_it_is_in_use(address: str) -> None:
    """Freed, or its connection closed, with runs and reads of it in flight: its memory stays until the
    devices have let go of it."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [1 << 18], "x")
    s = graph.leaf(STATE, F32, [1 << 18], "s")
    total = graph.node("ADD", F32, [1 << 18], (x, s), name="sum")
    graph.node("CPY", F32, [1 << 18], (total, s), view=(s, 0), output=True, name="write")
    manifest = raw.manifest([("s", F32, [1 << 18], b"")]).SerializeToString()
    with Conn(address) as watcher:
        for end in ("free", "close") * 3:
            with Conn(address) as conn:
                placed = pb.StateAlloc(placement=raw.rules([("*", "cpu0")]))
                handle = conn.call(raw.STATE_ALLOC, placed, manifest)[0].handle
                run = conn.submit(graph, states=[handle]).handle
                calls = [conn.send(raw.RUN, pb.Run(handle=run), bytes(1 << 20)) for _ in range(3)]
                read = conn.send(raw.STATE_READ, pb.StateRead(handle=handle, bytes=1 << 20))
                if end == "close":
                    continue
                conn.call(raw.STATE_FREE, pb.StateFree(handle=handle))
                for call in calls:
                    assert conn.reply(call)[1] == bytes(1 << 20)
                assert conn.reply(read)[1] == bytes(1 << 20)
                error = conn.fails(raw.STATE_READ, pb.StateRead(handle=handle, bytes=1))
                refused(error, NOT_FOUND, "STATE")
        served(watcher)


# ---- descriptors (on the Unix socket) ------------------------------------------------------------


class Pipes:
    """A pipe whose other end tells when every copy of the first has been closed."""

    def __enter__(self) -> Pipes:
        self.kept, self.sent = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.kept)

    def all_closed(self) -> None:
        os.close(self.sent)
        poll = select.poll()
        poll.register(self.kept, select.POLLHUP)
        assert poll.poll(5000), "the daemon keeps a descriptor"


def test_D10_announced_descriptors_that_do_not_come(daemon: Any) -> None:
    with Conn(daemon.address) as conn:
        conn.raw(raw.header(PING, 9, 0, 0, END | raw.FDS, n_fds=1))
        (frame,) = conn.closed()
        refused(frame, INVALID, "BAD_FDS")
    with Conn(daemon.address) as conn:
        served(conn)


@pytest.mark.parametrize("count", [1, 3, 16, 17, 200, 253])
@pytest.mark.parametrize("announced", [0, 1, 2])
def test_D10_descriptors_that_are_not_those_announced(
    daemon: Any, count: int, announced: int
) -> None:
    """Too few, too many, and on a frame that takes none: the connection and every one are closed."""
    with Conn(daemon.address) as conn, Pipes() as pipe:
        message = pb.Ping(cookie=0x1234).SerializeToString()
        flags = END | (raw.FDS if announced else 0)
        frame = raw.header(PING, 9, len(message), 0, flags, n_fds=announced) + message
        socket.send_fds(conn.socket, [frame], [pipe.sent] * count)
        frames = conn.closed()
        refused(frames[-1], INVALID, "BAD_FDS")
        pipe.all_closed()
    with Conn(daemon.address) as conn:
        served(conn)


def test_D10_descriptors_across_frames(daemon: Any) -> None:
    """Several frames in one piece, the descriptors with the first byte, in the middle, at the end."""
    message = pb.Ping(cookie=0x1234).SerializeToString()
    good = raw.header(PING, 1, len(message)) + message
    for before in (0, 20, len(good), len(good) + 31):
        with Conn(daemon.address) as conn, Pipes() as pipe:
            conn.raw((good * 2)[:before])
            socket.send_fds(conn.socket, [(good * 2)[before:]], [pipe.sent])
            frames = conn.closed()
            refused(frames[-1], INVALID, "BAD_FDS")
            pipe.all_closed()
    with Conn(daemon.address) as conn:
        served(conn)


def test_D11_more_descriptors_than_anybody_takes(daemon: Any) -> None:
    """Sent as fast as the socket takes them: nothing of the kind piles up."""
    total = 100000 if os.environ.get("HEADRACE_FULL") else 5000
    with Pipes() as pipe:
        sent = 0
        while sent < total:
            with Conn(daemon.address) as conn:
                try:
                    for _ in range(10):
                        socket.send_fds(conn.socket, [bytes(1)], [pipe.sent] * 250)
                        sent += 250
                except OSError:  # cut, or ETOOMANYREFS of our own
                    pass
                frames = conn.closed()
                refused(frames[-1], INVALID, "BAD_FDS")
        pipe.all_closed()
    with Conn(daemon.address) as conn:
        served(conn)


def test_D13_other_ancillary_data(daemon: Any) -> None:
    """Credentials beside the bytes change nothing: the peer stays who connected."""
    with Conn(daemon.address) as conn:
        message = pb.Ping(cookie=77).SerializeToString()
        data = struct.pack("3i", os.getpid(), os.getuid(), os.getgid())
        for call in range(50, 60):
            conn.socket.sendmsg(
                [raw.header(PING, call, len(message)) + message],
                [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, data)],
            )
            assert conn.reply(call)[0].cookie == 77
        served(conn)
