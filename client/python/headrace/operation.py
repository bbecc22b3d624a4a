"""Requests of the blocking client that are under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.errors import HeadraceError
from headrace.flows import Flow, Request, is_end_of_daemon
from headrace.recovery import remaining
from headrace.transport import Pending, Transport

T = TypeVar("T")
# Takes the connection that has ended, and the seconds that there are; another one, if one can be.
Recover = Callable[[Transport, float | None], Transport | None]


class Operation(Generic[T]):
    """Something under way; result() waits for it. Many may be in flight at once."""

    def __init__(
        self,
        transport: Transport,
        flow: Flow[T],
        timeout: float | None,
        recover: Recover | None = None,
    ) -> None:
        """recover: gives another connection for a request that was not answered, or None."""
        self._transport = transport
        self._flow = flow
        self._timeout = timeout
        self._recover = recover
        self._value: T | None = None
        self._error: BaseException | None = None
        self._pending: Pending | None = None
        self._repeated = False
        self._deadline: float | None = None
        self._advance(None, None)

    def _advance(self, reply: Any, error: HeadraceError | None) -> None:
        """Gives the flow its answer and sends the request that it yields next. A request that cannot
        be sent is answered with that.
        """
        self._pending = None
        try:
            while self._pending is None:
                request = self._flow.send(reply) if error is None else self._flow.throw(error)
                self._request: Request = request
                if request.pause > 0:
                    time.sleep(request.pause)
                self._deadline = None if self._timeout is None else time.monotonic() + self._timeout
                reply, error = None, self._send()
        except StopIteration as stop:
            self._value = stop.value
        except Exception as failure:
            self._error = failure

    def _send(self) -> HeadraceError | None:
        """Sends the request; over another connection if this one ends, and may be replaced."""
        try:
            self._pending = self._sent(self._timeout)
        except HeadraceError as failure:
            return self._sent_again(failure)
        return None

    def _sent_again(self, error: HeadraceError) -> HeadraceError | None:
        """Sends the request once more if it may be; else what the flow is to be told."""
        if not self._recovered(error):
            return error
        left = remaining(self._deadline)
        try:
            self._pending = self._sent(None if left is None else max(left, 0.001))
        except HeadraceError as failure:
            return failure
        return None

    def _sent(self, timeout: float | None) -> Pending:
        request = self._request
        return self._transport.start(
            request.kind,
            request.message,
            request.body,
            pull=request.pull,
            resume=request.resume,
            fds=request.fds,
            timeout=timeout,
            into=request.into,
            progress=request.progress,
            observe=request.observe,
            part=request.part,
        )

    def _recovered(self, error: HeadraceError) -> bool:
        """The request was not answered, or was refused by a daemon that ends, and may be sent once
        more: there is another connection for it.
        """
        request = self._request
        once = request.may_repeat and not self._repeated
        if self._recover is None or not (once or request.reconnect) or not is_end_of_daemon(error):
            return False
        left = remaining(self._deadline)
        found = self._recover(self._transport, left) if left is None or left > 0 else None
        self._repeated = self._repeated or not request.reconnect
        if found is None:
            return False
        self._transport = found
        if request.remake is not None:
            self._request = request.remake()
        return True

    def _turn(self, timeout: float | None, *, until_news: bool) -> None:
        """Waits for the answer to the last request, or with until_news for any callback."""
        assert self._pending is not None
        try:
            reply = self._transport.wait(self._pending, timeout, until_news=until_news)
        except HeadraceError as error:
            failure = self._sent_again(error)
            if failure is not None:
                self._advance(None, failure)
        else:
            if reply is not None:
                self._advance(reply, None)

    def step(self) -> bool:
        """Waits until a callback has been called or the operation is over; False when it is over."""
        if self._pending is not None:
            self._turn(None, until_news=True)
        return self._pending is not None

    def result(self, timeout: float | None = None) -> T:
        """The result; raises what went wrong. TimeoutError when `timeout` seconds pass first."""
        while self._pending is not None:
            self._turn(timeout, until_news=False)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def done(self) -> bool:
        """The last request has been answered, or has failed; result() will not wait long."""
        if self._pending is not None and not self._pending.done:
            self._transport.poll()
        return self._pending is None or self._pending.done

    def cancel(self) -> None:
        """Asks the daemon to stop; result() then raises Cancelled, unless it was too late."""
        if self._pending is not None:
            self._transport.cancel(self._pending)
