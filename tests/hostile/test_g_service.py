"""Section G of TABLE.md: the daemon as a service. Each test has a daemon of its own under a small manager
(tests/integration/manager.py), with a bystander's weights and graph, which are right at the end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import headrace
import numpy as np
import pytest
import raw
from devices import has_address_sanitizer
from manager import Manager, managed
from run_daemon import built_with_systemd, config_text, device
from test_keep import CONTENTS, has, memfd, names

pytestmark = pytest.mark.skipif(not built_with_systemd(), reason="built without libsystemd")

ONES = np.ones(64, np.float32)


class Service:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.client = headrace.connect(manager.address)
        self.weights = self.client.put("kept", {"w": ONES * 3})
        graph = headrace.Graph()
        x, w = graph.input("x", (64,)), graph.weight("w", (64,))
        graph.output(graph.mul(x, w))
        self.graph = self.client.submit(graph, weights=[self.weights])
        has(manager, 1)
        self.fds = self.descriptors()

    @property
    def pid(self) -> int:
        assert self.manager.process is not None
        return self.manager.process.pid

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def run(self) -> None:
        """The bystander's result is right, by weights that nobody has sent again."""
        assert self.graph.run({"x": ONES * 2})[0].tolist() == [6.0] * 64
        assert self.client.contents([self.weights.info.digest])[0].state == 2


@pytest.fixture
def guarded() -> Iterator[Service]:
    """The daemon lives and serves at the end, and what was held is given back."""
    beats: dict[str, dict[str, object]] = {"daemon": {"heartbeat": "20ms"}}
    with managed(devices=[device("cpu0", threads=1)], sections=beats, watchdog_s=1.0) as manager:
        service = Service(manager)
        pid = service.pid
        yield service
        if manager.process is not None and manager.process.poll() is None:
            service.run()
            if service.pid == pid:
                raw.eventually(lambda: service.descriptors() <= service.fds)
            service.client.close()
        else:
            service.client.close()
            manager.start()


def test_G02_signals_of_all_kinds(guarded: Service) -> None:
    pid = guarded.pid
    for number in (signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM) * 20:
        os.kill(pid, number)
    for _ in range(200):
        os.kill(pid, signal.SIGHUP)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.05)
    os.kill(pid, signal.SIGCONT)
    guarded.run()
    assert guarded.pid == pid
    words = "configuration read again, changed: nothing"
    raw.eventually(lambda: words in guarded.manager.log())


def test_G02_a_broken_configuration(guarded: Service) -> None:
    manager = guarded.manager
    text = manager.config.read_text()
    manager.config.write_text(text + "[limits]\nconnections = 7\nnonsense = 1\n")
    manager.hang_up()
    line = len(text.splitlines()) + 3
    raw.eventually(lambda: f"headraced.ini:{line}" in manager.log())
    raw.eventually(lambda: "the configuration stays as it is" in manager.log())
    guarded.run()
    manager.config.write_text(text)
    manager.hang_up()
    raw.eventually(lambda: "configuration read again, changed: nothing" in manager.log())
    guarded.run()


def test_G02_told_to_end_twice(guarded: Service) -> None:
    manager = guarded.manager
    assert manager.process is not None
    for _ in range(10):
        manager.process.send_signal(signal.SIGTERM)
    manager.stop()
    assert manager.log().count("draining (SIGTERM)") == 1
    manager.start()
    guarded.run()


def test_G03_killed_in_an_upload(guarded: Service) -> None:
    """What had not been verified is not there; what had is; the same upload succeeds afterwards."""
    manager = guarded.manager
    data = {"w": np.arange(4 << 20, dtype=np.int32)}

    def end() -> None:
        manager.kill()
        manager.start()

    for delay in (0.0, 0.005, 0.02):
        ended = threading.Timer(delay, end)
        with headrace.connect(manager.address) as client:
            ended.start()
            with contextlib.suppress(headrace.errors.HeadraceError):
                client.put("large", data)
            ended.join()
        with headrace.connect(manager.address) as client:
            digests = {one.name: one.digest for one in client.weights()}
            assert digests["kept"] == guarded.weights.info.digest
            if "large" in digests:  # then it is whole
                assert manager.store[CONTENTS + digests["large"].hex()]
        guarded.run()
    with headrace.connect(manager.address) as client:
        made = client.put("large", data)
        graph = headrace.Graph()
        leaf = graph.weight("w", made["w"].shape, made["w"].type)
        graph.output(graph.cont(leaf), "out")
        assert np.array_equal(client.submit(graph, weights=[made]).run()["out"], data["w"])


def test_G03_killed_again_and_again(guarded: Service) -> None:
    """The handed-over sets live through starts that end at any moment, before READY as well."""
    manager = guarded.manager
    for turn in range(12):
        manager.kill()
        if turn % 3 == 2:
            manager.start()
            guarded.run()
        else:
            manager.launch()
            time.sleep(turn * 0.003)
    manager.kill()
    manager.start()
    guarded.run()
    assert len(names(manager, CONTENTS)) == 1


def test_G05_descriptors_that_lie(guarded: Service) -> None:
    manager = guarded.manager
    read_end, write_end = os.pipe()
    lies = [("headrace", read_end), ("tls", write_end), ("stored", memfd(b"of somebody else"))]
    lies += [(name, os.dup(fds[0])) for name, fds in manager.store.items()]
    lies += [(CONTENTS + "0" * 64, memfd(b"short")), (CONTENTS + "zz", os.open("/dev/null", 0))]
    lies += [("headrace", socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach())]
    manager.extra = lies
    manager.kill()
    manager.start()
    guarded.run()
    assert manager.log().count("is of no use") == 4
    assert manager.log().count("is not taken back") == 2


def test_G06_no_manager(guarded: Service) -> None:
    """It dies while the daemon runs: nobody takes what is sent (ECONNREFUSED), and then there is nothing."""
    guarded.manager.die()
    for seed in range(3):
        made = guarded.client.put(f"more{seed}", {"w": ONES * seed})
        guarded.client.drop(made)
    guarded.manager.hang_up()
    guarded.run()
    assert "the service manager does not answer" in guarded.manager.log()


def test_G09_two_daemons_on_one_socket(guarded: Service) -> None:
    manager = guarded.manager
    own = manager.folder / "second.sock"
    command = [str(manager.program), "--config", str(manager.config), "--set", f"listen.unix={own}"]
    first = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        raw.eventually(own.exists)
        second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert second.returncode == 73 and str(first.pid) in second.stderr
        with headrace.connect(f"unix:{own}") as client:
            client.ping()
    finally:
        first.terminate()
        assert first.wait(20) == 0
        assert first.stderr is not None
        first.stderr.close()
    guarded.run()


def nobody_looks_into_it(manager: Manager) -> None:
    """A daemon of another user, whose files that user can reach: what is not dumpable is root's."""
    with tempfile.TemporaryDirectory() as name:
        folder, nobody = Path(name), 65534
        program, config, address = folder / "headraced", folder / "ini", folder / "sock"
        shutil.copy(manager.program, program)
        config.write_text(config_text(address, (), [device("host", threads=1)], None, {}))
        for path in (folder, config):
            os.chown(path, nobody, nobody)
        process = subprocess.Popen(
            [program, "--config", config],
            user=nobody, group=nobody, extra_groups=[], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            raw.eventually(lambda: address.exists() or process.poll() is not None)
            assert process.poll() is None
            assert Path(f"/proc/{process.pid}/mem").stat().st_uid == 0
        finally:
            process.terminate()
            assert process.wait(20) == 0


def test_G11_secrets(guarded: Service) -> None:
    """Nobody but root looks into the process; a token is in no log, also one that was refused."""
    token = "an-extraordinary-secret"
    manager = guarded.manager
    digest = hashlib.sha256(token.encode()).hexdigest()
    manager.config.write_text(
        manager.config.read_text() + f"[principal me]\nuid = {os.getuid()}\n"
        f"token_sha256 = {digest}\npermissions = run, load, admin\n"
    )
    manager.kill()
    manager.start()
    for credentials in (token.encode(), b"wrong-" + token.encode()):
        try:
            with headrace.connect(manager.address, credentials=credentials) as client:
                client.ping()
        except headrace.errors.HeadraceError as error:
            assert "extraordinary" not in str(error)
    assert "extraordinary" not in manager.log() and digest not in manager.log()
    # The sanitizer's own search for leaks looks into the process.
    if os.geteuid() == 0 and not has_address_sanitizer(guarded.pid):
        nobody_looks_into_it(manager)
    guarded.run()


def test_G12_a_path_that_leads_astray(guarded: Service) -> None:
    """Its absence is noticed from within: clients that cannot come cannot say so."""
    manager, client = guarded.manager, guarded.client
    path = Path(manager.address.removeprefix("unix:"))
    raw.eventually(lambda: client.stats().value("ready") == 1)
    manager.wait_for("fed", lambda: "WATCHDOG=1" in manager.told)
    path.rename(path.with_suffix(".away"))
    raw.eventually(lambda: client.stats().value("ready") == 0)
    assert "does not lead here any more" in manager.log()

    def silent() -> bool:  # once what was on its way has come
        manager.told.clear()
        time.sleep(0.2)
        return "WATCHDOG=1" not in manager.told

    raw.eventually(silent, 20)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        assert silent()
        assert client.stats().value("ready") == 0
    path.unlink()
    path.with_suffix(".away").rename(path)
    raw.eventually(lambda: client.stats().value("ready") == 1)
    manager.wait_for("fed again", lambda: "WATCHDOG=1" in manager.told)
    guarded.run()
