"""What is wrong about a TLS connection (HOSTILE A26): each ends with an alert at most, is counted, and leaves
nothing behind."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raw
from expect import served
from headrace.tls import client_context
from papers import Papers
from raw import Conn
from secure import SecureSocket

DOORS = ("tls",)
pytestmark = pytest.mark.usefixtures("guarded")


def bare(address: str) -> socket.socket:
    port = int(address.rsplit(":", 1)[1])
    return socket.create_connection(("127.0.0.1", port), raw.TIMEOUT_S)


def bytes_until_closed(sock: socket.socket) -> int:
    total = 0
    sock.settimeout(10)
    try:
        while data := sock.recv(65536):
            total += len(data)
    except ConnectionResetError:
        pass
    return total


@pytest.fixture
def counted(address: str) -> Iterator[Callable[[], None]]:
    """counted() waits until one more protocol error has been counted; the door still opens."""
    with Conn(address) as watcher:
        before = watcher.stats()["protocol_errors_total"]

        def check() -> None:
            raw.eventually(lambda: watcher.stats()["protocol_errors_total"] > before)

        yield check
        with Conn(address) as conn:
            served(conn)
        served(watcher)


OPENINGS = {
    "plain hello": b"HR" + bytes(30),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(64),
    "a record too long": b"\x16\x03\x01\x40\x01" + bytes(16385),
    "alerts": b"\x15\x03\x03\x00\x02\x01\x00" * 3000,
    "fragments": b"\x16\x03\x01\x00\x01\x01" * 20,
}


@pytest.mark.parametrize("name", OPENINGS)
def test_A26_what_is_no_handshake(address: str, counted: Any, name: str) -> None:
    with bare(address) as sock:
        try:
            sock.sendall(OPENINGS[name])
        except (BrokenPipeError, ConnectionResetError):
            pass
        if name == "fragments":
            sock.shutdown(socket.SHUT_WR)
        assert bytes_until_closed(sock) <= 64  # at most an alert
    if name != "fragments":
        counted()


def test_A26_older_versions(address: str, counted: Any) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with bare(address) as sock, pytest.raises(ssl.SSLError):
        old.wrap_socket(sock)
    counted()


@pytest.mark.parametrize("name", ["stranger", "expired"])
def test_A26_wrong_certificates(address: str, counted: Any, papers: Papers, name: str) -> None:
    file = papers.file
    context = client_context(file("ours.pem"), file(f"{name}.pem"), file(f"{name}.key"))
    with bare(address) as sock:
        secure = SecureSocket(sock, context, "localhost")
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            assert not secure.recv(1)
            raise ConnectionResetError
    counted()


def test_A26_a_chain_without_end(
    address: str, counted: Any, papers: Papers, tmp_path: Path
) -> None:
    one = papers.file("known.pem").read_text()
    chain = tmp_path / "chain.pem"
    chain.write_text(one * (1 + (1 << 20) // len(one)))
    context = client_context(papers.file("ours.pem"), chain, papers.file("known.key"))
    with bare(address) as sock, pytest.raises((ssl.SSLError, OSError)):
        secure = SecureSocket(sock, context, "localhost")
        assert secure.recv(1)
        raise AssertionError("a chain of a megabyte was read")
    counted()


def test_A26_an_end_without_close_notify_and_one_with(address: str, papers: Papers) -> None:
    """Both are ends of a peer: nothing of it stays."""
    with Conn(address) as watcher:
        for orderly in (True, False):
            with Conn(address) as conn:
                served(conn)
                if orderly:
                    conn.socket.shutdown(socket.SHUT_WR)
                    assert conn.closed() == []
            raw.eventually(lambda: watcher.stats()["connections"] == 2)
        served(watcher)


def test_A26_a_record_that_was_changed_on_its_way(address: str, counted: Any) -> None:
    with Conn(address) as conn:
        record = bytearray(conn.socket.sealed(raw.header(raw.PING, 1)))
        record[-1] ^= 1
        conn.socket.plain.sendall(record)
        assert bytes_until_closed(conn.socket.plain) <= 128
    counted()


def test_A26_a_record_cut_in_half(address: str) -> None:
    with Conn(address) as watcher:
        for size in (1, 4, 5, 6, 30):
            with Conn(address) as conn:
                conn.socket.plain.sendall(conn.socket.sealed(raw.header(raw.PING, 1))[:size])
        raw.eventually(lambda: watcher.stats()["connections"] == 2)
        served(watcher)
