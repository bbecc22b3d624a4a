"""Handles (HOSTILE B5, C25): unknown, foreign, stale and guessed ones are all NOT_FOUND, in the
same words, and never reach anything."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import raw
from devices import THREE_DEVICES
from expect import refused, served
from raw import EXHAUSTED, F32, NOT_FOUND, Conn, add_graph, pb

pytestmark = pytest.mark.usefixtures("guarded")


@pytest.fixture(scope="module")
def daemon(door: str, start_behind: Any) -> Iterator[Any]:
    """One that lets its principals guess as much as these tests do."""
    running = start_behind(
        door, devices=THREE_DEVICES, sections={"limits": {"principal_misses": 1000000}}
    )
    yield running
    running.stop()


@pytest.fixture
def rig(launch_behind: Any) -> Any:
    return launch_behind

TENSORS = [("w", F32, [4], struct.pack("<4f", 1, 2, 3, 4))]


def requests(handle: int) -> dict[str, tuple[int, Any, bytes]]:
    """Every message that names a handle."""
    return {
        "RUN": (raw.RUN, pb.Run(handle=handle), bytes(64)),
        "EXPLAIN": (raw.EXPLAIN, pb.Explain(handle=handle), b""),
        "RELEASE": (raw.RELEASE, pb.Release(handle=handle), b""),
        "DROP": (raw.DROP, pb.WeightsDrop(handle=handle), b""),
        "TENSORS": (raw.TENSORS, pb.WeightsTensors(handle=handle), b""),
        "STATE_READ": (raw.STATE_READ, pb.StateRead(handle=handle, bytes=1), b""),
        "STATE_WRITE": (raw.STATE_WRITE, pb.StateWrite(handle=handle, bytes=1), b"x"),
        "STATE_SAVE": (raw.STATE_SAVE, pb.StateSave(handle=handle), b""),
        "STATE_FORK": (raw.STATE_FORK, pb.StateFork(handle=handle), b""),
        "STATE_FREE": (raw.STATE_FREE, pb.StateFree(handle=handle), b""),
    }


METHODS = list(requests(0))
REASONS = {"RUN": "GRAPH", "EXPLAIN": "GRAPH", "RELEASE": "GRAPH", "DROP": "WEIGHTS",
           "TENSORS": "WEIGHTS"}  # fmt: skip


class Owned:
    """One of each kind of object."""

    def __init__(self, conn: Conn) -> None:
        self.graph = conn.submit(add_graph(8)).handle
        self.weights = conn.put("owned", TENSORS).handle
        alloc, _ = conn.call(
            raw.STATE_ALLOC, pb.StateAlloc(), raw.manifest(TENSORS).SerializeToString()
        )
        self.state = alloc.handle
        self.all = [self.graph, self.weights, self.state]


@pytest.mark.parametrize("method", METHODS)
def test_B05_unknown_foreign_and_wrong_kind(address: str, method: str) -> None:
    kinds = {"RUN": 0, "EXPLAIN": 0, "RELEASE": 0, "DROP": 1, "TENSORS": 1}
    with Conn(address) as owner, Conn(address) as stranger:
        owned = Owned(owner)
        wrong_kind = [one for i, one in enumerate(owned.all) if i != kinds.get(method, 2)]
        words = set()
        for handle in [0, 1, 2**63, 2**64 - 1, *owned.all]:
            error = stranger.fails(*requests(handle)[method])
            refused(error, NOT_FOUND, REASONS.get(method, "STATE"))
            words.add((error.reason, error.words))
        assert len(words) == 1, "an oracle: foreign handles answer in other words"
        for handle in wrong_kind:
            error = owner.fails(*requests(handle)[method])
            refused(error, NOT_FOUND, REASONS.get(method, "STATE"))
        assert owner.run(owned.graph, bytes(64)) == bytes(32)


@pytest.mark.parametrize("kind", ["weights", "states"])
def test_B05_foreign_bindings(address: str, kind: str) -> None:
    with Conn(address) as owner, Conn(address) as stranger:
        owned = Owned(owner)
        for handle in [7, 2**64 - 1, *owned.all]:
            error = stranger.submit_fails(add_graph(8), **{kind: [handle]})
            refused(error, NOT_FOUND, kind.upper() if kind == "weights" else "STATE")
        served(stranger)


def test_B05_guessed_neighbours(address: str) -> None:
    """Sequential and one-bit guesses around real handles of another session."""
    rng = random.Random(5)
    with Conn(address) as owner, Conn(address) as guesser:
        owned = Owned(owner)
        guesses = {one ^ 1 << bit for one in owned.all for bit in range(64)}
        guesses |= {(one + step) % 2**64 for one in owned.all for step in range(-300, 300)}
        guesses |= {rng.randrange(2**64) for _ in range(300)}
        for guess in guesses:
            guesser.send(raw.EXPLAIN, pb.Explain(handle=guess), call_id=1000 + guess % 2**40)
            refused(guesser.frame(), NOT_FOUND, "GRAPH")
        served(guesser)


def test_B05_guessing_is_cut_off(rig: Any) -> None:
    """A second's worth of misses is answered, then the connection ends; others of that principal that guess
    as well are cut at once, and those that do not are served."""
    address = rig(devices=THREE_DEVICES, sections={"limits": {"principal_misses": 50}})
    with Conn(address) as watcher, Conn(address) as guesser, Conn(address) as second:
        owned = Owned(watcher)
        before = watcher.stats()
        guesses = 400
        for guess in range(guesses):
            guesser.send(raw.EXPLAIN, pb.Explain(handle=owned.graph ^ guess << 32 ^ 1))
        *answers, last = guesser.closed()
        assert 50 <= len(answers) < guesses
        for answer in answers:
            refused(answer, NOT_FOUND, "GRAPH")
        error = refused(last, EXHAUSTED, "RATE")
        assert (error.field, error.limit, error.retry_after_ms) == ("principal_misses", 50, 1000)
        for _ in range(guesses):  # some misses may have been earned again by now
            second.send(raw.EXPLAIN, pb.Explain(handle=1))
        *answers, last = second.closed()
        assert len(answers) < guesses, "the second one was never cut"
        for answer in answers:
            refused(answer, NOT_FOUND, "GRAPH")
        refused(last, EXHAUSTED, "RATE")
        served(watcher)
        after = watcher.stats()
        assert after["rates_exceeded_total"] == before["rates_exceeded_total"] + 2
        assert after["misses_total"] >= before["misses_total"] + 50
        time.sleep(1.1)
        for _ in range(20):
            refused(watcher.fails(raw.EXPLAIN, pb.Explain(handle=1)), NOT_FOUND, "GRAPH")
        served(watcher)


def test_B05_evicted_graphs_are_no_guesses(rig: Any) -> None:
    address = rig(
        devices=THREE_DEVICES, sections={"limits": {"principal_misses": 5, "session_graphs": 4}}
    )
    with Conn(address) as conn:
        first = conn.submit(add_graph(8)).handle
        for size in range(16, 24):
            conn.submit(add_graph(size))
        for _ in range(40):
            refused(conn.fails(raw.EXPLAIN, pb.Explain(handle=first)), NOT_FOUND, "GRAPH")
        served(conn)


def test_B05_session_token_is_needed_to_join(address: str) -> None:
    with Conn(address) as owner:
        owned = Owned(owner)
        hello = pb.Hello(
            protocol_min=1, protocol_max=1, resume_token=owner.greeting.session_token
        )
        with Conn(address, hello=False) as second:
            second.call(raw.HELLO, hello)
            assert second.run(owned.graph, bytes(64)) == bytes(32)
        assert owner.run(owned.graph, bytes(64)) == bytes(32)
        wrong = bytearray(owner.greeting.session_token)
        wrong[-1] ^= 1
        with Conn(address, hello=False) as thief:
            hello.resume_token = bytes(wrong)
            refused(thief.fails(raw.HELLO, hello), NOT_FOUND, "SESSION")
        served(owner)


def test_B05_session_ends_with_its_last_connection(address: str) -> None:
    with Conn(address) as owner:
        token = owner.greeting.session_token
        Owned(owner)
    with Conn(address) as watcher:
        raw.eventually(lambda: watcher.stats()["sessions"] <= 2)
    with Conn(address, hello=False) as late:
        hello = pb.Hello(protocol_min=1, protocol_max=1, resume_token=token)
        refused(late.fails(raw.HELLO, hello), NOT_FOUND, "SESSION")
