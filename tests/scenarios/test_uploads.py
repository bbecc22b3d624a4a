"""Scenarios of uploads and of the cache on disk: who hashes, what stays, what a name stands for."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
import raw
from raw import F32, I8, INPUT, PERMISSION, WEIGHT, Conn, Graph, pb
from run_daemon import device

FULL = bool(os.environ.get("HEADRACE_FULL"))
LEAF = 4 << 20
DEVICES = [device("cpu0", threads=1, memory="isolated"), device("host", threads=1)]


def hashed_ns(daemon: Any) -> dict[str, int]:
    """What each of the threads that hash has run for."""
    found = {}
    for task in Path(f"/proc/{daemon.process.pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith("hr-hash"):
            found[name] = int((task / "schedstat").read_text().split()[0])
    return found


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("streams", [1, 4, 16])
def test_b053_streams_are_hashed_side_by_side(daemon: Any, streams: int) -> None:
    """However many connections bring a set, every thread that hashes has its part in it."""
    leaves = 256 if FULL else 12
    block = random.Random(streams).randbytes(1 << 20)
    data = b"".join(block[i % 1000 :] + block[: i % 1000] for i in range(leaves * 4))
    tensors = [("t", I8, [len(data)], data)]
    digest = raw.tree_digest(data)
    message = pb.WeightsPut(name="wide", total_bytes=len(data), digest=digest, resume=True)
    body = raw.manifest(tensors).SerializeToString()
    before = hashed_ns(daemon)

    def bring(conn: Conn, call: int) -> None:
        conn.pull(call, data)
        replies.append(conn.reply(call)[0].set)

    replies: list[Any] = []
    conns = [Conn(daemon.tcp_address) for _ in range(streams)]
    calls = [conn.send(raw.PUT, message, body, flags=raw.MORE) for conn in conns]
    threads = [
        threading.Thread(target=bring, args=pair) for pair in zip(conns, calls, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {(one.bytes, one.digest) for one in replies} == {(len(data), digest)}
    assert len(replies) == streams
    after = hashed_ns(daemon)
    assert len(after) > 1 or len(os.sched_getaffinity(0)) == 1
    grown = [after[name] - before.get(name, 0) for name in after]
    # A leaf takes milliseconds: whoever has run for one has hashed one.
    assert all(ns > 1_000_000 for ns in grown), grown
    for conn in conns:
        conn.close()


def files_bytes(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in folder.iterdir())


def test_b055_the_cache_keeps_its_limit(
    launch_watched: Callable[..., Any], tmp_path: Path
) -> None:
    """Ten variants of a model in a cache for three; figures, and a way to empty it."""
    size = LEAF + 4096
    limit = 3 * size
    folder = tmp_path / "cache"
    models = {"cache_directory": folder, "cache_bytes": limit}
    running = launch_watched(devices=DEVICES, sections={"models": models})
    variants = [
        {"w": np.random.default_rng(seed).integers(0, 1 << 30, size // 4, np.int32)}
        for seed in range(10)
    ]
    with headrace.connect(running.address) as client:

        def cached(what: str) -> float:
            return client.stats().value(f"weight_cache_{what}")

        def is_cached(digest: bytes) -> bool:
            return (folder / f"{digest.hex()}.w").exists()

        for number, variant in enumerate(variants):
            made = client.put(f"variant{number}", variant)
            digest = made.info.digest
            raw.eventually(lambda digest=digest: is_cached(digest))  # type: ignore[misc]
            raw.eventually(lambda: files_bytes(folder) <= limit)
            assert cached("bytes") <= limit
            client.drop(made)
        # Small ones of the bystander's may have taken a place.
        assert is_cached(digest) and 2 * size <= files_bytes(folder) <= limit
        entries, held = client.purge()
        assert entries >= 2 and 2 * size <= held <= limit
        raw.eventually(lambda: not any(is_cached(d) for d in [digest]))
        again = client.put("again", variants[9])
        assert not again.already


# Equal under FNV-1a with 64 bits, and as long as each other.
COLLIDING = (b"8yn0iYCKYHlIj4-BwPqk", b"GReLUrM4wMqfg9yzV3KQ")


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def bytes_of(conn: Conn, handle: int, size: int) -> bytes:
    """What the set's tensor `t` holds, through a graph."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [size // 4], "x")
    t = graph.leaf(WEIGHT, F32, [size // 4], "t")
    graph.node("ADD", F32, [size // 4], (t, x), output=True)
    return conn.run(conn.submit(graph, weights=[handle]).handle, bytes(size))


@pytest.mark.usefixtures("guarded")
def test_b056_a_short_hash_is_no_name(address: str) -> None:
    """Contents that a 64-bit hash takes for each other, and one that only is longer, are other sets."""
    assert fnv1a(COLLIDING[0]) == fnv1a(COLLIDING[1])
    contents = [text + bytes(44) for text in COLLIDING]
    contents.append(contents[0] + bytes(64))
    with Conn(address) as conn:
        made = []
        for data in contents:
            info = conn.put("t", [("t", F32, [len(data) // 4], data)], raw.tree_digest(data))
            assert info.digest == hashlib.sha256(hashlib.sha256(data).digest()).digest()
            made.append(info)
        assert len({info.digest for info in made}) == 3
        for info, data in zip(made, contents, strict=True):
            wanted = struct.pack(f"<{len(data) // 4}f", *(
                value + 0.0 for value in struct.unpack(f"<{len(data) // 4}f", data)
            ))  # fmt: skip
            assert bytes_of(conn, info.handle, len(data)) == wanted
        # The first bytes of a digest name nothing.
        for digest in (made[0].digest[:8] + bytes(24), bytes(32)):
            reply, _ = conn.call(raw.QUERY, pb.WeightsQuery(digests=digest))
            assert list(reply.state) == [0]


def test_b056_only_who_may_load_asks_for_digests(launch_watched: Callable[..., Any]) -> None:
    """Whether contents are there, or a name for them, only those learn who may bring them in."""
    tokens = {"loader": "a" * 40, "runner": "b" * 40}
    sections: dict[str, dict[str, object]] = {
        "principal tests": {"uid": os.getuid(), "permissions": "run, load, admin"}
    }
    for name, token in tokens.items():
        sections[f"principal {name}"] = {
            "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
            "permissions": "run, load" if name == "loader" else "run",
        }
    running = launch_watched(devices=DEVICES, tcp=True, sections=sections)

    def enter(name: str) -> Conn:
        conn = Conn(running.tcp_address, hello=False)
        conn.call(raw.HELLO, pb.Hello(protocol_min=1, protocol_max=1,
                                      credentials=tokens[name].encode()))  # fmt: skip
        return conn

    data = bytes(range(256))
    digest = raw.tree_digest(data)
    with Conn(running.address) as owner, enter("loader") as loader, enter("runner") as runner:
        owner.put("t", [("t", F32, [64], data)], digest)
        assert list(loader.call(raw.QUERY, pb.WeightsQuery(digests=digest))[0].state)[0] in (1, 2)
        error = runner.fails(raw.QUERY, pb.WeightsQuery(digests=digest))
        assert error.code == PERMISSION
        message = pb.WeightsPut(name="t", total_bytes=256, digest=digest)
        body = raw.manifest([("t", F32, [64], data)]).SerializeToString()
        with pytest.raises(raw.RawError) as caught:
            runner.reply(runner.send(raw.PUT, message, body, flags=raw.MORE))
        assert caught.value.code == PERMISSION
