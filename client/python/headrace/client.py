"""The blocking client. Thread-safe: any number of threads may share one Client."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from headrace import flows, handles, operate, sequences
from headrace import headrace_pb2 as pb
from headrace.errors import DeadlineExceeded, HeadraceError, NotFound
from headrace.explain import Explanation
from headrace.flows import (
    Flow,
    Inputs,
    Observe,
    OnProgress,
    Placement,
    Request,
    Taps,
    is_end_of_daemon,
)
from headrace.graph import Graph
from headrace.recovery import Sets, may_resume, remaining, shorter, take_over
from headrace.regions import LEAST_BYTES, Regions
from headrace.transport import Pending, Transport, open_stream
from headrace.types import Array, TensorInfo, TypeLike
from headrace.uploads import Content, Share, Upload, prepare
from headrace.wire import Buffer, Kind

T = TypeVar("T")
TIMEOUT_S = 60.0
UPLOAD_TIMEOUT_S = 3600.0
# Of an upload over TCP, and from how many bytes on.
LANES = 3
LANES_BYTES = 64 << 20

WeightSet = handles.WeightSet
# Takes the connection that has ended, and the seconds that there are; another one, if there can be one.
Recover = Callable[[Transport, float | None], Transport | None]
# Connects anew within so many seconds.
Reopen = Callable[[float | None], tuple[Transport, handles.Hello]]


class Operation(Generic[T]):
    """Something under way; result() waits for it. Many may be in flight at once."""

    def __init__(
        self,
        transport: Transport,
        flow: Flow[T],
        timeout: float | None,
        recover: Recover | None = None,
    ) -> None:
        """recover: gives another connection for a request that was not answered, or None."""
        self._transport = transport
        self._flow = flow
        self._timeout = timeout
        self._recover = recover
        self._value: T | None = None
        self._error: BaseException | None = None
        self._pending: Pending | None = None
        self._repeated = False
        self._deadline: float | None = None
        self._advance(None, None)

    def _advance(self, reply: Any, error: HeadraceError | None) -> None:
        """Gives the flow its answer and sends the request that it yields next. A request that cannot
        be sent is answered with that.
        """
        self._pending = None
        try:
            while self._pending is None:
                request = self._flow.send(reply) if error is None else self._flow.throw(error)
                self._request: Request = request
                if request.pause > 0:
                    time.sleep(request.pause)
                self._deadline = None if self._timeout is None else time.monotonic() + self._timeout
                reply, error = None, self._send()
        except StopIteration as stop:
            self._value = stop.value
        except Exception as failure:
            self._error = failure

    def _send(self) -> HeadraceError | None:
        """Sends the request; over another connection if this one ends, and may be replaced."""
        try:
            self._pending = self._sent(self._timeout)
        except HeadraceError as failure:
            return self._sent_again(failure)
        return None

    def _sent_again(self, error: HeadraceError) -> HeadraceError | None:
        """Sends the request once more if it may be; else what the flow is to be told."""
        if not self._recovered(error):
            return error
        left = remaining(self._deadline)
        try:
            self._pending = self._sent(None if left is None else max(left, 0.001))
        except HeadraceError as failure:
            return failure
        return None

    def _sent(self, timeout: float | None) -> Pending:
        request = self._request
        return self._transport.start(
            request.kind,
            request.message,
            request.body,
            pull=request.pull,
            resume=request.resume,
            fds=request.fds,
            timeout=timeout,
            into=request.into,
            progress=request.progress,
            observe=request.observe,
            part=request.part,
        )

    def _recovered(self, error: HeadraceError) -> bool:
        """The request was not answered, or was refused by a daemon that ends, and may be sent once
        more: there is another connection for it.
        """
        request = self._request
        once = request.may_repeat and not self._repeated
        if self._recover is None or not (once or request.reconnect) or not is_end_of_daemon(error):
            return False
        left = remaining(self._deadline)
        found = self._recover(self._transport, left) if left is None or left > 0 else None
        self._repeated = self._repeated or not request.reconnect
        if found is None:
            return False
        self._transport = found
        if request.remake is not None:
            self._request = request.remake()
        return True

    def _turn(self, timeout: float | None, *, until_news: bool) -> None:
        """Waits for the answer to the last request, or with until_news for any callback."""
        assert self._pending is not None
        try:
            reply = self._transport.wait(self._pending, timeout, until_news=until_news)
        except HeadraceError as error:
            failure = self._sent_again(error)
            if failure is not None:
                self._advance(None, failure)
        else:
            if reply is not None:
                self._advance(reply, None)

    def step(self) -> bool:
        """Waits until a callback has been called or the operation is over; False when it is over."""
        if self._pending is not None:
            self._turn(None, until_news=True)
        return self._pending is not None

    def result(self, timeout: float | None = None) -> T:
        """The result; raises what went wrong. TimeoutError when `timeout` seconds pass first."""
        while self._pending is not None:
            self._turn(timeout, until_news=False)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def done(self) -> bool:
        """The last request has been answered, or has failed; result() will not wait long."""
        if self._pending is not None and not self._pending.done:
            self._transport.poll()
        return self._pending is None or self._pending.done

    def cancel(self) -> None:
        """Asks the daemon to stop; result() then raises Cancelled, unless it was too late."""
        if self._pending is not None:
            self._transport.cancel(self._pending)


class Lanes:
    """Further connections that send parts of an upload while the client's own does, too."""

    def __init__(
        self,
        sibling: Callable[[], Client],
        count: int,
        upload: Upload,
        placement: Placement | None,
        timeout: float,
    ) -> None:
        self._sibling = sibling
        self._upload = upload
        self._placement = placement
        self._timeout = timeout
        self._open: list[Client] = []
        self._closing = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def __enter__(self) -> Lanes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:  # else the daemon answers all of them
            with self._lock:
                self._closing = True
                for client in self._open:
                    client.close()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        """A lane that fails leaves its part to the others."""
        with contextlib.suppress(HeadraceError), self._sibling() as client:
            with self._lock:
                if self._closing:
                    return
                self._open.append(client)
            flow = flows.put(self._upload, self._placement, client.body_max, reconnects=True)
            client.drop(client.drive(flow, self._timeout))


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
        return self._client.drive(flows.state_read(self, name, self._client.regions), timeout)

    def write(self, name: str, value: npt.ArrayLike, *, timeout: float | None = None) -> None:
        """Replaces a tensor's content."""
        self._client.drive(flows.state_write(self, name, value, self._client.regions), timeout)

    def save(self, *, timeout: float | None = None) -> bytes:
        """All of it, for Client.restore() of any daemon; as it is between two runs."""
        return self._client.drive(flows.state_save(self), timeout)

    def fork(self, *, timeout: float | None = None) -> State:
        """A state with the same tensors and contents, copied on the devices where they lie."""
        handle, size, tensors, devices = self._client.drive(flows.state_fork(self), timeout)
        return State(self._client, handle, size, tensors, devices)

    def free(self) -> None:
        """Gives the memory back."""
        self._client.drive(flows.state_free(self.handle), None)


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
        flow = flows.run(
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
        flow = flows.run(
            self, inputs, outputs, priority, self._client.body_max, trace, observe,
            self._client.regions, only_idle=True, traceparent=traceparent,
        )  # fmt: skip
        return self._client.begin(flow, timeout)

    def explain(self) -> str:
        """The plan as text."""
        return self.explanation().text()

    def explanation(self) -> Explanation:
        """The plan as data; with figures for each split once runs have been traced."""
        return self._client.drive(flows.explain(self, self._client.body_max), None)

    def analyze(
        self, inputs: Inputs = (), *, runs: int = 5, timeout: float | None = None
    ) -> Explanation:
        """Runs the graph so many times, traced, and returns its plan with measured figures. What
        the graph does to states is done each time.
        """
        flow = flows.analyze(self, inputs, runs, self._client.body_max)
        return self._client.drive(flow, timeout)

    def release(self) -> None:
        """Gives the graph back."""
        self._client.drive(flows.release(self), None)


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
        self._client.drive(flows.release_reservation(self.handle), None)


class Client:
    """A connection to the daemon and its session; a context manager.

    timeout: the default deadline of a call in seconds, None for none; it reaches the daemon. Every
    method that waits takes its own.
    """

    def __init__(
        self,
        transport: Transport,
        hello: handles.Hello,
        timeout: float | None,
        sibling: Callable[[], Client] | None = None,
        lanes: int = 1,
        regions: Regions | None = None,
        reopen: Reopen | None = None,
    ) -> None:
        """sibling: makes another connection of the session; lanes: that help a large upload;
        regions: memory shared with a daemon that takes it; reopen: connects anew, for requests that
        may be sent again: in the same session where the daemon still has it, else in a new one.
        """
        self._transport = transport
        self._sibling = sibling
        self._lanes = lanes
        self._reopen = reopen
        self._renewal = threading.Lock()
        self._sets = Sets()
        self._closed = False
        self.regions = regions
        self.hello = hello
        self.timeout = timeout

    @property
    def body_max(self) -> int:
        """The longest body of one frame."""
        return self._transport.wire.body_max

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the session and what it owns end with it."""
        self._closed = True
        self._transport.close()

    @property
    def draining(self) -> bool:
        """The daemon has said that it takes no new requests."""
        self._transport.poll()
        return self._transport.draining is not None

    def begin(self, flow: Flow[T], timeout: float | None) -> Operation[T]:
        """Starts an operation."""
        recover = self._recover if self._reopen is not None else None
        return Operation(
            self._transport, flow, self.timeout if timeout is None else timeout, recover
        )

    def _recover(self, ended: Transport, left: float | None) -> Transport | None:
        """A connection in place of `ended`, within `left` seconds. In another session the weight sets of
        this client are found again, as far as they are there.
        """
        assert self._reopen is not None
        deadline = None if left is None else time.monotonic() + left
        if not self._renewal.acquire(timeout=-1 if left is None else left):
            return None
        try:
            if self._closed:
                return None
            if self._transport is not ended:  # another thread has been here
                return self._transport
            transport, hello = self._reopen(remaining(deadline))
            if hello.session_token != self.hello.session_token:
                self._find_again(transport, deadline)
            self._transport, self.hello = transport, hello
            if self._closed:  # meanwhile
                transport.close()
            return transport
        except HeadraceError:
            return None
        finally:
            self._renewal.release()

    def _find_again(self, transport: Transport, deadline: float | None) -> None:
        """What belongs to the session, in a new one."""
        if self.regions is not None:
            self.regions.stale = True
            self.regions = Regions()
        for weights, again in self._sets:
            left = shorter(self.timeout, remaining(deadline))
            try:
                take_over(weights, Operation(transport, again, left).result(left))
            except (HeadraceError, TimeoutError):
                continue  # who needs it is told NOT_FOUND

    def drive(self, flow: Flow[T], timeout: float | None) -> T:
        """Starts an operation and waits for it."""
        operation = self.begin(flow, timeout)
        try:
            return operation.result()
        except BaseException:  # interrupted, or stopped by a callback of the caller's
            operation.cancel()
            raise

    # ---- devices and counters ------------------------------------------------------------------

    def ping(self, *, timeout: float | None = None) -> None:
        """Returns when the daemon has answered."""
        self.drive(flows.ping(), timeout)

    def devices(self, *, timeout: float | None = None) -> list[handles.Device]:
        """The devices in priority order, with their memory."""
        return self.drive(flows.devices(), timeout)

    def ops(self, graph: Graph, *, timeout: float | None = None) -> Array:
        """bool (nodes, devices): which device supports which node of a graph."""
        return self.drive(flows.ops(graph), timeout)

    def quota(self, *, timeout: float | None = None) -> handles.Stats:
        """What this session and its principal hold, and what the principal may hold: session_held,
        principal_held and principal_limit, each with the label what="graphs" and so on.
        """
        return self.drive(flows.stats(Kind.QUOTA), timeout)

    def stats(self, *, timeout: float | None = None) -> handles.Stats:
        """The daemon's counters."""
        return self.drive(flows.stats(), timeout)

    def metrics(self, *, timeout: float | None = None) -> str:
        """The daemon's counters as text in Prometheus' format."""
        return self.drive(flows.metrics(), timeout)

    def trace(
        self, *, latest: float = 0.0, own: bool = False, timeout: float | None = None
    ) -> str:
        """What the daemon remembers of itself, as Chrome/Perfetto JSON: requests with their stages,
        the commands of devices, and arrows from each request through them to its reply.

        latest: what has ended in so many seconds; 0: all of it. own: only requests of this
        principal; otherwise PermissionDenied without the right to administer.
        """
        return self.drive(flows.trace(latest, own), timeout)

    def sync(self, *, timeout: float | None = None) -> None:
        """Returns when all earlier runs of this session have ended."""
        self.drive(flows.sync(), timeout)

    # ---- for who runs the daemon ----------------------------------------------------------------

    def status(self, *, timeout: float | None = None) -> operate.Status:
        """The daemon: version, state, and what is held; a principal without the right "admin" is
        shown its own.
        """
        return self.drive(operate.status(), timeout)

    def health(self, *, timeout: float | None = None) -> operate.Health:
        """Live, ready, degraded, and whether each device computes what it should."""
        return self.drive(operate.health(), timeout)

    def sessions(self, *, timeout: float | None = None) -> list[operate.Session]:
        """The sessions and what they hold."""
        return self.drive(operate.sessions(), timeout)

    def plans(self, *, timeout: float | None = None) -> list[operate.Plan]:
        """The submitted graphs with their plans."""
        return self.drive(operate.plans(), timeout)

    def quotas(self, *, timeout: float | None = None) -> list[operate.Quota]:
        """What principals hold and may hold."""
        return self.drive(operate.quotas(), timeout)

    def explain(self, session: int, graph: int, *, timeout: float | None = None) -> Explanation:
        """The plan of a graph that plans() lists, whoever submitted it."""
        return self.drive(operate.explain(session, graph), timeout)

    def reload(self, *, timeout: float | None = None) -> operate.Reloaded:
        """The daemon reads its configuration again; what has changed, and what needs a new start."""
        return self.drive(operate.reload(), timeout)

    def drain(self, limit_s: float | None = None, *, timeout: float | None = None) -> operate.Draining:
        """Begins the drain: no new requests; the daemon ends when those in flight have, at the latest
        after limit_s (None: as its configuration says).
        """
        return self.drive(operate.drain(limit_s), timeout)

    def evict(self, what: str, name: str = "", *, timeout: float | None = None) -> operate.Evicted:
        """Frees what nobody uses: "plans", "graphs", "experts", "uploads", "sessions" or
        "weights" (see Evict in the protocol). name: of a weight set; all without one.
        """
        return self.drive(operate.evict(what, name), timeout)

    # ---- weights and states --------------------------------------------------------------------

    def load(
        self,
        path: str,
        name: str = "",
        placement: Placement | None = None,
        *,
        share: Share = "all",
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> handles.WeightSet:
        """A GGUF or .safetensors file below one of the daemon's model directories, as a weight set.

        placement: which tensors live where: {glob: device} or pairs, the first match counts; device
        "fit" spreads by free memory; no match: the last device. share: "principal" for a set that nobody
        else finds or shares in. progress: is called by this thread
        with the bytes done and the bytes in all that are read from the file and copied to devices.
        """
        flow = flows.load(path, name, placement, progress, share)
        weights = self.drive(flow, UPLOAD_TIMEOUT_S if timeout is None else timeout)
        return self._sets.add(weights, lambda: flows.load(path, name, placement, share=share))

    def put(
        self,
        name: str,
        tensors: Mapping[str, Content],
        placement: Placement | None = None,
        *,
        digest: bool | bytes = True,
        share: Share = "all",
        lanes: int | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> handles.WeightSet:
        """Uploads arrays, or (type, shape, bytes) for types numpy lacks, as a weight set.

        Contents that the daemon has are not sent; when the connection breaks it is made anew, and what
        has arrived is not sent again (whole leaves of 4 MiB, unless the daemon has ended). digest: of
        the contents, where it is known (WeightSet.info.digest), so that they need not be read; False:
        they are sent in any case, and once. lanes: connections that send at once (None: as many as
        help). progress: as in load(), of what is copied to devices once everything has arrived.
        """
        weights = self._put(
            prepare(name, tensors, digest, share), placement, lanes, progress, timeout
        )
        return self._sets.add(weights, lambda: flows.load("", name, None))

    def _put(
        self,
        upload: Upload,
        placement: Placement | None,
        lanes: int | None,
        progress: OnProgress | None,
        timeout: float | None,
    ) -> WeightSet:
        limit = UPLOAD_TIMEOUT_S if timeout is None else timeout
        reconnects = self._reopen is not None
        if self.regions is not None and lanes is None and len(upload.pieces) >= LEAST_BYTES:
            flow = flows.put_fd(upload, placement, self.body_max, progress, reconnects=reconnects)
            return self.drive(flow, limit)
        flow = flows.put(upload, placement, self.body_max, progress, reconnects=reconnects)
        if lanes is None:
            lanes = self._lanes if len(upload.pieces) >= LANES_BYTES else 1
        if self._sibling is None or not upload.digest or lanes < 2:
            return self.drive(flow, limit)
        with Lanes(self._sibling, lanes - 1, upload, placement, limit):
            return self.drive(flow, limit)

    def contents(
        self, digests: Sequence[bytes], *, timeout: float | None = None
    ) -> list[handles.Contents]:
        """What the daemon has of contents with these digests."""
        return self.drive(flows.query(digests), timeout)

    def weights(self, *, timeout: float | None = None) -> list[handles.SetInfo]:
        """The weight sets of the daemon."""
        return self.drive(flows.weights(), timeout)

    def purge(self, *, timeout: float | None = None) -> tuple[int, int]:
        """Empties the daemon's cache on disk; contents and bytes that were there."""
        return self.drive(flows.purge(), timeout)

    def drop(self, weights: handles.WeightSet, *, timeout: float | None = None) -> None:
        """Gives a weight set back; it goes when nobody holds it any more."""
        self.drive(flows.drop(weights.handle), timeout)

    def state(
        self,
        spec: Mapping[str, tuple[TypeLike, Sequence[int]]],
        placement: Placement | None = None,
        *,
        timeout: float | None = None,
    ) -> State:
        """Zero-filled tensors {name: (type, shape)}; they live as long as the session."""
        tensors = flows.state_tensors(spec)
        flow = flows.state_alloc(tensors, placement, self.body_max)
        handle, size, devices = self.drive(flow, timeout)
        return State(self, handle, size, tensors, devices)

    def restore(
        self, saved: Buffer, placement: Placement | None = None, *, timeout: float | None = None
    ) -> State:
        """A new state with the tensors and contents of State.save()."""
        flow = flows.state_restore(saved, placement, self.body_max)
        handle, size, tensors, devices = self.drive(flow, timeout)
        return State(self, handle, size, tensors, devices)

    def adopt(self, state: handles.StateInfo) -> State:
        """A state of this session over this connection: one made over another connection of it, or
        before the session was resumed."""
        return State(self, state.handle, state.nbytes, state.tensors, state.devices)

    # ---- graphs --------------------------------------------------------------------------------

    def submit(
        self,
        graph: Graph,
        *,
        weights: Sequence[handles.WeightSet] = (),
        states: Sequence[handles.StateInfo] = (),
        pins: Placement | None = None,
        taps: Taps = (),
        debug: Sequence[str] = (),
        rules: str = "headrace",
        n_copies: int = 0,
        op_offload: bool = False,
        strict: bool = False,
        dry_run: bool = False,
        planned: Placement | None = None,
        fresh: bool = False,
        realloc_fail: bool = False,
        traceparent: str | None = None,
        timeout: float | None = None,
    ) -> GraphHandle:
        """Has a graph checked and planned.

        weights, states: where the leaves of those kinds are looked up by name, first set first.
        pins: {glob over tensor names: device}. taps: nodes that observed runs show, as tensors or
        as globs over their names. debug: what to print of the plan: "assignments", "splits",
        "copies", "realloc"; the handle has it as debug_text, the daemon's log at level info. rules: "headrace" or "ggml". n_copies: runs in
        flight at once (0: the plan decides). strict: no node may fall back to the last device.
        dry_run: plan only; with planned, {glob: device} as in load(), also for weights and states
        that are not there yet: plan.devices then tells all bytes before anything is loaded. fresh:
        plan anew even if cached. realloc_fail: refuse, with FailedPrecondition REALLOC, what would
        make the session's compute memory grow.
        """
        options = flows.SubmitOptions(
            pins, rules, n_copies, op_offload, strict, dry_run, fresh, planned, realloc_fail,
            taps, debug,
        )
        message = options.message(graph, [w.handle for w in weights], [s.handle for s in states])
        handle = GraphHandle(self, graph, message.SerializeToString(), weights)
        self.drive(flows.submit(handle, self.body_max, traceparent), timeout)
        return handle

    def reserve(
        self,
        graphs: Sequence[Graph],
        *,
        weights: Sequence[handles.WeightSet] = (),
        states: Sequence[handles.StateInfo] = (),
        pins: Placement | None = None,
        rules: str = "headrace",
        n_copies: int = 0,
        op_offload: bool = False,
        strict: bool = False,
        timeout: float | None = None,
    ) -> Reservation:
        """Takes the memory that a set of graphs needs (largest batch, longest context), at once.

        Submitting one of them later, with the same arguments, takes none; submitting a smaller
        graph does not make the shared memory grow. Arguments as in submit().
        """
        options = flows.SubmitOptions(pins, rules, n_copies, op_offload, strict)
        flow = flows.reserve(
            graphs, options, [w.handle for w in weights], [s.handle for s in states], self.body_max
        )
        return Reservation(self, self.drive(flow, timeout))

    def sequence(
        self,
        steps: Sequence[sequences.Step],
        *,
        on_step: sequences.OnStep | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> list[handles.RunResult]:
        """Runs chained in the daemon, in one request: the results are those of run() after run().

        A step's inputs come with it, or are outputs of earlier steps of the same type and length,
        which never leave the daemon. The first failure ends the sequence; its error names the step.
        on_step: is called by this thread with each step's number and result, in order, as soon as the
        step has ended; the daemon then replies step by step.
        """
        flow = sequences.sequence(steps, priority, self.body_max, on_step, self.regions)
        return self.drive(flow, timeout)

    def sequence_steps(
        self,
        steps: Sequence[sequences.Step],
        *,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Iterator[handles.RunResult]:
        """As sequence(), but an iterator: each step's result as soon as the step has ended. Leaving it
        early cancels the rest.
        """
        found: deque[handles.RunResult] = deque()
        flow = sequences.sequence(
            steps, priority, self.body_max, lambda _, result: found.append(result), self.regions
        )
        operation = self.begin(flow, timeout)
        try:
            while operation.step():
                while found:
                    yield found.popleft()
            yield from found
            operation.result()
        finally:
            operation.cancel()

    def reset(self, *, timeout: float | None = None) -> handles.ReservationInfo:
        """Drops all reservations of the session, gives back what no submitted graph needs, and counts
        reallocations from zero. Graphs, pins and runs in flight stay as they are.
        """
        flow = flows.reserve([], flows.SubmitOptions(), [], [], self.body_max)
        return handles.ReservationInfo(self.drive(flow, timeout))


def connect(
    address: str,
    *,
    name: str = "headrace-python",
    session: str = "",
    credentials: bytes = b"",
    token: bytes = b"",
    tls: ssl.SSLContext | None = None,
    timeout: float | None = TIMEOUT_S,
    resend: bool = True,
) -> Client:
    """Connects to unix:/path, tcp:host:port or tls:host:port and says hello.

    name: shown to the operator. session, token: joins or resumes a named session. credentials: the
    token by which the daemon knows its principal, where it asks for one. tls: how to check the daemon
    behind tls: (None: by the system's authorities; see tls.client_context()).

    resend: a request that was not answered when the daemon or the connection ended is sent once more,
    over a new connection and within the deadline of its call, if doing it twice is the same as doing
    it once: what only asks, loads by path or name, and runs of graphs without states, whose weights
    and plans are found again first; put() goes on where it was. The session is the same where the
    daemon still has it (session_grace), else a new one: states of the old one are gone. Everything
    else fails with ConnectionLost.
    """

    def opened(session_token: bytes, left: float | None) -> tuple[Transport, handles.Hello]:
        end = None if left is None else time.monotonic() + left
        transport = Transport(open_stream(address, left, tls))
        try:
            flow = flows.hello(name, session, credentials, session_token)
            limit = None if end is None else max(end - time.monotonic(), 0.001)
            hello = Operation(transport, flow, limit).result(limit)
        except TimeoutError:
            transport.close()
            raise DeadlineExceeded(f"{address} did not answer", reason="DEADLINE") from None
        except BaseException:
            transport.close()
            raise
        transport.wire.body_max = hello.limits.body_bytes_max or transport.wire.body_max
        transport.wire.message_max = hello.limits.message_bytes_max or transport.wire.message_max
        return transport, hello

    def reopen(left: float | None) -> tuple[Transport, handles.Hello]:
        left = shorter(left, timeout)
        if may_resume(client.hello):
            with contextlib.suppress(NotFound):
                return opened(client.hello.session_token, left)
        return opened(b"", left)

    transport, hello = opened(token, timeout)

    def sibling() -> Client:
        """Another connection of the same session."""
        return connect(
            address, name=name, credentials=credentials, token=client.hello.session_token, tls=tls,
            timeout=timeout,
        )  # fmt: skip

    is_local = address.startswith("unix:")
    client = Client(
        transport,
        hello,
        timeout,
        sibling,
        1 if is_local else LANES,
        Regions() if is_local and "memfd" in hello.features else None,
        reopen if resend else None,
    )
    return client
