"""Fixtures for tests against a real daemon. HEADRACE_BUILD names its build folder (default: build).

launch(...)   starts a daemon with given devices, sections, models; stopped at the end, which must
              be clean. Keywords: those of run_daemon.Daemon.
daemon        one daemon per module: two isolated CPU devices (with HEADRACE_TEST_BACKEND=cuda two GPUs)
              and a shared one, Unix and TCP.
address       its addresses, one after the other ("unix:..." and "tcp:..."): a test runs on both.
launch_watched(...)  like launch, with a bystander on the daemon, which must be unharmed at the end.
canary        a bystander in a session of its own; see tests/integration/bystander.py.
guarded       around a hostile test: the bystander is unharmed, everything is given back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
for folder in ("tests/tools", "tests/integration", "client/python"):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))

from devices import THREE_DEVICES, start_daemon  # noqa: E402
from run_daemon import Daemon  # noqa: E402

@pytest.fixture
def launch() -> Iterator[Callable[..., Daemon]]:
    running: list[Daemon] = []

    def start(**keys: Any) -> Daemon:
        running.append(start_daemon(**keys))
        return running[-1]

    yield start
    for one in running:
        if one.folder.exists():  # the test has not stopped it itself
            one.stop()


@pytest.fixture
def launch_watched(launch: Callable[..., Daemon]) -> Iterator[Callable[..., Daemon]]:
    from bystander import Bystander

    watching: list[Bystander] = []

    def start(**keys: Any) -> Daemon:
        running = launch(**keys)
        watching.append(Bystander(running.address, "host"))
        return running

    yield start
    for one in watching:
        with one:
            pass


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model directory of `daemon`. Tests may put files into it."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def daemon(model_folder: Path) -> Iterator[Daemon]:
    running = start_daemon(devices=THREE_DEVICES, tcp=True, models=[model_folder])
    yield running
    running.stop()


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, daemon: Daemon) -> str:
    found = daemon.address if request.param == "unix" else daemon.tcp_address
    assert found is not None
    return found


@pytest.fixture(scope="module")
def canary(daemon: Daemon) -> Iterator[Any]:
    """Works all the time in a session of its own; checked when the module ends."""
    from bystander import Bystander

    with Bystander(daemon.address) as bystander:
        yield bystander


@pytest.fixture
def guarded(daemon: Daemon, canary: Any) -> Iterator[None]:
    """Around a hostile test: the daemon lives, the bystander's results are right and go on, and
    what the test held (descriptors, sessions, objects, memory) is given back within five seconds."""
    from baseline import Baseline

    before = Baseline(daemon)
    yield
    assert daemon.process.poll() is None, f"the daemon has ended:\n{daemon.log()}"
    canary.check()
    before.expect_again()
