"""Devices that are not there at the start: a required one is waited for, loudly, and nothing is served meanwhile;
without one that is not required the daemon serves, and says that it is degraded."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import headrace
import numpy as np
import pytest
import raw
from manager import Manager
from run_daemon import Device, build_folder, built_with_systemd, device, held_port
from monitoring import get

pytestmark = pytest.mark.skipif(not built_with_systemd(), reason="built without libsystemd")

FAKE = build_folder() / "tests" / "fake" / "headraced-fake"
CUDA = build_folder() / "tests" / "cuda" / "daemon" / "headraced"


class World:
    """A folder in which the simulated devices are that there are."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if not FAKE.exists():
            pytest.skip(f"no {FAKE}: a build without the option fake")
        self.folder = folder
        for name in ("gpu0", "gpu1", "cpu0"):
            (folder / name).touch()
        monkeypatch.setenv("HEADRACE_FAKE_NEED", str(folder))

    def manager(self, devices: list[Device], retry: str = "20ms", **keys: object) -> Manager:
        return Manager(
            devices=[*devices, device("cpu0", threads=1)],
            sections={"daemon": {"device_retry": retry, "heartbeat": "20ms", **keys}},
            program=FAKE,
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def waits(manager: Manager, name: str, times: int = 1) -> None:
    status = f"STATUS=Not ready: required device {name} is not there"
    manager.wait_for(
        "told so", lambda: sum(line.startswith(status) for line in manager.told) >= times
    )


def doubled(client: headrace.Client) -> list[float]:
    graph = headrace.Graph()
    x = graph.input("x", (4,))
    graph.output(graph.add(x, x))
    return client.submit(graph).run({"x": np.ones(4, np.float32)})[0].tolist()


def test_b093_a_required_device_is_waited_for(world: World) -> None:
    """Not ready, tried again, loud; a client that came too early is served as soon as the device is there."""
    with world.manager([device("gpu0", backend="fake")]) as manager:
        manager.stop()
        manager.told.clear()
        (world.folder / "gpu0").unlink()
        manager.launch()
        waits(manager, "gpu0", times=5)  # again and again
        assert not manager.ready.is_set()
        assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in manager.told)
        assert manager.log().count("required device gpu0 is not there, not ready") == 1
        early = socket.socket(socket.AF_UNIX)
        early.connect(manager.address.removeprefix("unix:"))  # it waits in the queue
        (world.folder / "gpu0").touch()
        manager.wait_ready()
        assert "required device gpu0 is there after" in manager.log()
        early.close()
        with headrace.connect(manager.address) as client:
            assert [one.name for one in client.devices()] == ["gpu0", "cpu0"]
            assert doubled(client) == [2, 2, 2, 2]
            assert client.stats().value("degraded") == 0


def test_health_while_a_device_is_waited_for(world: World) -> None:
    """HTTP answers, names the device, and is not ready; headracectl waits at the manager's socket as long as it is told
    to. The same questions are answered well as soon as the device is there."""
    port = held_port()
    at = f"http://127.0.0.1:{port}"
    ctl = build_folder() / "client" / "c" / "headracectl"

    def health(seconds: str) -> int:
        command = [ctl, "--connect", manager.address, "--timeout", seconds, "health"]
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode

    with world.manager([device("gpu0", backend="fake")], metrics=f"127.0.0.1:{port}") as manager:
        manager.stop()
        (world.folder / "gpu0").unlink()
        manager.launch()
        waits(manager, "gpu0")
        assert get(f"{at}/live") == (200, "live\n")
        for path in ("ready", "degraded"):
            code, words = get(f"{at}/{path}")
            assert code == 503 and words.startswith("required device gpu0 is not there: ")
        assert get(f"{at}/metrics") == (503, "starting\n")
        if ctl.exists():
            assert health("0.3") == 3
        (world.folder / "gpu0").touch()
        if ctl.exists():
            raw.eventually(lambda: health("20") == 0)
        manager.wait_ready()
        raw.eventually(lambda: get(f"{at}/ready") == (200, "ready\n"))
        assert get(f"{at}/degraded") == (200, "not degraded\n")
        assert "headrace_ready 1" in get(f"{at}/metrics")[1]


def test_it_ends_while_it_answers(world: World) -> None:
    """With a scraper that has said half of its request."""
    port = held_port()
    with world.manager([device("gpu0", backend="fake")], metrics=f"127.0.0.1:{port}") as manager:
        manager.stop()
        (world.folder / "gpu0").unlink()
        manager.launch()
        waits(manager, "gpu0")
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(b"GET /metrics HTTP/1.1\r\n")
            manager.stop()
        (world.folder / "gpu0").touch()
        manager.start()


def test_several_are_waited_for_in_turn(world: World) -> None:
    devices = [device("gpu0", backend="fake"), device("gpu1", backend="fake")]
    with world.manager(devices) as manager:
        manager.stop()
        for name in ("gpu0", "gpu1"):
            (world.folder / name).unlink()
        manager.launch()
        for name in ("gpu0", "gpu1"):
            waits(manager, name)
            (world.folder / name).touch()
        manager.wait_ready()


def test_it_ends_while_it_waits(world: World) -> None:
    """SIGHUP is nothing then; SIGTERM ends it well, however long the next look is away."""
    with world.manager([device("gpu0", backend="fake")], retry="3600s") as manager:
        manager.stop()
        (world.folder / "gpu0").unlink()
        manager.launch()
        waits(manager, "gpu0")
        manager.hang_up()
        manager.stop()
        assert not manager.ready.is_set()
        (world.folder / "gpu0").touch()
        manager.start()


def test_b093_without_one_that_is_not_required(world: World) -> None:
    """Served, degraded, and never quietly."""
    with world.manager([device("gpu0", backend="fake", required="no")]) as manager:
        manager.stop()
        (world.folder / "gpu0").unlink()
        manager.start()
        assert "device gpu0 is not there, degraded until the next start" in manager.log()
        with headrace.connect(manager.address) as client:
            assert [one.name for one in client.devices()] == ["cpu0"]
            assert client.stats().value("devices_missing") == 1
            assert client.stats().value("degraded") == 1
            raw.eventually(lambda: client.stats().value("ready") == 1)
            assert doubled(client) == [2, 2, 2, 2]
        (world.folder / "gpu0").touch()
        manager.restart()
        with headrace.connect(manager.address) as client:
            assert [one.name for one in client.devices()] == ["gpu0", "cpu0"]
            assert client.stats().value("degraded") == 0


@pytest.mark.parametrize("required", ["yes", "no"])
def test_gpus_that_are_not_there(required: str) -> None:
    """The same of backend cuda, by the fake driver: it has no such GPU."""
    if not CUDA.exists():
        pytest.skip("built without the CUDA toolkit")
    devices = [
        device("cuda0", backend="cuda", gpu=0),
        device("cuda63", backend="cuda", gpu=63, required=required),
        device("cpu0", threads=1),
    ]
    manager = Manager(
        devices=devices, sections={"daemon": {"device_retry": "20ms"}}, program=CUDA
    )
    try:
        manager.launch()
        if required == "yes":
            waits(manager, "cuda63", times=3)
            assert not manager.ready.is_set()
        else:
            manager.wait_ready()
            with headrace.connect(manager.address) as client:
                assert client.stats().value("degraded") == 1
                assert doubled(client) == [2, 2, 2, 2]
        manager.stop()
    finally:
        manager.close()
