"""Out of memory and quotas (HOSTILE B7, B8, C23): refused before anything is taken, with what was
asked and what there is, and everything is counted exactly afterwards."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import raw
from expect import served
from expect import refused as told
from raw import EXHAUSTED, F32, INPUT, INVALID, Conn, Graph, add_graph, pb
from run_daemon import device

MIB = 1 << 20


@pytest.fixture(scope="module")
def daemon(door: str, start_behind: Any) -> Iterator[Any]:
    """Little of everything."""
    running = start_behind(
        door,
        devices=[
            device("tiny", threads=1, memory="isolated", memory_cap="1M"),
            device("cpu1", threads=1, memory="isolated", memory_cap="16M"),
            device("host", threads=1, memory_cap="16M"),
        ],
        sections={
            "limits": {
                "session_state_bytes": "8M",
                "session_states": 5,
                "session_weights": 5,
                "session_uploads": 2,
                "session_graphs": 20,
                "session_device_bytes": "12M",
                "session_buffer_bytes": "4M",
                "upload_bytes": "32M",
                "weights_bytes": "64M",
                "run_bytes": "2M",
                "state_tensors": 10,
                "weights_tensors": 10,
                "placement_rules": 4,
                "manifest_bytes": "8K",
            }
        },
    )
    yield running
    running.stop()


pytestmark = pytest.mark.usefixtures("guarded")


def alloc(conn: Conn, floats: int, where: str = "host", count: int = 1) -> int:
    tensors = [(f"t{i}", F32, [floats], b"") for i in range(count)]
    message = pb.StateAlloc(placement=raw.rules([("*", where)]))
    return conn.call(raw.STATE_ALLOC, message, raw.manifest(tensors).SerializeToString())[0].handle


def free(conn: Conn, handle: int) -> None:
    conn.call(raw.STATE_FREE, pb.StateFree(handle=handle))


def refused(reason: str, function: Callable[..., Any], *args: Any, **keys: Any) -> Any:
    with pytest.raises(raw.RawError) as caught:
        function(*args, **keys)
    return told(caught.value, EXHAUSTED, reason)


@pytest.mark.parametrize(
    ("floats", "code", "reason"),
    [
        (2**61 - 16, EXHAUSTED, "TENSOR_BYTES"),
        (2**62, INVALID, "SIZE"),
        (2**40, EXHAUSTED, "TENSOR_BYTES"),
        (2**28, EXHAUSTED, "TOTAL_BYTES"),
        (2 * MIB + 1, EXHAUSTED, "TOTAL_BYTES"),
    ],
)
def test_B07_one_huge_state(address: str, floats: int, code: int, reason: str) -> None:
    with Conn(address) as conn:
        with pytest.raises(raw.RawError) as caught:
            alloc(conn, floats)
        error = told(caught.value, code, reason)
        if code == EXHAUSTED:
            assert error.actual > error.limit > 0
        free(conn, alloc(conn, 1000))
        served(conn)


def test_C23_more_than_the_device_has(address: str) -> None:
    with Conn(address) as conn:
        error = refused("DEVICE_MEMORY", alloc, conn, MIB // 2, "tiny")
        assert error.actual >= 2 * MIB and 0 < error.limit <= MIB
        kept = alloc(conn, 1000, "tiny")
        refused("DEVICE_MEMORY", alloc, conn, MIB // 4, "tiny")
        where = {"handle": kept, "tensor": 0, "offset": 0, "bytes": 4000}
        assert conn.call(raw.STATE_READ, pb.StateRead(**where))[1] == bytes(4000)
        served(conn)


def test_B07_many_small_ones_sum_exactly(address: str) -> None:
    with Conn(address) as conn:
        for _ in range(3):
            kept = [alloc(conn, MIB // 4) for _ in range(5)]
            assert refused("LIMIT", alloc, conn, 1).field == "session_states"
            for handle in kept[1:]:
                free(conn, handle)
            kept = [kept[0], *(soon(alloc, conn, MIB // 4 - 16) for _ in range(4))]
            for handle in kept:
                free(conn, handle)
            big = soon(alloc, conn, 2 * MIB - 1024)
            assert refused("LIMIT", alloc, conn, MIB).field == "session_state_bytes"
            free(conn, big)
        served(conn)


def test_B07_two_connections_of_one_session_race(address: str) -> None:
    """Both take and give back the same charge; afterwards it is zero, and never was above the limit."""
    with Conn(address) as first:
        held = quota(first, "state_bytes")
        token = first.greeting.session_token
        with Conn(address, hello=False) as second:
            second.call(
                raw.HELLO, pb.Hello(protocol_min=1, protocol_max=1, resume_token=token)
            )
            failures: list[BaseException] = []

            def work(conn: Conn) -> None:
                try:
                    for _ in range(100):
                        try:
                            free(conn, alloc(conn, MIB))
                        except raw.RawError as error:
                            told(error, EXHAUSTED, error.reason)
                            assert error.reason in ("LIMIT", "DEVICE_MEMORY")
                except BaseException as error:  # noqa: BLE001 - told below
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(conn,)) for conn in (first, second)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures, failures
            raw.eventually(lambda: quota(first, "state_bytes") == held)
            served(second)
        served(first)


def quota(conn: Conn, what: str) -> float:
    return sum(
        value for name, value in conn.stats().items()
        if name.startswith("principal_held") and f'what="{what}"' in name
    )  # fmt: skip


def test_B08_a_second_session_has_its_own_quota(address: str) -> None:
    with Conn(address) as first, Conn(address) as second:
        held = alloc(first, MIB)
        other = alloc(second, MIB)
        refused("LIMIT", alloc, first, MIB + MIB // 2)
        free(first, held)
        free(second, other)
        served(first)


@pytest.mark.parametrize("where", ["tiny", "host"])
def test_B07_upload_larger_than_the_device(address: str, where: str) -> None:
    floats = 5 * MIB
    tensors = [("t", F32, [floats], b"")]
    with Conn(address) as conn:
        message = pb.WeightsPut(
            name="up", total_bytes=4 * floats, placement=raw.rules([("*", where)])
        )
        manifest = raw.manifest(tensors).SerializeToString()
        call = conn.send(raw.PUT, message, manifest, flags=raw.MORE)
        refused("DEVICE_MEMORY", conn.reply, call)
        served(conn)


def test_B07_upload_over_the_limit(address: str) -> None:
    floats = 8 * MIB + 16
    with Conn(address) as conn:
        message = pb.WeightsPut(name="up", total_bytes=4 * floats)
        manifest = raw.manifest([("t", F32, [floats], b"")]).SerializeToString()
        call = conn.send(raw.PUT, message, manifest, flags=raw.MORE)
        error = refused("LIMIT", conn.reply, call)
        assert (error.limit, error.actual) == (32 * MIB, 4 * floats)
        served(conn)


def test_B07_declared_and_aborted(address: str) -> None:
    """Announces much, sends little, gives up; again and again: nothing adds up."""
    tensors = [("t", F32, [2 * MIB], b"")]
    manifest = raw.manifest(tensors).SerializeToString()
    message = pb.WeightsPut(name="up", total_bytes=8 * MIB)
    with Conn(address) as conn:
        for _ in range(1000 if os.environ.get("HEADRACE_FULL") else 100):
            call = conn.send(raw.PUT, message, manifest, flags=raw.MORE)
            assert conn.next_of(call).type == raw.CREDIT
            conn.send(raw.DATA, pb.Data(offset=0), bytes(1000), call_id=call, flags=raw.MORE)
            conn.call(raw.CANCEL, pb.Cancel(request_id=call))
            with pytest.raises(raw.RawError) as caught:
                conn.reply(call)
            told(caught.value, raw.CANCELLED, "CANCELLED")
        raw.eventually(lambda: quota(conn, "uploads") == 0)
        served(conn)


def test_B08_uploads_at_once(address: str) -> None:
    manifest = raw.manifest([("t", F32, [1000], b"")]).SerializeToString()
    message = pb.WeightsPut(name="up", total_bytes=4000)
    with Conn(address) as conn:
        calls = [conn.send(raw.PUT, message, manifest, flags=raw.MORE) for _ in range(3)]
        assert refused("LIMIT", conn.reply, calls[2]).field == "session_uploads"
        for call in calls[:2]:
            conn.call(raw.CANCEL, pb.Cancel(request_id=call))
        served(conn)


def test_B08_counts_of_everything(address: str) -> None:
    tensors = [("t", F32, [4], bytes(16))]
    with Conn(address) as conn:
        sets = [conn.put(f"set{i}", tensors) for i in range(5)]
        assert refused("LIMIT", conn.put, "one more", tensors).field == "session_weights"
        conn.call(raw.DROP, pb.WeightsDrop(handle=sets[0].handle))
        soon(conn.put, "again", tensors)
        graphs = [conn.submit(add_graph(i + 1)).handle for i in range(20)]
        conn.submit(add_graph(50))  # the graph that has been idle longest makes way
        told(conn.fails(raw.RELEASE, pb.Release(handle=graphs[0])), raw.NOT_FOUND, "GRAPH")
        conn.call(raw.RELEASE, pb.Release(handle=graphs[1]))
        conn.call(raw.DROP, pb.WeightsDrop(handle=sets[1].handle))
        many = [(f"t{i}", F32, [1], bytes(4)) for i in range(11)]
        refused("LIMIT", conn.put, "many", many)
        refused("LIMIT", alloc, conn, 1, "host", 11)
        refused("LIMIT", conn.put, "up", tensors, placement=[("x", "host")] * 5)
        long = [("n" * 200 + str(i), F32, [1], bytes(4)) for i in range(9)] * 5
        refused("LIMIT", conn.put, "long", long)
        served(conn)


def test_B08_everything_at_once_and_reconnecting(address: str) -> None:
    """Many connections of one principal, each holding all it can: the sums are exact while they are
    there, and nothing is left when they have gone."""
    with Conn(address) as watcher:
        before = {what: quota(watcher, what) for what in ("states", "graphs", "sessions")}
        for _ in range(3):
            crowd = [Conn(address) for _ in range(5)]
            for conn in crowd:
                alloc(conn, 1000)
                alloc(conn, 1000)
                conn.submit(add_graph())
            assert quota(watcher, "states") - before["states"] == 10
            assert quota(watcher, "state_bytes") >= 40000
            assert quota(watcher, "graphs") - before["graphs"] == 5
            assert quota(watcher, "sessions") - before["sessions"] == 5
            for conn in crowd:
                conn.close()
            raw.eventually(lambda: quota(watcher, "states") == before["states"])
            raw.eventually(lambda: quota(watcher, "graphs") == before["graphs"])
            raw.eventually(lambda: quota(watcher, "sessions") == before["sessions"])
        served(watcher)


def soon(function: Callable[..., Any], *args: Any) -> Any:
    """What was given back counts as free when the devices have let go of it, moments later."""
    found: list[Any] = []

    def attempt() -> bool:
        try:
            found.append(function(*args))
        except raw.RawError as error:
            assert error.code == EXHAUSTED
        return bool(found)

    raw.eventually(attempt, 2.0)
    return found[0]


def wide(floats: int, nodes: int) -> Graph:
    """Sums of shifted copies that all live until the end."""
    graph = Graph()
    x = graph.leaf(INPUT, F32, [16], "x")
    big = graph.node("REPEAT", F32, [floats], (x,))
    parts = [graph.node("SCALE", F32, [floats], (big,), (0x40000000, 0)) for _ in range(nodes)]
    last = big
    for part in parts:
        last = graph.node("ADD", F32, [floats], (last, part))
    graph.node("VIEW", F32, [16], (last,), view=(last, 0), output=True)
    return graph


def test_C23_graph_that_does_not_fit(address: str) -> None:
    with Conn(address) as conn:
        error = refused("DEVICE_MEMORY", conn.submit, wide(MIB, 8))
        assert error.actual > error.limit > 0
        assert conn.submit(wide(MIB, 8), dry_run=True).devices, "a dry run only counts"
        handle = conn.submit(wide(MIB // 16, 4)).handle
        out = struct.unpack("<16f", conn.run(handle, struct.pack("<16f", *range(16))))
        assert out == tuple(float(9 * i) for i in range(16))
        served(conn)


def test_B07_run_with_more_inputs_than_allowed(address: str) -> None:
    with Conn(address) as conn:
        assert refused("LIMIT", conn.submit, add_graph(MIB // 2)).limit == 2 * MIB
        assert conn.submit(add_graph(MIB // 8)).handle
        served(conn)
