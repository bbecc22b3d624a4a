"""When two programs that run one model agree: fed the same tokens, they make the same choices."""

from __future__ import annotations

from typing import Any

import numpy as np

# Two logits nearer than this share of their magnitude are a tie.
TIE = 1e-3


def disagreements(logits: list[np.ndarray[Any, Any]], expected: dict[str, Any]) -> list[str]:
    """Positions with another choice although llama.cpp's two best are no tie."""
    found = []
    for position, ours in enumerate(logits):
        best, second = expected["logits"][position]
        choice = expected["continuation"][position]
        tie = best - second < TIE * max(abs(best), abs(second))
        if int(ours.argmax()) != choice and not tie:
            found.append(
                f"position {position}: {int(ours.argmax())} ({ours.max():.4f}) instead of {choice} "
                f"({ours[choice]:.4f}); llama.cpp has {best:.4f} and {second:.4f}"
            )
    return found
