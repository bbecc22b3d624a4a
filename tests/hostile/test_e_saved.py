"""Hostile things that were saved (HOSTILE E): copies of weights on disk and states of other daemons that are
cut, changed or not what they say. They are noticed, named and gone; what is sent anew is right."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raw
from devices import THREE_DEVICES
from expect import refused, served
from raw import F32, INVALID, UNAVAILABLE, WEIGHT, Conn, Graph, eventually, pb
from run_daemon import Daemon

pytestmark = pytest.mark.usefixtures("guarded")

SIZE = 64 << 10


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved") / "cache"


@pytest.fixture(scope="module")
def daemon(door: str, start_behind: Callable[..., Daemon], cache: Path) -> Iterator[Daemon]:
    running = start_behind(
        door,
        devices=THREE_DEVICES,
        sections={"models": {"cache_directory": cache, "cache_bytes": "64M"}},
    )
    yield running
    running.stop()


def content(seed: int) -> bytes:
    return b"".join(hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range(SIZE // 32))


def names(conn: Conn) -> set[str]:
    _, body = conn.call(raw.LIST, pb.WeightsList())
    return {one.name for one in pb.WeightSets.FromString(body).sets}


def put(conn: Conn, data: bytes) -> Any:
    tensors = [("w", F32, [SIZE // 4], data)]
    return conn.put("saved", tensors, digest=raw.tree_digest(data))


def read_back(conn: Conn, handle: int) -> bytes:
    graph = Graph()
    w = graph.leaf(WEIGHT, F32, [SIZE // 4], "w")
    graph.node("CONT", F32, [SIZE // 4], (w,), output=True)
    submitted = conn.submit(graph, weights=[handle]).handle
    found = conn.run(submitted, b"")
    conn.call(raw.RELEASE, pb.Release(handle=submitted))
    return found


def damaged(path: Path, damage: str) -> None:
    whole = path.read_bytes()
    if damage == "bit":
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    elif damage == "short":
        path.write_bytes(whole[: SIZE // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "long":
        path.write_bytes(whole + b"x")
    else:  # what another version may have left under that name
        path.write_bytes(b"HRCACHE\x02" + bytes(SIZE))


@pytest.mark.parametrize("damage", ["bit", "short", "empty", "long", "version"])
def test_E13_damaged_copies_of_weights(address: str, cache: Path, damage: str) -> None:
    data = content(1)
    copy = cache / f"{raw.tree_digest(data).hex()}.w"
    with Conn(address) as conn:
        made = put(conn, data)
        eventually(copy.exists)
        conn.call(raw.DROP, pb.WeightsDrop(handle=made.handle))
        eventually(lambda: "saved" not in names(conn))
        before = conn.stats()['weight_cache_total{event="damaged"}']
        damaged(copy, damage)
        with pytest.raises(raw.RawError) as caught:
            put(conn, data)
        refused(caught.value, UNAVAILABLE, "CACHE")
        assert conn.stats()['weight_cache_total{event="damaged"}'] == before + 1
        made = put(conn, data)
        assert read_back(conn, made.handle) == data
        conn.call(raw.DROP, pb.WeightsDrop(handle=made.handle))
        served(conn)


def test_E13_states_that_are_cut_or_changed(address: str) -> None:
    manifest = raw.manifest([("s", F32, [16], b"")]).SerializeToString()
    with Conn(address) as conn:
        handle = conn.call(raw.STATE_ALLOC, pb.StateAlloc(), manifest)[0].handle
        reply, saved = conn.call(raw.STATE_SAVE, pb.StateSave(handle=handle))
        size = reply.manifest_bytes

        def restore(body: bytes, manifest_bytes: int = size) -> raw.RawError:
            return conn.fails(
                raw.STATE_RESTORE, pb.StateRestore(manifest_bytes=manifest_bytes), body
            )

        for cut in range(len(saved)):
            assert restore(saved[:cut]).code == INVALID
        refused(restore(saved[:-1]), INVALID, "SIZE")
        refused(restore(saved + b"x"), INVALID, "SIZE")
        refused(restore(saved, size + 1), INVALID, "DECODE")
        refused(restore(b"\xff" * size + saved[size:]), INVALID, "DECODE")
        again = conn.call(raw.STATE_RESTORE, pb.StateRestore(manifest_bytes=size), saved)[0].handle
        for one in (handle, again):
            conn.call(raw.STATE_FREE, pb.StateFree(handle=one))
        served(conn)
