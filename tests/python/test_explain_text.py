"""Explanations and traces without a daemon: columns in, text, Graphviz and JSON out."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pydot
import pytest

from headrace import headrace_pb2 as pb
from headrace import trace
from headrace.errors import ProtocolError
from headrace.explain import FALLBACK, NONE, Explanation, cause_words
from headrace.trace import Trace

NAMES = ("x", 'q"\\n\n->;{', "y", "ö\x01z")


def message() -> pb.Explanation:
    """Three nodes on two devices; the first two in one pass, the last a fallback."""
    encoded = [name.encode() for name in NAMES]
    zeros = [0, 0]
    return pb.Explanation(
        rules="headrace", leaf_count=1, node_count=3, n_copies=1, planned_copies=2,
        copies_reason="memory", origin="shapes", first_different=2,
        cause_name=["usr", "1.wgt2"], rule_name=["pins", "writer"], rule_count=[1, 0],
        reason_name=["first"], method_name=["input", "direct"], where_name=["none"],
        device_name=['a"b', "c\\d"], device_type=["GPU", "CPU"], device_memory=["m", "n"],
        device_splits=[1, 1], device_nodes=[2, 1], device_weights_bytes=[7, 0],
        device_state_bytes=[0, 8], device_compute_bytes=[31, 32], device_scratch_bytes=[4, 0],
        device_copies_bytes=[9, 10], device_staging_bytes=[0, 6],
        name_length=list(map(len, encoded)), names=b"".join(encoded), op=[30, 31, 9999],
        tensor_device=[NONE, 0, 0, 1], tensor_cause=[0, 0, 1, 0], tensor_root=[0, 1, 1, 3],
        tensor_notes=[0, 1, 2, FALLBACK], tensor_bytes=[4] * 4, tensor_where=[0] * 4,
        tensor_offset=[0] * 4,
        split_device=[0, 1], split_start=[0, 2], split_end=[2, 3], split_reason=zeros,
        split_inputs=[1, 1], split_steps=[2, 1], step_node=[1, 0, 2], step_joined=[1, 0, 0],
        copy_tensor=[0, 2], copy_source=[NONE, 0], copy_method=[0, 1], copy_back=[0, 1],
        copy_bytes=[4, 4], copy_where=zeros, copy_offset=zeros,
    )  # fmt: skip


def test_text_of_odd_names_and_plans() -> None:
    e = Explanation(message())
    lines = e.text().splitlines()
    assert lines[0] == "plan: 1 leaves, 3 nodes, 2 splits, 1 copies of 2 (memory), rules headrace"
    assert lines[1] == "cache: miss (shapes), first different tensor 2 y"
    assert "rules: pins 1" in lines
    assert lines[3:5] == [
        'device a"b (GPU, memory m): 1 splits, 2 nodes; bytes: weights 7, state 0, compute 31 '
        "(copies 9), scratch 4, staging 0",
        "device c\\d (CPU, memory n): 1 splits, 1 nodes; bytes: weights 0, state 8, compute 32 "
        "(copies 10), scratch 0, staging 6",
    ]
    assert "leaf 0 x: -, usr (pinned), no memory, 4 bytes" in lines
    assert '  node 0 1 q"\\n?->;{ ADD: a"b, usr (pinned), rule pins, no memory, 4 bytes' in lines
    assert '  node 1 2 y SUB: a"b, 1.wgt2 (weight 2 is there), rule writer, in 1' in lines
    assert "  node 2 3 ö?z 9999: c\\d, usr (pinned), fallback, no memory, 4 bytes" in lines
    assert '  input 2 y: copied by a"b, 4 bytes, no memory, carried back' in lines
    assert "  order: 1 0" in lines and "  one pass: 1 SUB, 0 ADD" in lines
    assert [n["fallback"] for n in e.nodes] == [False, False, True]
    assert cause_words("4.fst") == "the first device that supports it" != cause_words("new")


def test_graphviz_of_odd_names() -> None:
    dot = Explanation(message()).dot()
    graphs = pydot.graph_from_dot_data(dot)
    assert graphs is not None and len(graphs) == 1
    clusters = graphs[0].get_subgraph_list()
    assert [len(cluster.get_node_list()) for cluster in clusters] == [2, 1]
    head = graphs[0].get_label()
    for words in ("3 nodes, 2 splits", "miss (shapes)", "weights 7, state 0, compute 31"):
        assert words in head
    nodes = [node for cluster in clusters for node in cluster.get_node_list()]
    assert [node.get("peripheries") for node in nodes] == [None, None, "2"]
    assert [found for found in ("rule pins", "rule writer") if found in nodes[1].get_label()] == [
        "rule writer"
    ]
    assert "fallback" in nodes[2].get_label() and "rule pins" in nodes[0].get_label()
    if program := shutil.which("dot"):
        drawn = subprocess.run([program, "-Tsvg"], input=dot.encode(), capture_output=True)
        assert drawn.returncode == 0 and not drawn.stderr and b"<svg" in drawn.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        {"names": b"x"}, {"op": [1]}, {"tensor_cause": [0, 0, 0, 2]}, {"split_device": [0, 2]},
        {"split_inputs": [1, 2]}, {"copy_tensor": [0, 4]}, {"tensor_bytes": [1]},
        {"step_joined": [1]}, {"device_type": ["GPU"]}, {"measured_runs": 1},
    ],
)  # fmt: skip
def test_columns_that_disagree(wrong: dict[str, Any]) -> None:
    changed = message()
    for name, value in wrong.items():
        changed.ClearField(name)
        changed.MergeFrom(pb.Explanation(**{name: value}))
    if "names" in wrong:
        assert Explanation(changed).leaves[0]["name"] == "x"  # short names are only cut
        return
    with pytest.raises(ProtocolError):
        Explanation(changed)


def test_arrows_lead_from_records_to_waits_of_later_runs() -> None:
    def run(sequence: int, start: int) -> Trace:
        return Trace(
            pb.Trace(
                sequence=sequence, slot=sequence % 2, n_copies=2, started_ns=start,
                ended_ns=start + 50, split_count=1, slot_event_count=1,
                kind_name=["wait", "record"], device_name=["a", "b"],
                kind=[0, 1, 0, 1], device=[1, 0, 1, 0], split=[0, 0, 0, 1],
                subject=[1, 0, 0, 1], bytes=[0] * 4,
                begin_ns=[start + n for n in (0, 10, 5, 30)],
                end_ns=[start + n for n in (1, 11, 20, 31)],
            )
        )  # fmt: skip

    events = trace.chrome([run(1, 1100), run(0, 1000)])["traceEvents"]
    pairs = {
        (e["ts"], next(f["ts"] for f in events if f["ph"] == "f" and f["id"] == e["id"]))
        for e in events
        if e["ph"] == "s"
    }
    # within each run event 0 of its slot; from run 0 to run 1 the end of the lane, event 1
    assert pairs == {(0.01, 0.02), (0.11, 0.12), (0.03, 0.101)}
    with pytest.raises(ProtocolError):
        Trace(pb.Trace(kind=[0], kind_name=[], device=[0], split=[0], subject=[0], bytes=[0],
                       begin_ns=[1], end_ns=[2]))  # fmt: skip
    with pytest.raises(ProtocolError):
        Trace(pb.Trace(kind=[0]))
