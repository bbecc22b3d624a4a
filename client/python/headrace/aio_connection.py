"""A connection for asyncio: a Wire as a protocol of the event loop's, and how it is made.

Everything here runs in the loop's thread. What is handed to the transport is whole frames, so a task
that is cancelled never leaves half of one; its call stays known to the wire until its reply has come,
which is then skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace.errors import ConnectionLost, DeadlineExceeded, HeadraceError, ProtocolError
from headrace.flows import OnPart, OnProgress, OnTap, Request
from headrace.tls import client_context
from headrace.transport import GRACE_S, IOV_MAX, open_socket, tls_host
from headrace.wire import (
    Buffer,
    Call,
    Credit,
    Failure,
    GoingAway,
    Part,
    Progress,
    Reply,
    Tapped,
    Wire,
)

T = TypeVar("T")


async def in_thread(work: Callable[..., T], discard: Callable[[T], object], *args: Any) -> T:
    """What `work` gives, computed by another thread; discarded when nobody waits for it any more."""
    future = asyncio.get_running_loop().run_in_executor(None, lambda: work(*args))

    def over(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            discard(done.result())

    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(over)
        raise


async def open_connection(
    address: str, timeout: float | None, tls: ssl.SSLContext | None
) -> Connection:
    """Connects to an address of connect()'s, TLS's handshake included; no hello yet."""
    sock = await in_thread(open_socket, socket.socket.close, address, timeout)
    host = tls_host(address)
    try:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection,
            sock=sock,
            ssl=(tls or client_context()) if host is not None else None,
            server_hostname=host,
            ssl_handshake_timeout=timeout if host is not None else None,
        )
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"{address}: {error}", reason="TLS") from error
    except BaseException:
        sock.close()
        raise
    return connection


class Connection(asyncio.BufferedProtocol):
    """Receives straight into the wire's buffers."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.draining: GoingAway | None = None
        self.failure: HeadraceError | None = None
        self._process = os.getpid()
        self._transport: asyncio.Transport | None = None
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._uploads: dict[int, Call] = {}
        self._watchers: dict[int, OnProgress] = {}
        self._observers: dict[int, OnTap] = {}
        self._parts: dict[int, OnPart] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        # The socket itself, for what travels beside the bytes; made when it is needed.
        self._beside: socket.socket | None = None

    # ---- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(ConnectionLost(str(exc or "the daemon closed the connection"), reason="EOF"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.wire.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            events = self.wire.received(nbytes)
        except ProtocolError as error:
            self.fail(error)
            return
        for event in events:
            if isinstance(event, GoingAway):
                self.draining = event
            elif isinstance(event, Credit):
                self._upload(event.call_id)
            elif isinstance(event, Progress):
                self._tell(event)
            elif isinstance(event, Tapped):
                self._show(event)
            elif isinstance(event, Part):
                self._take(event)
            elif isinstance(event, Failure) and event.call_id == 0:
                self.fail(event.error)
            else:
                self._end(event)

    # ---- our side ------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the connection, on purpose."""
        self.fail(ConnectionLost("the connection was closed", reason="CLOSED"))

    def fail(self, failure: HeadraceError) -> None:
        """Ends the connection for every call; the first failure counts."""
        self.failure = self.failure or failure
        self._writable.set()
        if self._transport is not None:
            self._transport.close()
        if self._beside is not None:
            self._beside.close()
            self._beside = None
        for future in self._replies.values():
            if not future.done():
                future.set_exception(self.failure)
        for table in self._tables():
            table.clear()

    def _tables(self) -> tuple[dict[int, Any], ...]:
        return self._replies, self._uploads, self._watchers, self._observers, self._parts

    def _raise_in(self, call_id: int, error: Exception) -> None:
        """What a callback raises ends its call."""
        future = self._replies.get(call_id)
        if future is not None and not future.done():
            future.set_exception(error)

    def _show(self, event: Tapped) -> None:
        """Shows a tap and answers."""
        observer = self._observers.get(event.call_id)
        try:
            go_on = observer is None or observer(event.tensor, event.body)
        except Exception as error:
            self._raise_in(event.call_id, error)
            return
        self._write(self.wire.answer(event.call_id, event.tap, stop=not go_on))

    def _tell(self, event: Progress) -> None:
        """Passes progress on."""
        watcher = self._watchers.get(event.call_id)
        if watcher is None:
            return
        try:
            watcher(event.done, event.total)
        except Exception as error:
            del self._watchers[event.call_id]
            self._raise_in(event.call_id, error)

    def _take(self, event: Part) -> None:
        """Passes one of several replies on."""
        taker = self._parts.get(event.call_id)
        if taker is None:
            return
        try:
            taker(event.message, event.body)
        except Exception as error:
            del self._parts[event.call_id]
            self._raise_in(event.call_id, error)

    def _end(self, event: Reply | Failure) -> None:
        future = self._replies.get(event.call_id)
        for table in self._tables():
            table.pop(event.call_id, None)
        if future is None or future.done():
            return
        if isinstance(event, Reply):
            future.set_result(event)
        else:
            future.set_exception(event.error)

    # ---- sending -------------------------------------------------------------------------------

    def _upload(self, call_id: int) -> None:
        """Sends what credit allows; the daemon's credit bounds what asyncio buffers."""
        call = self._uploads.get(call_id)
        while call is not None and call.uploading:
            frames = self.wire.upload(call)
            if not frames:
                return
            self._write(frames)
        self._uploads.pop(call_id, None)

    def _write(self, frames: Sequence[Buffer]) -> None:
        assert self._transport is not None
        self._transport.writelines(frames)

    @property
    def passes_descriptors(self) -> bool:
        """The daemon can be given descriptors over this connection."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return sock is not None and sock.family == socket.AF_UNIX

    async def _empty(self) -> None:
        """Waits until all that has been written is in the socket."""
        assert self._transport is not None
        self._transport.set_write_buffer_limits(0)
        try:
            while self._transport.get_write_buffer_size() and self.failure is None:
                await self._writable.wait()
        finally:
            self._transport.set_write_buffer_limits()

    async def _socket_writable(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(sock, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(sock)

    async def _write_with(self, frames: Sequence[Buffer], fds: Sequence[int]) -> None:
        """Writes frames with descriptors beside the first byte, past the transport's own buffer, which
        is empty at that moment. Nothing is awaited once a byte has gone out.
        """
        assert self._transport is not None
        if self._beside is None:
            inner = self._transport.get_extra_info("socket")
            self._beside = socket.socket(fileno=os.dup(inner.fileno()))
            self._beside.setblocking(False)
        left = [memoryview(part) for part in frames]
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))
        while True:
            await self._empty()
            if self.failure is not None:
                raise self.failure
            try:
                sent = self._beside.sendmsg(left[:IOV_MAX], [rights])
                break
            except BlockingIOError:
                await self._socket_writable(self._beside)
            except OSError as error:
                self.fail(ConnectionLost(str(error.strerror or error), reason="EOF"))
        for part in left:
            if sent < len(part):
                self._transport.write(part[sent:])
            sent = max(0, sent - len(part))

    # ---- calls ---------------------------------------------------------------------------------

    async def call(self, request: Request, timeout: float | None) -> Reply:
        """Sends a request and waits for its reply."""
        if self._process != os.getpid():
            raise ConnectionLost("this connection is of another process", reason="FORKED")
        end = None if timeout is None else time.monotonic() + timeout
        scope = asyncio.timeout(None if timeout is None else timeout + GRACE_S)
        call: Call | None = None
        try:
            async with scope:
                if not self._writable.is_set():
                    await self._writable.wait()
                    timeout = None if end is None else max(end - time.monotonic(), 0.001)
                if self.failure is not None:
                    raise self.failure
                call = self._begin(request, timeout)
                future = self._replies[call.call_id]
                if request.fds:
                    await self._write_with(call.frames, request.fds)
                else:
                    self._write(call.frames)
                call.frames = []
                return await future
        except TimeoutError:
            if not scope.expired():  # of a callback of the caller's
                raise
            raise DeadlineExceeded("no answer within the deadline", reason="DEADLINE") from None
        finally:
            if call is not None:
                self._leave(call)

    def _begin(self, request: Request, timeout: float | None) -> Call:
        timeout_ms = 0 if timeout is None else min(max(1, int(timeout * 1000)), 0xFFFFFFFF)
        call = self.wire.call(
            request.kind,
            request.message,
            request.body,
            pull=request.pull,
            resume=request.resume,
            fd_count=len(request.fds),
            timeout_ms=timeout_ms,
            into=request.into,
            parts=request.part is not None,
        )
        self._replies[call.call_id] = asyncio.get_running_loop().create_future()
        if call.uploading:
            self._uploads[call.call_id] = call
        if request.progress is not None:
            self._watchers[call.call_id] = request.progress
        if request.observe is not None:
            self._observers[call.call_id] = request.observe
        if request.part is not None:
            self._parts[call.call_id] = request.part
        return call

    def _leave(self, call: Call) -> None:
        """Nobody waits for the call any more; one that has not ended is cancelled."""
        for table in self._tables():
            future = table.pop(call.call_id, None)
            if table is self._replies and future is not None and future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    future.exception()  # seen
        if self.failure is not None or call.call_id not in self.wire.calls:
            return
        if call.frames:  # never sent
            del self.wire.calls[call.call_id]
            return
        self.wire.abandon(call.call_id)
        self._write(self.wire.cancel(call.call_id))
