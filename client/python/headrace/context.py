"""Where requests come from: W3C trace contexts, passed on to the daemon.

    with headrace.tracing("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"):
        handle.run(...)          # the daemon's trace and log name that trace

Without one, $TRACEPARENT counts, as a command gets it from what called it. What is malformed is
ignored by the daemon.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MOST = 127  # bytes that the daemon takes

_current: ContextVar[str | None] = ContextVar("headrace_traceparent", default=None)


@contextmanager
def tracing(traceparent: str) -> Iterator[None]:
    """Requests of this block, and of tasks that it starts, belong to that trace; "": to none."""
    token = _current.set(traceparent)
    try:
        yield
    finally:
        _current.reset(token)


def chosen(given: str | None) -> str:
    """What is given, else that of the block, else the environment's; "" where it cannot be one."""
    if given is None:
        given = _current.get()
    if given is None:
        given = os.environ.get("TRACEPARENT", "")
    return given if given.isascii() and len(given) <= MOST else ""
