"""What clients hold, and what they may: accounts that sum, limits that are told and kept, and memory that
says nothing of who had it before."""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace
import numpy as np
import pytest
import raw
from devices import start_daemon
from headrace import errors
from raw import F32, INPUT, STATE, Conn, Graph, eventually, pb
from run_daemon import Daemon, device
from weights_tools import gguf

NAMES = ("one", "two", "three")
TOKENS = {name: secrets.token_urlsafe(24) for name in NAMES}
# These are no session's.
OF_PRINCIPALS = ("sessions", "connections", "output_bytes", "upload_bytes", "descriptors")
HELD = re.compile(r'what="(\w+)"')


def principals(**keys: object) -> dict[str, dict[str, object]]:
    return {
        f"principal {name}": {
            "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
            "permissions": "run, load, admin",
        }
        for name, token in TOKENS.items()
    } | {"limits": keys}


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    daemon = start_daemon(
        devices=[device("cpu0", threads=1, memory="isolated"), device("host", threads=1)],
        sections=principals(),
    )
    yield daemon
    daemon.stop()


def connect(daemon: Daemon, name: str, **keys: Any) -> headrace.Client:
    return headrace.connect(daemon.address, credentials=TOKENS[name].encode(), **keys)


class Raw(Conn):
    """A raw connection of a principal."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        super().__init__(daemon.address, hello=False)
        hello = pb.Hello(protocol_min=1, protocol_max=1, credentials=TOKENS[name].encode())
        self.greeting, _ = self.call(raw.HELLO, hello)


# ---- sums ----------------------------------------------------------------------------------------


def accounts(client: headrace.Client) -> dict[str, dict[str, float]]:
    """Of each kind: the sum over sessions, the sum over principals, and what is held in all."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for one in client.stats():
        if one.name in ("session_held", "principal_held", "total_held"):
            match = HELD.search(one.labels)
            assert match is not None
            sums[match.group(1)][one.name] += one.value
    return sums


def check_sums(client: headrace.Client) -> None:
    """Compute memory is the engine's, which may be about to free some: that sums a moment later."""
    sums = accounts(client)
    for kind, by in sums.items():
        if kind == "device_bytes":
            continue
        assert by["principal_held"] == by["total_held"], kind
        if kind not in OF_PRINCIPALS:
            assert by["session_held"] == by["principal_held"], kind

    def device_bytes_agree() -> bool:
        by = accounts(client)["device_bytes"]
        return by["session_held"] == by["principal_held"] == by["total_held"]

    eventually(device_bytes_agree)


class Actor:
    """Does something at random, and remembers what can be undone."""

    def __init__(self, daemon: Daemon, name: str, chance: random.Random) -> None:
        self.client, self.chance = connect(daemon, name), chance
        self.undo: list[Callable[[], Any]] = []
        self.pending: list[Any] = []

    def graph(self, size: int) -> headrace.Graph:
        g = headrace.Graph()
        x = g.input("x", (size,))
        g.output(g.scale(g.add(x, x), 0.5), "y")
        return g

    def act(self) -> None:
        size = self.chance.choice((16, 1000, 70000))
        choice = self.chance.randrange(7)
        if choice == 0:
            state = self.client.state({"kv": ("f32", (size,))})
            self.undo.append(state.free)
        elif choice == 1:
            handle = self.client.submit(self.graph(size), pins={"*": "cpu0"})
            self.undo.append(handle.release)
            for _ in range(self.chance.randrange(3)):
                self.pending.append(handle.run_async({"x": np.ones(size, np.float32)}))
        elif choice == 2:
            weights = {"w": np.ones(size, np.float32)}
            made = self.client.put(f"set{self.chance.randrange(4)}", weights)
            self.undo.append(lambda: self.client.drop(made))
        elif choice == 3:
            held = self.client.reserve([self.graph(size)])
            self.undo.append(held.release)
        elif choice == 4 and self.pending:
            self.pending.pop().cancel()
        elif self.undo:
            self.undo.pop(self.chance.randrange(len(self.undo)))()


@pytest.mark.parametrize("seed", range(3))
def test_accounts_sum(served: Daemon, seed: int) -> None:
    """After whatever was done: the sessions of a principal sum to the principal, principals to the
    whole; and when all have gone nothing is held."""
    chance = random.Random(seed)
    with connect(served, "three") as watcher:
        actors = [Actor(served, name, chance) for name in ("one", "one", "two")]
        for step in range(60):
            chance.choice(actors).act()
            if step % 4 == 0:
                check_sums(watcher)
        for actor in actors:
            actor.client.close()
        eventually(lambda: set(held_of(watcher)) == {"sessions", "connections"})
        assert held_of(watcher) == {"sessions": 1, "connections": 1}
        check_sums(watcher)


def held_of(client: headrace.Client) -> dict[str, float]:
    """What the whole daemon holds for anybody."""
    found = {kind: by["total_held"] for kind, by in accounts(client).items()}
    return {kind: value for kind, value in found.items() if value}


# ---- limits --------------------------------------------------------------------------------------


def test_limits_are_told(launch: Callable[..., Daemon]) -> None:
    """Every limit that a client can meet is in the hello, as configured."""
    sections = principals(
        session_states=7, session_weights=8, session_uploads=3, session_buffer_bytes="2M",
        session_device_bytes="3M", connection_requests=77, principal_sessions=11,
        principal_connections=12, principal_weights=13, principal_states=14,
        principal_graphs=15, principal_reservations=16, principal_runs=17,
        principal_uploads=18, principal_state_bytes="5M", principal_buffer_bytes="6M",
        principal_weight_bytes="7M", principal_device_bytes="8M", principal_output_bytes="9M",
        principal_upload_bytes="10M", principal_descriptors=19, session_regions=20,
        principal_regions=21, taps=22, pins=23, weights_bytes="24M", weights_tensors=25,
        metadata_bytes="26M", manifest_bytes="27M", placement_rules=28, state_tensors=29,
        principal_misses=30, principal_cancels=31, session_plan_bytes="32M",
        principal_plan_bytes="33M",
    )  # fmt: skip
    daemon = launch(sections=sections | {"daemon": {"session_grace": "1500ms"}})
    with connect(daemon, "one") as client:
        told = client.hello.limits
        for key, value in sections["limits"].items():
            size = int(str(value).rstrip("M")) << (20 if str(value).endswith("M") else 0)
            assert getattr(told, f"{key}_max") == size, key
        assert told.session_grace_ms == 1500


def double(size: int, name: str = "y") -> headrace.Graph:
    g = headrace.Graph()
    x = g.input("x", (size,))
    g.output(g.add(x, x), name)
    return g


def test_compute_memory_of_a_principal(launch: Callable[..., Daemon]) -> None:
    """It is one limit for all its sessions, and free again with the graph."""
    daemon = launch(
        devices=[device("host", threads=1)],
        sections=principals(principal_device_bytes="3M"),
    )
    with connect(daemon, "one") as one, connect(daemon, "one") as same, connect(daemon, "two") as two:
        first = one.submit(double(500_000))
        held = one.quota().value("session_held", 'what="device_bytes"')
        assert 2_000_000 <= held <= 3 << 20
        assert same.quota().value("session_held", 'what="device_bytes"') == 0
        with pytest.raises(errors.Exhausted) as caught:
            same.submit(double(500_001))
        assert caught.value.reason == "LIMIT" and caught.value.field == "principal_device_bytes"
        assert caught.value.limit == 3 << 20 and caught.value.actual > 3 << 20
        assert same.quota().value("session_held", 'what="device_bytes"') == 0
        other = two.submit(double(500_002))
        assert other.run({"x": np.ones(500_002, np.float32)})[0][7] == 2
        first.release()
        again = same.submit(double(500_001))
        assert again.run({"x": np.ones(500_001, np.float32)})[0][7] == 2
        assert one.quota().value("principal_held", 'what="device_bytes"') == same.quota().value(
            "session_held", 'what="device_bytes"'
        )


def test_weights_count_for_each_who_holds_them(launch: Callable[..., Daemon]) -> None:
    daemon = launch(sections=principals(principal_weight_bytes=100_000))
    with connect(daemon, "one") as one, connect(daemon, "two") as two:
        held = one.put("w", {"a": np.ones(10_000, np.float32)})
        assert one.quota().value("principal_held", 'what="weight_bytes"') == 40_000
        assert two.quota().value("principal_held", 'what="weight_bytes"') == 0
        shared = two.load("", name="w")
        assert two.quota().value("principal_held", 'what="weight_bytes"') == 40_000
        with pytest.raises(errors.Exhausted, match="principal_weight_bytes"):
            one.put("x", {"a": np.ones(20_000, np.float32)})
        assert one.quota().value("principal_held", 'what="weight_bytes"') == 40_000
        one.drop(held)
        two.drop(shared)
        one.drop(one.put("x", {"a": np.ones(20_000, np.float32)}))
        eventually(lambda: one.quota().value("principal_held", 'what="weight_bytes"') == 0)


def held(client: headrace.Client, kind: str) -> float:
    return client.quota().value("principal_held", f'what="{kind}"')


@pytest.mark.parametrize("by", ["graph", "reservation"])
def test_what_a_graph_is_bound_to_stays_charged(served: Daemon, by: str) -> None:
    """Handles that are dropped give nothing back as long as a graph keeps the memory behind them."""
    size = 50_000
    with connect(served, "one") as client:
        weights = client.put("bound", {"w": np.ones(size, np.float32)}, {"*": "cpu0"})
        state = client.state({"s": ("f32", (size,))}, {"*": "cpu0"})
        g = headrace.Graph()
        x = g.add(g.input("x", (size,)), g.weight("w", (size,)))
        g.output(g.add(x, g.state("s", (size,))), "y")
        options: dict[str, Any] = {"weights": [weights], "states": [state]}
        keeper: Any = client.submit(g, **options) if by == "graph" else client.reserve([g], **options)
        client.drop(weights)
        state.free()
        for kind, expected in (("upload_bytes", 4 * size), ("weight_bytes", 4 * size),
                               ("state_bytes", 4 * size), ("weights", 1), ("states", 1)):  # fmt: skip
            assert held(client, kind) == expected, kind
        assert held(client, "plan_bytes") > 0
        if by == "graph":
            assert keeper.run({"x": np.ones(size, np.float32)})[0][size - 1] == 2
        keeper.release()
        for kind in ("upload_bytes", "weight_bytes", "state_bytes", "weights", "states",
                     "plan_bytes"):  # fmt: skip
            eventually(lambda kind=kind: held(client, kind) == 0)
        check_sums(client)


def test_graphs_and_plans_take_memory(launch: Callable[..., Daemon]) -> None:
    """Many small graphs are as many plans: they count, for each handle, and for the principal."""
    daemon = launch(
        devices=[device("host", threads=1)], sections=principals(principal_plan_bytes="100K")
    )
    with connect(daemon, "one") as one, connect(daemon, "one") as same, connect(daemon, "two") as two:
        made = []
        with pytest.raises(errors.Exhausted) as caught:
            for number in range(200):
                made.append((one, same)[number % 2].submit(double(16, f"y{number}")))
        assert caught.value.reason == "LIMIT" and caught.value.field == "principal_plan_bytes"
        assert 1 < len(made) < 100
        assert held(one, "plan_bytes") <= 100 << 10
        assert held(one, "graphs") == len(made)
        assert two.submit(double(16)).run({"x": np.ones(16, np.float32)})[0][3] == 2
        made.pop().release()
        assert one.submit(double(16, "again")).run({"x": np.ones(16, np.float32)})[0][3] == 2


def test_a_file_is_charged_before_it_is_placed(launch: Callable[..., Daemon], tmp_path: Path) -> None:
    """One that is more than its principal may hold is refused for that, before a device that could not hold
    it either is asked."""
    data = np.ones(1_000_000, np.float32).tobytes()
    (tmp_path / "big.gguf").write_bytes(gguf([("w", F32, [1_000_000], data)]))
    daemon = launch(
        devices=[
            device("cpu0", threads=1, memory="isolated", memory_cap="2M"),
            device("host", threads=1),
        ],
        models=[tmp_path],
        sections=principals(principal_weight_bytes="3M", principal_descriptors=2),
    )
    with connect(daemon, "one") as one:
        for place in ("cpu0", "host"):
            with pytest.raises(errors.Exhausted) as caught:
                one.load("big.gguf", placement={"*": place})
            assert (caught.value.reason, caught.value.field) == ("LIMIT", "principal_weight_bytes")
            assert caught.value.actual == 4_000_000
        eventually(lambda: held(one, "weight_bytes") == held(one, "descriptors") == 0)


def test_output_that_nobody_takes(launch: Callable[..., Daemon]) -> None:
    """A principal whose peers do not read is not read from either, on none of its connections, until
    they do; others are."""
    daemon = launch(
        devices=[device("host", threads=1)],
        sections=principals(principal_output_bytes="256K"),
    )
    size = 200_000
    with Raw(daemon, "one") as lazy, Raw(daemon, "one") as same, Raw(daemon, "two") as other:
        g = Graph()
        x = g.leaf(INPUT, F32, [size], "x")
        g.node("ADD", F32, [size], (x, x), output=True, name="y")
        handle = lazy.submit(g).handle
        body = np.ones(size, np.float32).tobytes()
        run = lazy.send(raw.RUN, pb.Run(handle=handle), body)
        what = 'principal_held{principal="one",what="output_bytes"}'
        eventually(lambda: other.stats().get(what, 0) > 256 << 10)
        ping = same.send(raw.PING, pb.Ping(cookie=1))
        same.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            same.frame()
        other.ping()
        assert lazy.reply(run)[1] == (2 * np.ones(size, np.float32)).tobytes()
        same.socket.settimeout(raw.TIMEOUT_S)
        assert same.reply(ping)[0].cookie == 1
        assert what not in other.stats()


# ---- old bytes -----------------------------------------------------------------------------------

MARK = struct.pack("<I", 0x5EC2E75A)
MARK_F32 = struct.unpack("<f", MARK)[0]


def leave_marks(daemon: Daemon, sizes: list[int]) -> None:
    """Everywhere where a client can put bytes: states, weights, constants, inputs, compute memory,
    outputs, bodies that are refused."""
    with connect(daemon, "one") as client:
        for size in sizes:
            data = np.full(size, MARK_F32, np.float32)
            assert data.tobytes()[:4] == MARK
            state = client.state({"kv": ("f32", (size,))}, {"*": "cpu0"})
            state.write("kv", data)
            state.free()
            client.drop(client.put("marks", {"w": data}, {"*": "cpu0"}))
            g = headrace.Graph()
            x = g.input("x", (size,))
            y = g.scale(g.add(x, g.constant(np.zeros(size, np.float32))), 1.0)
            g.output(y, "y")
            handle = client.submit(g, pins={"*": "cpu0"})
            out = handle.run({"x": data})["y"]
            assert out.tobytes() == data.tobytes()
            handle.release()


def rows_graph(rows: int, columns: int, room: int) -> Graph:
    """The output is a window on rows of `room` floats, of which it names `columns`: its span goes out as
    it lies, with what is between."""
    g = Graph()
    x = g.leaf(INPUT, F32, [room, rows], "x")
    y = g.node("ADD", F32, [room, rows], (x, x), name="y")
    strides = (4, 4 * room, 4 * room * rows, 4 * room * rows)
    g.node("VIEW", F32, [columns, rows], (y,), (0, 0), output=True, name="v", view=(y, 0),
           strides=strides)  # fmt: skip
    return g


@pytest.mark.parametrize("place", ["cpu0", "host"])
def test_no_byte_of_another(served: Daemon, place: str) -> None:
    """After one principal has filled memory of many sizes and gone, another finds zeros, or its own
    bytes, in all that it did not write: fresh states, and what lies between the rows of an output."""
    sizes = [256, 4096, 20_000, 300_000, 1_200_000]
    leave_marks(served, sizes)
    with Raw(served, "two") as conn:
        for size in sizes:
            tensors = [("kv", F32, [size], b"")]
            alloc = pb.StateAlloc(placement=raw.rules([("*", place)]))
            state = conn.call(
                raw.STATE_ALLOC, alloc, raw.manifest(tensors).SerializeToString()
            )[0].handle
            _, fresh = conn.call(
                raw.STATE_READ, pb.StateRead(handle=state, tensor=0, offset=0, bytes=4 * size)
            )
            assert fresh == bytes(4 * size)
            conn.call(raw.STATE_FREE, pb.StateFree(handle=state))
            columns, room = 16, 64
            rows = size // room
            pins = [pb.Pin(pattern="*", device=place)]
            reply = conn.submit(rows_graph(rows, columns, room), pins=pins)
            ones = np.ones(rows * room, np.float32).tobytes()
            out = np.frombuffer(conn.run(reply.handle, ones), np.float32)
            assert len(out) == (rows - 1) * room + columns
            assert np.array_equal(out, np.full(len(out), 2, np.float32))
            conn.call(raw.RELEASE, pb.Release(handle=reply.handle))


def test_an_output_that_was_not_computed_is_not_sent(served: Daemon) -> None:
    """A run that is stopped, or whose indices are wrong, answers with an error and no bytes."""
    leave_marks(served, [4096])
    g = Graph()
    table = g.leaf(INPUT, F32, [64, 16], "table")
    rows = g.leaf(INPUT, raw.I32, [4], "rows")
    g.node("GET_ROWS", F32, [64, 4], (table, rows), output=True, name="y")
    with Raw(served, "two") as conn:
        handle = conn.submit(g).handle
        bad = bytes(4 * 64 * 16) + struct.pack("<4i", 0, 99, 1, 2)
        call_id = conn.send(raw.RUN, pb.Run(handle=handle), bad)
        frame = conn.next_of(call_id)
        assert frame.flags & raw.ERROR and frame.body == b""
        good = bytes(4 * 64 * 16) + struct.pack("<4i", 0, 3, 1, 2)
        assert conn.run(handle, good) == bytes(4 * 64 * 4)


def test_states_of_others_cannot_be_named(served: Daemon) -> None:
    """Neither bound to a graph, nor read, nor freed; by any number near theirs."""
    with Raw(served, "one") as mine, Raw(served, "two") as theirs:
        body = raw.manifest([("s", F32, [16], b"")]).SerializeToString()
        handle = mine.call(raw.STATE_ALLOC, pb.StateAlloc(), body)[0].handle
        graph = Graph()
        s = graph.leaf(STATE, F32, [16], "s")
        graph.node("ADD", F32, [16], (s, s), output=True, name="y")
        for guess in (handle, handle + 1, handle - 1, handle ^ (1 << 40), handle & 0xFFFFFFFF):
            for kind, message in (
                (raw.STATE_READ, pb.StateRead(handle=guess, tensor=0, offset=0, bytes=4)),
                (raw.STATE_FREE, pb.StateFree(handle=guess)),
            ):
                error = theirs.fails(kind, message)
                assert (error.code, error.reason) == (raw.NOT_FOUND, "STATE")
            assert theirs.submit_fails(graph, states=[guess]).code == raw.NOT_FOUND
        mine.call(raw.STATE_FREE, pb.StateFree(handle=handle))
