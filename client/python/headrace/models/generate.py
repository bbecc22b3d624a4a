"""A loaded model and its contexts: prompt in, tokens out, over the daemon.

model = Model.load(client, "SmolLM2-135M-Instruct.Q4_1.gguf")
context = model.context()
for piece in context.generate("The capital of France is", tokens=32):
    print(piece, end="", flush=True)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.client import Client
from headrace.flows import Inputs, OnProgress, Placement
from headrace.handles import WeightSet
from headrace.held import GraphHandle
from headrace.models import llama
from headrace.models.gguf_file import parse_metadata
from headrace.models.llama import LlamaConfig, LlamaGraph, UnsupportedModel
from headrace.models.sample import Sampler
from headrace.models.tokenizer import TextStream, Tokenizer
from headrace.trace import Trace
from headrace.types import Array

BATCH = 512


@dataclass
class Timing:
    """Tokens and seconds of prompt and generation; misses: origins of plans that were made anew."""

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    generated_tokens: int = 0
    generated_s: float = 0.0
    hits: int = 0
    misses: list[str] = field(default_factory=list)


class Model:
    """Weights in the daemon, and what their file says."""

    def __init__(
        self,
        client: Client,
        weights: WeightSet,
        metadata: Mapping[str, Any],
        placement: Placement | None,
    ) -> None:
        self.client = client
        self.weights = weights
        self.metadata = metadata
        self.placement = placement
        self.config = LlamaConfig.from_metadata(metadata)
        self.tokenizer = Tokenizer(metadata)

    @classmethod
    def load(
        cls,
        client: Client,
        path: str,
        split: Mapping[str, int] | None = None,
        progress: OnProgress | None = None,
    ) -> Model:
        """Loads a GGUF file of the daemon's; split: {device: layers}, see layer_placement().

        progress: as in Client.load().
        """
        placement, name = None, ""
        if split is not None:
            placement = llama.layer_placement(None, split)
            name = f"{path}@" + ",".join(f"{device}:{n}" for device, n in split.items())
        weights = client.load(path, name, placement, progress=progress)
        metadata = parse_metadata(weights.metadata, weights.metadata_count)
        return cls(client, weights, metadata, placement)

    def context(self, n_ctx: int = 0, **options: Any) -> Context:
        """A conversation's memory; n_ctx 0: what the model was trained with, at most 4096."""
        return Context(self, n_ctx or min(self.config.n_ctx_train, 4096), **options)


class Context:
    """A KV cache and the tokens in it. Not thread-safe.

    trace: every run is traced, and `traces` holds what came of it. submit options (pins, n_copies,
    rules, ...) are passed on with every graph.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        *,
        flash: bool = True,
        batch: int = BATCH,
        trace: bool = False,
        **submit: Any,
    ) -> None:
        self.model = model
        self.n_ctx = -(-n_ctx // llama.KV_STEP) * llama.KV_STEP
        self.flash = flash
        self.batch = batch
        self.tokens: list[int] = []
        self.timing = Timing()
        self.traces: list[Trace] = []
        self._trace = trace
        self._submit = submit
        self.graphs: dict[tuple[int, int], GraphHandle] = {}
        spec = llama.kv_state(model.config, self.n_ctx)
        self.state = model.client.state(spec, model.placement)
        self._token = np.zeros(1, np.int32)
        self._position = np.zeros(1, np.int32)
        self._cell = np.zeros(1, np.int64)
        self._mask = np.full((1, self.n_ctx), -np.inf, np.float16)

    def close(self) -> None:
        """Gives graphs and cache back."""
        for handle in self.graphs.values():
            handle.release()
        self.graphs.clear()
        self.state.free()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def reset(self) -> None:
        """Forgets all tokens; the cache's memory stays."""
        self.tokens.clear()
        self._mask.fill(-np.inf)

    def graph(self, n_tokens: int, n_kv: int) -> GraphHandle:
        """The graph for that many tokens against that many cells, submitted at first use."""
        handle = self.graphs.get((n_tokens, n_kv))
        if handle is None:
            model = self.model
            built = LlamaGraph(
                model.config,
                model.weights,
                n_tokens=n_tokens,
                n_kv=n_kv,
                n_ctx=self.n_ctx,
                flash=self.flash,
            )
            handle = model.client.submit(
                built.graph, weights=[model.weights], states=[self.state], **self._submit
            )
            self.graphs[n_tokens, n_kv] = handle
            if handle.plan.origin == "hit":
                self.timing.hits += 1
            else:
                self.timing.misses.append(handle.plan.origin)
        return handle

    def evaluate(self, tokens: Sequence[int]) -> Array:
        """Appends tokens; the logits of the last, f32 (vocabulary)."""
        if not tokens:
            raise ValueError("no tokens")
        if len(self.tokens) + len(tokens) > self.n_ctx:
            raise ValueError(
                f"{len(self.tokens)} + {len(tokens)} tokens, the context holds {self.n_ctx}"
            )
        logits: Array
        for at in range(0, len(tokens), self.batch):
            piece = tokens[at : at + self.batch]
            logits = self._step(piece[0]) if len(piece) == 1 else self._prefill(piece)
        return logits

    def _run(self, handle: GraphHandle, inputs: Inputs) -> Array:
        result = handle.run(inputs, trace=self._trace)
        if result.trace is not None:
            self.traces.append(result.trace)
        return result[0].reshape(-1)

    def inputs(self, tokens: Sequence[int]) -> dict[str, Array]:
        """What the graph for these tokens, behind those that there are, takes."""
        count, past = len(tokens), len(self.tokens)
        n_kv = llama.padded_kv(past + count, self.n_ctx)
        mask = np.full((count, n_kv), -np.inf, np.float16)
        columns = np.arange(n_kv)[None, :]
        mask[columns <= np.arange(past, past + count)[:, None]] = 0
        cells = np.arange(past, past + count)
        inputs: dict[str, Array] = {
            "tokens": np.array(tokens, np.int32),
            "positions": cells.astype(np.int32),
            "cells": cells,
            "mask": mask,
        }
        if count > 1:
            inputs["outputs"] = np.array([count - 1], np.int32)
        return inputs

    def _prefill(self, tokens: Sequence[int]) -> Array:
        inputs = self.inputs(tokens)
        logits = self._run(self.graph(*inputs["mask"].shape), inputs)
        self.tokens += tokens
        return logits

    def _step(self, token: int) -> Array:
        past = len(self.tokens)
        n_kv = llama.padded_kv(past + 1, self.n_ctx)
        self._token[0], self._position[0], self._cell[0] = token, past, past
        self._mask[0, : past + 1] = 0
        logits = self._run(
            self.graph(1, n_kv), (self._token, self._position, self._cell, self._mask[:, :n_kv])
        )
        self.tokens.append(token)
        return logits

    def stream(
        self,
        prompt: Sequence[int],
        tokens: int,
        sampler: Sampler | None = None,
        stop: frozenset[int] | None = None,
    ) -> Iterator[int]:
        """Evaluates a prompt and yields up to `tokens` tokens chosen one after the other.

        Ends early after a token of `stop` (None: the vocabulary's ends), which is not yielded.
        """
        choose = sampler or Sampler()
        ends = self.model.tokenizer.ends if stop is None else stop
        began = time.perf_counter()
        logits = self.evaluate(prompt)
        self.timing.prompt_tokens += len(prompt)
        self.timing.prompt_s += time.perf_counter() - began
        for produced in range(tokens):
            token = choose(logits)
            if token in ends:
                return
            yield token
            if produced + 1 == tokens or len(self.tokens) >= self.n_ctx:
                return
            began = time.perf_counter()
            logits = self.evaluate((token,))
            self.timing.generated_tokens += 1
            self.timing.generated_s += time.perf_counter() - began

    def generate(
        self, prompt: str, tokens: int = 128, sampler: Sampler | None = None
    ) -> Iterator[str]:
        """Yields the continuation of a prompt as text."""
        tokenizer = self.model.tokenizer
        text = TextStream(tokenizer)
        for token in self.stream(
            tokenizer.encode(prompt, bos=None if not self.tokens else False), tokens, sampler
        ):
            piece = text.push(token)
            if piece:
                yield piece
        rest = text.close()
        if rest:
            yield rest


__all__ = ["Context", "Model", "Timing", "UnsupportedModel"]
