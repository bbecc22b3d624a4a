"""The reference's decisions a second time: a case of golden_plans read, planned, written.

One plain function per step of the algorithm, with nothing in common with scheduler/. Slow, and only as
general as the format of the recorded cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

VIEWS = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
INPUT, OUTPUT = 1, 2
FULL = 30  # inputs of a split, before its list grows to twice as many


class StopError(Exception):
    """Here the reference ends its process."""


@dataclass
class Tensor:
    kind: str  # l, n, x
    op: str
    flags: int = 0
    sources: list[int | None] = field(default_factory=list)
    base: int | None = None
    buffer: int | None = None
    pin: int | None = None
    supports: int = 0
    asks: int = 0


@dataclass
class Device:
    type: str
    kind: int
    reads: int


@dataclass
class Split:
    device: int
    start: int
    reason: str
    inputs: list[int] = field(default_factory=list)
    room: int = 0
    end: int = 0


@dataclass
class Case:
    name: str
    copies: int = 1
    slot: int = 0
    offload: bool = False
    hosts: list[bool] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    buffers: list[tuple[int, str]] = field(default_factory=list)  # kind, usage
    tensors: list[Tensor] = field(default_factory=list)
    abort: str = ""
    plan: list[str] = field(default_factory=list)


class Planner:
    def __init__(self, case: Case) -> None:
        self.case, self.tensors = case, case.tensors
        self.last = len(case.devices) - 1
        self.leaves = [i for i, t in enumerate(case.tensors) if t.kind == "l"]
        self.nodes = [i for i, t in enumerate(case.tensors) if t.kind == "n"]
        self.device = [-1 if t.pin is None else t.pin for t in case.tensors]
        self.cause = ["-" if t.pin is None else "usr" for t in case.tensors]

    # -- what is asked again and again

    def is_view(self, tensor: int) -> bool:
        return self.tensors[tensor].op in VIEWS

    def supports(self, device: int, tensor: int) -> bool:
        return bool(self.tensors[tensor].supports >> device & 1)

    def reads(self, device: int, kind: int) -> bool:
        return bool(self.case.devices[device].reads >> kind & 1)

    def memory(self, tensor: int) -> int | None:
        base = self.tensors[tensor].base
        return self.tensors[tensor if base is None else base].buffer

    def is_weight(self, tensor: int) -> bool:
        own = self.tensors[tensor].buffer
        return own is not None and self.case.buffers[own][1] == "weights"

    def home(self, tensor: int, node: int) -> int:
        memory = self.memory(tensor)
        for device in range(self.last + 1 if memory is not None else 0):
            kind = self.case.buffers[memory or 0][0]
            if self.reads(device, kind) and self.supports(device, node):
                return device
        return -1

    def can_read(self, tensor: int, device: int) -> bool:
        memory, base = self.memory(tensor), self.tensors[tensor].base
        if memory is not None:
            return self.reads(device, self.case.buffers[memory][0])
        owner = self.device[tensor]
        if owner < 0 and base is not None:
            owner = self.device[base]
        return owner >= 0 and self.reads(device, self.case.devices[owner].kind)

    def sources(self, node: int) -> Iterator[tuple[int, int]]:
        for position, source in enumerate(self.tensors[node].sources):
            if source is not None:
                yield position, source

    def give(self, tensor: int, device: int, cause: str) -> None:
        self.device[tensor], self.cause[tensor] = device, cause

    # -- the passes

    def by_weight(self, node: int) -> None:
        if self.tensors[node].op in ("ROPE", "FLASH_ATTN_EXT"):
            return
        for position, source in self.sources(node):
            if not self.is_weight(source):
                continue
            home = self.home(source, node)
            host = self.case.hosts[self.case.buffers[self.tensors[source].buffer or 0][0]]
            for device in range(self.last):
                wants = self.tensors[node].asks >> device & 1
                if (self.case.offload and home == self.last and host and wants
                        and self.supports(device, node)):  # fmt: skip
                    return self.give(node, device, "1.off")
            return self.give(node, home, f"1.wgt{position}")

    def by_memory(self, tensor: int) -> None:
        base, own = self.tensors[tensor].base, self.tensors[tensor].buffer
        if self.home(tensor, tensor) >= 0:
            return self.give(tensor, self.home(tensor, tensor), "1.dst")
        if base is not None and self.home(base, tensor) >= 0:
            return self.give(tensor, self.home(base, tensor), "1.vsrc")
        if own is not None or (base is not None and self.tensors[base].buffer is not None):
            raise StopError
        if self.tensors[tensor].flags & INPUT:
            return self.give(tensor, self.last, "1.inp")
        return self.by_weight(tensor)

    def sweep(self, order: list[int], skips_last: bool, cause: str) -> None:
        carried = -1
        for node in order:
            if self.is_view(node):
                continue
            if self.device[node] >= 0:
                away = skips_last and self.device[node] == self.last
                carried = -1 if away else self.device[node]
            elif carried >= 0 and self.supports(carried, node):
                self.give(node, carried, cause)

    def best(self, node: int) -> None:
        most = -1
        for device in range(self.last + 1):
            if not self.supports(device, node):
                continue
            count = 0
            for _, source in self.sources(node):
                base = self.tensors[source].base
                known = self.device[source] >= 0 or (base is not None and self.device[base] >= 0)
                count += known and self.can_read(source, device)
            if count > most:
                most = count
                self.give(node, device, "3.best")

    def upgrade(self, node: int) -> None:
        devices = self.case.devices
        for device in range(self.device[node]):
            same = devices[device].kind == devices[self.device[node]].kind
            if (same and self.supports(device, node)
                    and all(self.can_read(source, device) for _, source in self.sources(node))):  # fmt: skip
                return self.give(node, device, "3.upg")

    def rest(self, node: int) -> None:
        base = self.tensors[node].base
        if base is not None and self.device[node] < 0:
            self.give(node, self.device[base], "4.vsrc")
        for _, source in self.sources(node):
            if self.device[source] >= 0:
                continue
            of = self.tensors[source].base
            if of is not None:
                self.give(source, self.device[of], "4.vsrc")
            else:
                self.give(source, self.device[node], "4.cur")
        for device in range(self.last + 1):
            if self.device[node] < 0 and self.supports(device, node):
                self.give(node, device, "4.fst")
        if self.device[node] < 0:
            raise StopError

    def assign(self) -> None:
        for tensor in self.leaves + self.nodes:
            if self.device[tensor] < 0:
                self.by_memory(tensor)
        self.sweep(self.nodes, True, "2.gd")
        self.sweep(self.nodes[::-1], True, "2.gu")
        self.sweep(self.nodes, False, "2.rd")
        self.sweep(self.nodes[::-1], False, "2.ru")
        for node in self.nodes:
            if not self.is_view(node):
                (self.upgrade if self.device[node] >= 0 else self.best)(node)
        for node in self.nodes:
            self.rest(node)

    def reason(self, node: int, split: Split, copied: set[tuple[int, int]]) -> str:
        """Why the node opens a split; "" where it does not."""
        device = split.device
        if self.device[node] != device:
            return "backend"
        for _, source in self.sources(node) if split.inputs else ():
            if self.device[source] == device or self.can_read(source, device):
                continue
            if self.is_weight(source):
                return "weight"
            if len(split.inputs) == split.room and (source, device) not in copied:
                return "inputs"
        return ""

    def plan(self) -> list[str]:
        """The lines L, N, splits, S, R, G, F of the case."""
        self.assign()
        tensors, copied = self.tensors, set[tuple[int, int]]()
        flags = [tensor.flags for tensor in tensors]
        replaced, kept = list[str](), list[int]()
        opening = [node for node in self.nodes if not self.is_view(node)]
        splits = [Split(self.device[opening[0]] if opening else 0, 0, "first")]
        for index, node in enumerate(self.nodes):
            if self.is_view(node):
                continue
            reason = self.reason(node, splits[-1], copied)
            if reason:
                splits[-1].end = index
                splits.append(Split(self.device[node], index, reason))
            split = splits[-1]
            for position, source in self.sources(node):
                own, base = self.device[source], tensors[source].base
                if own < 0:
                    raise StopError
                if (self.case.copies > 1 and tensors[source].flags & INPUT
                        and (source, own) not in copied):  # fmt: skip
                    copied.add((source, own))
                    kept.append(source)
                    self.cause[source] = "4.cpy"
                    flags[source] |= INPUT | OUTPUT
                    while base is not None:
                        flags[base] |= OUTPUT
                        base = tensors[base].base
                if own == split.device or self.can_read(source, split.device):
                    continue
                if (source, split.device) not in copied:
                    copied.add((source, split.device))
                    if len(split.inputs) == split.room:
                        split.room = 2 * split.room or FULL
                    split.inputs.append(source)
                replaced.append(f"R {node} {position} {source} {split.device} {self.case.slot}")
        splits[-1].end = len(self.nodes)
        lines = [f"L {i} {self.device[i]} {self.cause[i]}" for i in self.leaves]
        lines += [f"N {i} {self.device[i]} {self.cause[i]}" for i in self.nodes]
        lines.append(f"splits {len(splits)}")
        for number, split in enumerate(splits):
            words = [number, split.device, split.start, split.end, split.reason, len(split.inputs)]
            lines.append(" ".join(map(str, ["S", *words, *split.inputs])))
        lines += replaced
        for first in range(0, len(kept), 16):
            lines.append(" ".join(map(str, ["G", *kept[first : first + 16]])))
        changed = [i for i, tensor in enumerate(tensors) if flags[i] != tensor.flags]
        return lines + [f"F {i} {flags[i]:x}" for i in changed]


def read_tensor(words: list[str]) -> Tensor:
    keys = dict(word.split("=", 1) for word in words[9:])
    sources = keys["s"].split(",") if "s" in keys else []
    return Tensor(
        kind=words[0],
        op=words[3],
        flags=int(keys.get("f", "0"), 16),
        sources=[None if source == "-" else int(source) for source in sources],
        base=int(keys["v"].split(":")[0]) if "v" in keys else None,
        buffer=int(keys["b"]) if "b" in keys else None,
        pin=int(keys["u"]) if "u" in keys else None,
        supports=int(keys.get("sup", "0"), 16),
        asks=int(keys.get("off", "0"), 16),
    )


def read_cases(path: Path) -> list[Case]:
    cases: list[Case] = []
    in_plan = False
    for line in path.read_text().splitlines():
        words = line.split(" ")
        if words[0] == "case":
            cases.append(Case(words[1]))
            in_plan = False
        if not cases or words[0] == "note":
            continue
        case, keys = cases[-1], dict(word.split("=", 1) for word in words if "=" in word)
        if words[0] == "sched":
            case.copies, case.slot = int(keys["copies"]), int(keys["cur"])
            case.offload = keys["offload"] == "1"
        elif words[0] == "buft":
            case.hosts.append(keys["host"] == "1")
        elif words[0] == "backend":
            device = Device(keys["type"], int(keys["buft"]), int(keys["sup"], 16))
            case.devices.append(device)
        elif words[0] == "buffer":
            case.buffers.append((int(keys["buft"]), keys["usage"]))
        elif words[0] in ("l", "n", "x") and not in_plan:
            case.tensors.append(read_tensor(words))
        elif words[0] == "plan":
            in_plan = True
        elif words[0] == "abort":
            case.abort = words[1]
        elif in_plan and words[0] in ("L", "N", "splits", "S", "R", "G", "F"):
            case.plan.append(line)
    return cases


def tensor_line(number: int, tensor: Tensor) -> str:
    line = f"{tensor.kind} {number} t{number} {tensor.op} f32 32 2 1 1"
    sources = ",".join("-" if source is None else str(source) for source in tensor.sources)
    line += f" f={tensor.flags:x}" if tensor.flags else ""
    line += f" s={sources}" if sources else ""
    line += f" v={tensor.base}:0" if tensor.base is not None else ""
    line += f" b={tensor.buffer}" if tensor.buffer is not None else ""
    line += f" u={tensor.pin}" if tensor.pin is not None else ""
    line += f" sup={tensor.supports:x}" if tensor.supports else ""
    return line + (f" off={tensor.asks:x}" if tensor.asks else "")


def case_text(case: Case) -> str:
    """The case with the plan that the rules give it. No sizes stand in it."""
    kinds = [tensor.kind for tensor in case.tensors]
    lines = [
        f"case {case.name}",
        f"sched copies={case.copies} cur={case.slot} offload={case.offload:d} maxgraph=4096 experts=0",
        *(f"buft {i} B{i} host={host:d} align=32" for i, host in enumerate(case.hosts)),
        *(
            f"backend {i} K{i} type={one.type} buft={one.kind} sup={one.reads:x} offmin=-1 events=1 "
            "async=1 minmm=0 deny=-"
            for i, one in enumerate(case.devices)
        ),
        *(f"buffer {i} buft={kind} usage={use}" for i, (kind, use) in enumerate(case.buffers)),
        f"graph leafs={kinds.count('l')} nodes={kinds.count('n')} extra=0",
        *(tensor_line(i, tensor) for i, tensor in enumerate(case.tensors)),
    ]
    try:
        lines += ["plan", *Planner(case).plan(), "abort alloc no sizes are known"]
    except StopError:
        lines.append("abort split a plan or words")
    return "\n".join([*lines, "end"]) + "\n"
