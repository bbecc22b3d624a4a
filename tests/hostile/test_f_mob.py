"""Everything at once (HOSTILE F1, B8): mob.py. Two connections of a session, one of which goes in the middle, and
one of another session, for as many seeds."""

from __future__ import annotations

import os
import threading
import traceback
from typing import Any

import pytest
import raw
from expect import served
from mob import Mob
from raw import Conn, pb

pytestmark = pytest.mark.usefixtures("guarded")

SEEDS = 100 if os.environ.get("HEADRACE_FULL") else 4
DEVICES = ["cpu0", "cpu1", "host"]


def riot(address: str, seed: int) -> list[str]:
    """What went wrong."""
    first = Mob(address, 10 * seed, DEVICES)
    rest = [Mob(address, 10 * seed + 1, DEVICES, first), Mob(address, 10 * seed + 2, DEVICES)]
    wrong: list[str] = []

    def to_the_end(one: Mob) -> None:
        try:
            one.riot(150)
            one.settle()
            served(one.conn)
        except Exception:
            wrong.append(traceback.format_exc())

    threads = [threading.Thread(target=to_the_end, args=(one,)) for one in rest]
    for thread in threads:
        thread.start()
    first.riot(100)
    first.conn.close()
    for thread in threads:
        thread.join()
    for one in rest:
        one.conn.close()
    return wrong


def test_F01_everything_at_once(address: str, daemon: Any) -> None:
    """A failure names its seed in the words; timing decides the rest."""
    for seed in range(1, SEEDS + 1):
        wrong = riot(address, seed)
        assert not wrong, f"seed {seed}:\n{wrong[0]}"
    with Conn(daemon.address) as watcher:

        def nothing_waits() -> bool:
            """Parts of uploads are there for who may go on with them, and go when they are told to."""
            watcher.call(raw.EVICT, pb.Evict(what="uploads"))
            return watcher.stats()["weight_sets_in_work"] == 0

        raw.eventually(nothing_waits)
        served(watcher)
