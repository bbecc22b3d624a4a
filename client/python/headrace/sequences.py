"""Sequences: runs chained in the daemon, in one request, each fed by what earlier ones gave.

    results = client.sequence(
        [Step(decode, {"tokens": first, ...})]
        + [Step(decode, {...}, feeds={"tokens": (i, "token")}) for i in range(31)]
    )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace import handles
from headrace import headrace_pb2 as pb
from headrace.context import chosen
from headrace.errors import NotFound, ProtocolError
from headrace.flows import Flow, Request
from headrace.flows.graphs import renewed
from headrace.flows.lease import lease, release_lease
from headrace.handles import SubmittedGraph
from headrace.ops.base import Tensor
from headrace.regions import Regions
from headrace.types import Array, as_bytes
from headrace.wire import Kind, parse

# Takes a step's number and result.
OnStep = Callable[[int, handles.RunResult], None]


@dataclass(frozen=True)
class Step:
    """One run of a sequence. inputs: {name: array}, of those that are not fed. feeds: {input: (step,
    output)}, an earlier step of the sequence and one of its outputs, by name or position. outputs: as
    in run().
    """

    graph: SubmittedGraph
    inputs: Mapping[str, Any] = field(default_factory=dict)
    feeds: Mapping[str, tuple[int, int | str]] = field(default_factory=dict)
    outputs: Sequence[int | str] | None = None


def step_body(step: Step) -> list[memoryview]:
    """The bytes of the inputs that are not fed."""
    handle = step.graph
    names = [t.name for t in handle.inputs if t.name not in step.feeds]
    if sorted(names) != sorted(step.inputs) or any(
        name not in {t.name for t in handle.inputs} for name in step.feeds
    ):
        wanted = ", ".join(t.name for t in handle.inputs)
        given = ", ".join([*step.inputs, *step.feeds]) or "(none)"
        raise ValueError(f"inputs {given}; the graph wants {wanted}")
    return [
        as_bytes(step.inputs[tensor.name], tensor.type, shape, tensor.name)
        for tensor, shape in zip(handle.inputs, handle.input_shapes, strict=True)
        if tensor.name not in step.feeds
    ]


def step_message(step: Step, steps: Sequence[Step]) -> pb.Step:
    """A step as it goes over the wire."""
    position = {t.name: i for i, t in enumerate(step.graph.inputs)}
    positions = step.graph.positions(step.outputs)
    message = pb.Step(handle=step.graph.handle, outputs=positions or (), no_outputs=positions == ())
    for name, (source, output) in step.feeds.items():
        if not 0 <= source < len(steps):
            raise ValueError(f"{name} is fed by step {source} of {len(steps)}")
        number = (steps[source].graph.positions([output]) or (0,))[0]
        message.feeds.add(input=position[name], step=source, output=number)
    return message


def step_results(
    steps: Sequence[Step], reply: pb.SequenceReply, memory: Array
) -> list[handles.RunResult]:
    """Arrays over a sequence's reply."""
    if len(reply.steps) != len(steps):
        raise ProtocolError(f"{len(reply.steps)} steps of {len(steps)}", reason="PROTOCOL")
    results, at = [], 0
    for step, one in zip(steps, reply.steps, strict=True):
        size = sum(one.output_bytes)
        run_reply = pb.RunReply(
            output_bytes=one.output_bytes,
            run_ns=one.run_ns,
            slot=one.slot,
            sequence=one.sequence,
            queue_ns=reply.queue_ns,
            traceparent=reply.traceparent,
        )
        results.append(
            handles.outputs_of(step.graph, wanted_outputs(step), run_reply, memory[at : at + size])
        )
        at += size
    return results


def wanted_outputs(step: Step) -> Sequence[Tensor]:
    """The outputs that a step gives."""
    positions = step.graph.positions(step.outputs)
    if positions is None:
        return step.graph.outputs
    return [step.graph.outputs[p] for p in positions]


class _Telling:
    """Takes the replies of a sequence that answers step by step."""

    def __init__(self, steps: Sequence[Step], on_step: OnStep) -> None:
        self.steps, self.on_step = steps, on_step
        self.results: list[handles.RunResult] = []

    def take(self, message: bytes, body: memoryview) -> None:
        """The next step's reply."""
        number = len(self.results)
        if number >= len(self.steps):
            raise ProtocolError(f"more than {number} steps", reason="PROTOCOL")
        reply = parse(pb.SequenceReply, message)
        memory = np.frombuffer(body, np.uint8)
        self.results += step_results(self.steps[number : number + 1], reply, memory)
        self.on_step(number, self.results[-1])


def sequence(
    steps: Sequence[Step],
    priority: int,
    body_max: int,
    on_step: OnStep | None = None,
    regions: Regions | None = None,
) -> Flow[list[handles.RunResult]]:
    """Runs chained in the daemon, with on_step answered one by one. Graphs that were evicted are
    submitted again, once. Large inputs and outputs go through regions where there are any, but for
    outputs that are told one by one.
    """
    telling = _Telling(steps, on_step) if on_step is not None else None
    body = [part for step in steps for part in step_body(step)]
    total = sum(map(len, body))
    memory = np.empty(sum(t.nbytes for step in steps for t in wanted_outputs(step)), np.uint8)
    seen = {id(step.graph): (step.graph, step.graph.generation) for step in steps}
    source = yield from lease(regions, total, body)
    sink = yield from lease(None if telling is not None else regions, memory.nbytes)

    def request() -> Request:
        message = pb.Sequence(
            steps=[step_message(step, steps) for step in steps],
            input_bytes=total if total > body_max and source is None else 0,
            priority=priority,
            traceparent=chosen(None),
            each=telling is not None,
            input_region=source.handle if source is not None else 0,
            output_region=sink.handle if sink is not None else 0,
        )
        return Request(
            Kind.SEQUENCE,
            message.SerializeToString(),
            body if source is None else (),
            memory.data if sink is None else None,
            part=telling.take if telling is not None else None,
        )

    try:
        for _ in seen:
            try:
                reply = yield request()
                break
            except NotFound as error:
                lost = [graph for graph, _ in seen.values() if graph.graph.digest == error.digest]
                if not lost or lost[0].released:
                    raise
                if regions is not None and regions.stale:  # of a session that is there no more
                    release_lease(regions, [source, sink])
                    source = sink = None
                yield from renewed(lost[0], seen[id(lost[0])][1], body_max)
        else:
            reply = yield request()
        if sink is not None:
            memory.data[:] = sink.memory[: memory.nbytes]
    except BaseException as error:
        release_lease(regions, [source, sink], error)
        raise
    release_lease(regions, [source, sink])
    if telling is None:
        return step_results(steps, parse(pb.SequenceReply, reply.message), memory)
    telling.take(reply.message, reply.body)
    if len(telling.results) != len(steps):
        raise ProtocolError(f"{len(telling.results)} steps of {len(steps)}", reason="PROTOCOL")
    return telling.results
