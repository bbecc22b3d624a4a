"""The asyncio client, over the same wire and the same operations.

    async with await connect("unix:/run/headrace/headrace.sock") as client:
        handle = await client.submit(graph)
        results = await asyncio.gather(*(handle.run(x) for x in batches))

Cancelling a task cancels its call in the daemon.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import numpy.typing as npt

from headrace import flows, handles, operate, sequences
from headrace import headrace_pb2 as pb
from headrace.client import TIMEOUT_S, UPLOAD_TIMEOUT_S
from headrace.errors import ConnectionLost, DeadlineExceeded, HeadraceError, ProtocolError
from headrace.explain import Explanation
from headrace.flows import (
    Flow,
    Inputs,
    Observe,
    OnPart,
    OnProgress,
    OnTap,
    Placement,
    Request,
    Taps,
)
from headrace.graph import Graph
from headrace.tls import client_context
from headrace.transport import GRACE_S, open_socket, tls_host
from headrace.types import Array, TensorInfo, TypeLike
from headrace.uploads import Content, prepare
from headrace.wire import (
    Buffer,
    Call,
    Credit,
    Failure,
    GoingAway,
    Kind,
    Part,
    Progress,
    Reply,
    Tapped,
    Wire,
)

T = TypeVar("T")


class _Connection(asyncio.BufferedProtocol):
    """A Wire as asyncio protocol: receives straight into the wire's buffers."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.draining: GoingAway | None = None
        self.failure: HeadraceError | None = None
        self._transport: asyncio.Transport | None = None
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._uploads: dict[int, Call] = {}
        self._watchers: dict[int, OnProgress] = {}
        self._observers: dict[int, OnTap] = {}
        self._parts: dict[int, OnPart] = {}
        self._writable = asyncio.Event()
        self._writable.set()

    # ---- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(ConnectionLost(str(exc or "the daemon closed the connection"), reason="EOF"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.wire.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            events = self.wire.received(nbytes)
        except ProtocolError as error:
            self.fail(error)
            return
        for event in events:
            if isinstance(event, GoingAway):
                self.draining = event
            elif isinstance(event, Credit):
                self._upload(event.call_id)
            elif isinstance(event, Progress):
                self._tell(event)
            elif isinstance(event, Tapped):
                self._show(event)
            elif isinstance(event, Part):
                self._take(event)
            elif isinstance(event, Failure) and event.call_id == 0:
                self.fail(event.error)
            else:
                self._end(event)

    # ---- our side ------------------------------------------------------------------------------

    def fail(self, failure: HeadraceError) -> None:
        """Ends the connection for every call; the first failure counts."""
        self.failure = self.failure or failure
        self._writable.set()
        if self._transport is not None:
            self._transport.close()
        for future in self._replies.values():
            if not future.done():
                future.set_exception(self.failure)
        self._replies.clear()
        self._uploads.clear()
        self._watchers.clear()
        self._observers.clear()
        self._parts.clear()

    def _show(self, event: Tapped) -> None:
        """Shows a tap and answers; what a callback raises ends its call."""
        observer = self._observers.get(event.call_id)
        try:
            go_on = observer is None or observer(event.tensor, event.body)
        except Exception as error:
            future = self._replies.get(event.call_id)
            if future is not None and not future.done():
                future.set_exception(error)
            return
        self._write(self.wire.answer(event.call_id, event.tap, stop=not go_on))

    def _tell(self, event: Progress) -> None:
        """Passes progress on; what a callback raises ends its call."""
        watcher = self._watchers.get(event.call_id)
        if watcher is None:
            return
        try:
            watcher(event.done, event.total)
        except Exception as error:
            del self._watchers[event.call_id]
            future = self._replies.get(event.call_id)
            if future is not None and not future.done():
                future.set_exception(error)

    def _take(self, event: Part) -> None:
        """Passes one of several replies on; what a callback raises ends its call."""
        taker = self._parts.get(event.call_id)
        if taker is None:
            return
        try:
            taker(event.message, event.body)
        except Exception as error:
            del self._parts[event.call_id]
            future = self._replies.get(event.call_id)
            if future is not None and not future.done():
                future.set_exception(error)

    def _end(self, event: Reply | Failure) -> None:
        self._uploads.pop(event.call_id, None)
        self._watchers.pop(event.call_id, None)
        self._observers.pop(event.call_id, None)
        self._parts.pop(event.call_id, None)
        future = self._replies.pop(event.call_id, None)
        if future is None or future.done():
            return
        if isinstance(event, Reply):
            future.set_result(event)
        else:
            future.set_exception(event.error)

    def _upload(self, call_id: int) -> None:
        """Sends what credit allows; the daemon's credit bounds what asyncio buffers."""
        call = self._uploads.get(call_id)
        while call is not None and call.uploading:
            frames = self.wire.upload(call)
            if not frames:
                return
            self._write(frames)
        self._uploads.pop(call_id, None)

    def _write(self, frames: Sequence[Buffer]) -> None:
        assert self._transport is not None
        self._transport.writelines(frames)

    async def call(self, request: Request, timeout: float | None) -> Reply:
        """Sends a request and waits for its reply."""
        await self._writable.wait()
        if self.failure is not None:
            raise self.failure
        timeout_ms = 0 if timeout is None else min(max(1, int(timeout * 1000)), 0xFFFFFFFF)
        call = self.wire.call(
            request.kind,
            request.message,
            request.body,
            pull=request.pull,
            resume=request.resume,
            timeout_ms=timeout_ms,
            into=request.into,
            parts=request.part is not None,
        )
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[call.call_id] = future
        if call.uploading:
            self._uploads[call.call_id] = call
        if request.progress is not None:
            self._watchers[call.call_id] = request.progress
        if request.observe is not None:
            self._observers[call.call_id] = request.observe
        if request.part is not None:
            self._parts[call.call_id] = request.part
        self._write(call.frames)
        try:
            return await asyncio.wait_for(future, None if timeout is None else timeout + GRACE_S)
        except TimeoutError:
            self._abandon(call)
            raise DeadlineExceeded("no answer within the deadline", reason="DEADLINE") from None
        except HeadraceError:
            raise
        except BaseException:  # cancelled, or stopped by a callback of the caller's
            self._abandon(call)
            raise

    def _abandon(self, call: Call) -> None:
        self._replies.pop(call.call_id, None)
        self._uploads.pop(call.call_id, None)
        self._watchers.pop(call.call_id, None)
        self._observers.pop(call.call_id, None)
        self._parts.pop(call.call_id, None)
        if self.failure is None and call.call_id in self.wire.calls:
            self.wire.abandon(call.call_id)
            self._write(self.wire.cancel(call.call_id))


class AsyncState(handles.StateInfo):
    """Writable tensors in the daemon, owned by this session."""

    def __init__(
        self,
        client: AsyncClient,
        handle: int,
        nbytes: int,
        tensors: Sequence[TensorInfo],
        devices: Sequence[handles.PlacedShare] = (),
    ) -> None:
        super().__init__(handle, nbytes, tensors, devices)
        self._client = client

    async def read(self, name: str, *, timeout: float | None = None) -> Array:
        """A tensor as a new array."""
        return await self._client.drive(flows.state_read(self, name), timeout)

    async def write(self, name: str, value: npt.ArrayLike, *, timeout: float | None = None) -> None:
        """Replaces a tensor's content."""
        await self._client.drive(flows.state_write(self, name, value), timeout)

    async def save(self, *, timeout: float | None = None) -> bytes:
        """See State.save()."""
        return await self._client.drive(flows.state_save(self), timeout)

    async def fork(self, *, timeout: float | None = None) -> AsyncState:
        """See State.fork()."""
        handle, size, tensors, devices = await self._client.drive(flows.state_fork(self), timeout)
        return AsyncState(self._client, handle, size, tensors, devices)

    async def free(self) -> None:
        """Gives the memory back."""
        await self._client.drive(flows.state_free(self.handle), None)


class AsyncGraphHandle(handles.SubmittedGraph):
    """A submitted graph; see client.GraphHandle."""

    def __init__(self, client: AsyncClient, graph: Graph, submit: bytes) -> None:
        super().__init__(graph, submit)
        self._client = client

    async def run(
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
        """Evaluates the graph and returns its outputs; see client.GraphHandle.run()."""
        flow = flows.run(
            self, inputs, outputs, priority, self._client.body_max, trace, observe,
            traceparent=traceparent,
        )  # fmt: skip
        return await self._client.drive(flow, timeout)

    async def explain(self) -> str:
        """The plan as text."""
        return (await self.explanation()).text()

    async def explanation(self) -> Explanation:
        """The plan as data; with figures for each split once runs have been traced."""
        return await self._client.drive(flows.explain(self, self._client.body_max), None)

    async def analyze(
        self, inputs: Inputs = (), *, runs: int = 5, timeout: float | None = None
    ) -> Explanation:
        """The plan with figures of so many traced runs; see client.GraphHandle.analyze()."""
        flow = flows.analyze(self, inputs, runs, self._client.body_max)
        return await self._client.drive(flow, timeout)

    async def release(self) -> None:
        """Gives the graph back."""
        await self._client.drive(flows.release(self), None)


class AsyncReservation(handles.ReservationInfo):
    """Memory held for a set of graphs; see client.Reservation."""

    def __init__(self, client: AsyncClient, reply: pb.ReserveReply) -> None:
        super().__init__(reply)
        self._client = client

    async def __aenter__(self) -> AsyncReservation:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release()

    async def release(self) -> None:
        """Gives back what no submitted graph needs, after the runs in flight."""
        await self._client.drive(flows.release_reservation(self.handle), None)


class AsyncClient:
    """A connection and its session; an asynchronous context manager. Methods as in Client."""

    def __init__(self, connection: _Connection, timeout: float | None) -> None:
        self._connection = connection
        self.timeout = timeout
        self.hello: handles.Hello

    @property
    def body_max(self) -> int:
        """The longest body of one frame."""
        return self._connection.wire.body_max

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the session and what it owns end with it."""
        self._connection.fail(ConnectionLost("the connection was closed", reason="CLOSED"))

    @property
    def draining(self) -> bool:
        """The daemon has said that it takes no new requests."""
        return self._connection.draining is not None

    async def drive(self, flow: Flow[T], timeout: float | None) -> T:
        """Runs an operation."""
        limit = self.timeout if timeout is None else timeout
        try:
            request = flow.send(None)  # type: ignore[arg-type]
            while True:
                try:
                    reply = await self._connection.call(request, limit)
                except HeadraceError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def ping(self, *, timeout: float | None = None) -> None:
        """Returns when the daemon has answered."""
        await self.drive(flows.ping(), timeout)

    async def devices(self, *, timeout: float | None = None) -> list[handles.Device]:
        """The devices in priority order."""
        return await self.drive(flows.devices(), timeout)

    async def ops(self, graph: Graph, *, timeout: float | None = None) -> Array:
        """bool (nodes, devices): which device supports which node."""
        return await self.drive(flows.ops(graph), timeout)

    async def quota(self, *, timeout: float | None = None) -> handles.Stats:
        """What this client holds and may hold; see client.Client.quota()."""
        return await self.drive(flows.stats(Kind.QUOTA), timeout)

    async def stats(self, *, timeout: float | None = None) -> handles.Stats:
        """The daemon's counters."""
        return await self.drive(flows.stats(), timeout)

    async def metrics(self, *, timeout: float | None = None) -> str:
        """The daemon's counters as text in Prometheus' format."""
        return await self.drive(flows.metrics(), timeout)

    async def trace(
        self, *, latest: float = 0.0, own: bool = False, timeout: float | None = None
    ) -> str:
        """What the daemon remembers of itself; see client.Client.trace()."""
        return await self.drive(flows.trace(latest, own), timeout)

    async def sync(self, *, timeout: float | None = None) -> None:
        """Returns when all earlier runs of this session have ended."""
        await self.drive(flows.sync(), timeout)

    # ---- for who runs the daemon ----------------------------------------------------------------

    async def status(self, *, timeout: float | None = None) -> operate.Status:
        """The daemon: version, state, and what is held; a principal without the right "admin" is
        shown its own.
        """
        return await self.drive(operate.status(), timeout)

    async def health(self, *, timeout: float | None = None) -> operate.Health:
        """Live, ready, degraded, and whether each device computes what it should."""
        return await self.drive(operate.health(), timeout)

    async def sessions(self, *, timeout: float | None = None) -> list[operate.Session]:
        """The sessions and what they hold."""
        return await self.drive(operate.sessions(), timeout)

    async def plans(self, *, timeout: float | None = None) -> list[operate.Plan]:
        """The submitted graphs with their plans."""
        return await self.drive(operate.plans(), timeout)

    async def quotas(self, *, timeout: float | None = None) -> list[operate.Quota]:
        """What principals hold and may hold."""
        return await self.drive(operate.quotas(), timeout)

    async def explain(self, session: int, graph: int, *, timeout: float | None = None) -> Explanation:
        """The plan of a graph that plans() lists, whoever submitted it."""
        return await self.drive(operate.explain(session, graph), timeout)

    async def reload(self, *, timeout: float | None = None) -> operate.Reloaded:
        """The daemon reads its configuration again; what has changed, and what needs a new start."""
        return await self.drive(operate.reload(), timeout)

    async def drain(self, limit_s: float | None = None, *, timeout: float | None = None) -> operate.Draining:
        """Begins the drain: no new requests; the daemon ends when those in flight have, at the latest
        after limit_s (None: as its configuration says).
        """
        return await self.drive(operate.drain(limit_s), timeout)

    async def evict(self, what: str, name: str = "", *, timeout: float | None = None) -> operate.Evicted:
        """Frees what nobody uses: "plans", "graphs", "experts", "uploads", "sessions" or
        "weights" (see Evict in the protocol). name: of a weight set; all without one.
        """
        return await self.drive(operate.evict(what, name), timeout)

    async def load(
        self,
        path: str,
        name: str = "",
        placement: Placement | None = None,
        *,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> handles.WeightSet:
        """A GGUF file on the daemon's side, as a weight set; progress is called by the loop."""
        flow = flows.load(path, name, placement, progress)
        return await self.drive(flow, UPLOAD_TIMEOUT_S if timeout is None else timeout)

    async def put(
        self,
        name: str,
        tensors: Mapping[str, Content],
        placement: Placement | None = None,
        *,
        digest: bool | bytes = True,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> handles.WeightSet:
        """Uploads arrays as a weight set; see client.Client.put()."""
        upload = await asyncio.to_thread(prepare, name, tensors, digest)
        flow = flows.put(upload, placement, self.body_max, progress)
        return await self.drive(flow, UPLOAD_TIMEOUT_S if timeout is None else timeout)

    async def contents(
        self, digests: Sequence[bytes], *, timeout: float | None = None
    ) -> list[handles.Contents]:
        """What the daemon has of contents with these digests."""
        return await self.drive(flows.query(digests), timeout)

    async def weights(self, *, timeout: float | None = None) -> list[handles.SetInfo]:
        """The weight sets of the daemon."""
        return await self.drive(flows.weights(), timeout)

    async def drop(self, weights: handles.WeightSet, *, timeout: float | None = None) -> None:
        """Gives a weight set back."""
        await self.drive(flows.drop(weights.handle), timeout)

    async def state(
        self,
        spec: Mapping[str, tuple[TypeLike, Sequence[int]]],
        placement: Placement | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncState:
        """Zero-filled tensors {name: (type, shape)}."""
        tensors = flows.state_tensors(spec)
        flow = flows.state_alloc(tensors, placement, self.body_max)
        handle, size, devices = await self.drive(flow, timeout)
        return AsyncState(self, handle, size, tensors, devices)

    async def restore(
        self, saved: Buffer, placement: Placement | None = None, *, timeout: float | None = None
    ) -> AsyncState:
        """See Client.restore()."""
        flow = flows.state_restore(saved, placement, self.body_max)
        handle, size, tensors, devices = await self.drive(flow, timeout)
        return AsyncState(self, handle, size, tensors, devices)

    def adopt(self, state: handles.StateInfo) -> AsyncState:
        """A state of this session over this connection; see Client.adopt()."""
        return AsyncState(self, state.handle, state.nbytes, state.tensors, state.devices)

    async def submit(
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
    ) -> AsyncGraphHandle:
        """Has a graph checked and planned; see client.Client.submit()."""
        options = flows.SubmitOptions(
            pins, rules, n_copies, op_offload, strict, dry_run, fresh, planned, realloc_fail,
            taps, debug,
        )
        message = options.message(graph, [w.handle for w in weights], [s.handle for s in states])
        handle = AsyncGraphHandle(self, graph, message.SerializeToString())
        await self.drive(flows.submit(handle, self.body_max, traceparent), timeout)
        return handle

    async def reserve(
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
    ) -> AsyncReservation:
        """Takes the memory that a set of graphs needs; see client.Client.reserve()."""
        options = flows.SubmitOptions(pins, rules, n_copies, op_offload, strict)
        flow = flows.reserve(
            graphs, options, [w.handle for w in weights], [s.handle for s in states], self.body_max
        )
        return AsyncReservation(self, await self.drive(flow, timeout))

    async def sequence(
        self,
        steps: Sequence[sequences.Step],
        *,
        on_step: sequences.OnStep | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> list[handles.RunResult]:
        """Runs chained in the daemon, in one request; see client.Client.sequence(). on_step is called
        by the loop.
        """
        flow = sequences.sequence(steps, priority, self.body_max, on_step)
        return await self.drive(flow, timeout)

    async def sequence_steps(
        self,
        steps: Sequence[sequences.Step],
        *,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[handles.RunResult]:
        """As sequence(), but each step's result as soon as the step has ended. Leaving it early
        (aclose()) cancels the rest.
        """
        found: asyncio.Queue[handles.RunResult | None] = asyncio.Queue()
        flow = sequences.sequence(
            steps, priority, self.body_max, lambda _, result: found.put_nowait(result)
        )
        work = asyncio.ensure_future(self.drive(flow, timeout))
        work.add_done_callback(lambda _: found.put_nowait(None))
        try:
            while (result := await found.get()) is not None:
                yield result
            await work
        finally:
            work.cancel()

    async def reset(self, *, timeout: float | None = None) -> handles.ReservationInfo:
        """Drops all reservations of the session; see client.Client.reset()."""
        flow = flows.reserve([], flows.SubmitOptions(), [], [], self.body_max)
        return handles.ReservationInfo(await self.drive(flow, timeout))


async def connect(
    address: str,
    *,
    name: str = "headrace-python",
    session: str = "",
    credentials: bytes = b"",
    token: bytes = b"",
    tls: ssl.SSLContext | None = None,
    timeout: float | None = TIMEOUT_S,
) -> AsyncClient:
    """Connects and says hello; see client.connect()."""
    loop = asyncio.get_running_loop()
    sock = await loop.run_in_executor(None, open_socket, address, timeout)
    host = tls_host(address)
    try:
        _, connection = await loop.create_connection(
            _Connection,
            sock=sock,
            ssl=(tls or client_context()) if host is not None else None,
            server_hostname=host,
            ssl_handshake_timeout=timeout if host is not None else None,
        )
    except OSError as error:
        raise ConnectionLost(f"{address}: {error}", reason="TLS") from error
    client = AsyncClient(connection, timeout)
    try:
        client.hello = await client.drive(flows.hello(name, session, credentials, token), timeout)
    except BaseException:
        client.close()
        raise
    wire, limits = connection.wire, client.hello.limits
    wire.body_max = limits.body_bytes_max or wire.body_max
    wire.message_max = limits.message_bytes_max or wire.message_max
    return client
