"""EXPLAIN: a plan as data over the wire, and the data as text, JSON and Graphviz."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import client_tools
import numpy as np
import pydot
import pytest
from client_tools import client_of, headrace_command, random
from run_daemon import Daemon, device

import headrace
from headrace import aio
from headrace.explain import Explanation
from headrace.graph import Graph

DEVICES = (
    device("cpu0", backend="cpu", memory="isolated", threads=1),
    device("cpu1", backend="cpu", memory="isolated", threads=1),
    device("host", backend="cpu", threads=1),
)
ROWS, WIDTH = 4, 32
BYTES = ROWS * WIDTH * 4


@pytest.fixture(scope="module")
def client() -> Iterator[headrace.Client]:
    """A client of a daemon with two isolated devices and the host's."""
    with client_of(DEVICES) as made:
        yield made


def staged_graph() -> Graph:
    """silu(x * w) on cpu0, that times itself on cpu1, added to a state there."""
    g = Graph()
    x = g.input("x", (ROWS, WIDTH))
    a = g.name(g.mul(x, g.weight("w", (WIDTH,))), "a")
    b = g.name(g.silu(a), "a2")
    c = g.name(g.mul(b, b), "b")
    sum_ = g.state("sum", (ROWS, WIDTH))
    g.output(g.name(g.cpy(g.name(g.add(c, sum_), "b2"), sum_), "b3"), "b4")
    return g


def submit(client: headrace.Client, **options: Any) -> headrace.GraphHandle:
    weights = client.put("w", {"w": np.ones(WIDTH, np.float32)}, {"*": "cpu0"})
    state = client.state({"sum": ("f32", (ROWS, WIDTH))}, {"*": "cpu1"})
    return client.submit(
        staged_graph(),
        weights=[weights],
        states=[state],
        pins={"a*": "cpu0", "b*": "cpu1"},
        **options,
    )


def parsed(dot: str) -> Any:
    """The graph of a dot text; it is one, and Graphviz draws it where that is installed."""
    graphs = pydot.graph_from_dot_data(dot)
    assert graphs is not None and len(graphs) == 1
    program = shutil.which("dot")
    if program:
        subprocess.run([program, "-Tsvg"], input=dot.encode(), capture_output=True, check=True)
    return graphs[0]


def test_every_node_split_copy_and_byte(client: headrace.Client) -> None:
    handle = submit(client, n_copies=2)
    e = handle.explanation()
    assert e.summary["nodes"] == len(e.nodes) == 5 and e.summary["leaves"] == len(e.leaves) == 3
    assert e.summary["n_copies"] == e.summary["planned_copies"] == 2
    assert e.summary["rules"] == "headrace" and e.summary["fallback_nodes"] == 0
    assert [n["device"] for n in e.nodes] == ["cpu0", "cpu0", "cpu1", "cpu1", "cpu1"]
    assert [n["op"] for n in e.nodes] == ["MUL", "UNARY", "MUL", "ADD", "CPY"]
    assert [n["split"] for n in e.nodes] == [0, 0, 1, 1, 1]
    assert {n["cause"] for n in e.nodes[:4]} == {"usr"}
    w = next(leaf for leaf in e.leaves if leaf["name"] == "w")
    assert (w["device"], w["cause"], w["where"]) == ("cpu0", "1.dst", "home")
    assert e.nodes[4]["memory_of"] == e.leaves[2]["id"] and e.leaves[2]["name"] == "sum"
    first, second = e.splits
    assert (first["device"], first["reason"], first["start"], first["end"]) == (
        "cpu0", "first", 0, 2,
    )  # fmt: skip
    assert (second["device"], second["reason"]) == ("cpu1", "backend")
    assert [(i["name"], i["method"], i["bytes"]) for i in first["inputs"]] == [
        ("x", "input", BYTES)
    ]
    assert [(i["name"], i["method"], i["source"], i["bytes"]) for i in second["inputs"]] == [
        ("a2", "direct", "cpu0", BYTES)
    ]
    assert second["inputs"][0]["where"] == "slot" and second["input_bytes"] == BYTES
    assert sorted(first["order"] + second["order"]) == [0, 1, 2, 3, 4]
    assert e.summary["copied_bytes"] == BYTES
    by_name = {d["name"]: d for d in e.devices}
    assert by_name["cpu0"]["weights_bytes"] == WIDTH * 4 and by_name["cpu0"]["state_bytes"] == 0
    assert by_name["cpu1"]["state_bytes"] == BYTES and by_name["cpu1"]["weights_bytes"] == 0
    assert by_name["cpu1"]["copies_bytes"] == 2 * BYTES
    assert by_name["cpu1"]["compute_bytes"] >= by_name["cpu1"]["copies_bytes"]
    assert by_name["host"]["splits"] == 0 == by_name["host"]["compute_bytes"]
    assert [d["splits"] for d in e.devices] == [1, 1, 0]
    assert [d["nodes"] for d in e.devices] == [2, 3, 0]
    for share, found in zip(handle.plan.devices, e.devices, strict=True):
        assert share.device == found["name"]
        for what in ("compute", "weights", "state", "copies", "scratch"):
            assert getattr(share, f"{what}_bytes") == found[f"{what}_bytes"], what
    handle.release()


def test_json_and_text_say_the_same(client: headrace.Client) -> None:
    handle = submit(client)
    e = handle.explanation()
    assert json.loads(e.json()) == json.loads(json.dumps(e.data()))
    assert set(json.loads(e.json())) == {
        "plan", "cache", "rules", "devices", "leaves", "nodes", "splits", "experts", "measured",
    }  # fmt: skip
    text = e.text()
    lines = text.splitlines()
    assert lines[0].startswith("plan: 3 leaves, 5 nodes, 2 splits, ")
    for node in e.nodes:
        found = [line for line in lines if f" {node['id']} {node['name']} {node['op']}:" in line]
        assert len(found) == 1 and f": {node['device']}, {node['cause']} " in found[0]
    for split in e.splits:
        assert any(line.startswith(f"split {split['index']} on {split['device']}:")
                   for line in lines)  # fmt: skip
    assert sum(line.startswith("  input ") for line in lines) == 2
    assert handle.explain() == text == handle.explain()
    handle.release()


def test_graphviz(client: headrace.Client) -> None:
    handle = submit(client)
    graph = parsed(handle.explanation().dot())
    clusters = {s.get_name(): s for s in graph.get_subgraph_list()}
    assert set(clusters) == {"cluster0", "cluster1"}
    assert [n.get_name() for n in clusters["cluster0"].get_node_list()] == ["node0", "node1"]
    assert "split 1 on cpu1" in clusters["cluster1"].get_label()
    labels = {
        (edge.get_source(), edge.get_destination()): edge.get_label()
        for edge in graph.get_edge_list()
        if edge.get_label()
    }
    assert labels == {
        ("leaf0", "node0"): f'"input {BYTES} B"',
        ("node1", "node2"): f'"direct {BYTES} B"',
    }
    colours = {
        node.get_name(): node.get("fillcolor")
        for cluster in clusters.values()
        for node in cluster.get_node_list()
    }
    assert colours["node0"] == colours["node1"] != colours["node2"] == colours["node4"]
    handle.release()


@pytest.mark.parametrize("name", ['say "so"', "back\\slash", "new\nline", "größer", "a->b;", "\\"])
def test_names_of_any_kind(client: headrace.Client, name: str) -> None:
    g = Graph()
    g.output(g.name(g.sqr(g.input("x", (4,))), name), name)
    handle = client.submit(g)
    e = handle.explanation()
    assert e.nodes[0]["name"] == name
    graph = parsed(e.dot())
    labels = [n.get_label() for c in graph.get_subgraph_list() for n in c.get_node_list()]
    assert len(labels) == 1 and labels[0].count("\n") == 0
    handle.release()


def test_hits_and_misses_with_reasons(client: headrace.Client) -> None:
    def build(rows: int) -> Graph:
        g = Graph()
        g.output(g.tanh(g.sqr(g.input("a", (rows, 9)))), "b")
        return g

    first = client.submit(build(3))
    assert first.explanation().cache == {"hit": False, "origin": "new"}
    assert "cache: miss (new)" in first.explain()
    again = client.submit(build(3))
    assert again.explanation().cache == {"hit": True, "origin": "hit"}
    assert "cache: hit\n" in again.explain()
    assert first.explanation().cache["hit"] is False
    other = client.submit(build(5))
    cache = other.explanation().cache
    assert (cache["origin"], cache["first_different"]) == ("shapes", 0)
    assert "first different tensor 0 a" in other.explain()
    pinned = client.submit(build(3), pins={"b": "cpu1"})
    assert pinned.explanation().cache["origin"] == "placement"
    for handle in (first, again, other, pinned):
        handle.release()


@pytest.mark.parametrize(
    ("pins", "cause", "rules"), [({}, "1.dst", []), ({"w": "cpu0"}, "usr", ["write-back"])]
)
def test_rules_name_the_nodes_that_they_touched(
    client: headrace.Client, pins: dict[str, str], cause: str, rules: list[str]
) -> None:
    """A writer that is pinned away from its base has its result carried back."""
    g = Graph()
    held = g.state("held", (4, 8))
    x = g.name(g.sqr(g.input("x", (4, 8))), "x2")
    g.output(g.name(g.cpy(x, held), "w"), "w")
    state = client.state({"held": ("f32", (4, 8))}, {"*": "cpu1"})
    handle = client.submit(g, states=[state], pins={"x2": "cpu0", **pins})
    e = handle.explanation()
    assert (e.nodes[-1]["cause"], e.nodes[-1]["rules"]) == (cause, rules)
    assert e.nodes[-1]["device"] == ("cpu0" if pins else "cpu1")
    assert all(e.rules[rule] == 1 for rule in rules)
    assert ("rule write-back" in e.text()) == bool(rules)
    assert any(i["carried_back"] for s in e.splits for i in s["inputs"]) == bool(rules)
    value = random(4, 8)
    handle.run([value])
    assert (state.read("held") == value * value).all()
    handle.release()
    state.free()


@pytest.mark.parametrize(("cap", "fewest", "most"), [("3M", 2, 7), ("1M", 1, 1)])
def test_fewer_copies_where_memory_is_short(cap: str, fewest: int, most: int) -> None:
    """What is explained is the plan that runs, with the memory that it holds."""
    small = (
        device("cpu0", backend="cpu", memory="isolated", threads=1, memory_cap=cap),
        device("cpu1", backend="cpu", memory="isolated", threads=1, memory_cap=cap),
        device("host", backend="cpu", threads=1),
    )
    with client_of(small) as client:
        g = Graph()
        y = g.input("x", (100000,))
        for hop in range(2):
            y = g.name(g.scale(g.name(g.scale(y, 2.0), f"a{hop}"), 0.5), f"b{hop}")
        g.output(y, "b2")
        handle = client.submit(g, pins={"a*": "cpu0", "b*": "cpu1"}, n_copies=8)
        e = handle.explanation()
        assert fewest <= e.summary["n_copies"] == handle.plan.n_copies <= most
        assert e.summary["planned_copies"] == 8
        assert e.summary["copies_reason"] == handle.plan.copies_reason == "memory"
        assert f"{e.summary['n_copies']} copies of 8 (memory)" in e.text()
        assert all(d["compute_bytes"] <= int(cap[0]) << 20 for d in e.devices)
        slots = [i for s in e.splits for i in s["inputs"] if i["where"] == "slot"]
        if e.summary["n_copies"] > 1:
            assert sum(d["copies_bytes"] for d in e.devices) >= 400000 * len(slots)


@pytest.mark.parametrize(
    ("cap", "rules", "words"),
    [("8M", "headrace", "early"), ("400K", "headrace", "memory"), ("8M", "ggml", "in turn")],
)
def test_how_weights_arrive(cap: str, rules: str, words: str) -> None:
    """Of several layers' weights in host memory all but the first arrive early, where memory is not
    short: two of them are there at a time."""
    devices = (
        device("cpu0", backend="cpu", memory="isolated", threads=1, memory_cap=cap),
        device("host", backend="cpu", threads=1),
    )
    ws = {f"w{i}": random(256, 256, seed=i) for i in range(3)}
    g = Graph()
    y = g.input("x", (1, 256))
    for name in ws:
        y = g.name(g.mul_mat(g.weight(name, (256, 256)), y), f"y{name}")
    g.output(y, "y")
    with client_of(devices) as client:
        held = client.put("w", ws, {"*": "host"})
        handle = client.submit(g, weights=[held], pins={"y*": "cpu0"}, rules=rules, n_copies=1)
        e = handle.explanation()
        assert handle.plan.uploads == e.summary["uploads"] == words
        arriving = {i["name"]: i["early"] for s in e.splits for i in s["inputs"]}
        assert arriving == {"x": False, "w0": False, "w1": words == "early", "w2": words == "early"}
        assert e.text().count(", early\n") == (2 if words == "early" else 0)
        assert ("as memory is short" in e.text()) == (words == "memory")
        assert "weights from host memory: " in e.text()
        here = client.put("here", ws, {"*": "cpu0"}) if cap == "8M" else None
        if here:
            plain = client.submit(g, weights=[here], rules=rules)
            assert plain.plan.uploads == plain.explanation().summary["uploads"] == ""


def test_analyze(client: headrace.Client) -> None:
    handle = submit(client)
    assert handle.explanation().measured is None
    assert all("measured" not in split for split in handle.explanation().splits)
    inputs = {"x": random(ROWS, WIDTH)}
    handle.run(inputs)
    assert handle.explanation().measured is None
    e = handle.analyze(inputs, runs=3)
    assert e.measured is not None
    assert e.measured["runs"] == 3 and e.measured["run_ns"] > 0
    for split, nbytes in zip(e.splits, (BYTES, BYTES), strict=True):
        figures = split["measured"]
        assert 0 < figures["compute_ns"] < e.measured["run_ns"]
        assert figures["bytes"] == nbytes and figures["copy_ns"] >= 0 and figures["wait_ns"] >= 0
    assert "measured: 3 runs, median " in e.text()
    assert e.text().count("; measured: compute ") == 2
    assert json.loads(e.json())["splits"][1]["measured"]["bytes"] == BYTES
    assert "us" in parsed(e.dot()).get_subgraph_list()[0].get_label()
    assert handle.analyze(inputs, runs=20).measured == {
        "runs": 16, "run_ns": handle.explanation().measured["run_ns"],
    }  # fmt: skip
    assert (handle.run(inputs, outputs=[]).trace, handle.explanation().measured["runs"]) == (
        None, 16,
    )  # fmt: skip
    handle.release()


def test_a_long_explanation(client: headrace.Client) -> None:
    """More splits than one body holds the explanation of."""
    g = Graph()
    y = g.input("x", (4,))
    hops = 4000
    for hop in range(hops):
        y = g.name(g.scale(y, 1.0), f"{'ab'[hop % 2]}{hop} with {'a long name ' * 20}")
    g.output(y, f"b{hops}")
    handle = client.submit(g, pins={"a*": "cpu0", "b*": "cpu1"})
    e = handle.explanation()
    assert sum(len(node["name"]) for node in e.nodes) > client.body_max * 9 // 10
    assert len(e.splits) == len(e.nodes) == hops
    assert e.nodes[-2]["name"].startswith(f"a{hops - 2} with")
    assert [s["device"] for s in e.splits[:3]] == ["cpu0", "cpu1", "cpu0"]
    handle.release()


def test_asyncio() -> None:
    async def work(address: str) -> tuple[Explanation, str]:
        async with await aio.connect(address) as client:
            g = Graph()
            g.output(g.sqr(g.input("x", (4,))), "y")
            handle = await client.submit(g)
            explanation = await handle.analyze([np.ones(4, np.float32)], runs=2)
            return explanation, await handle.explain()

    with Daemon(devices=DEVICES) as daemon:
        explanation, text = asyncio.run(work(daemon.address))
    assert explanation.measured is not None and explanation.measured["runs"] == 2
    assert "SQR" in text and text == explanation.text()


def test_what_is_no_explanation() -> None:
    from headrace import headrace_pb2 as pb
    from headrace.errors import ProtocolError

    message = pb.Explanation(leaf_count=1, node_count=1, name_length=[1, 1], names=b"ab", op=[1])
    with pytest.raises(ProtocolError):
        Explanation(message)
    for wrong in (
        pb.Explanation(device_name=["a"], device_type=[]),
        pb.Explanation(split_device=[3]),
        pb.Explanation(rule_name=["a"]),
    ):
        with pytest.raises(ProtocolError):
            Explanation(wrong)


def test_command_line(tmp_path: Any) -> None:
    client_tools.write_model(tmp_path / "tiny.gguf")
    with Daemon(devices=DEVICES, models=[tmp_path]) as daemon:
        explain = ("explain", "tiny.gguf", "--devices", "cpu0:2,cpu1:2", "--batch", "3")
        text = headrace_command(daemon, *explain)
        assert text.returncode == 0, text.stderr
        assert "split 1 on cpu1" in text.stdout and "measured" not in text.stdout
        data = json.loads(headrace_command(daemon, *explain, "--format", "json").stdout)
        assert data["cache"]["hit"] and len(data["splits"]) >= 2
        assert {d["name"]: d["weights_bytes"] > 0 for d in data["devices"]} == {
            "cpu0": True, "cpu1": True, "host": False,
        }  # fmt: skip
        dot = headrace_command(daemon, *explain, "--format", "dot").stdout
        assert len(parsed(dot).get_subgraph_list()) == len(data["splits"])
        measured = headrace_command(daemon, *explain, "--format", "json", "--analyze", "2")
        assert json.loads(measured.stdout)["measured"]["runs"] == 2, measured.stderr
        assert "measured: 5 runs" in headrace_command(daemon, *explain, "--analyze").stdout


