"""A decode step sends its inputs and at most a kilobyte more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace
from llama_runner import Runner
from relay import Relay
from tables import SHARED, Start

STEPS = 32


def test_bytes_of_a_decode_step(
    start: Start, model: Path, reference: dict[str, Any], tmp_path: Path
) -> None:
    relay = Relay(tmp_path, start(SHARED).socket_path)
    prompt = reference["twelve"]
    with headrace.connect(relay.address) as client:
        runner = Runner(client, model.name)
        runner.feed(prompt["prompt_tokens"])
        runner.feed(prompt["continuation"][:1])  # submits the graph of the decode steps
        inputs = runner.graphs[1, 256].input_bytes
        outputs = sum(tensor.nbytes for tensor in runner.graphs[1, 256].outputs)
        for token in prompt["continuation"][1 : 1 + STEPS]:
            sent, received = relay.sent, relay.received
            runner.feed([token])
            assert 0 < relay.sent - sent - inputs <= 1024
            assert 0 < relay.received - received - outputs <= 1024
    relay.close()
