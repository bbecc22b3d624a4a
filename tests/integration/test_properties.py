"""Operators on random shapes, strides and types against float64, on every instruction set in turn.

A case is made from its seed alone: HR_SEED=N runs that one. Operands are contiguous, permuted, or
windows with gaps; every device of one daemon (portable, AVX2, AVX-512; one and three threads) computes
the same graph, and each must agree with numpy. In the wild form every operand of every operator may lie
in any way: what the daemon takes it must compute rightly, the rest it refuses in words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import client_tools
import numpy as np
import numpy_images
import numpy_layout
import numpy_recurrent
import numpy_reference
import property_images
import property_layout
import pytest
from numpy_reference import Evaluator
from property_maker import BLOCKS, FLOATS, Maker, pick
from run_daemon import device
from test_reference import nmse

import headrace
from headrace import errors
from headrace.graph import Graph
from headrace.ops.attention import RopeMode
from headrace.ops.base import Tensor
from headrace.types import Type

SETS = ("portable", "avx2", "avx512")
FULL = bool(os.environ.get("HEADRACE_FULL"))
ROUNDS = 200 if FULL else 12
ONLY = os.environ.get("HR_SEED")

numpy_reference.OPS.update(numpy_images.OPS)
numpy_reference.OPS.update(numpy_layout.OPS)
numpy_reference.OPS.update(numpy_recurrent.OPS)


# ---- cases: each returns the output and the error that is allowed ----------------------------------


def binary(m: Maker) -> tuple[Tensor, float]:
    shape = m.shape()
    tiled = tuple(pick(m, 1, n) for n in shape)
    a, b = m.operand(shape), m.operand(tiled)
    f = pick(m, m.graph.add, m.graph.sub, m.graph.mul)
    return f(a, b), 1e-12


def unary(m: Maker) -> tuple[Tensor, float]:
    g = m.graph
    f = pick(m, g.abs, g.neg, g.tanh, g.elu, g.relu, g.sigmoid, g.gelu_quick, g.silu, g.hardswish,
             g.exp, g.softplus, g.sqr, g.cos, g.gelu_erf)  # fmt: skip
    return f(m.operand(m.shape())), 1e-6  # some go through tables of f16, as the formats demand


def scaled(m: Maker) -> tuple[Tensor, float]:
    x = m.operand(m.shape())
    return pick(m, lambda: m.graph.scale(x, 1.7, 0.3), lambda: m.graph.clamp(x, -0.5, 0.8))(), 1e-12


def glu(m: Maker) -> tuple[Tensor, float]:
    shape = m.shape()
    g = m.graph
    f = pick(m, g.reglu, g.swiglu, g.geglu_erf)
    return f(m.plain(shape), m.plain(shape)), 1e-6  # rows must be dense


def reduced(m: Maker) -> tuple[Tensor, float]:
    x = m.operand(m.shape(axes=pick(m, 2, 3, 4)))
    return pick(m, m.graph.sum_rows, m.graph.mean, m.graph.cumsum)(x), 1e-10


def normed(m: Maker) -> tuple[Tensor, float]:
    x = m.operand(m.shape(axes=pick(m, 2, 3, 4)))
    return pick(m, m.graph.rms_norm, m.graph.norm)(x, eps=1e-5), 1e-9


def softened(m: Maker) -> tuple[Tensor, float]:
    shape = m.shape(axes=4)
    x = m.plain(shape)
    mask = None
    if m.below(2) == 1:
        mask = m.plain((1, 1, shape[2], shape[3]), pick(m, Type.F32, Type.F16))
    return m.graph.soft_max(x, mask, scale=0.7), 1e-9


def ordered(m: Maker) -> tuple[Tensor, float]:
    x = m.plain(m.shape(axes=2))
    return m.graph.argsort(x), 0.0


def product(m: Maker) -> tuple[Tensor, float]:
    type = pick(m, *FLOATS, *BLOCKS)
    k = m.below(4) * 32 if type.is_block else m.below(130)
    rows, columns, planes = m.below(70), m.below(40), m.below(3)
    a = m.rows((1, planes, rows, k), type) if type.is_block else m.operand((1, planes, rows, k), type)
    if not type.is_block and a.strides[-1] != type.block_bytes:
        a = m.plain((1, planes, rows, k), type)  # rows of a weight are dense
    b = m.operand((1, planes * m.below(2), columns, k))
    # Activations are rounded as the formats say: to blocks of eight bits, to f16, to bf16.
    allowed = {Type.F32: 1e-11, Type.F16: 1e-6, Type.BF16: 1e-4}.get(type, 1e-3)
    return m.graph.mul_mat(a, b), allowed


def chosen(m: Maker) -> tuple[Tensor, float]:
    type = pick(m, *FLOATS, *BLOCKS)
    columns = m.below(3) * 32 if type.is_block else m.below(80)
    rows = m.below(20)
    x = m.rows((1, 1, rows, columns), type)
    return m.graph.get_rows(x, m.ids((1, 1, m.below(30)), rows)), 1e-12


def experts(m: Maker) -> tuple[Tensor, float]:
    type = pick(m, Type.F32, Type.F16, Type.Q8_0, Type.Q4_0)
    count, rows, k, tokens = m.below(8), m.below(40), m.below(3) * 32, m.below(9)
    used = m.below(count)
    a = m.rows((1, count, rows, k), type)
    b = m.plain((1, tokens, pick(m, 1, used), k))
    order = np.stack([m.rng.permutation(count)[:used] for _ in range(tokens)]).astype(np.int32)
    ids = m.integers(order)
    allowed = {Type.F32: 1e-11, Type.F16: 1e-6}.get(type, 1e-3)
    return m.graph.mul_mat_id(a, b, ids), allowed


def rotated(m: Maker) -> tuple[Tensor, float]:
    heads, tokens, half = m.below(5), m.below(9), m.below(20)
    x = m.plain((1, tokens, heads, 2 * half))
    positions = m.integers(m.rng.integers(0, 100, (tokens,)))
    mode = pick(m, RopeMode.NORMAL, RopeMode.NEOX)
    return m.graph.rope(x, positions, n_dims=2 * m.below(half), mode=mode), 1e-9


def attended(m: Maker) -> tuple[Tensor, float]:
    groups, kv_heads, size = m.below(3), m.below(3), m.below(4) * 16
    tokens, keys = m.below(9), m.below(90)
    type = pick(m, Type.F16, Type.F32)
    q = m.plain((1, groups * kv_heads, tokens, size))
    k, v = (m.plain((1, kv_heads, keys, size), type) for _ in range(2))
    mask = m.plain((1, 1, tokens, keys), Type.F16) if m.below(2) == 1 else None
    return m.graph.flash_attn_ext(q, k, v, mask, scale=size**-0.5), 1e-5


def moved(m: Maker) -> tuple[Tensor, float]:
    g, shape = m.graph, m.shape()
    x = m.operand(shape, pick(m, Type.F32, Type.F16))
    return pick(
        m,
        lambda: g.cont(x),
        lambda: g.cast(x, pick(m, Type.F32, Type.F16)),
        lambda: g.repeat(x, tuple(n * m.below(3) for n in shape)),
        lambda: g.concat(x, m.operand(shape, x.type), axis=m.below(len(shape)) - 1),
    )(), 1e-6


CASES: dict[str, Callable[[Maker], tuple[Tensor, float]]] = {
    f.__name__: f
    for f in (binary, unary, scaled, glu, reduced, normed, softened, ordered, product, chosen,
              experts, rotated, attended, moved)
}  # fmt: skip
CASES |= property_images.CASES
CASES |= property_layout.CASES


@pytest.fixture(scope="module")
def client() -> Iterator[headrace.Client]:
    """A daemon with a device for each instruction set that this processor has."""
    flags = " ".join(open("/proc/cpuinfo")) if os.path.exists("/proc/cpuinfo") else ""
    there = {"portable": True, "avx2": " avx2 " in flags, "avx512": " avx512_vnni " in flags}
    devices = [device(name, isa=name, threads=1) for name in SETS if there[name]]
    devices.append(device("team", threads=3))
    with client_tools.client_of(tuple(devices)) as made:
        yield made


def check(client: headrace.Client, name: str, seed: int, wild: bool = False) -> list[str] | None:
    """What is wrong with a case; None when the daemon refuses it and may."""
    maker = Maker(seed, wild)
    output, allowed = CASES[name](maker)
    maker.graph.output(output if output.is_contiguous else maker.graph.cont(output))
    with np.errstate(all="ignore"):
        want = Evaluator(maker.graph.encode(), exact=True).run(maker.values)[0]
    want = want.astype(np.float64)  # sums of squares leave f16
    wrong = []
    for place in client.devices():
        try:
            handle = client.submit(maker.graph, pins={"*": place.name})
        except (errors.InvalidArgument, errors.Unsupported) as error:
            return None if wild else [f"{name} seed {seed}: {error}"]
        got = handle.run(maker.values)[0]
        handle.release()
        error = nmse(want, got.astype(np.float64).reshape(want.shape))
        if not error <= allowed:
            wrong.append(f"{name} seed {seed} on {place.name}: {error:.3g}, allowed {allowed:.3g}")
    return wrong


def test_a_column_as_a_row(client: headrace.Client) -> None:
    """An extent of 1 whose stride is large: nothing behind the memory is read."""
    values = np.arange(-10, 10, dtype=np.float32)
    for f in ("abs", "sqr", "neg"):
        graph = Graph()
        column = graph.permute(graph.input("x", (1, 20)), (1, 0))
        graph.output(getattr(graph, f)(column))
        graph.output(graph.add(column, column))
        graph.output(graph.reglu(column, column))
        for place in client.devices():
            first, second, third = client.submit(graph, pins={"*": place.name}).run({"x": values[None]})
            want = {"abs": np.abs, "sqr": np.square, "neg": np.negative}[f](values)
            np.testing.assert_array_equal(np.ravel(first), want)
            np.testing.assert_array_equal(np.ravel(second), 2 * values)
            np.testing.assert_array_equal(np.ravel(third), np.maximum(values, 0) * values)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_float64(client: headrace.Client, name: str) -> None:
    first = sum(map(ord, name)) * 1000
    seeds = [int(ONLY)] if ONLY else range(first, first + ROUNDS)
    wrong = [line for seed in seeds for line in check(client, name, seed) or []]
    assert wrong == []


@pytest.mark.parametrize("name", CASES)
def test_wherever_operands_lie(client: headrace.Client, name: str) -> None:
    first = sum(map(ord, name)) * 1000
    seeds = [int(ONLY)] if ONLY else range(first, first + ROUNDS)
    found = [check(client, name, seed, wild=True) for seed in seeds]
    assert [line for lines in found for line in lines or []] == []
    if not ONLY:
        assert any(lines is not None for lines in found)  # not all are refused
