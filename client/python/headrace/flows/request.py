"""What operations are made of: requests, and the types that callers hand in."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace import headrace_pb2 as pb
from headrace.errors import ConnectionLost, HeadraceError, Unavailable
from headrace.ops.base import Tensor
from headrace.types import Array
from headrace.uploads import Pieces
from headrace.wire import Buffer, Kind, Reply

# Requests that change nothing, or (LOAD) only what their own session holds, and name no handle.
REPEATABLE = frozenset({
    Kind.PING, Kind.DEVICES, Kind.OPS, Kind.STATS, Kind.METRICS, Kind.QUOTA, Kind.TRACE,
    Kind.STATUS, Kind.HEALTH, Kind.SESSIONS, Kind.PLANS, Kind.QUOTAS, Kind.WEIGHTS_LOAD,
    Kind.WEIGHTS_QUERY, Kind.WEIGHTS_LIST,
})  # fmt: skip


def is_end_of_daemon(error: HeadraceError) -> bool:
    """The daemon has gone, or refuses because it is about to, or the connection has broken."""
    if isinstance(error, ConnectionLost):
        return error.reason == "EOF"
    return isinstance(error, Unavailable) and error.reason == "DRAINING"


Placement = Mapping[str, str] | Sequence[tuple[str, str]]
Inputs = Mapping[str, Any] | Sequence[Any]
# Takes the bytes done and the bytes in all.
OnProgress = Callable[[int, int], None]
# Takes the id of a tap's tensor and its bytes; False ends the run.
OnTap = Callable[[int, memoryview], bool]
# Takes the message and the body of one of several replies.
OnPart = Callable[[bytes, memoryview], None]
# The user's: takes the tensor and its value.
Observe = Callable[[Tensor, Array], bool | None]
# Nodes, or globs over their names.
Taps = Sequence["Tensor | str"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send."""

    kind: int
    message: bytes = b""
    body: Sequence[Buffer] = ()
    into: memoryview | None = None
    pull: Pieces | None = None
    resume: bool = False
    fds: Sequence[int] = ()
    progress: OnProgress | None = None
    observe: OnTap | None = None
    part: OnPart | None = None
    again: bool = False
    # The same with what is known after a reconnection; None: as it is.
    remake: Callable[[], Request] | None = None
    # Sent over a new connection if need be, whatever else of the operation has been sent again.
    reconnect: bool = False
    # Seconds before it is sent.
    pause: float = 0.0

    @property
    def may_repeat(self) -> bool:
        """Sent twice it does no more than sent once, in another session as well."""
        return self.again or self.kind in REPEATABLE


Flow = Generator[Request, Reply, T]


def rules(placement: Placement | None) -> list[pb.PlacementRule]:
    """Placement rules from pairs (glob, device), or {glob: device}."""
    pairs = placement.items() if isinstance(placement, Mapping) else placement or ()
    return [pb.PlacementRule(pattern=pattern, device=device) for pattern, device in pairs]


def declared(body: bytes, body_max: int) -> int:
    """The total that a message declares of a body: 0 when one frame holds it."""
    return len(body) if len(body) > body_max else 0
