"""B088: an endpoint that answers while the engine is dead. One thread at a time is stopped, as the kernel stops a
thread (nothing else in the process is), and whoever asks for health is told, whatever else still works."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

import headrace
import numpy as np
import pytest
import raw
from bystander import Bystander
from manager import Manager
from run_daemon import built_with_systemd, device, held_port
from monitoring import get

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000
DEVICES = (
    device("first", backend="cpu", threads=1, memory="isolated"),
    device("team", backend="cpu", threads=3, memory="isolated"),
    device("host", backend="cpu", threads=1),
)
ONES = np.ones(64, np.float32)

pytestmark = pytest.mark.skipif(not built_with_systemd(), reason="built without libsystemd")


@contextlib.contextmanager
def stopped(pid: int, thread: int) -> Iterator[None]:
    """A thread stands still meanwhile; the others of its process do not notice."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(SEIZE, thread, None, None) != 0:
        pytest.skip(f"threads of process {pid} cannot be stopped: {os.strerror(ctypes.get_errno())}")
    try:
        assert libc.ptrace(INTERRUPT, thread, None, None) == 0, os.strerror(ctypes.get_errno())
        assert os.waitpid(thread, WALL)[0] == thread
        yield
    finally:
        assert libc.ptrace(DETACH, thread, None, None) == 0, os.strerror(ctypes.get_errno())


def threads(pid: int) -> dict[str, list[int]]:
    """By name."""
    found: dict[str, list[int]] = {}
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
        found.setdefault((task / "comm").read_text().strip(), []).append(int(task.name))
    return found


class Watched:
    def __init__(self, manager: Manager, http: str) -> None:
        self.manager = manager
        self.http = http
        assert manager.process is not None
        self.pid = manager.process.pid
        self.client = headrace.connect(manager.address)
        raw.eventually(lambda: self.ready() == (200, "ready\n"), 20, "never ready")

    def ready(self) -> tuple[int, str]:
        return get(f"{self.http}/ready")

    def fed(self) -> int:
        return self.manager.told.count("WATCHDOG=1")

    def starves(self) -> None:
        """The watchdog hears nothing, for ten times as long as it takes between two beats, once what was on
        its way has come."""

        def silent() -> bool:
            fed = self.fed()
            time.sleep(0.5)
            return self.fed() == fed

        raw.eventually(silent, 20, "the watchdog is fed")
        assert silent()

    def recovers(self) -> None:
        fed = self.fed()
        raw.eventually(lambda: self.ready() == (200, "ready\n"), 20, "not ready again")
        raw.eventually(lambda: self.fed() > fed, 20, "the watchdog is not fed again")
        graph = headrace.Graph()
        x = graph.input("x", (64,))
        graph.output(graph.add(x, x))
        for name in ("first", "team", "host"):
            handle = self.client.submit(graph, pins={"*": name})
            assert handle.run({"x": ONES})[0].tolist() == [2.0] * 64


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    if os.geteuid() != 0:
        monkeypatch.setenv("HEADRACE_DUMPABLE", "1")
    port = held_port()
    sections: dict[str, dict[str, object]] = {
        "daemon": {"heartbeat": "50ms", "metrics": f"127.0.0.1:{port}"}
    }
    with Manager(devices=DEVICES, sections=sections, watchdog_s=3.0) as manager:
        found = Watched(manager, f"http://127.0.0.1:{port}")
        yield found
        found.client.close()


def is_late(watched: Watched, name: str) -> None:
    """Not ready, that device named late, and the watchdog starves."""
    raw.eventually(lambda: watched.ready() == (503, "a device does not answer\n"), 20, "still ready")
    health = watched.client.health()
    assert {one.device: one.health for one in health.devices} == {
        one.name: "late" if one.name == name else "ok" for one in DEVICES
    }
    assert health.live and not health.ready and health.degraded
    assert get(f"{watched.http}/live") == (200, "live\n")
    assert get(f"{watched.http}/degraded") == (503, f"device {name}: late\n")
    watched.starves()


@pytest.mark.parametrize("name", ["first", "team"])
def test_b088_a_compute_thread_that_stands_still(watched: Watched, name: str) -> None:
    """The thread of a device's queue: nobody has asked it for anything but its pulse. Clients of the other devices go
    on, whose pulses are felt still; afterwards all is well."""
    (thread,) = threads(watched.pid)[name]
    with Bystander(watched.manager.address, "host") as bystander:
        with stopped(watched.pid, thread):
            is_late(watched, name)
            runs = bystander.runs
            raw.eventually(lambda: bystander.runs > runs + 20, 20, "the others do not go on")
            beats = {one.device: one.beats for one in watched.client.health().devices}
            raw.eventually(lambda: all(
                one.beats > beats[one.device] + 2
                for one in watched.client.health().devices if one.device != name), 20, "no pulse")  # fmt: skip
        watched.recovers()
        bystander.check()


def test_b088_one_thread_of_several_stands_still(watched: Watched) -> None:
    """A small pulse may do without it; the first run that needs it shows that the device does not move."""
    (thread,) = threads(watched.pid)["team.1"]
    graph = headrace.Graph()
    x = graph.input("x", (256, 256))
    graph.output(graph.mul_mat(x, x))
    handle = watched.client.submit(graph, pins={"*": "team"})
    with Bystander(watched.manager.address, "host") as bystander:
        with stopped(watched.pid, thread):
            running = handle.run_async({"x": np.ones((256, 256), np.float32)})
            is_late(watched, "team")
            runs = bystander.runs
            raw.eventually(lambda: bystander.runs > runs + 20, 20, "the others do not go on")
        assert np.array_equal(running.result()[0], np.full((256, 256), 256, np.float32))
        watched.recovers()
        bystander.check()


def test_b088_an_engine_that_stands_still(watched: Watched) -> None:
    """The loop answers, and says that nothing comes back."""
    with stopped(watched.pid, threads(watched.pid)["hr-engine"][0]):
        raw.eventually(lambda: watched.ready() == (503, "a device does not answer\n"), 20, "ready")
        assert not watched.client.health().ready
        watched.starves()
    watched.recovers()


def test_b088_a_loop_that_stands_still(watched: Watched) -> None:
    """Nobody is answered: the watchdog is what notices."""
    with stopped(watched.pid, watched.pid):
        watched.starves()
    watched.recovers()
