"""One line per failure, with what it takes to find the request again; what peers say forges none."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Callable

import pytest
from client_tools import random
from run_daemon import Daemon, device, held_port

import headrace
from headrace import errors
from headrace import headrace_pb2 as pb
from headrace.flows import Flow, Request
from headrace.graph import Graph
from headrace.wire import Kind

ONE = (device("host", backend="cpu", threads=1),)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
FIELD = re.compile(r' ([a-z_]+)=("[^"]*"|[^ ]*)')


def lines(daemon: Daemon, words: str) -> list[dict[str, str]]:
    """The fields of each line with these words."""
    found = [line for line in daemon.log().splitlines() if f": {words} " in line]
    return [{k: v.strip('"') for k, v in FIELD.findall(line)} for line in found]


def lost_handle() -> Flow[None]:
    yield Request(Kind.RELEASE, pb.Release(handle=12345).SerializeToString())


def doubled() -> Graph:
    g = Graph()
    x = g.input("x", (4,))
    g.output(g.add(x, x), "y")
    return g


@pytest.fixture
def talking(launch: Callable[..., Daemon]) -> Daemon:
    return launch(devices=ONE, sections={"daemon": {"log_level": "info"}})


def test_a_line_per_failure(talking: Daemon) -> None:
    with headrace.connect(talking.address) as client:
        for _ in range(2):
            with pytest.raises(errors.NotFound):
                client.drive(lost_handle(), 5.0)
        handle = client.submit(doubled())
        with pytest.raises(errors.InvalidArgument):
            message = handle.run_message(None, 0, False)
            message += pb.Run(traceparent=f"00-{TRACE}-00f067aa0ba902b7-01").SerializeToString()
            client.drive(short_run(message), 5.0)
        events = client.trace()
    first, second = lines(talking, "RELEASE failed")
    assert first["code"] == "5" and first["reason"] == "GRAPH"
    assert first["transport"] == "unix" and first["principal"] == f"uid {os.getuid()}"
    assert first["connection"] == second["connection"] and first["request"] != second["request"]
    # The same number is in the trace.
    assert f'"request":{first["span"]},' in events and int(second["span"]) > int(first["span"])
    (run,) = lines(talking, "RUN failed")
    assert run["reason"] == "SIZE" and run["trace_id"] == TRACE and "bytes" in run["words"]
    assert "trace_id" not in first


def short_run(message: bytes) -> Flow[None]:
    yield Request(Kind.RUN, message, [b"123"])


FORGERIES = (
    "x\nheadraced: error: server: forged",
    'x" code=0 reason="NONE',
    "\x1b[2J\x1b[31mred",
    "\x9b31m \u2028 headraced: error: forged",
    "\u202eback",
)


@pytest.mark.parametrize("said", FORGERIES)
def test_what_peers_say_stays_in_its_field(talking: Daemon, said: str) -> None:
    with headrace.connect(talking.address, name=said[:60]) as client:
        graph = Graph()
        graph.output(graph.add(graph.weight(said, (4,)), graph.input("x", (4,))), "y")
        with pytest.raises(errors.HeadraceError):
            client.submit(graph)
        with pytest.raises(errors.HeadraceError):
            client.load(said, said)
    log = talking.log()
    assert not [c for c in log if c != "\n" and not c.isprintable()]
    assert all(line.startswith("headraced: ") for line in log.splitlines())
    for kind in ("SUBMIT failed", "WEIGHTS_LOAD failed"):
        (found,) = lines(talking, kind)
        assert found["code"] != "0" and found["reason"] != "NONE"
        assert set(found) <= {
            "request", "span", "connection", "transport", "principal", "code", "reason", "field",
            "words",
        }  # fmt: skip


def test_a_flood_is_counted(launch: Callable[..., Daemon]) -> None:
    """Of a kind a burst is shown; how many were not comes with the next line, or alone."""
    daemon = launch(devices=ONE, sections={"daemon": {"log_level": "info"}})
    with headrace.connect(daemon.address) as client:
        for _ in range(300):
            with pytest.raises(errors.NotFound):
                client.drive(lost_handle(), 5.0)
        figures = client.stats()
        client.submit(doubled()).run([random(4)])
    shown = lines(daemon, "RELEASE failed")
    assert 16 <= len(shown) < 100
    assert figures.value("log_suppressed_total") == 300 - len(shown)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(20) == 0
    told = lines(daemon, "RELEASE failed") + lines(daemon, "more requests failed")
    assert sum(int(line.get("suppressed", 0)) for line in told) == 300 - len(shown)


def test_by_default_only_what_an_operator_can_use(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=ONE, sections={"limits": {"session_graphs": 1, "run_bytes": "1K"}})
    with headrace.connect(daemon.address) as client:
        with pytest.raises(errors.NotFound):
            client.drive(lost_handle(), 5.0)
        graph = Graph()
        x = graph.input("x", (1024,))
        graph.output(graph.add(x, x), "y")
        with pytest.raises(errors.Exhausted):
            client.submit(graph)
    assert not lines(daemon, "RELEASE failed")
    (line,) = lines(daemon, "SUBMIT failed")
    assert line["code"] == "8" and line["field"] == "run_bytes"


def test_ports_that_the_system_chooses_are_told(launch: Callable[..., Daemon]) -> None:
    """Port 0 is told at the default level of the log; a port that was asked for is not."""
    wanted = held_port()
    keys = {"listen": {"tcp": "127.0.0.1:0"}, "daemon": {"metrics": "127.0.0.1:0"}}
    daemon = launch(devices=ONE, sections=keys)
    ports = {where: int(number) for where, number in
             re.findall(r"(tcp|HTTP)\S* ?(?:on )?127\.0\.0\.1:0 port=(\d+)", daemon.log())}  # fmt: skip
    assert set(ports) == {"tcp", "HTTP"} and 0 not in ports.values()
    with headrace.connect(f"tcp:127.0.0.1:{ports['tcp']}") as client:
        assert "headrace_uptime_seconds" in client.metrics()
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['HTTP']}/live", timeout=20) as answer:
        assert answer.read() == b"live\n"
    asked = launch(devices=ONE, sections={"listen": {"tcp": f"127.0.0.1:{wanted}"}})
    assert "port=" not in asked.log()
