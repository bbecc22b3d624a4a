"""What hurts a client: a daemon that takes no bytes, signals in the middle of a frame, processes that fork, tasks
that are cancelled while the socket is full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace import errors, flows, transport
from headrace.aio import AsyncState
from peer import Peer, frame
from test_client import Daemon, async_client, doubled, graph_reply, small_graph

SPEC = flows.states.tensors({"s": ("i8", (4_000_000,))})
LARGE = np.zeros(4_000_000, np.int8)


def state_of(link: Any) -> Any:
    from headrace.held import State

    return State(link, 5, LARGE.nbytes, SPEC)


def test_a_daemon_that_takes_no_bytes() -> None:
    """A call ends in time although its bytes cannot be sent: with half a frame sent so does the connection, and
    nobody waits behind it for longer than a deadline."""
    over = threading.Event()
    daemon = Daemon(lambda peer: over.wait(20) and None, body_max=4 << 20)
    link = daemon.connect(timeout=30)
    taken: dict[str, float] = {}

    def measure(name: str, call: Any) -> None:
        began = time.monotonic()
        with pytest.raises((errors.DeadlineExceeded, errors.ConnectionLost)):
            call()
        taken[name] = time.monotonic() - began

    threads = [
        threading.Thread(
            target=measure, args=("write", lambda: state_of(link).write("s", LARGE, timeout=0.5))
        ),
        threading.Thread(target=measure, args=("ping", lambda: link.ping(timeout=0.4))),
    ]
    threads[0].start()
    time.sleep(0.1)
    threads[1].start()
    for thread in threads:
        thread.join()
    over.set()
    assert set(taken) == {"write", "ping"} and max(taken.values()) < 10
    with pytest.raises((errors.DeadlineExceeded, errors.ConnectionLost)):
        link.ping()
    daemon.join()


def test_a_task_waits_for_a_full_socket_no_longer_than_its_deadline() -> None:
    over = threading.Event()
    daemon = Daemon(lambda peer: over.wait(20) and None, body_max=4 << 20)

    async def main() -> None:
        link = await async_client(daemon)
        write = asyncio.create_task(AsyncState(link, 5, LARGE.nbytes, SPEC).write("s", LARGE))
        await asyncio.sleep(0.05)
        with pytest.raises(errors.DeadlineExceeded):
            await link.ping(timeout=0.05)
        waiting = asyncio.create_task(link.ping())
        await asyncio.sleep(0.05)
        waiting.cancel()
        write.cancel()
        for task in (waiting, write):
            with pytest.raises(asyncio.CancelledError):
                await task
        over.set()
        link.close()

    asyncio.run(main())
    daemon.join()


class Interrupted(Exception):
    """What a signal handler raises."""


class Once:
    """A socket whose `method` works and is interrupted once before its caller knows."""

    def __init__(self, inner: Any, method: str) -> None:
        self._inner, self._method = inner, method

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def interrupted(*args: Any) -> Any:
            found(*args)
            self._method = ""
            raise Interrupted

        return interrupted


@pytest.mark.parametrize("method", ["sendmsg", "recv_into"])
def test_an_interrupt_in_the_middle_ends_the_connection(method: str) -> None:
    """Whether bytes have gone out or come in is not known then: nothing after them could be understood."""

    def script(peer: Peer) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                request = peer.receive()
                peer.send(frame(request.type | 0x80, request.call_id, request.message))

    daemon = Daemon(script)
    link = daemon.connect()
    link.ping()
    link._transport._sock = Once(link._transport._sock, method)  # type: ignore[assignment]
    with pytest.raises(Interrupted):
        link.ping()
    for _ in range(2):
        with pytest.raises(errors.ConnectionLost):
            link.ping()
    daemon.peer.close()
    daemon.thread.join(10)


def test_a_child_does_not_touch_the_connection() -> None:
    """After fork() the child's calls fail at once, and its close() is the child's alone."""

    def script(peer: Peer) -> None:
        peer.send(graph_reply(peer.receive()))
        peer.send(doubled(peer.receive()))

    daemon = Daemon(script)
    link = daemon.connect()
    handle = link.submit(small_graph())
    link._transport._sending.acquire()  # a thread of the parent's is about to send
    child = os.fork()
    if child == 0:
        code = 1
        try:
            link.ping()
        except errors.ConnectionLost as error:
            code = 0 if error.reason == "FORKED" else 2
        link.close()
        os._exit(code)
    link._transport._sending.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert handle.run([np.ones(4, np.float32)])[0].tolist() == [2] * 4
    link.close()
    daemon.join()


def test_a_full_queue_of_connections_is_waited_for(tmp_path: Path) -> None:
    """A Unix socket refuses at once where too many wait; the client asks again until its time is over."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        held = [transport.open_socket(f"unix:{path}", 1.0)]
        with pytest.raises(errors.ConnectionLost):
            for _ in range(4):
                held.append(transport.open_socket(f"unix:{path}", 0.2))

        def accept() -> None:
            time.sleep(0.1)
            for _ in range(len(held) + 1):
                listener.accept()[0].close()

        thread = threading.Thread(target=accept)
        thread.start()
        held.append(transport.open_socket(f"unix:{path}", 10.0))
        thread.join()
        for sock in held:
            sock.close()
