"""The asyncio client, over the same wire and the same operations.

    async with await connect("unix:/run/headrace/headrace.sock") as client:
        handle = await client.submit(graph)
        results = await asyncio.gather(*(handle.run(x) for x in batches))

Cancelling a task cancels its call in the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import numpy.typing as npt

from headrace import flows, handles, operate, sequences
from headrace import headrace_pb2 as pb
from headrace.aio_connection import Connection, in_thread, open_connection
from headrace.client import TIMEOUT_S, UPLOAD_TIMEOUT_S
from headrace.errors import HeadraceError, NotFound
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
from headrace.recovery import Sets, checked, may_resume, remaining, shorter, take_over
from headrace.regions import LEAST_BYTES, Regions, Shared, sealed_contents
from headrace.types import Array, TensorInfo, TypeLike
from headrace.uploads import Content, Share, Upload, prepare
from headrace.wire import Buffer, Kind, Reply

T = TypeVar("T")


# Connects anew within so many seconds.
Reopen = Callable[[float | None], Awaitable[tuple[Connection, handles.Hello]]]


class _Driven:
    """How far an operation is: on which connection, and whether a request of it was sent again."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.repeated = False


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
        return await self._client.drive(
            flows.states.read(self, name, self._client.regions), timeout
        )

    async def write(self, name: str, value: npt.ArrayLike, *, timeout: float | None = None) -> None:
        """Replaces a tensor's content."""
        flow = flows.states.write(self, name, value, self._client.regions)
        await self._client.drive(flow, timeout)

    async def save(self, *, timeout: float | None = None) -> bytes:
        """See State.save()."""
        return await self._client.drive(flows.states.save(self), timeout)

    async def fork(self, *, timeout: float | None = None) -> AsyncState:
        """See State.fork()."""
        handle, size, tensors, devices = await self._client.drive(flows.states.fork(self), timeout)
        return AsyncState(self._client, handle, size, tensors, devices)

    async def free(self) -> None:
        """Gives the memory back; once is enough, twice is harmless."""
        await self._client.drive(flows.states.free(self.handle), None)


class AsyncGraphHandle(handles.SubmittedGraph):
    """A submitted graph; see client.GraphHandle."""

    def __init__(
        self,
        client: AsyncClient,
        graph: Graph,
        submit: bytes,
        weights: Sequence[handles.WeightSet] = (),
    ) -> None:
        super().__init__(graph, submit, weights)
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
        flow = flows.graphs.run(
            self, inputs, outputs, priority, self._client.body_max, trace, observe,
            self._client.regions, traceparent=traceparent,
        )  # fmt: skip
        return await self._client.drive(flow, timeout)

    async def explain(self) -> str:
        """The plan as text."""
        return (await self.explanation()).text()

    async def explanation(self) -> Explanation:
        """The plan as data; with figures for each split once runs have been traced."""
        return await self._client.drive(flows.graphs.explain(self, self._client.body_max), None)

    async def analyze(
        self, inputs: Inputs = (), *, runs: int = 5, timeout: float | None = None
    ) -> Explanation:
        """The plan with figures of so many traced runs; see client.GraphHandle.analyze()."""
        flow = flows.graphs.analyze(self, inputs, runs, self._client.body_max)
        return await self._client.drive(flow, timeout)

    async def release(self) -> None:
        """Gives the graph back; once is enough, twice is harmless."""
        await self._client.drive(flows.graphs.release(self), None)


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
        await self._client.drive(flows.graphs.release_reservation(self.handle), None)


class AsyncClient:
    """A connection and its session; an asynchronous context manager. Methods as in Client."""

    def __init__(
        self,
        connection: Connection,
        timeout: float | None,
        reopen: Reopen | None = None,
    ) -> None:
        """reopen: connects anew, for requests that may be sent again; see client.Client."""
        self._connection = connection
        self._reopen = reopen
        self._renewal = asyncio.Lock()
        self._sets = Sets()
        self._closed = False
        self.timeout = timeout
        self.regions: Regions | None = None
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
        self._closed = True
        self._connection.close()

    @property
    def draining(self) -> bool:
        """The daemon has said that it takes no new requests."""
        return self._connection.draining is not None

    async def drive(self, flow: Flow[T], timeout: float | None) -> T:
        """Runs an operation."""
        limit = checked(self.timeout if timeout is None else timeout)
        driven = _Driven(self._connection)
        try:
            request = flow.send(None)  # type: ignore[arg-type]
            while True:
                try:
                    reply = await self._answer(driven, request, limit)
                except HeadraceError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    async def _answer(self, driven: _Driven, request: Request, limit: float | None) -> Reply:
        """The reply to a request, which is sent once more if it may be and the connection ends."""
        if request.pause > 0:
            await asyncio.sleep(request.pause)
        deadline = None if limit is None else time.monotonic() + limit
        try:
            return await driven.connection.call(request, limit)
        except HeadraceError as error:
            once = request.may_repeat and not driven.repeated
            if not (once or request.reconnect) or not is_end_of_daemon(error):
                raise
            driven.repeated = driven.repeated or not request.reconnect
            found = await self._recover(driven.connection, deadline)
            if found is None:
                raise
        driven.connection = found
        if request.remake is not None:
            request = request.remake()
        left = remaining(deadline)
        return await found.call(request, None if left is None else max(left, 0.001))

    async def _recover(self, ended: Connection, deadline: float | None) -> Connection | None:
        """A connection in place of `ended`; see client.Client. A task that is cancelled here leaves
        nothing behind, and the next one that needs a connection makes it.
        """
        if self._reopen is None:
            return None
        try:
            async with asyncio.timeout(remaining(deadline)), self._renewal:
                if self._closed or self._connection is not ended:  # another task has been here
                    return None if self._closed else self._connection
                connection, hello = await self._reopen(remaining(deadline))
                try:
                    if hello.session_token != self.hello.session_token:
                        await self._find_again(connection, deadline)
                    if self._closed:  # meanwhile
                        connection.close()
                except BaseException:
                    connection.close()
                    raise
                self._connection, self.hello = connection, hello
                return connection
        except (HeadraceError, TimeoutError):
            return None

    async def _find_again(self, connection: Connection, deadline: float | None) -> None:
        """What belongs to the session, in a new one."""
        if self.regions is not None:
            self.regions.stale = True
            self.regions = Regions()
        other = AsyncClient(connection, None)
        for weights, again in self._sets:
            left = shorter(self.timeout, remaining(deadline))
            try:
                take_over(
                    weights, await other.drive(again, None if left is None else max(left, 0.001))
                )
            except HeadraceError:
                continue  # who needs it is told NOT_FOUND

    async def ping(self, *, timeout: float | None = None) -> None:
        """Returns when the daemon has answered."""
        await self.drive(flows.session.ping(), timeout)

    async def devices(self, *, timeout: float | None = None) -> list[handles.Device]:
        """The devices in priority order."""
        return await self.drive(flows.session.devices(), timeout)

    async def ops(self, graph: Graph, *, timeout: float | None = None) -> Array:
        """bool (nodes, devices): which device supports which node."""
        return await self.drive(flows.session.ops(graph), timeout)

    async def quota(self, *, timeout: float | None = None) -> handles.Stats:
        """What this client holds and may hold; see client.Client.quota()."""
        return await self.drive(flows.session.stats(Kind.QUOTA), timeout)

    async def stats(self, *, timeout: float | None = None) -> handles.Stats:
        """The daemon's counters."""
        return await self.drive(flows.session.stats(), timeout)

    async def metrics(self, *, timeout: float | None = None) -> str:
        """The daemon's counters as text in Prometheus' format."""
        return await self.drive(flows.session.metrics(), timeout)

    async def trace(
        self, *, latest: float = 0.0, own: bool = False, timeout: float | None = None
    ) -> str:
        """What the daemon remembers of itself; see client.Client.trace()."""
        return await self.drive(flows.session.trace(latest, own), timeout)

    async def sync(self, *, timeout: float | None = None) -> None:
        """Returns when all earlier runs of this session have ended."""
        await self.drive(flows.session.sync(), timeout)

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

    async def explain(
        self, session: int, graph: int, *, timeout: float | None = None
    ) -> Explanation:
        """The plan of a graph that plans() lists, whoever submitted it."""
        return await self.drive(operate.explain(session, graph), timeout)

    async def reload(self, *, timeout: float | None = None) -> operate.Reloaded:
        """The daemon reads its configuration again; what has changed, and what needs a new start."""
        return await self.drive(operate.reload(), timeout)

    async def drain(
        self, limit_s: float | None = None, *, timeout: float | None = None
    ) -> operate.Draining:
        """Begins the drain: no new requests; the daemon ends when those in flight have, at the latest
        after limit_s (None: as its configuration says).
        """
        return await self.drive(operate.drain(limit_s), timeout)

    async def evict(
        self, what: str, name: str = "", *, timeout: float | None = None
    ) -> operate.Evicted:
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
        share: Share = "all",
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> handles.WeightSet:
        """A GGUF file on the daemon's side, as a weight set; progress is called by the loop."""
        flow = flows.weights.load(path, name, placement, progress, share)
        weights = await self.drive(flow, UPLOAD_TIMEOUT_S if timeout is None else timeout)
        return self._sets.add(
            weights, lambda: flows.weights.load(path, name, placement, share=share)
        )

    async def put(
        self,
        name: str,
        tensors: Mapping[str, Content],
        placement: Placement | None = None,
        *,
        digest: bool | bytes = True,
        share: Share = "all",
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> handles.WeightSet:
        """Uploads arrays as a weight set; see client.Client.put()."""
        upload = await asyncio.to_thread(prepare, name, tensors, digest, share)
        limit = UPLOAD_TIMEOUT_S if timeout is None else timeout
        reconnects = self._reopen is not None
        shared = await self._shared(upload, limit) if self.regions is not None else None
        if shared is not None:
            flow = flows.weights.put_shared(upload, shared, placement, self.body_max, progress)
        else:
            flow = flows.weights.put(
                upload, placement, self.body_max, progress, reconnects=reconnects
            )
        weights = await self.drive(flow, limit)
        return self._sets.add(weights, lambda: flows.weights.load("", name, None))

    async def _shared(self, upload: Upload, limit: float) -> Shared | None:
        """Contents that the daemon lacks, where it can map them."""
        size = len(upload.pieces)
        if size < LEAST_BYTES or await self.drive(flows.weights.is_there(upload), limit):
            return None
        try:
            return await in_thread(
                sealed_contents, Shared.close, upload.pieces.slice(0, size), size
            )
        except OSError:
            return None

    async def contents(
        self, digests: Sequence[bytes], *, timeout: float | None = None
    ) -> list[handles.Contents]:
        """What the daemon has of contents with these digests."""
        return await self.drive(flows.weights.query(digests), timeout)

    async def weights(self, *, timeout: float | None = None) -> list[handles.SetInfo]:
        """The weight sets of the daemon."""
        return await self.drive(flows.weights.listed(), timeout)

    async def drop(self, weights: handles.WeightSet, *, timeout: float | None = None) -> None:
        """Gives a weight set back."""
        await self.drive(flows.weights.drop(weights.handle), timeout)

    async def state(
        self,
        spec: Mapping[str, tuple[TypeLike, Sequence[int]]],
        placement: Placement | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncState:
        """Zero-filled tensors {name: (type, shape)}."""
        tensors = flows.states.tensors(spec)
        flow = flows.states.alloc(tensors, placement, self.body_max)
        handle, size, devices = await self.drive(flow, timeout)
        return AsyncState(self, handle, size, tensors, devices)

    async def restore(
        self, saved: Buffer, placement: Placement | None = None, *, timeout: float | None = None
    ) -> AsyncState:
        """See Client.restore()."""
        flow = flows.states.restore(saved, placement, self.body_max)
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
        options = flows.graphs.SubmitOptions(
            pins,
            rules,
            n_copies,
            op_offload,
            strict,
            dry_run,
            fresh,
            planned,
            realloc_fail,
            taps,
            debug,
        )
        message = options.message(graph, [w.handle for w in weights], [s.handle for s in states])
        handle = AsyncGraphHandle(self, graph, message.SerializeToString(), weights)
        await self.drive(flows.graphs.submit(handle, self.body_max, traceparent), timeout)
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
        options = flows.graphs.SubmitOptions(pins, rules, n_copies, op_offload, strict)
        flow = flows.graphs.reserve(
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
        flow = sequences.sequence(steps, priority, self.body_max, on_step, self.regions)
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
            steps, priority, self.body_max, lambda _, result: found.put_nowait(result), self.regions
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
        flow = flows.graphs.reserve([], flows.graphs.SubmitOptions(), [], [], self.body_max)
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
    resend: bool = True,
) -> AsyncClient:
    """Connects and says hello; see client.connect()."""

    async def opened(session_token: bytes, left: float | None) -> tuple[Connection, handles.Hello]:
        end = None if left is None else time.monotonic() + left
        connection = await open_connection(address, left, tls)
        try:
            flow = flows.session.hello(name, session, credentials, session_token)
            limit = remaining(end)
            hello = await AsyncClient(connection, None).drive(
                flow, None if limit is None else max(limit, 0.001)
            )
        except BaseException:
            connection.close()
            raise
        wire, limits = connection.wire, hello.limits
        wire.body_max = limits.body_bytes_max or wire.body_max
        wire.message_max = limits.message_bytes_max or wire.message_max
        return connection, hello

    async def reopen(left: float | None) -> tuple[Connection, handles.Hello]:
        left = shorter(left, timeout)
        if may_resume(client.hello):
            with contextlib.suppress(NotFound):
                return await opened(client.hello.session_token, left)
        return await opened(b"", left)

    connection, hello = await opened(token, checked(timeout))
    client = AsyncClient(connection, timeout, reopen if resend else None)
    client.hello = hello
    if "memfd" in hello.features and connection.passes_descriptors:
        client.regions = Regions()
    return client
