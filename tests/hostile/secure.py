"""A TLS connection with the parts that tests must be able to break: its two directions end apart,
and what goes over the network can be seen, cut and made up."""

from __future__ import annotations

import socket
import ssl

CHUNK = 65536


class SecureSocket:
    """As much of socket.socket as raw.Conn needs, over an SSLObject."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, name: str) -> None:
        self.plain = plain
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=name)
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                if not self._fill():
                    raise ConnectionResetError("closed in the handshake") from None
        self._flush()

    def _flush(self) -> None:
        if data := self.outgoing.read():
            self.plain.sendall(data)

    def _fill(self) -> bool:
        data = self.plain.recv(CHUNK)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()
        return bool(data)

    def fileno(self) -> int:
        return self.plain.fileno()

    def pending(self) -> bool:
        """Whether something has been read from the socket that nobody has taken."""
        return bool(self.tls.pending() or self.incoming.pending)

    def settimeout(self, seconds: float | None) -> None:
        self.plain.settimeout(seconds)

    def setsockopt(self, *args: object) -> None:
        self.plain.setsockopt(*args)  # type: ignore[call-overload]

    def sealed(self, data: bytes) -> bytes:
        """The records that would carry `data`."""
        self.tls.write(data)
        return self.outgoing.read()

    def sendall(self, data: bytes) -> None:
        for at in range(0, len(data), CHUNK):
            self.tls.write(data[at : at + CHUNK])
            self._flush()

    def send(self, data: bytes) -> int:
        """What is written is sent whole, or the socket's time is over and the stream is of no more use."""
        self.sendall(data[:CHUNK])
        return min(len(data), CHUNK)

    def recv(self, size: int) -> bytes:
        while True:
            try:
                return self.tls.read(size)
            except ssl.SSLWantReadError:
                self._fill()
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLEOFError:
                return b""

    def shutdown(self, how: int) -> None:
        """SHUT_WR: says that nothing more comes, and goes on reading."""
        assert how == socket.SHUT_WR
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        self._flush()
        self.plain.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.plain.close()
