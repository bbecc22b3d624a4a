"""llama.cpp as the peer of `./bench generate`: one measurement for each line on standard input.

    llama_peer.py MODEL THREADS < lines

runs in an environment of its own, which has llama-cpp-python. It first answers `ready {...}`. Each
line names how many tokens to generate after which prompt ids, as JSON {"prompt": [...], "tokens": N};
the answer is a line {"prompt_s": ..., "generate_s": ...}. Prompt: the whole prompt in one call, up to
the logits of its last token. Generation: every token alone, greedily, with the choice made here.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np

CONTEXT = 1024


def main() -> None:
    path, threads = sys.argv[1], int(sys.argv[2])
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = CONTEXT
    params.n_threads = params.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, params)

    def best_after(tokens: list[int]) -> int:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        batch = llama_cpp.llama_batch_get_one(array, len(tokens))
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(vocab_size,)).argmax())

    info = {"version": llama_cpp.__version__}
    info["system_info"] = llama_cpp.llama_print_system_info().decode().strip()
    print("ready", json.dumps(info), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        start = time.perf_counter()
        token = best_after(request["prompt"])
        between = time.perf_counter()
        for _ in range(request["tokens"]):
            token = best_after([token])
        end = time.perf_counter()
        print(json.dumps({"prompt_s": between - start, "generate_s": end - between}), flush=True)


if __name__ == "__main__":
    main()
