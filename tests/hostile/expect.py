"""What a row of the table asserts: code and reason of an error, and the daemon's state afterwards.

refused(error, code, reason)   an error says exactly this, in words that give nothing away
cut(conn, code, reason)        the stream ends after that one error
served(conn)                   the connection goes on: a graph is submitted, runs, and is right

The fixture `guarded` (tests/conftest.py) asserts the rest around every test: the daemon lives, the
bystander's results are right and go on, and descriptors, sessions, objects and memory are given back.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import raw
from raw import Conn, add_graph, pb

TWO = struct.pack("<16f", *range(16))
SUM = struct.pack("<8f", *(float(i + i + 8) for i in range(8)))

# A path (two parts or more), an address in memory, an address of the network.
SECRETS = re.compile(r"(^|[\s\"'(=])/[\w.-]+/[\w./-]+|0x[0-9a-fA-F]{9,}|\d+\.\d+\.\d+\.\d+")


def refused(error: Any, code: int, reason: str) -> Any:
    """error: a raw.RawError, a raw.Frame or a message Error. Returns the message."""
    if isinstance(error, raw.RawError | raw.Frame):
        error = error.error
    assert (error.code, error.reason) == (code, reason), error
    assert error.words and len(error.words.encode()) <= 255, error
    assert not SECRETS.search(error.words), f"words that give something away: {error.words}"
    return error


def cut(conn: Conn, code: int, reason: str, timeout_s: float = raw.TIMEOUT_S) -> Any:
    """Exactly one error, then the end of the stream."""
    frames = conn.closed(timeout_s)
    assert len(frames) == 1, frames
    return refused(frames[0], code, reason)


def served(conn: Conn) -> None:
    """The connection is as good as new."""
    handle = conn.submit(add_graph()).handle
    assert conn.run(handle, TWO) == SUM
    conn.call(raw.RELEASE, pb.Release(handle=handle))
