"""Graphs of the Llama family (llama, smollm, mistral, qwen2, qwen3) from a GGUF's metadata.

The KV cache is a state of the session: per layer `kv.N.k` and `kv.N.v`, f16 (n_ctx, n_kv_heads *
head). A graph evaluates n_tokens tokens against the first n_kv cells of the cache. Which cells are
written, the positions and the mask are inputs, so the topology depends only on (n_tokens, n_kv,
n_outputs); n_kv is padded (KV_STEP), so that generation meets a new topology only once per KV_STEP
tokens.

Order of operators, scale and types follow llama.cpp's graph: with equal kernels the logits are
equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headrace.graph import Graph, RopeMode, Tensor
from headrace.types import TensorInfo, Type

KV_STEP = 256
TOKEN = "token"  # i32 (1) of a state: the token that a chained graph takes, and leaves for the next

ROPE_MODES = {"llama": RopeMode.NORMAL, "qwen2": RopeMode.NEOX, "qwen3": RopeMode.NEOX}


class UnsupportedModel(ValueError):
    """The file holds a model that this module cannot build."""


@dataclass(frozen=True)
class LlamaConfig:
    """What the metadata say about a model."""

    architecture: str
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head: int
    n_ctx_train: int
    norm_eps: float
    rope_mode: RopeMode
    rope_dims: int
    rope_base: float
    rope_scale: float
    rope_ext: float
    rope_ctx_orig: int

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> LlamaConfig:
        """Raises UnsupportedModel for another family or a mixture of experts."""
        name = str(metadata.get("general.architecture", "?"))
        if name not in ROPE_MODES:
            raise UnsupportedModel(f"architecture {name!r}: only {', '.join(ROPE_MODES)}")

        def get(key: str, default: Any = None) -> Any:
            value = metadata.get(f"{name}.{key}", default)
            if value is None:
                raise UnsupportedModel(f"the file has no {name}.{key}")
            return value

        if get("expert_count", 0):
            raise UnsupportedModel("a mixture of experts")
        heads, embd = int(get("attention.head_count")), int(get("embedding_length"))
        head = int(get("attention.key_length", embd // heads))
        context = int(get("context_length"))
        scaling = str(get("rope.scaling.type", "none"))
        factor = float(get("rope.scaling.factor", 0.0)) if scaling in ("linear", "yarn") else 0.0
        return cls(
            architecture=name,
            n_layers=int(get("block_count")),
            n_embd=embd,
            n_heads=heads,
            n_kv_heads=int(get("attention.head_count_kv", heads)),
            head=head,
            n_ctx_train=context,
            norm_eps=float(get("attention.layer_norm_rms_epsilon")),
            rope_mode=ROPE_MODES[name],
            rope_dims=int(get("rope.dimension_count", head)),
            rope_base=float(get("rope.freq_base", 10000.0)),
            rope_scale=1.0 / factor if factor else 1.0,
            rope_ext=1.0 if scaling == "yarn" else 0.0,
            rope_ctx_orig=int(get("rope.scaling.original_context_length", context)),
        )


def kv_state(config: LlamaConfig, n_ctx: int) -> dict[str, tuple[Type, tuple[int, ...]]]:
    """Names, types and shapes of the cache, for Client.state()."""
    shape = (n_ctx, config.n_kv_heads * config.head)
    return {f"kv.{i}.{part}": (Type.F16, shape) for i in range(config.n_layers) for part in "kv"}


def padded_kv(cells: int, n_ctx: int) -> int:
    """Cells that a graph looks at when `cells` are in use."""
    return min(-(-cells // KV_STEP) * KV_STEP, n_ctx)


def layer_placement(config: LlamaConfig | None, split: Mapping[str, int]) -> list[tuple[str, str]]:
    """Placement rules that spread the layers: {"cpu0": 15, "cpu1": 15} puts the first 15 on cpu0,
    all others on cpu1.

    Holds for weights and for the cache. With a config the numbers are shares, scaled to the model's
    number of layers. The embedding goes to the first device, the last norm and an output matrix of
    its own to the last.
    """
    if not split or min(split.values()) < 0 or not any(split.values()):
        raise ValueError("a split names devices and how many layers each takes")
    if config is not None:
        total, done, ends = sum(split.values()), 0, [0]
        for share in split.values():
            done += share
            ends.append(round(done * config.n_layers / total))
        split = dict(zip(split, (b - a for a, b in pairwise(ends)), strict=True))
    devices = list(split)
    rules: list[tuple[str, str]] = []
    layer = 0
    for device in devices[:-1]:
        for i in range(layer, layer + split[device]):
            rules += [(f"blk.{i}.*", device), (f"kv.{i}.*", device)]
        layer += split[device]
    rules += [(pattern, devices[-1]) for pattern in ("blk.*", "kv.*", "output*")]
    return [*rules, ("*", devices[0])]


class LlamaGraph:
    """Builds one graph; `graph` is the result, its output is `logits` (n_outputs, vocabulary).

    Inputs: tokens, positions i32 (n_tokens); cells i64 (n_tokens), the rows of the cache to write;
    mask f16 (n_tokens, n_kv), 0 or -inf; outputs i32 (n_outputs), which tokens' logits are wanted
    (absent when all are). chained: for one token, which is the state's (TOKEN); in the place of logits
    the output is `token`, i32 (1), the likeliest one, which is the state's then.
    """

    def __init__(
        self,
        config: LlamaConfig,
        tensors: Mapping[str, TensorInfo],
        *,
        n_tokens: int,
        n_kv: int,
        n_ctx: int,
        n_outputs: int = 1,
        flash: bool = True,
        chained: bool = False,
    ) -> None:
        if chained and n_tokens != 1:
            raise ValueError("a chained graph takes one token")
        self.config = config
        self.tensors = tensors
        self.n_tokens, self.n_kv, self.n_ctx = n_tokens, n_kv, n_ctx
        self.n_outputs, self.flash, self.chained = n_outputs, flash, chained
        self.graph = Graph()
        self._weights: dict[str, Tensor] = {}
        self._build()

    def weight(self, name: str) -> Tensor:
        """The leaf of a weight; one leaf however often it is used."""
        if name not in self._weights:
            info = self.tensors.get(name)
            if info is None:
                raise UnsupportedModel(f"the file has no tensor {name}")
            self._weights[name] = self.graph.weight(name, info.shape, info.type)
        return self._weights[name]

    def _build(self) -> None:
        g, n = self.graph, self.n_tokens
        tokens = (g.state if self.chained else g.input)(
            TOKEN if self.chained else "tokens", (n,), Type.I32
        )
        self.positions = g.input("positions", (n,), Type.I32)
        self.cells = g.input("cells", (n,), Type.I64)
        self.mask = g.input("mask", (n, self.n_kv), Type.F16)
        wanted = g.input("outputs", (self.n_outputs,), Type.I32) if self.n_outputs != n else None
        self.factors = (
            self.weight("rope_freqs.weight") if "rope_freqs.weight" in self.tensors else None
        )
        x = g.name(g.get_rows(self.weight("token_embd.weight"), tokens), "inp_embd")
        for i in range(self.config.n_layers):
            last = i == self.config.n_layers - 1
            x = self._layer(i, x, wanted if last else None)
        x = g.name(self._norm(x, "output_norm.weight"), "result_norm")
        head = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        self.logits = g.mul_mat(self.weight(head), x)
        if self.chained:
            g.output(g.cpy(g.argmax(self.logits), tokens), TOKEN)
        else:
            g.output(self.logits, "logits")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self.graph.mul(self.graph.rms_norm(x, self.config.norm_eps), self.weight(name))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = self.graph.mul_mat(self.weight(f"{name}.weight"), x)
        if f"{name}.bias" in self.tensors:
            y = self.graph.add(y, self.weight(f"{name}.bias"))
        return y

    def _layer(self, i: int, x: Tensor, wanted: Tensor | None) -> Tensor:
        g = self.graph
        attention = self._attention(i, self._norm(x, f"blk.{i}.attn_norm.weight"))
        if wanted is not None:
            attention, x = g.get_rows(attention, wanted), g.get_rows(x, wanted)
        x = g.name(g.add(attention, x), f"ffn_inp-{i}")
        y = self._norm(x, f"blk.{i}.ffn_norm.weight")
        up = self._linear(y, f"blk.{i}.ffn_up")
        gate = self._linear(y, f"blk.{i}.ffn_gate")
        y = self._linear(g.swiglu(gate, up), f"blk.{i}.ffn_down")
        return g.name(g.add(y, x), f"l_out-{i}")

    def _rope(self, x: Tensor, name: str) -> Tensor:
        c = self.config
        if name in self.tensors:
            x = self._norm(x, name)
        return self.graph.rope(
            x,
            self.positions,
            self.factors,
            n_dims=c.rope_dims,
            mode=c.rope_mode,
            n_ctx_orig=c.rope_ctx_orig,
            base=c.rope_base,
            scale=c.rope_scale,
            ext_factor=c.rope_ext,
        )

    def _attention(self, i: int, x: Tensor) -> Tensor:
        g, c, n = self.graph, self.config, self.n_tokens
        q = g.reshape(self._linear(x, f"blk.{i}.attn_q"), (n, c.n_heads, c.head))
        k = g.reshape(self._linear(x, f"blk.{i}.attn_k"), (n, c.n_kv_heads, c.head))
        v = self._linear(x, f"blk.{i}.attn_v")
        q = g.name(self._rope(q, f"blk.{i}.attn_q_norm.weight"), f"q-{i}")
        k = g.name(self._rope(k, f"blk.{i}.attn_k_norm.weight"), f"k-{i}")
        keys = self._cached(f"kv.{i}.k", g.reshape(k, (n, c.n_kv_heads * c.head)))
        values = self._cached(f"kv.{i}.v", v)
        q = g.permute(q, (1, 0, 2))
        scale = 1.0 / math.sqrt(c.head)
        if self.flash:
            y = g.flash_attn_ext(q, keys, values, self.mask, scale=scale)
        else:
            scores = g.soft_max(g.mul_mat(keys, q, precise=True), self.mask, scale=scale)
            y = g.mul_mat(g.cont(g.transpose(values)), scores)
            y = g.cont(g.permute(y, (1, 0, 2)))
        y = g.name(g.reshape(y, (n, c.n_heads * c.head)), f"kqv_out-{i}")
        return self._linear(y, f"blk.{i}.attn_output")

    def _cached(self, name: str, rows: Tensor) -> Tensor:
        """Writes this step's rows into the cache -> the cells in use (n_kv_heads, n_kv, head)."""
        g, c = self.graph, self.config
        width = c.n_kv_heads * c.head
        cache = g.state(name, (self.n_ctx, width), Type.F16)
        written = g.set_rows(cache, rows, self.cells)
        cells = g.view(written, (self.n_kv, c.n_kv_heads, c.head), (written.nb[1], c.head * 2, 2))
        return g.permute(cells, (1, 0, 2))
