"""Weights (HOSTILE D1, D2, E1 to E11): uploads that stop, lie or are torn; paths that lead
elsewhere; files that are none. Nothing is visible before it is complete and verified."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raw
from raw import (
    DATA_LOSS, EXHAUSTED, F32, INPUT, INVALID, MORE, NOT_FOUND, Q8_0, RANGE, WEIGHT, Conn, Graph,
    pb,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("guarded")

FLOATS = 300000
BIG = [("big", F32, [FLOATS], struct.pack(f"<{FLOATS}f", *range(FLOATS))),
       ("small", F32, [3], struct.pack("<3f", 1, 2, 3))]  # fmt: skip


def names(conn: Conn) -> list[str]:
    _, body = conn.call(raw.LIST)
    return [one.name for one in pb.WeightSets.FromString(body).sets]


def begin_put(conn: Conn, tensors: Any, digest: bytes = b"", name: str = "up", **keys: Any) -> int:
    total = keys.pop("total_bytes", len(raw.contents(tensors)))
    message = pb.WeightsPut(name=name, total_bytes=total, digest=digest, **keys)
    return conn.send(raw.PUT, message, raw.manifest(tensors).SerializeToString(), flags=MORE)


def refusal(conn: Conn, call: int) -> raw.RawError:
    with pytest.raises(raw.RawError) as caught:
        conn.reply(call)
    return caught.value


def pick(name: str, count: int) -> Graph:
    """out = tensor + 0"""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [count], "x")
    w = graph.leaf(WEIGHT, F32, [count], name)
    graph.node("ADD", F32, [count], (x, w), output=True)
    return graph


# ---- uploads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["host", "cpu0", "cpu1"])
@pytest.mark.parametrize("with_digest", [False, True])
def test_put_then_use(address: str, device: str, with_digest: bool) -> None:
    digest = raw.tree_digest(raw.contents(BIG))
    with Conn(address) as conn:
        info = conn.put("up", BIG, digest if with_digest else b"", [("big", device)])
        assert info.digest == digest and info.source == "upload" and info.tensors == 2
        handle = conn.submit(pick("big", FLOATS), weights=[info.handle]).handle
        out = conn.run(handle, bytes(4 * FLOATS))
        assert out == BIG[0][3]
        _, body = conn.call(raw.TENSORS, pb.WeightsTensors(handle=info.handle))
        assert pb.Manifest.FromString(body) == raw.manifest(BIG)


def test_set_outlives_its_handle_while_a_graph_uses_it(address: str) -> None:
    with Conn(address) as conn:
        info = conn.put("up", BIG)
        handle = conn.submit(pick("small", 3), weights=[info.handle]).handle
        conn.call(raw.DROP, pb.WeightsDrop(handle=info.handle))
        assert "up" not in names(conn)
        assert conn.run(handle, bytes(12)) == BIG[1][3]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_d01_upload_that_stops(address: str, share: float) -> None:
    data = raw.contents(BIG)
    with Conn(address) as watcher:
        with Conn(address) as conn:
            call = begin_put(conn, BIG)
            conn.stream(call, data[: int(len(data) * share)], last=False)
            assert "up" not in names(watcher) and "up" not in names(conn)
        raw.eventually(lambda: watcher.stats()["weight_sets_in_work"] <= 1)
        assert "up" not in names(watcher)


def test_d01_cancelled_upload(address: str) -> None:
    data = raw.contents(BIG)
    with Conn(address) as conn:
        call = begin_put(conn, BIG)
        conn.stream(call, data[:100000], last=False)
        reply, _ = conn.call(raw.CANCEL, pb.Cancel(request_id=call))
        assert reply.found
        assert refusal(conn, call).code == raw.CANCELLED
        assert conn.put("up", BIG).handle


@pytest.mark.parametrize("at", [0, 4 * FLOATS // 2, -1])
@pytest.mark.parametrize("device", ["host", "cpu0"])
def test_d02_one_wrong_bit(address: str, at: int, device: str) -> None:
    data = bytearray(raw.contents(BIG))
    digest = raw.tree_digest(bytes(data))
    data[at] ^= 1
    with Conn(address) as conn:
        call = begin_put(conn, BIG, digest, placement=raw.rules([("*", device)]))
        conn.stream(call, bytes(data))
        error = refusal(conn, call)
        assert (error.code, error.reason) == (DATA_LOSS, "DIGEST")
        assert "up" not in names(conn)
        assert conn.put("up", BIG, digest).digest == digest


def test_d01_two_uploads_of_the_same(address: str) -> None:
    with Conn(address) as first, Conn(address) as second:
        data = raw.contents(BIG)
        calls = [(conn, begin_put(conn, BIG, raw.tree_digest(data))) for conn in (first, second)]
        for conn, call in calls:
            conn.stream(call, data)
        for conn, call in calls:
            info = conn.reply(call)[0].set
            handle = conn.submit(pick("small", 3), weights=[info.handle]).handle
            assert conn.run(handle, bytes(12)) == BIG[1][3]


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
def test_lying_manifests(address: str, kind: str) -> None:
    manifest = LYING_MANIFESTS[kind].SerializeToString()
    with Conn(address) as conn:
        for total in (len(raw.contents(BIG)), 2**64 - 1, 2**63):
            message = pb.WeightsPut(name="up", total_bytes=total)
            call = conn.send(raw.PUT, message, manifest, flags=MORE)
            assert refusal(conn, call).code in (INVALID, EXHAUSTED)
        state = conn.fails(raw.STATE_ALLOC, pb.StateAlloc(), manifest) if "announced" not in kind \
            else None  # fmt: skip
        assert state is None or state.code in (INVALID, EXHAUSTED)
        conn.ping()


@pytest.mark.parametrize("total", [0, 1, 2**32, 2**64 - 1])
def test_totals_that_are_not_the_manifests(address: str, total: int) -> None:
    with Conn(address) as conn:
        call = begin_put(conn, BIG, total_bytes=total)
        assert refusal(conn, call).code in (INVALID, EXHAUSTED)
        assert conn.put("up", BIG).handle


@pytest.mark.parametrize("digest", [b"x", bytes(31), bytes(33)])
def test_digests_of_another_length(address: str, digest: bytes) -> None:
    with Conn(address) as conn:
        call = begin_put(conn, BIG, digest)
        assert refusal(conn, call).code == INVALID


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (("*", "nosuch"), NOT_FOUND),
        (("*", ""), NOT_FOUND),
        (("*", "fit:cpu0=0"), INVALID),
        (("*", "fit:cpu0=1,cpu0=1"), INVALID),
        (("*", "fit:cpu0,nosuch"), NOT_FOUND),
    ],
)
def test_placement_rules_that_are_none(address: str, rule: tuple[str, str], code: int) -> None:
    with Conn(address) as conn:
        call = begin_put(conn, BIG, placement=raw.rules([rule]))
        assert refusal(conn, call).code == code
        body = raw.manifest(BIG).SerializeToString()
        alloc = pb.StateAlloc(placement=raw.rules([rule]))
        assert conn.fails(raw.STATE_ALLOC, alloc, body).code == code


def test_placement_by_rule_and_by_share(address: str) -> None:
    """What goes where shows in the devices' memory."""
    tensors = [(f"blk.{i}.w", F32, [1000], bytes(4000)) for i in range(10)]
    with Conn(address) as conn:
        for placement, low in (
            ([("blk.[0-2].*", "cpu0"), ("*", "cpu1")], 12000),
            ([("*", "fit:cpu0=3,cpu1=7")], 12000),
        ):
            before = conn.stats()['device_memory_used_bytes{device="cpu0"}']
            info = conn.put("placed", tensors, placement=placement)
            used = conn.stats()['device_memory_used_bytes{device="cpu0"}'] - before
            assert low <= used <= low + 4096
            conn.call(raw.DROP, pb.WeightsDrop(handle=info.handle))


def test_patterns_made_to_be_slow(address: str) -> None:
    tensors = [("a" * 200 + str(i), F32, [1], bytes(4)) for i in range(50)]
    rules = [("*a" * 60 + "b", "cpu0")] * 50
    with Conn(address) as conn:
        info = conn.put("slow", tensors, placement=rules)
        assert info.tensors == 50


# ---- files ---------------------------------------------------------------------------------------


def gguf(tensors: list[tuple[str, int, list[int], bytes]], keys: bytes = b"", key_count: int = 0,
         version: int = 3) -> bytearray:  # fmt: skip
    """A file with F32 tensors, 32-byte aligned."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), key_count) + keys)
    offset = 0
    for name, type, ne, data in tensors:
        out += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(ne))
        out += struct.pack(f"<{len(ne)}Q", *ne) + struct.pack("<IQ", type, offset)
        offset += len(data) + -len(data) % 32
    out += bytes(-len(out) % 32)
    for *_, data in tensors:
        out += data + bytes(-len(data) % 32)
    return out


KEY = struct.pack("<Q", 3) + b"key" + struct.pack("<II", 4, 7)


@pytest.fixture
def model(model_folder: Path, request: pytest.FixtureRequest) -> Path:
    path = model_folder / "good.gguf"
    if not path.exists():
        path.write_bytes(gguf(BIG, KEY, 1))
    return path


@pytest.mark.parametrize("device", ["host", "cpu0"])
def test_load_then_use(address: str, model: Path, device: str) -> None:
    with Conn(address) as conn:
        message = pb.WeightsLoad(path="good.gguf", placement=raw.rules([("big", device)]))
        reply, metadata = conn.call(raw.LOAD, message)
        assert reply.set.name == "good.gguf" and reply.set.source == "file"
        assert (reply.metadata_count, metadata) == (1, KEY)
        again, _ = conn.call(raw.LOAD, message)
        assert again.already
        for handle in (reply.set.handle, again.set.handle):
            graph = conn.submit(pick("big", FLOATS), weights=[handle]).handle
            assert conn.run(graph, bytes(4 * FLOATS)) == BIG[0][3]


BAD_PATHS = [
    "", "/etc/passwd", "../good.gguf", "./good.gguf", "sub/../good.gguf", "good.gguf/", "//x",
    "sub//good.gguf", "..", ".", "/", "https://example.com/good.gguf", "file:///etc/passwd",
    "good.gguf\n", "a/" * 500 + "b", "x" * 256,
]  # fmt: skip


@pytest.mark.parametrize("path", BAD_PATHS)
def test_e01_e04_paths_that_lead_elsewhere(address: str, model: Path, path: str) -> None:
    with Conn(address) as conn:
        error = conn.fails(raw.LOAD, pb.WeightsLoad(path=path))
        assert error.code in (INVALID, NOT_FOUND)
        assert str(model.parent) not in error.words and "passwd" not in error.words
        conn.ping()


@pytest.mark.parametrize("size", [1023, 1024, 4096, 60000])
def test_e01_long_paths(address: str, size: int) -> None:
    with Conn(address) as conn:
        assert conn.fails(raw.LOAD, pb.WeightsLoad(path="x" * size)).code in (INVALID, NOT_FOUND)


def test_e01_zero_byte_in_a_path(address: str, model: Path) -> None:
    with Conn(address) as conn:
        error = conn.fails(raw.LOAD, pb.WeightsLoad(path="good.gguf\0.txt"))
        assert error.code in (INVALID, NOT_FOUND)


def test_e02_only_regular_files_below(address: str, model: Path) -> None:
    folder = model.parent
    made = {
        "link": lambda path: path.symlink_to("good.gguf"),
        "out": lambda path: path.symlink_to("/etc/passwd"),
        "loop": lambda path: path.symlink_to("loop"),
        "folder": lambda path: path.mkdir(),
        "fifo": lambda path: os.mkfifo(path),
        "socket.d": lambda path: path.symlink_to("/proc/self/fd"),
    }
    for name, make in made.items():
        if not (folder / name).exists() and not (folder / name).is_symlink():
            make(folder / name)
    with Conn(address) as conn:
        missing = conn.fails(raw.LOAD, pb.WeightsLoad(path="missing"))
        assert missing.code == NOT_FOUND
        for name in [*made, "socket.d/3", "folder/x", "link/x", "good.gguf/x"]:
            error = conn.fails(raw.LOAD, pb.WeightsLoad(path=name))
            assert (error.code, error.reason, error.words) == (
                missing.code, missing.reason, missing.words), name  # fmt: skip


def tampered(at: int, data: bytes) -> bytes:
    out = gguf(BIG, KEY, 1)
    out[at : at + len(data)] = data
    return bytes(out)


FIRST_TENSOR = 24 + len(KEY)
BAD_FILES = {
    "empty": b"",
    "magic": b"GGML" + bytes(100),
    "version": tampered(4, struct.pack("<I", 1)),
    "big-endian": tampered(4, struct.pack(">I", 3)),
    "tensors 2^64-1": tampered(8, struct.pack("<Q", 2**64 - 1)),
    "tensors 2^31": tampered(8, struct.pack("<Q", 2**31)),
    "keys 2^64-1": tampered(16, struct.pack("<Q", 2**64 - 1)),
    "key length": tampered(24, struct.pack("<Q", 2**63)),
    "value type": tampered(24 + 11, struct.pack("<I", 99)),
    "name length": tampered(FIRST_TENSOR, struct.pack("<Q", 2**64 - 1)),
    "dimensions": tampered(FIRST_TENSOR + 11, struct.pack("<I", 5)),
    "extent": tampered(FIRST_TENSOR + 15, struct.pack("<Q", 2**63)),
    "type": tampered(FIRST_TENSOR + 23, struct.pack("<I", 77)),
    "offset": tampered(FIRST_TENSOR + 27, struct.pack("<Q", 2**40)),
    "unaligned": tampered(FIRST_TENSOR + 27, struct.pack("<Q", 1)),
    "cut": bytes(gguf(BIG, KEY, 1)[:-40]),
    "cut table": bytes(gguf(BIG, KEY, 1)[: FIRST_TENSOR + 20]),
    "same keys": bytes(gguf(BIG, KEY + KEY, 2)),
    "same names": bytes(gguf([BIG[1], BIG[1]])),
    "nested": bytes(gguf(BIG, struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 1)
                         + struct.pack("<IQ", 4, 0), 1)),
    "alignment": bytes(gguf(BIG, struct.pack("<Q", 17) + b"general.alignment"
                            + struct.pack("<II", 4, 3), 1)),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_FILES)
def test_e07_to_e11_files_that_are_none(address: str, model: Path, kind: str) -> None:
    name = "bad-" + kind.replace(" ", "-").replace("^", "")
    (model.parent / name).write_bytes(BAD_FILES[kind])
    with Conn(address) as conn:
        error = conn.fails(raw.LOAD, pb.WeightsLoad(path=name))
        assert error.code == INVALID, error
        assert str(model.parent) not in error.words
        conn.ping()


def test_e10_every_cut_of_a_small_file(daemon: Any, model: Path) -> None:
    data = bytes(gguf([BIG[1]], KEY, 1))
    path = model.parent / "cut.gguf"
    with Conn(daemon.address) as conn:
        for size in range(0, len(data) - 20, 7):
            path.write_bytes(data[:size])
            assert conn.fails(raw.LOAD, pb.WeightsLoad(path="cut.gguf")).code == INVALID
        path.write_bytes(data)
        assert conn.call(raw.LOAD, pb.WeightsLoad(path="cut.gguf"))[0].set.tensors == 1


def test_replaced_file_is_another_set(address: str, model: Path) -> None:
    path = model.parent / "replaced.gguf"
    with Conn(address) as conn:
        for value in (1.0, 2.0):
            new = model.parent / "new.tmp"
            new.write_bytes(gguf([("w", F32, [2], struct.pack("<2f", value, value))]))
            new.rename(path)
            reply, _ = conn.call(raw.LOAD, pb.WeightsLoad(path="replaced.gguf"))
            assert not reply.already
            graph = conn.submit(pick("w", 2), weights=[reply.set.handle]).handle
            assert struct.unpack("<2f", conn.run(graph, bytes(8))) == (value, value)


def test_no_model_directories(launch: Callable[..., Any]) -> None:
    from run_daemon import device

    bare = launch(devices=[device("cpu0", threads=1)])
    with Conn(bare.address) as conn:
        assert conn.fails(raw.LOAD, pb.WeightsLoad(path="good.gguf")).code == NOT_FOUND
        assert conn.fails(raw.LOAD, pb.WeightsLoad(path="../x")).code == INVALID


# ---- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "offset", "size", "good"),
    [
        (0, 0, 64, True), (1, 0, 8, True), (0, 64, 0, True), (0, 3, 5, True),
        (0, 0, 65, False), (0, 64, 1, False), (0, 65, 0, False), (0, 1, 2**64 - 1, False),
        (0, 2**64 - 1, 1, False), (0, 2**63, 2**63, False), (2, 0, 1, False),
        (2**32 - 1, 0, 1, False),
    ],
)  # fmt: skip
def test_d05_state_ranges(address: str, tensor: int, offset: int, size: int, good: bool) -> None:
    tensors = [("a", F32, [16], b""), ("b", F32, [2], b"")]
    with Conn(address) as conn:
        alloc, _ = conn.call(
            raw.STATE_ALLOC, pb.StateAlloc(), raw.manifest(tensors).SerializeToString()
        )
        where = {"handle": alloc.handle, "tensor": tensor, "offset": offset, "bytes": size}
        data = bytes(range(1, size + 1)) if size < 100 else b"1234"
        if good:
            conn.call(raw.STATE_WRITE, pb.StateWrite(**where), data)
            assert conn.call(raw.STATE_READ, pb.StateRead(**where))[1] == data
        else:
            assert conn.fails(raw.STATE_READ, pb.StateRead(**where)).code == RANGE
            flags = raw.END if size < 100 else MORE
            call = conn.send(raw.STATE_WRITE, pb.StateWrite(**where), data, flags=flags)
            assert refusal(conn, call).code in (RANGE, INVALID, EXHAUSTED)
            conn.call(raw.STATE_FREE, pb.StateFree(handle=alloc.handle))
            assert conn.fails(raw.STATE_READ, pb.StateRead(**where)).code == NOT_FOUND
        conn.ping()


@pytest.mark.parametrize("size", [0, 7, 9, 100])
def test_state_write_of_another_length(address: str, size: int) -> None:
    with Conn(address) as conn:
        alloc, _ = conn.call(
            raw.STATE_ALLOC, pb.StateAlloc(),
            raw.manifest([("a", F32, [16], b"")]).SerializeToString(),
        )  # fmt: skip
        where = {"handle": alloc.handle, "tensor": 0, "offset": 0, "bytes": 8}
        assert conn.fails(raw.STATE_WRITE, pb.StateWrite(**where), bytes(size)).code == INVALID
        assert conn.call(raw.STATE_READ, pb.StateRead(**where))[1] == bytes(8)
