"""Memory shared with a daemon on this machine: large arrays that cross no socket.

A region is a sealed memfd that the daemon has mapped. A Regions pool belongs to a client; operations
take one for as long as a request uses it. No network I/O here: lease() yields the requests it needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence

from headrace.wire import Buffer

# From here on the copies that a socket costs are worth more than a region.
LEAST_BYTES = 1 << 20
MOST_BYTES = 1 << 30
F_ADD_SEALS = 1033
SIZE_SEALS = 7  # SEAL, SHRINK, GROW
WRITE_SEAL = 8


class Shared:
    """A memfd, mapped. OSError where the system has none."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create("headrace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            self._map = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise
        self.memory = memoryview(self._map)
        self.handle = 0

    def fill(self, parts: Sequence[Buffer]) -> None:
        """Copies buffers to the start, one behind the other."""
        at = 0
        for part in parts:
            self.memory[at : at + len(part)] = part
            at += len(part)

    def seal(self, seals: int) -> None:
        """Against what the daemon does not want to happen later."""
        fcntl.fcntl(self.fd, F_ADD_SEALS, seals)

    def unmap(self) -> None:
        """The memory is not used here any more."""
        self.memory.release()
        self._map.close()

    def close(self) -> None:
        """Closes the descriptor; a daemon that has it keeps the memory."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def sealed_contents(parts: Sequence[Buffer], size: int) -> Shared:
    """Contents in memory that nobody can change any more."""
    shared = Shared(size)
    try:
        shared.fill(parts)
        shared.unmap()
        shared.seal(SIZE_SEALS | WRITE_SEAL)
    except BaseException:
        shared.close()
        raise
    return shared


class Regions:
    """Regions of one session that nobody uses at the moment, and those that may go. Thread-safe."""

    def __init__(self) -> None:
        self.stale = False  # the session that had them has gone
        self._lock = threading.Lock()
        self._idle: list[Shared] = []
        self._held = 0
        self._gone: list[int] = []

    def take(self, size: int) -> Shared | None:
        """An idle one that is large enough, and not much larger."""
        with self._lock:
            fitting = [one for one in self._idle if size <= one.size <= 4 * size]
            if not fitting:
                return None
            best = min(fitting, key=lambda one: one.size)
            self._idle.remove(best)
            return best

    def make(self, size: int) -> Shared | None:
        """A new one, not known to the daemon yet; None when there is no room for it."""
        rounded = 1 << (size - 1).bit_length()
        with self._lock:
            while self._idle and self._held + rounded > MOST_BYTES:
                self._forget(self._idle.pop(0))
            if self._held + rounded > MOST_BYTES:
                return None
            self._held += rounded
        try:
            made = Shared(rounded)
            made.seal(SIZE_SEALS)
        except OSError:
            with self._lock:
                self._held -= rounded
            return None
        return made

    def give(self, shared: Shared) -> None:
        """Nobody uses it any more."""
        with self._lock:
            self._idle.append(shared)

    def lose(self, shared: Shared) -> None:
        """The daemon may still use it: it is dropped, which waits for that."""
        with self._lock:
            self._forget(shared)

    def gone(self) -> list[int]:
        """Handles to be dropped, once."""
        with self._lock:
            gone, self._gone = self._gone, []
        return gone

    def _forget(self, shared: Shared) -> None:
        self._held -= shared.size
        shared.close()
        with contextlib.suppress(BufferError):
            shared.unmap()
        if shared.handle:
            self._gone.append(shared.handle)
