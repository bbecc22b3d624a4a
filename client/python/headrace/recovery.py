"""What outlives a daemon or a connection: requests that may be sent again, and what has to be found again
before that. No I/O; the blocking and the asyncio client share it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator

from headrace.flows import Flow
from headrace.handles import Hello, WeightSet


def remaining(deadline: float | None) -> float | None:
    """Seconds until then; None: for ever."""
    return None if deadline is None else deadline - time.monotonic()


def shorter(first: float | None, second: float | None) -> float | None:
    """The shorter of two times."""
    return min((one for one in (first, second) if one is not None), default=None)


def checked(timeout: float | None) -> float | None:
    """A caller's timeout; ValueError for one that nothing could meet. None: no limit."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout {timeout}: seconds above 0, or None for no limit")
    return timeout


class Sets:
    """The weight sets of a client, which have other handles in another session, and how each is found
    there. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: list[tuple[weakref.ref[WeightSet], Callable[[], Flow[WeightSet]]]] = []

    def add(self, weights: WeightSet, again: Callable[[], Flow[WeightSet]]) -> WeightSet:
        """A set that the flow finds again."""
        with self._lock:
            self._known = [one for one in self._known if one[0]() is not None]
            self._known.append((weakref.ref(weights), again))
        return weights

    def __iter__(self) -> Iterator[tuple[WeightSet, Flow[WeightSet]]]:
        with self._lock:
            known = list(self._known)
        for reference, again in known:
            weights = reference()
            if weights is not None:
                yield weights, again()


def take_over(weights: WeightSet, found: WeightSet) -> None:
    """The set is the same if its contents are."""
    if found.info.digest == weights.info.digest:
        weights.info = found.info


def may_resume(hello: Hello) -> bool:
    """The daemon waits for a session whose connection has broken."""
    return hello.limits.session_grace_ms > 0
