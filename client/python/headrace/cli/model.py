"""Commands that build a model: generate, explain, trace."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from headrace.cli.common import connected, unusable
from headrace.cli.progress import progress_told
from headrace.client import Client

if TYPE_CHECKING:
    from headrace.models.generate import Context, Model


def load_model(client: Client, options: argparse.Namespace) -> Model:
    """The model of the options, loaded in the daemon."""
    from headrace.models.generate import Model

    file = options.model_option or options.model
    began = time.perf_counter()
    with progress_told(f"Loading {file}") as update:
        model = Model.load(client, file, options.devices, update)
    info = model.weights.info
    how = (
        "already in the daemon"
        if model.weights.already
        else f"in {time.perf_counter() - began:.2f} s"
    )
    print(
        f"{info.name}: {info.tensors} tensors, {info.nbytes / 1e6:.1f} MB, {how}", file=sys.stderr
    )
    return model


def make_context(model: Model, options: argparse.Namespace, least: int) -> Context:
    """A context of the options that holds at least that many tokens."""
    return model.context(
        options.ctx or max(least, 256),
        flash=not options.no_flash,
        n_copies=options.n_copies,
        rules=options.rules,
        trace=bool(getattr(options, "trace", None)),
    )


def run_generate(options: argparse.Namespace) -> int:
    """Streams a continuation to stdout; figures to stderr."""
    from headrace.models.sample import Sampler
    from headrace.models.tokenizer import TextStream

    sampler = Sampler(options.temperature, options.top_k, options.top_p, options.seed)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    with connected(options) as client:
        model = load_model(client, options)
        tokenizer = model.tokenizer
        if options.chat:
            prompt = tokenizer.chat([{"role": "user", "content": prompt}])
        tokens = tokenizer.encode(prompt)
        if not tokens:
            raise ValueError("the prompt has no tokens")
        with make_context(model, options, len(tokens) + options.tokens) as context:
            text = TextStream(tokenizer)
            if not options.chat:
                write(prompt)
            stop = frozenset[int]() if options.ignore_end else None
            try:
                for token in context.stream(tokens, options.tokens, sampler, stop):
                    write(text.push(token))
            finally:  # what is said next, to stderr, too begins a line
                write(text.close() + "\n")
            report(context)
            if options.trace:
                save_trace(options.trace, context)
    return 0


def save_trace(path: str, context: Context) -> None:
    """The traces of a context's runs, as JSON."""
    from headrace import trace

    try:
        trace.save(path, context.traces)
    except OSError as error:
        raise unusable(path, error) from error
    commands = sum(map(len, context.traces))
    print(f"{path}: {len(context.traces)} runs, {commands} commands", file=sys.stderr)


def write(text: str) -> None:
    """To stdout at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def report(context: Context) -> None:
    """Speeds, plan cache and splits, to stderr."""
    t = context.timing
    lines = [
        rate("prompt", t.prompt_tokens, t.prompt_s),
        rate("generation", t.generated_tokens, t.generated_s),
    ]
    misses = f" ({', '.join(t.misses)})" if t.misses else ""
    lines.append(f"plan cache: {t.hits} hits, {len(t.misses)} misses{misses}")
    chained = (((1, cells), handle) for cells, handle in context.chained.items())
    for (count, cells), handle in (*context.graphs.items(), *chained):
        shares = ", ".join(f"{share.device} {share.splits}" for share in handle.plan.devices)
        lines.append(
            f"splits of {count} token(s), {cells} cells: {shares or 'none'} "
            f"(copies {handle.plan.n_copies})"
        )
    print("\n".join(lines), file=sys.stderr)


def rate(what: str, tokens: int, seconds: float) -> str:
    """One line of speed."""
    speed = f", {tokens / seconds:.1f} tokens/s" if seconds > 0 and tokens else ""
    return f"{what}: {tokens} tokens in {seconds:.3f} s{speed}"


def run_explain(options: argparse.Namespace) -> int:
    """The plan of one graph of a model, in one of three forms; measured where that is asked."""
    with connected(options) as client:
        model = load_model(client, options)
        with make_context(model, options, options.batch) as context:
            inputs = context.inputs([0] * options.batch)
            handle = context.graph(*inputs["mask"].shape)
            explanation = (
                handle.analyze(inputs, runs=options.analyze)
                if options.analyze
                else handle.explanation()
            )
    print(getattr(explanation, options.format)().rstrip())
    return 0


def run_trace(options: argparse.Namespace) -> int:
    """Evaluates a prompt and some tokens, traced."""
    import json

    from headrace import trace

    options.trace = options.output
    with connected(options) as client:
        model = load_model(client, options)
        tokens = model.tokenizer.encode(options.prompt)
        if not tokens:
            raise ValueError("the prompt has no tokens")
        with make_context(model, options, len(tokens) + options.tokens) as context:
            for _ in context.stream(tokens, options.tokens, stop=frozenset()):
                pass
            if options.output == "-":
                print(json.dumps(trace.chrome(context.traces)))
            else:
                save_trace(options.output, context)
    return 0
