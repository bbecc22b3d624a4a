"""BLAS and the CPU device share a model whose attention weights are floats: same choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import headrace
import numpy as np
import pytest
from llama_runner import Runner
from run_daemon import device
from tables import Start
from test_llama_reference import disagreements

# From one column on: BLAS computes the steps, too.
ALWAYS = (device("blas0", backend="blas", batch_min=1), device("cpu0", backend="cpu"))
PART = "attn_"


def float_weights(model: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The attention's matrices, as floats: exactly the values that the blocks stand for."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(model).tensors
        if PART in tensor.name and len(tensor.shape) == 2
    }


@pytest.mark.parametrize("name", ["one", "twelve", "long"])
def test_choices_with_products_on_blas(
    start: Start, model: Path, clear_reference: dict[str, Any], name: str
) -> None:
    expected = clear_reference[name]
    with headrace.connect(start(ALWAYS).address) as client:
        floats = client.put("attention", float_weights(model))
        runner = Runner(client, model.name, overlay=floats)
        assert len(floats) == 4 * runner.config.n_layers
        logits = runner.forced(expected["prompt_tokens"], expected["continuation"])
        for graph in runner.graphs.values():
            assert {share.device: share.splits for share in graph.plan.devices}["blas0"] > 0
    assert not disagreements(logits, expected)
