"""The C client library and daemons that end under it: tests/client/restart.c, a test at a time, with a service
manager that kills and starts the daemon when the program says so."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

import headrace
import pytest
import raw
from manager import Manager, managed
from run_daemon import build_folder, built_with_systemd, device

pytestmark = pytest.mark.skipif(not built_with_systemd(), reason="built without libsystemd")

ROOT = Path(__file__).resolve().parents[2]
DEVICES = [device("slow", threads=1, delay="600ms"), device("cpu0", threads=1)]
WAITING = "a_broken_connection_finds_its_session_again"


def restart_tests() -> list[str]:
    source = (ROOT / "tests" / "client" / "restart.c").read_text()
    return [
        line.split("(")[1].split(")")[0].split(",")[0]
        for line in source.splitlines()
        if line.startswith(("HR_TEST(", "HR_TEST_LIMIT("))
    ]


class Events:
    """Does what the program asks for, letter by letter."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(60)
        self.later: threading.Thread | None = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _end_runs(self, count: int) -> None:
        """Each time a run is in flight; looked at without a client that would be ended, too."""
        for _ in range(count):
            with headrace.connect(self.manager.address) as other:
                raw.eventually(lambda: other.stats().value("runs_in_flight") == 1, 30)
            self.manager.kill()
            self.manager.start()

    def _serve(self) -> None:
        while letter := self.ours.recv(1):
            if letter == b"k":
                self.manager.kill()
                self.manager.start()
            elif letter == b"r":
                self.manager.restart()
            elif letter in b"ij":
                count = 1 if letter == b"i" else 2
                self.later = threading.Thread(target=self._end_runs, args=(count,))
                self.later.start()
            elif self.later is not None:
                self.later.join(60)
            self.ours.sendall(b".")

    def close(self) -> None:
        self.theirs.close()
        self.thread.join(60)
        self.ours.close()


@pytest.mark.parametrize("name", restart_tests())
def test_restart(name: str) -> None:
    program = build_folder() / "tests" / "client" / "client_c_restart"
    if not program.exists():  # a build of the daemon alone
        pytest.skip(f"no {program}")
    sections = {"daemon": {"session_grace": "20s"}} if name == WAITING else {}
    with managed(devices=DEVICES, sections=sections) as manager:
        events = Events(manager)
        done = subprocess.run(
            [program, name],
            env={
                **os.environ,
                "HEADRACE_TEST_ADDRESS": manager.address,
                "HEADRACE_TEST_CONTROL": str(events.theirs.fileno()),
            },
            pass_fds=[events.theirs.fileno()],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        events.close()
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed, 0 failed, 0 skipped" in done.stdout
