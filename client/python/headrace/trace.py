"""Traces of runs, and traces as Chrome/Perfetto JSON.

result = handle.run(inputs, trace=True)
for command in result.trace: print(command.device, command.kind, command.begin_ns, command.end_ns)
trace.save("run.json", [result.trace])          # chrome://tracing, https://ui.perfetto.dev

The JSON has one track per device queue, on which a wait is as long as it held the queue up, arrows
from each record to the waits for it, and one track per slot with the runs in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from headrace import headrace_pb2 as pb
from headrace.errors import ProtocolError
from headrace.ops.base import GraphBase

DEVICES, RUNS = 1, 2  # processes of the JSON
TENSOR_KINDS = frozenset({"input", "write", "read", "copy", "experts", "output"})


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a run. Times are the daemon's monotonic nanoseconds.

    kind: wait, record, input, write, read, copy, experts, compute, tap or output. split: that it
    belongs to; split_count of the trace: behind the last. event: of waits and records. tensor: id
    of what is moved; name: its name.
    """

    kind: str
    device: str
    split: int
    event: int | None
    tensor: int | None
    name: str
    nbytes: int
    begin_ns: int
    end_ns: int

    def overlaps(self, other: Command) -> bool:
        """There is a moment at which both were under way."""
        return self.begin_ns < other.end_ns and other.begin_ns < self.end_ns


class Trace(Sequence[Command]):
    """The commands of a run that happened, in the order in which they were submitted."""

    def __init__(
        self, message: pb.Trace, graph: GraphBase | None = None, handle: int = 0
    ) -> None:
        m = message
        self.handle = handle  # tells the runs of one submitted graph from those of another
        self.sequence: int = m.sequence
        self.slot: int = m.slot
        self.n_copies: int = m.n_copies
        self.arrived_ns: int = m.arrived_ns
        self.started_ns: int = m.started_ns
        self.ended_ns: int = m.ended_ns
        self.split_count: int = m.split_count
        self.slot_event_count: int = m.slot_event_count
        self.devices: tuple[str, ...] = tuple(m.device_name)
        columns = (m.kind, m.device, m.split, m.subject, m.bytes, m.begin_ns, m.end_ns)
        if any(len(column) != len(m.kind) for column in columns):
            raise ProtocolError("columns of a trace differ in length", reason="PROTOCOL")
        names = [t.name for t in (*graph.leaves, *graph.nodes)] if graph else []
        try:
            self.commands = [
                self._command(m.kind_name[kind], self.devices[device], names, *rest)
                for kind, device, *rest in zip(*columns, strict=True)
            ]
        except IndexError:
            raise ProtocolError("a position past a list of names", reason="PROTOCOL") from None

    @staticmethod
    def _command(
        kind: str,
        device: str,
        names: Sequence[str],
        split: int,
        subject: int,
        nbytes: int,
        begin_ns: int,
        end_ns: int,
    ) -> Command:
        event = subject if kind in ("wait", "record") else None
        tensor = subject if kind in TENSOR_KINDS else None
        name = names[tensor] if tensor is not None and tensor < len(names) else ""
        return Command(kind, device, split, event, tensor, name, nbytes, begin_ns, end_ns)

    @overload
    def __getitem__(self, key: int) -> Command: ...
    @overload
    def __getitem__(self, key: slice) -> list[Command]: ...
    def __getitem__(self, key: int | slice) -> Command | list[Command]:
        return self.commands[key]

    def __len__(self) -> int:
        return len(self.commands)

    def of(
        self, kind: str, *, device: str | None = None, split: int | None = None
    ) -> list[Command]:
        """The commands of a kind, of one device or split where that is given."""
        return [
            c
            for c in self
            if c.kind == kind
            and (device is None or c.device == device)
            and (split is None or c.split == split)
        ]


# ---- Chrome's format -----------------------------------------------------------------------------


def chrome(traces: Iterable[Trace], title: str = "headrace") -> dict[str, Any]:
    """Traces of runs of one graph or several, on one axis of time."""
    ordered = sorted(traces, key=lambda trace: (trace.started_ns, trace.sequence))
    zero = min((trace.arrived_ns or trace.started_ns for trace in ordered), default=0)
    devices = list(dict.fromkeys(name for trace in ordered for name in trace.devices))
    events = list(_names(ordered, devices, title))
    for number, trace in enumerate(ordered):
        events += _run(trace, number, zero)
        events += (_slice(c, trace, number, devices, zero) for c in trace)
    events += _arrows(ordered, devices, zero)
    return {"displayTimeUnit": "ns", "traceEvents": events}


def save(path: str | Path, traces: Iterable[Trace], title: str = "headrace") -> None:
    """Writes chrome() to a file."""
    Path(path).write_text(json.dumps(chrome(traces, title)))


def _micro(ns: int, zero: int) -> float:
    return (ns - zero) / 1000


def _names(traces: Sequence[Trace], devices: Sequence[str], title: str) -> Iterator[dict[str, Any]]:
    for process, words in ((DEVICES, f"{title}: devices"), (RUNS, f"{title}: runs")):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": words}}
    for number, device in enumerate(devices):
        yield _track(DEVICES, number, device)
    for slot in sorted({trace.slot for trace in traces}):
        yield _track(RUNS, slot, f"slot {slot}")


def _track(process: int, thread: int, name: str) -> dict[str, Any]:
    return {
        "ph": "M",
        "name": "thread_name",
        "pid": process,
        "tid": thread,
        "args": {"name": name},
    }


def _run(trace: Trace, number: int, zero: int) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "cat": "run",
            "name": f"run {number}",
            "pid": RUNS,
            "tid": trace.slot,
            "ts": _micro(trace.started_ns, zero),
            "dur": _micro(trace.ended_ns, trace.started_ns),
            "args": {"run": number, "sequence": trace.sequence, "slot": trace.slot},
        }
    ]


def _slice(
    command: Command, trace: Trace, number: int, devices: Sequence[str], zero: int
) -> dict[str, Any]:
    args: dict[str, Any] = {"run": number, "slot": trace.slot, "bytes": command.nbytes}
    if command.split < trace.split_count:
        args["split"] = command.split
    if command.event is not None:
        args["event"] = command.event
    if command.tensor is not None:
        args["tensor"] = f"{command.tensor} {command.name}".strip()
    name = command.kind
    if command.kind == "compute":
        name = f"split {command.split}"
    elif command.tensor is not None:
        name = f"{command.kind} {command.name or command.tensor}"
    return {
        "ph": "X",
        "cat": command.kind,
        "name": name,
        "pid": DEVICES,
        "tid": devices.index(command.device),
        "ts": _micro(command.begin_ns, zero),
        "dur": _micro(command.end_ns, command.begin_ns),
        "args": args,
    }


def _arrows(
    traces: Sequence[Trace], devices: Sequence[str], zero: int
) -> Iterator[dict[str, Any]]:
    """From each record to the waits for it. Ends of runs are waited for by later runs."""
    number = 0
    latest: dict[tuple[int, int, int], Command] = {}
    for trace in traces:
        for command in trace:
            if command.event is None:
                continue
            shared = command.event >= trace.slot_event_count
            key = (trace.handle, -1 if shared else trace.slot, command.event)
            if command.kind == "record":
                latest[key] = command
                continue
            record = latest.get(key)
            if record is None:
                continue
            number += 1
            for phase, end, ns in (("s", record, record.begin_ns), ("f", command, command.end_ns)):
                yield {
                    "ph": phase,
                    "cat": "event",
                    "name": "event",
                    "id": number,
                    "pid": DEVICES,
                    "tid": devices.index(end.device),
                    "ts": _micro(ns, zero),
                    **({"bp": "e"} if phase == "f" else {}),
                }
