"""What who runs the daemon asks and orders: data, and the operations without I/O (see flows.py).

Who lacks the right "admin" is shown what its own principal holds; reload, drain and evict need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from headrace import headrace_pb2 as pb
from headrace.explain import Explanation
from headrace.flows import Flow, Request
from headrace.wire import Kind, parse

EVICTABLE = ("plans", "graphs", "experts", "uploads", "sessions", "weights")

T = TypeVar("T")


@dataclass(frozen=True)
class Status:
    """The daemon, and what is held: by all (whole), or by the principal that asks."""

    version: str
    boot_id: bytes
    pid: int
    uptime_ms: int
    state: str
    ready: bool
    degraded: bool
    words: str
    principal: str
    whole: bool
    connections: int
    sessions: int
    requests: int
    runs: int
    graphs: int
    weights: int
    states: int
    weight_bytes: int
    state_bytes: int
    device_bytes: int
    buffer_bytes: int
    upload_bytes: int
    epoch: int
    devices: int
    devices_lost: int


@dataclass(frozen=True)
class DeviceHealth:
    """Whether a device computes what it should: starting, ok, late, wrong, lost."""

    device: str
    health: str
    required: bool
    age_ms: int
    beats: int
    failures: int


@dataclass(frozen=True)
class Health:
    """Ready: new requests are taken and required devices compute; words say why not."""

    live: bool
    ready: bool
    degraded: bool
    words: str
    devices: tuple[DeviceHealth, ...]


@dataclass(frozen=True)
class Session:
    """A session and what it holds. closing_ms: it has no connection and ends after so long."""

    number: int
    principal: str
    name: str
    client: str
    connections: int
    closing_ms: int
    runs: int
    graphs: int
    states: int
    weights: int
    device_bytes: int
    state_bytes: int
    weight_bytes: int
    buffer_bytes: int


@dataclass(frozen=True)
class Plan:
    """A submitted graph with its plan. Session and graph are what explain() takes."""

    session: int
    graph: int
    principal: str
    digest: str
    nodes: int
    splits: int
    n_copies: int
    fallback_nodes: int
    copied_bytes: int
    own_bytes: int
    origin: str
    in_use: bool
    expert_bytes: int
    devices: str


@dataclass(frozen=True)
class Held:
    """What a principal holds of something, and may hold."""

    held: int
    limit: int


@dataclass(frozen=True)
class Quota:
    """What a principal holds and may hold, by kind ("graphs", "state_bytes")."""

    principal: str
    permissions: tuple[str, ...]
    weight: int
    items: dict[str, Held]


@dataclass(frozen=True)
class Reloaded:
    """Keys of the configuration: those that have changed, and those that need a new start."""

    applied: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class Draining:
    """A drain has begun: what was in flight, and how long it may last."""

    requests: int
    connections: int
    limit_ms: int


@dataclass(frozen=True)
class Evicted:
    """What an eviction has freed, and what was in use."""

    entries: int
    bytes: int
    kept_entries: int
    kept_bytes: int


def _taken(cls: Callable[..., T], message: Any) -> T:
    """A dataclass from the fields of a message that have its fields' names."""
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    return cls(**{name: getattr(message, name) for name in names})


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def status() -> Flow[Status]:
    """The daemon as a whole."""
    reply = yield Request(Kind.STATUS)
    return _taken(Status, parse(pb.StatusReply, reply.message))


def health() -> Flow[Health]:
    """Live, ready, degraded, and each device."""
    reply = yield Request(Kind.HEALTH)
    found = parse(pb.HealthReply, reply.message)
    devices = tuple(_taken(DeviceHealth, device) for device in found.devices)
    return Health(found.live, found.ready, found.degraded, found.words, devices)


def sessions() -> Flow[list[Session]]:
    """The sessions, page by page."""
    rows: list[Session] = []
    after = 0
    while True:
        reply = yield Request(Kind.SESSIONS, pb.Sessions(after=after).SerializeToString())
        rows += (_taken(Session, row) for row in parse(pb.SessionList, reply.body).sessions)
        after = parse(pb.SessionsReply, reply.message).next
        if not after:
            return rows


def plans() -> Flow[list[Plan]]:
    """The submitted graphs, page by page."""
    rows: list[Plan] = []
    ask = pb.Plans()
    while True:
        reply = yield Request(Kind.PLANS, ask.SerializeToString())
        rows += (_taken(Plan, row) for row in parse(pb.PlanList, reply.body).plans)
        next_page = parse(pb.PlansReply, reply.message)
        if not next_page.next_session and not next_page.next_graph:
            return rows
        ask = pb.Plans(after_session=next_page.next_session, after_graph=next_page.next_graph)


def _held(items: Iterable[pb.QuotaItem]) -> dict[str, Held]:
    return {item.what: Held(item.held, item.limit) for item in items}


def quotas() -> Flow[list[Quota]]:
    """The principals, page by page."""
    rows: list[Quota] = []
    after = 0
    while True:
        reply = yield Request(Kind.QUOTAS, pb.Quotas(after=after).SerializeToString())
        rows += (
            Quota(row.principal, _words(row.permissions), row.weight, _held(row.items))
            for row in parse(pb.QuotaList, reply.body).principals
        )
        after = parse(pb.QuotasReply, reply.message).next
        if not after:
            return rows


def reload() -> Flow[Reloaded]:
    """The daemon reads its configuration again."""
    reply = yield Request(Kind.RELOAD)
    found = parse(pb.ReloadReply, reply.message)
    return Reloaded(_words(found.applied), _words(found.kept))


def drain(limit_s: float | None) -> Flow[Draining]:
    """The daemon takes no new requests and ends. ValueError for a limit below 0."""
    if limit_s is not None and not limit_s >= 0:
        raise ValueError(f"limit_s {limit_s}: seconds, not below 0")
    limit_ms = 0 if limit_s is None else max(1, round(limit_s * 1000))
    reply = yield Request(Kind.DRAIN, pb.Drain(limit_ms=limit_ms).SerializeToString())
    return _taken(Draining, parse(pb.DrainReply, reply.message))


def evict(what: str, name: str) -> Flow[Evicted]:
    """Frees what nobody uses, however many requests it takes."""
    entries = nbytes = 0
    while True:
        reply = yield Request(Kind.EVICT, pb.Evict(what=what, name=name).SerializeToString())
        found = parse(pb.EvictReply, reply.message)
        entries += found.entries
        nbytes += found.bytes
        if not found.more:
            return Evicted(entries, nbytes, found.kept_entries, found.kept_bytes)


def explain(session: int, graph: int) -> Flow[Explanation]:
    """The plan of a graph that plans() lists."""
    message = pb.Explain(session=session, graph=graph)
    reply = yield Request(Kind.EXPLAIN, message.SerializeToString())
    return Explanation(parse(pb.Explanation, reply.body))
