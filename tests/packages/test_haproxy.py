"""Two replicas behind HAProxy, by systemd/haproxy.cfg: who is ready is used, and when one dies its
clients go on with the other."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from run_daemon import Daemon, device, held_port

import headrace
from headrace import errors

ROOT = Path(__file__).resolve().parents[2]
ONE = (device("host", backend="cpu", threads=1),)


class Pair:
    """Two daemons, and HAProxy before them."""

    def __init__(self, folder: Path) -> None:
        self.http = [held_port(), held_port()]
        self.daemons: list[Daemon | None] = [self.start(i) for i in range(2)]
        port = held_port()
        self.address = f"tcp:127.0.0.1:{port}"
        text = (ROOT / "systemd" / "haproxy.cfg").read_text()
        for here, there in (
            ("127.0.0.1:7400", f"127.0.0.1:{port}"),
            ("127.0.0.1:7401", self.tcp(0)),
            ("127.0.0.1:7402", self.tcp(1)),
            ("port 9401", f"port {self.http[0]}"),
            ("port 9402", f"port {self.http[1]}"),
        ):
            assert text.count(here) == 1
            text = text.replace(here, there)
        config = folder / "haproxy.cfg"
        config.write_text(text)
        self.log = folder / "haproxy.log"
        with self.log.open("wb") as log:
            self.proxy = subprocess.Popen(["haproxy", "-W", "-db", "-f", config], stdout=log,
                                          stderr=log)  # fmt: skip

    def start(self, index: int) -> Daemon:
        sections = {"daemon": {"metrics": f"127.0.0.1:{self.http[index]}", "heartbeat": "100ms"}}
        return Daemon(devices=ONE, tcp=True, sections=sections)

    def tcp(self, index: int) -> str:
        daemon = self.daemons[index]
        assert daemon is not None and daemon.tcp_address is not None
        return daemon.tcp_address.removeprefix("tcp:")

    def kill(self, index: int) -> None:
        """As a power failure of the process: nothing is said, connections are reset."""
        daemon = self.daemons[index]
        assert daemon is not None
        daemon.process.kill()
        daemon.process.wait()
        shutil.rmtree(daemon.folder)
        self.daemons[index] = None

    def close(self) -> None:
        self.proxy.send_signal(signal.SIGTERM)
        self.proxy.wait(20)
        for daemon in self.daemons:
            if daemon is not None:
                daemon.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    if not shutil.which("haproxy"):
        pytest.skip("no haproxy")
    made = Pair(tmp_path)
    yield made
    made.close()


class Worker(threading.Thread):
    """Runs a graph again and again; a request that broke off is made again on a new connection."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.stop = threading.Event()
        self.done = self.retried = self.wrong = 0
        self.boots: set[bytes] = set()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.connection()
        except BaseException as error:
            self.failure = error

    def connection(self) -> None:
        """Requests on one connection, until it ends or there have been some."""
        attempts = 0
        value = float(self.done)
        while not self.stop.is_set():
            try:
                with headrace.connect(self.address, timeout=10) as client:
                    self.boots.add(bytes(client.hello.boot_id))
                    graph = headrace.Graph()
                    x = graph.input("x", (4,))
                    graph.output(graph.sqr(x), "y")
                    handle = client.submit(graph)
                    for _ in range(20):
                        got = handle.run({"x": np.full(4, value, np.float32)})["y"]
                        self.wrong += not (got == np.float32(value) ** 2).all()
                        self.done += 1
                        attempts, value = 0, float(self.done)
                        if self.stop.is_set():
                            return
            except (errors.ConnectionLost, errors.Unavailable):
                self.retried += 1
                attempts += 1
                assert attempts < 100, "a request that is made again is not served"
                time.sleep(0.05)


def eventually(condition: object, what: str) -> None:
    end = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_up(pair: Pair) -> bool:
    try:
        headrace.connect(pair.address, timeout=5).close()
    except errors.ConnectionLost:
        return False
    return True


def test_the_example_is_valid() -> None:
    if not shutil.which("haproxy"):
        pytest.skip("no haproxy")
    path = ROOT / "systemd" / "haproxy.cfg"
    done = subprocess.run(["haproxy", "-c", "-f", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search("WARNING|ALERT", done.stdout + done.stderr)


def test_a_replica_dies_and_one_drains_and_no_request_is_lost(pair: Pair) -> None:
    eventually(lambda: is_up(pair), "the replicas are not ready")
    workers = [Worker(pair.address) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        seen = lambda: set().union(*(w.boots for w in workers))  # noqa: E731
        eventually(lambda: len(seen()) == 2, "both replicas are used")
        pair.kill(0)
        mark = [w.done for w in workers]
        eventually(lambda: all(w.done > m + 100 or w.failure for w, m in zip(workers, mark,
                   strict=True)), "clients go on with the other")  # fmt: skip
        # Back again, and used, by those who connect from now on.
        pair.daemons[0] = again = restarted(pair)
        eventually(lambda: len(seen()) == 3, f"the new replica is used:\n{again.log()}")
        # A drain: not ready at first, then gone.
        old = pair.daemons[1]
        assert old is not None
        pair.daemons[1] = None
        mark = [w.done for w in workers]
        old.stop()
        eventually(lambda: all(w.done > m + 100 or w.failure for w, m in zip(workers, mark,
                   strict=True)), "clients go on while one drains")  # fmt: skip
    finally:
        for worker in workers:
            worker.stop.set()
        for worker in workers:
            worker.join(60)
    assert [w.failure for w in workers] == [None] * len(workers)
    assert [w.wrong for w in workers] == [0] * len(workers)
    assert all(w.done > 200 for w in workers)


def restarted(pair: Pair) -> Daemon:
    """Another daemon where the first one was; HAProxy finds it by its address."""
    text = pair.log.parent.joinpath("haproxy.cfg").read_text()
    address = re.search(r"server one (\S+)", text)
    assert address is not None
    sections = {
        "daemon": {"metrics": f"127.0.0.1:{pair.http[0]}", "heartbeat": "100ms"},
        "listen": {"tcp": address[1]},
    }
    return Daemon(devices=ONE, sections=sections)
