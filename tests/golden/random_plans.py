"""golden_plans on graphs and systems that nobody would build: random ones, planned by plan_rules.py, which
is held against the recorded cases first.

    random_plans.py GOLDEN_PLANS DATA      HR_SEED=N replays; HEADRACE_FULL=1 has more of them
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from plan_rules import INPUT, OUTPUT, VIEWS, Case, Device, Planner, StopError, Tensor, case_text, read_cases

FULL = bool(os.environ.get("HEADRACE_FULL"))
SEED = int(os.environ.get("HR_SEED") or 1)
CASES = 6000 if FULL else 400
PARAM, WANTED = 4, 16
OPS = ("MUL_MAT", "MUL_MAT", "ADD", "MUL", "CPY", "SET_ROWS", "GET_ROWS", "ROPE", "FLASH_ATTN_EXT",
       "MUL_MAT_ID", "CONT", "NORM", "SCALE", "SOFT_MAX", "CUSTOM", "NONE")  # fmt: skip


class Maker:
    """One random case. A crowd: many inputs, nodes with many sources, few devices."""

    def __init__(self, name: str, dice: random.Random) -> None:
        self.dice, self.case = dice, Case(name)
        self.crowd = dice.random() < 0.1
        self.support = 1.0 if self.crowd else dice.choice((0.5, 0.8, 0.95, 1.0))
        self.last_support = dice.choice((0.9, 1.0, 1.0))
        self.asking = dice.choice((0.0, 0.3, 0.9))
        self.pinned = 0.0 if self.crowd else dice.choice((0.0, 0.0, 0.05))
        self.given = 0.0 if self.crowd else dice.choice((0.0, 0.0, 0.03, 0.1))
        self.inputs = 0.9 if self.crowd else dice.choice((0.1, 0.3, 0.9))

    def chance(self, part: float) -> bool:
        return self.dice.random() < part

    def system(self) -> None:
        dice, case = self.dice, self.case
        count = 2 if self.crowd else dice.choice((1, 2, 2, 3, 3, 4, 5, 8, 16))
        kinds = 2 if self.crowd else dice.randint(1, min(count + 1, 6))
        case.copies = dice.choice((1, 1, 1, 2, 4))
        case.slot = dice.randrange(case.copies)
        case.offload = self.chance(0.6)
        case.hosts = [self.chance(0.3) for _ in range(kinds - 1)] + [True]
        shared = self.chance(0.4) and not self.crowd
        for i in range(count):
            own = i if i < kinds and not shared else dice.randrange(kinds)
            own = kinds - 1 if i == count - 1 else own
            reads = 1 << own
            for kind in range(0 if self.crowd else kinds):
                reads |= self.chance(0.3 if case.hosts[kind] else 0.15) << kind
            kind_of = "CPU" if i == count - 1 else dice.choice(("GPU", "GPU", "ACCEL", "IGPU"))
            case.devices.append(Device(kind_of, own, reads))
        for _ in range(dice.randint(0, 5)):
            usage = dice.choice(("weights", "weights", "any", "compute"))
            case.buffers.append((dice.randrange(kinds), usage))
        if self.crowd:
            case.buffers.append((0, "weights"))

    def tensor(self, kind: str, op: str) -> Tensor:
        last = len(self.case.devices) - 1
        tensor = Tensor(kind, op)
        for i in range(last + 1):
            tensor.supports |= self.chance(self.last_support if i == last else self.support) << i
            tensor.asks |= (kind == "n" and i < last and self.chance(self.asking)) << i
        if self.chance(self.pinned):
            tensor.pin = self.dice.randint(0, last)
        if self.chance(0.05):
            tensor.flags |= OUTPUT
        self.case.tensors.append(tensor)
        return tensor

    def leaves(self, count: int) -> None:
        self.leaf_count = count
        for _ in range(count):
            leaf = self.tensor("l", "NONE")
            if self.chance(self.inputs):
                leaf.flags |= INPUT
            if self.case.buffers and self.chance(0.05 if leaf.flags & INPUT else 0.7):
                leaf.buffer = self.dice.randrange(len(self.case.buffers))

    def base_of(self, tensor: int) -> int:
        """The root; seldom the view itself, which no library makes."""
        base = self.case.tensors[tensor].base
        return tensor if base is None or self.chance(0.03) else base

    def source(self) -> int:
        count = len(self.case.tensors) - 1  # the node itself apart
        if self.crowd and self.chance(0.8):
            return self.dice.randrange(self.leaf_count)
        return self.dice.randrange(max(0, count - 10) if self.chance(0.6) else 0, count)

    def view(self) -> Tensor:
        node = self.tensor("n", self.dice.choice(VIEWS))
        node.sources = [self.source()]
        node.base = self.base_of(node.sources[0] or 0)
        if self.chance(0.05):
            node.sources.append(self.source())
        return node

    def computing(self) -> Tensor:
        node = self.tensor("n", self.dice.choice(OPS))
        own = len(self.case.tensors) - 1
        if node.op == "NONE":
            node.flags |= PARAM
            return node
        sources = self.dice.choice((2, 9, 10) if self.crowd else (1, 2, 2, 3, 5))
        node.sources = [self.source() for _ in range(sources)]
        if self.crowd and self.chance(0.8):
            weights = [i for i, t in enumerate(self.case.tensors)
                       if t.buffer == len(self.case.buffers) - 1]  # fmt: skip
            node.sources[0] = self.dice.choice(weights or [0])
        if self.chance(0.1):
            node.sources[self.dice.randrange(sources)] = None
        if node.op == "CPY" and self.chance(0.4):
            node.sources = [self.source(), own]
        if self.chance(0.04):
            node.sources[self.dice.randrange(len(node.sources))] = own
        there = [source for source in node.sources if source not in (None, own)]
        if there and self.chance(0.7 if node.op in ("CPY", "SET_ROWS") else 0.06):
            node.base = self.base_of(self.dice.choice(there) or 0)
        while node.sources and node.sources[-1] is None:
            node.sources.pop()
        if self.chance(0.02):
            node.flags |= INPUT
        return node

    def make(self) -> Case:
        self.system()
        nodes = self.dice.choice((20, 60) if self.crowd else (0, 1, 3, 8, 20, 60, 150))
        self.leaves(self.dice.randint(60, 140) if self.crowd else self.dice.randint(1, 8 + nodes // 3))
        views = self.dice.choice((0.1,) if self.crowd else (0.1, 0.1, 0.3, 0.3, 0.6, 0.6, 1.0))
        for _ in range(nodes):
            node = self.view() if self.chance(views) else self.computing()
            node.flags |= WANTED
            if self.case.buffers and self.chance(self.given):
                node.buffer = self.dice.randrange(len(self.case.buffers))
        return self.case


def flat(plan: list[str]) -> list[str]:
    """However many lines the kept inputs take."""
    kept = [word for line in plan if line[0] == "G" for word in line.split(" ")[1:]]
    return [line for line in plan if line[0] != "G"] + kept


def recorded(data: Path) -> None:
    """The rules here are the reference's: they give every plan that has been recorded."""
    count = 0
    for path in sorted(data.glob("*.txt")):
        for case in read_cases(path):
            if case.abort in ("new", "size", "split"):
                continue
            count += 1
            try:
                plan = Planner(case).plan()
            except StopError:
                plan = []
            if flat(plan) != flat(case.plan):
                sys.exit(f"{path.name}: {case.name}: plan_rules.py has another plan")
    print(f"{count} recorded plans are those of plan_rules.py")


def main() -> None:
    program, data = sys.argv[1], Path(sys.argv[2])
    recorded(data)
    dice = random.Random(SEED)
    texts = [case_text(Maker(f"random.{SEED}.{i}", dice).make()) for i in range(CASES)]
    reasons = [line.split(" ")[5] for text in texts for line in text.splitlines() if line[:2] == "S "]
    stopped = sum("abort split" in text for text in texts)
    print(f"HR_SEED={SEED}: {CASES} graphs, {stopped} that the reference does not plan; splits by",
          {reason: reasons.count(reason) for reason in sorted(set(reasons))})  # fmt: skip
    if {"first", "backend", "weight", "inputs"} - set(reasons) or stopped > CASES // 2:
        sys.exit("these graphs try too little")
    with tempfile.TemporaryDirectory(prefix="headrace-plans-") as folder:
        path = Path(folder) / "random.txt"
        path.write_text("".join(texts))
        done = subprocess.run([program, str(path)], capture_output=True, text=True, timeout=600)
        print(done.stdout, end="")
        if done.returncode != 0:
            kept = Path(tempfile.mkdtemp(prefix="headrace-plans-failed-")) / "random.txt"
            kept.write_text("".join(texts))
            sys.exit(f"HR_SEED={SEED}: status {done.returncode}, the cases are in {kept}")


if __name__ == "__main__":
    main()
