"""Out of memory and quotas (HOSTILE B7, B8, C23): refused before anything is taken, with what was
asked and what there is, and everything is counted exactly afterwards."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import raw
from raw import EXHAUSTED, F32, INPUT, INVALID, Conn, Graph, add_graph, pb
from run_daemon import device

MIB = 1 << 20


@pytest.fixture(scope="module")
def daemon() -> Iterator[Any]:
    """Little of everything."""
    from devices import start_daemon

    running = start_daemon(
        devices=[
            device("tiny", threads=1, memory="isolated", memory_cap="1M"),
            device("cpu1", threads=1, memory="isolated", memory_cap="16M"),
            device("host", threads=1, memory_cap="16M"),
        ],
        tcp=True,
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


def refused(function: Callable[..., Any], *args: Any, **keys: Any) -> raw.RawError:
    with pytest.raises(raw.RawError) as caught:
        function(*args, **keys)
    error = caught.value
    assert error.code == EXHAUSTED, error
    return error


@pytest.mark.parametrize("floats", [2**61 - 16, 2**40, 2**28, 2 * MIB + 1])
def test_B07_one_huge_state(address: str, floats: int) -> None:
    with Conn(address) as conn:
        try:
            alloc(conn, floats)
        except raw.RawError as error:
            assert error.code in (EXHAUSTED, INVALID)
            if error.code == EXHAUSTED:
                assert error.error.actual > error.error.limit > 0
        else:
            raise AssertionError("more than the session may have")
        free(conn, alloc(conn, 1000))


def test_C23_more_than_the_device_has(address: str) -> None:
    with Conn(address) as conn:
        error = refused(alloc, conn, MIB // 2, "tiny")
        assert error.error.actual >= 2 * MIB and 0 < error.error.limit <= MIB
        kept = alloc(conn, 1000, "tiny")
        refused(alloc, conn, MIB // 4, "tiny")
        where = {"handle": kept, "tensor": 0, "offset": 0, "bytes": 4000}
        assert conn.call(raw.STATE_READ, pb.StateRead(**where))[1] == bytes(4000)


def test_B07_many_small_ones_sum_exactly(address: str) -> None:
    with Conn(address) as conn:
        for _ in range(3):
            kept = [alloc(conn, MIB // 4) for _ in range(5)]
            refused(alloc, conn, 1)  # the count
            for handle in kept[1:]:
                free(conn, handle)
            kept = [kept[0], *(soon(alloc, conn, MIB // 4 - 16) for _ in range(4))]
            for handle in kept:
                free(conn, handle)
            big = soon(alloc, conn, 2 * MIB - 1024)
            refused(alloc, conn, MIB)  # the bytes
            free(conn, big)


def test_B08_a_second_session_has_its_own_quota(address: str) -> None:
    with Conn(address) as first, Conn(address) as second:
        held = alloc(first, MIB)
        other = alloc(second, MIB)
        refused(alloc, first, MIB + MIB // 2)
        free(first, held)
        free(second, other)


@pytest.mark.parametrize("where", ["tiny", "host"])
def test_upload_larger_than_the_device(address: str, where: str) -> None:
    floats = 5 * MIB
    tensors = [("t", F32, [floats], b"")]
    with Conn(address) as conn:
        message = pb.WeightsPut(
            name="up", total_bytes=4 * floats, placement=raw.rules([("*", where)])
        )
        manifest = raw.manifest(tensors).SerializeToString()
        call = conn.send(raw.PUT, message, manifest, flags=raw.MORE)
        assert refused(conn.reply, call).words


def test_upload_over_the_limit(address: str) -> None:
    floats = 8 * MIB + 16
    with Conn(address) as conn:
        message = pb.WeightsPut(name="up", total_bytes=4 * floats)
        manifest = raw.manifest([("t", F32, [floats], b"")]).SerializeToString()
        call = conn.send(raw.PUT, message, manifest, flags=raw.MORE)
        error = refused(conn.reply, call)
        assert (error.error.limit, error.error.actual) == (32 * MIB, 4 * floats)


def test_B07_declared_and_aborted(address: str) -> None:
    """Announces much, sends little, gives up; again and again: nothing adds up."""
    tensors = [("t", F32, [2 * MIB], b"")]
    manifest = raw.manifest(tensors).SerializeToString()
    message = pb.WeightsPut(name="up", total_bytes=8 * MIB)
    with Conn(address) as conn:
        for _ in range(100):
            call = conn.send(raw.PUT, message, manifest, flags=raw.MORE)
            assert conn.next_of(call).type == raw.CREDIT
            conn.send(raw.DATA, pb.Data(offset=0), bytes(1000), call_id=call, flags=raw.MORE)
            conn.call(raw.CANCEL, pb.Cancel(request_id=call))
            with pytest.raises(raw.RawError) as caught:
                conn.reply(call)
            assert caught.value.code == raw.CANCELLED


def test_B08_uploads_at_once(address: str) -> None:
    manifest = raw.manifest([("t", F32, [1000], b"")]).SerializeToString()
    message = pb.WeightsPut(name="up", total_bytes=4000)
    with Conn(address) as conn:
        calls = [conn.send(raw.PUT, message, manifest, flags=raw.MORE) for _ in range(3)]
        refused(conn.reply, calls[2])
        for call in calls[:2]:
            conn.call(raw.CANCEL, pb.Cancel(request_id=call))


def test_B08_counts_of_everything(address: str) -> None:
    tensors = [("t", F32, [4], bytes(16))]
    with Conn(address) as conn:
        sets = [conn.put(f"set{i}", tensors) for i in range(5)]
        refused(conn.put, "one more", tensors)
        conn.call(raw.DROP, pb.WeightsDrop(handle=sets[0].handle))
        soon(conn.put, "again", tensors)
        graphs = [conn.submit(add_graph(i + 1)).handle for i in range(20)]
        conn.submit(add_graph(50))  # the graph that has been idle longest makes way
        assert conn.fails(raw.RELEASE, pb.Release(handle=graphs[0])).code == raw.NOT_FOUND
        conn.call(raw.RELEASE, pb.Release(handle=graphs[1]))
        many = [(f"t{i}", F32, [1], bytes(4)) for i in range(11)]
        refused(conn.put, "many", many)
        refused(alloc, conn, 1, "host", 11)
        with pytest.raises(raw.RawError) as caught:
            conn.put("up", tensors, placement=[("x", "host")] * 5)
        assert caught.value.code in (EXHAUSTED, INVALID)
        long = [("n" * 200 + str(i), F32, [1], bytes(4)) for i in range(9)] * 5
        with pytest.raises(raw.RawError) as caught:
            conn.put("long", long)
        assert caught.value.code in (EXHAUSTED, INVALID)


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
        error = refused(conn.submit, wide(MIB, 8))
        assert error.error.actual > error.error.limit > 0 and error.words
        assert conn.submit(wide(MIB, 8), dry_run=True).devices, "a dry run only counts"
        handle = conn.submit(wide(MIB // 16, 4)).handle
        out = struct.unpack("<16f", conn.run(handle, struct.pack("<16f", *range(16))))
        assert out == tuple(float(9 * i) for i in range(16))


def test_run_with_more_inputs_than_allowed(address: str) -> None:
    with Conn(address) as conn:
        try:
            handle = conn.submit(add_graph(MIB // 2)).handle
        except raw.RawError as error:
            assert error.code == EXHAUSTED
            return
        call = conn.send(
            raw.RUN, pb.Run(handle=handle, input_bytes=4 * MIB), b"", flags=raw.MORE
        )
        error = refused(conn.reply, call)
        assert error.error.limit == 2 * MIB
