"""Drives tests/inject: a daemon whose n-th call of a kind fails. The layout is that of inject.h."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from pathlib import Path

import pytest
from run_daemon import build_folder

KINDS = ("none", "malloc", "recv", "send", "accept", "mmap", "open", "write", "read", "thread")
ERRORS = {
    "malloc": errno.ENOMEM, "recv": errno.ECONNRESET, "send": errno.EPIPE, "accept": errno.EMFILE,
    "mmap": errno.ENOMEM, "open": errno.EMFILE, "write": errno.ENOSPC, "read": errno.EIO,
    "thread": errno.EMFILE,
}  # fmt: skip
ONCE, EVERY, SHORT = 0, 1, 2
CALLS_AT, LIVE_AT = 32, 32 + 16 * 8


def library() -> Path:
    path = build_folder() / "tests" / "inject" / "libinject.so"
    if not path.exists():
        pytest.skip(f"no {path}: not with a sanitizer")
    return path


class Injection:
    """The shared page. `variables` go into the daemon's environment."""

    def __init__(self, folder: Path) -> None:
        path = folder / "inject"
        path.write_bytes(bytes(4096))
        descriptor = os.open(path, os.O_RDWR)
        self.page = mmap.mmap(descriptor, 4096)
        os.close(descriptor)
        self.variables = {"LD_PRELOAD": str(library()), "HEADRACE_INJECT": str(path)}

    def arm(self, kind: str, countdown: int, error: int | None = None, mode: int = ONCE,
            period: int = 1) -> None:  # fmt: skip
        self.disarm()
        fields = (KINDS.index(kind), mode, ERRORS[kind] if error is None else error, period)
        struct.pack_into("<4I", self.page, 0, *fields)
        struct.pack_into("<Q", self.page, 24, 0)
        struct.pack_into("<q", self.page, 16, countdown)

    def disarm(self) -> None:
        struct.pack_into("<q", self.page, 16, 0)
        struct.pack_into("<I", self.page, 0, 0)

    def fired(self) -> int:
        return int(struct.unpack_from("<Q", self.page, 24)[0])

    def calls(self, kind: str) -> int:
        return int(struct.unpack_from("<Q", self.page, CALLS_AT + 8 * KINDS.index(kind))[0])

    def live(self) -> tuple[int, int]:
        """Blocks and bytes that the process has allocated and not freed."""
        blocks, size = struct.unpack_from("<qq", self.page, LIVE_AT)
        return int(blocks), int(size)
