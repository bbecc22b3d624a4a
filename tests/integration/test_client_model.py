"""A small language model through a real daemon: logits, splits, generation, the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from client_tools import ONE, TWO, Array, Daemon, headrace_command, nmse, write_model
from numpy_reference import Evaluator

import headrace
from headrace.models import llama
from headrace.models.generate import Context, Model
from headrace.models.sample import Sampler
from headrace.types import TensorInfo, Type

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
TOKENS = [7, 99, 3, 250, 41, 8, 8, 120, 33, 64, 5, 90]


@dataclass
class Tiny:
    """The model's folder and its weights."""

    folder: Path
    weights: dict[str, Array]

    def reference(self, config: llama.LlamaConfig, tokens: list[int]) -> Array:
        """The last token's logits by numpy."""
        infos = {n: TensorInfo(n, Type.F32, w.shape) for n, w in self.weights.items()}
        n = len(tokens)
        built = llama.LlamaGraph(config, infos, n_tokens=n, n_kv=256, n_ctx=256, flash=False)
        state = {
            name: np.zeros(shape, np.float16)
            for name, (_, shape) in llama.kv_state(config, 256).items()
        }
        cells = np.arange(n)
        mask = np.where(np.arange(256) <= cells[:, None], 0, -np.inf).astype(np.float16)
        (logits,) = Evaluator(built.graph.encode(), self.weights, state).run(
            {
                "tokens": np.array(tokens, np.int32),
                "positions": cells.astype(np.int32),
                "cells": cells,
                "mask": mask,
                "outputs": np.array([n - 1], np.int32),
            }
        )
        return logits.reshape(-1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The model on disk."""
    folder = tmp_path_factory.mktemp("models")
    return Tiny(folder, write_model(folder / "tiny.gguf"))


@pytest.fixture(scope="module")
def one(tiny: Tiny) -> Iterator[Daemon]:
    """A daemon with one device."""
    with Daemon(devices=ONE, models=[tiny.folder]) as daemon:
        yield daemon


@pytest.mark.parametrize("flash", [True, False])
def test_logits(tiny: Tiny, one: Daemon, flash: bool) -> None:
    with headrace.connect(one.address) as client:
        model = Model.load(client, "tiny.gguf")
        assert model.weights.info.source == "file" and len(model.weights) == len(tiny.weights)
        want = tiny.reference(model.config, TOKENS)
        with model.context(512, flash=flash) as context:
            whole = context.evaluate(TOKENS).copy()
            assert nmse(want, whole) < 2e-3
            context.reset()
            for token in TOKENS:
                stepwise = context.evaluate([token])
            assert nmse(want, stepwise) < 2e-3
            assert want[whole.argmax()] > want.max() - 0.1
            context.reset()
            context.evaluate(TOKENS[:5])
            assert nmse(whole, context.evaluate(TOKENS[5:])) < 1e-4


def test_only_new_topologies_miss(one: Daemon) -> None:
    with headrace.connect(one.address) as client:
        context = Model.load(client, "tiny.gguf").context(768)
        tokens = [token for token, _ in zip(cycle(), range(300), strict=False)]
        context.evaluate(tokens[:250])
        for token in tokens[250:]:
            context.evaluate([token])
        assert set(context.graphs) == {(250, 256), (1, 256), (1, 512)}
        again = Model.load(client, "tiny.gguf").context(768)
        again.evaluate(tokens[:250])
        again.evaluate(tokens[250:251])
        assert again.timing.misses == [] and again.timing.hits == 2


def cycle() -> Iterator[int]:
    """Tokens without end."""
    while True:
        yield from TOKENS


def test_two_devices_give_the_same_bits(tiny: Tiny) -> None:
    with Daemon(devices=TWO, models=[tiny.folder]) as daemon:
        with headrace.connect(daemon.address) as client:
            results = []
            for split in ({"cpu0": 4}, {"cpu0": 2, "cpu1": 2}, {"cpu0": 1, "cpu1": 3}):
                model = Model.load(client, "tiny.gguf", split)
                for copies in (1, 2, 4):
                    with model.context(512, n_copies=copies) as context:
                        logits = [context.evaluate(TOKENS).copy()]
                        logits += [context.evaluate([t]).copy() for t in TOKENS]
                        results.append(np.stack(logits))
                        used = {s.device for s in context.graph(1, 256).plan.devices if s.splits}
                        assert used == {name for name, n in split.items() if n}
            for result in results[1:]:
                assert (result == results[0]).all()


def test_generation_and_sampling(one: Daemon) -> None:
    with headrace.connect(one.address) as client:
        model = Model.load(client, "tiny.gguf")
        with model.context(256) as context:
            greedy = list(context.stream(TOKENS, 20))
            context.reset()
            assert list(context.stream(TOKENS, 20)) == greedy
            context.reset()
            sampled = [list(context.stream(TOKENS, 20, Sampler(1.0, seed=s))) for s in (1,)]
            context.reset()
            assert list(context.stream(TOKENS, 20, Sampler(1.0, seed=1))) == sampled[0]
            context.reset()
            assert len(list(context.stream(TOKENS, 1000, stop=frozenset()))) == 256 - 12 + 1
            with pytest.raises(ValueError):
                context.evaluate([1])


class Here(Sampler):
    """The likeliest token, chosen on this side."""

    def __init__(self) -> None:
        super().__init__(temperature=1.0)

    def __call__(self, logits: Array) -> int:
        return int(logits.argmax())


def test_tokens_chosen_in_the_daemon_are_those_chosen_here(tiny: Tiny) -> None:
    """Over a step of the cache, however many devices and slots; a run is begun before it is wanted."""
    with Daemon(devices=TWO, models=[tiny.folder]) as daemon:
        with headrace.connect(daemon.address) as client:
            for split, copies in ((None, 1), ({"cpu0": 2, "cpu1": 2}, 1), ({"cpu0": 1, "cpu1": 3}, 3)):
                model = Model.load(client, "tiny.gguf", split)
                with model.context(512, n_copies=copies) as context:
                    prompt = [token for token, _ in zip(cycle(), range(240), strict=False)]
                    want = list(context.stream(prompt, 40, Here(), frozenset()))
                    tokens, counted = list(context.tokens), context.timing.generated_tokens
                    context.reset()
                    assert list(context.stream(prompt, 40, stop=frozenset())) == want
                    assert context.tokens == tokens
                    assert context.timing.generated_tokens == 2 * counted == 2 * 39
                    assert set(context.chained) == {256, 512}


def test_a_stream_left_early_leaves_the_context_as_it_should_be(one: Daemon) -> None:
    with headrace.connect(one.address) as client:
        with Model.load(client, "tiny.gguf").context(256) as context:
            want = list(context.stream(TOKENS, 30, Here(), frozenset()))
            after = context.evaluate([5]).copy()
            for many in (1, 2, 7):
                context.reset()
                for count, _ in enumerate(context.stream(TOKENS, 30, stop=frozenset()), 1):
                    if count == many:
                        break
                assert context.tokens == TOKENS + want[: many - 1]
                rest = list(context.stream(want[many - 1 : many], 30 - many, stop=frozenset()))
                assert rest == want[many:]
                assert (context.evaluate([5]) == after).all()
            context.reset()
            stop = frozenset(want[5:6])
            assert list(context.stream(TOKENS, 30, stop=stop)) == want[: want.index(want[5])]
            assert list(context.stream(TOKENS[:1], 0)) == []


def test_where_one_run_at_a_time_is_allowed_none_is_begun_ahead(tiny: Tiny) -> None:
    sections: dict[str, dict[str, object]] = {"limits": {"session_runs": 1}}
    with Daemon(devices=ONE, models=[tiny.folder], sections=sections) as daemon:
        with headrace.connect(daemon.address) as client:
            with Model.load(client, "tiny.gguf").context(256) as context:
                want = list(context.stream(TOKENS, 30, Here(), frozenset()))
                context.reset()
                assert list(context.stream(TOKENS, 30, stop=frozenset())) == want


def test_command_line(one: Daemon) -> None:
    generate = ("generate", "tiny.gguf", "--prompt", "hello there", "--tokens", "8")
    first = headrace_command(one, *generate, "--ignore-end")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("hello there") and first.stdout.endswith("\n")
    for expected in ("prompt: ", "generation: ", "tokens/s", "plan cache: ", "cpu0"):
        assert expected in first.stderr, first.stderr
    assert headrace_command(one, *generate, "--ignore-end").stdout == first.stdout
    devices = headrace_command(one, "devices")
    assert devices.returncode == 0 and "cpu0" in devices.stdout
    stats = headrace_command(one, "stats")
    assert stats.returncode == 0 and len(stats.stdout.splitlines()) > 3
    explain = headrace_command(one, "explain", "--model", "tiny.gguf", "--batch", "4")
    assert explain.returncode == 0 and "FLASH_ATTN_EXT" in explain.stdout
    missing = headrace_command(one, "generate", "no.gguf", "--prompt", "x")
    assert missing.returncode == 1 and "headrace: " in missing.stderr and not missing.stdout
    ours = headrace_command(one, "generate", str(Path("no.gguf").resolve()), "--prompt", "x")
    assert ours.returncode == 1 and "below a model directory" in ours.stderr, ours
    greedy = headrace_command(one, *generate, "--n-copies", "4000000")
    assert greedy.returncode == 1 and "n_copies: 4000000, at most" in greedy.stderr
    assert greedy.stdout == "hello there\n"


def greedy_by_sequence(context: Context, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens in one request: each step's token is the argmax of the one before."""
    model = context.model
    context.evaluate(prompt[:-1])
    past = len(context.tokens)
    n_kv = llama.padded_kv(past + count, context.n_ctx)
    built = llama.LlamaGraph(
        model.config, model.weights, n_tokens=1, n_kv=n_kv, n_ctx=context.n_ctx
    )
    built.graph.output(built.graph.argmax(built.logits), "token")
    handle = model.client.submit(built.graph, weights=[model.weights], states=[context.state])
    steps = []
    for at in range(past, past + count):
        mask = np.full((1, n_kv), -np.inf, np.float16)
        mask[0, : at + 1] = 0
        inputs: dict[str, Array] = {
            "positions": np.array([at], np.int32),
            "cells": np.array([at], np.int64),
            "mask": mask,
        }
        feeds = {}
        if at == past:
            inputs["tokens"] = np.array(prompt[-1:], np.int32)
        else:
            feeds = {"tokens": (at - past - 1, "token")}
        steps.append(headrace.Step(handle, inputs, feeds, outputs=["token"]))
    return [int(result["token"][0]) for result in model.client.sequence(steps)]


def test_32_greedy_tokens_in_one_sequence(tiny: Tiny, one: Daemon) -> None:
    """On the small model, and on the real one where it is there."""
    with headrace.connect(one.address) as client:
        model = Model.load(client, "tiny.gguf")
        with model.context(256) as context:
            run_by_run = list(context.stream(TOKENS, 32, Sampler(), frozenset()))
        with model.context(256) as context:
            assert greedy_by_sequence(context, TOKENS, 32) == run_by_run


def test_32_greedy_tokens_of_a_real_model() -> None:
    file = Path(os.environ.get("HEADRACE_TEST_MODEL", ""))
    if not file.is_file():
        pytest.skip("HEADRACE_TEST_MODEL names no file")
    with (
        Daemon(devices=ONE, models=[file.parent]) as daemon,
        headrace.connect(daemon.address) as client,
    ):
        model = Model.load(client, file.name)
        prompt = model.tokenizer.encode("The capital of France is", bos=None)
        with model.context(512) as context:
            run_by_run = list(context.stream(prompt, 32, Sampler(), frozenset()))
        with model.context(512) as context:
            assert greedy_by_sequence(context, prompt, 32) == run_by_run
