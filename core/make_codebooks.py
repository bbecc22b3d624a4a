#!/usr/bin/env python3
"""Turns core/codebooks.txt into the C source that core/codebooks.h declares.

    make_codebooks.py [--qualifier WORD] TABLES SOURCE

TABLES: lines "table NAME BITS COUNT", each followed by COUNT words: hexadecimal, but decimal where
NAME begins with "values_". Each table becomes an array hr_codebook_NAME of 8-bit entries (signed
for values_*) or of 32-bit words; an entry of 64 bits is two words, the low one first. Too few or
too many words, or words that do not fit, are an error. With --qualifier the definitions begin with
that word, for sources that say themselves what it means, and nothing is included.
"""
import sys
from pathlib import Path


class Table:
    def __init__(self, name: str, bits: int, count: int) -> None:
        self.name, self.bits, self.count = name, bits, count
        self.is_decimal = name.startswith("values_")
        self.words: list[int] = []

    def add(self, text: str) -> None:
        word = int(text, 10 if self.is_decimal else 16)
        half = 1 << (self.bits - 1)
        low, high = (-half, half) if self.is_decimal else (0, 2 * half)
        if not low <= word < high:
            raise SystemExit(f"{self.name}: {text} does not fit {self.bits} bits")
        self.words.append(word)

    def definition(self, qualifier: str) -> str:
        kind = {8: "int8_t" if self.is_decimal else "uint8_t"}.get(self.bits, "uint32_t")
        words = self.words
        if self.bits == 64:
            words = [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
        texts = [str(word) if self.bits == 8 else f"{word:#010x}" for word in words]
        lines = [", ".join(texts[at:at + 8]) for at in range(0, len(texts), 8)]
        return (f"{qualifier} {kind} hr_codebook_{self.name}[{len(texts)}] = {{\n        " +
                ",\n        ".join(lines) + "};\n")


def read_tables(path: Path) -> list[Table]:
    tables: list[Table] = []
    for line in path.read_text(encoding="ascii").splitlines():
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if fields[0] == "table":
            tables.append(Table(fields[1], int(fields[2]), int(fields[3])))
            if tables[-1].bits not in (8, 32, 64):
                raise SystemExit(f"{fields[1]}: entries of {fields[2]} bits")
            continue
        for field in fields:
            tables[-1].add(field)
    for table in tables:
        if len(table.words) != table.count:
            raise SystemExit(f"{table.name}: {len(table.words)} of {table.count} words")
    return tables


def main() -> None:
    arguments = sys.argv[1:]
    qualifier, top = "const", '#include "core/codebooks.h"\n\n'
    if arguments[0] == "--qualifier":
        qualifier, top = arguments[1], ""
        arguments = arguments[2:]
    source, target = (Path(argument) for argument in arguments)
    definitions = "\n".join(table.definition(qualifier) for table in read_tables(source))
    target.write_text("/* Made from core/codebooks.txt. */\n" + top + definitions)


main()
