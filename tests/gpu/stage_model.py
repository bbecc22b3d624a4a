"""stage_model.py MODEL REFERENCE: a model end to end on the GPU, by the CPU's criterion.

Fed the recorded tokens, position by position, it makes the recorded choices wherever the two best are
no tie (tests/acceptance/criterion.py): on one device, and with its layers on two and two copies.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stage import Failure, end, on_gpu, serving

from criterion import disagreements  # isort: skip - beside the acceptance tests
from llama_runner import Runner  # isort: skip


def work() -> str:
    model, reference = (Path(argument) for argument in sys.argv[1:3])
    prompts = json.loads(reference.read_text())["prompts"]
    longest = max(len(p["prompt_tokens"]) + len(p["continuation"]) for p in prompts)
    n_ctx = -(-longest // 32) * 32
    positions = 0
    with serving(on_gpu(2), [model.parent]) as (_, client):
        for split, copies in (({"gpu0": 1}, 1), ({"gpu0": 1, "gpu1": 1}, 2)):
            runner = Runner(client, model.name, n_ctx=n_ctx, split=split, n_copies=copies)
            for prompt in prompts:
                logits = runner.forced(prompt["prompt_tokens"], prompt["continuation"])
                wrong = disagreements(logits, prompt)
                if wrong:
                    raise Failure(f"{prompt['name']}, {len(split)} devices: " + "; ".join(wrong))
                positions += len(logits)
    return f"{positions} choices on one and on two devices, all as recorded"


if __name__ == "__main__":
    end(work)
