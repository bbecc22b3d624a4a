"""Cases of test_properties that write into windows and rows, mask, order and make tensors."""

from __future__ import annotations

from collections.abc import Callable

from property_maker import Maker, pick

from headrace.ops.base import Tensor
from headrace.types import Type


def rows_written(m: Maker) -> tuple[Tensor, float]:
    planes, rows, n = m.below(3), m.below(20), m.below(70)
    count = m.below(rows)
    target = m.plain((1, planes, rows, n), pick(m, Type.F32, Type.F16))
    values = m.plain((1, planes, count, n), pick(m, Type.F32, Type.F16))
    return m.graph.set_rows(target, values, m.integers(m.rng.permutation(rows)[:count])), 1e-6


def copied(m: Maker) -> tuple[Tensor, float]:
    shape = m.shape()
    x = m.operand(shape, pick(m, Type.F32, Type.F16))
    return m.graph.cpy(x, m.operand(shape[::-1], pick(m, Type.F32, Type.F16))), 1e-6


def window_written(m: Maker) -> tuple[Tensor, float]:
    part = m.shape(axes=3)
    room = tuple(m.below(3, 0) for _ in part)
    shape = tuple(n + r for n, r in zip(part, room, strict=True))
    whole = m.leaf(m.floats(shape), Type.F32)  # nothing else is taken
    first = (m.below(r, 0) for r in room)
    offset = sum(f * s for f, s in zip(first, whole.strides, strict=True))
    f = pick(m, m.graph.set, m.graph.acc)
    return f(whole, m.operand(part), offset=offset), 1e-12


def biased(m: Maker) -> tuple[Tensor, float]:
    tokens, used, n, count = m.below(9), m.below(5), m.below(70), m.below(8)
    a = m.plain((1, tokens, used, n))
    return m.graph.add_id(a, m.plain((1, 1, count, n)), m.ids((tokens, used), count)), 1e-12


def masked(m: Maker) -> tuple[Tensor, float]:
    g, n = m.graph, m.below(30)
    x = m.plain((m.below(2), m.below(3), n, n))
    return pick(
        m,
        lambda: g.exp(g.diag_mask_inf(x, m.below(5, 0))),
        lambda: g.diag_mask_zero(x, m.below(5, 0)),
        lambda: g.tri(x, m.below(3, 0)),
    )(), 1e-12


def made(m: Maker) -> tuple[Tensor, float]:
    g, n = m.graph, m.below(70)
    return pick(
        m,
        lambda: g.diag(m.plain((m.below(2), m.below(3), 1, n))),
        lambda: g.fill(m.operand(m.shape()), 0.75),
        lambda: g.arange(m.below(9, -9), 20, pick(m, 0.5, 1.0, 3.0)),
        lambda: g.timestep_embedding(m.plain((n,)), m.below(33)),
    )(), 1e-9


def more_functions(m: Maker) -> tuple[Tensor, float]:
    g, shape = m.graph, m.shape()
    x = m.operand(shape)
    return pick(
        m,
        lambda: g.sqrt(g.sqr(x)),
        lambda: g.log(g.sqr(x)),
        lambda: g.sin(x),
        lambda: g.leaky_relu(x, 0.1),
        lambda: g.dup(x),
        lambda: g.div(m.operand(shape), g.exp(x)),
        lambda: g.add1(x, m.plain((1,))),
    )(), 1e-10


def extremes(m: Maker) -> tuple[Tensor, float]:
    x = m.plain(m.shape(axes=2))
    return pick(
        m, lambda: m.graph.argmax(x), lambda: m.graph.top_k(x, m.below(x.shape[-1]))
    )(), 0.0


def rotated_back(m: Maker) -> tuple[Tensor, float]:
    tokens, half = m.below(9), m.below(20)
    x = m.plain((1, tokens, m.below(5), 2 * half))
    positions = m.integers(m.rng.integers(0, 100, (tokens,)))
    return m.graph.rope(x, positions, n_dims=2 * half, back=True), 1e-9


CASES: dict[str, Callable[[Maker], tuple[Tensor, float]]] = {
    f.__name__: f
    for f in (rows_written, copied, window_written, biased, masked, made, more_functions, extremes,
              rotated_back)
}  # fmt: skip
