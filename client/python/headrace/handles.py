"""What the daemon has told: devices, limits, weight sets, states, graphs. Plain data, no I/O."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from headrace import headrace_pb2 as pb
from headrace.errors import ProtocolError
from headrace.ops.base import GraphBase, Tensor
from headrace.trace import Trace
from headrace.types import Array, TensorInfo, Type, as_ne, as_shape, from_bytes


@dataclass(frozen=True)
class Device:
    """A device; memory in bytes. Devices of equal memory_kind share memory."""

    name: str
    description: str
    type: str
    memory_kind: str
    memory_free: int
    memory_total: int
    memory_used: int
    threads: int


@dataclass(frozen=True)
class Limits:
    """What the daemon accepts of this client."""

    message_bytes_max: int
    body_bytes_max: int
    graph_nodes_max: int
    graph_bytes_max: int
    tensor_bytes_max: int
    session_graphs_max: int
    session_runs_max: int
    session_state_bytes_max: int
    upload_bytes_max: int
    output_queue_bytes_max: int
    run_bytes_max: int
    copies_max: int
    session_states_max: int
    session_weights_max: int
    session_uploads_max: int
    session_buffer_bytes_max: int
    session_device_bytes_max: int
    connection_requests_max: int
    principal_sessions_max: int
    principal_connections_max: int
    principal_weights_max: int
    principal_states_max: int
    principal_graphs_max: int
    principal_reservations_max: int
    principal_runs_max: int
    principal_uploads_max: int
    principal_state_bytes_max: int
    principal_buffer_bytes_max: int
    principal_weight_bytes_max: int
    principal_device_bytes_max: int
    principal_output_bytes_max: int
    principal_upload_bytes_max: int
    principal_descriptors_max: int
    session_regions_max: int
    principal_regions_max: int
    taps_max: int
    pins_max: int
    weights_bytes_max: int
    weights_tensors_max: int
    metadata_bytes_max: int
    manifest_bytes_max: int
    placement_rules_max: int
    state_tensors_max: int
    principal_misses_max: int
    principal_cancels_max: int
    session_plan_bytes_max: int
    principal_plan_bytes_max: int
    session_grace_ms: int


@dataclass(frozen=True)
class Hello:
    """The daemon's answer to the hello."""

    protocol: int
    features: tuple[str, ...]
    daemon_version: str
    boot_id: bytes
    session_token: bytes
    epoch: int
    limits: Limits
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class PlacedShare:
    """A device's part in a set or a state, in bytes.

    planned: of the tensors there; requested: what the rules asked for; held: memory that was taken
    for them, with padding (none where a mapped file is used in place).
    """

    device: str
    planned_bytes: int
    requested_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class SetInfo:
    """A weight set as the list shows it."""

    handle: int
    name: str
    tensors: int
    nbytes: int
    digest: bytes
    source: str
    users: int


@dataclass(frozen=True)
class Contents:
    """What the daemon has of contents: nothing (0), a set in devices' memory that equal tensors in
    equal places can share (1), all that any set needs (2), or part of an upload of ours (3).
    """

    state: int
    received_bytes: int = 0

    @property
    def are_there(self) -> bool:
        """No transfer is needed (for equal places at least)."""
        return self.state in (1, 2)


class WeightSet(Mapping[str, TensorInfo]):
    """A set of read-only tensors that this session holds: name -> TensorInfo.

    metadata: for a GGUF file, its key-value bytes, metadata_count of them. devices: where it lives.
    """

    def __init__(
        self,
        info: SetInfo,
        tensors: Sequence[TensorInfo],
        metadata: bytes = b"",
        metadata_count: int = 0,
        already: bool = False,
        devices: Sequence[PlacedShare] = (),
    ) -> None:
        self.info = info
        self.devices = tuple(devices)
        self.metadata = metadata
        self.metadata_count = metadata_count
        self.already = already
        self._tensors = {tensor.name: tensor for tensor in tensors}

    @property
    def handle(self) -> int:
        """The daemon's handle."""
        return self.info.handle

    @property
    def name(self) -> str:
        """The set's name."""
        return self.info.name

    def __getitem__(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<WeightSet {self.name!r} {len(self)} tensors, {self.info.nbytes} bytes>"


class StateInfo(Mapping[str, TensorInfo]):
    """Writable tensors of this session: name -> TensorInfo. devices: where they live."""

    def __init__(
        self,
        handle: int,
        nbytes: int,
        tensors: Sequence[TensorInfo],
        devices: Sequence[PlacedShare] = (),
    ) -> None:
        self.devices = tuple(devices)
        self.handle = handle
        self.nbytes = nbytes
        self.tensors = tuple(tensors)
        self._index = {tensor.name: i for i, tensor in enumerate(tensors)}

    def __getitem__(self, name: str) -> TensorInfo:
        return self.tensors[self._index[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self.tensors)

    def index(self, name: str) -> int:
        """A tensor's number in the state."""
        return self._index[name]


@dataclass(frozen=True)
class DeviceShare:
    """A device's part in a plan; bytes.

    compute: of runs, when the graph is alone in its session; copies are part of it. weights, state:
    of the graph's leaves that live there, padded. scratch: of the prepared programs.
    """

    device: str
    compute_bytes: int
    splits: int
    weights_bytes: int = 0
    state_bytes: int = 0
    copies_bytes: int = 0
    scratch_bytes: int = 0


@dataclass(frozen=True)
class Realloc:
    """Compute memory of the session that a larger one replaced: on which device, and the tensor that
    needed most of it. old_bytes is 0 where there was none although something is reserved.
    """

    device: str
    tensor: int
    name: str
    old_bytes: int
    new_bytes: int


@dataclass(frozen=True)
class PlanSummary:
    """How the daemon plans to run a graph.

    origin: "hit", or why the plan is new (new, shapes, placement, epoch, evicted). reallocs: of the
    session's compute memory so far; realloc: the latest by this submit. reserved: a reservation
    holds the memory. uploads: how weights come from host memory: "" none does, "early", "in turn",
    or "memory": in turn, since memory is short.
    """

    origin: str
    first_different: int
    split_count: int
    n_copies: int
    copies_reason: str
    copied_bytes: int
    devices: tuple[DeviceShare, ...]
    fallback_nodes: int
    staging_bytes: int = 0
    reallocs: int = 0
    realloc: Realloc | None = None
    reserved: bool = False
    uploads: str = ""


@dataclass(frozen=True)
class ReservedGraph:
    """How a reserved graph will run. pipelined: several runs may be in flight at once; copies_reason
    says why, or why not.
    """

    digest: bytes
    origin: str
    split_count: int
    n_copies: int
    copies_reason: str
    pipelined: bool
    copied_bytes: int
    fallback_nodes: int


class ReservationInfo:
    """Memory held for a set of graphs. devices: what the session holds of each device's compute
    memory; graphs: in the order asked for.
    """

    def __init__(self, reply: pb.ReserveReply) -> None:
        self.handle = reply.handle
        self.reallocs = reply.reallocs
        self.devices = tuple(map(share_of, reply.devices))
        self.graphs = tuple(
            ReservedGraph(
                g.digest,
                g.origin,
                g.split_count,
                g.n_copies,
                g.copies_reason,
                g.pipelined,
                g.copied_bytes,
                g.fallback_nodes,
            )
            for g in reply.graphs
        )


class SubmittedGraph:
    """A graph that the daemon has planned. Runs name it by its handle."""

    def __init__(
        self, graph: GraphBase, submit: bytes, weights: Sequence[WeightSet] = ()
    ) -> None:
        """weights: whose handles the message names, in its order, if they may come to change."""
        self.graph = graph
        self.submit_message = submit
        self.weights = tuple(weights)
        self.has_states = bool(pb.Submit.FromString(submit).states)
        self.inputs: list[Tensor] = graph.inputs
        self.outputs: list[Tensor] = graph.outputs
        self.input_shapes = [t.shape for t in self.inputs]
        self.output_names = {t.name: i for i, t in enumerate(self.outputs) if t.name}
        self.input_bytes = sum(t.nbytes for t in self.inputs)
        self.handle = 0
        self.generation = 0
        self.renewing = False
        self.released = False
        self.plan: PlanSummary
        self.debug_text = ""
        self.traceparent = ""  # of the latest submit, where its caller has named a trace
        self.lock = threading.Lock()
        self._messages: dict[tuple[tuple[int, ...] | None, int, bool, bool], bytes] = {}

    def planned(self, handle: int, plan: PlanSummary) -> None:
        """Takes the handle of a (renewed) submit."""
        with self.lock:
            self.handle, self.plan = handle, plan
            self.generation += 1
            self._messages = {}

    def begin_renewal(self, seen: int) -> bool:
        """True for the one caller that is to submit again the graph of generation `seen`."""
        with self.lock:
            if self.renewing or self.generation != seen:
                return False
            self.renewing = True
            return True

    def end_renewal(self) -> None:
        """The graph has been submitted, or could not be."""
        with self.lock:
            self.renewing = False

    def positions(self, wanted: Sequence[int | str] | None) -> tuple[int, ...] | None:
        """Positions of the outputs asked for; None: all."""
        if wanted is None:
            return None
        return tuple(self.output_names[w] if isinstance(w, str) else w for w in wanted)

    def run_message(
        self,
        positions: tuple[int, ...] | None,
        priority: int,
        long: bool,
        trace: bool = False,
        observe: bool = False,
    ) -> bytes:
        """The RUN message; made once per choice of outputs."""
        key = (positions, priority, trace, observe)
        message = self._messages.get(key)
        if message is None:
            message = pb.Run(
                handle=self.handle,
                outputs=positions or (),
                no_outputs=positions == (),
                priority=priority,
                trace=trace,
                observe=observe,
                input_bytes=self.input_bytes if long else 0,
            ).SerializeToString()
            self._messages[key] = message
        return message


@dataclass(frozen=True, slots=True)
class ExpertUse:
    """What a run used of mixtures whose experts travel: experts that were on the device, experts
    that were copied, the moves and bytes of that.
    """

    hits: int = 0
    misses: int = 0
    copies: int = 0
    nbytes: int = 0

    @property
    def hit_rate(self) -> float:
        """Of the used experts; 1 when none was used."""
        used = self.hits + self.misses
        return self.hits / used if used else 1.0


class RunResult(Sequence[Array]):
    """The outputs of a run, by position or by name; times in seconds.

    copied_bytes: between memories, experts included. taps: how many an observed run has shown, and
    tap_s of run_s waiting for answers. trace: of a run that was asked for one.
    moves: how often reallocations have moved the graph's memory. sequence: the run's number on its
    pipeline, slot: sequence modulo copies. traceparent: of the run in the
    trace that its caller has named, with the daemon's span.
    """

    __slots__ = (
        "arrays", "copied_bytes", "experts", "moves", "names", "queue_s", "run_s", "sequence",
        "slot", "tap_s", "taps", "trace", "traceparent",
    )  # fmt: skip

    def __init__(self, arrays: list[Array], names: Mapping[str, int], reply: pb.RunReply) -> None:
        self.arrays = arrays
        self.names = names
        self.queue_s = reply.queue_ns / 1e9
        self.run_s = reply.run_ns / 1e9
        self.slot = reply.slot
        self.sequence = reply.sequence
        self.taps = reply.taps
        self.tap_s = reply.tap_ns / 1e9
        self.copied_bytes = reply.copied_bytes
        e = reply.experts
        self.experts = ExpertUse(e.hits, e.misses, e.copies, e.bytes)
        self.trace: Trace | None = None
        self.moves = reply.moves
        self.traceparent = reply.traceparent

    @overload
    def __getitem__(self, key: int | str) -> Array: ...
    @overload
    def __getitem__(self, key: slice) -> list[Array]: ...
    def __getitem__(self, key: int | str | slice) -> Array | list[Array]:
        if isinstance(key, str):
            return self.arrays[self.names[key]]
        return self.arrays[key]

    def __len__(self) -> int:
        return len(self.arrays)


@dataclass(frozen=True)
class Stat:
    """One counter or gauge."""

    name: str
    labels: str
    value: float


class Stats(tuple[Stat, ...]):
    """All counters of the daemon."""

    __slots__ = ()

    def value(self, name: str, labels: str = "") -> float:
        """The sum over the entries of that name whose labels contain `labels`; 0 without any."""
        return sum(stat.value for stat in self if stat.name == name and labels in stat.labels)

    def labelled(self, name: str) -> dict[str, float]:
        """labels -> value of the entries of that name."""
        return {stat.labels: stat.value for stat in self if stat.name == name}


# ---- messages to data ----------------------------------------------------------------------------


def device_of(d: pb.DeviceInfo) -> Device:
    """A device of the table."""
    return Device(
        d.name,
        d.description,
        d.type,
        d.memory_kind,
        d.memory_free,
        d.memory_total,
        d.memory_used,
        d.threads,
    )


def hello_of(reply: pb.HelloReply) -> Hello:
    """The hello's answer."""
    limits = Limits(**{name: getattr(reply.limits, name) for name in Limits.__dataclass_fields__})
    return Hello(
        reply.protocol,
        tuple(reply.features),
        reply.daemon_version,
        reply.boot_id,
        reply.session_token,
        reply.epoch,
        limits,
        tuple(map(device_of, reply.devices)),
    )


def set_of(s: pb.SetInfo) -> SetInfo:
    """A weight set of the list."""
    return SetInfo(s.handle, s.name, s.tensors, s.bytes, s.digest, s.source, s.users)


def placed_of(devices: Iterable[pb.PlacedBytes]) -> list[PlacedShare]:
    """What each device has of a set or a state."""
    return [
        PlacedShare(d.device, d.planned_bytes, d.requested_bytes, d.held_bytes) for d in devices
    ]


def share_of(d: pb.DeviceBytes) -> DeviceShare:
    """A device's share."""
    return DeviceShare(
        d.device,
        d.compute_bytes,
        d.splits,
        d.weights_bytes,
        d.state_bytes,
        d.copies_bytes,
        d.scratch_bytes,
    )


def plan_of(r: pb.SubmitReply) -> PlanSummary:
    """A plan's summary."""
    shares = tuple(map(share_of, r.devices))
    return PlanSummary(
        r.origin,
        r.first_different,
        r.split_count,
        r.n_copies,
        r.copies_reason,
        r.copied_bytes,
        shares,
        r.fallback_nodes,
        r.staging_bytes,
        r.reallocs,
        Realloc(
            r.realloc.device,
            r.realloc.tensor,
            r.realloc.name,
            r.realloc.old_bytes,
            r.realloc.new_bytes,
        )
        if r.HasField("realloc")
        else None,
        r.reserved,
        r.uploads,
    )


def manifest_bytes(tensors: Sequence[TensorInfo]) -> bytes:
    """Message Manifest."""
    return manifest_of_infos(tensors).SerializeToString()


def manifest_of_infos(tensors: Sequence[TensorInfo]) -> pb.Manifest:
    """The manifest of tensors."""
    names = [tensor.name.encode() for tensor in tensors]
    ne = np.array([as_ne(tensor.shape) for tensor in tensors], np.int64).reshape(-1)
    return pb.Manifest(
        name_lengths=list(map(len, names)),
        names=b"".join(names),
        type=[int(tensor.type) for tensor in tensors],
        ne=ne.tolist(),
    )


def manifest_of(m: pb.Manifest) -> list[TensorInfo]:
    """The tensors of a manifest; leading dimensions of 1 are not told apart from absent ones."""
    if len(m.ne) != 4 * len(m.type) or len(m.name_lengths) != len(m.type):
        raise ProtocolError("a manifest whose columns differ in length", reason="PROTOCOL")
    tensors, at = [], 0
    for i, length in enumerate(m.name_lengths):
        name = m.names[at : at + length].decode("utf-8", "replace")
        at += length
        tensors.append(TensorInfo(name, Type(m.type[i]), as_shape(m.ne[4 * i : 4 * i + 4])))
    return tensors


def value_of(tensor: Tensor, raw: memoryview) -> Array:
    """An array over the strided span of a tensor, without a copy."""
    data = np.frombuffer(raw, np.uint8)
    if tensor.is_contiguous:
        return from_bytes(data, tensor.type, tensor.shape)
    dtype = np.dtype("<u2") if tensor.type is Type.BF16 else tensor.type.dtype
    if dtype is not None:
        return np.ndarray(tensor.shape, dtype, data, 0, tensor.strides)
    row = tensor.type.row_bytes(tensor.shape[-1])
    return np.ndarray((*tensor.shape[:-1], row), np.uint8, data, 0, (*tensor.strides[:-1], 1))


def outputs_of(
    graph: SubmittedGraph, wanted: Sequence[Tensor], reply: pb.RunReply, memory: Array
) -> RunResult:
    """Arrays over a run's reply, without a copy."""
    sizes = [tensor.nbytes for tensor in wanted]
    if list(reply.output_bytes) != sizes or sum(sizes) != len(memory):
        raise ProtocolError(
            f"outputs of {list(reply.output_bytes)} bytes, expected {sizes}", reason="PROTOCOL"
        )
    arrays: list[Array] = []
    at = 0
    for tensor, size in zip(wanted, sizes, strict=True):
        arrays.append(from_bytes(memory[at : at + size], tensor.type, tensor.shape))
        at += size
    if wanted is graph.outputs:
        return RunResult(arrays, graph.output_names, reply)
    return RunResult(arrays, {t.name: i for i, t in enumerate(wanted) if t.name}, reply)
