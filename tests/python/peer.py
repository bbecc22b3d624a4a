"""A scripted daemon for tests of the client: reads and writes frames on a socket.

Its framing is written out here once more, so that both sides of a test cannot be wrong in the same
way.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from headrace import headrace_pb2 as pb

END, MORE, ERROR = 1, 2, 4


def crc32c(data: bytes) -> int:
    """Bit by bit, as the definition has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(
    type: int,
    call_id: int,
    message: bytes = b"",
    body: bytes = b"",
    flags: int = END,
    word: int = 0,
) -> bytes:
    """One frame."""
    head = struct.pack(
        "<2sBBHHQIII", b"HR", 1, type, flags, 0, call_id, len(message), len(body), word
    )
    return head + struct.pack("<I", crc32c(head)) + message + body


def error_frame(
    type: int, call_id: int, code: int, reason: str, words: str = "", **fields: object
) -> bytes:
    """A failed reply."""
    message = pb.Error(code=code, reason=reason, words=words, **fields).SerializeToString()
    return frame(type | 0x80, call_id, message, flags=END | ERROR, word=code)


@dataclass
class Frame:
    """A frame that the client sent."""

    type: int
    flags: int
    call_id: int
    message: bytes
    body: bytes
    word: int


class Peer:
    """The daemon's end of a socket pair."""

    def __init__(self) -> None:
        self.client_end, self.sock = socket.socketpair()
        self.sock.settimeout(10)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def receive(self) -> Frame:
        """The next frame of the client; asserts that its header is right."""
        head = self._exactly(32)
        magic, version, type, flags, fds, call_id, m, b, word, crc = struct.unpack(
            "<2sBBHHQIIII", head
        )
        assert (magic, version, fds) == (b"HR", 1, 0)
        assert crc == crc32c(head[:28])
        return Frame(type, flags, call_id, self._exactly(m), self._exactly(b), word)

    def send(self, *frames: bytes) -> None:
        """Sends bytes."""
        self.sock.sendall(b"".join(frames))

    def answer_hello(self, body_max: int = 1 << 20) -> Frame:
        """Takes the hello and answers it with one device and those limits."""
        hello = self.receive()
        assert hello.type == 1
        limits = pb.Limits(message_bytes_max=65536, body_bytes_max=body_max)
        reply = pb.HelloReply(
            protocol=1,
            daemon_version="test",
            limits=limits,
            devices=[pb.DeviceInfo(name="cpu0", type="CPU")],
        )
        self.send(frame(0x81, hello.call_id, reply.SerializeToString()))
        return hello

    def close(self) -> None:
        """Hangs up."""
        self.sock.close()
