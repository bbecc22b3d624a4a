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


CONVERSATIONS = {
    "first": (first, "Hello, a ping, a graph of one node and a run of it."),
    "weights": (weights, "A set is uploaded and used."),
    "states": (states, "A state is written by runs; a sequence; a reservation."),
    "operate": (operate, "Questions and orders of who runs the daemon, to its end."),
    "errors": (errors, "Requests that are refused, on a connection that stays."),
}


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else streams.FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for name, (talk, notes) in CONVERSATIONS.items():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        with Daemon(devices=DEVICES) as daemon, streams.Recorder(daemon.address, notes) as conn:
            talk(conn)
            (target / f"{name}.txt").write_text(conn.text())


if __name__ == "__main__":
    main()
