"""Hostile paths and files (HOSTILE E): paths that lead elsewhere are all one answer, files that are none are
refused with the part that is wrong, and nothing outside of a file is ever read."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
import raw
from expect import refused, served
from raw import DATA_LOSS, F32, INVALID, NOT_FOUND, Conn, pb
from weights_tools import BIG, FLOATS, KEY, gguf, names, pick

pytestmark = pytest.mark.usefixtures("guarded")


@pytest.fixture
def model(model_folder: Path) -> Path:
    path = model_folder / "good.gguf"
    if not path.exists():
        path.write_bytes(gguf(BIG, KEY, 1))
    return path


# ---- paths ---------------------------------------------------------------------------------------

BAD_PATHS = [
    "/etc/passwd", "../good.gguf", "./good.gguf", "sub/../good.gguf", "good.gguf/", "//x",
    "sub//good.gguf", "..", ".", "/", "/proc/self/fd/3", "good.gguf\n", "a\0b", "good.gguf\0.txt",
    "../" * 30 + "etc/passwd", "x" * 4096, "x" * 256, "\x7f",
]  # fmt: skip
URLS = ["https://example.com/good.gguf", "file:///etc/passwd", "http://127.0.0.1/x", "hf:a/b"]
ODD_NAMES = ["a/" * 500 + "b", "x" * 255, "0" * 63, "0" * 65, "no such file", "*"]


def loads(conn: Conn, path: str) -> Any:
    return conn.fails(raw.LOAD, pb.WeightsLoad(path=path))


@pytest.mark.parametrize("path", BAD_PATHS)
def test_E01_paths_that_lead_elsewhere(address: str, model: Path, path: str) -> None:
    with Conn(address) as conn:
        reason = "UTF8" if "\0" in path else "DECODE" if len(path) > 1024 else "PATH"
        error = refused(loads(conn, path), INVALID, reason)
        assert str(model.parent) not in error.words and "passwd" not in error.words
        served(conn)


@pytest.mark.parametrize("path", ODD_NAMES)
def test_E01_names_of_nothing(address: str, model: Path, path: str) -> None:
    with Conn(address) as conn:
        refused(loads(conn, path), NOT_FOUND, "FILE")
        served(conn)


@pytest.mark.parametrize("path", URLS)
def test_E04_urls_are_never_fetched(address: str, model: Path, path: str) -> None:
    with Conn(address) as conn:
        if "//" in path:
            refused(loads(conn, path), INVALID, "PATH")
        else:
            refused(loads(conn, path), NOT_FOUND, "FILE")
        served(conn)


def test_E02_only_regular_files_below(address: str, model: Path) -> None:
    """Links of every kind, folders, pipes and devices are not there."""
    folder = model.parent
    made = {
        "link": lambda path: path.symlink_to("good.gguf"),
        "out": lambda path: path.symlink_to("/etc/passwd"),
        "loop": lambda path: path.symlink_to("loop"),
        "folder": lambda path: path.mkdir(),
        "fifo": lambda path: os.mkfifo(path),
        "socket.d": lambda path: path.symlink_to("/proc/self/fd"),
    }
    if os.getuid() == 0:
        made["zero"] = lambda path: os.mknod(path, 0o20666, os.makedev(1, 5))
    for name, make in made.items():
        if not (folder / name).exists() and not (folder / name).is_symlink():
            make(folder / name)
    with Conn(address) as conn:
        missing = loads(conn, "missing")
        for name in [*made, "socket.d/3", "folder/x", "link/x", "good.gguf/x"]:
            error = loads(conn, name)
            refused(error, NOT_FOUND, "FILE")
            assert error.words == missing.words, name
        served(conn)


def test_E02_a_link_swapped_in_while_files_are_opened(address: str, model: Path) -> None:
    """A file of the folder, or nothing: never what a link leads to."""
    path, outside = model.parent / "swapped", model.parent.parent / f"outside-{os.getpid()}.gguf"
    outside.write_bytes(gguf([("outside", F32, [2], bytes(8))]))
    inside = gguf([("inside", F32, [2], struct.pack("<2f", 1, 2))])
    stop = threading.Event()

    def swap() -> None:
        spare = model.parent / "spare"
        while not stop.is_set():
            spare.write_bytes(inside)
            spare.rename(path)
            spare.symlink_to(outside)
            spare.rename(path)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        with Conn(address) as conn:
            for _ in range(200):
                try:
                    reply, _ = conn.call(raw.LOAD, pb.WeightsLoad(path="swapped"))
                except raw.RawError as error:
                    assert error.code in (NOT_FOUND, INVALID, DATA_LOSS), error
                    assert error.reason in ("FILE", "GGUF"), error
                    refused(error, error.code, error.reason)
                    continue
                listed = pb.WeightsTensors(handle=reply.set.handle)
                _, body = conn.call(raw.TENSORS, listed)
                assert pb.Manifest.FromString(body).names == b"inside"
                conn.call(raw.DROP, pb.WeightsDrop(handle=reply.set.handle))
            served(conn)
    finally:
        stop.set()
        swapper.join()
        outside.unlink()


# ---- what is in them -----------------------------------------------------------------------------


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
ROWS = {
    "E07": ["tensors 2^64-1", "tensors 2^31", "keys 2^64-1", "key length", "name length"],
    "E08": ["extent", "dimensions", "alignment"],
    "E10": ["offset", "unaligned", "cut", "cut table", "empty"],
    "E11": ["same keys", "same names", "nested", "value type", "type", "magic", "version",
            "big-endian"],
}  # fmt: skip


def told(address: str, model: Path, kind: str) -> None:
    name = "bad-" + kind.replace(" ", "-").replace("^", "")
    (model.parent / name).write_bytes(BAD_FILES[kind])
    with Conn(address) as conn:
        error = loads(conn, name)
        assert str(model.parent) not in error.words
        refused(error, INVALID, {"same names": "NAME", "type": "DTYPE"}.get(kind, "GGUF"))
        assert name not in names(conn)
        served(conn)


@pytest.mark.parametrize("kind", ROWS["E07"])
def test_E07_counts_beyond_the_file(address: str, model: Path, kind: str) -> None:
    """Reason: GGUF."""
    told(address, model, kind)


@pytest.mark.parametrize("kind", ROWS["E08"])
def test_E08_sizes_that_wrap(address: str, model: Path, kind: str) -> None:
    """Reason: GGUF."""
    told(address, model, kind)


@pytest.mark.parametrize("kind", ROWS["E10"])
def test_E10_offsets_out_of_the_file(address: str, model: Path, kind: str) -> None:
    """Reason: GGUF."""
    told(address, model, kind)


@pytest.mark.parametrize("kind", ROWS["E11"])
def test_E11_metadata_that_is_none(address: str, model: Path, kind: str) -> None:
    """Reasons: GGUF, NAME, DTYPE."""
    told(address, model, kind)


def test_E10_every_cut_of_a_small_file(address: str, model: Path) -> None:
    data = bytes(gguf([BIG[1]], KEY, 1))
    path = model.parent / "cut.gguf"
    with Conn(address) as conn:
        for size in range(0, len(data) - 20, 7):
            path.write_bytes(data[:size])
            refused(loads(conn, "cut.gguf"), INVALID, "GGUF")
        path.write_bytes(data)
        assert conn.call(raw.LOAD, pb.WeightsLoad(path="cut.gguf"))[0].set.tensors == 1
        served(conn)


# ---- files that change under the map -------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 4096, 100000])
def test_E05_a_file_that_is_cut_while_it_is_mapped(
    address: str, model_folder: Path, size: int
) -> None:
    """Its runs end with DATA_LOSS and so does whatever reads it; a new file of that name is another set."""
    path = model_folder / f"shrinks-{size}.gguf"
    path.write_bytes(gguf(BIG, KEY, 1))
    with Conn(address) as conn:
        reply, _ = conn.call(raw.LOAD, pb.WeightsLoad(path=path.name))
        handle = conn.submit(pick("big", FLOATS), weights=[reply.set.handle]).handle
        assert conn.run(handle, bytes(4 * FLOATS)) == BIG[0][3]
        os.truncate(path, size)
        for _ in range(2):
            error = conn.fails(
                raw.RUN, pb.Run(handle=handle, input_bytes=4 * FLOATS), bytes(4 * FLOATS)
            )
            refused(error, DATA_LOSS, "FILE")
        served(conn)
        new = model_folder / "new.tmp"
        new.write_bytes(gguf(BIG, KEY, 1))
        new.rename(path)
        again, _ = conn.call(raw.LOAD, pb.WeightsLoad(path=path.name))
        handle = conn.submit(pick("big", FLOATS), weights=[again.set.handle]).handle
        assert conn.run(handle, bytes(4 * FLOATS)) == BIG[0][3]


def test_E05_a_file_that_is_replaced_while_it_is_mapped(address: str, model_folder: Path) -> None:
    """The set keeps what it had."""
    path = model_folder / "replaced-mapped.gguf"
    path.write_bytes(gguf(BIG, KEY, 1))
    with Conn(address) as conn:
        reply, _ = conn.call(raw.LOAD, pb.WeightsLoad(path=path.name))
        handle = conn.submit(pick("small", 3), weights=[reply.set.handle]).handle
        new = model_folder / "new.tmp"
        new.write_bytes(gguf([("other", F32, [2], bytes(8))]))
        new.rename(path)
        assert conn.run(handle, bytes(12)) == BIG[1][3]
        served(conn)
