"""A loaded model and its contexts: prompt in, tokens out, over the daemon.

model = Model.load(client, "SmolLM2-135M-Instruct.Q4_1.gguf")
context = model.context()
for piece in context.generate("The capital of France is", tokens=32):
    print(piece, end="", flush=True)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from headrace.client import Client
from headrace.errors import Exhausted, HeadraceError
from headrace.flows import Inputs, OnProgress, Placement
from headrace.handles import RunResult, WeightSet
from headrace.held import GraphHandle
from headrace.models import llama
from headrace.models.gguf_file import parse_metadata
from headrace.models.llama import LlamaConfig, LlamaGraph, UnsupportedModel
from headrace.models.sample import Sampler
from headrace.models.tokenizer import TextStream, Tokenizer
from headrace.operation import Operation
from headrace.trace import Trace
from headrace.types import Array, Type

BATCH = 512
# Runs in flight while the likeliest tokens are generated: the next one is there when one ends ...
IN_FLIGHT = 2
# ... unless a token takes so long that it would not matter: a call's time counts from its sending.
LONG_S = 0.5


@dataclass
class Timing:
    """Tokens and seconds of prompt and generation, as far as they were waited for; misses: origins of
    plans that were made anew.
    """

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    generated_tokens: int = 0
    generated_s: float = 0.0
    hits: int = 0
    misses: list[str] = field(default_factory=list)


def _give_up(begun: deque[Operation[RunResult]]) -> None:
    """Ends runs that are not wanted. They may have written cells, which nobody sees."""
    for operation in begun:
        operation.cancel()
    while begun:
        with suppress(HeadraceError):
            begun.popleft().result()


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
        self.chained: dict[int, GraphHandle] = {}
        spec = llama.kv_state(model.config, self.n_ctx) | {llama.TOKEN: (Type.I32, (1,))}
        self.state = model.client.state(spec, model.placement)
        self._token = np.zeros(1, np.int32)
        self._position = np.zeros(1, np.int32)
        self._cell = np.zeros(1, np.int64)
        self._mask = np.full((1, self.n_ctx), -np.inf, np.float16)

    def close(self) -> None:
        """Gives graphs and cache back."""
        for handle in (*self.graphs.values(), *self.chained.values()):
            handle.release()
        self.graphs.clear()
        self.chained.clear()
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
        if (n_tokens, n_kv) not in self.graphs:
            self.graphs[n_tokens, n_kv] = self._submitted(n_tokens, n_kv, chained=False)
        return self.graphs[n_tokens, n_kv]

    def chained_graph(self, n_kv: int) -> GraphHandle:
        """The graph for the token that the one before has found the likeliest."""
        if n_kv not in self.chained:
            self.chained[n_kv] = self._submitted(1, n_kv, chained=True)
        return self.chained[n_kv]

    def _submitted(self, n_tokens: int, n_kv: int, *, chained: bool) -> GraphHandle:
        model = self.model
        built = LlamaGraph(
            model.config,
            model.weights,
            n_tokens=n_tokens,
            n_kv=n_kv,
            n_ctx=self.n_ctx,
            flash=self.flash,
            chained=chained,
        )
        handle = model.client.submit(
            built.graph, weights=[model.weights], states=[self.state], **self._submit
        )
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
        self._token[0] = token
        inputs = (self._token, *self._place(past))
        logits = self._run(self.graph(*inputs[-1].shape), inputs)
        self.tokens.append(token)
        return logits

    def _place(self, past: int) -> tuple[Array, Array, Array]:
        """Position, cell and mask of a token behind `past` others."""
        n_kv = llama.padded_kv(past + 1, self.n_ctx)
        self._position[0] = self._cell[0] = past
        self._mask[0, : past + 1] = 0
        return self._position, self._cell, self._mask[:, :n_kv]

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
        if tokens < 1:
            return
        first, steps = choose(logits), min(tokens - 1, self.n_ctx - len(self.tokens))
        in_daemon = choose.temperature == 0 and not self._trace
        following = (
            self._likeliest(first, steps) if in_daemon else self._chosen(first, steps, choose)
        )
        with closing(following):
            for token in chain((first,), following):
                if token in ends:
                    return
                yield token

    def _chosen(self, token: int, steps: int, choose: Sampler) -> Generator[int, None, None]:
        """The tokens after this one, each chosen here."""
        for _ in range(steps):
            began = time.perf_counter()
            logits = self.evaluate((token,))
            self._count(began)
            token = choose(logits)
            yield token

    def _likeliest(self, token: int, steps: int) -> Generator[int, None, None]:
        """The tokens after this one, each the likeliest, which the next run takes from the state: it is
        on its way before the last one has ended.
        """
        begun: deque[Operation[RunResult]] = deque()
        seconds, most = LONG_S, IN_FLIGHT
        if steps:
            self.state.write(llama.TOKEN, np.array([token], np.int32))
        try:
            while steps > 0:
                began = time.perf_counter()
                while len(begun) < min(steps, most if seconds < LONG_S else 1):
                    inputs = self._place(len(self.tokens) + len(begun))
                    handle = self.chained_graph(inputs[-1].shape[1])
                    begun.append(handle.run_async(inputs))
                try:
                    result = begun.popleft().result()
                except Exhausted:
                    if most == 1:
                        raise
                    most = 1  # no more runs may be under way, those of others included
                    _give_up(begun)
                    self.state.write(llama.TOKEN, np.array([token], np.int32))
                    continue
                seconds = self._count(began)
                steps -= 1
                self.tokens.append(token)
                token = int(result[0][0])
                yield token
        finally:
            _give_up(begun)

    def _count(self, began: float) -> float:
        """A token more; the seconds that it took."""
        seconds = time.perf_counter() - began
        self.timing.generated_tokens += 1
        self.timing.generated_s += seconds
        return seconds

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
