"""Records what llama.cpp chooses, token by token, for three prompts.

    python tests/golden/make_llama_reference.py MODEL.gguf > tests/golden/data/llama/NAME.json

Needs the package llama-cpp-python. The prompt is evaluated as one batch, then every token alone,
greedily, 48 times. At each of the 48 positions the file keeps the two best ids with their logits; the
ids of the first column are the continuation. End-of-text tokens do not end it. Log and progress go to
stderr.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import re
import sys
from pathlib import Path

import llama_cpp
import numpy as np

STEPS = 48
# From 512 cells on llama.cpp cuts the keys of one query by threads, and the last bits follow; with one
# thread there is one answer.
THREADS = 1
CONTEXT = 1024

PROMPTS = {
    "one": "Hello",
    "twelve": "Water runs down the hill and turns the wheel of the mill",
    "long": (
        "A headrace is the channel that leads water from a river or a pond to the wheel of a mill. "
        "It begins at a weir, a low wall of stone or timber that raises the level of the stream a "
        "little and sends part of it aside. From there the channel follows the side of the valley, "
        "falling much more slowly than the river below, so that after a few hundred paces the water "
        "stands several metres above the place where it will be needed. A gate of oak boards closes "
        "the channel at its lower end. When the miller lifts the gate, the water shoots through a "
        "wooden trough and falls into the buckets of the wheel, which begins to turn, slowly at "
        "first, then at the steady pace that the stones want. What has done its work leaves through "
        "the tailrace and finds its way back to the river.\n\n"
        "Keeping a headrace in order is most of the work. Leaves gather at the rack in autumn, ice "
        "must be broken in winter, moles and crayfish dig through the bank in spring, and in a dry "
        "summer every drop that leaks is missed. The old contracts between millers were therefore "
        "very exact. They named the height of the weir to the width of a finger, the days on which "
        "the meadows could be watered, the number of men each village had to send to clear the bed, "
        "and the fine for anyone who opened a gate at night. Many disputes were about a single "
        "stone. In one of them, three brothers who owned three mills on the same channel agreed "
        "that the first would grind in the morning, the second at noon and the third in the "
        "evening. This went well until"
    ),
}


def top_two(logits: np.ndarray) -> tuple[list[int], list[float]]:
    ids = np.argsort(-logits, kind="stable")[:2]
    return [int(i) for i in ids], [float(logits[i]) for i in ids]


class Model:
    def __init__(self, path: Path) -> None:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp cannot load it")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text: str) -> list[int]:
        data = text.encode()
        buffer = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(
            self.vocab, data, len(data), buffer, len(buffer), True, True
        )
        assert count > 0
        return list(buffer[:count])

    def text(self, tokens: list[int]) -> str:
        pieces = b""
        buffer = ctypes.create_string_buffer(512)
        for token in tokens:
            count = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, 512, 0, True)
            pieces += buffer.raw[:count]
        return pieces.decode("utf-8", "replace")

    def context(self) -> ctypes.c_void_p:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = CONTEXT
        params.n_batch = CONTEXT
        params.n_ubatch = CONTEXT
        params.n_threads = THREADS
        params.n_threads_batch = THREADS
        return llama_cpp.llama_init_from_model(self.model, params)

    def decode(self, context: ctypes.c_void_p, tokens: list[int]) -> np.ndarray:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        batch = llama_cpp.llama_batch_get_one(array, len(tokens))
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        pointer = llama_cpp.llama_get_logits_ith(context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.vocab_size,)).copy()


def record(model: Model, name: str, prompt: str) -> dict[str, object]:
    tokens = model.tokenize(prompt)
    context = model.context()
    pending = tokens
    continuation: list[int] = []
    runners_up: list[int] = []
    logits: list[list[float]] = []
    for _ in range(STEPS):
        ids, best = top_two(model.decode(context, pending))
        continuation.append(ids[0])
        runners_up.append(ids[1])
        logits.append(best)
        pending = [ids[0]]
    llama_cpp.llama_free(context)
    text = model.text(continuation)
    print(f"{name}: {len(tokens)} tokens, then: {text!r}", file=sys.stderr)
    return {
        "name": name,
        "prompt": prompt,
        "prompt_tokens": tokens,
        "continuation": continuation,
        "continuation_text": text,
        "second": runners_up,
        "logits": logits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    args = parser.parse_args()
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    model = Model(args.model)
    result = {
        "file": args.model.name,
        "sha256": hashlib.sha256(args.model.read_bytes()).hexdigest(),
        "made_with": {
            "llama_cpp_python": llama_cpp.__version__,
            "system_info": llama_cpp.llama_print_system_info().decode().strip(),
            "threads": THREADS,
            "context": CONTEXT,
            "flash_attention": "default (automatic)",
            "kv_types": "F16",
        },
        "prompts": [record(model, name, prompt) for name, prompt in PROMPTS.items()],
    }
    text = json.dumps(result, indent=1)
    # Innermost lists of numbers go on one line each: the file stays readable and diffs stay small.
    text = re.sub(
        r"\[\s*((?:-?[\d.e+-]+,?\s*)+)\]",
        lambda match: "[" + " ".join(match.group(1).split()) + "]",
        text,
    )
    print(text)


if __name__ == "__main__":
    main()
