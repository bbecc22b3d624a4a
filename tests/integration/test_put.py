"""Uploads that are shared, resumed, or not needed: by digest, leaf by leaf. Nothing is visible before
it is complete and verified, and what came before a connection broke is not sent again."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import raw
from raw import CANCELLED, DATA_LOSS, EXHAUSTED, F32, INVALID, MORE, RANGE, Conn, pb
from run_daemon import device

LEAF = 4 << 20
ABSENT, PLACED, HELD, PARTIAL = range(4)


def leaves(data: bytes) -> list[bytes]:
    return [hashlib.sha256(data[at : at + LEAF]).digest() for at in range(0, len(data), LEAF)]


class Contents:
    """One tensor of `size` bytes that no other test has."""

    def __init__(self, seed: str, size: int) -> None:
        self.data = random.Random(seed).randbytes(size)
        self.tensors = [("w", F32, [size // 4], b"")]
        self.digest = raw.tree_digest(self.data)

    def manifest(self, with_leaves: bool = False) -> bytes:
        made = raw.manifest(self.tensors)
        if with_leaves:
            made.leaf_digests = b"".join(leaves(self.data))
        return bytes(made.SerializeToString())

    def put(self, conn: Conn, name: str = "shared", with_leaves: bool = False, **keys: Any) -> int:
        keys = {"digest": self.digest, "resume": True, "total_bytes": len(self.data)} | keys
        message = pb.WeightsPut(name=name, **keys)
        return conn.send(raw.PUT, message, self.manifest(with_leaves), flags=MORE)


def query(conn: Conn, *digests: bytes) -> list[tuple[int, int]]:
    reply, _ = conn.call(raw.QUERY, pb.WeightsQuery(digests=b"".join(digests)))
    return list(zip(reply.state, reply.received_bytes, strict=True))


def refusal(conn: Conn, call: int) -> raw.RawError:
    with pytest.raises(raw.RawError) as caught:
        conn.reply(call)
    return caught.value


def names(conn: Conn) -> list[str]:
    _, body = conn.call(raw.LIST)
    return [one.name for one in pb.WeightSets.FromString(body).sets]


def held(conn: Conn, what: str) -> float:
    _, body = conn.reply(conn.begin(114, pb.Quota(), b""), pb.QuotaReply)
    for stat in pb.Stats.FromString(body).stats:
        if stat.name == "principal_held" and stat.labels == f'what="{what}"':
            return float(stat.value)
    raise AssertionError(what)


def contents_of(conn: Conn, handle: int, count: int) -> bytes:
    """What the daemon has of tensor w, through a graph."""
    graph = raw.Graph()
    w = graph.leaf(raw.WEIGHT, F32, [count], "w")
    graph.node("CONT", F32, [count], (w,), output=True)
    return conn.run(conn.submit(graph, weights=[handle]).handle, b"")


DEVICES = (device("cpu0", threads=1, memory="isolated"), device("host", threads=1))


@pytest.fixture
def served(launch: Callable[..., Any]) -> Iterator[Any]:
    running = launch(devices=DEVICES, tcp=True)
    yield running
    with Conn(running.address) as conn:
        conn.ping()


@pytest.fixture(params=["unix", "tcp"])
def door(request: pytest.FixtureRequest, served: Any) -> str:
    return str(served.address if request.param == "unix" else served.tcp_address)


CUTS = [0, 1, 63, LEAF - 1, LEAF, LEAF + 1, 2 * LEAF, 2 * LEAF + 4097, 3 * LEAF - 4, 3 * LEAF + 512]


@pytest.mark.parametrize("cut", CUTS)
def test_d01_resumed_after_a_cut_at_any_byte(door: str, cut: int) -> None:
    what = Contents(f"{door[:4]} {cut}", 3 * LEAF + 1024)
    whole = cut // LEAF * LEAF
    with Conn(door) as watcher:
        with Conn(door) as conn:
            call = what.put(conn)
            assert conn.pull(call, what.data, cut) == cut
            if cut % 3 == 1:  # in the middle of a frame, too
                while not conn.ranges[call]:
                    conn.next_of(call)
                message = pb.Data(offset=cut).SerializeToString()
                head = raw.header(raw.DATA, call, len(message), 4096, MORE)
                conn.raw(head + message + bytes(100))
        # What was still on its way when the connection broke may be lost with it.
        raw.eventually(lambda: watcher.stats()["connections"] == 1)
        [(state, there)] = query(watcher, what.digest)
        assert state == PARTIAL or (state, cut) == (ABSENT, 0)
        assert there <= whole and there % LEAF == 0
        assert "shared" not in names(watcher)
        with Conn(door) as conn:
            call = what.put(conn)
            assert conn.pull(call, what.data) == len(what.data) - there
            reply = conn.reply(call)[0]
            assert reply.set.digest == what.digest and not reply.already
            assert contents_of(conn, reply.set.handle, len(what.data) // 4) == what.data


def test_d01_every_byte_of_the_last_frame(served: Any) -> None:
    """The connection breaks at each byte of a small upload's frame: header, message, body."""
    what = Contents("bytes", 256)
    message = pb.Data(offset=0).SerializeToString()
    with Conn(served.address) as watcher:
        frame = raw.header(raw.DATA, 2, len(message), 256, MORE) + message + what.data
        for cut in range(1, len(frame), 9):
            with Conn(served.address) as conn:
                call = what.put(conn)
                assert conn.next_of(call).type == raw.CREDIT
                conn.raw(frame[:cut])
            raw.eventually(lambda: query(watcher, what.digest) == [(PARTIAL, 0)])
        with Conn(served.address) as conn:
            call = what.put(conn)
            conn.next_of(call)
            conn.raw(frame)
            raw.eventually(lambda: query(watcher, what.digest)[0][0] in (HELD, PARTIAL))
            assert conn.reply(call)[0].set.digest == what.digest


def test_d01_broken_after_the_last_byte(served: Any) -> None:
    what = Contents("after", LEAF + 64)
    with Conn(served.address) as watcher:
        with Conn(served.address) as conn:
            conn.pull(what.put(conn), what.data, len(what.data))
        raw.eventually(lambda: query(watcher, what.digest) in (
            [(PARTIAL, len(what.data))], [(ABSENT, 0)]))  # fmt: skip
        call = what.put(watcher)
        sent = watcher.pull(call, what.data)
        assert sent in (0, len(what.data) % LEAF, len(what.data))
        assert watcher.reply(call)[0].set.digest == what.digest


def test_d01_several_connections_share_one_upload(door: str) -> None:
    what = Contents(door[:4], 9 * LEAF + 4096)
    sent: dict[int, int] = {}
    sets: dict[int, Any] = {}
    with Conn(door) as one, Conn(door) as two, Conn(door) as three:
        conns = [one, two, three]
        calls = [what.put(conn) for conn in conns]

        def work(index: int) -> None:
            sent[index] = conns[index].pull(calls[index], what.data, piece=1 << 19)
            sets[index] = conns[index].reply(calls[index])[0].set

        threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(sent.values()) == len(what.data)
        assert {found.digest for found in sets.values()} == {what.digest}
        assert one.stats()["weight_sets"] == 1
        assert held(one, "upload_bytes") == len(what.data)
        assert contents_of(two, sets[1].handle, len(what.data) // 4) == what.data


def test_d01_the_others_take_over_from_one_that_breaks(served: Any) -> None:
    what = Contents("take over", 5 * LEAF)
    with Conn(served.address) as stays:
        with Conn(served.address) as breaks:
            call = what.put(breaks)
            assert breaks.pull(call, what.data, LEAF // 2) == LEAF // 2
            mine = what.put(stays)  # the leaf that is left: the other one has been asked for four
            assert stays.pull(mine, what.data, LEAF) == LEAF
            assert "shared" not in names(stays)
        assert stays.pull(mine, what.data) == 4 * LEAF
        assert stays.reply(mine)[0].set.digest == what.digest


def test_who_waits_for_anothers_leaf_has_not_stopped_half_way(launch: Callable[..., Any]) -> None:
    """The one that was asked for the leaf falls silent and is cut off; the other, which had nothing to send all the
    time, is asked then, and its own time begins then."""
    daemon = launch(sections={"limits": {"progress_timeout": "1s"}})
    what = Contents("patience", LEAF)
    with Conn(daemon.address) as silent, Conn(daemon.address) as waits:
        call = what.put(silent)
        assert silent.pull(call, what.data, LEAF // 2) == LEAF // 2
        mine = what.put(waits)
        assert waits.pull(mine, what.data) > 0
        assert waits.reply(mine)[0].set.digest == what.digest
        assert refusal(silent, call).code == CANCELLED


def test_a_set_that_is_there_costs_no_transfer(door: str) -> None:
    what = Contents(f"there {door[:4]}", LEAF + 4096)
    with Conn(door) as conn:
        assert query(conn, what.digest, bytes(32)) == [(ABSENT, 0), (ABSENT, 0)]
        call = what.put(conn)
        conn.pull(call, what.data)
        first = conn.reply(call)[0].set
        assert query(conn, what.digest) == [(HELD, 0)]
        for name, place, with_resume in (
            ("shared", [], True), ("shared", [], False), ("other name", [], True),
            ("other place", [("*", "cpu0")], True), ("again there", [("*", "cpu0")], False),
        ):  # fmt: skip
            before = conn.stats()["bytes_in_total"]
            call = what.put(conn, name, placement=raw.rules(place), resume=with_resume)
            reply = conn.reply(call)[0]
            assert call not in conn.ranges and reply.already
            assert conn.stats()["bytes_in_total"] - before < 4096
            assert contents_of(conn, reply.set.handle, len(what.data) // 4) == what.data
        conn.call(raw.DROP, pb.WeightsDrop(handle=first.handle))
    with Conn(door) as conn:
        raw.eventually(lambda: query(conn, what.digest) == [(ABSENT, 0)])
        assert held(conn, "upload_bytes") == held(conn, "descriptors") == 0


def test_a_set_in_a_devices_memory_is_found_by_equal_places(served: Any) -> None:
    what = Contents("placed", LEAF)
    place = raw.rules([("*", "cpu0")])
    with Conn(served.address) as conn:
        call = what.put(conn, placement=place)
        conn.pull(call, what.data)
        conn.reply(call)
        assert query(conn, what.digest) == [(PLACED, 0)]
        reply = conn.reply(what.put(conn, "another", placement=place))[0]
        assert reply.already
        assert contents_of(conn, reply.set.handle, LEAF // 4) == what.data
        call = what.put(conn, "on the host")
        assert conn.pull(call, what.data) == LEAF


@pytest.mark.parametrize("with_leaves", [False, True])
@pytest.mark.parametrize("at", [0, LEAF, 2 * LEAF + 99])
def test_d02_wrong_bytes(door: str, at: int, with_leaves: bool) -> None:
    what = Contents(f"wrong {door[:4]} {at} {with_leaves}", 2 * LEAF + 100)
    wrong = bytearray(what.data)
    wrong[at] ^= 1
    with Conn(door) as conn:
        call = what.put(conn, with_leaves=with_leaves)
        conn.pull(call, bytes(wrong))
        error = refusal(conn, call)
        assert (error.code, error.reason) == (DATA_LOSS, "DIGEST")
        if with_leaves:
            assert (error.error.field, error.error.actual) == ("leaf", at // LEAF)
        assert "shared" not in names(conn)
        raw.eventually(lambda: held(conn, "upload_bytes") == 0)
        assert query(conn, what.digest) == [(ABSENT, 0)]
        call = what.put(conn, with_leaves=with_leaves)
        assert conn.pull(call, what.data) == len(what.data)
        assert conn.reply(call)[0].set.digest == what.digest


def test_d01_resumed_with_other_bytes(served: Any) -> None:
    what, other = Contents("these", 2 * LEAF), Contents("those", 2 * LEAF)
    with Conn(served.address) as watcher:
        with Conn(served.address) as conn:
            conn.pull(what.put(conn), what.data, LEAF)
        raw.eventually(lambda: watcher.stats()["connections"] == 1)
        assert query(watcher, what.digest)[0][0] == PARTIAL
        call = what.put(watcher)
        watcher.pull(call, other.data)
        assert refusal(watcher, call).reason == "DIGEST"
        assert "shared" not in names(watcher)
        call = what.put(watcher)
        assert watcher.pull(call, what.data) == 2 * LEAF
        assert watcher.reply(call)[0].set.digest == what.digest


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        ({"tensors": [("v", F32, [LEAF // 4], b"")]}, INVALID, "MANIFEST"),
        ({"placement": [("*", "cpu0")]}, INVALID, "MANIFEST"),
        ({"leaf_digests": bytes(32)}, INVALID, "MANIFEST"),
        ({"leaf_digests": bytes(31)}, INVALID, "MANIFEST"),
        ({"leaf_digests": bytes(64)}, INVALID, "MANIFEST"),
    ],
)
def test_taking_part_with_another_manifest(
    served: Any, change: dict[str, Any], code: int, reason: str
) -> None:
    what = Contents("manifests", LEAF)
    with Conn(served.address) as first, Conn(served.address) as second:
        call = what.put(first)
        first.pull(call, what.data, 100)
        made = raw.manifest(change.get("tensors", what.tensors))
        made.leaf_digests = change.get("leaf_digests", b"")
        message = pb.WeightsPut(
            name="shared", digest=what.digest, resume=True, total_bytes=LEAF,
            placement=raw.rules(change.get("placement")),
        )  # fmt: skip
        other = second.send(raw.PUT, message, made.SerializeToString(), flags=MORE)
        error = refusal(second, other)
        assert (error.code, error.reason) == (code, reason)
        first.pull(call, what.data)
        assert first.reply(call)[0].set.digest == what.digest


@pytest.mark.parametrize("size", [1, 31, 33, 1025 * 32])
def test_queries_that_are_none(served: Any, size: int) -> None:
    with Conn(served.address) as conn:
        assert conn.fails(raw.QUERY, pb.WeightsQuery(digests=bytes(size))).code == INVALID
        assert query(conn) == []


@pytest.mark.parametrize(
    ("offset", "size", "reason"),
    [
        (1, 10, "OFFSET"), (LEAF, 10, "OFFSET"), (2**64 - 1, 10, "OFFSET"), (0, 0, "END"),
    ],
)  # fmt: skip
def test_a19_data_where_nothing_was_asked_for(
    launch: Callable[..., Any], offset: int, size: int, reason: str
) -> None:
    small = {"limits": {"upload_window_bytes": "64K", "body_bytes": "64K"}}
    running = launch(devices=DEVICES, sections=small)
    what = Contents("offsets", LEAF)
    with Conn(running.address) as conn:
        call = what.put(conn)
        assert conn.next_of(call).type == raw.CREDIT
        conn.send(raw.DATA, pb.Data(offset=offset), bytes(size), call_id=call, flags=MORE)
        error = refusal(conn, call)
        assert (error.code, error.reason) == (RANGE, reason)
        raw.eventually(lambda: held(conn, "upload_bytes") == 0)


def test_b07_what_stays_is_charged_and_goes(launch: Callable[..., Any]) -> None:
    sections = {
        "daemon": {"upload_grace": "400ms"},
        "limits": {"principal_upload_bytes": str(3 * LEAF), "principal_descriptors": "2"},
    }
    running = launch(devices=DEVICES, sections=sections)
    one, two, three = (Contents(name, 2 * LEAF) for name in "abc")
    with Conn(running.address) as conn:
        with Conn(running.address) as first:
            first.pull(one.put(first), one.data, LEAF)
        raw.eventually(lambda: conn.stats()["connections"] == 1)
        assert held(conn, "upload_bytes") == 2 * LEAF and held(conn, "descriptors") == 1
        raw.eventually(lambda: held(conn, "upload_bytes") == 0)
        assert query(conn, one.digest) == [(ABSENT, 0)]
        # What nobody waits for makes way; what somebody sends does not.
        with Conn(running.address) as first:
            first.pull(one.put(first), one.data, LEAF)
        raw.eventually(lambda: conn.stats()["connections"] == 1)
        assert query(conn, one.digest)[0][0] == PARTIAL
        call = two.put(conn)
        conn.pull(call, two.data, LEAF)
        error = refusal(conn, three.put(conn))
        assert (error.code, error.reason) == (EXHAUSTED, "LIMIT")
        assert error.error.field == "principal_upload_bytes"
        assert query(conn, one.digest) == [(ABSENT, 0)]
        conn.pull(call, two.data)
        assert conn.reply(call)[0].set.digest == two.digest


def test_b07_declared_and_aborted_a_thousand_times(served: Any) -> None:
    with Conn(served.address) as conn:
        for round in range(1000):
            digest = hashlib.sha256(str(round).encode()).digest()
            manifest = raw.manifest([("w", F32, [1 << 28], b"")]).SerializeToString()
            message = pb.WeightsPut(
                name="never", digest=digest, total_bytes=1 << 30, resume=round % 2 == 0
            )
            call = conn.send(raw.PUT, message, manifest, flags=MORE)
            conn.call(raw.CANCEL, pb.Cancel(request_id=call))
            assert refusal(conn, call).code == CANCELLED
        raw.eventually(lambda: held(conn, "upload_bytes") == held(conn, "uploads") == 0)
        assert held(conn, "descriptors") == 0
        assert conn.stats()["weight_sets_in_work"] == 0


def test_b07_what_comes_is_not_taken_for_what_has_gone(daemon: Any) -> None:
    """Contents in two places are charged once. When one of the sets has gone, the next one may lie where it
    lay: it is charged for itself."""
    held = 'total_held{what="upload_bytes"}'
    data = [("t", F32, [16], bytes(64))]
    digest = raw.tree_digest(bytes(64))
    with Conn(daemon.address) as conn:
        before = conn.stats().get(held, 0)
        for number in range(1, 21):
            size = 64 * (1 + number)
            first = conn.put("twice", data, digest, [("*", "cpu0")]).handle
            second = conn.put("twice", data, digest, [("*", "cpu1")]).handle
            assert conn.stats()[held] - before == 64
            conn.call(raw.DROP, pb.WeightsDrop(handle=first))
            other = conn.put("other", [("t", F32, [size // 4], bytes(size))], b"", [("*", "cpu0")])
            assert conn.stats()[held] - before == 64 + size
            for handle in (second, other.handle):
                conn.call(raw.DROP, pb.WeightsDrop(handle=handle))
            assert conn.stats().get(held, 0) == before


def test_the_same_contents_to_two_places_at_once(daemon: Any) -> None:
    """While they are held already: each of the uploads is whole when its own bytes are there."""
    data = [("t", F32, [16], bytes(range(64)))]
    digest = raw.tree_digest(data[0][3])
    body = raw.manifest(data).SerializeToString()
    with Conn(daemon.address) as conn:
        held = conn.put("here", data, digest, [("*", "cpu1")])
        calls = [
            conn.send(raw.PUT, pb.WeightsPut(name=name, total_bytes=64, digest=digest,
                                             placement=raw.rules([("*", "cpu0")])), body, flags=MORE)
            for name in ("one", "two")
        ]  # fmt: skip
        made = []
        for call in calls:
            conn.stream(call, data[0][3])
            made.append(conn.reply(call)[0].set)
        assert {info.digest for info in [held, *made]} == {digest}
        for info in [held, *made]:
            conn.call(raw.DROP, pb.WeightsDrop(handle=info.handle))


@pytest.mark.parametrize("kind", ["place", "share"])
def test_b08_contents_that_are_there_pay_for_no_others(
    launch: Callable[..., Any], kind: str
) -> None:
    """The same contents at another place, or for their principal alone, are sent again: charged while they
    come, and gone when nobody goes on with them."""
    sections = {
        "daemon": {"upload_grace": "300ms"},
        "limits": {"principal_upload_bytes": str(7 * LEAF)},
    }
    running = launch(devices=DEVICES, sections=sections)
    one = Contents("there", 2 * LEAF)
    here = raw.rules([("*", "cpu0")])
    other = {"placement": raw.rules([("*", "host")])} if kind == "place" else {"share": 1}
    with Conn(running.address) as conn:

        def waits_for_nobody() -> bool:
            return bool(
                conn.stats()["weight_sets_in_work"] == 0
                and held(conn, "upload_bytes") == 2 * LEAF
                and held(conn, "descriptors") == 1
            )

        call = one.put(conn, placement=here)
        conn.pull(call, one.data)
        first = conn.reply(call)[0].set.handle
        assert held(conn, "upload_bytes") == 2 * LEAF
        with Conn(running.address) as others:  # under three names: as much again for each
            calls = [one.put(others, name, **{"placement": here} | other) for name in "abc"]
            others.pull(calls[0], one.data, LEAF)
            error = refusal(others, calls[2])
            assert (error.code, error.reason) == (EXHAUSTED, "LIMIT")
            assert error.error.field == "principal_upload_bytes"
            assert held(others, "upload_bytes") == 6 * LEAF
        raw.eventually(waits_for_nobody)
        call = one.put(conn, "a", **{"placement": here} | other)
        conn.pull(call, one.data)
        second = conn.reply(call)[0].set.handle
        assert contents_of(conn, second, 2 * LEAF // 4) == one.data
        conn.call(raw.DROP, pb.WeightsDrop(handle=first))
    with Conn(running.address) as conn:
        raw.eventually(lambda: held(conn, "upload_bytes") == held(conn, "descriptors") == 0)
