"""The blocking client. Thread-safe: any number of threads may share one Client."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from headrace import flows, handles, operate, sequences
from headrace.errors import DeadlineExceeded, HeadraceError, NotFound
from headrace.explain import Explanation
from headrace.flows import Flow, OnProgress, Placement, Taps
from headrace.graph import Graph
from headrace.held import GraphHandle, Reservation, State
from headrace.lanes import Lanes
from headrace.operation import Operation
from headrace.recovery import Sets, checked, may_resume, remaining, shorter, take_over
from headrace.regions import LEAST_BYTES, Regions
from headrace.transport import Transport, open_stream
from headrace.types import Array, TypeLike
from headrace.uploads import Content, Share, Upload, prepare
from headrace.wire import Buffer, Kind

T = TypeVar("T")
TIMEOUT_S = 60.0
UPLOAD_TIMEOUT_S = 3600.0
# Of an upload over TCP, and from how many bytes on.
LANES = 3
LANES_BYTES = 64 << 20

WeightSet = handles.WeightSet
# Connects anew within so many seconds.
Reopen = Callable[[float | None], tuple[Transport, handles.Hello]]


class Client:
    """A connection to the daemon and its session; a context manager.

    timeout: the default deadline of a call in seconds, None for none; it reaches the daemon. Every
    method that waits takes its own. One that is not above 0 is a ValueError.
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
        limit = checked(self.timeout if timeout is None else timeout)
        recover = self._recover if self._reopen is not None else None
        return Operation(self._transport, flow, limit, recover)

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
        self.drive(flows.session.ping(), timeout)

    def devices(self, *, timeout: float | None = None) -> list[handles.Device]:
        """The devices in priority order, with their memory."""
        return self.drive(flows.session.devices(), timeout)

    def ops(self, graph: Graph, *, timeout: float | None = None) -> Array:
        """bool (nodes, devices): which device supports which node of a graph."""
        return self.drive(flows.session.ops(graph), timeout)

    def quota(self, *, timeout: float | None = None) -> handles.Stats:
        """What this session and its principal hold, and what the principal may hold: session_held,
        principal_held and principal_limit, each with the label what="graphs" and so on.
        """
        return self.drive(flows.session.stats(Kind.QUOTA), timeout)

    def stats(self, *, timeout: float | None = None) -> handles.Stats:
        """The daemon's counters."""
        return self.drive(flows.session.stats(), timeout)

    def metrics(self, *, timeout: float | None = None) -> str:
        """The daemon's counters as text in Prometheus' format."""
        return self.drive(flows.session.metrics(), timeout)

    def trace(self, *, latest: float = 0.0, own: bool = False, timeout: float | None = None) -> str:
        """What the daemon remembers of itself, as Chrome/Perfetto JSON: requests with their stages,
        the commands of devices, and arrows from each request through them to its reply.

        latest: what has ended in so many seconds; 0: all of it. own: only requests of this
        principal; otherwise PermissionDenied without the right to administer.
        """
        return self.drive(flows.session.trace(latest, own), timeout)

    def sync(self, *, timeout: float | None = None) -> None:
        """Returns when all earlier runs of this session have ended."""
        self.drive(flows.session.sync(), timeout)

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

    def drain(
        self, limit_s: float | None = None, *, timeout: float | None = None
    ) -> operate.Draining:
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
        flow = flows.weights.load(path, name, placement, progress, share)
        weights = self.drive(flow, UPLOAD_TIMEOUT_S if timeout is None else timeout)
        return self._sets.add(
            weights, lambda: flows.weights.load(path, name, placement, share=share)
        )

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
        return self._sets.add(weights, lambda: flows.weights.load("", name, None))

    def _put(
        self,
        upload: Upload,
        placement: Placement | None,
        lanes: int | None,
        progress: OnProgress | None,
        timeout: float | None,
    ) -> WeightSet:
        limit = UPLOAD_TIMEOUT_S if timeout is None else timeout
        checked(limit)
        reconnects = self._reopen is not None
        if self.regions is not None and lanes is None and len(upload.pieces) >= LEAST_BYTES:
            flow = flows.weights.put_fd(
                upload, placement, self.body_max, progress, reconnects=reconnects
            )
            return self.drive(flow, limit)
        flow = flows.weights.put(upload, placement, self.body_max, progress, reconnects=reconnects)
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
        return self.drive(flows.weights.query(digests), timeout)

    def weights(self, *, timeout: float | None = None) -> list[handles.SetInfo]:
        """The weight sets of the daemon."""
        return self.drive(flows.weights.listed(), timeout)

    def purge(self, *, timeout: float | None = None) -> tuple[int, int]:
        """Empties the daemon's cache on disk; contents and bytes that were there."""
        return self.drive(flows.weights.purge(), timeout)

    def drop(self, weights: handles.WeightSet, *, timeout: float | None = None) -> None:
        """Gives a weight set back; it goes when nobody holds it any more."""
        self.drive(flows.weights.drop(weights.handle), timeout)

    def state(
        self,
        spec: Mapping[str, tuple[TypeLike, Sequence[int]]],
        placement: Placement | None = None,
        *,
        timeout: float | None = None,
    ) -> State:
        """Zero-filled tensors {name: (type, shape)}; they live as long as the session."""
        tensors = flows.states.tensors(spec)
        flow = flows.states.alloc(tensors, placement, self.body_max)
        handle, size, devices = self.drive(flow, timeout)
        return State(self, handle, size, tensors, devices)

    def restore(
        self, saved: Buffer, placement: Placement | None = None, *, timeout: float | None = None
    ) -> State:
        """A new state with the tensors and contents of State.save()."""
        flow = flows.states.restore(saved, placement, self.body_max)
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
        pins: {glob over tensor names: device}; each means one tensor at least. taps: nodes that
        observed runs show, as tensors or as globs over their names. debug: what to print of the
        plan: "assignments", "splits", "copies", "realloc"; the handle has it as debug_text, the
        daemon's log at level info. rules:
        "headrace" or "ggml". n_copies: runs in flight at once (0: the plan decides). strict: no
        node may fall back to the last device. dry_run: plan only; with planned, {glob: device}
        as in load(), also for weights and states that are not there yet: plan.devices then tells
        all bytes before anything is loaded. fresh: plan anew even if cached. realloc_fail:
        refuse, with FailedPrecondition REALLOC, what would make the session's compute memory
        grow.
        """
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
        handle = GraphHandle(self, graph, message.SerializeToString(), weights)
        self.drive(flows.graphs.submit(handle, self.body_max, traceparent), timeout)
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
        options = flows.graphs.SubmitOptions(pins, rules, n_copies, op_offload, strict)
        flow = flows.graphs.reserve(
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
        flow = flows.graphs.reserve([], flows.graphs.SubmitOptions(), [], [], self.body_max)
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
            flow = flows.session.hello(name, session, credentials, session_token)
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

    transport, hello = opened(token, checked(timeout))

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
