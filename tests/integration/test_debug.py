"""debug: the scheduler's decisions as text, in the reply for who asks and in the daemon's log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from run_daemon import Daemon, device

import headrace

DEVICES = (
    device("fast", backend="cpu", threads=1, memory="isolated"),
    device("host", backend="cpu", threads=1),
)


def graph() -> headrace.Graph:
    g = headrace.Graph()
    x = g.input("x", [4])
    a = g.name(g.scale(x, 2.0), "a")
    v = g.name(g.reshape(a, [2, 2]), "v")
    g.output(g.tanh(v), "o")
    return g


def test_each_part_says_what_it_should(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=DEVICES)
    pins = {"a": "fast", "o": "host"}
    with headrace.connect(daemon.address) as client:

        def text(*parts: str) -> list[str]:
            handle = client.submit(graph(), pins=pins, debug=parts, n_copies=2)
            assert list(handle.run([np.ones(4, np.float32)])["o"].reshape(-1)) == [
                pytest.approx(np.tanh(2.0))
            ] * 4
            return handle.debug_text.splitlines()

        assert text() == []
        assert text("assignments") == [
            "node 0 SCALE a (16 bytes) [fast usr]: x (16 bytes) [host 1.inp]",
            "node 2 UNARY o (16 bytes) [host usr]: v (16 bytes) [fast 4.vsrc]",
        ]
        assert text("splits") == [
            "split 0 on fast (first): nodes 0 to 2, 1 inputs: [x 16 bytes]",
            "split 1 on host (backend): nodes 2 to 3, 1 inputs: [v 16 bytes]",
        ]
        copies = text("copies")
        assert copies[0] == "copy x to fast for split 0: 16 bytes, from the run"
        assert copies[1] == (
            "copy v to host for split 1: 16 bytes, directly by fast, one in each slot"
        )
        assert copies[2] == "2 slots (as asked), 16 bytes copied between memories per run"
        assert text("realloc")[0].startswith("realloc: ")
        assert len(text("realloc", "copies", "splits", "assignments")) == 2 + 2 + 3 + 1
        with pytest.raises(ValueError, match="debug everything"):
            client.submit(graph(), debug=["everything"])


def test_names_start_no_lines(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=DEVICES, sections={"daemon": {"debug": "assignments"}})
    g = headrace.Graph()
    g.output(g.scale(g.input("x", [4]), 2.0), "headraced: notice: plan: node 7\nof mine\x1b[2J")
    with headrace.connect(daemon.address) as client:
        handle = client.submit(g, debug=["assignments"])
        assert len(handle.debug_text.splitlines()) == 1 and "\x1b" not in handle.debug_text
        assert not any(line.startswith("of mine") for line in daemon.log().splitlines())


@pytest.mark.parametrize("level", ["notice", "info"])
def test_the_log(launch: Callable[..., Daemon], level: str) -> None:
    """What the operator names is logged; what a client names only where information is."""
    daemon = launch(
        devices=DEVICES, sections={"daemon": {"debug": "splits, realloc", "log_level": level}}
    )
    with headrace.connect(daemon.address) as client:
        client.submit(graph(), debug=["assignments"])
        client.submit(graph(), dry_run=True)
        lines = daemon.log().splitlines()
    notices = [line for line in lines if ": notice: plan: " in line]
    infos = [line for line in lines if ": info: plan: " in line]
    assert sum("plan: split 0 on " in line for line in notices) == 2
    assert sum("plan: realloc: " in line for line in notices) == 2
    assert sum("plan: node 0 SCALE a" in line for line in infos) == (level == "info")
    assert not any("node 0" in line for line in notices)
