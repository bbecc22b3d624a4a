"""The command line: headrace generate | devices | explain | trace | history | stats | inspect |
quantize | token.

Results go to stdout, everything else to stderr. Exit codes: 0 done; 1 the daemon refused or failed;
2 wrong usage; 3 no daemon, or the connection was lost; 4 a file cannot be used; 130 interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import __version__
from headrace.client import Client, connect
from headrace.errors import HeadraceError, PeerError, Unavailable
from headrace.tls import client_context
from headrace.types import TensorInfo, Type, as_type

if TYPE_CHECKING:
    from rich.progress import Progress

    from headrace.models.generate import Context, Model
    from headrace.models.gguf_file import GgufFile
    from headrace.models.safetensors_file import SafetensorsFile

DEFAULT_ADDRESS = "unix:/run/headrace/headrace.sock"
LONG_FILE, INSPECT_PIECE = 64 << 20, 4 << 20  # bytes from which a bar is shown; bytes at once
FAILED, USAGE, NO_DAEMON, BAD_FILE, INTERRUPTED = 1, 2, 3, 4, 130


class FileError(Exception):
    """A file cannot be used; the words say why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (PeerError, Unavailable) as error:
        return failed(error, NO_DAEMON)
    except HeadraceError as error:
        return failed(error, FAILED)
    except FileError as error:
        return failed(error, BAD_FILE)
    except ValueError as error:
        return failed(error, USAGE)
    except ModuleNotFoundError as error:
        return failed(f"{error}: install headrace[models]", USAGE)


def failed(words: object, code: int) -> int:
    """Says why and returns the code."""
    print(f"headrace: {words}", file=sys.stderr)
    return code


def connected(options: argparse.Namespace) -> Client:
    """A client by the options that every command has."""
    token = os.environ.get("HEADRACE_TOKEN", "")
    tls = None
    try:
        if options.token_file:
            token = Path(options.token_file).read_text("utf-8").strip()
        if options.tls_ca or options.tls_certificate:
            tls = client_context(options.tls_ca, options.tls_certificate, options.tls_key)
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"token or certificate: {error}") from error
    name = f"headrace {options.command}"
    return connect(options.connect, name=name, credentials=token.encode(), tls=tls)


def parser() -> argparse.ArgumentParser:
    """The command line's shape."""
    top = argparse.ArgumentParser(prog="headrace", description="Client of the headrace daemon.")
    top.add_argument("--version", action="version", version=f"headrace {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    for place, default in (
        (top, os.environ.get("HEADRACE_ADDRESS", DEFAULT_ADDRESS)),
        (common, argparse.SUPPRESS),
    ):
        place.add_argument(
            "--connect",
            metavar="ADDRESS",
            default=default,
            help="unix:/path, tcp:host:port or tls:host:port (default: $HEADRACE_ADDRESS, else "
            f"{DEFAULT_ADDRESS})",
        )
        files = argparse.SUPPRESS if place is common else None
        for option, words in (
            ("--token-file", "holds the token to show to the daemon (default: $HEADRACE_TOKEN)"),
            ("--tls-ca", "PEM: who signed the daemon's certificate (default: whom the system trusts)"),
            ("--tls-certificate", "PEM: the certificate to show to the daemon"),
            ("--tls-key", "PEM: its key"),
        ):
            place.add_argument(option, metavar="FILE", default=files, help=words)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    model = argparse.ArgumentParser(add_help=False)
    which = model.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "model",
        nargs="?",
        metavar="FILE",
        help="a GGUF file, relative to one of the daemon's model directories",
    )
    which.add_argument("--model", dest="model_option", metavar="FILE", help="the same")
    model.add_argument(
        "--devices",
        type=layer_split,
        metavar="NAME:LAYERS,...",
        help="spread the layers, for example cpu0:15,cpu1:15",
    )
    model.add_argument("--ctx", type=positive, default=0, help="tokens the context holds")
    model.add_argument(
        "--n-copies", type=natural, default=0, help="slots of the plan (0: it decides)"
    )
    model.add_argument(
        "--rules", choices=("headrace", "ggml"), default="headrace", help="how the graph is split"
    )
    model.add_argument(
        "--no-flash", action="store_true", help="attention by soft_max instead of flash_attn_ext"
    )

    generate = commands.add_parser("generate", parents=[common, model], help="continue a prompt")
    generate.add_argument("--prompt", required=True, help="the text ('-': read from stdin)")
    generate.add_argument("--tokens", type=positive, default=64, help="how many at most")
    generate.add_argument("--temperature", type=float, default=0.0, help="0: the best token always")
    generate.add_argument("--top-k", type=natural, default=40, help="0: all tokens")
    generate.add_argument("--top-p", type=float, default=0.95)
    generate.add_argument("--seed", type=int)
    generate.add_argument(
        "--chat",
        action="store_true",
        help="the prompt is a user's message in the model's chat template",
    )
    generate.add_argument("--ignore-end", action="store_true", help="go on after an end token")
    generate.add_argument(
        "--trace",
        metavar="FILE",
        help="write when each command of each run began and ended, as Chrome/Perfetto JSON",
    )
    generate.set_defaults(run=run_generate)

    devices = commands.add_parser("devices", parents=[common], help="the daemon's devices")
    devices.set_defaults(run=run_devices)
    explain = commands.add_parser(
        "explain", parents=[common, model], help="how the daemon would run a model's graph"
    )
    explain.add_argument("--batch", type=positive, default=1, help="tokens in the graph")
    explain.add_argument("--format", choices=("text", "json", "dot"), default="text")
    explain.add_argument(
        "--analyze",
        metavar="RUNS",
        type=positive,
        nargs="?",
        const=5,
        default=0,
        help="run it so many times (5) and show medians of time and bytes per split",
    )
    explain.set_defaults(run=run_explain)
    trace = commands.add_parser(
        "trace", parents=[common, model], help="when each command of a model's runs began and ended"
    )
    trace.add_argument("--prompt", default="The capital of France is", help="what is evaluated")
    trace.add_argument("--tokens", type=positive, default=4, help="generated after it")
    trace.add_argument(
        "--output", "-o", metavar="FILE", default="-", help="Chrome/Perfetto JSON (default: stdout)"
    )
    trace.set_defaults(run=run_trace)
    history = commands.add_parser(
        "history", parents=[common], help="what the daemon has done lately, for Perfetto"
    )
    history.add_argument(
        "--latest", type=float, default=0.0, metavar="SECONDS", help="(default: all it remembers)"
    )
    history.add_argument("--own", action="store_true", help="only what it did for this principal")
    history.add_argument(
        "--output", "-o", metavar="FILE", default="-", help="Chrome/Perfetto JSON (default: stdout)"
    )
    history.set_defaults(run=run_history)
    stats = commands.add_parser("stats", parents=[common], help="the daemon's counters")
    stats.add_argument("pattern", nargs="?", default="*", help="glob over the names")
    stats.set_defaults(run=run_stats)
    token = commands.add_parser("token", help="make a token, and the daemon's line for it")
    token.set_defaults(run=run_token)
    inspect = commands.add_parser("inspect", help="what a GGUF or safetensors file on this side holds")
    inspect.add_argument("file")
    inspect.add_argument(
        "--tensors",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="list the tensors (the default)",
    )
    inspect.add_argument("--tensor", metavar="NAME", help="statistics of one tensor's values")
    inspect.set_defaults(run=run_inspect)
    add_quantize(commands.add_parser("quantize", parents=[common], help="convert a file's weights"))
    return top


def add_quantize(quantize: argparse.ArgumentParser) -> None:
    """The arguments of quantize."""
    quantize.add_argument("source", metavar="SOURCE.gguf", help="a GGUF file on this side")
    quantize.add_argument("target", metavar="TARGET.gguf", help="the file to write")
    quantize.add_argument("type", type=element_type, metavar="TYPE", help="for example q4_K")
    quantize.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="PATTERN",
        help="tensors that stay as they are (a glob over names; may be repeated)",
    )
    quantize.add_argument(
        "--type",
        dest="types",
        action="append",
        default=[],
        type=pattern_type,
        metavar="PATTERN=TYPE",
        help="tensors with a type of their own (may be repeated, the first match counts)",
    )
    quantize.add_argument("--force", action="store_true", help="replace a file that exists")
    quantize.set_defaults(run=run_quantize)


def element_type(text: str) -> Type:
    """A type's name."""
    try:
        return as_type(text.upper())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pattern_type(text: str) -> tuple[str, Type]:
    """*.ffn_down.weight=q6_K -> the glob and the type."""
    pattern, equals, name = text.rpartition("=")
    if not equals or not pattern:
        raise argparse.ArgumentTypeError(f"{text!r}: PATTERN=TYPE")
    return pattern, element_type(name)


def natural(text: str) -> int:
    """An integer >= 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("not below 0")
    return value


def positive(text: str) -> int:
    """An integer >= 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def layer_split(text: str) -> dict[str, int]:
    """cpu0:15,cpu1:15 -> {"cpu0": 15, "cpu1": 15}."""
    split: dict[str, int] = {}
    for part in text.split(","):
        name, colon, count = part.rpartition(":")
        if not colon:
            name, count = part, "1"
        if not name or not count.isdigit() or name in split:
            raise argparse.ArgumentTypeError(f"{part!r}: NAME:LAYERS,...")
        split[name] = int(count)
    return split


# ---- what is shown on the way --------------------------------------------------------------------


@contextmanager
def progress(words: str) -> Iterator[None]:
    """A bar on stderr while something of unknown length goes on."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        print(f"{words} ...", file=sys.stderr)
        yield
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(words, total=None)
        yield
        bar.update(task, total=1, completed=1)


def byte_bar(words: str) -> Progress | None:
    """A bar for bytes on stderr; None, and the words, where rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
    except ModuleNotFoundError:
        print(f"{words} ...", file=sys.stderr)
        return None
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


@contextmanager
def progress_of(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for `total` bytes; gives the function that takes the bytes done since."""
    bar = byte_bar(words)
    if bar is None:
        yield lambda count: None
        return
    with bar:
        task = bar.add_task(words, total=total)
        yield lambda count: bar.update(task, advance=count)


@contextmanager
def progress_told(words: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for what the daemon does; gives the function that takes what it tells: bytes
    done and bytes in all. The bar pulses until it does, and goes when it never does.
    """
    bar = byte_bar(words)
    if bar is None:
        yield lambda done, total: None
        return
    with bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
        bar.update(task, visible=bar.tasks[0].total is not None)


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


# ---- commands ------------------------------------------------------------------------------------


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
            for token in context.stream(tokens, options.tokens, sampler, stop):
                write(text.push(token))
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
        raise FileError(str(error)) from error
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
    for (count, cells), handle in context.graphs.items():
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


def run_devices(options: argparse.Namespace) -> int:
    """One line per device, in priority order."""
    with connected(options) as client:
        rows = [
            ("name", "type", "memory", "total MB", "free MB", "used MB", "threads", "description")
        ]
        rows += [
            (
                d.name,
                d.type,
                d.memory_kind,
                mega(d.memory_total),
                mega(d.memory_free),
                mega(d.memory_used),
                str(d.threads),
                d.description,
            )
            for d in client.devices()
        ]
    table(rows)
    return 0


def mega(count: int) -> str:
    """Bytes in megabytes."""
    return f"{count / 1e6:.1f}"


def table(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


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


def run_history(options: argparse.Namespace) -> int:
    """What the daemon remembers of itself."""
    if options.latest < 0:
        raise ValueError("--latest is not negative")
    with connected(options) as client:
        text = client.trace(latest=options.latest, own=options.own)
    if options.output == "-":
        print(text, end="")
        return 0
    try:
        Path(options.output).write_text(text, "utf-8")
    except OSError as error:
        raise FileError(f"the trace: {error}") from error
    return 0


def run_token(options: argparse.Namespace) -> int:
    """headrace token: 192 random bits for a client, their digest for a [principal NAME]."""
    token = secrets.token_urlsafe(24)
    digest = hashlib.sha256(token.encode()).hexdigest()
    print("for the client, in a file or $HEADRACE_TOKEN; the daemon does not know it:", file=sys.stderr)
    print(token)
    print("for the daemon's configuration, in a section [principal NAME]:", file=sys.stderr)
    print(f"token_sha256 = {digest}")
    return 0


def run_stats(options: argparse.Namespace) -> int:
    """name{labels} value, one per line."""
    from fnmatch import fnmatchcase

    with connected(options) as client:
        for stat in client.stats():
            if fnmatchcase(stat.name, options.pattern):
                labels = f"{{{stat.labels}}}" if stat.labels else ""
                print(f"{stat.name}{labels} {stat.value:.15g}")
    return 0


def open_gguf(path: str) -> GgufFile:
    """A GGUF file on this side; a bar while a long one is read."""
    from headrace.models.gguf_file import GgufError, GgufFile

    try:
        if os.path.getsize(path) < LONG_FILE:
            return GgufFile(path)
        with progress(f"Reading {path}"):
            return GgufFile(path)
    except (GgufError, ValueError) as error:
        raise FileError(f"{path}: {error}") from error
    except OSError as error:
        raise FileError(str(error)) from error


def open_weights(path: str) -> GgufFile | SafetensorsFile:
    """A file of weights on this side: safetensors by its name, else GGUF."""
    from headrace.models.safetensors_file import SUFFIX, SafetensorsError, SafetensorsFile

    if not path.endswith(SUFFIX):
        return open_gguf(path)
    try:
        return SafetensorsFile(path)
    except (SafetensorsError, ValueError) as error:
        raise FileError(f"{path}: {error}") from error
    except OSError as error:
        raise FileError(str(error)) from error


def run_inspect(options: argparse.Namespace) -> int:
    """Metadata and tensors of a file."""
    file = open_weights(options.file)
    if options.tensor is not None:
        if options.tensor not in file:
            raise FileError(f"{options.file} has no tensor {options.tensor}")
        print_values(file, options.tensor)
        return 0
    print(
        f"{file.format}, {len(file)} tensors, "
        f"{sum(t.nbytes for t in file.values()) / 1e6:.1f} MB"
    )
    print(f"types: {type_counts(file.values())}")
    for key, value in file.metadata.items():
        print(f"{key} = {shortened(value)}")
    if options.tensors:
        table(
            [
                ("tensor", "type", "shape", "bytes"),
                *(
                    (t.name, t.type.name.lower(), str(t.shape), str(t.nbytes))
                    for t in file.values()
                ),
            ]
        )
    return 0


def type_counts(tensors: Iterable[TensorInfo]) -> str:
    """How many tensors, and how many bytes, there are of each type."""
    found: dict[Type, tuple[int, int]] = {}
    for info in tensors:
        count, size = found.get(info.type, (0, 0))
        found[info.type] = (count + 1, size + info.nbytes)
    return ", ".join(
        f"{count} {number.name.lower()} ({mega(size)} MB)"
        for number, (count, size) in sorted(found.items(), key=lambda item: -item[1][1])
    )


def print_values(file: GgufFile | SafetensorsFile, name: str) -> None:
    """Statistics of a tensor's values; a bar when there are many."""
    import numpy as np
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    info = file[name]
    raw = file.read(name)
    raw = raw.reshape(-1, raw.shape[-1]) if raw.size else raw.reshape(0, 1)
    dtype = info.type.dtype
    step = max(1, INSPECT_PIECE // raw.shape[-1])
    pieces = range(0, len(raw), step)
    least, greatest = float("inf"), float("-inf")
    near = total = squares = 0.0
    zeros = count = 0
    print(f"{name}: {info.type.name.lower()} {info.shape}, {info.nbytes} bytes")
    with progress_of(name, raw.nbytes) if len(pieces) > 1 else silence() as advance:
        for at in pieces:
            piece = raw[at : at + step]
            try:
                values = np.asarray(
                    piece.view(dtype)
                    if dtype is not None
                    else dequantize(piece, GGMLQuantizationType(int(info.type))),
                    np.float64,
                )
            except (NotImplementedError, ValueError) as error:
                kind = info.type.name.lower()
                raise FileError(f"{name}: values of type {kind} cannot be shown here") from error
            # Sums of differences to a value near the mean: nothing is lost when squares are taken.
            if count == 0:
                near = float(values.flat[0]) if np.isfinite(values.flat[0]) else 0.0
            least = float(np.minimum(least, values.min()))
            greatest = float(np.maximum(greatest, values.max()))
            total += float((values - near).sum())
            squares += float(((values - near) ** 2).sum())
            zeros += int((values == 0).sum())
            count += values.size
            advance(piece.nbytes)
    if count:
        shift = total / count
        deviation = max(squares / count - shift * shift, 0.0) ** 0.5
        print(
            f"least {least:.6g}, greatest {greatest:.6g}, mean {near + shift:.6g}, "
            f"deviation {deviation:.6g}, zeros {zeros}"
        )


@contextmanager
def silence() -> Iterator[Callable[[int], None]]:
    """Progress of what is too short for a bar."""
    yield lambda count: None


def run_quantize(options: argparse.Namespace) -> int:
    """A file with its weights as another type; figures to stderr."""
    from headrace.models.gguf_file import GgufError
    from headrace.models.quantize import choose, quantize

    if os.path.exists(options.target) and not options.force:
        raise FileError(f"{options.target} exists: --force replaces it")
    file = open_gguf(options.source)
    choices = choose(list(file.values()), options.type, options.keep, options.types)
    before = sum(choice.source.nbytes for choice in choices)
    with connected(options) as client:
        try:
            with progress_of(f"Writing {options.target}", before) as advance:
                quantize(
                    client,
                    file,
                    options.target,
                    choices,
                    options.type,
                    force=options.force,
                    advance=advance,
                )
        except HeadraceError:
            raise
        except (OSError, GgufError) as error:
            raise FileError(str(error)) from error
    after = [choice.target for choice in choices]
    print(
        f"{mega(before)} MB to {mega(sum(t.nbytes for t in after))} MB: {type_counts(after)}; "
        f"{sum(choice.kept for choice in choices)} tensors kept as they were",
        file=sys.stderr,
    )
    again = sum(choice.source.type.is_block and not choice.kept for choice in choices)
    if again:
        print(f"{again} tensors were rounded before: their errors add up", file=sys.stderr)
    return 0


def shortened(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, str):
        text = repr(value)
        return text if len(text) <= 100 else f"{text[:96]}...'"
    if hasattr(value, "__len__"):
        shown = ", ".join(str(item) for item in value[:6])
        return f"[{shown}{', ...' if len(value) > 6 else ''}] ({len(value)})"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
