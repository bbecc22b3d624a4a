"""TLS for the clients: addresses tls:host:port, and a socket that several threads may use."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

from headrace.wire import Buffer

RECORD_BYTES = 16384


def client_context(
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """TLS 1.3 that checks the daemon's certificate and name.

    ca: PEM file of who signed the daemon's certificate (None: whom the system trusts). certificate,
    key: PEM files by which the daemon knows this client, where it goes by certificates.
    """
    context = ssl.create_default_context(cafile=None if ca is None else str(Path(ca)))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if certificate is not None:
        context.load_cert_chain(str(Path(certificate)), None if key is None else str(Path(key)))
    return context


class TlsSocket:
    """The part of a non-blocking socket that a Transport uses, through TLS.

    OpenSSL's state is one: every call holds a lock, for moments, as nothing blocks.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def pending(self) -> bool:
        """Bytes that have been taken from the socket: polling it does not tell of them."""
        with self._lock:
            return self._sock.pending() > 0

    def recv_into(self, buffer: memoryview) -> int:
        with self._lock:
            try:
                return self._sock.recv_into(buffer)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """Sends the small buffers at the front together, or the first one alone.

        The same buffers must come again after a BlockingIOError: OpenSSL goes on with that record.
        """
        front = bytearray()
        for buffer in buffers:
            if len(front) + len(buffer) > RECORD_BYTES:
                break
            front += buffer
        with self._lock:
            try:
                return self._sock.send(front or buffers[0])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def shutdown(self, how: int) -> None:
        with self._lock:
            socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        with self._lock:
            self._sock.close()
