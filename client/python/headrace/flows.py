"""The operations, without I/O: each is a generator that yields requests and is sent replies.

The blocking and the asyncio client drive the same generators. A failed request is thrown in at the
yield, so that an operation can answer it (a graph that was evicted is submitted again, once).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headrace import handles
from headrace import headrace_pb2 as pb
from headrace.context import chosen
from headrace.errors import (
    ConnectionLost, DeadlineExceeded, Exhausted, HeadraceError, NotFound, ProtocolError,
    Unavailable,
)  # fmt: skip
from headrace.explain import Explanation
from headrace.graph import Graph
from headrace.handles import SubmittedGraph
from headrace.ops.base import Tensor
from headrace.regions import LEAST_BYTES, Regions, Shared, sealed_contents
from headrace.trace import Trace
from headrace.types import Array, TensorInfo, TypeLike, as_bytes, as_type, from_bytes
from headrace.uploads import Pieces, Share, Upload, shares
from headrace.wire import PROTOCOL, Buffer, Kind, Reply, parse

FEATURES = ["progress"]
QUERY_DIGESTS = 1024
HELD = 2

# Requests that change nothing, or (LOAD) only what their own session holds, and that name no handle.
REPEATABLE = frozenset({
    Kind.PING, Kind.DEVICES, Kind.OPS, Kind.STATS, Kind.METRICS, Kind.QUOTA, Kind.TRACE, Kind.STATUS,
    Kind.HEALTH, Kind.SESSIONS, Kind.PLANS, Kind.QUOTAS, Kind.WEIGHTS_LOAD, Kind.WEIGHTS_QUERY,
    Kind.WEIGHTS_LIST,
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


# ---- session and devices -------------------------------------------------------------------------


def hello(client_name: str, session: str, credentials: bytes, token: bytes) -> Flow[handles.Hello]:
    """The first request on a connection."""
    message = pb.Hello(
        protocol_min=PROTOCOL,
        protocol_max=PROTOCOL,
        features=FEATURES,
        client_name=client_name,
        session_name=session,
        credentials=credentials,
        resume_token=token,
    )
    reply = yield Request(Kind.HELLO, message.SerializeToString())
    answer = handles.hello_of(parse(pb.HelloReply, reply.message))
    if answer.protocol != PROTOCOL:
        raise ProtocolError(
            f"the daemon speaks protocol {answer.protocol}, this client {PROTOCOL}",
            reason="BAD_VERSION",
        )
    return answer


def ping() -> Flow[None]:
    """Proves that the daemon's loop answers."""
    cookie = 0x6865616472616365
    reply = yield Request(Kind.PING, pb.Ping(cookie=cookie).SerializeToString())
    if parse(pb.PingReply, reply.message).cookie != cookie:
        raise ProtocolError("a ping came back changed", reason="PROTOCOL")


def devices() -> Flow[list[handles.Device]]:
    """The device table."""
    reply = yield Request(Kind.DEVICES)
    return [handles.device_of(d) for d in parse(pb.DevicesReply, reply.message).devices]


def ops(graph: Graph) -> Flow[Array]:
    """Which device supports which node: bool (nodes, devices)."""
    reply = yield Request(Kind.OPS, body=[graph.encode()])
    size = parse(pb.OpsReply, reply.message)
    table = np.frombuffer(reply.body, np.uint8)
    if len(table) != size.device_count * size.node_count:
        raise ProtocolError(f"a table of {len(table)} entries", reason="PROTOCOL")
    return table.reshape(size.node_count, size.device_count).astype(bool)


def stats(kind: Kind = Kind.STATS) -> Flow[handles.Stats]:
    """All counters, or with Kind.QUOTA the client's own charges and limits."""
    reply = yield Request(kind)
    found = parse(pb.Stats, reply.body).stats
    return handles.Stats(handles.Stat(s.name, s.labels, s.value) for s in found)


def metrics() -> Flow[str]:
    """The counters as text in Prometheus' format."""
    reply = yield Request(Kind.METRICS)
    return str(reply.body, "utf-8")


def trace(latest: float, own: bool) -> Flow[str]:
    """What the daemon remembers of itself, as Chrome/Perfetto JSON."""
    message = pb.TraceAsk(latest_ms=round(latest * 1000), own=own)
    reply = yield Request(Kind.TRACE, message.SerializeToString())
    return str(reply.body, "utf-8")


# ---- weights -------------------------------------------------------------------------------------


def load(
    path: str,
    name: str,
    placement: Placement | None,
    progress: OnProgress | None = None,
    share: Share = "all",
) -> Flow[handles.WeightSet]:
    """A file on the daemon's side."""
    message = pb.WeightsLoad(
        path=path, name=name, placement=rules(placement), share=shares(share)
    )
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
        if error.reason != "CACHE":  # what the daemon had on disk was damaged: it asks for all of it
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


def declared(body: bytes, body_max: int) -> int:
    """The total that a message declares of a body: 0 when one frame holds it."""
    return len(body) if len(body) > body_max else 0


def weights() -> Flow[list[handles.SetInfo]]:
    """The sets that the caller may see."""
    reply = yield Request(Kind.WEIGHTS_LIST)
    return [handles.set_of(s) for s in parse(pb.WeightSets, reply.body).sets]


def purge() -> Flow[tuple[int, int]]:
    """Contents and bytes removed from the daemon's cache on disk."""
    reply = yield Request(Kind.WEIGHTS_PURGE)
    removed = parse(pb.WeightsPurgeReply, reply.message)
    return removed.contents, removed.bytes


def drop(handle: int) -> Flow[None]:
    """Gives a set back."""
    yield Request(Kind.WEIGHTS_DROP, pb.WeightsDrop(handle=handle).SerializeToString())


# ---- state ---------------------------------------------------------------------------------------


def state_alloc(
    tensors: Sequence[TensorInfo], placement: Placement | None, body_max: int
) -> Flow[tuple[int, int, list[handles.PlacedShare]]]:
    """Handle, bytes and places of a new, zero-filled state."""
    manifest = handles.manifest_bytes(tensors)
    message = pb.StateAlloc(placement=rules(placement), manifest_bytes=declared(manifest, body_max))
    reply = yield Request(Kind.STATE_ALLOC, message.SerializeToString(), [manifest])
    made = parse(pb.StateAllocReply, reply.message)
    return made.handle, made.bytes, handles.placed_of(made.devices)


def state_tensors(spec: Mapping[str, tuple[TypeLike, Sequence[int]]]) -> list[TensorInfo]:
    """A state's tensors from {name: (type, shape)}."""
    return [
        TensorInfo(name, as_type(number), tuple(shape)) for name, (number, shape) in spec.items()
    ]


# ---- regions -------------------------------------------------------------------------------------


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


# ---- states --------------------------------------------------------------------------------------


def state_read(
    state: handles.StateInfo, name: str, regions: Regions | None = None
) -> Flow[Array]:
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


def state_write(
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


def state_save(state: handles.StateInfo) -> Flow[bytes]:
    """All of a state: the length of its manifest in eight bytes, the manifest, the contents."""
    reply = yield Request(Kind.STATE_SAVE, pb.StateSave(handle=state.handle).SerializeToString())
    head: int = parse(pb.StateSaveReply, reply.message).manifest_bytes
    return head.to_bytes(8, "little") + bytes(reply.body)


Made = tuple[int, int, list[TensorInfo], list[handles.PlacedShare]]


def state_restore(saved: Buffer, placement: Placement | None, body_max: int) -> Flow[Made]:
    """A new state with what state_save() gave."""
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


def state_fork(state: handles.StateInfo) -> Flow[Made]:
    """A copy of a state, made where it lies."""
    reply = yield Request(Kind.STATE_FORK, pb.StateFork(handle=state.handle).SerializeToString())
    made = parse(pb.StateForkReply, reply.message)
    return made.handle, made.bytes, list(state.tensors), handles.placed_of(made.devices)


def state_free(handle: int) -> Flow[None]:
    """Gives a state back."""
    yield Request(Kind.STATE_FREE, pb.StateFree(handle=handle).SerializeToString())


# ---- graphs --------------------------------------------------------------------------------------


def tap_ids(graph: Graph, taps: Taps) -> list[int]:
    """Ids of nodes, ascending; ValueError for a leaf or a glob that means none."""
    ids: set[int] = set()
    for tap in taps:
        if isinstance(tap, str):
            found = [n for n in graph.nodes if n.name and fnmatchcase(n.name, tap)]
            if not found:
                raise ValueError(f"no node is named like {tap!r}")
        elif tap.graph is not graph or tap.is_leaf:
            raise ValueError(f"{tap!r} is no node of this graph")
        else:
            found = [tap]
        ids.update(len(graph.leaves) + node.index for node in found)
    return sorted(ids)


DEBUG = {"assignments": 1, "splits": 2, "copies": 4, "realloc": 8}
DEBUG_TEXT = 16


def debug_bits(parts: Sequence[str]) -> int:
    """Submit.debug: the parts, and that the text is wanted."""
    unknown = [part for part in parts if part not in DEBUG]
    if unknown:
        raise ValueError(f"debug {', '.join(unknown)}: {', '.join(DEBUG)}")
    return sum(DEBUG[part] for part in set(parts)) | (DEBUG_TEXT if parts else 0)


@dataclass(frozen=True)
class SubmitOptions:
    """How a graph is to be planned; see Client.submit()."""

    pins: Placement | None = None
    rules: str = "headrace"
    n_copies: int = 0
    op_offload: bool = False
    strict: bool = False
    dry_run: bool = False
    fresh: bool = False
    planned: Placement | None = None
    realloc_fail: bool = False
    taps: Taps = ()
    debug: Sequence[str] = ()

    def message(self, graph: Graph, weights: Sequence[int], states: Sequence[int]) -> pb.Submit:
        """The message without the graph's length."""
        names = {"headrace": pb.RULES_HEADRACE, "ggml": pb.RULES_GGML}
        if self.rules not in names:
            raise ValueError(f"rules {self.rules!r}: headrace or ggml")
        pins = self.pins.items() if isinstance(self.pins, Mapping) else self.pins or ()
        return pb.Submit(
            digest=graph.digest,
            weights=weights,
            states=states,
            rules=names[self.rules],
            pins=[pb.Pin(pattern=pattern, device=device) for pattern, device in pins],
            n_copies=self.n_copies,
            op_offload=self.op_offload,
            strict=self.strict,
            dry_run=self.dry_run,
            fresh=self.fresh,
            planned=rules(self.planned),
            realloc_fail=self.realloc_fail,
            taps=tap_ids(graph, self.taps),
            debug=debug_bits(self.debug),
        )


def submit(handle: SubmittedGraph, body_max: int, traceparent: str | None = None) -> Flow[None]:
    """Submits, for the first time or again. A graph longer than one body is asked for first."""
    encoded = handle.graph.encode()

    def request(body: Sequence[Buffer], declared_bytes: int = 0) -> Request:
        message = pb.Submit.FromString(handle.submit_message)
        message.traceparent = chosen(traceparent)
        message.graph_bytes = declared_bytes
        if handle.weights:  # their handles are others in another session
            message.weights[:] = [weights.handle for weights in handle.weights]
        return Request(
            Kind.SUBMIT,
            message.SerializeToString(),
            body,
            again=not handle.has_states,
            remake=lambda: request(body, declared_bytes),
        )

    if len(encoded) > body_max:
        try:
            reply = yield request(())
        except NotFound:
            reply = yield request([encoded], len(encoded))
    else:
        reply = yield request([encoded])
    _submitted(handle, reply)


def _submitted(handle: SubmittedGraph, reply: Reply) -> None:
    answer = parse(pb.SubmitReply, reply.message)
    if answer.input_count != len(handle.inputs) or answer.output_count != len(handle.outputs):
        raise ProtocolError(
            f"{answer.input_count} inputs and {answer.output_count} outputs", reason="PROTOCOL"
        )
    handle.traceparent = answer.traceparent
    handle.debug_text = str(reply.body, "utf-8", "replace")
    handle.planned(answer.handle, handles.plan_of(answer))


def reserve(
    graphs: Sequence[Graph],
    options: SubmitOptions,
    weights: Sequence[int],
    states: Sequence[int],
    body_max: int,
) -> Flow[pb.ReserveReply]:
    """Memory for a set of graphs. Graphs longer than one body together are asked for by their
    digests first.
    """
    messages = [options.message(graph, weights, states) for graph in graphs]
    encoded = [graph.encode() for graph in graphs]
    if sum(map(len, encoded)) > body_max:
        try:
            known = pb.Reserve(graphs=messages)
            reply = yield Request(Kind.RESERVE, known.SerializeToString())
        except NotFound:
            pass
        else:
            return parse(pb.ReserveReply, reply.message)
    for message, data in zip(messages, encoded, strict=True):
        message.graph_bytes = len(data)
    total = sum(map(len, encoded))
    wanted = pb.Reserve(graphs=messages, body_bytes=total if total > body_max else 0)
    reply = yield Request(Kind.RESERVE, wanted.SerializeToString(), encoded)
    return parse(pb.ReserveReply, reply.message)


def release_reservation(handle: int) -> Flow[None]:
    """Drops a reservation; one that has gone already is no error."""
    try:
        yield Request(Kind.RELEASE, pb.Release(handle=handle).SerializeToString())
    except NotFound:
        return


def renewed(handle: SubmittedGraph, seen: int, body_max: int) -> Flow[None]:
    """Submits again unless somebody has done so since generation `seen`, or is about to: two handles
    of one graph would only evict others.
    """
    while not handle.begin_renewal(seen):
        if handle.generation != seen:
            return
        # The daemon plans and lists in the order in which it is asked, so this waits for the other.
        yield Request(Kind.WEIGHTS_LIST)
    try:
        yield from submit(handle, body_max)
    finally:
        handle.end_renewal()


def input_body(handle: SubmittedGraph, inputs: Inputs) -> list[memoryview]:
    """The inputs' bytes in the graph's order; not copied where they are right already."""
    if isinstance(inputs, Mapping):
        if len(inputs) != len(handle.inputs) or any(t.name not in inputs for t in handle.inputs):
            wanted = ", ".join(t.name for t in handle.inputs)
            raise ValueError(f"inputs {', '.join(inputs)}; the graph wants {wanted}")
        values: list[Any] = [inputs[t.name] for t in handle.inputs]
    else:
        values = list(inputs)
    if len(values) != len(handle.inputs):
        raise ValueError(f"{len(values)} inputs, the graph has {len(handle.inputs)}")
    return [
        as_bytes(value, tensor.type, shape, tensor.name)
        for value, tensor, shape in zip(values, handle.inputs, handle.input_shapes, strict=True)
    ]


def run(
    handle: SubmittedGraph,
    inputs: Inputs,
    outputs: Sequence[int | str] | None,
    priority: int,
    body_max: int,
    trace: bool = False,
    observe: Observe | None = None,
    regions: Regions | None = None,
    only_idle: bool = False,
    traceparent: str | None = None,
) -> Flow[handles.RunResult]:
    """One evaluation. Large inputs and outputs go through regions where there are any."""

    def show(tensor: int, raw: memoryview) -> bool:
        node = handle.graph.tensor(tensor)
        return observe is None or observe(node, handles.value_of(node, raw)) is not False

    body = input_body(handle, inputs)
    parent = chosen(traceparent)
    positions = handle.positions(outputs)
    wanted = handle.outputs if positions is None else [handle.outputs[p] for p in positions]
    memory = np.empty(sum(t.nbytes for t in wanted), np.uint8)
    seen = handle.generation
    observed = observe is not None
    if trace or observed:
        regions = None
    source = yield from lease(regions, handle.input_bytes, body, only_idle=only_idle)
    sink = yield from lease(regions, memory.nbytes, only_idle=only_idle)

    def request() -> Request:
        long = handle.input_bytes > body_max and source is None
        message = handle.run_message(positions, priority, long, trace, observed)
        if source is not None or sink is not None:
            message += pb.Run(
                input_region=source.handle if source else 0,
                output_region=sink.handle if sink else 0,
            ).SerializeToString()
        if parent:
            message += pb.Run(traceparent=parent).SerializeToString()
        return Request(
            Kind.RUN,
            message,
            body if source is None else (),
            None if trace or sink is not None else memory.data,
            observe=show if observed else None,
            again=not handle.has_states and not observed,
        )

    try:
        try:
            reply = yield request()
        except NotFound:
            if handle.released:
                raise
            if regions is not None and regions.stale:  # of a daemon that is there no more
                release_lease(regions, [source, sink])
                source = sink = None
            yield from renewed(handle, seen, body_max)
            reply = yield request()
        if sink is not None:
            memory.data[:] = sink.memory[: memory.nbytes]
    except BaseException as error:
        release_lease(regions, [source, sink], error)
        raise
    release_lease(regions, [source, sink])
    answer = parse(pb.RunReply, reply.message)
    if not trace:
        return handles.outputs_of(handle, wanted, answer, memory)
    everything = np.frombuffer(reply.body, np.uint8)
    cut = len(everything) - answer.trace_bytes
    result = handles.outputs_of(handle, wanted, answer, everything[:cut])
    result.trace = Trace(parse(pb.Trace, reply.body[cut:]), handle.graph, handle.handle)
    return result


def explain(handle: SubmittedGraph, body_max: int) -> Flow[Explanation]:
    """A plan as data."""
    seen = handle.generation
    try:
        reply = yield Request(Kind.EXPLAIN, pb.Explain(handle=handle.handle).SerializeToString())
    except NotFound:
        if handle.released:
            raise
        yield from renewed(handle, seen, body_max)
        reply = yield Request(Kind.EXPLAIN, pb.Explain(handle=handle.handle).SerializeToString())
    return Explanation(parse(pb.Explanation, reply.body))


def analyze(
    handle: SubmittedGraph, inputs: Inputs, runs: int, body_max: int
) -> Flow[Explanation]:
    """A plan as data, after so many traced runs."""
    for _ in range(runs):
        yield from run(handle, inputs, (), 0, body_max, trace=True)
    return (yield from explain(handle, body_max))


def release(handle: SubmittedGraph) -> Flow[None]:
    """Gives a graph back; one that has gone already is no error."""
    handle.released = True
    try:
        yield Request(Kind.RELEASE, pb.Release(handle=handle.handle).SerializeToString())
    except NotFound:
        return


def sync() -> Flow[None]:
    """Ends when all earlier runs of the session have ended."""
    yield Request(Kind.SYNC)
