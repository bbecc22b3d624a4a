"""Regions of shared memory, borrowed for one request."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import headrace_pb2 as pb
from headrace.errors import ConnectionLost, DeadlineExceeded, Exhausted, HeadraceError
from headrace.flows.request import Flow, Request
from headrace.regions import LEAST_BYTES, Regions, Shared
from headrace.wire import Buffer, Kind, parse


def lease(
    regions: Regions | None, size: int, parts: Sequence[Buffer] = (), *, only_idle: bool = False
) -> Flow[Shared | None]:
    """A region that holds `parts`, for one request; None where there is none to be had."""
    if regions is None or size < LEAST_BYTES:
        return None
    found = regions.take(size)
    if found is None and not only_idle:
        found = regions.make(size)
    if found is None:
        return None
    found.fill(parts)
    if found.handle:
        return found
    try:
        for handle in regions.gone():
            yield Request(Kind.REGION_DROP, pb.RegionDrop(handle=handle).SerializeToString())
        message = pb.RegionAdd(bytes=found.size, writable=True)
        reply = yield Request(Kind.REGION_ADD, message.SerializeToString(), fds=[found.fd])
    except HeadraceError as error:
        regions.lose(found)
        if isinstance(error, Exhausted):
            return None
        raise
    found.handle = parse(pb.RegionAddReply, reply.message).handle
    found.close()
    return found


def release_lease(
    regions: Regions | None, taken: Sequence[Shared | None], error: BaseException | None = None
) -> None:
    """After the request. Where its end is not known the daemon may still use them."""
    for one in taken:
        if one is None or regions is None:
            continue
        if error is None or (
            isinstance(error, HeadraceError)
            and not isinstance(error, ConnectionLost | DeadlineExceeded)
        ):
            regions.give(one)
        else:
            regions.lose(one)
