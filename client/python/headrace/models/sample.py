"""Choosing the next token from logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Sampler:
    """Greedy at temperature 0; else softmax over the top_k best, of these the smallest set whose
    probability reaches top_p, scaled by the temperature. The same seed gives the same choices.
    """

    def __init__(
        self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int | None = None
    ) -> None:
        if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
            raise ValueError("temperature >= 0, top_k >= 0, 0 < top_p <= 1")
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self._random = np.random.default_rng(seed)

    def __call__(self, logits: npt.NDArray[Any]) -> int:
        """The token chosen from one row of logits."""
        if self.temperature == 0.0:
            return int(logits.argmax())
        count = len(logits)
        if 0 < self.top_k < count:
            candidates = np.argpartition(logits, count - self.top_k)[count - self.top_k :]
        else:
            candidates = np.arange(count)
        candidates = candidates[np.argsort(-logits[candidates], kind="stable")]
        weights = logits[candidates].astype(np.float64)
        weights = np.exp(weights - weights[0])
        if self.top_p < 1.0:
            reached = np.cumsum(weights) >= self.top_p * weights.sum()
            kept = int(reached.argmax()) + 1
            candidates, weights = candidates[:kept], weights[:kept]
        weights = weights ** (1.0 / self.temperature)
        return int(self._random.choice(candidates, p=weights / weights.sum()))
