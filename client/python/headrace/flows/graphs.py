"""Graphs: submitted, explained, reserved and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from headrace import handles
from headrace import headrace_pb2 as pb
from headrace.context import chosen
from headrace.errors import NotFound, ProtocolError
from headrace.explain import Explanation
from headrace.flows.lease import lease, release_lease
from headrace.flows.request import Flow, Inputs, Observe, Placement, Request, Taps, rules
from headrace.graph import Graph
from headrace.handles import SubmittedGraph
from headrace.regions import Regions
from headrace.trace import Trace
from headrace.types import as_bytes
from headrace.wire import Buffer, Kind, Reply, parse


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


def _names_like(pattern: str) -> Callable[[str], bool] | None:
    """Whether the daemon's globs match a name, which go by bytes; None: Python's do not tell."""
    if "\\" in pattern or "[^" in pattern or pattern.count("[") != pattern.count("]"):
        return None
    wanted = pattern.encode().decode("latin-1")
    return lambda name: fnmatchcase(name.encode().decode("latin-1"), wanted)


def pins_of(graphs: Sequence[Graph], pins: Placement | None) -> list[list[pb.Pin]]:
    """The pins of each graph: those that mean one of its tensors. ValueError for one that means none
    of any graph.
    """
    found: list[list[pb.Pin]] = [[] for _ in graphs]
    for pattern, device in pins.items() if isinstance(pins, Mapping) else pins or ():
        fits = _names_like(pattern)
        pin = pb.Pin(pattern=pattern, device=device)
        used = False
        for graph, own in zip(graphs, found, strict=True):
            tensors = (*graph.leaves, *graph.nodes)
            if fits is None or any(fits(tensor.name or "") for tensor in tensors):
                own.append(pin)
                used = True
        if not used:
            raise ValueError(f"pins: no tensor is named like {pattern!r}")
    return found


COPIES_MAX = 0xFFFFFFFF  # what the message can say; the daemon's limit is Limits.copies_max

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

    def message(
        self,
        graph: Graph,
        weights: Sequence[int],
        states: Sequence[int],
        pins: Sequence[pb.Pin] | None = None,
    ) -> pb.Submit:
        """The message without the graph's length. pins: this graph's, where they are known."""
        names = {"headrace": pb.RULES_HEADRACE, "ggml": pb.RULES_GGML}
        if self.rules not in names:
            raise ValueError(f"rules {self.rules!r}: headrace or ggml")
        if not 0 <= self.n_copies <= COPIES_MAX:
            raise ValueError(
                f"n_copies {self.n_copies}: 0 (the plan decides) or up to the daemon's copies_max"
            )
        return pb.Submit(
            digest=graph.digest,
            weights=weights,
            states=states,
            rules=names[self.rules],
            pins=pins_of([graph], self.pins)[0] if pins is None else pins,
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
    messages = [
        options.message(graph, weights, states, pins)
        for graph, pins in zip(graphs, pins_of(graphs, options.pins), strict=True)
    ]
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
            raise ValueError(f"inputs {', '.join(inputs) or '(none)'}; the graph wants {wanted}")
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


def analyze(handle: SubmittedGraph, inputs: Inputs, runs: int, body_max: int) -> Flow[Explanation]:
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
