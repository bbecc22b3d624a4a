"""SIGHUP: what may change while the daemon runs does, what may not is named, a wrong file does nothing."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from client_tools import ONE
from raw import SYNC, Closed, Conn, eventually, pb
from run_daemon import Daemon, build_folder


def reload(daemon: Daemon, words: str, **replacements: str) -> None:
    """Replaces text of the configuration file and waits for the log to say so many words."""
    path = daemon.folder / "headraced.ini"
    text = path.read_text()
    for key, value in replacements.items():
        section, _, name = key.partition("__")
        head = f"[{section}]\n"
        kept = [line for line in text.splitlines() if not line.startswith(f"{name} =")]
        text = "\n".join(kept) + "\n"
        assert head in text
        text = text.replace(head, f"{head}{name} = {value}\n")
    path.write_text(text)
    seen = daemon.log().count(words)
    os.kill(daemon.process.pid, signal.SIGHUP)
    eventually(lambda: daemon.log().count(words) > seen, 20, f"not in the log: {words}")


def started(launch: Callable[..., Daemon]) -> Daemon:
    return launch(
        devices=ONE, sections={"daemon": {"session_grace": "0s"}, "limits": {"connections": 64}}
    )


def test_limits_change_at_once(launch: Callable[..., Daemon]) -> None:
    daemon = started(launch)
    with Conn(daemon.address) as first:
        reload(daemon, "changed: limits.connections", limits__connections="1")
        with pytest.raises((Closed, ConnectionError)):
            Conn(daemon.address).ping()
        first.ping()  # what is open stays
        reload(daemon, "changed: limits.connections", limits__connections="8")
        Conn(daemon.address).ping()


def test_a_session_outlives_its_connection_from_then_on(launch: Callable[..., Daemon]) -> None:
    daemon = started(launch)
    reload(daemon, "changed: daemon.session_grace", daemon__session_grace="60s")
    with Conn(daemon.address) as one:
        token = one.greeting.session_token
    with Conn(daemon.address) as watcher:
        eventually(lambda: watcher.stats()["connections"] == 1)
    with Conn(daemon.address, hello=False) as two:
        two.call(1, pb.Hello(protocol_min=1, protocol_max=1, resume_token=token))
        two.call(SYNC, pb.Sync())


def test_what_needs_a_new_start_is_named(launch: Callable[..., Daemon]) -> None:
    daemon = started(launch)
    reload(
        daemon,
        "only a new start changes: limits.graph_nodes, device.cpu0.threads",
        limits__graph_nodes="1234",
        **{"device cpu0__threads": "7"},
    )
    with Conn(daemon.address) as conn:
        assert conn.greeting.limits.graph_nodes_max != 1234


def test_fragments_are_read_again(launch: Callable[..., Daemon]) -> None:
    """A file that is new in the folder beside the configuration counts, and one that has gone does not."""
    daemon = started(launch)
    folder = daemon.folder / "headraced.ini.d"
    folder.mkdir()
    (folder / "limits.conf").write_text("[limits]\nconnections = 1\n")
    with Conn(daemon.address):
        reload(daemon, "changed: limits.connections")
        with pytest.raises((Closed, ConnectionError)):
            Conn(daemon.address).ping()
        (folder / "limits.conf").rename(folder / "limits.off")
        reload(daemon, "changed: limits.connections")
        with Conn(daemon.address) as conn:
            conn.ping()
    (folder / "wrong.conf").write_text("[limits]\nnone = 1\n")
    reload(daemon, "wrong.conf:2: unknown key 'none'")


def test_a_wrong_file_changes_nothing(launch: Callable[..., Daemon]) -> None:
    daemon = started(launch)
    reload(
        daemon, "the configuration stays as it is", limits__connections="1", daemon__spin="purple"
    )
    held = [Conn(daemon.address) for _ in range(4)]
    for conn in held:
        conn.ping()
        conn.close()
    reload(daemon, "changed: nothing", limits__connections="64", daemon__spin="50us")


def test_the_manager_is_told(
    launch: Callable[..., Daemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if b"libsystemd.so" not in (build_folder() / "daemon" / "headraced").read_bytes():
        pytest.skip("built without libsystemd")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        daemon = started(launch)
        assert manager.recv(4096).startswith(b"READY=1")
        reload(daemon, "changed: daemon.drain_timeout", daemon__drain_timeout="3s")
        begun = dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())
        assert begun["RELOADING"] == "1" and int(begun["MONOTONIC_USEC"]) > 0
        assert manager.recv(4096).startswith(b"READY=1\nSTATUS=Serving with 1 devices")
