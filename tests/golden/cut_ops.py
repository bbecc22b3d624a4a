#!/usr/bin/env python3
"""Cuts a telling part out of recorded operator cases.

    cut_ops.py SOURCE TARGET [--share 0.1]

For each family NAME.txt + NAME.gguf in SOURCE, a share of the cases (at least three) is written to
TARGET, ids and bytes as they are. A case is picked for what it shows that no case picked before does:
operators, functions, types, strides, broadcasts, empty tensors, writes in place, parameters. Among
equals the smaller one wins. Same input, same output.
"""
import argparse
import math
import os
import struct
from pathlib import Path

ALIGNMENT = 32
VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Gguf:
    """Header and tensor table of a file whose keys are scalars and strings."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.at = 0
        if self.take(4) != b"GGUF" or self.number("<I") != 3:
            raise SystemExit(f"{path}: not a GGUF version 3 file")
        tensor_count, key_count = self.number("<Q"), self.number("<Q")
        self.keys: dict[str, tuple[int, bytes]] = {}
        for _ in range(key_count):
            key, kind = self.string(), self.number("<I")
            self.keys[key] = (kind, self.value(kind))
        self.tensors: dict[str, tuple[bytes, int]] = {}
        for _ in range(tensor_count):
            start = self.at
            name = self.string()
            self.take(8 * self.number("<I") + 4)
            self.tensors[name] = (self.data[start:self.at], self.number("<Q"))
        self.start = -(-self.at // ALIGNMENT) * ALIGNMENT
        ends = sorted(offset for _, offset in self.tensors.values()) + [len(self.data) - self.start]
        following = dict(zip(ends, ends[1:]))
        self.sizes = {name: following[offset] - offset for name, (_, offset) in self.tensors.items()}

    def take(self, count: int) -> bytes:
        piece = self.data[self.at:self.at + count]
        self.at += count
        return piece

    def number(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        return self.take(self.number("<Q")).decode()

    def value(self, kind: int) -> bytes:
        if kind == 8:
            start = self.at
            self.string()
            return self.data[start:self.at]
        return self.take(VALUE_BYTES[kind])

    def content(self, name: str) -> bytes:
        offset = self.start + self.tensors[name][1]
        return self.data[offset:offset + self.sizes[name]]


def write_gguf(source: Gguf, names: list[str], case_count: int, path: Path) -> None:
    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(source.keys))
    for key, (kind, value) in source.keys.items():
        if key == "golden.n_cases":
            value = struct.pack("<I", case_count)
        head += text(key) + struct.pack("<I", kind) + value
    body, table = bytearray(), b""
    for name in names:
        table += source.tensors[name][0] + struct.pack("<Q", len(body))
        body += source.content(name)
        body += b"\0" * (-len(body) % ALIGNMENT)
    head += table
    path.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + bytes(body))


class Case:
    def __init__(self, lines: list[str], gguf: Gguf) -> None:
        self.lines = lines
        self.id = lines[0].split()[1]
        self.tensors = [line.split() for line in lines[1:-1]]
        prefix = f"c{self.id}."
        self.names = [name for name in gguf.tensors if name.startswith(prefix)]
        self.bytes = sum(gguf.sizes[name] for name in self.names)
        self.features = self.find_features()

    def find_features(self) -> set[tuple]:
        found: set[tuple] = {("case", self.lines[0].split()[2])}
        for fields in self.tensors:
            op, sub, kind = fields[3], fields[4], fields[5]
            extents, strides = fields[7:11], [int(word) for word in fields[11:15]]
            view_base, source_count = fields[16], int(fields[20])
            sources = [int(word) for word in fields[21:21 + source_count]]
            params = fields[21 + source_count]
            if op == "NONE":
                continue
            types = tuple(self.tensors[i][5] if i >= 0 else "-" for i in sources)
            found |= {(op, sub), (op, kind), (op, types), (op, "sources", source_count)}
            if "0" in extents:
                found.add((op, "empty"))
            if op in ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"):
                continue
            if view_base != "-1":
                found.add((op, "in place"))
            for place, i in enumerate(sources):
                if i < 0:
                    found.add((op, "absent", place))
                    continue
                inner = self.tensors[i]
                steps = [int(word) for word in inner[11:15]]
                if steps != sorted(steps):
                    found.add((op, "permuted", place))
                if inner[3] != "NONE":
                    found.add((op, "of a node", place))
                if place and inner[7:11] != self.tensors[sources[0]][7:11]:
                    found.add((op, "other shape", place))
            if strides != sorted(strides):
                found.add((op, "permuted result"))
            if op in ("ROPE", "SOFT_MAX", "GLU", "POOL_2D", "UPSCALE", "PAD", "CONCAT", "TRI"):
                found.add((op, "parameters", params[:27]))
        return found


def read_cases(path: Path, gguf: Gguf) -> list[Case]:
    cases: list[Case] = []
    lines: list[str] = []
    for line in path.read_text().splitlines()[1:]:
        lines.append(line)
        if line == "E":
            cases.append(Case(lines, gguf))
            lines = []
    return cases


def pick(cases: list[Case], count: int) -> list[Case]:
    picked: list[Case] = []
    seen: set[tuple] = set()
    rest = list(cases)
    while rest and len(picked) < count:
        best = max(rest, key=lambda case: (len(case.features - seen), -case.bytes, -int(case.id)))
        picked.append(best)
        rest.remove(best)
        if not best.features - seen:
            seen = set()  # everything has been shown once: begin a second round
        seen |= best.features
    return sorted(picked, key=lambda case: int(case.id))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--share", type=float, default=0.1)
    args = parser.parse_args()
    os.makedirs(args.target, exist_ok=True)
    total = 0
    for path in sorted(args.source.glob("*.txt")):
        gguf = Gguf(path.with_suffix(".gguf"))
        cases = read_cases(path, gguf)
        chosen = pick(cases, max(3, math.ceil(len(cases) * args.share)))
        head = path.read_text().splitlines()[0].split()
        head[-1] = str(len(chosen))
        lines = [" ".join(head)] + [line for case in chosen for line in case.lines]
        (args.target / path.name).write_text("\n".join(lines) + "\n")
        names = [name for case in chosen for name in case.names]
        write_gguf(gguf, names, len(chosen), args.target / path.with_suffix(".gguf").name)
        size = (args.target / path.with_suffix(".gguf").name).stat().st_size
        total += size
        print(f"{path.stem}: {len(chosen)} of {len(cases)} cases, {size // 1024} KiB")
    print(f"{total // 1024} KiB")


if __name__ == "__main__":
    main()
