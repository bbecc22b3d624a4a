"""What a peer begins and does not go on with (HOSTILE A10): a header, a message, a TLS record. Silence between
frames is nobody's fault."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest
import raw
from expect import cut, served
from raw import PING, Conn, header, pb
from run_daemon import device
from secure import SecureSocket

DOORS = ("unix", "tcp", "tls")
pytestmark = pytest.mark.usefixtures("guarded")

COOKIE = pb.Ping(cookie=5).SerializeToString()
FRAME = header(PING, 77, len(COOKIE)) + COOKIE
HEADERS = (1, 8, 16, 31)
MESSAGES = (32, len(FRAME) - 1)
RECORDS = (1, 4, 5, 6, -1)  # of a TLS record; its header has five bytes


def test_A10_halves(address: str, launch_behind: Any) -> None:
    """Each half ends its connection with one error; one that says nothing serves after them, and so does one
    whose frame comes in two pieces behind a silence."""
    target = launch_behind(
        devices=[device("host", threads=1)], sections={"limits": {"progress_timeout": "1s"}}
    )
    with ExitStack() as stack:
        idle, slow = (stack.enter_context(Conn(target)) for _ in range(2))
        halves = []
        for size in (*HEADERS, *MESSAGES):
            halves.append(stack.enter_context(Conn(target)))
            halves[-1].raw(FRAME[:size])
        is_secure = isinstance(idle.socket, SecureSocket)
        for size in RECORDS if is_secure else ():
            halves.append(stack.enter_context(Conn(target)))
            halves[-1].socket.plain.sendall(halves[-1].socket.sealed(FRAME)[:size])
        for conn in halves:
            cut(conn, raw.DEADLINE, "PROGRESS")
        # They have been silent for longer than any of the others.
        whole = slow.socket.sealed(FRAME) if is_secure else FRAME
        pipe = slow.socket.plain if is_secure else slow.socket
        pipe.sendall(whole[:9])
        time.sleep(0.15)  # the daemon looks at its clock meanwhile
        pipe.sendall(whole[9:])
        assert slow.next_of(77).type == PING | raw.REPLY
        served(idle)
        served(slow)


def test_A10_who_is_not_read_is_not_late(launch_behind: Any) -> None:
    """While a principal has not taken its answers nothing is read from it: that time is not its own."""
    limits = {
        "progress_timeout": "1500ms", "principal_output_bytes": "64K", "output_queue_bytes": "64K",
        "body_bytes": "64K",
    }  # fmt: skip
    target = launch_behind(devices=[device("host", threads=1)], sections={"limits": limits})
    with Conn(target) as half, Conn(target) as flood:
        half.raw(FRAME[:9])
        flood.socket.settimeout(0.4)
        sent = bytearray()
        stream = (header(PING, 1000 + n, len(COOKIE)) + COOKIE for n in range(1 << 20))
        with pytest.raises(TimeoutError):
            while piece := next(stream):
                sent += piece
                flood.socket.sendall(piece)
        time.sleep(1.5)  # longer than half a frame may take
        flood.socket.settimeout(raw.TIMEOUT_S)
        for n in range(len(sent) // len(FRAME) - 1):  # of the last one a part may be missing
            assert flood.frame().call_id == 1000 + n
        time.sleep(0.3)  # the daemon looks at its clock meanwhile
        half.raw(FRAME[9:])
        assert half.next_of(77).type == PING | raw.REPLY
        served(half)
