"""What can go wrong: one class per status, under one class per scope.

Scopes say who is affected: RequestError only this call; PeerError this connection; DeviceError a
device (the daemon plans anew without it); DaemonError the daemon. Mistakes found on this side
before anything is sent are ValueError.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """A failure reported by the daemon or met on the way to it.

    code: gRPC's number. reason: a stable token. words: for people. node: index among the graph's
    nodes; tensor: id among leaves, then nodes; field: column, key or parameter; limit and actual:
    what was allowed and what was asked; retry_after: seconds; digest: of a graph that was evicted;
    written: ids of the states that a run has written, or may have, which failed, was cancelled or was
    stopped at a tap; step: of a sequence, written is then about it. traceparent: of the request in the
    daemon, where its caller had named a trace.
    """

    code: int = 2

    def __init__(
        self,
        words: str,
        *,
        reason: str = "",
        code: int | None = None,
        node: int | None = None,
        tensor: int | None = None,
        field: str = "",
        limit: int = 0,
        actual: int = 0,
        retry_after: float = 0.0,
        digest: bytes = b"",
        written: tuple[int, ...] = (),
        step: int | None = None,
        traceparent: str = "",
    ) -> None:
        super().__init__(words)
        self.words = words
        self.reason = reason
        self.code = type(self).code if code is None else code
        self.node = node
        self.tensor = tensor
        self.field = field
        self.limit = limit
        self.actual = actual
        self.retry_after = retry_after
        self.digest = digest
        self.written = written
        self.step = step
        self.traceparent = traceparent

    def __str__(self) -> str:
        place = [
            f"{name} {value}"
            for name, value in (("node", self.node), ("tensor", self.tensor))
            if value is not None
        ]
        if self.field:
            place.append(self.field)
        where = f" [{', '.join(place)}]" if place else ""
        size = f" (limit {self.limit}, actual {self.actual})" if self.limit or self.actual else ""
        return f"{self.reason or type(self).__name__}: {self.words}{where}{size}"


class RequestError(HeadraceError):
    """This call failed; the connection goes on."""


class PeerError(HeadraceError):
    """The connection is of no further use."""


class DeviceError(HeadraceError):
    """A device failed; the call may be repeated."""


class DaemonError(HeadraceError):
    """The daemon is ending."""


class Cancelled(RequestError):
    """The call was cancelled."""

    code = 1


class InvalidArgument(RequestError):
    """A graph, file or argument is wrong in itself; node, tensor and field say where."""

    code = 3


class DeadlineExceeded(RequestError):
    """The call took longer than its deadline."""

    code = 4


class NotFound(RequestError):
    """No such object, or not the caller's, or evicted."""

    code = 5


class AlreadyExists(RequestError):
    """The name is taken."""

    code = 6


class PermissionDenied(RequestError):
    """Not allowed."""

    code = 7


class Exhausted(RequestError):
    """A limit or memory; limit and actual say which and how much."""

    code = 8


class FailedPrecondition(RequestError):
    """The state of things forbids it."""

    code = 9


class OutOfRange(RequestError):
    """An offset, or an index in data, outside its tensor."""

    code = 11


class Unsupported(RequestError):
    """A known operator or message that nothing here can do."""

    code = 12


class InternalError(RequestError):
    """A fault of the daemon's."""

    code = 13


class Unavailable(RequestError):
    """Try again after retry_after seconds."""

    code = 14


class DataLoss(RequestError):
    """Contents differ from their digest."""

    code = 15


class UnknownError(RequestError):
    """A code that this version does not know."""

    code = 2


class Unauthenticated(PeerError):
    """Who the caller is was not accepted."""

    code = 16


class ProtocolError(PeerError):
    """One side broke the protocol."""

    code = 3


class ConnectionLost(PeerError, ConnectionError):
    """The connection ended, or could not be made."""

    code = 14


class DeviceLost(DeviceError):
    """A device was lost during the run."""

    code = 14


class DaemonFailed(DaemonError):
    """The daemon cannot go on."""

    code = 13


_BY_REASON: dict[str, type[HeadraceError]] = {
    "DEVICE_LOST": DeviceLost,
    "FATAL": DaemonFailed,
    "EOF": ConnectionLost,
    **dict.fromkeys(
        ("PROTOCOL", "BAD_MAGIC", "BAD_VERSION", "BAD_HEADER_CRC", "BAD_TYPE", "BAD_FLAGS",
         "BAD_ID", "MESSAGE_TOO_LONG", "BODY_TOO_LONG", "BAD_FDS"), ProtocolError),
}  # fmt: skip

_BY_CODE: dict[int, type[HeadraceError]] = {
    kind.code: kind
    for kind in (Cancelled, UnknownError, InvalidArgument, DeadlineExceeded, NotFound,
                 AlreadyExists, PermissionDenied, Exhausted, FailedPrecondition, OutOfRange,
                 Unsupported, InternalError, Unavailable, DataLoss, Unauthenticated)
}  # fmt: skip


def error_class(code: int, reason: str) -> type[HeadraceError]:
    """The class of a code and reason; the reason tells apart what shares a code."""
    return _BY_REASON.get(reason) or _BY_CODE.get(code, UnknownError)
