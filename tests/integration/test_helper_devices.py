"""Devices that have nothing to do: a BLAS device without a node, teams of threads without a run."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import headrace
import numpy as np
import pytest
from client_tools import client_of, random
from run_daemon import Daemon, DaemonError, device

from headrace.graph import Graph

WIDTH, TOKENS = 64, 8
WATCHED_S = 2.0
SHARE = 0.01  # of one processor, that an idle daemon may use


def block(tokens: int = TOKENS) -> Graph:
    """A norm, products whose batch BLAS leaves to the CPU, views, a softmax and a state."""
    g = Graph()
    x = g.input("x", (tokens, WIDTH))
    normed = g.name(g.rms_norm(x, 1e-5), "normed")
    up = g.name(g.mul_mat(g.weight("up", (2 * WIDTH, WIDTH)), normed), "up")
    halves = g.name(g.reshape(up, (tokens, 2, WIDTH)), "halves")
    kept = g.state("kept", (tokens, 2, WIDTH))
    g.output(g.name(g.cpy(halves, kept), "stored"))
    down = g.name(g.mul_mat(g.weight("down", (WIDTH, 2 * WIDTH)), up), "down")
    g.output(g.name(g.soft_max(down), "out"))
    return g


def planned(devices: tuple[Any, ...], tokens: int = TOKENS) -> tuple[dict[str, Any], bytes]:
    """What the plan of block() decides, as data, and what it computes."""
    shape = ("f32", (tokens, 2, WIDTH))
    values = {"up": random(2 * WIDTH, WIDTH), "down": random(WIDTH, 2 * WIDTH, seed=2)}
    with client_of(devices) as client:
        weights = client.put("w", values)
        handle = client.submit(
            block(tokens), weights=[weights], states=[client.state({"kept": shape})]
        )
        plan = json.loads(handle.explanation().json())
        result = handle.run({"x": random(tokens, WIDTH, seed=3)}, outputs=["out"])
        out = np.asarray(result["out"]).tobytes()
    return {key: plan[key] for key in ("leaves", "nodes", "splits")}, out


def test_a_blas_device_without_a_node_changes_no_plan() -> None:
    cpu = device("cpu0", backend="cpu", threads=2)
    blas = device("blas", backend="blas", threads=2)
    try:
        helped, with_blas = planned((blas, cpu))
    except DaemonError as error:
        assert "backend" in str(error)
        pytest.skip("this build has no BLAS")
    alone, without = planned((cpu,))
    assert {node["device"] for node in alone["nodes"]} == {"cpu0"}
    assert helped == alone
    assert with_blas == without
    # and it is there for the batches that it wins
    many, _ = planned((blas, cpu), tokens=1024)
    assert "blas" in {node["device"] for node in many["nodes"]}


def processor_s(daemon: Daemon) -> float:
    """What all threads of the daemon have used, as the kernel counts it."""
    with open(f"/proc/{daemon.process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_daemon_uses_no_processor() -> None:
    """Teams spin for a moment after a run, then they sleep; so do the queues, the loop, the engine."""
    devices = tuple(device(f"cpu{i}", backend="cpu", threads=3) for i in range(2))
    with Daemon(devices=devices) as daemon, headrace.connect(daemon.address, timeout=30) as client:
        values = {"up": random(2 * WIDTH, WIDTH), "down": random(WIDTH, 2 * WIDTH, seed=2)}
        state = client.state({"kept": ("f32", (TOKENS, 2, WIDTH))})
        handle = client.submit(block(), weights=[client.put("w", values)], states=[state])
        for _ in range(20):
            handle.run({"x": random(TOKENS, WIDTH)})
        time.sleep(0.2)
        before, begun = processor_s(daemon), time.monotonic()
        time.sleep(WATCHED_S)
        used, passed = processor_s(daemon) - before, time.monotonic() - begun
        tick = 1 / os.sysconf("SC_CLK_TCK")
        assert used <= SHARE * passed + tick, f"{used} s of processor time in {passed:.1f} s"
