"""Evaluates a model through the daemon one call at a time, with the test in charge of every option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from headrace import Client, GraphHandle, State, WeightSet
from headrace.models.gguf_file import parse_metadata
from headrace.models.llama import (
    LlamaConfig,
    LlamaGraph,
    kv_state,
    layer_placement,
    padded_kv,
)

Array = np.ndarray[Any, Any]


class Runner:
    """A model in a session: weights, a cache of keys and values, and the graphs already submitted.

    split: how many layers each device takes; None: the daemon's default placement. options: those
    of Client.submit().
    """

    def __init__(
        self,
        client: Client,
        file: str,
        *,
        n_ctx: int = 512,
        split: dict[str, int] | None = None,
        **options: Any,
    ) -> None:
        self.client = client
        self.n_ctx = n_ctx
        self.options = options
        first = client.load(file)
        self.config = LlamaConfig.from_metadata(
            parse_metadata(first.metadata, first.metadata_count)
        )
        placement = layer_placement(self.config, split) if split else None
        self.weights: WeightSet = first
        if placement:
            self.weights = client.load(file, f"{file} {sorted(split or {})}", placement)
        self.state: State = client.state(kv_state(self.config, n_ctx), placement)
        self.graphs: dict[tuple[int, int], GraphHandle] = {}
        self.used = 0

    def graph(self, n_tokens: int, n_kv: int, **options: Any) -> GraphHandle:
        """A graph for one batch, submitted when it is first asked for (or with options of its own)."""
        key = (n_tokens, n_kv)
        if key not in self.graphs or options:
            made = LlamaGraph(
                self.config, self.weights, n_tokens=n_tokens, n_kv=n_kv, n_ctx=self.n_ctx
            )
            self.graphs[key] = self.client.submit(
                made.graph,
                weights=[self.weights],
                states=[self.state],
                **{**self.options, **options},
            )
        return self.graphs[key]

    def inputs(self, tokens: Sequence[int], start: int = 0) -> tuple[int, dict[str, Array]]:
        """n_kv and the inputs of a batch whose first token stands at position `start`."""
        count = len(tokens)
        n_kv = padded_kv(start + count, self.n_ctx)
        positions = np.arange(start, start + count)
        mask = np.where(np.arange(n_kv)[None, :] <= positions[:, None], 0.0, -np.inf)
        values = {
            "tokens": np.asarray(tokens, np.int32),
            "positions": positions.astype(np.int32),
            "cells": positions.astype(np.int64),
            "mask": mask.astype(np.float16),
        }
        if count != 1:
            values["outputs"] = np.array([count - 1], np.int32)
        return n_kv, values

    def feed(self, tokens: Sequence[int]) -> Array:
        """Appends tokens to the sequence; the logits after the last of them."""
        n_kv, values = self.inputs(tokens, self.used)
        self.used += len(tokens)
        return self.graph(len(tokens), n_kv).run(values)["logits"][0].copy()

    def restart(self) -> None:
        """Begins a new sequence in the same cache."""
        self.used = 0

    def forced(self, prompt: Sequence[int], continuation: Sequence[int]) -> list[Array]:
        """Logits after the prompt and after each token of a given continuation but the last."""
        self.restart()
        return [self.feed(prompt), *(self.feed([token]) for token in continuation[:-1])]
