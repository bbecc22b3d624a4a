"""The model graphs among the recorded plans (tests/golden/data/plans), as graphs of the protocol.

A device of its own for each memory of the record that is not the host's; leaves named after where
they live, so that one rule per device places them.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import raw
from raw import F16, F32, I32, I64, INPUT, Q8_0, STATE, WEIGHT

PLANS = Path(__file__).resolve().parents[1] / "golden" / "data" / "plans"
OP_LIST = Path(__file__).resolve().parents[2] / "core" / "op.def"
FAMILIES = (
    "bert", "conv", "gpt2", "large", "llama", "llama-fa", "moe-dense", "moe-shared", "moe-sparse",
)  # fmt: skip
#        type: number, bytes of a block, elements of a block
TYPES = {"f32": (F32, 4, 1), "f16": (F16, 2, 1), "i32": (I32, 4, 1), "i64": (I64, 8, 1),
         "q8_0": (Q8_0, 34, 32)}  # fmt: skip
HOST = "host"


@functools.cache
def op_numbers() -> dict[str, int]:
    found = re.findall(r"^X\((\w+), (\d+),", OP_LIST.read_text(), re.M)
    return {name: int(number) for name, number in found}


@dataclass
class Recorded:
    name: str
    copies: int = 1
    offload: bool = False
    devices: set[str] = field(default_factory=set)
    graph: raw.Graph = field(default_factory=raw.Graph)
    weights: list[tuple[str, int, list[int], bytes]] = field(default_factory=list)
    states: list[tuple[str, int, list[int], bytes]] = field(default_factory=list)
    input_bytes: int = 0

    @property
    def rules(self) -> list[tuple[str, str]]:
        return [(f"{name}.*", name) for name in sorted(self.devices)]


def _words(op: str, ne: list[int], hexadecimal: str) -> tuple[int, ...]:
    if op == "ROPE":  # parameters that the record leaves out
        floats = struct.unpack("<6I", struct.pack("<6f", 10000, 1, 0, 1, 32, 1))
        return (0, ne[0] - ne[0] % 2, 0, 0, 4096, *floats)
    data = bytes.fromhex(hexadecimal)
    return struct.unpack(f"<{-(-len(data) // 4)}I", data + bytes(-len(data) % 4))


class _Reader:
    def __init__(self, name: str) -> None:
        self.case = Recorded(name)
        self.kinds: dict[str, str] = {}  # of memory: the device that has it
        self.buffers: dict[str, tuple[str, str]] = {}

    def line(self, word: list[str]) -> None:
        keys = dict(one.split("=", 1) for one in word if "=" in one)
        if word[0] == "sched":
            self.case.copies = int(keys["copies"])
            self.case.offload = keys["offload"] == "1"
        elif word[0] == "buft":
            self.kinds[word[1]] = HOST if keys["host"] == "1" else f"d{word[1]}"
        elif word[0] == "buffer":
            self.buffers[word[1]] = (self.kinds[keys["buft"]], keys["usage"])
        elif word[0] == "l":
            self.leaf(word, keys)
        elif word[0] == "n":
            self.node(word, keys)

    def leaf(self, word: list[str], keys: dict[str, str]) -> None:
        number, size, block = TYPES[word[4]]
        ne = [int(extent) for extent in word[5:9]]
        count = ne[0] * ne[1] * ne[2] * ne[3] // block * size
        if "b" not in keys:
            self.case.graph.leaf(INPUT, number, ne, f"{word[1]}")
            self.case.input_bytes += count
            return
        device, usage = self.buffers[keys["b"]]
        self.case.devices.add(device)
        of = (f"{device}.{word[1]}", number, ne, bytes(count))
        (self.case.weights if usage == "weights" else self.case.states).append(of)
        self.case.graph.leaf(WEIGHT if usage == "weights" else STATE, number, ne, of[0])

    def node(self, word: list[str], keys: dict[str, str]) -> None:
        ne = [int(extent) for extent in word[5:9]]
        sources = [raw.ABSENT if one == "-" else int(one) for one in keys.get("s", "").split(",")]
        if word[3] == "CPY" and str(sources[-1]) == word[1]:  # a cast
            sources.pop()
        base, offset = (int(one) for one in keys.get("v", "0:0").split(":"))
        params = _words(word[3], ne, keys.get("p", ""))
        if word[3] == "VIEW":
            params = (offset & 0xFFFFFFFF, offset >> 32)
        nb = tuple(int(one) for one in keys["nb"].split(",")) if "nb" in keys else None
        self.case.graph.node(
            op_numbers()[word[3]], TYPES[word[4]][0], ne, tuple(sources), params,
            output=bool(int(keys.get("f", "0"), 16) & 2), name=word[1],
            view=(base, offset) if "v" in keys else None,
            strides=(nb[0], nb[1], nb[2], nb[3]) if nb else None,
        )  # fmt: skip


def read(family: str) -> Iterator[Recorded]:
    for path in sorted(PLANS.glob(f"{family}-[0-9][0-9].txt")):
        for text in path.read_text().split("\nend"):
            lines = text.strip().split("\n")
            if not lines[0].startswith("case "):
                continue
            reader = _Reader(lines[0].split()[1])
            for line in lines[1:]:
                if line == "plan":
                    break
                reader.line(line.split())
            yield reader.case
