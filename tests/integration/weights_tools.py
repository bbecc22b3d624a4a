"""What tests of weights share: a set of two tensors, uploads by hand, a graph that reads one, files."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import raw
from raw import F32, INPUT, MORE, WEIGHT, Conn, Graph, pb

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
