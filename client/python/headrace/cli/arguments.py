"""The command line's shape."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from headrace import __version__
from headrace.cli.common import DEFAULT_ADDRESS
from headrace.cli.daemon import run_devices, run_history, run_stats, run_token
from headrace.cli.files import run_inspect, run_quantize
from headrace.cli.model import run_explain, run_generate, run_trace
from headrace.types import Type, as_type

if TYPE_CHECKING:
    pass


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
            (
                "--tls-ca",
                "PEM: who signed the daemon's certificate (default: whom the system trusts)",
            ),
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
    model.add_argument(
        "--ctx", type=positive, default=0, help="tokens the context holds (rounded up to 256s)"
    )
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
    inspect = commands.add_parser(
        "inspect", help="what a GGUF or safetensors file on this side holds"
    )
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
