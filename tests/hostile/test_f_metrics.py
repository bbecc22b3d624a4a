"""Scrapers that mean no good (HOSTILE F12): slow, many, half a request, requests that are two; the loop and
everybody else go on."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import raw
from devices import THREE_DEVICES
from expect import refused, served
from raw import Conn
from run_daemon import held_port

PORT = held_port()
FULL = bool(os.environ.get("HEADRACE_FULL"))


@pytest.fixture(scope="module")
def daemon(door: str, start_behind: Any) -> Iterator[Any]:
    running = start_behind(
        door,
        devices=THREE_DEVICES,
        sections={"daemon": {"metrics": f"127.0.0.1:{PORT}"}},
    )
    yield running
    running.stop()


pytestmark = pytest.mark.usefixtures("guarded")


def connect() -> socket.socket:
    return socket.create_connection(("127.0.0.1", PORT), raw.TIMEOUT_S)


def answer(sock: socket.socket) -> bytes:
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def get(path: str = "/metrics", rest: str = "") -> bytes:
    with connect() as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{rest}\r\n".encode())
        return answer(sock)


def scraped_well() -> None:
    data = get()
    assert data.startswith(b"HTTP/1.1 200 ") and b"headrace_connections " in data


WRONG = {
    "another method": b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    "delete": b"DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "another path": b"GET /etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    "up the tree": b"GET /metrics/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    "absolute": b"GET http://127.0.0.1/metrics2 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no version": b"GET /metrics\r\n\r\n",
    "garbage": bytes(range(256)) * 4 + b"\r\n\r\n",
    "our protocol": raw.header(raw.PING, 1) + b"\r\n\r\n",
    "a long line": b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 50000 + b"\r\n",
}


@pytest.mark.parametrize("name", WRONG)
def test_F12_requests_that_are_none(daemon: Any, name: str) -> None:
    """An error of HTTP, or the end, and nothing of the figures."""
    with connect() as sock:
        try:
            sock.sendall(WRONG[name])
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        data = answer(sock)
        assert data == b"" or re.match(rb"HTTP/1\.[01] [45]\d\d ", data), data[:100]
        assert b"headrace_" not in data and b"root:" not in data
    scraped_well()
    with Conn(daemon.address) as conn:
        served(conn)


SMUGGLED = {
    "two lengths": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n",
    "length and chunks": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
                         b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded": b"GET /metrics HTTP/1.1\r\nHost: x\r\n Transfer-Encoding: chunked\r\n\r\n",
    "bare line ends": b"GET /metrics HTTP/1.1\nHost: x\n\n",
    "pipelined": b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
}  # fmt: skip


@pytest.mark.parametrize("name", SMUGGLED)
def test_F12_requests_within_requests(daemon: Any, name: str) -> None:
    """One answer at most, and none to what hides behind the request."""
    hidden = b"GET /metrics HTTP/1.1\r\nHost: hidden\r\n\r\n"
    with connect() as sock:
        sock.sendall(SMUGGLED[name] + hidden)
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:  # it has ended already
            pass
        assert answer(sock).count(b"HTTP/1.1 200 ") <= 1
    scraped_well()
    with Conn(daemon.address) as conn:
        served(conn)


def test_F12_slow_and_silent_scrapers(daemon: Any) -> None:
    """Half a request each, and readers that do not read: there is a place for the next, in time."""
    crowd = []
    for number in range(60 if FULL else 20):
        try:
            sock = connect()
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHo"[: number % 24])
            crowd.append(sock)
        except OSError:
            pass
    with Conn(daemon.address) as conn:
        for _ in range(20):
            served(conn)
    end = time.monotonic() + raw.TIMEOUT_S
    while True:
        try:
            scraped_well()
            break
        except (AssertionError, OSError):
            assert time.monotonic() < end, "no place for an honest scraper"
            time.sleep(0.1)
    for sock in crowd:
        sock.close()


def test_F12_a_flood_of_scrapes(daemon: Any) -> None:
    with Conn(daemon.address) as conn:
        handle = conn.submit(raw.add_graph()).handle
        for number in range(2000 if FULL else 200):
            assert b"headrace_" in get()
            if number % 10 == 0:
                assert len(conn.run(handle, bytes(64))) == 32
        error = conn.fails(raw.RUN, raw.pb.Run(handle=handle), bytes(63))
        refused(error, raw.INVALID, "SIZE")
        served(conn)
