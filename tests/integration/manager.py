"""A small service manager: it holds listening sockets, is told through NOTIFY_SOCKET, keeps descriptors
(FDSTORE) and passes all of them to each daemon that it starts (LISTEN_FDS). What systemd does around
headraced, without systemd."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from run_daemon import Device, build_folder, config_text

START_S = 20.0
FIRST = 3  # SD_LISTEN_FDS_START
DESCRIPTORS_MAX = 253  # in one message (SCM_MAX_FD)
FOLLOW = 'LISTEN_PID=$$ exec "$0" "$@"'


class Child:
    """A process with descriptors from FIRST on. What Popen does, but for its own descriptor in between."""

    def __init__(
        self, command: Sequence[str | Path], fds: Sequence[int], environment: dict[str, str], log: int
    ) -> None:
        moves = [(os.POSIX_SPAWN_DUP2, fd, FIRST + i) for i, fd in enumerate(fds)]
        moves += [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        self.pid = os.posix_spawn(
            "/bin/sh", ["sh", "-c", FOLLOW, *map(str, command)], environment, file_actions=moves, setpgroup=0
        )  # fmt: skip
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float = 20.0) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} does not end")
            time.sleep(0.001)
        return code

    def send_signal(self, number: int) -> None:
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Manager:
    """`store`: descriptors by name; a test may put others there, or take some away."""

    def __init__(
        self,
        *,
        devices: Sequence[Device] = (),
        sections: dict[str, dict[str, object]] | None = None,
        tcp: bool = False,
        supervise: bool = False,
        program: Path | None = None,
        watchdog_s: float = 0.0,
    ) -> None:
        """program: another than the build's headraced. watchdog_s: what it is told of a watchdog; none
        looks. supervise: a daemon that ends without having been told to is started again at once."""
        self._watchdog_us = int(watchdog_s * 1e6)
        self.program = program or build_folder() / "daemon" / "headraced"
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.log_path = self.folder / "log"
        self.config = self.folder / "headraced.ini"
        self.config.write_text(
            config_text(self.folder / "own.sock", (), devices, None, sections or {})
        )
        path = self.folder / "given.sock"
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(str(path))
        self.listening = [unix]
        self.address = f"unix:{path}"
        self.tcp_address = ""
        if tcp:
            inet = socket.socket(socket.AF_INET)
            inet.bind(("127.0.0.1", 0))
            self.listening.append(inet)
            self.tcp_address = f"tcp:127.0.0.1:{inet.getsockname()[1]}"
        for sock in self.listening:
            sock.listen(4096)
        self.store: dict[str, list[int]] = {}
        self.extra: list[tuple[str, int]] = []  # beside those: passed once, closed then
        self.told: list[str] = []
        self.ready = threading.Event()
        self.starts = 0
        self.ready_s = 0.0
        self.process: Child | None = None
        self._children: list[Child] = []
        self._news = threading.Condition()
        self._dead = False
        self._reads = threading.Event()
        self._reads.set()
        self._wanted = False
        self._supervise = supervise
        self._closing = False
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(self.folder / "notify"))
        self._notify.settimeout(0.2)
        self._threads = [threading.Thread(target=self._listen, daemon=True)]
        if supervise:
            self._threads.append(threading.Thread(target=self._watch, daemon=True))
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Manager:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.stop()
        finally:
            self.close()

    # ---- the daemon ----------------------------------------------------------------------------

    def start(self) -> float:
        """Starts the daemon and waits until it is ready; returns the seconds that took."""
        self.launch()
        self.wait_ready()
        return self.ready_s

    def launch(self) -> None:
        """Starts the daemon and does not wait for it."""
        self._spawn()
        self._wanted = True  # afterwards: who watches finds the new process

    def hang_up(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def wait_ready(self) -> None:
        assert self.ready.wait(START_S), f"not ready:\n{self.log()}"

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer or a watchdog sends it."""
        assert self.process is not None
        self.ready.clear()
        self._wanted = self._supervise
        self.process.kill()
        if not self._supervise:
            self.process.wait()

    def stop(self) -> None:
        """SIGTERM; the daemon must end with exit status 0."""
        assert self.process is not None
        self._wanted = False
        self.ready.clear()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(40) == 0, self.log()

    def restart(self) -> float:
        self.stop()
        return self.start()

    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""

    def wait_for(self, what: str, condition: object) -> None:
        """Until condition() holds, looked at when the daemon has said something."""
        assert callable(condition)
        with self._news:
            assert self._news.wait_for(condition, 20), f"{what}:\n{self.told}\n{self.log()}"

    def _spawn(self) -> None:
        fds = [(sock.fileno(), "headrace") for sock in self.listening]
        with self._news:
            fds += [(fd, name) for name, kept in self.store.items() for fd in kept]
        fds += [(fd, name) for name, fd in self.extra]
        # Above the numbers that the daemon sees, so that no move overwrites one that is still to come.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST + len(fds) + 10) for fd, _ in fds]
        environment = {
            **os.environ,
            "LISTEN_FDS": str(len(fds)),
            "LISTEN_FDNAMES": ":".join(name for _, name in fds),
            "NOTIFY_SOCKET": str(self.folder / "notify"),
        }
        if self._watchdog_us:
            environment["WATCHDOG_USEC"] = str(self._watchdog_us)
        self.ready.clear()
        started = time.monotonic()
        self._started = started
        with self.log_path.open("ab") as log:
            command = [self.program, "--config", self.config, "--set", "daemon.log_level=info"]
            self.process = Child(command, high, environment, log.fileno())
            self._children.append(self.process)
        self.starts += 1
        for fd in high:
            os.close(fd)
        for _, fd in self.extra:
            os.close(fd)
        self.extra = []

    def _watch(self) -> None:
        """Restart=always, at once."""
        while not self._closing:
            process = self.process
            if process is None or not self._wanted:
                time.sleep(0.002)
                continue
            with contextlib.suppress(TimeoutError):
                process.wait(0.1)
                if self._wanted and process is self.process:
                    self._spawn()

    # ---- what it says --------------------------------------------------------------------------

    def pause(self) -> None:
        """From now on it reads nothing."""
        self._reads.clear()

    def die(self) -> None:
        """Nobody listens any more."""
        self._dead = True
        self._notify.close()

    def go_on(self) -> None:
        self._reads.set()

    def _listen(self) -> None:
        while not (self._closing or self._dead):
            if not self._reads.wait(0.1):
                continue
            try:
                words, parts, _, _ = self._notify.recvmsg(
                    8192, socket.CMSG_SPACE(4 * DESCRIPTORS_MAX)
                )
            except TimeoutError:
                continue
            except OSError:
                return
            fds = array("i")
            for _, kind, data in parts:
                if kind == socket.SCM_RIGHTS:
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            self._take(words.decode().splitlines(), list(fds))

    def _take(self, lines: list[str], fds: list[int]) -> None:
        said = dict(line.split("=", 1) for line in lines)
        name = said.get("FDNAME", "stored")
        with self._news:
            self.told += lines
            if said.get("FDSTORE") == "1":
                self.store.setdefault(name, []).extend(fds)
            elif said.get("FDSTOREREMOVE") == "1":
                for fd in self.store.pop(name, []):
                    os.close(fd)
            if said.get("READY") == "1" and not self.ready.is_set():
                self.ready_s = time.monotonic() - self._started
                self.ready.set()
            self._news.notify_all()

    def close(self) -> None:
        self._wanted = False
        self._closing = True
        for thread in self._threads:
            thread.join()
        for child in self._children:
            child.kill()
            child.wait()
        self._notify.close()
        for sock in self.listening:
            sock.close()
        for kept in self.store.values():
            for fd in kept:
                os.close(fd)


@contextlib.contextmanager
def managed(**keys: object) -> Iterator[Manager]:
    """A manager with a daemon that is ready, and that has ended well at the end."""
    with Manager(**keys) as manager:  # type: ignore[arg-type]
        yield manager
