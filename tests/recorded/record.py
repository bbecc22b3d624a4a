"""Writes the conversations of tests/recorded/v1 anew: python tests/recorded/record.py [FOLDER [NAME]...]

To be run once, before a version is released; afterwards its recordings are never changed, and a new
version gets a folder of its own. HEADRACE_BUILD names the build whose daemon is recorded.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests/tools", "tests/integration", "tests/recorded"):
    sys.path.insert(0, str(ROOT / folder))

import raw  # noqa: E402
import streams  # noqa: E402
from run_daemon import Daemon, device  # noqa: E402

DEVICES = (
    device("cpu0", backend="cpu", threads=1, memory="isolated"),
    device("cpu1", backend="cpu", threads=1, memory="isolated"),
    device("host", backend="cpu", threads=1),
)
pb = raw.pb


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def doubler() -> raw.Graph:
    """y = x + x of four floats."""
    graph = raw.Graph()
    x = graph.leaf(raw.INPUT, raw.F32, [4], "x")
    graph.node("ADD", raw.F32, [4], (x, x), output=True)
    return graph


def first(conn: streams.Recorder) -> None:
    conn.comment("a ping")
    conn.call(raw.PING, pb.Ping(cookie=0x0102030405060708))
    conn.comment("a graph, its run, its end")
    handle = conn.submit(doubler()).handle
    assert conn.run(handle, floats(1, 2, 3, 4)) == floats(2, 4, 6, 8)
    conn.call(raw.RELEASE, pb.Release(handle=handle))


def weights(conn: streams.Recorder) -> None:
    matrix = floats(*range(12))
    conn.comment("a set of two tensors, its manifest")
    made = conn.put("recorded", [("b", raw.F32, [3], floats(1, 2, 3)), ("w", raw.F32, [3, 4], matrix)])
    conn.call(raw.TENSORS, pb.WeightsTensors(handle=made.handle))
    graph = raw.Graph()
    w = graph.leaf(raw.WEIGHT, raw.F32, [3, 4], "w")
    x = graph.leaf(raw.INPUT, raw.F32, [3], "x")
    graph.node("MUL_MAT", raw.F32, [4], (w, x), output=True)
    conn.comment("a product with it, pinned to another device")
    pins = [pb.Pin(pattern="*", device="cpu1")]
    handle = conn.submit(graph, weights=[made.handle], pins=pins).handle
    assert conn.run(handle, floats(1, 1, 1)) == floats(3, 12, 21, 30)
    conn.comment("whether devices could compute it; what is planned")
    conn.call(raw.OPS, pb.Ops(), graph.encode().SerializeToString())
    conn.call(raw.EXPLAIN, pb.Explain(handle=handle))
    conn.comment("a dry run takes nothing")
    conn.submit(graph, weights=[made.handle], dry_run=True)
    conn.call(raw.RELEASE, pb.Release(handle=handle))
    conn.call(raw.LIST, pb.WeightsList())
    conn.call(raw.DROP, pb.WeightsDrop(handle=made.handle))


def states(conn: streams.Recorder) -> None:
    tensors = [("s", raw.F32, [4], b"")]
    conn.comment("a state: allocated, written, read, added to by runs, freed")
    state, _ = conn.call(
        raw.STATE_ALLOC, pb.StateAlloc(), raw.manifest(tensors).SerializeToString()
    )
    conn.call(raw.STATE_WRITE, pb.StateWrite(handle=state.handle, tensor=0, offset=4, bytes=8),
              floats(5, 6))  # fmt: skip
    conn.call(raw.STATE_READ, pb.StateRead(handle=state.handle, tensor=0, offset=0, bytes=16))
    graph = raw.Graph()
    s = graph.leaf(raw.STATE, raw.F32, [4], "s")
    x = graph.leaf(raw.INPUT, raw.F32, [4], "x")
    total = graph.node("ADD", raw.F32, [4], (s, x))
    graph.node("CPY", raw.F32, [4], (total, s), view=(s, 0), output=True)
    conn.comment("two runs, the second without outputs, then both steps in one sequence")
    handle = conn.submit(graph, states=[state.handle]).handle
    assert conn.run(handle, floats(1, 1, 1, 1)) == floats(1, 6, 7, 1)
    conn.run(handle, floats(1, 1, 1, 1), no_outputs=True)
    conn.call(raw.SEQUENCE, pb.Sequence(steps=[pb.Step(handle=handle), pb.Step(handle=handle)]),
              floats(1, 0, 0, 0) + floats(0, 0, 0, 1))  # fmt: skip
    conn.call(raw.SYNC, pb.Sync())
    conn.comment("memory reserved for the graph, and given back")
    body = graph.encode().SerializeToString()
    wanted = pb.Submit(graph_bytes=len(body), states=[state.handle])
    reserved, _ = conn.call(raw.RESERVE, pb.Reserve(graphs=[wanted]), body)
    conn.call(raw.RELEASE, pb.Release(handle=reserved.handle))
    conn.call(raw.RELEASE, pb.Release(handle=handle))
    conn.call(raw.STATE_FREE, pb.StateFree(handle=state.handle))


def errors(conn: streams.Recorder) -> None:
    conn.comment("handles of nothing")
    conn.fails(raw.RUN, pb.Run(handle=12345), floats(1))
    conn.fails(raw.RELEASE, pb.Release(handle=12345))
    conn.fails(raw.DROP, pb.WeightsDrop(handle=12345))
    conn.fails(raw.STATE_READ, pb.StateRead(handle=12345, tensor=0, offset=0, bytes=4))
    conn.comment("a graph that the daemon does not have")
    conn.fails(raw.SUBMIT, pb.Submit(digest=bytes(range(32))))
    conn.comment("shapes that do not fit, an operator that is none, a weight that is in no set")
    graph = raw.Graph()
    a = graph.leaf(raw.INPUT, raw.F32, [4], "a")
    b = graph.leaf(raw.INPUT, raw.F32, [3], "b")
    graph.node("ADD", raw.F32, [4], (a, b), output=True)
    conn.submit_fails(graph)
    graph = raw.Graph()
    w = graph.leaf(raw.WEIGHT, raw.F32, [4], "w")
    graph.node("ADD", raw.F32, [4], (w, w), output=True)
    conn.submit_fails(graph)
    conn.comment("inputs of another length; an output that is none")
    handle = conn.submit(doubler()).handle
    conn.fails(raw.RUN, pb.Run(handle=handle), floats(1))
    conn.fails(raw.RUN, pb.Run(handle=handle, outputs=[7]), floats(1, 2, 3, 4))
    conn.comment("a path outside; a message that is no protobuf; a type that nobody knows")
    conn.fails(raw.LOAD, pb.WeightsLoad(path="../secret.gguf"))
    conn.fails(raw.RUN, b"\xff\xff\xff")
    conn.fails(127)
    conn.comment("nothing of which has hurt anybody")
    assert conn.run(handle, floats(1, 2, 3, 4)) == floats(2, 4, 6, 8)


def operate(conn: streams.Recorder) -> None:
    conn.comment("what there is: status, sessions, plans, quotas")
    conn.call(raw.STATUS, pb.Status())
    conn.call(raw.SESSIONS, pb.Sessions())
    handle = conn.submit(doubler()).handle
    conn.call(raw.PLANS, pb.Plans())
    conn.call(raw.QUOTAS, pb.Quotas())
    conn.comment("a plan that is listed; one that is not")
    conn.call(raw.EXPLAIN, pb.Explain(session=1, graph=1))
    conn.fails(raw.EXPLAIN, pb.Explain(session=1, graph=9))
    conn.comment("the configuration is read again; idle graphs and plans go; nothing of this name does")
    conn.call(raw.RELOAD, pb.Reload())
    conn.call(raw.EVICT, pb.Evict(what="graphs"))
    conn.call(raw.EVICT, pb.Evict(what="plans"))
    conn.fails(raw.EVICT, pb.Evict(what="everything"))
    conn.fails(raw.RUN, pb.Run(handle=handle), floats(1, 2, 3, 4))
    conn.comment("health; a drain")
    conn.call(raw.HEALTH, pb.Health())
    conn.call(raw.DRAIN, pb.Drain(limit_ms=5000))


def more(conn: streams.Recorder) -> None:
    conn.comment("devices; what there is of contents; the cache on disk, which is off")
    conn.call(raw.DEVICES, pb.Devices())
    conn.call(raw.QUERY, pb.WeightsQuery(digests=bytes(32)))
    conn.call(raw.PURGE, pb.WeightsPurge())
    conn.comment("a set that is copied to a device: credit, and how far it is")
    body = floats(*range(32))
    conn.put("copied", [("w", raw.F32, [32], body)], placement=[("*", "cpu0")])
    conn.comment("a state: as a whole, saved, restored, forked")
    tensors = [("s", raw.F32, [4], b"")]
    state, _ = conn.call(
        raw.STATE_ALLOC, pb.StateAlloc(), raw.manifest(tensors).SerializeToString()
    )
    conn.call(raw.STATE_WRITE, pb.StateWrite(handle=state.handle, tensor=0, bytes=16),
              floats(1, 2, 3, 4))  # fmt: skip
    saved, whole = conn.call(raw.STATE_SAVE, pb.StateSave(handle=state.handle))
    conn.call(raw.STATE_RESTORE, pb.StateRestore(manifest_bytes=saved.manifest_bytes), whole)
    conn.call(raw.STATE_FORK, pb.StateFork(handle=state.handle))
    conn.comment("a run that is observed, and goes on; one that is stopped at its tap")
    handle = conn.submit(doubler(), taps=[1]).handle
    for stop in (False, True):
        call_id = conn.begin(raw.RUN, pb.Run(handle=handle, observe=True), floats(1, 2, 3, 4))
        push = conn.next_of(call_id)
        assert push.type == raw.TAP and push.body == floats(2, 4, 6, 8)
        conn.call(raw.TAP, pb.Tap(run=call_id, tap=0, stop=stop))
        if not stop:
            assert conn.reply(call_id)[1] == floats(2, 4, 6, 8)
            continue
        try:
            conn.reply(call_id)
        except raw.RawError as error:
            assert error.reason == "TAP_STOP"
    conn.comment("a request that nobody has made is not there to be cancelled")
    conn.call(raw.CANCEL, pb.Cancel(request_id=12345))
    conn.comment("counters, what the client holds, what has been traced, the counters as text")
    conn.call(raw.STATS, pb.StatsRequest())
    conn.call(raw.QUOTA, pb.Quota())
    conn.call(raw.TRACE, pb.TraceAsk(own=True))
    conn.call(raw.METRICS, pb.Metrics())
    conn.comment("a drain: the daemon goes")
    conn.call(raw.DRAIN, pb.Drain(limit_ms=5000))
    conn.closed()


def long(conn: streams.Recorder) -> None:
    """Frames hold 4096 bytes of a body here."""
    numbers = floats(*(float(i % 7) for i in range(1500)))
    graph = raw.Graph()
    x = graph.leaf(raw.INPUT, raw.F32, [1500], "x")
    graph.node("ADD", raw.F32, [1500], (x, x), output=True)
    handle = conn.submit(graph).handle
    conn.comment("inputs and outputs that are longer than a frame")
    assert conn.run(handle, numbers) == floats(*(float(i % 7 * 2) for i in range(1500)))


def passed(conn: streams.Recorder) -> None:
    tensors = [("w", raw.F32, [4], floats(1, 2, 3, 4))]
    contents = raw.contents(tensors)
    conn.comment("contents in sealed memory")
    conn.call_with(
        raw.PUT_FD, pb.WeightsPut(name="passed", total_bytes=len(contents)),
        raw.manifest(tensors).SerializeToString(), contents, False,
    )  # fmt: skip
    conn.comment("memory for inputs and outputs: a run sends neither")
    memory = floats(1, 2, 3, 4) + bytes(16)
    added = conn.call_with(
        raw.REGION_ADD, pb.RegionAdd(bytes=len(memory), writable=True), b"", memory, True
    )
    handle = conn.submit(doubler()).handle
    conn.call(raw.RUN, pb.Run(handle=handle, input_region=added.handle,
                              output_region=added.handle, output_offset=16))  # fmt: skip
    state, _ = conn.call(
        raw.STATE_ALLOC, pb.StateAlloc(), raw.manifest([("s", raw.F32, [4], b"")]).SerializeToString()
    )
    conn.comment("a state is written from there, and read over the socket: what the run has given")
    conn.call(raw.STATE_WRITE, pb.StateWrite(handle=state.handle, tensor=0, bytes=16,
                                             region=added.handle, region_offset=16))  # fmt: skip
    _, body = conn.call(raw.STATE_READ, pb.StateRead(handle=state.handle, tensor=0, bytes=16))
    assert body == floats(2, 4, 6, 8)
    conn.call(raw.REGION_DROP, pb.RegionDrop(handle=added.handle))


# How a daemon is configured otherwise, and what the client can do.
SECTIONS: dict[str, dict[str, dict[str, object]]] = {"long": {"limits": {"body_bytes": 4096}}}
FEATURES = {"more": ("progress",)}
LOCAL = {"passed"}  # over Unix sockets alone

CONVERSATIONS = {
    "first": (first, "Hello, a ping, a graph of one node and a run of it."),
    "weights": (weights, "A set is uploaded and used."),
    "states": (states, "A state is written by runs; a sequence; a reservation."),
    "operate": (operate, "Questions and orders of who runs the daemon, to its end."),
    "more": (more, "Whatever else there is, with what the daemon says unasked."),
    "long": (long, "Bodies of more than one frame."),
    "passed": (passed, "Memory that is passed over a Unix socket."),
    "errors": (errors, "Requests that are refused, on a connection that stays."),
}


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else streams.FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for name, (talk, notes) in CONVERSATIONS.items():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        with Daemon(devices=DEVICES, sections=SECTIONS.get(name, {})) as daemon:
            with streams.Recorder(daemon.address, notes, FEATURES.get(name, ())) as conn:
                talk(conn)
                (target / f"{name}.txt").write_text(conn.text())


if __name__ == "__main__":
    main()
