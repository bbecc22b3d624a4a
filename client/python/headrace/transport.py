"""A blocking connection that many threads share.

There is no thread of its own: whoever waits, reads. One waiting thread at a time has the reading
role; it hands events to the calls they belong to and passes the role on when its own call has
ended. No lock is held while a thread waits for the socket, so replies come back in the order in
which they arrive.

Locks: _state (wire, pending calls, reading role; held for moments) and _sending (one frame after
the other; may wait for the socket, and then reads, so that two full socket buffers cannot block
each other). _sending is taken before _state, never after.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence

from headrace.errors import ConnectionLost, DeadlineExceeded, HeadraceError, ProtocolError
from headrace.tls import TlsSocket, client_context
from headrace.wire import (
    Buffer,
    Call,
    Credit,
    Event,
    Failure,
    GoingAway,
    Part,
    Progress,
    Reply,
    Source,
    Tapped,
    Wire,
)

GRACE_S = 2.0
CANCEL_S = 1.0
CONNECT_AGAIN_S = 0.005
IOV_MAX = 512


def tls_host(address: str) -> str | None:
    """The name that the daemon's certificate must have; None for an address without TLS."""
    scheme, _, rest = address.partition(":")
    return rest.rpartition(":")[0].strip("[]") if scheme == "tls" else None


def open_socket(address: str, timeout: float | None) -> socket.socket:
    """Connects to unix:/path, tcp:host:port or tls:host:port (no handshake yet). ConnectionLost when
    that fails, ValueError for another kind of address.
    """
    scheme, _, rest = address.partition(":")
    try:
        if scheme == "unix" and rest:
            sock = _open_unix(rest, timeout)
        elif scheme in ("tcp", "tls") and ":" in rest:
            host, _, port = rest.rpartition(":")
            sock = socket.create_connection((host.strip("[]"), int(port)), timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            raise ValueError(f"address {address!r}: unix:/path, tcp:host:port or tls:host:port")
    except OSError as error:
        raise ConnectionLost(f"{address}: {error.strerror or error}", reason="CONNECT") from error
    sock.setblocking(False)
    return sock


def _open_unix(path: str, timeout: float | None) -> socket.socket:
    """Where too many wait to be accepted a Unix socket refuses at once: it is asked again."""
    end = None if timeout is None else time.monotonic() + timeout
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        while True:
            try:
                sock.settimeout(timeout)
                sock.connect(path)
                return sock
            except BlockingIOError:
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError("too many wait to be accepted") from None
                time.sleep(CONNECT_AGAIN_S)
    except BaseException:
        sock.close()
        raise


def open_stream(
    address: str, timeout: float | None, tls: ssl.SSLContext | None
) -> socket.socket | TlsSocket:
    """A connected socket for a Transport, after TLS's handshake where the address asks for it."""
    sock = open_socket(address, timeout)
    host = tls_host(address)
    if host is None:
        return sock
    try:
        sock.settimeout(timeout)
        secure = (tls or client_context()).wrap_socket(sock, server_hostname=host)
        secure.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"{address}: {error}", reason="TLS") from error
    return TlsSocket(secure)


def _go_on(tensor: int, body: memoryview) -> bool:
    return True


class Pending:
    """One call that has been sent: its reply or error once there is one."""

    __slots__ = (
        "call", "deadline", "error", "granted", "news", "observe", "part", "progress", "reply",
        "waiter",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        deadline: float | None,
        progress: Callable[[int, int], None] | None = None,
        observe: Callable[[int, memoryview], bool] | None = None,
        part: Callable[[bytes, memoryview], None] | None = None,
    ) -> None:
        self.call = call
        self.deadline = deadline
        self.progress = progress
        self.observe = observe
        self.part = part
        self.news: list[Progress | Tapped | Part] = []
        self.reply: Reply | None = None
        self.error: HeadraceError | None = None
        self.granted = False
        self.waiter: threading.Event | None = None

    @property
    def done(self) -> bool:
        """Ended, well or badly."""
        return self.reply is not None or self.error is not None


class Transport:
    """A Wire on a socket. It belongs to the process that made it: in a child, which shares the socket,
    every call fails, and close() closes the child's descriptor alone.
    """

    def __init__(self, sock: socket.socket | TlsSocket) -> None:
        self.wire = Wire()
        self._process = os.getpid()
        self.draining: GoingAway | None = None
        self._sock = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._state = threading.Lock()
        self._sending = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._waiting: list[Pending] = []
        self._reading = False
        self._failure: HeadraceError | None = None
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._either = select.poll()
        self._either.register(sock, select.POLLIN | select.POLLOUT)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)

    # ---- calls ---------------------------------------------------------------------------------

    def start(
        self,
        kind: int,
        message: bytes,
        body: Sequence[Buffer] = (),
        *,
        pull: Source | None = None,
        resume: bool = False,
        fds: Sequence[int] = (),
        timeout: float | None = None,
        into: memoryview | None = None,
        progress: Callable[[int, int], None] | None = None,
        observe: Callable[[int, memoryview], bool] | None = None,
        part: Callable[[bytes, memoryview], None] | None = None,
    ) -> Pending:
        """Sends a request. A body that needs credit is sent on by whoever waits for the reply, who
        also calls `progress`, `observe` and `part`; with `part` there may be several replies, and the
        last one is the call's. DeadlineExceeded when the socket takes no bytes in time.
        """
        timeout_ms = 0 if timeout is None else min(max(1, int(timeout * 1000)), 0xFFFFFFFF)
        until = None if timeout is None else time.monotonic() + timeout
        deadline = None if until is None else until + GRACE_S
        with self._turn(until):
            with self._state:
                self._check()
                call = self.wire.call(
                    kind, message, body, pull=pull, resume=resume, fd_count=len(fds),
                    timeout_ms=timeout_ms, into=into, parts=part is not None,
                )  # fmt: skip
                pending = Pending(call, deadline, progress, observe, part)
                self._pending[call.call_id] = pending
            try:
                self._send(call.frames, fds, until)
            except DeadlineExceeded:
                with self._state:  # not one byte of it has gone out
                    self.wire.calls.pop(call.call_id, None)
                    self._pending.pop(call.call_id, None)
                raise
        return pending

    def wait(
        self, pending: Pending, timeout: float | None = None, *, until_news: bool = False
    ) -> Reply | None:
        """The reply; raises its error. TimeoutError when `timeout` seconds pass first (the call
        goes on), DeadlineExceeded when the daemon is silent past the call's deadline. until_news:
        None as soon as a callback has been called.
        """
        self._check_process()
        limit = None if timeout is None else time.monotonic() + timeout
        try:
            told = self._wait(pending, limit, until_news)
        finally:
            # This thread may have been chosen to read and not have needed to.
            if self._waiting:
                with self._state:
                    self._hand_over()
        if told and until_news:
            return None
        if pending.error is not None:
            raise pending.error
        assert pending.reply is not None
        return pending.reply

    def _wait(self, pending: Pending, limit: float | None, until_news: bool) -> bool:
        """Returns whether callbacks were called, if that is what it is to wait for."""
        looked = False
        while True:
            done = pending.done  # asked first: what was told before the end is there by then
            if self._tell(pending) and until_news:
                return True
            if done:
                return False
            try:
                while pending.call.uploading and self._upload(pending):
                    pass
            except DeadlineExceeded as error:
                self.cancel(pending, error)
                return False
            now = time.monotonic()
            if pending.deadline is not None and now >= pending.deadline:
                if not looked:  # an answer that came in time may not have been read yet
                    looked = True
                    self.poll()
                    continue
                self.cancel(
                    pending, DeadlineExceeded("no answer within the deadline", reason="DEADLINE")
                )
                return False
            if limit is not None and now >= limit:
                raise TimeoutError("the call is still running")
            ends = [end for end in (limit, pending.deadline) if end is not None]
            self._progress(pending, min(ends) - now if ends else None)

    def _tell(self, pending: Pending) -> bool:
        """Passes on what the daemon has said of the call's progress, if it has. No lock is held."""
        told = False
        while pending.news:
            news = pending.news.pop(0)
            told = True
            if isinstance(news, Tapped):
                self._answer(
                    pending, news, stop=not (pending.observe or _go_on)(news.tensor, news.body)
                )
            elif isinstance(news, Part):
                if pending.part is not None:
                    pending.part(news.message, news.body)
            elif pending.progress is not None:
                pending.progress(news.done, news.total)
        return told

    def _answer(self, pending: Pending, tapped: Tapped, *, stop: bool) -> None:
        with self._turn(pending.deadline):
            with self._state:
                if self._failure is not None:
                    return
                frames = self.wire.answer(tapped.call_id, tapped.tap, stop=stop)
            self._send(frames, until=pending.deadline)

    def poll(self) -> None:
        """Takes in whatever has arrived, without waiting."""
        if self._process != os.getpid():
            return
        with self._state:
            if self._reading or self._failure is not None:
                return
            self._reading = True
        self._read(0.0)

    def cancel(self, pending: Pending, error: HeadraceError | None = None) -> None:
        """Asks the daemon to stop a call, if the socket takes that soon. With `error` the call ends
        here and now with it.
        """
        if self._process != os.getpid():
            return
        if error is not None:
            with self._state:
                if pending.done:
                    return
                self.wire.abandon(pending.call.call_id)
                self._pending.pop(pending.call.call_id, None)
                pending.error = error
        until = time.monotonic() + CANCEL_S
        with contextlib.suppress(HeadraceError), self._turn(until):
            with self._state:
                if self._failure is not None or pending.call.call_id not in self.wire.calls:
                    return
                frames = self.wire.cancel(pending.call.call_id)
            self._send(frames, until=until)

    def close(self) -> None:
        """Ends the connection; calls under way fail with ConnectionLost."""
        if self._process != os.getpid():
            self._sock.close()
            return
        self._fail(ConnectionLost("the connection was closed", reason="CLOSED"))

    # ---- sending -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self, until: float | None) -> Iterator[None]:
        """Holds _sending, if it can be had in time."""
        self._check_process()
        left = -1.0 if until is None else max(0.0, until - time.monotonic())
        if not self._sending.acquire(timeout=left):
            raise DeadlineExceeded("the daemon takes no more bytes", reason="DEADLINE")
        try:
            yield
        finally:
            self._sending.release()

    def _upload(self, pending: Pending) -> bool:
        """Sends one DATA frame if there is credit for it."""
        with self._turn(pending.deadline):
            with self._state:
                if pending.done:
                    return False
                frame = self.wire.upload(pending.call)
                pending.granted = False
            if not frame:
                return False
            self._send(frame, until=pending.deadline)
        return True

    def _send(
        self, frames: Sequence[Buffer], fds: Sequence[int] = (), until: float | None = None
    ) -> None:
        """Writes buffers out, with descriptors beside the first byte. The caller holds _sending.

        DeadlineExceeded: nothing has been written by `until`. Whatever else interrupts it leaves the
        connection unusable, since half a frame may have gone out.
        """
        try:
            self._send_all([memoryview(part) for part in frames], fds, until)
        except HeadraceError:
            raise
        except BaseException:
            self._fail(ConnectionLost("interrupted in the middle of a frame", reason="EOF"))
            raise

    def _send_all(
        self, left: list[memoryview], fds: Sequence[int], until: float | None
    ) -> None:
        begun = False
        while left:
            try:
                if fds and isinstance(self._sock, socket.socket):
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))
                    sent = self._sock.sendmsg(left[:IOV_MAX], [rights])
                    fds = ()
                else:
                    sent = self._sock.sendmsg(left[:IOV_MAX])
            except BlockingIOError:
                if until is not None and time.monotonic() >= until:
                    late = DeadlineExceeded("the daemon takes no more bytes", reason="DEADLINE")
                    if begun:
                        self._fail(late)
                        self._check()
                    raise late from None
                self._wait_writable()
                continue
            except OSError as error:
                # What the daemon said before it hung up may explain it.
                self.poll()
                self._fail(ConnectionLost(str(error.strerror or error), reason="EOF"))
                self._check()
            begun = begun or sent > 0
            while left and sent >= len(left[0]):
                sent -= len(left[0])
                left.pop(0)
            if sent:
                left[0] = left[0][sent:]

    def _wait_writable(self) -> None:
        with self._state:
            self._check()
            mine = not self._reading
        if not mine:
            self._writable.poll(100)
        elif any(event & select.POLLIN for _, event in self._either.poll(100)):
            self.poll()

    # ---- receiving -----------------------------------------------------------------------------

    def _progress(self, pending: Pending, timeout: float | None) -> None:
        """Reads, or waits for the thread that reads, until something may have changed."""
        with self._state:
            if pending.done or pending.granted or pending.news:
                pending.granted = False
                return
            if self._failure is not None:
                pending.error = self._failure
                return
            mine = not self._reading
            if mine:
                self._reading = True
            else:
                pending.waiter = waiter = threading.Event()
                self._waiting.append(pending)
        if mine:
            self._read(timeout)
            return
        woken = waiter.wait(timeout)
        with self._state:
            pending.waiter = None
            if pending in self._waiting:
                self._waiting.remove(pending)
            elif not woken:
                self._hand_over()

    def _read(self, timeout: float | None) -> None:
        """Reads once; the caller has the reading role, which ends here."""
        failure: HeadraceError | None = None
        events: list[Event] = []
        counted = True
        try:
            wait_ms = None if timeout is None else max(0, int(timeout * 1000) + 1)
            buffered = self._tls is not None and self._tls.pending()
            if timeout == 0.0 or buffered or self._readable.poll(wait_ms):
                counted = False  # what interrupts this thread now may lose bytes
                count = self._sock.recv_into(self.wire.buffer())
                if count == 0:
                    failure = ConnectionLost("the daemon closed the connection", reason="EOF")
                else:
                    with self._state:
                        events = self.wire.received(count)
                counted = True
        except (BlockingIOError, InterruptedError):
            counted = True
        except ProtocolError as error:
            failure = error
        except (OSError, ValueError) as error:
            failure = ConnectionLost(str(error), reason="EOF")
        finally:
            if not counted and failure is None:
                failure = ConnectionLost("interrupted while it was read from", reason="EOF")
            with self._state:
                self._reading = False
                for event in events:
                    failure = self._deliver(event) or failure
                self._hand_over()
                if self._failure is not None:
                    self._sock.close()
            if failure is not None:
                self._fail(failure)

    def _deliver(self, event: Event) -> HeadraceError | None:
        """Gives an event to its call; a failure of the whole connection is returned."""
        if isinstance(event, GoingAway):
            self.draining = event
            return None
        if isinstance(event, Credit):
            pending = self._pending.get(event.call_id)
            if pending is not None:
                pending.granted = True
        elif isinstance(event, Progress | Tapped | Part):
            pending = self._pending.get(event.call_id)
            if pending is None or (isinstance(event, Progress) and pending.progress is None):
                return None
            pending.news.append(event)
        else:
            if isinstance(event, Failure) and event.call_id == 0:
                return event.error
            pending = self._pending.pop(event.call_id, None)
            if pending is not None and isinstance(event, Reply):
                pending.reply = event
            elif pending is not None and isinstance(event, Failure):
                pending.error = event.error
        if pending is not None and pending.waiter is not None:
            pending.waiter.set()
            if pending in self._waiting:
                self._waiting.remove(pending)
        return None

    def _hand_over(self) -> None:
        """Wakes a waiting thread so that somebody reads. The caller holds _state."""
        if not self._reading and self._waiting:
            chosen = self._waiting.pop()
            if chosen.waiter is not None:
                chosen.waiter.set()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise ConnectionLost("this connection is of another process", reason="FORKED")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, failure: HeadraceError) -> None:
        """Ends the connection for everybody; the first failure counts.

        The descriptor is closed only when nobody reads: a number that is polled must not come to
        mean another file.
        """
        with self._state:
            if self._failure is None:
                self._failure = failure
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
            if not self._reading:
                self._sock.close()
            for pending in self._pending.values():
                pending.error = self._failure
                if pending.waiter is not None:
                    pending.waiter.set()
            self._pending.clear()
            self._waiting.clear()
