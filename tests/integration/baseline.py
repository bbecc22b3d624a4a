"""What a daemon holds, before and after."""

from __future__ import annotations

import os
from typing import Any

from raw import Conn, Patience

GAUGES = ("connections", "sessions", "objects", "graphs", "weight_sets", "weight_bytes")
PREFIXES = ("device_memory_used_bytes", "weight_sets_in_work")


def held(daemon: Any) -> dict[str, float]:
    """Descriptors, objects and memory, seen over a connection of its own."""
    with Conn(daemon.address) as conn:
        stats = conn.stats()
        fds = len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
    found = {name: value for name, value in stats.items() if name.startswith(PREFIXES)}
    found.update({name: stats[name] for name in GAUGES})
    found["fds"] = fds
    return found


class Baseline:
    """Taken before; expect_again() polls until the same is held. A bystander that uploads now and
    then holds a little more at times, so the start is the least of several looks."""

    def __init__(self, daemon: Any) -> None:
        self.daemon = daemon
        looks = [held(daemon) for _ in range(3)]
        self.before = {name: min(look[name] for look in looks) for name in looks[0]}

    def surplus(self) -> dict[str, tuple[float, float]]:
        now = held(self.daemon)
        return {
            name: (value, now.get(name, -1.0))
            for name, value in self.before.items()
            if now.get(name, -1.0) > value
        }

    def expect_again(self, timeout_s: float = 5.0) -> None:
        patience = Patience(timeout_s)
        while surplus := self.surplus():
            assert patience.lasts(), f"not given back (before, now): {surplus}"
