"""Sessions that outlive their connections: what survives, who may come back for it, and what is left when
nobody does. Behind a Unix socket and behind TLS, whose peers are the same principal here."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import numpy as np
import pytest
from devices import start_daemon
from headrace import errors
from headrace.tls import client_context
from papers import Papers, make_papers
from raw import eventually
from run_daemon import Daemon, device, held_port

GRACE_S = 0.4


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return make_papers(tmp_path_factory.mktemp("papers"))


class House:
    """A daemon with two doors."""

    def __init__(self, papers: Papers, start: Callable[..., Daemon], grace: str) -> None:
        port = held_port()
        self.daemon = start(
            devices=[device("cpu0", threads=1, memory="isolated", delay="20ms"),
                     device("host", threads=1)],
            sections={
                "daemon": {"session_grace": grace},
                "listen": {"tls": f"127.0.0.1:{port}"},
                "tls": {
                    "certificate": papers.file("daemon.pem"),
                    "key": papers.file("daemon.key"),
                    "client_ca": papers.file("ours.pem"),
                },
                "principal tests": {
                    "uid": os.getuid(),
                    "certificate": "known client",
                    "permissions": "run, load, admin",
                },
            },
        )  # fmt: skip
        self.addresses = {"unix": self.daemon.address, "tls": f"tls:localhost:{port}"}
        self.context: ssl.SSLContext = client_context(
            papers.file("ours.pem"), papers.file("known.pem"), papers.file("known.key")
        )

    def connect(self, door: str, token: bytes = b"") -> headrace.Client:
        return headrace.connect(self.addresses[door], tls=self.context, token=token)


@pytest.fixture(scope="module")
def house(papers: Papers) -> Iterator[House]:
    made = House(papers, start_daemon, "60s")
    yield made
    made.daemon.stop()


DOORS = pytest.mark.parametrize("door", ["unix", "tls"])


def breaks(client: headrace.Client) -> None:
    """The connection is gone without a word."""
    with socket.socket(fileno=os.dup(client._transport._sock.fileno())) as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        plain.shutdown(socket.SHUT_RDWR)
    client.close()


def adding(client: headrace.Client, state: headrace.State, splits: int = 1) -> Any:
    """y = s + x, and s is y from then on; on the device that takes 20 ms."""
    g = headrace.Graph()
    x = g.input("x", (4,))
    s = g.state("s", (4,))
    y = g.output(g.add(s, x), "y")
    g.cpy(y, s)
    return client.submit(g, states=[state], pins={"*": "cpu0"})


@DOORS
@pytest.mark.parametrize("back", ["unix", "tls"])
def test_property_survives_its_connection(house: House, door: str, back: str) -> None:
    one = np.ones(4, np.float32)
    first = house.connect(door)
    state = first.state({"s": ("f32", (4,))}, {"*": "cpu0"})
    graph = adding(first, state)
    weights = first.put(f"w {door} {back}", {"w": np.arange(8, dtype=np.float32)})
    assert graph.run({"x": one})["y"][0] == 1
    breaks(first)
    with house.connect(back, first.hello.session_token) as again:
        assert again.hello.session_token == first.hello.session_token
        same = again.adopt(state)
        assert same.read("s").tolist() == [1, 1, 1, 1]
        assert adding(again, same).run({"x": one})["y"][0] == 2
        assert again.quota().value("session_held", 'what="graphs"') == 2
        assert again.quota().value("session_held", 'what="weights"') == 1
        again.drop(weights)
        same.free()
        with pytest.raises(errors.NotFound):
            same.read("s")


@DOORS
def test_what_was_under_way_is_stopped(house: House, door: str) -> None:
    """Runs belong to their connection: the queued ones never start, and nobody gets their replies."""
    one = np.ones(4, np.float32)
    first = house.connect(door)
    state = first.state({"s": ("f32", (4,))}, {"*": "cpu0"})
    graph = adding(first, state)
    runs = [graph.run_async({"x": one}) for _ in range(20)]
    assert runs[0].result()["y"][0] == 1
    breaks(first)
    with house.connect(door, first.hello.session_token) as again:
        again.sync()
        done = again.adopt(state).read("s")[0]
        assert 1 <= done <= 10
        assert again.stats().value("runs_in_flight") == 0
        assert again.quota().value("session_held", 'what="runs"') == 0
        again.adopt(state).free()


@DOORS
def test_connections_share_a_session(house: House, door: str) -> None:
    """Handles are the session's; it goes on while any connection is there, however many leave."""
    one = np.ones(4, np.float32)
    first = house.connect(door)
    token = first.hello.session_token
    state = first.state({"s": ("f32", (4,))}, {"*": "cpu0"})
    others = [house.connect(way, token) for way in ("unix", "tls", "unix")]
    sessions = first.stats().value("sessions")
    assert others[0].stats().value("sessions") == sessions
    graphs = [adding(client, client.adopt(state)) for client in others]

    def work(graph: Any) -> None:
        for _ in range(5):
            graph.run({"x": one})

    threads = [threading.Thread(target=work, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first.adopt(state).read("s")[0] == 15
    breaks(first)
    breaks(others.pop())
    assert others[0].adopt(state).read("s")[0] == 15
    others[0].adopt(state).free()
    for client in others:
        client.close()


def test_only_the_whole_token_opens(house: House) -> None:
    """Any bit wrong, any other length: no session, in the same words; and the right one still does."""
    first = house.connect("unix")
    token = first.hello.session_token
    breaks(first)
    wrong = [bytes(b ^ (1 << bit) if i == at else b for i, b in enumerate(token))
             for at in range(len(token)) for bit in (0, 7)]  # fmt: skip
    wrong += [token[:-1], token + b"\0", bytes(len(token)), token[:1], token * 2]
    words = set()
    for guess in wrong:
        with pytest.raises(errors.NotFound) as caught:
            house.connect("unix", guess)
        words.add((caught.value.reason, str(caught.value)))
    assert len(words) == 1 and next(iter(words))[0] == "SESSION"
    house.connect("unix", token).close()


@DOORS
def test_nothing_of_a_dead_session_remains(
    papers: Papers, launch: Callable[..., Daemon], door: str
) -> None:
    """Kept for its time, then gone with all it held."""
    house = House(papers, launch, f"{int(GRACE_S * 1000)}ms")
    with house.connect("unix") as watcher:
        figures = ("sessions", "objects", "graphs", "weight_sets", "weight_bytes", "total_held",
                   "device_memory_used_bytes", "runs_in_flight", "connections")  # fmt: skip

        def look() -> dict[str, float]:
            stats = watcher.stats()
            return {name: stats.value(name) for name in figures}

        before = look()
        first = house.connect(door)
        state = first.state({"s": ("f32", (4,))}, {"*": "cpu0"})
        first.put("dying", {"w": np.ones(100_000, np.float32)})
        graph = adding(first, state)
        for _ in range(5):
            graph.run_async({"x": np.ones(4, np.float32)})
        begun = time.monotonic()
        breaks(first)
        eventually(lambda: look()["connections"] == before["connections"])
        if time.monotonic() < begun + GRACE_S:
            assert look()["sessions"] >= before["sessions"]
        eventually(lambda: look() == before, words="something is left")
        assert time.monotonic() >= begun + GRACE_S
        with pytest.raises(errors.NotFound):
            house.connect(door, first.hello.session_token)


@DOORS
def test_by_default_a_session_ends_with_its_last_connection(
    papers: Papers, launch: Callable[..., Daemon], door: str
) -> None:
    house = House(papers, launch, "0ms")
    first = house.connect(door)
    assert first.hello.limits.session_grace_ms == 0
    second = house.connect(door, first.hello.session_token)
    breaks(first)
    house.connect(door, second.hello.session_token).close()
    breaks(second)
    with house.connect(door) as watcher:
        eventually(lambda: watcher.stats().value("sessions") == 1)
        with pytest.raises(errors.NotFound):
            house.connect(door, first.hello.session_token)


def test_a_drain_does_not_wait_for_who_may_come_back(
    papers: Papers, launch: Callable[..., Daemon]
) -> None:
    house = House(papers, launch, "3600s")
    client = house.connect("unix")
    client.state({"s": ("f32", (4,))})
    breaks(client)
    begun = time.monotonic()
    house.daemon.stop()
    assert time.monotonic() - begun < 10
