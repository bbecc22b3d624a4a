"""What the client's tests against a real daemon share: a daemon per device table, a tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests/tools", "tests/python", "client/python"):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))

from run_daemon import Daemon, Device, device  # noqa: E402

import headrace  # noqa: E402
from headrace.models.tokenizer import byte_alphabet  # noqa: E402

ONE = (device("cpu0", backend="cpu", threads=1),)
TWO = (
    device("cpu0", backend="cpu", memory="isolated", threads=1),
    device("cpu1", backend="cpu", memory="isolated", threads=1),
)
Array = np.ndarray[Any, Any]


@contextmanager
def client_of(
    devices: tuple[Device, ...] = ONE, *, tcp: bool = False, **options: Any
) -> Iterator[headrace.Client]:
    """A daemon with that device table, and a client of it. The daemon must stop cleanly."""
    with Daemon(devices=devices, tcp=tcp, **options) as daemon:
        address = daemon.tcp_address if tcp else daemon.address
        assert address is not None
        with headrace.connect(address, timeout=30) as client:
            yield client


def random(*shape: int, seed: int = 1) -> Array:
    """f32 normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def nmse(want: Array, got: Array) -> float:
    """Normalised squared error."""
    want, got = want.astype(np.float64).ravel(), got.astype(np.float64).ravel()
    return float(((want - got) ** 2).sum() / ((want**2).sum() or 1.0))


LAYERS, EMBD, HEADS, KV_HEADS, FF = 4, 64, 4, 2, 128


def write_model(path: Path, quantised: bool = True) -> dict[str, Array]:
    """Writes a small Llama GGUF with random weights; returns them, dequantised."""
    import gguf

    kind = gguf.GGMLQuantizationType
    rng = np.random.default_rng(5)
    tokens = [*byte_alphabet().values(), "he", "ll", "hell", "hello", "<|end|>"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(1024)
    writer.add_embedding_length(EMBD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_feed_forward_length(FF)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(["h e", "l l", "he ll", "hell o"])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    narrow = KV_HEADS * EMBD // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), EMBD),
        "output_norm.weight": (EMBD,),
    }
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (EMBD,),
            f"blk.{i}.attn_q.weight": (EMBD, EMBD),
            f"blk.{i}.attn_k.weight": (narrow, EMBD),
            f"blk.{i}.attn_v.weight": (narrow, EMBD),
            f"blk.{i}.attn_output.weight": (EMBD, EMBD),
            f"blk.{i}.ffn_norm.weight": (EMBD,),
            f"blk.{i}.ffn_gate.weight": (FF, EMBD),
            f"blk.{i}.ffn_up.weight": (FF, EMBD),
            f"blk.{i}.ffn_down.weight": (EMBD, FF),
        }
    values: dict[str, Array] = {}
    for name, shape in shapes.items():
        value = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        if len(shape) == 1:
            value = 1 + value
        if quantised and len(shape) == 2:
            q = kind.Q8_0
            raw = gguf.quants.quantize(value, q)
            writer.add_tensor(name, raw, raw_dtype=q)
            value = gguf.quants.dequantize(raw, q)
        else:
            writer.add_tensor(name, value)
        values[name] = np.ascontiguousarray(value, np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def headrace_command(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line."""
    path = os.pathsep.join(
        filter(None, (str(ROOT / "client/python"), os.environ.get("PYTHONPATH")))
    )
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments],
        env={**os.environ, "HEADRACE_ADDRESS": daemon.address, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
