"""A generation meets the plan cache's limits only where its topology is new, and STATS says why."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import headrace
from headrace.models.generate import Context, Model
from run_daemon import Daemon
from tables import SHARED

TOKENS = 64
LINE = re.compile(r'plan_cache_total\{result="(hit|miss)"(?:,reason="(\w+)")?\}\s+(\d+)')


def counters(address: str) -> dict[str, int]:
    """Hits, and misses by their reason, as `headrace stats` prints them."""
    command = [sys.executable, "-m", "headrace.cli", "--connect", address, "stats", "plan_cache*"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {reason or result: int(value) for result, reason, value in LINE.findall(answer.stdout)}
    assert {"hit", "new", "shapes", "placement", "epoch", "evicted"} <= set(found), answer.stdout
    return found


def generate(context: Context, prompt: list[int]) -> int:
    """Generates TOKENS tokens; how many graphs that took."""
    before = len(context.graphs) + len(context.chained)
    tokens = list(context.stream(prompt, TOKENS, stop=frozenset()))
    assert len(tokens) == TOKENS
    return len(context.graphs) + len(context.chained) - before


def test_misses_are_new_topologies(model: Path, reference: dict[str, Any]) -> None:
    with (
        Daemon(models=[model.parent], devices=SHARED) as daemon,
        headrace.connect(daemon.address) as client,
    ):
        loaded = Model.load(client, model.name)
        context = loaded.context(512)
        assert counters(daemon.address) == {
            "hit": 0, "new": 0, "shapes": 0, "placement": 0, "epoch": 0, "evicted": 0,
        }  # fmt: skip
        # One graph for the prompt, one for all 63 steps after it.
        assert generate(context, reference["twelve"]["prompt_tokens"]) == 2
        first = counters(daemon.address)
        assert first["hit"] == 0
        assert first["new"] + first["shapes"] == 2
        assert first["placement"] == first["epoch"] == first["evicted"] == 0
        # The step from 256 to 512 cells of the cache is a new topology, for prompt and steps.
        context.reset()
        assert generate(context, reference["long"]["prompt_tokens"]) == 2
        second = counters(daemon.address)
        assert second["hit"] == 0
        assert second["new"] + second["shapes"] == 4
        # Another context, another state, the same topologies.
        assert generate(loaded.context(512), reference["twelve"]["prompt_tokens"]) == 2
        third = counters(daemon.address)
        assert third == {**second, "hit": 2}
        # The reasons told with each submit are the same ones.
        assert context.timing.hits == 0
        assert len(context.timing.misses) == 4
        for reason in ("new", "shapes"):
            assert context.timing.misses.count(reason) == second[reason]
