"""Descriptors that clients pass (HOSTILE D7 to D14): what is no sealed memory is refused before it is
mapped, what is refused is closed, and memory that a client shares is never trusted."""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raw
from descriptors import (
    F_ADD_SEALS, FUTURE_WRITE, GROW, SEAL, SHRINK, SIZE_SEALS, WRITE, memfd, send_fd,
)  # fmt: skip
from expect import refused, served
from raw import (
    DATA_LOSS, END, EXHAUSTED, F32, I32, INPUT, INVALID, NOT_FOUND, RANGE, Conn, Graph, pb,
)  # fmt: skip
from run_daemon import device

pytestmark = pytest.mark.usefixtures("guarded")

LEAF = 4 << 20


def add(conn: Conn, fd: int, size: int, writable: bool = False) -> int:
    call = send_fd(conn, raw.REGION_ADD, pb.RegionAdd(bytes=size, writable=writable), b"", [fd])
    return int(conn.reply(call, pb.RegionAddReply)[0].handle)


def drop(conn: Conn, handle: int) -> None:
    conn.reply(conn.begin(raw.REGION_DROP, pb.RegionDrop(handle=handle), b""), pb.RegionDropReply)


def put_fd(conn: Conn, fd: int, size: int, digest: bytes = b"", **keys: Any) -> int:
    tensors = [("w", F32, [size // 4], b"")]
    message = pb.WeightsPut(name="passed", total_bytes=size, digest=digest, **keys)
    return send_fd(conn, raw.PUT_FD, message, raw.manifest(tensors).SerializeToString(), [fd])


def refusal(conn: Conn, call: int) -> raw.RawError:
    with pytest.raises(raw.RawError) as caught:
        conn.reply(call, pb.RegionAddReply)
    return caught.value


def held(conn: Conn, what: str, whose: str = "session") -> float:
    _, body = conn.reply(conn.begin(114, pb.Quota(), b""), pb.QuotaReply)
    for stat in pb.Stats.FromString(body).stats:
        if stat.name == f"{whose}_held" and stat.labels == f'what="{what}"':
            return float(stat.value)
    raise AssertionError(what)


def fds_of(daemon: Any) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def double_graph(count: int) -> Graph:
    """x + x"""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [count], "x")
    graph.node("ADD", F32, [count], (x, x), output=True)
    return graph


def epoll() -> int:
    with select.epoll() as made:
        return os.dup(made.fileno())


def huge_pages() -> int:
    """Sealed as it should be. It need not be there to be refused: nothing is mapped."""
    try:
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        os.ftruncate(fd, 1 << 30)  # whole pages of every size there is by default
    except OSError as error:
        pytest.skip(f"no memory of huge pages here: {error}")
    fcntl.fcntl(fd, F_ADD_SEALS, SIZE_SEALS)
    return fd


def wrong_descriptors(folder: Path) -> dict[str, Callable[[], int]]:
    plain = folder / "plain"
    plain.write_bytes(bytes(8192))
    return {
        "pipe": lambda: os.pipe()[0],
        "socket": lambda: socket.socket(socket.AF_UNIX).detach(),
        "folder": lambda: os.open(folder, os.O_RDONLY),
        "/dev/zero": lambda: os.open("/dev/zero", os.O_RDWR),
        "/dev/null": lambda: os.open("/dev/null", os.O_RDWR),
        "epoll": epoll,
        "regular file": lambda: os.open(plain, os.O_RDWR),
        "O_PATH": lambda: os.open(plain, os.O_PATH),
        "huge pages": huge_pages,
        "O_PATH of a memfd": lambda: os.open(f"/proc/self/fd/{memfd(bytes(8192))}", os.O_PATH),
    }


KINDS = [
    "pipe", "socket", "folder", "/dev/zero", "/dev/null", "epoll", "regular file", "O_PATH",
    "O_PATH of a memfd", "huge pages",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_D07_descriptors_that_are_no_memory(daemon: Any, tmp_path: Path, kind: str) -> None:
    with Conn(daemon.address) as conn:
        before = fds_of(daemon)
        for use in (False, True):
            fd = wrong_descriptors(tmp_path)[kind]()
            call = send_fd(
                conn, raw.REGION_ADD, pb.RegionAdd(bytes=4096, writable=use), b"", [fd]
            )  # fmt: skip
            refused(refusal(conn, call), INVALID, "NOT_MEMFD")
            refused(refusal(conn, put_fd(conn, fd, 4096)), INVALID, "NOT_MEMFD")
            os.close(fd)
        raw.eventually(lambda: fds_of(daemon) <= before)
        raw.eventually(lambda: held(conn, "regions") == held(conn, "buffer_bytes") == 0)
        served(conn)


@pytest.mark.parametrize(
    ("seals", "region", "output", "contents"),
    [
        (0, False, False, False),
        (SHRINK | GROW, False, False, False),
        (SEAL | GROW, False, False, False),
        (SEAL | SHRINK, False, False, False),
        (SEAL | FUTURE_WRITE, False, False, False),
        (FUTURE_WRITE, False, False, False),
        (SIZE_SEALS, True, True, False),
        (SIZE_SEALS | FUTURE_WRITE, True, False, False),
        (SIZE_SEALS | WRITE, True, False, True),
        (WRITE | SHRINK | GROW, False, False, False),
    ],
)
def test_D08_seals_are_looked_at_before_mapping(
    daemon: Any, seals: int, region: bool, output: bool, contents: bool
) -> None:
    data = os.urandom(8192)
    with Conn(daemon.address) as conn:
        fd = memfd(data, seals)
        for writable, good in ((False, region), (True, output)):
            message = pb.RegionAdd(bytes=8192, writable=writable)
            call = send_fd(conn, raw.REGION_ADD, message, b"", [fd])
            if good:
                drop(conn, conn.reply(call, pb.RegionAddReply)[0].handle)
            else:
                refused(refusal(conn, call), INVALID, "SEALS")
        call = put_fd(conn, fd, 8192)
        if contents:
            assert conn.reply(call, pb.WeightsPutReply)[0].set.digest == raw.tree_digest(data)
        else:
            refused(refusal(conn, call), INVALID, "SEALS")
        os.close(fd)
        served(conn)


@pytest.mark.parametrize("size", [0, 8193, 1 << 40, 2**63, 2**64 - 1])
def test_D08_sizes_that_it_does_not_have(daemon: Any, size: int) -> None:
    with Conn(daemon.address) as conn:
        fd = memfd(bytes(8192), SIZE_SEALS | WRITE)
        call = send_fd(conn, raw.REGION_ADD, pb.RegionAdd(bytes=size), b"", [fd])
        error = refusal(conn, call)
        assert (error.code, error.reason) in ((INVALID, "SIZE"), (EXHAUSTED, "LIMIT"))
        refused(error, error.code, error.reason)
        if size:
            error = refusal(conn, put_fd(conn, fd, min(size, 1 << 40)))
            assert (error.code, error.reason) in (
                (INVALID, "SIZE"), (EXHAUSTED, "LIMIT"), (EXHAUSTED, "TENSOR_BYTES"))  # fmt: skip
        os.close(fd)
        raw.eventually(lambda: held(conn, "regions") == held(conn, "buffer_bytes") == 0)
        served(conn)


def test_B08_memory_behind_what_is_passed(daemon: Any) -> None:
    """A memfd stays in memory as a whole: a region is charged with all of it, and contents are."""
    with Conn(daemon.address) as conn:
        fd = memfd(bytes(1 << 20), SIZE_SEALS | WRITE)
        call = send_fd(conn, raw.REGION_ADD, pb.RegionAdd(bytes=8), b"", [fd])
        handle = conn.reply(call, pb.RegionAddReply)[0].handle
        assert held(conn, "buffer_bytes") == 1 << 20
        drop(conn, handle)
        raw.eventually(lambda: held(conn, "buffer_bytes") == 0)
        refused(refusal(conn, put_fd(conn, fd, 8192)), INVALID, "SIZE")
        os.close(fd)
        served(conn)


def test_D10_passed_descriptors_are_counted(daemon: Any) -> None:
    """On messages that take one: none, two, three; and one on others that take none."""
    for type, message in (
        (raw.REGION_ADD, pb.RegionAdd(bytes=4096)), (raw.PUT_FD, pb.WeightsPut(name="x")),
        (raw.LIST, pb.WeightsList()), (raw.DATA, pb.Data()),
    ):  # fmt: skip
        for announced, sent in ((0, 0), (0, 1), (1, 0), (1, 2), (1, 3), (2, 2), (2, 1), (16, 16)):
            takes = 1 if type in (raw.REGION_ADD, raw.PUT_FD) else 0
            if (announced, sent) == (takes, takes):
                continue
            with Conn(daemon.address) as conn:
                before = fds_of(daemon)
                fd = memfd(bytes(4096), SIZE_SEALS | WRITE)
                send_fd(conn, type, message, b"", [fd] * sent, announced)
                frames = conn.closed()
                (last,) = [frame for frame in frames if frame.type == raw.GOAWAY | raw.REPLY]
                refused(last, INVALID, "BAD_FDS")
                os.close(fd)
                raw.eventually(lambda: fds_of(daemon) < before)
    with Conn(daemon.address) as conn:
        served(conn)


def test_D10_a_descriptor_belongs_to_its_frame(daemon: Any) -> None:
    """Frames in one piece and in pieces of one byte: the first in is the first out."""
    with Conn(daemon.address) as conn:
        graph = conn.submit(double_graph(2)).handle
        fds = [memfd(struct.pack("<2f", i, i)) for i in range(5)]
        message = pb.RegionAdd(bytes=8).SerializeToString()
        for step in (1, 1000):
            handles = []
            for number, fd in enumerate(fds):
                call = 1000 * step + number
                frame = raw.header(
                    raw.REGION_ADD, call, len(message), 0, END | raw.FDS, n_fds=1
                ) + message  # fmt: skip
                socket.send_fds(conn.socket, [frame[:step]], [fd])
                for at in range(step, len(frame), step):
                    conn.raw(frame[at : at + step])
                handles.append(call)
            for number, call in enumerate(handles):
                region = conn.reply(call, pb.RegionAddReply)[0].handle
                out = conn.run(graph, b"", input_region=region)
                assert out == struct.pack("<2f", 2 * number, 2 * number)
                drop(conn, region)
        for fd in fds:
            os.close(fd)
        served(conn)


def test_D11_descriptors_of_a_frame_that_never_comes(daemon: Any) -> None:
    """A header that stops half-way, with descriptors, is charged and goes with its connection."""
    with Conn(daemon.address) as watcher:
        before = fds_of(daemon)
        conns = [Conn(daemon.address) for _ in range(8)]
        fd = memfd(bytes(4096))
        for conn in conns:
            socket.send_fds(conn.socket, [b"H"], [fd] * 32)
        raw.eventually(lambda: fds_of(daemon) == before + 8 * 33)
        _, body = watcher.reply(watcher.begin(114, pb.Quota(), b""), pb.QuotaReply)
        stats = {s.name + s.labels: s.value for s in pb.Stats.FromString(body).stats}
        assert stats['principal_heldwhat="descriptors"'] >= 8 * 32
        for conn in conns:
            conn.close()
        os.close(fd)
        raw.eventually(lambda: fds_of(daemon) <= before)
        served(watcher)


def test_D11_more_regions_than_are_allowed(daemon: Any) -> None:
    with Conn(daemon.address) as conn:
        fd = memfd(bytes(4096))
        handles = []
        while True:
            call = send_fd(conn, raw.REGION_ADD, pb.RegionAdd(bytes=4096), b"", [fd])
            try:
                handles.append(conn.reply(call, pb.RegionAddReply)[0].handle)
            except raw.RawError as error:
                refused(error, EXHAUSTED, "LIMIT")
                break
        assert len(handles) == 64 == held(conn, "regions")
        for handle in handles:
            drop(conn, handle)
        os.close(fd)
        raw.eventually(lambda: held(conn, "regions") == held(conn, "buffer_bytes") == 0)
        served(conn)


@pytest.mark.parametrize(
    ("offset", "reason"),
    [(1, "SIZE"), (4096, "SIZE"), (4097, "OFFSET"), (2**64 - 1, "OFFSET"), (2**63, "OFFSET")],
)
def test_D05_regions_and_what_does_not_fit(daemon: Any, offset: int, reason: str) -> None:
    with Conn(daemon.address) as conn:
        graph = conn.submit(double_graph(1024)).handle
        fd = memfd(bytes(4096))
        region = add(conn, fd, 4096, True)
        os.close(fd)
        run = pb.Run(handle=graph, input_region=region, input_offset=offset)
        refused(conn.fails(raw.RUN, run), RANGE, reason)
        run = pb.Run(handle=graph, output_region=region, output_offset=offset)
        refused(conn.fails(raw.RUN, run, bytes(4096)), RANGE, reason)
        alloc, _ = conn.call(raw.STATE_ALLOC, pb.StateAlloc(),
                             raw.manifest([("s", F32, [1024], b"")]).SerializeToString())  # fmt: skip
        for type, kind in ((raw.STATE_READ, pb.StateRead), (raw.STATE_WRITE, pb.StateWrite)):
            where = kind(handle=alloc.handle, bytes=4096, region=region, region_offset=offset)
            refused(conn.fails(type, where), RANGE, reason)
        good = pb.Run(handle=graph, input_region=region, output_region=region)
        reply, body = conn.call(raw.RUN, good)
        assert list(reply.output_bytes) == [4096] and body == b""
        served(conn)


@pytest.mark.parametrize(
    ("offset", "reason"),
    [(1, "SIZE"), (8192, "SIZE"), (8193, "OFFSET"), (2**64 - 1, "OFFSET"), (2**63, "OFFSET")],
)
def test_D05_regions_of_sequences(daemon: Any, offset: int, reason: str) -> None:
    """Two steps, of which the second is fed: 4096 bytes of inputs, 8192 of outputs, or 4096 asked for and more that
    only feeds."""
    with Conn(daemon.address) as conn:
        graph = conn.submit(double_graph(1024)).handle
        data = struct.pack("<1024f", *range(1024))
        fd = memfd(data + bytes(4096))
        region = add(conn, fd, 8192, True)
        fed = pb.Step(handle=graph, feeds=[pb.Feed(input=0, step=0, output=0)])
        steps = [pb.Step(handle=graph), fed]
        far = 4096 + offset if reason == "SIZE" and offset == 1 else offset
        wrong = pb.Sequence(steps=steps, input_region=region, input_offset=far)
        refused(conn.fails(raw.SEQUENCE, wrong), RANGE, reason)
        wrong = pb.Sequence(steps=steps, output_region=region, output_offset=offset)
        refused(conn.fails(raw.SEQUENCE, wrong, data), RANGE, reason)
        wrong = pb.Sequence(steps=steps, output_region=region, each=True)
        refused(conn.fails(raw.SEQUENCE, wrong, data), INVALID, "REGION")
        quiet = [pb.Step(handle=graph, no_outputs=True), fed]
        good = pb.Sequence(steps=quiet, input_region=region, output_region=region, output_offset=4096)
        reply, body = conn.call(raw.SEQUENCE, good)
        assert [list(step.output_bytes) for step in reply.steps] == [[], [4096]] and body == b""
        assert os.pread(fd, 4096, 4096) == struct.pack("<1024f", *(4 * i for i in range(1024)))
        good = pb.Sequence(steps=steps, output_region=region)
        assert conn.call(raw.SEQUENCE, good, data)[1] == b""
        both = struct.pack("<2048f", *(2 * i for i in range(1024)), *(4 * i for i in range(1024)))
        assert os.pread(fd, 8192, 0) == both
        os.close(fd)
        served(conn)


def test_D05_regions_that_are_not_ones_own(daemon: Any) -> None:
    with Conn(daemon.address) as conn, Conn(daemon.address) as other:
        fd = memfd(bytes(4096))
        region = add(conn, fd, 4096)
        foreign = other.submit(double_graph(1024)).handle
        mine = conn.submit(double_graph(1024)).handle
        for one, graph, handle in ((other, foreign, region), (conn, mine, region ^ 1 << 40)):
            error = one.fails(raw.RUN, pb.Run(handle=graph, input_region=handle))
            refused(error, NOT_FOUND, "REGION")
            refused(one.fails(raw.REGION_DROP, pb.RegionDrop(handle=handle)), NOT_FOUND, "REGION")
        error = conn.fails(raw.RUN, pb.Run(handle=mine, output_region=region), bytes(4096))
        refused(error, INVALID, "REGION")
        run = pb.Run(handle=mine, input_region=region)
        refused(conn.fails(raw.RUN, run, bytes(4096)), INVALID, "SIZE")
        drop(conn, region)
        refused(conn.fails(raw.RUN, run), NOT_FOUND, "REGION")
        os.close(fd)
        served(conn)


def test_D14_a_region_that_goes_while_it_is_in_use(daemon: Any) -> None:
    count = 1 << 20
    with Conn(daemon.address) as conn:
        graph = conn.submit(double_graph(count)).handle
        data = struct.pack("<f", 1.5) * count
        for _ in range(5):
            fd = memfd(data + bytes(4 * count))
            region = add(conn, fd, 8 * count, True)
            run = pb.Run(handle=graph, input_region=region, output_region=region,
                         output_offset=4 * count)  # fmt: skip
            calls = [conn.send(raw.RUN, run) for _ in range(4)]
            drop(conn, region)
            for call in calls:
                assert conn.reply(call)[1] == b""
            assert os.pread(fd, 4 * count, 4 * count) == struct.pack("<f", 3.0) * count
            os.close(fd)
        raw.eventually(lambda: held(conn, "regions") == 0)
        gone = Conn(daemon.address)
        other = gone.submit(double_graph(count)).handle
        fd = memfd(data + bytes(4 * count))
        region = add(gone, fd, 8 * count, True)
        for _ in range(4):
            gone.send(raw.RUN, pb.Run(handle=other, input_region=region, output_region=region,
                                      output_offset=4 * count))  # fmt: skip
        gone.close()
        os.close(fd)
        served(conn)


def test_C19_ids_that_change_while_they_are_checked(daemon: Any) -> None:
    """The client writes other ids all the time: each run is right or refused, and nothing is read
    outside."""
    rows, count = 64, 4096
    graph = Graph()
    table = graph.leaf(INPUT, F32, [16, rows], "table")
    ids = graph.leaf(INPUT, I32, [count], "ids")
    graph.node("GET_ROWS", F32, [16, count], (table, ids), output=True)
    values = b"".join(struct.pack("<16f", *[float(row)] * 16) for row in range(rows))
    good = struct.pack("<i", 7) * count
    bad = struct.pack("<i", 1 << 30) * count
    with Conn(daemon.address) as conn:
        handle = conn.submit(graph).handle
        fd = memfd(values + good)
        region = add(conn, fd, len(values) + len(good))
        stop = threading.Event()

        def flip() -> None:
            while not stop.is_set():
                os.pwrite(fd, bad, len(values))
                os.pwrite(fd, good, len(values))

        thread = threading.Thread(target=flip)
        thread.start()
        right = struct.pack("<16f", *[7.0] * 16) * count
        ends = set()
        for _ in range(60):
            try:
                out = conn.run(handle, b"", input_region=region)
                assert out == right
                ends.add("right")
            except raw.RawError as error:
                refused(error, RANGE, "INDEX_VALUE")
                ends.add("refused")
        stop.set()
        thread.join()
        os.pwrite(fd, good, len(values))
        assert conn.run(handle, b"", input_region=region) == right
        assert ends
        os.close(fd)
        served(conn)


@pytest.mark.parametrize("where", ["host", "cpu0"])
def test_D02_contents_that_are_passed(daemon: Any, where: str) -> None:
    size = LEAF + 8192
    data = os.urandom(size)
    place = raw.rules([("*", where)])
    with Conn(daemon.address) as conn:
        fd = memfd(data, SIZE_SEALS | WRITE)
        before = conn.stats()["bytes_in_total"]
        reply = conn.reply(
            put_fd(conn, fd, size, raw.tree_digest(data), placement=place), pb.WeightsPutReply
        )[0]
        assert conn.stats()["bytes_in_total"] - before < 4096
        assert reply.set.digest == raw.tree_digest(data) and not reply.already
        graph = Graph()
        w = graph.leaf(raw.WEIGHT, F32, [size // 4], "w")
        graph.node("CONT", F32, [size // 4], (w,), output=True)
        handle = conn.submit(graph, weights=[reply.set.handle]).handle
        os.close(fd)
        assert conn.run(handle, b"") == data
        again = memfd(data, SIZE_SEALS | WRITE)
        call = put_fd(conn, again, size, raw.tree_digest(data), placement=place)
        assert conn.reply(call, pb.WeightsPutReply)[0].already
        os.close(again)
        wrong = memfd(data[:-1] + bytes([data[-1] ^ 1]), SIZE_SEALS | WRITE)
        digest = hashlib.sha256(b"another").digest()
        for named in (raw.tree_digest(data)[::-1], digest):
            refused(refusal(conn, put_fd(conn, wrong, size, named)), DATA_LOSS, "DIGEST")
        os.close(wrong)
        served(conn)


def test_D02_contents_that_are_passed_again_for_another_place(launch_behind: Any) -> None:
    """What is held of them at one place pays for no second copy, not even while it is made."""
    size = 1 << 16
    limits = {"principal_upload_bytes": str(size * 5 // 2)}
    target = launch_behind(
        devices=[device("cpu0", threads=1, memory="isolated"), device("host", threads=1)],
        sections={"limits": limits},
    )
    data, other = os.urandom(size), os.urandom(size)
    here, there = (raw.rules([("*", where)]) for where in ("cpu0", "host"))
    first, second = (memfd(one, SIZE_SEALS | WRITE) for one in (data, other))

    def put(conn: Conn, fd: int, contents: bytes, place: Any) -> int:
        return put_fd(conn, fd, size, raw.tree_digest(contents), placement=place)

    with Conn(target) as conn:
        conn.reply(put(conn, first, data, here), pb.WeightsPutReply)
        filler = conn.reply(put(conn, second, other, here), pb.WeightsPutReply)[0].set.handle
        assert held(conn, "upload_bytes", "principal") == 2 * size
        error = refused(refusal(conn, put(conn, first, data, there)), EXHAUSTED, "LIMIT")
        assert (error.field, error.limit) == ("principal_upload_bytes", size * 5 // 2)
        raw.eventually(lambda: held(conn, "upload_bytes", "principal") == 2 * size)
        conn.call(raw.DROP, pb.WeightsDrop(handle=filler))
        raw.eventually(lambda: held(conn, "upload_bytes", "principal") == size)
        reply = conn.reply(put(conn, first, data, there), pb.WeightsPutReply)[0]
        assert reply.set.digest == raw.tree_digest(data) and not reply.already
        raw.eventually(lambda: held(conn, "upload_bytes", "principal") == size)
        raw.eventually(lambda: held(conn, "descriptors", "principal") == 1)
        served(conn)
    os.close(first)
    os.close(second)
