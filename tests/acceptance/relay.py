"""A Unix socket that passes everything on to another one and counts the bytes each way."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path


class Relay:
    """Serves one client; `sent` are bytes of the client, `received` bytes of the daemon."""

    def __init__(self, folder: Path, daemon_socket: Path) -> None:
        path = folder / "relay.sock"
        self.address = f"unix:{path}"
        self.sent = 0
        self.received = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._daemon_socket = daemon_socket
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        daemon = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        daemon.connect(str(self._daemon_socket))
        back = threading.Thread(target=self._pass, args=(daemon, client, "received"), daemon=True)
        back.start()
        self._pass(client, daemon, "sent")
        back.join()
        client.close()
        daemon.close()

    def _pass(self, source: socket.socket, target: socket.socket, counter: str) -> None:
        # Counted before it is passed on: a reply that has arrived has been counted with its request.
        with contextlib.suppress(OSError):  # either side may hang up at any time
            while data := source.recv(1 << 16):
                setattr(self, counter, getattr(self, counter) + len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()
