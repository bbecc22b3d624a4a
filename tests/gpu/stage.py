"""What the stages share: devices on one GPU, a model's runs, and how a stage ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("tools", "acceptance")]

import headrace  # noqa: E402
import numpy as np  # noqa: E402
from run_daemon import Daemon, Device, device  # noqa: E402

Array = np.ndarray[Any, Any]
HOST = device("host", backend="cpu")


class Failure(Exception):
    """What is wrong, in words."""


def on_gpu(count: int, **keys: object) -> tuple[Device, ...]:
    """gpu0, gpu1, ...: so many logical devices on the first GPU, and the host."""
    return (*(device(f"gpu{i}", backend="cuda", gpu=0, **keys) for i in range(count)), HOST)


@contextmanager
def serving(
    devices: Sequence[Device], models: Sequence[Path] = ()
) -> Iterator[tuple[Daemon, headrace.Client]]:
    with Daemon(devices=devices, models=models) as daemon:
        with headrace.connect(daemon.address) as client:
            yield daemon, client


def distance(ours: Array, theirs: Array) -> float:
    """Normalised: the squared differences' share of the squares."""
    a, b = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    if not np.isfinite(a).all():
        raise Failure("a result is not finite")
    return float(((a - b) ** 2).sum() / max((b**2).sum(), 1e-30))


def same_bits(what: str, ours: Sequence[Array], theirs: Sequence[Array]) -> None:
    if len(ours) != len(theirs):
        raise Failure(f"{what}: {len(ours)} results instead of {len(theirs)}")
    for position, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.tobytes() != b.tobytes():
            worst = np.abs(a.astype(np.float64) - b.astype(np.float64)).max()
            raise Failure(f"{what}: result {position} has other bits, up to {worst:.3g} away")


def end(work: Callable[[], str]) -> None:
    """Runs a stage: its last line says what was seen, or what is wrong (exit status 1)."""
    try:
        print(work())
    except (Failure, headrace.HeadraceError, OSError) as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)
