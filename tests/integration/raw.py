"""The protocol by hand: frames byte by byte, so that a test can break any rule of it.

Independent of the client library. Messages are made from proto/headrace.proto at run time by
protoc, so nothing generated lies about. Everything has a time limit: a daemon that does not answer is a failed
test, not a hanging one.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 20.0

END, MORE, ERROR, NOREPLY, FDS = 1, 2, 4, 8, 16
REPLY = 0x80
(HELLO, PING, CANCEL, CREDIT, DATA, GOAWAY) = range(1, 7)
DEVICES, OPS = 16, 17
QUERY, PUT, PUT_FD, LOAD, LIST, DROP, TENSORS, PURGE = range(32, 40)
STATE_ALLOC, STATE_READ, STATE_WRITE, STATE_FREE = 48, 49, 50, 54
STATE_SAVE, STATE_RESTORE, STATE_FORK = 51, 52, 53
REGION_ADD, REGION_DROP = 64, 65
SUBMIT, EXPLAIN, RELEASE, RUN, SYNC, TAP, STATS = 80, 82, 83, 96, 98, 99, 113
RESERVE, SEQUENCE = 81, 97
STATUS, RELOAD, DRAIN, EVICT, HEALTH = 112, 116, 117, 118, 119
SESSIONS, PLANS, QUOTAS = 121, 122, 123
PROGRESS, QUOTA, TRACE, METRICS = 7, 114, 115, 120

# gRPC's code numbers
CANCELLED, INVALID, DEADLINE, NOT_FOUND, EXISTS, PERMISSION, EXHAUSTED = 1, 3, 4, 5, 6, 7, 8
PRECONDITION, RANGE, UNSUPPORTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 9, 11, 12, 13, 14, 15
UNAUTHENTICATED = 16

F32, F16, Q4_0, Q8_0, I8, I32, I64 = 0, 1, 2, 8, 24, 26, 27
WEIGHT, STATE, INPUT, CONSTANT = 1, 2, 3, 4
OP = {
    "NONE": 0, "VIEW": 1, "RESHAPE": 2, "PERMUTE": 3, "TRANSPOSE": 4, "DUP": 10, "CONT": 11,
    "CPY": 12, "GET_ROWS": 13, "SET_ROWS": 14, "CONCAT": 15, "REPEAT": 16, "ADD": 30, "MUL": 32,
    "SCALE": 36, "UNARY": 44, "GLU": 45, "RMS_NORM": 81, "MUL_MAT": 100, "MUL_MAT_ID": 101,
    "SOFT_MAX": 120, "ROPE": 121, "FLASH_ATTN_EXT": 123, "ARGSORT": 65, "CONV_3D": 154,
}  # fmt: skip
ABSENT = 0xFFFFFFFF


# ---- messages ------------------------------------------------------------------------------------


@functools.cache
def _factory() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        subprocess.run(
            ["protoc", f"--proto_path={ROOT / 'proto'}", f"--descriptor_set_out={out}",
             "headrace.proto"],
            check=True,
        )  # fmt: skip
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    names = [message.name for file in files.file for message in file.message_type]
    package = files.file[0].package
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in names
    }


class _Messages:
    """pb.Hello(...), pb.Graph(...)"""

    def __getattr__(self, name: str) -> Any:
        try:
            return _factory()[name]
        except KeyError:
            raise AttributeError(name) from None


pb = _Messages()


# ---- frames --------------------------------------------------------------------------------------


@functools.cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def crc32c(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _crc_table()
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def header(
    type: int,
    call_id: int,
    message_bytes: int = 0,
    body_bytes: int = 0,
    flags: int = END,
    timeout_ms: int = 0,
    n_fds: int = 0,
    magic: bytes = b"HR",
    version: int = 1,
) -> bytes:
    """32 bytes with a right checksum, however wrong the fields are."""
    head = struct.pack(
        "<2sBBHHQIII", magic, version, type, flags, n_fds, call_id, message_bytes, body_bytes,
        timeout_ms,
    )  # fmt: skip
    return head + struct.pack("<I", crc32c(head))


@dataclass
class Frame:
    type: int
    flags: int
    call_id: int
    code: int
    message: bytes
    body: bytes

    @property
    def error(self) -> Any:
        assert self.flags & ERROR, f"frame {self.type:#x} is no error"
        return pb.Error.FromString(self.message)


class Closed(Exception):
    """The daemon has closed the connection."""


class RawError(Exception):
    """The daemon answered with an error."""

    def __init__(self, frame: Frame) -> None:
        self.error = frame.error
        self.code = self.error.code
        self.reason = self.error.reason
        self.words = self.error.words
        assert frame.code == self.error.code, "code of the header and of the message"
        super().__init__(f"{self.code} {self.reason}: {self.words}")


# How to come in at other doors than unix and tcp: kind of address -> function of its rest.
OPENERS: dict[str, Callable[[str], Any]] = {}


class Conn:
    """One connection. Says hello unless told not to."""

    def __init__(self, address: str, hello: bool = True, session: str = "") -> None:
        self.address = address
        kind, rest = address.split(":", 1)
        self.socket: Any
        if kind in OPENERS:
            self.socket = OPENERS[kind](rest)
        elif kind == "unix":
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(TIMEOUT_S)
            self.socket.connect(rest)
        else:
            host, port = rest.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ids = itertools.count(1)
        self.credit: dict[int, int] = {}
        self.ranges: dict[int, list[tuple[int, int]]] = {}  # of uploads: offset, bytes
        self.held: list[Frame] = []
        self.pushes: list[Frame] = []
        self.greeting: Any = None
        if hello:
            self.greeting, _ = self.call(
                HELLO, pb.Hello(protocol_min=1, protocol_max=1, session_name=session)
            )
        self.body_max = self.greeting.limits.body_bytes_max if hello else 1 << 20

    def __enter__(self) -> Conn:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # -- out

    def raw(self, data: bytes) -> None:
        """May meet a connection that the daemon has closed: the test finds that by reading."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def send(
        self,
        type: int,
        message: Any = b"",
        body: bytes = b"",
        call_id: int | None = None,
        flags: int = END,
        timeout_ms: int = 0,
    ) -> int:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        call_id = next(self.ids) if call_id is None else call_id
        head = header(type, call_id, len(data), len(body), flags, timeout_ms)
        self.raw(head + data + body)
        return call_id

    # -- in

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                raise Closed(f"{len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def frame(self) -> Frame:
        """The next frame, whatever it is."""
        head = self._exactly(32)
        magic, version, type, flags, n_fds, call_id, message_bytes, body_bytes, code = (
            struct.unpack("<2sBBHHQIII", head[:28])
        )
        assert (magic, version, n_fds) == (b"HR", 1, 0)
        assert struct.unpack("<I", head[28:])[0] == crc32c(head[:28])
        assert message_bytes <= 65536 and body_bytes <= 4 << 20
        message = self._exactly(message_bytes)
        return Frame(type, flags, call_id, code, message, self._exactly(body_bytes))

    def next_of(self, call_id: int) -> Frame:
        """The next frame of a call; credit is counted, other calls' frames are held."""
        for index, frame in enumerate(self.held):
            if frame.call_id == call_id:
                return self.held.pop(index)
        while True:
            frame = self.frame()
            if frame.type == CREDIT:
                credit = pb.Credit.FromString(frame.message)
                self.credit[frame.call_id] = self.credit.get(frame.call_id, 0) + credit.bytes
                self.ranges.setdefault(frame.call_id, []).append((credit.offset, credit.bytes))
                if frame.call_id == call_id:
                    return frame
            elif frame.call_id == call_id:
                return frame
            elif frame.type == GOAWAY or frame.call_id >> 63:
                self.pushes.append(frame)
            else:
                self.held.append(frame)

    def reply(self, call_id: int, kind: Any = None) -> tuple[Any, bytes]:
        """The whole reply; RawError for an error."""
        frame = self.next_of(call_id)
        while frame.type in (CREDIT, PROGRESS):
            frame = self.next_of(call_id)
        if frame.flags & ERROR:
            raise RawError(frame)
        message = (kind or REPLIES[frame.type & ~REPLY]).FromString(frame.message)
        pieces = [frame.body]
        while frame.flags & MORE:
            frame = self.next_of(call_id)
            if frame.flags & ERROR:
                raise RawError(frame)
            pieces.append(frame.body)
        return message, b"".join(pieces)

    def closed(self, timeout_s: float = TIMEOUT_S) -> list[Frame]:
        """Reads to the end of the stream; what came before it. A stream that does not end fails."""
        frames = []
        self.socket.settimeout(timeout_s)
        while True:
            try:
                frames.append(self.frame())
            except Closed:
                return frames

    # -- both

    def call(
        self, type: int, message: Any = b"", body: bytes = b"", **keys: Any
    ) -> tuple[Any, bytes]:
        """A request and its reply; bodies of any length, those of one frame's size at once."""
        return self.reply(self.begin(type, message, body, **keys))

    def begin(self, type: int, message: Any, body: bytes, then: bytes = b"", **keys: Any) -> int:
        """Sends a request. A body longer than one frame, and `then`, go as DATA under credit."""
        maximum = getattr(self, "body_max", 1 << 20)
        inline = body if len(body) <= maximum else b""
        sequences = [rest for rest in (b"" if inline else body, then) if rest]
        call_id = self.send(type, message, inline, flags=MORE if sequences else END, **keys)
        for number, rest in enumerate(sequences):
            if not self.stream(call_id, rest, last=number == len(sequences) - 1):
                break
        return call_id

    def stream(self, call_id: int, data: bytes, last: bool = True) -> bool:
        """Sends data as DATA, as far as credit reaches. False: an error came instead of credit."""
        sent = 0
        while sent < len(data):
            while not self.credit.get(call_id):
                frame = self.next_of(call_id)
                if frame.type != CREDIT:
                    self.held.append(frame)
                    return False
            size = min(len(data) - sent, self.credit[call_id], self.body_max)
            end = last and sent + size == len(data)
            self.send(DATA, pb.Data(offset=sent), data[sent : sent + size], call_id=call_id,
                      flags=END if end else MORE)  # fmt: skip
            self.credit[call_id] -= size
            sent += size
        return True

    def pull(self, call_id: int, data: bytes, most: int | None = None, piece: int = 0) -> int:
        """Sends what the daemon asks for of an upload, `most` bytes at most, to the reply. Bytes
        sent."""
        sent = 0
        while most is None or sent < most:
            if not self.ranges.get(call_id):
                frame = self.next_of(call_id)
                if frame.type != CREDIT:
                    self.held.append(frame)
                    break
                continue
            offset, size = self.ranges[call_id].pop(0)
            now = min(size, piece or self.body_max, size if most is None else most - sent)
            self.send(DATA, pb.Data(offset=offset), data[offset : offset + now], call_id=call_id,
                      flags=MORE)  # fmt: skip
            sent += now
            if now < size:
                self.ranges[call_id].insert(0, (offset + now, size - now))
        return sent

    def fails(self, type: int, message: Any = b"", body: bytes = b"", **keys: Any) -> RawError:
        """A request that must be refused."""
        try:
            reply, _ = self.call(type, message, body, **keys)
        except RawError as error:
            return error
        raise AssertionError(f"accepted: {reply}")

    def ping(self) -> None:
        reply, _ = self.call(PING, pb.Ping(cookie=0x1234))
        assert reply.cookie == 0x1234

    # -- graphs

    def submit(self, graph: Graph | Any, **keys: Any) -> Any:
        """The reply to SUBMIT."""
        message = graph.encode() if isinstance(graph, Graph) else graph
        body = message if isinstance(message, bytes) else message.SerializeToString()
        request = pb.Submit(digest=hashlib.sha256(body).digest(), **keys)
        if len(body) > self.body_max:
            request.graph_bytes = len(body)
        return self.call(SUBMIT, request, body)[0]

    def submit_digest(self, digest: bytes, **keys: Any) -> Any:
        """The reply to SUBMIT of a graph that the daemon has."""
        return self.call(SUBMIT, pb.Submit(digest=digest, **keys))[0]

    def submit_fails(self, graph: Graph | Any, **keys: Any) -> RawError:
        try:
            reply = self.submit(graph, **keys)
        except RawError as error:
            return error
        raise AssertionError(f"accepted: {reply}")

    def run(self, handle: int, inputs: bytes, **keys: Any) -> bytes:
        request = pb.Run(handle=handle, **keys)
        if len(inputs) > self.body_max:
            request.input_bytes = len(inputs)
        return self.call(RUN, request, inputs)[1]

    # -- weights and states

    def put(self, name: str, tensors: list[tuple[str, int, list[int], bytes]], digest: bytes = b"",
            placement: list[tuple[str, str]] | None = None) -> Any:  # fmt: skip
        """Uploads a set; the reply's set info."""
        data = contents(tensors)
        message = pb.WeightsPut(name=name, total_bytes=len(data), digest=digest,
                                placement=rules(placement))  # fmt: skip
        return self.call(PUT, message, manifest(tensors).SerializeToString(), then=data)[0].set

    def stats(self) -> dict[str, float]:
        """All counters, by name{labels}."""
        _, body = self.call(STATS, pb.StatsRequest())
        return {
            one.name + (f"{{{one.labels}}}" if one.labels else ""): one.value
            for one in pb.Stats.FromString(body).stats
        }


def _replies() -> dict[int, Any]:
    return {
        HELLO: pb.HelloReply, PING: pb.PingReply, CANCEL: pb.CancelReply, DEVICES: pb.DevicesReply,
        OPS: pb.OpsReply, QUERY: pb.WeightsQueryReply, PUT: pb.WeightsPutReply, LOAD: pb.WeightsLoadReply,
        LIST: pb.WeightsListReply, DROP: pb.WeightsDropReply, TENSORS: pb.WeightsTensorsReply,
        PURGE: pb.WeightsPurgeReply,
        STATE_ALLOC: pb.StateAllocReply, STATE_READ: pb.StateReadReply,
        STATE_SAVE: pb.StateSaveReply, STATE_RESTORE: pb.StateRestoreReply,
        STATE_FORK: pb.StateForkReply, STATE_WRITE: pb.StateWriteReply,
        STATE_FREE: pb.StateFreeReply, SUBMIT: pb.SubmitReply,
        EXPLAIN: pb.ExplainReply, RELEASE: pb.ReleaseReply, TAP: pb.TapReply, RUN: pb.RunReply,
        SYNC: pb.SyncReply, STATS: pb.StatsReply, RESERVE: pb.ReserveReply,
        SEQUENCE: pb.SequenceReply, PUT_FD: pb.WeightsPutReply,
        REGION_ADD: pb.RegionAddReply, REGION_DROP: pb.RegionDropReply,
        STATUS: pb.StatusReply, RELOAD: pb.ReloadReply, DRAIN: pb.DrainReply, EVICT: pb.EvictReply,
        HEALTH: pb.HealthReply, SESSIONS: pb.SessionsReply, PLANS: pb.PlansReply,
        QUOTAS: pb.QuotasReply, QUOTA: pb.QuotaReply, TRACE: pb.TraceAskReply,
        METRICS: pb.MetricsReply,
    }  # fmt: skip


class _Replies(dict[int, Any]):
    def __missing__(self, key: int) -> Any:
        self.update(_replies())
        if key not in self:
            raise KeyError(key)
        return self[key]


REPLIES = _Replies()


def rules(placement: list[tuple[str, str]] | None) -> list[Any]:
    return [pb.PlacementRule(pattern=pattern, device=name) for pattern, name in placement or []]


def manifest(tensors: list[tuple[str, int, list[int], bytes]]) -> Any:
    """Of (name, type, ne, ...) tuples."""
    names = [name.encode() for name, *_ in tensors]
    return pb.Manifest(
        name_lengths=[len(name) for name in names],
        names=b"".join(names),
        type=[tensor[1] for tensor in tensors],
        ne=[extent for tensor in tensors for extent in (tensor[2] + [1, 1, 1])[:4]],
    )


def contents(tensors: list[tuple[str, int, list[int], bytes]]) -> bytes:
    """The bytes of an upload: each tensor padded to 64."""
    return b"".join(data + bytes(-len(data) % 64) for *_, data in tensors)


def tree_digest(data: bytes) -> bytes:
    leaf = 4 << 20
    hashes = (hashlib.sha256(data[at : at + leaf]).digest() for at in range(0, len(data), leaf))
    return hashlib.sha256(b"".join(hashes)).digest()


# ---- graphs --------------------------------------------------------------------------------------


@dataclass
class Tensor:
    type: int
    ne: list[int]
    flags: int = 0
    name: bytes = b""
    leaf_kind: int = 0
    constant: bytes = b""
    op: int = 0
    sources: tuple[int, ...] = ()
    params: tuple[int, ...] = ()
    view: tuple[int, int] | None = None
    strides: tuple[int, int, int, int] | None = None


class Graph:
    """Builds message Graph without checking anything."""

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        self.nodes: list[Tensor] = []

    def leaf(self, kind: int, type: int, ne: list[int], name: str = "", flags: int | None = None,
             constant: bytes = b"") -> int:  # fmt: skip
        assert not self.nodes, "leaves come first"
        flags = (1 if kind == INPUT else 0) if flags is None else flags
        self.leaves.append(Tensor(type, _four(ne), flags, name.encode(), kind, constant))
        return len(self.leaves) - 1

    def node(self, op: str | int, type: int, ne: list[int], sources: tuple[int, ...] = (),
             params: tuple[int, ...] = (), output: bool = False, name: str = "",
             view: tuple[int, int] | None = None,
             strides: tuple[int, int, int, int] | None = None) -> int:  # fmt: skip
        number = OP[op] if isinstance(op, str) else op
        self.nodes.append(
            Tensor(type, _four(ne), 2 if output else 0, name.encode(), 0, b"", number, sources,
                   params, view, strides)
        )  # fmt: skip
        return len(self.leaves) + len(self.nodes) - 1

    def encode(self) -> Any:
        every = self.leaves + self.nodes
        views = [(index, t.view) for index, t in enumerate(every) if t.view]
        strided = [(index, t.strides) for index, t in enumerate(every) if t.strides]
        constants = [t.constant for t in self.leaves if t.leaf_kind == CONSTANT]
        return pb.Graph(
            leaf_count=len(self.leaves),
            op=[t.op for t in self.nodes],
            type=[t.type for t in every],
            flags=[t.flags for t in every],
            ne=[extent for t in every for extent in t.ne],
            leaf_kind=[t.leaf_kind for t in self.leaves],
            source_count=[len(t.sources) for t in self.nodes],
            source=[source for t in self.nodes for source in t.sources],
            param_count=[len(t.params) for t in self.nodes],
            param=[word & 0xFFFFFFFF for t in self.nodes for word in t.params],
            view_tensor=[index for index, _ in views],
            view_base=[view[0] for _, view in views],
            view_offset=[view[1] for _, view in views],
            stride_tensor=[index for index, _ in strided],
            stride=[one for _, strides in strided for one in strides],
            name_length=[len(t.name) for t in every],
            names=b"".join(t.name for t in every),
            constant_bytes=[len(one) for one in constants],
            constants=b"".join(constants),
        )


def _four(ne: list[int]) -> list[int]:
    return (list(ne) + [1, 1, 1])[:4]


def add_graph(count: int = 8, name: str = "") -> Graph:
    """output = a + b, both inputs of `count` floats."""
    graph = Graph()
    a = graph.leaf(INPUT, F32, [count], "a" + name)
    b = graph.leaf(INPUT, F32, [count], "b" + name)
    graph.node("ADD", F32, [count], (a, b), output=True, name="sum" + name)
    return graph


def eventually(condition: Any, timeout_s: float = 5.0, words: str = "") -> None:
    """Polls; what must be true within five seconds, at once where possible."""
    patience = Patience(timeout_s)
    while not condition():
        assert patience.lasts(), words or "not within the time"


class Patience:
    """A time, and longer for as long as there were few looks: on a machine that does much else a
    look takes its time, and so does what it waits for."""

    LOOKS, LONGEST = 100, 6

    def __init__(self, timeout_s: float) -> None:
        self.begun, self.timeout_s, self.looks = time.monotonic(), timeout_s, 0

    def lasts(self) -> bool:
        """Whether to look again, after a pause. A look was vain."""
        time.sleep(0.02)
        self.looks += 1
        spent = (time.monotonic() - self.begun) / self.timeout_s
        return spent < (1 if self.looks >= self.LOOKS else self.LONGEST)
