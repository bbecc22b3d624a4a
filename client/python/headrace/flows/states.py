"""States: writable tensors in the daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headrace import handles
from headrace import headrace_pb2 as pb
from headrace.errors import NotFound, ProtocolError
from headrace.flows.lease import lease, release_lease
from headrace.flows.request import Flow, Placement, Request, declared, rules
from headrace.regions import Regions
from headrace.types import Array, TensorInfo, TypeLike, as_bytes, as_type, from_bytes
from headrace.wire import Buffer, Kind, parse


def alloc(
    tensors: Sequence[TensorInfo], placement: Placement | None, body_max: int
) -> Flow[tuple[int, int, list[handles.PlacedShare]]]:
    """Handle, bytes and places of a new, zero-filled state."""
    manifest = handles.manifest_bytes(tensors)
    message = pb.StateAlloc(placement=rules(placement), manifest_bytes=declared(manifest, body_max))
    reply = yield Request(Kind.STATE_ALLOC, message.SerializeToString(), [manifest])
    made = parse(pb.StateAllocReply, reply.message)
    return made.handle, made.bytes, handles.placed_of(made.devices)


def tensors(spec: Mapping[str, tuple[TypeLike, Sequence[int]]]) -> list[TensorInfo]:
    """A state's tensors from {name: (type, shape)}."""
    return [
        TensorInfo(name, as_type(number), tuple(shape)) for name, (number, shape) in spec.items()
    ]


def read(state: handles.StateInfo, name: str, regions: Regions | None = None) -> Flow[Array]:
    """A tensor of a state as an array."""
    info = state[name]
    memory = np.empty(info.nbytes, np.uint8)
    message = pb.StateRead(
        handle=state.handle, tensor=state.index(name), offset=0, bytes=info.nbytes
    )
    shared = yield from lease(regions, info.nbytes)
    if shared is None:
        reply = yield Request(Kind.STATE_READ, message.SerializeToString(), into=memory.data)
        if len(reply.body) != info.nbytes:
            raise ProtocolError(f"{len(reply.body)} bytes of {info.nbytes}", reason="PROTOCOL")
        return from_bytes(memory, info.type, info.shape)
    message.region = shared.handle
    try:
        yield Request(Kind.STATE_READ, message.SerializeToString())
        memory.data[:] = shared.memory[: info.nbytes]
    except BaseException as error:
        release_lease(regions, [shared], error)
        raise
    release_lease(regions, [shared])
    return from_bytes(memory, info.type, info.shape)


def write(
    state: handles.StateInfo, name: str, value: npt.ArrayLike, regions: Regions | None = None
) -> Flow[None]:
    """Replaces a tensor of a state."""
    info = state[name]
    data = as_bytes(value, info.type, info.shape, name)
    message = pb.StateWrite(
        handle=state.handle, tensor=state.index(name), offset=0, bytes=len(data)
    )
    shared = yield from lease(regions, len(data), [data])
    if shared is not None:
        message.region = shared.handle
    try:
        yield Request(
            Kind.STATE_WRITE, message.SerializeToString(), [data] if shared is None else ()
        )
    except BaseException as error:
        release_lease(regions, [shared], error)
        raise
    release_lease(regions, [shared])


def save(state: handles.StateInfo) -> Flow[bytes]:
    """All of a state: the length of its manifest in eight bytes, the manifest, the contents."""
    reply = yield Request(Kind.STATE_SAVE, pb.StateSave(handle=state.handle).SerializeToString())
    head: int = parse(pb.StateSaveReply, reply.message).manifest_bytes
    return head.to_bytes(8, "little") + bytes(reply.body)


Made = tuple[int, int, list[TensorInfo], list[handles.PlacedShare]]


def restore(saved: Buffer, placement: Placement | None, body_max: int) -> Flow[Made]:
    """A new state with what save() gave."""
    body = memoryview(saved).cast("B")[8:]
    head = int.from_bytes(bytes(memoryview(saved).cast("B")[:8]), "little")
    if head > len(body):
        raise ValueError("this is no saved state, or not all of it")
    tensors = handles.manifest_of(parse(pb.Manifest, bytes(body[:head])))
    message = pb.StateRestore(
        placement=rules(placement),
        manifest_bytes=head,
        body_bytes=len(body) if len(body) > body_max else 0,
    )
    reply = yield Request(Kind.STATE_RESTORE, message.SerializeToString(), [body])
    made = parse(pb.StateRestoreReply, reply.message)
    return made.handle, made.bytes, tensors, handles.placed_of(made.devices)


def fork(state: handles.StateInfo) -> Flow[Made]:
    """A copy of a state, made where it lies."""
    reply = yield Request(Kind.STATE_FORK, pb.StateFork(handle=state.handle).SerializeToString())
    made = parse(pb.StateForkReply, reply.message)
    return made.handle, made.bytes, list(state.tensors), handles.placed_of(made.devices)


def free(handle: int) -> Flow[None]:
    """Gives a state back; one that has gone already is no error."""
    try:
        yield Request(Kind.STATE_FREE, pb.StateFree(handle=handle).SerializeToString())
    except NotFound:
        return
