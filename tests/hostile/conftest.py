"""A daemon behind each door, and the guard around every hostile test.

door          "unix", "tcp" or "tls"; a module's DOORS says which its tests go through (unix and tls
              without it). Tests that take no `address` go through the Unix socket only.
daemon        two isolated CPU devices and a shared one, behind that door; a module may have its own.
address       the daemon's address at that door
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import raw  # noqa: E402
from devices import THREE_DEVICES, start_daemon  # noqa: E402
from headrace.tls import client_context  # noqa: E402
from papers import Papers, make_papers  # noqa: E402
from run_daemon import Daemon, held_port  # noqa: E402
from secure import SecureSocket  # noqa: E402


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "door" not in metafunc.fixturenames:
        return
    doors = getattr(metafunc.module, "DOORS", ("unix", "tls"))
    if not {"address", "rig"} & set(metafunc.fixturenames):
        doors = ("unix",)
    metafunc.parametrize("door", doors, scope="module", indirect=True)


@pytest.fixture(scope="module")
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    made = make_papers(tmp_path_factory.mktemp("papers"))
    context = client_context(made.file("ours.pem"), made.file("known.pem"), made.file("known.key"))

    def connect(rest: str) -> SecureSocket:
        plain = socket.create_connection(("127.0.0.1", int(rest.rsplit(":", 1)[1])), raw.TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return SecureSocket(plain, context, "localhost")

    raw.OPENERS["tls"] = connect
    return made


def _start_behind(door: str, papers: Papers, **keys: Any) -> Daemon:
    """A daemon with a Unix socket and what the door needs. Behind TLS the tests' own certificate
    and user are one principal."""
    sections = {name: dict(values) for name, values in keys.pop("sections", {}).items()}
    if door == "tls":
        port = held_port()
        sections.setdefault("listen", {})["tls"] = f"127.0.0.1:{port}"
        sections["tls"] = {
            "certificate": papers.file("daemon.pem"),
            "key": papers.file("daemon.key"),
            "client_ca": papers.file("ours.pem"),
        }
        sections["principal tests"] = {
            "uid": os.getuid(),
            "certificate": "known client",
            "permissions": "run, load, admin",
        }
    running = start_daemon(tcp=door == "tcp", sections=sections, **keys)
    running.tls_address = f"tls:localhost:{port}" if door == "tls" else None
    return running


def address_at(door: str, daemon: Daemon) -> str:
    found = {
        "unix": daemon.address,
        "tcp": daemon.tcp_address,
        "tls": getattr(daemon, "tls_address", None),
    }[door]
    assert found is not None
    return str(found)


@pytest.fixture(scope="session")
def start_behind(papers: Papers) -> Callable[..., Daemon]:
    """start_behind(door, **keys): for a module's own `daemon`, which stops it."""
    return functools.partial(_start_behind, papers=papers)


@pytest.fixture(scope="module")
def daemon(door: str, papers: Papers, model_folder: Path) -> Iterator[Daemon]:
    running = _start_behind(door, papers, devices=THREE_DEVICES, models=[model_folder])
    yield running
    running.stop()


@pytest.fixture
def address(door: str, daemon: Daemon) -> str:
    return address_at(door, daemon)


@pytest.fixture
def launch_behind(door: str, papers: Papers) -> Iterator[Any]:
    """launch_behind(**keys): the address, at this test's door, of a daemon of its own; its
    `daemon` attribute of the function is the last one started."""
    running: list[Daemon] = []

    def start(**keys: Any) -> str:
        running.append(_start_behind(door, papers, **keys))
        start.daemon = running[-1]  # type: ignore[attr-defined]
        return address_at(door, running[-1])

    yield start
    for one in running:
        if one.folder.exists():
            one.stop()
