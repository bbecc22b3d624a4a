"""Weights: uploads and files, and where they lie. What is hostile about them: tests/hostile."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raw
from raw import F32, INVALID, NOT_FOUND, Conn, eventually, pb
from weights_tools import BIG, FLOATS, KEY, begin_put, gguf, names, pick, refusal

pytestmark = pytest.mark.usefixtures("guarded")

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
        assert conn.fails(raw.TENSORS, pb.WeightsTensors(handle=info.handle)).code == NOT_FOUND
        assert "up" in names(conn)  # its contents are there, and may be found
        assert conn.run(handle, bytes(12)) == BIG[1][3]
        conn.call(raw.RELEASE, pb.Release(handle=handle))
        eventually(lambda: "up" not in names(conn))


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
