"""What the daemon holds for a blocking client: states, graphs, reservations."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import numpy.typing as npt

from headrace import flows, handles
from headrace import headrace_pb2 as pb
from headrace.explain import Explanation
from headrace.flows import Inputs, Observe
from headrace.graph import Graph
from headrace.operation import Operation
from headrace.types import Array, TensorInfo

if TYPE_CHECKING:
    from headrace.client import Client

WeightSet = handles.WeightSet


class State(handles.StateInfo):
    """Writable tensors in the daemon, owned by this session."""

    def __init__(
        self,
        client: Client,
        handle: int,
        nbytes: int,
        tensors: Sequence[TensorInfo],
        devices: Sequence[handles.PlacedShare] = (),
    ) -> None:
        super().__init__(handle, nbytes, tensors, devices)
        self._client = client

    def read(self, name: str, *, timeout: float | None = None) -> Array:
        """A tensor as a new array."""
        return self._client.drive(flows.states.read(self, name, self._client.regions), timeout)

    def write(self, name: str, value: npt.ArrayLike, *, timeout: float | None = None) -> None:
        """Replaces a tensor's content."""
        self._client.drive(flows.states.write(self, name, value, self._client.regions), timeout)

    def save(self, *, timeout: float | None = None) -> bytes:
        """All of it, for Client.restore() of any daemon; as it is between two runs."""
        return self._client.drive(flows.states.save(self), timeout)

    def fork(self, *, timeout: float | None = None) -> State:
        """A state with the same tensors and contents, copied on the devices where they lie."""
        handle, size, tensors, devices = self._client.drive(flows.states.fork(self), timeout)
        return State(self._client, handle, size, tensors, devices)

    def free(self) -> None:
        """Gives the memory back; once is enough, twice is harmless."""
        self._client.drive(flows.states.free(self.handle), None)


class GraphHandle(handles.SubmittedGraph):
    """A submitted graph: run it as often as wanted, from any thread.

    plan: the summary of the latest submit. A graph that the daemon has evicted is submitted again
    by the next run, once per run.
    """

    def __init__(
        self, client: Client, graph: Graph, submit: bytes, weights: Sequence[WeightSet] = ()
    ) -> None:
        super().__init__(graph, submit, weights)
        self._client = client

    def run(
        self,
        inputs: Inputs = (),
        *,
        outputs: Sequence[int | str] | None = None,
        priority: int = 0,
        trace: bool = False,
        observe: Observe | None = None,
        traceparent: str | None = None,
        timeout: float | None = None,
    ) -> handles.RunResult:
        """Evaluates the graph and returns its outputs.

        inputs: {name: array}, or arrays in the graph's order. outputs: which, by name or position
        (None all, empty none). trace: the result's `trace` tells when each command began and ended.
        observe: is called by this thread with each tap of the graph and its value, while the run
        waits; when it returns False the run ends there with Cancelled (reason TAP_STOP). priority:
        higher first, among runs of the principal's other sessions that wait for the same devices;
        between principals the daemon's configuration decides. traceparent: the W3C trace context that
        the run belongs to; None: that of headrace.tracing(), or of the environment.
        """
        flow = flows.graphs.run(
            self, inputs, outputs, priority, self._client.body_max, trace, observe,
            self._client.regions, traceparent=traceparent,
        )  # fmt: skip
        return self._client.drive(flow, timeout)

    def run_async(
        self,
        inputs: Inputs = (),
        *,
        outputs: Sequence[int | str] | None = None,
        priority: int = 0,
        trace: bool = False,
        observe: Observe | None = None,
        traceparent: str | None = None,
        timeout: float | None = None,
    ) -> Operation[handles.RunResult]:
        """Starts a run and returns at once; inputs may be overwritten when this returns, unless
        they are longer than one frame (Client.body_max): the rest is sent while result() waits. So
        wait for each, or cancel() it. `observe` is called in result().
        """
        flow = flows.graphs.run(
            self, inputs, outputs, priority, self._client.body_max, trace, observe,
            self._client.regions, only_idle=True, traceparent=traceparent,
        )  # fmt: skip
        return self._client.begin(flow, timeout)

    def explain(self) -> str:
        """The plan as text."""
        return self.explanation().text()

    def explanation(self) -> Explanation:
        """The plan as data; with figures for each split once runs have been traced."""
        return self._client.drive(flows.graphs.explain(self, self._client.body_max), None)

    def analyze(
        self, inputs: Inputs = (), *, runs: int = 5, timeout: float | None = None
    ) -> Explanation:
        """Runs the graph so many times, traced, and returns its plan with measured figures. What
        the graph does to states is done each time.
        """
        flow = flows.graphs.analyze(self, inputs, runs, self._client.body_max)
        return self._client.drive(flow, timeout)

    def release(self) -> None:
        """Gives the graph back; once is enough, twice is harmless."""
        self._client.drive(flows.graphs.release(self), None)


class Reservation(handles.ReservationInfo):
    """Memory held for a set of graphs, until it is released; a context manager."""

    def __init__(self, client: Client, reply: pb.ReserveReply) -> None:
        super().__init__(reply)
        self._client = client

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Gives back what no submitted graph needs, after the runs in flight."""
        self._client.drive(flows.graphs.release_reservation(self.handle), None)
