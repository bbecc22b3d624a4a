"""Sealed memory, and frames that bring descriptors."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import Any

import raw
from raw import END, Conn

SEAL, SHRINK, GROW, WRITE, FUTURE_WRITE = 1, 2, 4, 8, 16
SIZE_SEALS = SEAL | SHRINK | GROW
F_ADD_SEALS = 1033


def memfd(data: bytes, seals: int = SIZE_SEALS, flags: int = os.MFD_ALLOW_SEALING) -> int:
    fd = os.memfd_create("test", flags)
    os.write(fd, data)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def send_fd(conn: Conn, type: int, message: Any, body: bytes, fds: list[int], n_fds: int = 1,
            flags: int = END) -> int:  # fmt: skip
    data = message.SerializeToString()
    call = next(conn.ids)
    head = raw.header(type, call, len(data), len(body), flags | (raw.FDS if n_fds else 0),
                      n_fds=n_fds)  # fmt: skip
    socket.send_fds(conn.socket, [head + data + body], fds)
    return call
