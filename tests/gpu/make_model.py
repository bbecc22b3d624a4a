"""make_model.py FILE [--type TYPE] [--shape SHAPE] [--seed N]: a model of the Llama family with random weights.

A GGUF file that a daemon (or llama.cpp) can run and nobody can talk to: no vocabulary, weights of the
usual size, so that all that is computed is finite and costs what it costs with a trained model. It is
written as fast as memory allows: the blocks of all tensors come from one pool of random blocks, each
tensor from another place of it.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

Random = np.random.Generator
ALIGNMENT = 32
POOL_BYTES = 32 << 20
SPREAD = 0.02  # of weights


@dataclass(frozen=True)
class Shape:
    layers: int
    embedding: int
    heads: int
    kv_heads: int
    forward: int
    vocabulary: int
    context: int

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Name -> (columns, rows) of what is multiplied, and of the embedding."""
        e, kv = self.embedding, self.embedding // self.heads * self.kv_heads
        found = {"token_embd.weight": (e, self.vocabulary), "output.weight": (e, self.vocabulary)}
        for i in range(self.layers):
            for name, columns, rows in (
                ("attn_q", e, e), ("attn_k", e, kv), ("attn_v", e, kv), ("attn_output", e, e),
                ("ffn_up", e, self.forward), ("ffn_gate", e, self.forward),
                ("ffn_down", self.forward, e),
            ):  # fmt: skip
                found[f"blk.{i}.{name}.weight"] = (columns, rows)
        return found

    def norms(self) -> list[str]:
        inside = [f"blk.{i}.{n}_norm.weight" for i in range(self.layers) for n in ("attn", "ffn")]
        return ["output_norm.weight", *inside]

    @property
    def products(self) -> int:
        """Weights that one token is multiplied with."""
        return sum(c * r for name, (c, r) in self.matrices().items() if name != "token_embd.weight")


SHAPES = {
    "7b": Shape(32, 4096, 32, 32, 11008, 32000, 8192),
    # For machines that compute everything the slow way; blocks of 256 do not fit.
    "least": Shape(4, 64, 2, 1, 64, 64, 512),
    # As small as all types allow, with heads that share keys.
    "tiny": Shape(4, 256, 4, 2, 512, 512, 2048),
}


def floats(rng: Random, count: int) -> bytes:
    return (rng.standard_normal(count, np.float32) * SPREAD).astype(np.float16).tobytes()


def q8_0(rng: Random, count: int) -> bytes:
    blocks = np.empty(count, np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    blocks["d"] = SPREAD / 73
    blocks["q"] = rng.integers(-127, 128, (count, 32), np.int8)
    return blocks.tobytes()


def q4_k(rng: Random, count: int) -> bytes:
    """d * scale * q - dmin * minimum: random scales, minima and q; the means cancel."""
    blocks = np.empty(count, np.dtype([("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("q", "u1", 128)]))
    blocks["d"] = SPREAD / 180
    blocks["m"] = SPREAD / 180 * 7.5
    blocks["s"] = rng.integers(0, 256, (count, 12), np.uint8)
    blocks["q"] = rng.integers(0, 256, (count, 128), np.uint8)
    return blocks.tobytes()


@dataclass(frozen=True)
class Kind:
    number: int  # as GGUF counts types
    elements: int
    bytes: int
    make: Callable[[Random, int], bytes]  # so many blocks


KINDS = {
    "f16": Kind(1, 1, 2, floats),
    "q8_0": Kind(8, 32, 34, q8_0),
    "q4_K": Kind(12, 256, 144, q4_k),
}
F32 = 0


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, value: str | int | float) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    return text(key) + struct.pack("<If", 6, value)


def metadata(shape: Shape, kind: str) -> list[bytes]:
    return [
        pair("general.architecture", "llama"),
        pair("general.name", f"random {kind}"),
        pair("llama.block_count", shape.layers),
        pair("llama.context_length", shape.context),
        pair("llama.embedding_length", shape.embedding),
        pair("llama.feed_forward_length", shape.forward),
        pair("llama.attention.head_count", shape.heads),
        pair("llama.attention.head_count_kv", shape.kv_heads),
        pair("llama.attention.layer_norm_rms_epsilon", 1e-5),
        pair("llama.rope.dimension_count", shape.embedding // shape.heads),
        pair("llama.vocab_size", shape.vocabulary),
        pair("tokenizer.ggml.model", "no_vocab"),
    ]


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def pieces(pool: memoryview, start: int, size: int) -> Iterator[memoryview]:
    """`size` bytes of the pool from `start` on, round and round."""
    while size:
        piece = pool[start : start + min(size, len(pool) - start)]
        yield piece
        size, start = size - len(piece), 0


def write(path: Path, shape: Shape, kind_name: str, seed: int = 0) -> int:
    """Writes the file and returns the bytes of the weights that one token is multiplied with."""
    kind = KINDS[kind_name]
    rng = np.random.default_rng(seed)
    largest = max(prod(extents) for extents in shape.matrices().values()) // kind.elements
    blocks = min(POOL_BYTES // kind.bytes, largest)
    pool = memoryview(kind.make(rng, blocks))
    ones = np.ones(shape.embedding, np.float32).tobytes()
    infos, parts, offset, read = [], [], 0, 0
    for name, (columns, rows) in shape.matrices().items():
        size = columns * rows // kind.elements * kind.bytes
        infos.append(text(name) + struct.pack("<IQQIQ", 2, columns, rows, kind.number, offset))
        parts.append((size, int(rng.integers(blocks)) * kind.bytes))
        offset += aligned(size)
        read += size if name != "token_embd.weight" else 0
    for name in shape.norms():
        infos.append(text(name) + struct.pack("<IQIQ", 1, shape.embedding, F32, offset))
        offset += aligned(len(ones))
    pairs = metadata(shape, kind_name)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs)) + b"".join(pairs + infos)
    with path.open("wb") as file:
        file.write(head + bytes(aligned(len(head)) - len(head)))
        for size, start in parts:
            file.writelines(pieces(pool, start, size))
            file.write(bytes(aligned(size) - size))
        for _ in shape.norms():
            file.write(ones + bytes(aligned(len(ones)) - len(ones)))
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", choices=KINDS, default="q4_K")
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--seed", type=int, default=0)
    args: Any = parser.parse_args()
    read = write(args.file, SHAPES[args.shape], args.type, args.seed)
    print(f"{args.file}: {args.file.stat().st_size} bytes, {read} of them read for each token")


if __name__ == "__main__":
    main()
