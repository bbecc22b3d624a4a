"""Commands about the daemon: devices, stats, history; and token."""

from __future__ import annotations

import argparse
import hashlib
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.common import connected, mega, table, unusable

if TYPE_CHECKING:
    pass


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


def run_stats(options: argparse.Namespace) -> int:
    """name{labels} value, one per line."""
    from fnmatch import fnmatchcase

    with connected(options) as client:
        for stat in client.stats():
            if fnmatchcase(stat.name, options.pattern):
                labels = f"{{{stat.labels}}}" if stat.labels else ""
                print(f"{stat.name}{labels} {stat.value:.15g}")
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
        raise unusable(options.output, error) from error
    return 0


def run_token(options: argparse.Namespace) -> int:
    """headrace token: 192 random bits for a client, their digest for a [principal NAME]."""
    token = secrets.token_urlsafe(24)
    digest = hashlib.sha256(token.encode()).hexdigest()
    print(
        "for the client, in a file or $HEADRACE_TOKEN; the daemon does not know it:",
        file=sys.stderr,
    )
    print(token)
    print("for the daemon's configuration, in a section [principal NAME]:", file=sys.stderr)
    print(f"token_sha256 = {digest}")
    return 0
