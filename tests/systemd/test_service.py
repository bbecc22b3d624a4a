"""The units as they are installed, under the real systemd: started by a connection, reloaded, restarted, killed,
hung, stopped. Weights stay, and nobody is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import headrace
import numpy as np
import pytest
import raw
from container import Container, NoContainer, why_not
from papers import make_papers
from run_daemon import build_folder, built_with_systemd

FULL = os.environ.get("HEADRACE_FULL") == "1"
UNIT = "headrace.service"
CONFIG = "/usr/local/etc/headrace/headrace.conf"
SETTINGS = """[daemon]
log_level = info
heartbeat = 500ms
[listen]
unix = /run/headrace/headrace.sock
[device cpu0]
threads = 1
"""
# What an operator may want: a hang is noticed sooner.
WATCHDOG = "[Service]\nWatchdogSec=2s\nTimeoutAbortSec=300ms\n"
# Of three ends two are kills.
ENDS = 15 if FULL else 6


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    if not built_with_systemd():
        pytest.skip("built without libsystemd")
    stage = tmp_path_factory.mktemp("stage")
    subprocess.run(
        ["meson", "install", "-C", build_folder(), "--no-rebuild", "--quiet", "--destdir", stage],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    config = stage / CONFIG.lstrip("/")
    assert config.exists() and (stage / "usr/local/lib/systemd/system" / UNIT).exists()
    config.write_text(SETTINGS)
    try:
        container = Container(stage)
    except NoContainer as error:
        pytest.skip(f"systemd-nspawn boots nothing here: {str(error)[-300:]}")
    with container:
        container.run("systemd-sysusers")
        container.run("systemd-tmpfiles", "--create", "headrace.conf")
        container.systemctl("start", "headrace.socket")
        yield container


@pytest.fixture
def address(machine: Container) -> str:
    return f"unix:{machine.root}/run/headrace.sock"


@pytest.fixture
def running(machine: Container, address: str) -> str:
    """The daemon is up, started by a connection if need be."""
    with headrace.connect(address) as client:
        client.ping()
    machine.wait("active", lambda: machine.systemctl("is-active", UNIT, check=False).strip() == "active")
    return address


def pid(machine: Container) -> int:
    return int(machine.show(UNIT, "MainPID"))


def restarted(machine: Container, old: int) -> None:
    """Another process is ready."""
    machine.wait(
        "a new daemon", lambda: pid(machine) not in (0, old) and machine.show(UNIT, "SubState") == "running"
    )


def data(megabytes: int) -> dict[str, np.ndarray]:
    return {"w": np.arange(megabytes << 18, dtype=np.int32)}


def kept(client: headrace.Client, digest: bytes) -> None:
    """The set that an earlier daemon had: found, unhashed, whole."""
    assert client.contents([digest])[0].state == 2
    assert client.stats().value("weight_sets_taken_back_total") == 1
    assert client.stats().value("weight_bytes_hashed_total") == 0
    found = client.load("", "kept")
    assert found.info.digest == digest
    graph = headrace.Graph()
    leaf = graph.weight("w", found["w"].shape, found["w"].type)
    graph.output(graph.cont(graph.view(leaf, (8,), offset=4 * (found["w"].shape[0] - 8))), "out")
    out = client.submit(graph, weights=[found]).run()["out"]
    count = found["w"].shape[0]
    assert out.tolist() == list(range(count - 8, count))


def test_a_connection_starts_it(machine: Container, address: str) -> None:
    assert machine.systemctl("is-active", UNIT, check=False).strip() == "inactive"
    with headrace.connect(address) as client:
        client.ping()
    assert machine.show(UNIT, "SubState") == "running"
    assert machine.show(UNIT, "StatusText") == "Serving with 1 device"
    status = (machine.root / "proc" / str(pid(machine)) / "status").read_text()
    assert "Uid:\t0" not in status and "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status


def test_its_log_has_fields(machine: Container, running: str) -> None:
    """In the journal's own: found by what they say, and a peer's words are no fields of their own."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(running.removeprefix("unix:"))
        peer.sendall(b"GET / HTTP/1.0\r\nMESSAGE=forged\r\n\r\n")
        peer.recv(4096)
    query = ("journalctl", "--no-pager", "--output=json", "--identifier=headraced",
             "HEADRACE_REASON=BAD_MAGIC")  # fmt: skip
    machine.wait("a line", lambda: bool(machine.run(*query, check=False).strip()))
    line = json.loads(machine.run(*query).splitlines()[-1])
    assert line["_SYSTEMD_UNIT"] == UNIT and line["PRIORITY"] == "5"
    assert line["MESSAGE"].startswith("connection cut connection=")
    assert line["HEADRACE_TOPIC"] == "conn" and line["HEADRACE_TRANSPORT"] == "unix"
    assert int(line["HEADRACE_CONNECTION"]) > 0 and line["HEADRACE_CODE"] == "3"


def test_reload(machine: Container, running: str) -> None:
    before = pid(machine)
    with headrace.connect(running) as client:
        machine.write(CONFIG, SETTINGS + "[limits]\nconnections = 17\nsession_states = 3\n")
        machine.systemctl("reload", UNIT)
        machine.wait("changed", lambda: "changed: limits.connections" in machine.journal())
        assert "only a new start changes: limits.session_states" in machine.journal()
        machine.write(CONFIG, SETTINGS + "nonsense\n")
        machine.systemctl("reload", UNIT)
        line = len(SETTINGS.splitlines()) + 1
        machine.wait("refused", lambda: "the configuration stays as it is" in machine.journal())
        assert f"headrace.conf:{line}" in machine.journal()
        assert "file is wrong" in machine.show(UNIT, "StatusText")
        machine.write(CONFIG, SETTINGS)
        machine.systemctl("reload", UNIT)
        client.ping()
    assert pid(machine) == before


@pytest.mark.parametrize("how", ["restart", "kill", "hang"])
def test_weights_stay(machine: Container, running: str, how: str) -> None:
    """Restart, kill -9, and a process that does nothing any more, which the watchdog ends."""
    machine.systemctl("restart", UNIT)  # nothing of an earlier test
    if how == "hang":
        machine.write("/run/systemd/system/headrace.service.d/watchdog.conf", WATCHDOG)
        machine.systemctl("daemon-reload")
        machine.systemctl("restart", UNIT)
    with headrace.connect(running) as client:
        made = client.put("kept", data(256 if FULL else 16))
        machine.wait("given", lambda: machine.show(UNIT, "NFileDescriptorStore") == "2")
        old = pid(machine)
        if how == "restart":
            machine.systemctl("restart", UNIT)
        else:
            machine.signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            restarted(machine, old)
        if how == "hang":
            assert "Watchdog timeout" in machine.journal()
    with headrace.connect(running) as client:
        kept(client, made.info.digest)
        machine.run("rm", "-rf", "/run/systemd/system/headrace.service.d")
        machine.systemctl("daemon-reload")
    assert machine.show(UNIT, "NFileDescriptorStore") == "2"
    machine.systemctl("stop", UNIT)  # what is stopped lets go
    assert machine.show(UNIT, "NFileDescriptorStore") == "0"


class Callers:
    """Threads that connect, say hello and go, all the time: none is ever refused."""

    def __init__(self, path: Path, threads: int) -> None:
        self._path = str(path)
        self._stop = threading.Event()
        self.connects = 0
        self.answers = 0
        self.refused: list[OSError] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            try:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(30)
                    sock.connect(self._path)
                    if turn % 8 == 0:  # what a daemon makes of it: an answer, or the end of that daemon
                        sock.sendall(b"x" * 32)
                        sock.recv(64)
                        with self._lock:
                            self.answers += 1
                with self._lock:
                    self.connects += 1
            except (ConnectionResetError, BrokenPipeError):
                pass  # a connection that a killed daemon had
            except OSError as error:
                with self._lock:
                    self.refused.append(error)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_nobody_is_refused(machine: Container, running: str) -> None:
    """Kills and restarts while thousands connect; in full ten and five."""
    callers = Callers(machine.root / "run/headrace.sock", 4)
    try:
        with headrace.connect(running) as holder:
            made = holder.put("kept", data(16))
            machine.wait("given", lambda: machine.show(UNIT, "NFileDescriptorStore") == "2")
            for turn in range(ENDS):
                old = pid(machine)
                if turn % 3 == 2:
                    machine.systemctl("restart", UNIT)
                else:
                    machine.signal(signal.SIGKILL)
                    restarted(machine, old)
                with headrace.connect(running) as client:
                    kept(client, made.info.digest)
    finally:
        callers.end()
    assert callers.refused == []
    assert callers.connects > ENDS * 100 and callers.answers > ENDS
    assert machine.show("headrace.socket", "SubState") in ("running", "listening")


def test_b090_recovery_that_never_comes(machine: Container, address: str) -> None:
    """A daemon that dies at each start is not started for ever, and does not fill the journal; when the fault is
    gone, a new start serves."""
    machine.systemctl("stop", UNIT, "headrace.socket")
    machine.write(
        "/run/systemd/system/headrace.service.d/broken.conf",
        "[Service]\nExecStart=\nExecStart=/bin/sh -c 'echo broken; exit 1'\n"
        "RestartSec=20ms\n[Unit]\nStartLimitBurst=5\n",
    )
    machine.systemctl("daemon-reload")
    machine.systemctl("start", UNIT, check=False)
    machine.wait("given up", lambda: machine.show(UNIT, "Result") == "exit-code"
                 and machine.show(UNIT, "ActiveState") == "failed")  # fmt: skip
    assert int(machine.show(UNIT, "NRestarts")) <= 5
    assert machine.journal().count("broken\n") <= 6
    machine.run("rm", "-rf", "/run/systemd/system/headrace.service.d")
    machine.systemctl("daemon-reload")
    machine.systemctl("reset-failed", UNIT)
    machine.systemctl("start", "headrace.socket")
    with headrace.connect(address) as client:
        client.ping()


CACHES = {
    "unset": "",
    "unwritable": "[models]\ncache_directory = /usr/cache\n",
    "full": "[models]\ncache_directory = /mnt\n",
}


@pytest.mark.parametrize("cache", list(CACHES))
def test_b050_a_service_without_a_cache(machine: Container, cache: str) -> None:
    """DynamicUser, no HOME, a root that cannot be written: it is ready, the cache is off, and it says so once."""
    unit = f"b050-{cache}.service"
    machine.write(
        "/run/b050.conf",
        "[daemon]\nlog_level = info\n[listen]\nunix = /run/b050/own.sock\n[device cpu0]\nthreads = 1\n"
        + CACHES[cache],
    )
    machine.write(
        f"/run/systemd/system/{unit}",
        "[Service]\nType=notify\nDynamicUser=yes\nRuntimeDirectory=b050\nProtectSystem=strict\nUnsetEnvironment=HOME\n"
        "ProtectHome=yes\nExecStart=/usr/local/bin/headraced --config /run/b050.conf\n"
        + ("TemporaryFileSystem=/mnt:size=4k,mode=1777\n" if cache == "full" else ""),
    )
    machine.systemctl("daemon-reload")
    machine.systemctl("start", unit)  # returns when READY=1 has come
    try:
        with headrace.connect(f"unix:{machine.root}/run/b050/own.sock") as client:
            made = client.put("set", data(1))
            assert np.array_equal(client.load("", "set").info.digest, made.info.digest)
            if cache == "full":
                machine.wait("noticed", lambda: client.stats().value(
                    "weight_cache_total", 'event="not_written"') == 1)  # fmt: skip
        warnings = machine.journal(unit).count("the cache on disk")
        assert warnings == (0 if cache == "unset" else 1)
    finally:
        machine.systemctl("stop", unit)
    assert machine.show(unit, "Result") == "success"


def test_credentials(machine: Container, running: str, tmp_path: Path) -> None:
    """By the drop-in: a certificate and a key that the daemon's user cannot read."""
    papers = make_papers(tmp_path)
    for kind in ("pem", "key"):
        machine.write(f"/etc/headrace/tls.{kind}", papers.file(f"daemon.{kind}").read_text())
        machine.run("chmod", "0600", f"/etc/headrace/tls.{kind}")
    machine.write("/etc/ours.pem", papers.file("ours.pem").read_text())
    drop_in = (machine.root / "usr/local/share/doc/headrace/credentials.conf").read_text()
    machine.write("/run/systemd/system/headrace.service.d/credentials.conf", drop_in)
    tls = "".join(f"{line.strip('# ')}\n" for line in drop_in.splitlines() if " = /run/" in line)
    assert tls.count("\n") == 2
    digest = hashlib.sha256(b"secret").hexdigest()
    machine.write(
        CONFIG,
        SETTINGS.replace("[listen]\n", "[listen]\ntls = 127.0.0.1:7071\n") + f"[tls]\n{tls}"
        + f"[principal who]\nuid = 0\ntoken_sha256 = {digest}\npermissions = run\n",
    )
    try:
        machine.systemctl("daemon-reload")
        machine.systemctl("restart", UNIT)
        machine.run("ldconfig")
        said = machine.run("env", "HEADRACE_TOKEN=secret", "/usr/local/bin/headracectl", "--connect",
                           "tls:localhost:7071", "--tls-ca", "/etc/ours.pem", "status")  # fmt: skip
        assert "serving" in said and "who" in said
    finally:
        machine.write(CONFIG, SETTINGS)
        machine.run("rm", "-rf", "/run/systemd/system/headrace.service.d", "/etc/headrace")
        machine.systemctl("daemon-reload")
        machine.systemctl("restart", UNIT)
    with headrace.connect(running) as client:
        client.ping()


def test_it_stops(machine: Container, running: str) -> None:
    machine.systemctl("stop", UNIT)
    assert machine.show(UNIT, "Result") == "success"
    assert machine.show(UNIT, "ExecMainStatus") == "0"
    assert "drained" in machine.journal()
    assert (machine.root / "run/headrace.sock").is_socket()  # the next connection starts it again
    with headrace.connect(running) as client:
        client.ping()


LIMIT = 96 << 20


def memory_group() -> Path | None:
    """This process' group of the controller "memory" where it is version 1's and can be divided."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, name, path = line.split(":", 2)
        group = Path("/sys/fs/cgroup/memory") / path.lstrip("/")
        if name == "memory" and os.access(group / "memory.limit_in_bytes", os.W_OK):
            return group
    return None


@contextlib.contextmanager
def limited(machine: Container) -> Iterator[None]:
    """The daemon may have so much memory, and the kernel kills it for more. By systemd where control groups of
    version 2 have memory; else in a group of version 1 that is made for it, which the next daemon is not in."""
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    if controllers.exists() and "memory" in controllers.read_text().split():
        machine.systemctl("set-property", "--runtime", UNIT, f"MemoryMax={LIMIT}", "MemorySwapMax=0")
        try:
            yield
        finally:
            machine.systemctl("set-property", "--runtime", UNIT, "MemoryMax=infinity")
        return
    own = memory_group()
    if own is None:
        pytest.skip("no control group of memory, of either version, can be limited here")
    group = own / f"headrace-limited-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        with contextlib.suppress(OSError):  # where swap is counted, too
            (group / "memory.memsw.limit_in_bytes").write_text(str(LIMIT))
        (group / "cgroup.procs").write_text(str(outside(pid(machine))))
        yield
    finally:
        machine.wait("empty", lambda: not (group / "cgroup.procs").read_text().strip())
        group.rmdir()


def outside(inside: int) -> int:
    """The number that a process of the container has here."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = status.read_text()
            numbers = re.search(r"^NSpid:\t(.*)$", text, re.MULTILINE)
            if text.startswith("Name:\theadraced\n") and numbers and numbers[1].split()[1:] == [str(inside)]:
                return int(status.parent.name)
    raise AssertionError(f"no process {inside} of the container")


def test_g08_killed_for_memory(machine: Container, running: str) -> None:
    """In the middle of an upload that does not fit: what had been acknowledged is there again, the upload is not."""
    machine.systemctl("restart", UNIT)  # nothing of an earlier test
    with headrace.connect(running) as client:
        made = client.put("kept", data(16))
        machine.wait("given", lambda: machine.show(UNIT, "NFileDescriptorStore") == "2")
        old = pid(machine)
        with limited(machine):
            large = bytes(2 * LIMIT)
            with raw.Conn(running) as conn, contextlib.suppress(raw.Closed, OSError):
                conn.put("large", [("w", raw.F32, [LIMIT // 2], large)], raw.tree_digest(large))
                raise AssertionError("there was room for all of it")
            restarted(machine, old)
    with headrace.connect(running) as client:
        kept(client, made.info.digest)
        assert [one.name for one in client.weights()] == ["kept"]
    assert machine.show(UNIT, "NFileDescriptorStore") == "2"


def test_g08_its_own_pressure(machine: Container, running: str) -> None:
    """Behind all walls of the unit it still reads how short memory is: of its own group where there are groups of
    version 2."""
    del running
    journal = machine.journal()
    assert "memory pressure is read from " in journal or "the kernel does not say" in journal
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        assert re.search(r"memory pressure is read from /sys/fs/cgroup/.*headrace.service/memory.pressure", journal)
