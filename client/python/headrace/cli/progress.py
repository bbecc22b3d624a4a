"""Bars on stderr; plain words where rich is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


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


@contextmanager
def silence() -> Iterator[Callable[[int], None]]:
    """Progress of what is too short for a bar."""
    yield lambda count: None
