"""Weight sets: files on the daemon's side, uploads, what is there already."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from headrace import handles
from headrace import headrace_pb2 as pb
from headrace.errors import ConnectionLost, HeadraceError, NotFound, Unavailable
from headrace.flows.request import Flow, OnProgress, Placement, Request, is_end_of_daemon, rules
from headrace.regions import Shared, sealed_contents
from headrace.types import TensorInfo
from headrace.uploads import Share, Upload, shares
from headrace.wire import Kind, Reply, parse

QUERY_DIGESTS = 1024  # of one request
HELD = 2  # a content that is there


def load(
    path: str,
    name: str,
    placement: Placement | None,
    progress: OnProgress | None = None,
    share: Share = "all",
) -> Flow[handles.WeightSet]:
    """A file on the daemon's side."""
    message = pb.WeightsLoad(path=path, name=name, placement=rules(placement), share=shares(share))
    reply = yield Request(Kind.WEIGHTS_LOAD, message.SerializeToString(), progress=progress)
    loaded = parse(pb.WeightsLoadReply, reply.message)
    tensors = yield from set_tensors(loaded.set.handle)
    return handles.WeightSet(
        handles.set_of(loaded.set),
        tensors,
        bytes(reply.body),
        loaded.metadata_count,
        loaded.already,
        handles.placed_of(loaded.devices),
    )


def set_tensors(handle: int) -> Flow[list[TensorInfo]]:
    """The tensors of a set."""
    message = pb.WeightsTensors(handle=handle)
    reply = yield Request(Kind.WEIGHTS_TENSORS, message.SerializeToString())
    return handles.manifest_of(parse(pb.Manifest, reply.body))


# Before the connection is made anew for an upload of which nothing more has arrived.
PAUSES_S = (0.0, 0.1, 0.5, 2.0)


def put(
    upload: Upload,
    placement: Placement | None,
    body_max: int,
    progress: OnProgress | None = None,
    *,
    reconnects: bool = False,
) -> Flow[handles.WeightSet]:
    """Uploads what the daemon lacks of a set's contents. Several connections may do so at once.

    reconnects: when the connection breaks it is made anew, and what has arrived is not sent again,
    as long as more arrives each time. Contents without a digest cannot be gone on with.
    """
    had, stuck = 0, 0
    while True:
        try:
            return (yield from put_once(upload, placement, body_max, progress))
        except (ConnectionLost, Unavailable) as error:
            if not reconnects or not upload.digest or not is_end_of_daemon(error):
                raise
            there = yield from reached(upload.digest, error, stuck)
            stuck = 0 if there > had else stuck + 1
            had = there
            if stuck >= len(PAUSES_S):
                raise


def reached(digest: bytes, error: HeadraceError, stuck: int) -> Flow[int]:
    """Bytes that the daemon has of contents, asked over a new connection."""
    message = pb.WeightsQuery(digests=digest).SerializeToString()
    for pause in PAUSES_S[stuck:]:
        try:
            reply = yield Request(Kind.WEIGHTS_QUERY, message, reconnect=True, pause=pause)
        except (ConnectionLost, Unavailable) as failure:
            if not (is_end_of_daemon(failure) or failure.reason == "CONNECT"):
                raise
            continue
        answer = parse(pb.WeightsQueryReply, reply.message)
        return int(answer.received_bytes[0]) if answer.received_bytes else 0
    raise error


def put_once(
    upload: Upload,
    placement: Placement | None,
    body_max: int,
    progress: OnProgress | None = None,
) -> Flow[handles.WeightSet]:
    """put() over one connection."""
    request = Request(
        Kind.WEIGHTS_PUT,
        upload.message(rules(placement), body_max),
        [upload.manifest],
        pull=upload.pieces,
        resume=bool(upload.digest),
        progress=progress,
    )
    try:
        reply = yield request
    except Unavailable as error:
        if (
            error.reason != "CACHE"
        ):  # what the daemon had on disk was damaged: it asks for all of it
            raise
        reply = yield request
    return made_of(upload, reply)


def made_of(upload: Upload, reply: Reply) -> handles.WeightSet:
    """The set that a PUT has made."""
    made = parse(pb.WeightsPutReply, reply.message)
    return handles.WeightSet(
        handles.set_of(made.set),
        upload.infos,
        already=made.already,
        devices=handles.placed_of(made.devices),
    )


def put_fd(
    upload: Upload,
    placement: Placement | None,
    body_max: int,
    progress: OnProgress | None = None,
    *,
    reconnects: bool = False,
) -> Flow[handles.WeightSet]:
    """The same through memory that the daemon maps; not sent at all where it has the contents."""
    size = len(upload.pieces)
    shared = None
    if not (yield from is_there(upload)):
        with contextlib.suppress(OSError):
            shared = sealed_contents(upload.pieces.slice(0, size), size)
    if shared is None:
        return (yield from put(upload, placement, body_max, progress, reconnects=reconnects))
    return (yield from put_shared(upload, shared, placement, body_max, progress))


def is_there(upload: Upload) -> Flow[bool]:
    """The daemon has all of the contents."""
    if not upload.digest:
        return False
    there = yield from query([upload.digest])
    return there[0].state == HELD


def put_shared(
    upload: Upload,
    shared: Shared,
    placement: Placement | None,
    body_max: int,
    progress: OnProgress | None = None,
) -> Flow[handles.WeightSet]:
    """Gives the daemon memory that holds a set's contents, sealed; it is closed here."""
    try:
        reply = yield Request(
            Kind.WEIGHTS_PUT_FD,
            upload.message(rules(placement), body_max),
            [upload.manifest],
            fds=[shared.fd],
            progress=progress,
            again=bool(upload.digest),
        )
    finally:
        shared.close()
    return made_of(upload, reply)


def query(digests: Sequence[bytes]) -> Flow[list[handles.Contents]]:
    """What the daemon has of contents with these digests."""
    found: list[handles.Contents] = []
    for at in range(0, len(digests), QUERY_DIGESTS):
        message = pb.WeightsQuery(digests=b"".join(digests[at : at + QUERY_DIGESTS]))
        reply = yield Request(Kind.WEIGHTS_QUERY, message.SerializeToString())
        answer = parse(pb.WeightsQueryReply, reply.message)
        found += map(handles.Contents, answer.state, answer.received_bytes)
    return found


def listed() -> Flow[list[handles.SetInfo]]:
    """The sets that the caller may see."""
    reply = yield Request(Kind.WEIGHTS_LIST)
    return [handles.set_of(s) for s in parse(pb.WeightSets, reply.body).sets]


def purge() -> Flow[tuple[int, int]]:
    """Contents and bytes removed from the daemon's cache on disk."""
    reply = yield Request(Kind.WEIGHTS_PURGE)
    removed = parse(pb.WeightsPurgeReply, reply.message)
    return removed.contents, removed.bytes


def drop(handle: int) -> Flow[None]:
    """Gives a set back; one that has gone already is no error."""
    try:
        yield Request(Kind.WEIGHTS_DROP, pb.WeightsDrop(handle=handle).SerializeToString())
    except NotFound:
        return
