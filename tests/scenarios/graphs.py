"""Graphs and numbers that several scenarios share."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import raw
from raw import F32, INPUT, Conn, Graph, pb

from headrace.explain import Explanation

COPIES = [1, 2, 4]


def floats(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def unfloats(data: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(data) // 4}f", data)


def bits(value: float) -> int:
    """A float as a parameter word."""
    return int.from_bytes(struct.pack("<f", value), "little")


def scale(graph: Graph, source: int, ne: list[int], factor: float, **keys: Any) -> int:
    return graph.node("SCALE", F32, ne, (source,), (bits(factor), 0), **keys)


def pins(**where: str) -> list[Any]:
    """pins(device="pattern")"""
    return [pb.Pin(pattern=pattern, device=device) for device, pattern in where.items()]


def ping_pong(count: int, hops: int = 2) -> Graph:
    """The input, sent back and forth between two devices (names a..., b...), and given back."""
    graph = Graph()
    last = graph.leaf(INPUT, F32, [count], "x")
    for hop in range(hops):
        last = scale(graph, last, [count], 2.0, name=f"a{hop}")
        last = scale(graph, last, [count], 0.5, name=f"b{hop}", output=hop == hops - 1)
    return graph


def submit_ping_pong(conn: Conn, count: int, hops: int = 2, **keys: Any) -> Any:
    return conn.submit(ping_pong(count, hops), pins=pins(cpu0="a*", cpu1="b*"), **keys)


def state(conn: Conn, tensors: list[tuple[str, int, list[int]]], where: str = "host") -> int:
    message = pb.StateAlloc(placement=raw.rules([("*", where)]))
    body = raw.manifest([(*one, b"") for one in tensors]).SerializeToString()
    return int(conn.call(raw.STATE_ALLOC, message, body)[0].handle)


def write_state(conn: Conn, handle: int, tensor: int, data: bytes) -> None:
    where = {"handle": handle, "tensor": tensor, "offset": 0, "bytes": len(data)}
    conn.call(raw.STATE_WRITE, pb.StateWrite(**where), data)


def read_state(conn: Conn, handle: int, tensor: int, size: int) -> bytes:
    where = {"handle": handle, "tensor": tensor, "offset": 0, "bytes": size}
    return conn.call(raw.STATE_READ, pb.StateRead(**where))[1]


def explain(conn: Conn, handle: int) -> str:
    """The plan as text, without where it came from."""
    message = pb.Explanation.FromString(conn.call(raw.EXPLAIN, pb.Explain(handle=handle))[1])
    lines = Explanation(message).text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("cache:"))
