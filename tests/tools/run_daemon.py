"""Starts headraced for a script or a test: a private folder, a Unix socket in it, and a clean stop."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
START_S = 20.0
STOP_S = 30.0


class DaemonError(Exception):
    """headraced does not start, or does not end as it should; the words hold its last output."""


@dataclass(frozen=True)
class Device:
    """One [device NAME] section; `keys` as in the configuration file."""

    name: str
    keys: tuple[tuple[str, object], ...]


def device(name: str, **keys: object) -> Device:
    """device("cpu0", backend="cpu", threads=1)"""
    return Device(name, tuple(keys.items()))


def build_folder() -> Path:
    """HEADRACE_BUILD, else build/ of the checkout."""
    return Path(os.environ.get("HEADRACE_BUILD") or ROOT / "build")


def built_with_systemd() -> bool:
    """Does the build's daemon speak with a service manager?"""
    program = build_folder() / "daemon" / "headraced"
    return program.exists() and b"libsystemd.so" in program.read_bytes()


def program_environment() -> dict[str, str]:
    """The environment of the build's programs: HEADRACE_TEST_LIBRARIES are folders of libraries for them
    alone, not for the interpreter."""
    folders = os.environ.get("HEADRACE_TEST_LIBRARIES")
    return {**os.environ, "LD_LIBRARY_PATH": folders} if folders else {**os.environ}


def config_text(
    socket_path: Path,
    models: Sequence[Path],
    devices: Sequence[Device],
    tcp: str | None,
    sections: dict[str, dict[str, object]],
) -> str:
    whole: dict[str, dict[str, object]] = {
        "listen": {"unix": socket_path},
        "daemon": {"memory_pressure": "off"},  # whatever else this machine does
    }
    if tcp:
        whole["listen"]["tcp"] = tcp
    if models:
        whole["models"] = {"directories": ":".join(str(folder) for folder in models)}
    for name, keys in sections.items():
        whole.setdefault(name, {}).update(keys)
    for one in devices:
        whole[f"device {one.name}"] = dict(one.keys)
    lines: list[str] = []
    for name, keys in whole.items():
        lines += [f"[{name}]", *(f"{key} = {value}" for key, value in keys.items()), ""]
    return "\n".join(lines)


class Daemon:
    """A running headraced. As a context manager it is stopped, and must end with exit status 0."""

    def __init__(
        self,
        *,
        build: Path | None = None,
        models: Sequence[Path] = (),
        devices: Sequence[Device] = (),
        tcp: bool = False,
        sections: dict[str, dict[str, object]] | None = None,
        program: Path | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        """program: another than the build's headraced; variables: of its environment, beside ours."""
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.socket_path = self.folder / "headraced.sock"
        self.address = f"unix:{self.socket_path}"
        self.log_path = self.folder / "headraced.log"
        port = held_port() if tcp else None
        self.tcp_address = f"tcp:127.0.0.1:{port}" if port else None
        config = self.folder / "headraced.ini"
        config.write_text(
            config_text(
                self.socket_path,
                models,
                devices,
                f"127.0.0.1:{port}" if port else None,
                sections or {},
            )
        )
        program = program or (build or build_folder()) / "daemon" / "headraced"
        # Its descriptors are counted through /proc, which is closed to all but root otherwise.
        watched = {} if os.geteuid() == 0 else {"HEADRACE_DUMPABLE": "1"}
        try:
            with self.log_path.open("wb") as log:
                self.process = subprocess.Popen(
                    [program, "--config", config],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**program_environment(), **watched, **(variables or {})},
                    start_new_session=True,  # Ctrl-C goes to the script, which stops the daemon
                )
        except OSError as error:
            shutil.rmtree(self.folder)
            raise DaemonError(f"{program}: {error.strerror}") from None
        self.wait_ready()

    def wait_ready(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise DaemonError(
                    f"headraced ended with status {self.process.returncode}:\n{self.last_words()}"
                )
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(str(self.socket_path))
                    return
                except OSError:
                    time.sleep(0.01)
        self.process.kill()
        self.process.wait()
        raise DaemonError(f"headraced does not listen after {START_S:.0f} s:\n{self.last_words()}")

    def log(self) -> str:
        """All that the daemon has said."""
        return self.log_path.read_text("utf-8", "replace")

    def last_words(self) -> str:
        return self.log()[-4000:]

    def stop(self) -> None:
        """SIGTERM, and exit status 0 within the time, or DaemonError. Removes the folder."""
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            try:
                status = self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise DaemonError(
                    f"headraced does not stop within {STOP_S:.0f} s:\n{self.last_words()}"
                ) from None
            if status != 0:
                raise DaemonError(f"headraced ended with status {status}:\n{self.last_words()}")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except DaemonError:
            if error is None:
                raise


# Bound as long as this process lives, see held_port().
_held: list[socket.socket] = []


def held_port() -> int:
    """A TCP port of the loopback that nobody else gets by chance while this process lives, however often a daemon
    takes it and leaves it. It is bound here without listening: then only a server that asks for it by its number,
    with SO_REUSEADDR, can have it beside us."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    _held.append(holder)
    # Asked for by port 0 without SO_REUSEADDR, so that it is not one that another process holds in this way.
    holder.bind(("127.0.0.1", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return int(holder.getsockname()[1])
