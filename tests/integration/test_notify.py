"""What a service manager is told (sd_notify): ready when the sockets are open, stopping when a drain begins."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import raw
from raw import F32, INPUT, Conn, Graph, pb
from run_daemon import Daemon, built_with_systemd, device

DEVICES = [device("cpu0", threads=1, delay="1200ms"), device("cpu1", threads=1)]


@pytest.fixture(params=["file", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The manager's end of NOTIFY_SOCKET."""
    if not built_with_systemd():
        pytest.skip("built without libsystemd")
    name = str(tmp_path / "notify") if request.param == "file" else f"@headrace-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        sock.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield sock


def told(sock: socket.socket) -> dict[str, str]:
    lines = sock.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_ready_and_stopping(manager: socket.socket, launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=DEVICES)
    assert told(manager) == {"READY": "1", "STATUS": "Serving with 2 devices"}
    graph = Graph()
    graph.leaf(INPUT, F32, [4], "x")
    graph.node("ADD", F32, [4], (0, 0), output=True)
    with Conn(daemon.address) as conn:
        pin = [pb.Pin(pattern="*", device="cpu0")]
        handle = conn.submit(graph, pins=pin).handle
        call = conn.send(raw.RUN, pb.Run(handle=handle), bytes(16))
        conn.ping()  # the run has been taken in
        daemon.process.send_signal(signal.SIGTERM)
        stopping = told(manager)
        assert stopping.pop("STOPPING") == "1"
        assert stopping == {"STATUS": "Draining, requests in flight: 1, connections: 1"}
        assert conn.reply(call)[1] == bytes(16)
    daemon.stop()
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(1)


def test_a_manager_that_is_not_there(
    launch: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    daemon = launch(devices=DEVICES)
    with Conn(daemon.address) as conn:
        conn.ping()
    daemon.stop()
