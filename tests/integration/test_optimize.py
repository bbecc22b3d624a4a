"""Two daemons, one with `optimize = no`: the same bits, and EXPLAIN shows what became one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from run_daemon import Daemon, device

import headrace

DEVICES = (
    device("cpu0", backend="cpu", threads=2, memory="isolated"),
    device("host", backend="cpu", threads=2),
)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[headrace.Client, headrace.Client]]:
    with (
        Daemon(devices=DEVICES) as on,
        Daemon(devices=DEVICES, sections={"daemon": {"optimize": "no"}}) as off,
        headrace.connect(on.address) as first,
        headrace.connect(off.address) as second,
    ):
        yield first, second


def block(width: int, rows: int, norm: str, gate: str) -> headrace.Graph:
    """Norm with weight and bias, products, a gate of two nodes, a residual: a layer of a model."""
    g = headrace.Graph()
    x = g.input("x", [rows, width])
    w, b = g.input("w", [width]), g.input("b", [width])
    m = g.input("m", [width, width])
    n = g.norm(x, 1e-5) if norm == "norm" else g.rms_norm(x, 1e-5)
    y = g.add(g.mul(n, w), b)
    active = g.silu(g.mul_mat(m, y)) if gate == "silu" else g.gelu(g.mul_mat(m, y))
    z = g.mul(active, g.mul_mat(m, g.scale(y, 0.5)))
    g.output(g.add(g.mul_mat(m, z), x), "o")
    return g


@pytest.mark.parametrize("gate", ["silu", "gelu"])
@pytest.mark.parametrize("norm", ["norm", "rms_norm"])
@pytest.mark.parametrize("rows", [1, 33])
def test_the_same_bits(
    pair: tuple[headrace.Client, headrace.Client], rows: int, norm: str, gate: str
) -> None:
    rng = np.random.default_rng(rows)
    data = {
        "x": rng.standard_normal((rows, 96), np.float32),
        "w": rng.standard_normal(96, np.float32),
        "b": rng.standard_normal(96, np.float32),
        "m": rng.standard_normal((96, 96), np.float32) / 10,
    }
    passes = []
    results = []
    for client in pair:
        handle = client.submit(block(96, rows, norm, gate), pins={"o": "cpu0"})
        results.append(handle.run(data)["o"].copy())
        np.testing.assert_array_equal(handle.run(data)["o"], results[-1])
        passes.append(handle.explain().count("pass"))
    assert results[0].tobytes() == results[1].tobytes()
    assert passes[0] >= 2 and passes[1] == 0


def test_rules_of_ggml_stay(launch: Callable[..., Daemon]) -> None:
    daemon = launch(devices=DEVICES)
    with headrace.connect(daemon.address) as client:
        handle = client.submit(block(32, 2, "norm", "silu"), rules="ggml")
        assert "pass" not in handle.explain()
