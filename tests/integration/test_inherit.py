"""Sockets that a service manager opens (LISTEN_FDS), and what it may get wrong (HOSTILE G5)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import headrace
import numpy as np
import pytest
from run_daemon import build_folder, built_with_systemd

pytestmark = pytest.mark.skipif(not built_with_systemd(), reason="built without libsystemd")


class Started:
    """A daemon with descriptors from 3 on, as a service manager starts it."""

    def __init__(self, folder: Path, fds: list[int], names: str, count: int | None) -> None:
        self.own = folder / "own.sock"
        self.log_path = folder / "log"
        moves = " ".join(f"{3 + i}<&{fd}" for i, fd in enumerate(fds))
        script = f'exec {moves}; LISTEN_PID=$$ exec "$0" "$@"' if fds else 'LISTEN_PID=$$ exec "$0" "$@"'
        environment = {
            **os.environ,
            "LISTEN_FDS": str(len(fds) if count is None else count),
            "LISTEN_FDNAMES": names,
        }
        program = build_folder() / "daemon" / "headraced"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", script, program, "--set", f"listen.unix={self.own}",
                 "--set", "daemon.log_level=info"],
                env=environment, pass_fds=fds, stdout=log, stderr=log,
            )  # fmt: skip

    def log(self) -> str:
        return self.log_path.read_text()

    def wait(self, word: str) -> None:
        end = time.monotonic() + 20
        while word not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.01)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0, self.log()


@contextlib.contextmanager
def started(fds: list[int], names: str = "", count: int | None = None) -> Iterator[Started]:
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        daemon = Started(Path(folder), fds, names, count)
        try:
            daemon.wait("ready")
            yield daemon
            daemon.stop()
        finally:
            if daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.wait()


def high(fd: int) -> int:
    """A copy of a descriptor under a number that the shell's moves do not overwrite."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 50)


def works(address: str) -> None:
    with headrace.connect(address) as client:
        graph = headrace.Graph()
        x = graph.input("x", (4,))
        graph.output(graph.add(x, x))
        result = client.submit(graph).run({"x": np.ones(4, np.float32)})[0]
        assert result.tolist() == [2, 2, 2, 2]


def test_unix_and_tcp(tmp_path: Path) -> None:
    path = tmp_path / "given.sock"
    with socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_INET) as tcp:
        unix.bind(str(path))
        unix.listen()
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        port = tcp.getsockname()[1]
        early = socket.socket(socket.AF_UNIX)
        early.connect(str(path))  # before there is a daemon: it waits in the queue
        with started([high(unix.fileno()), high(tcp.fileno())], "headrace:plain") as daemon:
            works(f"unix:{path}")
            works(f"tcp:127.0.0.1:{port}")
            assert not daemon.own.exists()  # the given one stands for it
        early.close()
        assert path.exists()  # it is the manager's
        with started([high(unix.fileno())], "headrace"):  # the same socket, a new daemon
            works(f"unix:{path}")


def test_what_is_no_listening_socket(tmp_path: Path) -> None:
    """Each is closed and logged, and the daemon opens its own."""
    read_end, write_end = os.pipe()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        socket.socket(socket.AF_INET) as unbound,
        open(tmp_path / "file", "wb") as file,
    ):
        fds = [read_end, datagram.fileno(), unbound.fileno(), file.fileno()]
        with started([high(fd) for fd in fds], "a:b:tls:d") as daemon:
            works(f"unix:{daemon.own}")
            assert daemon.log().count("no listening stream socket") == 4
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize("count", [0, 5, 1000])
def test_numbers_that_are_wrong(count: int) -> None:
    with started([], "x", count) as daemon:
        works(f"unix:{daemon.own}")


def test_two_of_a_kind(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for number, sock in enumerate((first, second)):
            sock.bind(str(tmp_path / f"{number}.sock"))
            sock.listen()
        with started([high(first.fileno()), high(second.fileno())], "a:b") as daemon:
            works(f"unix:{tmp_path / '0.sock'}")
            assert daemon.log().count("there was one of its kind") == 1
