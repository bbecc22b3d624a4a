"""headracectl against a real daemon: every command as text and as JSON says what the Python client is
told, exit codes are the documented ones, and what a terminal or a shell would trip over is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
from papers import Papers, make_papers
from raw import eventually
from run_daemon import Daemon, DaemonError, build_folder, device, held_port

DEVICES = (
    device("iso", backend="cpu", threads=1, memory="isolated"),
    device("host", backend="cpu", threads=1),
)
OK, REFUSED, USAGE, NO_DAEMON, BAD_FILE, NOT_READY, DEGRADED = range(7)
Array = np.ones(64, np.float32)


def program() -> Path:
    found = build_folder() / "client" / "c" / "headracectl"
    if not found.exists():
        pytest.skip(f"no {found}")
    return found


def ctl(address: str, *arguments: str, code: int = OK, **variables: str) -> tuple[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    done = subprocess.run(
        [program(), *arguments],
        env={**env, "HEADRACE_ADDRESS": address, **variables},
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def answer(address: str, *arguments: str, code: int = OK, **variables: str) -> Any:
    return json.loads(ctl(address, "--json", *arguments, code=code, **variables)[0])


class Busy:
    """A daemon with one client that holds something of everything."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon, self.address = daemon, daemon.address
        self.client = headrace.connect(daemon.address, name="worker", session="work")
        self.weights = self.client.put(
            "model", {"w": np.ones((8, 64), np.float32)}, {"*": "iso"}
        )
        self.state = self.client.state({"s": ("f32", (1024,))})
        graph = headrace.Graph()
        y = graph.input("x", (64,))
        for _ in range(4):
            y = y + y
        graph.output(y, "y")
        self.handle = self.client.submit(graph, pins={"*": "iso"})
        self.handle.run({"x": Array})
        eventually(lambda: self.client.health().ready, 20, "never ready")


@pytest.fixture(scope="module")
def busy() -> Iterator[Busy]:
    with Daemon(devices=DEVICES, tcp=True) as daemon:
        found = Busy(daemon)
        with found.client:
            yield found


def test_status(busy: Busy) -> None:
    told, found = answer(busy.address, "status"), busy.client.status()
    for key in ("version", "pid", "state", "ready", "words", "degraded", "principal", "graphs",
                "weights", "states", "weight_bytes", "state_bytes", "device_bytes", "devices",
                "devices_lost", "epoch"):  # fmt: skip
        assert told[key] == getattr(found, key), key
    text, _ = ctl(busy.address, "status")
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split()) == 2)
    assert lines["state"] == "serving" and lines["ready"] == "yes"
    assert int(lines["pid"]) == busy.daemon.process.pid
    assert answer(str(busy.daemon.tcp_address), "status")["principal"] == "local"


def test_health(busy: Busy) -> None:
    told = answer(busy.address, "health")
    assert told["live"] and told["ready"] and not told["degraded"]
    assert [(one["device"], one["health"], one["required"]) for one in told["devices"]] == [
        ("iso", "ok", True), ("host", "ok", True)]  # fmt: skip
    text, _ = ctl(busy.address, "health")
    assert text.splitlines()[-3].split() == ["DEVICE", "HEALTH", "REQUIRED", "AGE", "BEATS", "FAILURES"]


def test_lists(busy: Busy) -> None:
    sessions = answer(busy.address, "sessions")["sessions"]
    mine = next(one for one in sessions if one["client"] == "worker")
    assert (mine["name"], mine["graphs"], mine["states"], mine["weights"]) == ("work", 1, 1, 1)
    assert any(one["client"] == "headracectl sessions" for one in sessions)
    devices = answer(busy.address, "devices")["devices"]
    assert [one["device"] for one in devices] == ["iso", "host"]
    assert devices[0]["used_bytes"] == busy.client.devices()[0].memory_used
    weights = answer(busy.address, "weights")["weights"]
    assert [(one["name"], one["source"], one["tensors"], one["size_bytes"], one["users"])
            for one in weights] == [("model", "upload", 1, 2048, 1)]  # fmt: skip
    assert weights[0]["digest"] == busy.client.weights()[0].digest.hex()
    plans = answer(busy.address, "plans")["plans"]
    assert [(one["session"], one["nodes"], one["devices"]) for one in plans] == [
        (mine["session"], 4, "iso")]  # fmt: skip
    held = {(one["principal"], one["what"]): one for one in answer(busy.address, "quota")["quotas"]}
    me = busy.client.status().principal
    assert held[me, "graphs"]["held"] == 1 and held[me, "state_bytes"]["held"] >= 4096
    assert all(one["held"] > 0 for one in held.values())
    every = answer(busy.address, "quota", "--all", me)["quotas"]
    told = busy.client.quota()
    assert {one["what"]: one["limit"] for one in every} == {
        row.labels.split('"')[1]: row.value for row in told if row.name == "principal_limit"}  # fmt: skip
    _, words = ctl(busy.address, "quota", "nobody", code=REFUSED)
    assert "no principal nobody" in words
    for command in ("sessions", "devices", "weights", "plans", "quota"):
        text, _ = ctl(busy.address, command)
        head, *rows = text.splitlines()
        assert head == head.upper() and len(rows) >= 1, command
    assert "2.00K" in ctl(busy.address, "weights")[0]


def test_explain(busy: Busy) -> None:
    plan = answer(busy.address, "plans")["plans"][0]
    where = (str(plan["session"]), str(plan["graph"]))
    told = answer(busy.address, "explain", *where)
    theirs = busy.handle.explanation()
    assert told["nodes"] == len(theirs.nodes) and told["rules"] == "headrace"
    assert [one["device"] for one in told["devices"]] == [one["name"] for one in theirs.devices]
    assert [one["compute_bytes"] for one in told["devices"]] == [
        one["compute_bytes"] for one in theirs.devices]  # fmt: skip
    assert [one["device"] for one in told["splits"]] == [one["device"] for one in theirs.splits]
    assert sum(one["nodes"] for one in told["splits"]) == 4
    assert "compute_ns" not in told["splits"][0]
    busy.handle.analyze({"x": Array}, runs=2)
    measured = answer(busy.address, "explain", *where)
    assert measured["measured_runs"] >= 2 and measured["splits"][0]["compute_ns"] > 0
    assert "SPLIT" in ctl(busy.address, "explain", *where)[0]
    failed = ctl(busy.address, "--json", "explain", where[0], "77", code=REFUSED)[1]
    assert json.loads(failed)["error"]["reason"] == "GRAPH"
    for wrong in (("0", "1"), ("x", "1"), ("1", "-1"), ("1", str(2**32)), ("1",), ("1", "2", "3")):
        ctl(busy.address, "explain", *wrong, code=USAGE)


def test_top(busy: Busy) -> None:
    out, _ = ctl(busy.address, "--json", "top", "--count", "3", "--interval", "0.05")
    looks = [json.loads(line) for line in out.splitlines()]
    assert len(looks) == 3
    for look in looks:
        assert look["state"] == "serving" and len(look["devices"]) == 2
        assert look["requests_per_s"] > 0 and look["sessions"][0]["client"] == "worker"
    text, _ = ctl(busy.address, "top", "--count=2", "--interval=0.05")
    assert "\x1b" not in text and text.count("SPLITS PER S") == 2
    for wrong in ("0", "-1", "nan", "inf", "", "1x"):
        ctl(busy.address, "top", f"--interval={wrong}", code=USAGE)


def test_top_on_a_terminal(busy: Busy) -> None:
    """Each look begins at the top of a cleared screen."""
    try:
        master, slave = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal can be had here: {error}")
    with subprocess.Popen(
        [program(), "--connect", busy.address, "top", "--count", "2", "--interval", "0.05"],
        stdout=slave, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        os.close(slave)
        seen = b""
        try:
            while piece := os.read(master, 65536):
                seen += piece
        except OSError:  # the other end has gone
            pass
        assert running.wait(20) == 0
    os.close(master)
    assert seen.count(b"\x1b[H\x1b[2J") == 2 and b"worker" in seen


def test_names_cannot_move_the_cursor(busy: Busy) -> None:
    with headrace.connect(busy.address, name='evil\x1b[2J"\\\nname', session="\x7fé"):
        text, _ = ctl(busy.address, "sessions")
        assert "\x1b" not in text and "\x7f" not in text and 'evil?[2J"\\?name' in text
        told = answer(busy.address, "sessions")["sessions"]
        assert ('evil\x1b[2J"\\\nname', "\x7fé") in [(one["client"], one["name"]) for one in told]


def test_trace(busy: Busy, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert ctl(busy.address, "trace", "--output", str(file))[0] == ""
    assert json.loads(file.read_text())["traceEvents"]
    out, _ = ctl(busy.address, "trace", "--latest", "60000", "--own")
    assert "traceEvents" in json.loads(out)
    ctl(busy.address, "trace", "--output", str(tmp_path / "none" / "x"), code=BAD_FILE)


def test_reload_and_evict(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=DEVICES, sections={"limits": {"connections": 64}})
    path = daemon.folder / "headraced.ini"
    assert answer(daemon.address, "reload") == {"applied": "", "needs_new_start": ""}
    good = path.read_text()
    path.write_text(good.replace("connections = 64", "connections = 65\nbacklog = 9"))
    assert answer(daemon.address, "reload") == {
        "applied": "limits.connections", "needs_new_start": "limits.backlog"}  # fmt: skip
    path.write_text(good.replace("connections = 64", "connections = 0"))
    _, words = ctl(daemon.address, "reload", code=REFUSED)
    assert words.startswith("headracectl: CONFIG: headraced.ini:")
    path.write_text(good)
    with headrace.connect(daemon.address) as client:
        graph = headrace.Graph()
        x = graph.input("x", (4096,))
        graph.output(x + x, "y")
        client.submit(graph)
        gone = answer(daemon.address, "evict", "graphs")
        assert (gone["what"], gone["evicted"], gone["in_use"]) == ("graphs", 1, 0)
        assert answer(daemon.address, "plans") == {"plans": []}
        assert ctl(daemon.address, "plans")[0] == "none\n"
        assert answer(daemon.address, "evict", "plans")["evicted"] == 1
    ctl(daemon.address, "evict", "plans", "name", code=USAGE)
    for what in ("experts", "uploads", "sessions", "weights"):
        assert answer(daemon.address, "evict", what)["evicted"] == 0
    assert "EVICT" in ctl(daemon.address, "evict", "everything", code=REFUSED)[1]


def test_drain(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=[device("slow", backend="cpu", threads=1, delay="500ms")])
    with headrace.connect(daemon.address) as client:
        graph = headrace.Graph()
        x = graph.input("x", (64,))
        graph.output(x + x, "y")
        running = client.submit(graph).run_async({"x": Array})
        eventually(lambda: client.status().runs == 1, 10, "no run")
        told = answer(daemon.address, "drain", "--wait", "--limit", "30")
        assert told["drained"] and told["limit_ms"] == 30000 and told["requests"] >= 1
        assert np.array_equal(running.result()["y"], 2 * Array)
    assert daemon.process.wait(20) == 0
    ctl(daemon.address, "status", code=NO_DAEMON)


def test_top_sees_a_drain_to_its_end(launch: Callable[..., Daemon]) -> None:
    """New connections are not taken, but who is there is told, and hears of the end."""
    daemon = launch(devices=[device("slow", backend="cpu", threads=1, delay="1s")])
    with headrace.connect(daemon.address) as client, subprocess.Popen(
        [program(), "--connect", daemon.address, "top", "--json", "--interval", "0.1"],
        stdout=subprocess.PIPE, text=True,
    ) as watch:  # fmt: skip
        assert watch.stdout is not None
        graph = headrace.Graph()
        x = graph.input("x", (64,))
        graph.output(x + x, "y")
        running = client.submit(graph).run_async({"x": Array})
        assert json.loads(watch.stdout.readline())["state"] == "serving"
        client.drain()
        states = [json.loads(line)["state"] for line in watch.stdout]
        assert "draining" in states
        assert running.result() is not None
        assert watch.wait(20) == NO_DAEMON


def test_health_of_a_device_that_is_not_there(launch: Callable[..., Daemon]) -> None:
    gpu = device("gpu", backend="cuda", gpu=63, required="no")
    try:
        daemon = launch(devices=[gpu, device("host", backend="cpu", threads=1)])
    except DaemonError as error:
        if "backend" not in str(error):
            raise
        pytest.skip("built without the backend")
    with headrace.connect(daemon.address) as client:
        eventually(lambda: client.health().ready, 20, "never ready")
    told = answer(daemon.address, "health", code=DEGRADED)
    assert (told["ready"], told["degraded"]) == (True, True)


def test_health_of_a_device_that_is_late(launch: Callable[..., Daemon]) -> None:
    """It does not answer while a run has it for much longer than a heartbeat."""
    daemon = launch(
        devices=[device("slow", backend="cpu", threads=1, delay="3s")],
        sections={"daemon": {"heartbeat": "50ms"}},
    )
    with headrace.connect(daemon.address) as client:
        graph = headrace.Graph()
        x = graph.input("x", (64,))
        graph.output(x + x, "y")
        eventually(lambda: client.health().ready, 20, "never ready")
        running = client.submit(graph).run_async({"x": Array})
        eventually(lambda: client.health().devices[0].health == "late", 10, "never late")
        told = answer(daemon.address, "health", code=NOT_READY)
        assert told["words"] == "a device does not answer"
        assert [one["health"] for one in told["devices"]] == ["late"]
        assert running.result() is not None


def test_who_may(launch: Callable[..., Daemon], tmp_path: Path) -> None:
    sections = {
        f"principal {name}": {
            "token_sha256": hashlib.sha256(name.encode()).hexdigest(), "permissions": rights,
        }
        for name, rights in (("runner", "run"), ("boss", "admin"))
    }  # fmt: skip
    daemon = launch(devices=DEVICES, sections=sections)
    token = tmp_path / "token"
    token.write_text("runner\n")
    own = answer(daemon.address, "status", "--token-file", str(token))
    assert own["principal"] == own["figures_of"] == "runner" and "requests" not in own
    boss = {"HEADRACE_TOKEN": "boss"}
    assert answer(daemon.address, "status", **boss)["figures_of"] == "the daemon"
    for command in ("sessions", "weights", "plans", "quota", "devices", "health"):
        answer(daemon.address, command, **boss)
        answer(daemon.address, command, HEADRACE_TOKEN="runner")
    look = json.loads(ctl(daemon.address, "--json", "top", "--count", "1", "--interval", "0.01",
                          HEADRACE_TOKEN="runner")[0])  # fmt: skip
    assert "runs_per_s" not in look and [one["principal"] for one in look["sessions"]] == ["runner"]
    for order in (("reload",), ("drain",), ("evict", "plans"), ("trace",)):
        _, words = ctl(daemon.address, *order, code=REFUSED, HEADRACE_TOKEN="runner")
        assert words.startswith("headracectl: PERMISSION: "), order
    ctl(daemon.address, "status", code=NO_DAEMON, HEADRACE_TOKEN="nobody")
    token.write_bytes(b"x" * 300)
    ctl(daemon.address, "status", "--token-file", str(token), code=BAD_FILE)
    ctl(daemon.address, "status", "--token-file", str(tmp_path / "none"), code=BAD_FILE)


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("stat",), ("status", "extra"), ("status", "--nothing"), ("status", "--wait"),
        ("drain", "--limit"), ("drain", "--limit", "soon"), ("evict",), ("evict", "plans", "a", "b"),
        ("--json=yes", "status"),
        ("top", "--count", "x"), ("trace", "--latest", "-1"), ("completion", "tcsh"),
        ("--connect", "nowhere", "status"), ("--connect=", "status"), ("status", "--timeout", "0"),
    ],
)  # fmt: skip
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    _, words = ctl("unix:/nonexistent", *arguments, code=USAGE)
    assert words.startswith("headracectl: ")


def test_no_daemon(tmp_path: Path) -> None:
    for address in (f"unix:{tmp_path}/none.sock", "tcp:127.0.0.1:1"):
        _, words = ctl(address, "status", code=NO_DAEMON)
        assert words.startswith("headracectl: CONNECT: ")
    full = Path("/dev/full")
    if full.exists():
        with full.open("w") as out:
            done = subprocess.run([program(), "completion", "bash"], stdout=out, check=False)
        assert done.returncode == BAD_FILE


def test_version_and_help() -> None:
    assert ctl("", "--version")[0] == f"headracectl {headrace.__version__}\n"
    assert ctl("", "--help")[0].startswith("usage: headracectl")


# ---- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return make_papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def guarded_by_tls(papers: Papers) -> Iterator[tuple[str, Daemon]]:
    port = held_port()
    sections: dict[str, dict[str, object]] = {
        "listen": {"tls": f"127.0.0.1:{port}"},
        "tls": {
            "certificate": papers.file("daemon.pem"), "key": papers.file("daemon.key"),
            "client_ca": papers.file("ours.pem"),
        },
        "principal cert": {"certificate": "known client", "permissions": "run, load, admin"},
        "principal token": {
            "token_sha256": hashlib.sha256(b"secret").hexdigest(), "permissions": "run"
        },
    }  # fmt: skip
    with Daemon(devices=DEVICES, sections=sections) as daemon:
        yield f"tls:localhost:{port}", daemon


def test_over_tls(guarded_by_tls: tuple[str, Daemon], papers: Papers, tmp_path: Path) -> None:
    """Known by a certificate, its key beside it or in the same file, or by a token; the address's name counts."""
    address, daemon = guarded_by_tls
    ca = ("--tls-ca", str(papers.file("ours.pem")))
    shown = ("--tls-certificate", str(papers.file("known.pem")))
    whole = answer(address, *ca, *shown, "--tls-key", str(papers.file("known.key")), "status")
    assert whole["principal"] == "cert" and whole["pid"] == daemon.process.pid
    both = tmp_path / "both.pem"
    both.write_text(papers.file("known.pem").read_text() + papers.file("known.key").read_text())
    assert answer(address, *ca, "--tls-certificate", str(both), "status")["principal"] == "cert"
    token = tmp_path / "token"
    token.write_text("secret\n")
    assert answer(address, *ca, "--token-file", str(token), "status")["principal"] == "token"
    other = address.replace("localhost", "127.0.0.1")
    named = (*ca, "--tls-name", "localhost", "--token-file", str(token), "status")
    assert answer(other, *named)["principal"] == "token"
    said = ctl(address, *ca, "--tls-name", "elsewhere.example", "status", code=NO_DAEMON)[1]
    assert said.startswith("headracectl: TLS: ")


def test_tls_that_is_refused(guarded_by_tls: tuple[str, Daemon], papers: Papers) -> None:
    """Each with its exit code: not trusted, nobody known, files that are none, no TLS there."""
    address, daemon = guarded_by_tls
    ca = ("--tls-ca", str(papers.file("ours.pem")))
    assert "TLS" in ctl(address, "--tls-ca", str(papers.file("theirs.pem")), "status", code=NO_DAEMON)[1]
    assert "UNAUTHENTICATED" in ctl(address, *ca, "status", code=NO_DAEMON)[1]
    shown = ("--tls-certificate", str(papers.file("stranger.pem")))
    ctl(address, *ca, *shown, "--tls-key", str(papers.file("stranger.key")), "status", code=NO_DAEMON)
    for wrong in (
        ("--tls-ca", str(papers.folder / "none.pem")),
        (*ca, "--tls-certificate", str(papers.file("known.key"))),
        (*ca, *shown, "--tls-key", str(papers.file("known.key"))),
    ):
        assert "TLS" in ctl(address, *wrong, "status", code=BAD_FILE)[1]
    ctl(f"unix:{daemon.socket_path}", "--tls-ca", "", "status", code=NO_DAEMON)  # the paper is not looked at
