"""What the daemon has planned for a graph, as data; and the data as text, JSON or Graphviz.

explanation = handle.explanation()
explanation.devices[0]["weights_bytes"], explanation.nodes[7]["device"], explanation.splits[1]
print(explanation.text())

Everything is made of dicts, lists, strings and numbers: data() is what the JSON shows, and text and
graph are views of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from headrace import headrace_pb2 as pb
from headrace.errors import ProtocolError
from headrace.op import Op

NONE = 0xFFFFFFFF
FALLBACK = 1 << 31

METHODS = {
    "input": "from the run",
    "constant": "constant, once",
    "host": "from host memory",
    "experts": "used experts from host memory",
    "direct": "copied",
    "staged": "copied through host memory",
}
UPLOADS = {
    "early": "while their device computes",
    "in turn": "in turn with computation",
    "memory": "in turn with computation, as memory is short",
}
CAUSES = {
    "-": "nothing asked for one",
    "usr": "pinned",
    "1.dst": "its memory is there",
    "1.vsrc": "its base's memory is there",
    "1.inp": "inputs start on the last device",
    "1.off": "offloaded: worth moving its weight",
    "2.gd": "after a node of that GPU",
    "2.gu": "before a node of that GPU",
    "2.rd": "after a node of that device",
    "2.ru": "before a node of that device",
    "3.best": "supports most of its inputs",
    "3.upg": "a device of higher priority with the same memory",
    "4.vsrc": "follows its base",
    "4.cur": "follows its consumer",
    "4.fst": "the first device that supports it",
    "4.cpy": "copied where it is needed",
    "h.writer": "moved to where its base's memory is",
    "h.view": "follows the first view of it",
}

Record = dict[str, Any]


def cause_words(cause: str) -> str:
    """A cause in words; "1.wgt2": its source 2 is a weight."""
    if cause.startswith("1.wgt"):
        return f"weight {cause[5:]} is there"
    return CAUSES.get(cause, cause)


def rows(length: int, **columns: Sequence[Any]) -> list[Record]:
    """Columns of equal length as one dict per row."""
    for name, column in columns.items():
        if len(column) != length:
            raise ProtocolError(f"{len(column)} of {name}, not {length}", reason="PROTOCOL")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def pick(names: Sequence[str], positions: Iterable[int]) -> list[str]:
    """The names at those positions."""
    try:
        return [names[position] for position in positions]
    except IndexError:
        raise ProtocolError("a position past a list of names", reason="PROTOCOL") from None


class Explanation:
    """A plan: devices, leaves, nodes, splits, experts, rules, cache, and what was measured.

    devices, leaves, nodes, splits, experts: one dict per item. summary, cache: one dict. rules:
    {name: how often it changed a decision}. measured: None, or {"runs", "run_ns"}, and each split
    has "measured" with the medians of compute_ns, copy_ns, wait_ns and bytes.
    """

    def __init__(self, message: pb.Explanation) -> None:
        m = message
        self.summary: Record = {
            "rules": m.rules,
            "leaves": m.leaf_count,
            "nodes": m.node_count,
            "splits": len(m.split_device),
            "n_copies": m.n_copies,
            "planned_copies": m.planned_copies,
            "copies_reason": m.copies_reason,
            "uploads": m.uploads,
            "copied_bytes": m.copied_bytes,
            "staging_bytes": m.staging_bytes,
            "fallback_nodes": m.fallback_nodes,
        }
        counts = rows(len(m.rule_name), name=m.rule_name, count=m.rule_count)
        self.rules: dict[str, int] = {r["name"]: r["count"] for r in counts if r["count"]}
        self.devices = rows(
            len(m.device_name),
            name=list(m.device_name),
            type=list(m.device_type),
            memory=list(m.device_memory),
            splits=m.device_splits,
            nodes=m.device_nodes,
            weights_bytes=m.device_weights_bytes,
            state_bytes=m.device_state_bytes,
            compute_bytes=m.device_compute_bytes,
            scratch_bytes=m.device_scratch_bytes,
            copies_bytes=m.device_copies_bytes,
            staging_bytes=m.device_staging_bytes,
        )
        self._names = [device["name"] for device in self.devices]
        tensors = self._tensors(m)
        self.leaves, self.nodes = tensors[: m.leaf_count], tensors[m.leaf_count :]
        self._fill_nodes(m)
        self.splits = self._splits(m, tensors)
        self.experts = self._groups(m, tensors)
        self.cache: Record = {"hit": m.origin == "hit", "origin": m.origin}
        if m.origin == "shapes" and m.first_different < len(tensors):
            self.cache["first_different"] = m.first_different
            self.cache["first_different_name"] = tensors[m.first_different]["name"]
        self.measured: Record | None = None
        if m.measured_runs:
            self.measured = {"runs": m.measured_runs, "run_ns": m.measured_run_ns}
            figures = rows(
                len(self.splits),
                compute_ns=m.split_compute_ns,
                copy_ns=m.split_copy_ns,
                wait_ns=m.split_wait_ns,
                bytes=m.split_moved_bytes,
            )
            for split, figure in zip(self.splits, figures, strict=True):
                split["measured"] = figure

    # ---- from columns --------------------------------------------------------------------------

    def _device(self, number: int) -> str | None:
        return None if number == NONE else pick(self._names, [number])[0]

    def _tensors(self, m: pb.Explanation) -> list[Record]:
        count = m.leaf_count + m.node_count
        if len(m.name_length) != count:
            raise ProtocolError(f"{len(m.name_length)} names of {count}", reason="PROTOCOL")
        cuts = list(accumulate(m.name_length, initial=0))
        names = [m.names[a:b].decode("utf-8", "replace") for a, b in pairwise(cuts)]
        return rows(
            count,
            id=range(count),
            name=names,
            device=[self._device(d) for d in m.tensor_device],
            cause=pick(m.cause_name, m.tensor_cause),
            rules=[
                [name for bit, name in enumerate(m.rule_name) if notes >> bit & 1]
                for notes in m.tensor_notes
            ],
            memory_of=m.tensor_root,
            bytes=m.tensor_bytes,
            where=pick(m.where_name, m.tensor_where),
            offset=m.tensor_offset,
        )

    def _fill_nodes(self, m: pb.Explanation) -> None:
        numbers = {int(op): op.name for op in Op}
        if len(m.op) != len(self.nodes):
            raise ProtocolError(f"{len(m.op)} ops of {len(self.nodes)}", reason="PROTOCOL")
        for index, (node, op) in enumerate(zip(self.nodes, m.op, strict=True)):
            notes = m.tensor_notes[m.leaf_count + index]
            node |= {
                "index": index,
                "op": numbers.get(op, str(op)),
                "fallback": bool(notes & FALLBACK),
                "split": None,
            }

    def _splits(self, m: pb.Explanation, tensors: Sequence[Record]) -> list[Record]:
        copies = rows(
            len(m.copy_tensor),
            tensor=m.copy_tensor,
            name=[t["name"] for t in pick_records(tensors, m.copy_tensor)],
            method=pick(m.method_name, m.copy_method),
            source=[self._device(d) for d in m.copy_source],
            bytes=m.copy_bytes,
            where=pick(m.where_name, m.copy_where),
            offset=m.copy_offset,
            carried_back=[bool(back) for back in m.copy_back],
            early=[bool(early) for early in m.copy_early] or [False] * len(m.copy_tensor),
        )
        splits = rows(
            len(m.split_device),
            index=range(len(m.split_device)),
            device=[self._device(d) for d in m.split_device],
            start=m.split_start,
            end=m.split_end,
            reason=pick(m.reason_name, m.split_reason),
            inputs=m.split_inputs,
            order=m.split_steps,
        )
        at = 0
        for split in splits:
            count = split["inputs"]
            split["inputs"] = copies[at : at + count]
            split["input_bytes"] = sum(copy["bytes"] for copy in split["inputs"])
            at += count
            for node in self.nodes[split["start"] : split["end"]]:
                node["split"] = split["index"]
        if at != len(copies):
            raise ProtocolError(f"{at} inputs, {len(copies)} copies", reason="PROTOCOL")
        steps = rows(len(m.step_node), node=m.step_node, joined=m.step_joined)
        at = 0
        for split in splits:
            mine = steps[at : at + split["order"]]
            at += split["order"]
            split["order"] = [step["node"] for step in mine]
            split["passes"] = passes(mine)
        return splits

    def _groups(self, m: pb.Explanation, tensors: Sequence[Record]) -> list[Record]:
        groups = rows(
            len(m.group_ids),
            ids=m.group_ids,
            name=[t["name"] for t in pick_records(tensors, m.group_ids)],
            device=[self._device(d) for d in m.group_device],
            experts=m.group_experts,
            places=m.group_places,
            resident=[bool(resident) for resident in m.group_resident],
            weights=m.group_weights,
        )
        cuts = accumulate((group["experts"] for group in groups), initial=0)
        for group, (start, end) in zip(groups, pairwise(cuts), strict=True):
            group["uses"] = list(m.group_uses[start:end])
        return groups

    # ---- what it is shown as -------------------------------------------------------------------

    def data(self) -> Record:
        """Everything, for JSON."""
        return {
            "plan": self.summary,
            "cache": self.cache,
            "rules": self.rules,
            "devices": self.devices,
            "leaves": self.leaves,
            "nodes": self.nodes,
            "splits": self.splits,
            "experts": self.experts,
            "measured": self.measured,
        }

    def json(self) -> str:
        """data() as JSON text."""
        return json.dumps(self.data(), indent=1)

    def text(self) -> str:
        """For people: the plan, devices, leaves, then each split with its inputs and nodes."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from self._head_lines()
        for leaf in self.leaves:
            yield f"leaf {tensor_words(leaf)}: {placed(leaf)}, {memory_words(leaf)}"
        for group in self.experts:
            yield expert_line(group)
        for split in self.splits:
            yield from self._split_lines(split)

    def _head_lines(self) -> Iterator[str]:
        s = self.summary
        copies = f"{s['n_copies']} copies"
        if s["planned_copies"] != s["n_copies"]:
            copies += f" of {s['planned_copies']}"
        yield (
            f"plan: {s['leaves']} leaves, {s['nodes']} nodes, {s['splits']} splits, "
            f"{copies} ({s['copies_reason']}), rules {s['rules']}"
        )
        yield f"cache: {self._cache_words()}"
        yield (
            f"copied between memories per run: {s['copied_bytes']} bytes; "
            f"staging: {s['staging_bytes']} bytes; fallback nodes: {s['fallback_nodes']}"
        )
        if s["uploads"]:
            yield f"weights from host memory: {UPLOADS.get(s['uploads'], s['uploads'])}"
        for device in self.devices:
            yield device_line(device)
        yield "rules:" + "".join(f" {name} {count}" for name, count in self.rules.items())
        if self.measured:
            yield (
                f"measured: {self.measured['runs']} runs, median {micro(self.measured['run_ns'])}"
            )

    def _cache_words(self) -> str:
        if self.cache["hit"]:
            return "hit"
        words = f"miss ({self.cache['origin']})"
        if "first_different" in self.cache:
            tensor = named(self.cache["first_different"], self.cache["first_different_name"])
            words += f", first different tensor {tensor}"
        return words

    def _split_lines(self, split: Record) -> Iterator[str]:
        line = (
            f"split {split['index']} on {split['device']}: nodes {split['start']}..{split['end']}, "
            f"{split['reason']}, {len(split['inputs'])} inputs, {split['input_bytes']} bytes"
        )
        if "measured" in split:
            m = split["measured"]
            line += (
                f"; measured: compute {micro(m['compute_ns'])}, copies {micro(m['copy_ns'])}, "
                f"waits {micro(m['wait_ns'])}, moved {m['bytes']} bytes"
            )
        yield line
        for copy in split["inputs"]:
            by = f" by {copy['source']}" if copy["source"] else ""
            back = ", carried back" if copy["carried_back"] else ", early" if copy["early"] else ""
            yield (
                f"  input {named(copy['tensor'], copy['name'])}: "
                f"{METHODS.get(copy['method'], copy['method'])}{by}, {copy['bytes']} bytes, "
                f"{place_words(copy['where'], copy['offset'])}{back}"
            )
        if split["order"] != sorted(split["order"]):
            yield "  order: " + " ".join(map(str, split["order"]))
        for joined in split["passes"]:
            words = (f"{index} {self.nodes[index]['op']}" for index in joined)
            yield "  one pass: " + ", ".join(words)
        for node in self.nodes[split["start"] : split["end"]]:
            fallback = ", fallback" if node["fallback"] else ""
            yield (
                f"  node {node['index']} {tensor_words(node)} {node['op']}: {placed(node)}"
                f"{fallback}, {memory_words(node)}"
            )

    def dot(self) -> str:
        """Graphviz: a cluster per split, nodes coloured by device (fallbacks with a double border),
        edges for what is copied, and above all that the head of the text."""
        return "\n".join(self._dot_lines()) + "\n"

    def _dot_lines(self) -> Iterator[str]:
        colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(self._names)}
        yield "digraph plan {"
        yield "  rankdir=TB; compound=true; newrank=true;"
        yield '  node [shape=box, style=filled, fontname="monospace", fontsize=9];'
        yield '  edge [fontname="monospace", fontsize=8];'
        yield f"  label={quoted(chr(10).join(self._head_lines()))}; labelloc=t;"
        home: dict[int, str] = {leaf["id"]: f"leaf{leaf['id']}" for leaf in self.leaves}
        anchors: dict[int, str] = {}
        for split in self.splits:
            yield f"  subgraph cluster{split['index']} {{"
            yield f"    label={quoted(split_label(split))}; color=gray;"
            for node in self.nodes[split["start"] : split["end"]]:
                home[node["id"]] = anchors[split["index"]] = f"node{node['index']}"
                words = [f"{node['index']} {node['op']}", node["name"], node["cause"]]
                words += [f"rule {rule}" for rule in node["rules"]]
                words += ["fallback"] * node["fallback"]
                label = "\n".join(words)
                colour = colours.get(node["device"] or "", "white")
                style = f"label={quoted(label)}, fillcolor={quoted(colour)}"
                style += ", peripheries=2" * node["fallback"]
                yield f"    node{node['index']} [{style}];"
            yield "  }"
        used = {copy["tensor"] for split in self.splits for copy in split["inputs"]}
        for leaf in self.leaves:
            if leaf["id"] in used:
                label = f"{leaf['name'] or leaf['id']}\n{leaf['device'] or '-'}"
                yield f"  leaf{leaf['id']} [label={quoted(label)}, shape=ellipse, fillcolor=white];"
        for before, after in pairwise(self.splits):
            if before["index"] in anchors and after["index"] in anchors:
                yield (
                    f"  {anchors[before['index']]} -> node{after['start']} "
                    f"[style=dotted, ltail=cluster{before['index']}, "
                    f"lhead=cluster{after['index']}];"
                )
        for split in self.splits:
            for copy in split["inputs"] if split["index"] in anchors else ():
                label = f"{copy['method']} {copy['bytes']} B"
                yield (
                    f"  {home[copy['tensor']]} -> node{split['start']} "
                    f"[label={quoted(label)}, lhead=cluster{split['index']}];"
                )
        yield "}"


COLOURS = (
    "#a6cee3", "#b2df8a", "#fdbf6f", "#cab2d6", "#fb9a99", "#ffff99", "#8dd3c7", "#d9d9d9",
)  # fmt: skip


def pick_records(records: Sequence[Record], positions: Iterable[int]) -> list[Record]:
    """The records at those positions."""
    try:
        return [records[position] for position in positions]
    except IndexError:
        raise ProtocolError("an id of no tensor", reason="PROTOCOL") from None


def passes(steps: Sequence[Record]) -> list[list[int]]:
    """The nodes of each pass of more than one."""
    found: list[list[int]] = [[]]
    for step in steps:
        found[-1].append(step["node"])
        if not step["joined"]:
            found.append([])
    return [nodes for nodes in found if len(nodes) > 1]


def named(number: int, name: str) -> str:
    """12 blk.0.attn_q; on one line, whatever the name is."""
    return f"{number} {printable(name)}".strip()


def printable(text: str) -> str:
    """The text with ? for what does not show or breaks a line."""
    return "".join(c if c.isprintable() else "?" for c in text)


def tensor_words(tensor: Record) -> str:
    """Its id and name."""
    return named(tensor["id"], tensor["name"])


def placed(tensor: Record) -> str:
    """Device, cause and the rules that had a say."""
    words = f"{tensor['device'] or '-'}, {tensor['cause']} ({cause_words(tensor['cause'])})"
    return words + "".join(f", rule {rule}" for rule in tensor["rules"])


def place_words(where: str, offset: int) -> str:
    """Where in the pipeline's memory."""
    return {"none": "no memory", "shared": f"at {offset}", "slot": f"at {offset} of each slot"}.get(
        where, where
    )


def memory_words(tensor: Record) -> str:
    """Where a tensor lies and how much it takes."""
    if tensor["memory_of"] != tensor["id"]:
        return f"in {tensor['memory_of']}"
    return f"{place_words(tensor['where'], tensor['offset'])}, {tensor['bytes']} bytes"


def device_line(device: Record) -> str:
    """One device's part and memory."""
    return (
        f"device {device['name']} ({device['type']}, memory {device['memory']}): "
        f"{device['splits']} splits, {device['nodes']} nodes; bytes: "
        f"weights {device['weights_bytes']}, state {device['state_bytes']}, "
        f"compute {device['compute_bytes']} (copies {device['copies_bytes']}), "
        f"scratch {device['scratch_bytes']}, staging {device['staging_bytes']}"
    )


def expert_line(group: Record) -> str:
    """What of a mixture's layer travels."""
    used = sum(1 for count in group["uses"] if count)
    stay = "stay" if group["resident"] else "are copied anew each run"
    return (
        f"experts of {named(group['ids'], group['name'])} on {group['device']}: "
        f"{group['experts']} experts of {group['weights']} weights, {group['places']} places, "
        f"{stay}; {used} used so far"
    )


def split_label(split: Record) -> str:
    """A cluster's title."""
    label = f"split {split['index']} on {split['device']} ({split['reason']})"
    if "measured" in split:
        label += f"\n{micro(split['measured']['compute_ns'])}"
    return label


def micro(nanoseconds: int) -> str:
    """12.3 us"""
    return f"{nanoseconds / 1000:.1f} us"


def quoted(text: str) -> str:
    """A string of the dot language; lines broken where the text breaks them."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{printable(escaped)}"'
