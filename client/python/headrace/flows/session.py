"""Session, devices and what the daemon says of itself."""

from __future__ import annotations

import numpy as np

from headrace import handles
from headrace import headrace_pb2 as pb
from headrace.errors import ProtocolError
from headrace.flows.request import Flow, Request
from headrace.graph import Graph
from headrace.types import Array
from headrace.wire import PROTOCOL, Kind, parse

FEATURES = ["progress"]


def hello(client_name: str, session: str, credentials: bytes, token: bytes) -> Flow[handles.Hello]:
    """The first request on a connection."""
    message = pb.Hello(
        protocol_min=PROTOCOL,
        protocol_max=PROTOCOL,
        features=FEATURES,
        client_name=client_name,
        session_name=session,
        credentials=credentials,
        resume_token=token,
    )
    reply = yield Request(Kind.HELLO, message.SerializeToString())
    answer = handles.hello_of(parse(pb.HelloReply, reply.message))
    if answer.protocol != PROTOCOL:
        raise ProtocolError(
            f"the daemon speaks protocol {answer.protocol}, this client {PROTOCOL}",
            reason="BAD_VERSION",
        )
    return answer


def ping() -> Flow[None]:
    """Proves that the daemon's loop answers."""
    cookie = 0x6865616472616365
    reply = yield Request(Kind.PING, pb.Ping(cookie=cookie).SerializeToString())
    if parse(pb.PingReply, reply.message).cookie != cookie:
        raise ProtocolError("a ping came back changed", reason="PROTOCOL")


def devices() -> Flow[list[handles.Device]]:
    """The device table."""
    reply = yield Request(Kind.DEVICES)
    return [handles.device_of(d) for d in parse(pb.DevicesReply, reply.message).devices]


def ops(graph: Graph) -> Flow[Array]:
    """Which device supports which node: bool (nodes, devices)."""
    reply = yield Request(Kind.OPS, body=[graph.encode()])
    size = parse(pb.OpsReply, reply.message)
    table = np.frombuffer(reply.body, np.uint8)
    if len(table) != size.device_count * size.node_count:
        raise ProtocolError(f"a table of {len(table)} entries", reason="PROTOCOL")
    return table.reshape(size.node_count, size.device_count).astype(bool)


def stats(kind: Kind = Kind.STATS) -> Flow[handles.Stats]:
    """All counters, or with Kind.QUOTA the client's own charges and limits."""
    reply = yield Request(kind)
    found = parse(pb.Stats, reply.body).stats
    return handles.Stats(handles.Stat(s.name, s.labels, s.value) for s in found)


def metrics() -> Flow[str]:
    """The counters as text in Prometheus' format."""
    reply = yield Request(Kind.METRICS)
    return str(reply.body, "utf-8")


def trace(latest: float, own: bool) -> Flow[str]:
    """What the daemon remembers of itself, as Chrome/Perfetto JSON."""
    if not latest >= 0:
        raise ValueError(f"latest {latest}: seconds, not below 0")
    message = pb.TraceAsk(latest_ms=round(latest * 1000), own=own)
    reply = yield Request(Kind.TRACE, message.SerializeToString())
    return str(reply.body, "utf-8")


def sync() -> Flow[None]:
    """Ends when all earlier runs of the session have ended."""
    yield Request(Kind.SYNC)
