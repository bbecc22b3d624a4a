"""Hostile conditions around connections (HOSTILE A): bytes before an identity, half-open ends, storms,
and no descriptors left."""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import raw
from expect import SUM, TWO, refused, served
from raw import F32, Conn, add_graph, pb
from run_daemon import device

pytestmark = pytest.mark.usefixtures("guarded")
ONE_DEVICE = (device("cpu0", threads=1),)


def plain_socket(address: str) -> socket.socket:
    """Connected, below TLS where there is TLS."""
    kind, rest = address.split(":", 1)
    if kind == "unix":
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.settimeout(raw.TIMEOUT_S)
        found.connect(rest)
        return found
    return socket.create_connection(("127.0.0.1", int(rest.rsplit(":", 1)[1])), raw.TIMEOUT_S)


def processor_seconds(daemon: Any) -> float:
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("size", [96, 4096, 100000])
def test_A01_little_is_read_of_strangers(address: str, launch_behind: Any, size: int) -> None:
    """At most 64 bytes beyond what should be a header, however much there is."""
    target = launch_behind(devices=ONE_DEVICE)
    with Conn(target) as watcher:
        before = watcher.stats()
        again = watcher.stats()["bytes_in_total"] - before["bytes_in_total"]
        with Conn(target, hello=False) as conn:
            conn.raw(b"\x16" + bytes(size - 1))
            errors = conn.closed()
            refused(errors[0], raw.INVALID, "BAD_MAGIC")
        after = watcher.stats()
        assert after["bytes_in_total"] - before["bytes_in_total"] - 2 * again <= 32 + 64
        assert after["protocol_errors_total"] == before["protocol_errors_total"] + 1
        served(watcher)


def test_A11_half_open_connections_cost_no_time(address: str, launch_behind: Any) -> None:
    """Ends that have been said, with a run still on its way, do not keep the loop turning."""
    slow = device("cpu0", threads=1, delay="700ms")
    target = launch_behind(devices=(slow,))
    running = launch_behind.daemon
    with Conn(target) as conn:
        handle = conn.submit(add_graph()).handle
        call = conn.send(raw.RUN, pb.Run(handle=handle), TWO)
        conn.socket.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
        before = processor_seconds(running)
        time.sleep(0.5)
        assert processor_seconds(running) - before < 0.2
        (frame,) = conn.closed()
        assert frame.call_id == call and frame.body == SUM
    with Conn(target) as conn:
        served(conn)


def test_A22_storm_of_connections(address: str, launch_behind: Any) -> None:
    """Those that say nothing fill the places of newcomers, never those of clients that are in; each
    goes when its time is over, and honest newcomers get their turn."""
    limits = {"greetings": 8, "hello_timeout": "800ms"}
    target = launch_behind(devices=ONE_DEVICE, sections={"limits": limits})
    with Conn(target) as inside:
        handle = inside.submit(add_graph()).handle
        silent = [plain_socket(target) for _ in range(20)]
        most = 0.0
        for _ in range(20):
            assert inside.run(handle, TWO) == SUM
            most = max(most, inside.stats()["connections"])
        assert most <= 1 + 8
        with Conn(target) as newcomer:
            served(newcomer)
        for one in silent:
            one.close()
        raw.eventually(lambda: inside.stats()["connections"] == 1)
        served(inside)


def test_A23_no_descriptors_left(address: str, launch_behind: Any, tmp_path: Path) -> None:
    """Newcomers are told, those that are in go on, the daemon does not spin; whatever opens a file
    meanwhile answers an error, and afterwards everything is as before."""
    (tmp_path / "there.gguf").write_bytes(b"GGUF")
    target = launch_behind(devices=ONE_DEVICE, models=[tmp_path])
    running = launch_behind.daemon
    pid = running.process.pid
    with Conn(target) as inside:
        handle = inside.submit(add_graph()).handle
        fds = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (fds + 20, 4096))
        crowd = [plain_socket(target) for _ in range(60)]
        time.sleep(0.1)
        before = processor_seconds(running)
        time.sleep(0.4)
        assert processor_seconds(running) - before < 0.2
        for _ in range(20):
            assert inside.run(handle, TWO) == SUM
        error = inside.fails(raw.LOAD, pb.WeightsLoad(path="there.gguf"))
        assert error.code in (raw.EXHAUSTED, raw.INVALID)
        refused(error, error.code, "DESCRIPTORS" if error.code == raw.EXHAUSTED else "GGUF")
        if not address.startswith("tls"):  # plain words cannot be told to one that awaits TLS
            told = []
            for one in crowd:
                one.setblocking(False)
                try:
                    head = one.recv(32)
                except BlockingIOError:
                    continue
                size = struct.unpack("<I", head[16:20])[0]
                told.append(pb.Error.FromString(one.recv(size)))
            assert told
            for error in told:
                refused(error, raw.UNAVAILABLE, "CONNECTIONS")
        assert inside.stats()["connections_refused_total"] > 0
        for one in crowd:
            one.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (4096, 4096))
        raw.eventually(lambda: inside.stats()["connections"] == 1, 8.0)
        refused(inside.fails(raw.LOAD, pb.WeightsLoad(path="there.gguf")), raw.INVALID, "GGUF")
        data = [("w", F32, [4], bytes(16))]
        assert inside.put("set", data).handle
        with Conn(target) as newcomer:
            served(newcomer)
