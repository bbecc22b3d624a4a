"""What all commands share: exit codes, the connection, tables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client import Client, connect
from headrace.tls import client_context

if TYPE_CHECKING:
    pass


DEFAULT_ADDRESS = "unix:/run/headrace/headrace.sock"
FAILED, USAGE, NO_DAEMON, BAD_FILE, INTERRUPTED = 1, 2, 3, 4, 130


class FileError(Exception):
    """A file cannot be used; the words say why."""


def unusable(path: str, error: Exception) -> FileError:
    """Why a file cannot be used, with the path that the user gave, once."""
    words = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return FileError(f"{path}: {words.removeprefix(path).lstrip(': ')}")


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
