"""Cases of test_properties: images and volumes, recurrences over tokens, and what surrounds them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from property_maker import Maker, pick

from headrace.graph import Graph
from headrace.ops.base import Tensor
from headrace.types import Type

Case = tuple[Tensor, float]


def pair(m: Maker, most: int, least: int = 1) -> tuple[int, int]:
    return m.below(most, least), m.below(most, least)


def triple(m: Maker, most: int, least: int = 1) -> tuple[int, int, int]:
    return m.below(most, least), *pair(m, most, least)


def image(m: Maker, channels: int) -> Tensor:
    return m.plain((m.below(3), channels, m.below(9, 7), m.below(14, 7)))


def unfolded(m: Maker) -> Case:
    g, channels = m.graph, m.below(4)
    kernel = (m.below(3), channels, m.below(3), m.below(3))
    if m.below(2) == 1:
        line = g.im2col_1d(m.plain((1, *kernel[:2], kernel[3])), m.plain((1, m.below(3), channels, m.below(20, 7))),
                           stride=m.below(3), padding=m.below(2, 0), dilation=m.below(2))  # fmt: skip
        return line, 1e-12
    return g.im2col(m.plain(kernel), image(m, channels), stride=pair(m, 3), padding=pair(m, 2, 0),
                    dilation=pair(m, 2)), 1e-12  # fmt: skip


def convolved(m: Maker) -> Case:
    channels = m.below(4)
    x, options = (
        image(m, channels),
        {"stride": pair(m, 3), "padding": pair(m, 2, 0), "dilation": pair(m, 2)},
    )
    if m.below(2) == 1:
        return m.graph.conv_2d_dw(
            m.plain((channels, 1, m.below(3), m.below(3))), x, **options
        ), 1e-11
    return m.graph.conv_2d(
        m.plain((m.below(5), channels, m.below(3), m.below(3))), x, **options
    ), 1e-11


def volumes(m: Maker) -> Case:
    channels, filters, images = m.below(3), m.below(3), m.below(2)
    kernel = m.plain((channels * filters, m.below(2), m.below(3), m.below(3)))
    x = m.plain((channels * images, m.below(6, 4), m.below(9, 7), m.below(9, 7)))
    stride, padding, dilation = triple(m, 2), triple(m, 1, 0), triple(m, 2)
    if m.below(2) == 1:
        return m.graph.im2col_3d(
            kernel, x, channels, stride=stride, padding=padding, dilation=dilation
        ), 1e-12
    return m.graph.conv_3d(
        kernel, x, channels=channels, stride=stride, padding=padding, dilation=dilation
    ), 1e-11


def spread(m: Maker) -> Case:
    g, inputs, outputs = m.graph, m.below(5), m.below(4)
    kind = m.below(3)
    if kind == 1:
        return g.conv_transpose_1d(m.plain((1, inputs, outputs, m.below(5))), m.plain((1, 1, inputs, m.below(20))),
                                   stride=m.below(4)), 1e-11  # fmt: skip
    if kind == 2:
        kernel = m.plain((inputs, outputs, m.below(4), m.below(4)))
        return g.conv_transpose_2d(
            kernel,
            m.plain((m.below(2), inputs, m.below(8), m.below(9))),
            stride=m.below(3),
        ), 1e-11
    return g.col2im_1d(
        m.plain((1, 1, m.below(20, 3), 4 * outputs)),
        outputs,
        stride=m.below(4),
        padding=m.below(1, 0),
    ), 1e-12


def pooled(m: Maker) -> Case:
    x, average = image(m, m.below(3)), m.below(2) == 1
    if m.below(2) == 1:
        size = m.below(4)
        return m.graph.pool_1d(
            x, size, stride=m.below(3), padding=m.below(size // 2, 0), average=average
        ), 1e-11
    sizes = pair(m, 4)
    padding = (m.below(sizes[0] // 2, 0), m.below(sizes[1] // 2, 0))
    return m.graph.pool_2d(
        x, sizes, stride=pair(m, 3), padding=padding, average=average
    ), 1e-11


def resized(m: Maker) -> Case:
    x = image(m, m.below(3))
    if m.below(2) == 1:  # nearest: where no place lies on an edge between two pixels
        return m.graph.upscale(x, tuple(n * m.below(3) for n in x.shape), 0), 1e-12
    shape = (*x.shape[:2], m.below(30), m.below(30))
    return m.graph.upscale(x, shape, pick(m, 1, 1 + 256)), 1e-11


def padded(m: Maker) -> Case:
    g, x = m.graph, image(m, m.below(4))
    widths = [(m.below(min(n, 3), 0), m.below(min(n, 3), 0)) for n in x.shape]
    return pick(
        m,
        lambda: g.pad(x, widths, circular=m.below(2) == 1),
        lambda: g.pad_reflect_1d(x, m.below(6, 0), m.below(6, 0)),
        lambda: g.roll(x, [m.below(30, -30) for _ in x.shape]),
    )(), 0.0


def windowed(m: Maker) -> Case:
    g, size, kind = m.graph, m.below(6), m.below(4)
    height, width, channels = m.below(14), m.below(14), m.below(20)
    if kind == 1:
        return g.win_part(m.plain((1, height, width, channels)), size), 0.0
    if kind == 2:
        count = -(-height // size) * -(-width // size)
        return g.win_unpart(
            m.plain((count, size, size, channels)), height, width, size
        ), 0.0
    if kind == 3:
        return g.get_rel_pos(
            m.plain((1, 1, 2 * size - 1, channels), Type.F16), size, size
        ), 0.0
    batch, q2, q1 = m.below(3), m.below(5), m.below(5)
    return g.add_rel_pos(m.plain((1, batch, q1 * q2, size * size)), m.plain((batch, q2, q1, size)),
                         m.plain((batch, q2, q1, size))), 1e-12  # fmt: skip


def scanned(m: Maker) -> Case:
    g = m.graph
    if m.below(2) == 1:
        taps, channels = m.below(5), m.below(40)
        return g.ssm_conv(
            m.plain((1, m.below(3), channels, m.below(9) + taps - 1)),
            m.plain((1, 1, channels, taps)),
        ), 1e-11
    size, head, groups, tokens, sequences = (
        m.below(40),
        m.below(9),
        m.below(3),
        m.below(6),
        m.below(3),
    )
    heads, slots = groups * m.below(3), sequences + m.below(2, 0)
    scalar = m.below(2) == 1
    return g.ssm_scan(
        m.plain((slots, heads, head, size)), m.plain((sequences, tokens, heads, head)),
        m.plain((1, sequences, tokens, heads)), m.plain((1, 1, heads, 1 if scalar else size)),
        m.plain((sequences, tokens, groups, size)), m.plain((sequences, tokens, groups, size)),
        m.ids((1, 1, 1, sequences), slots), m.below(tokens) if scalar else 1,
    ), 1e-11  # fmt: skip


def linear(m: Maker) -> Case:
    g, kind, size, heads, sequences = (
        m.graph,
        m.below(3),
        m.below(40),
        m.below(4),
        m.below(3),
    )
    tokens = sequences * m.below(4)

    def small() -> Tensor:
        return g.scale(m.plain((1, tokens, heads, size)), 0.3, 0.0)

    state = m.plain((1, 1, sequences, size * size * heads))
    if kind == 1:
        return g.rwkv_wkv6(
            small(), small(), small(), m.plain((1, 1, heads, size)), small(), state
        ), 1e-11
    if kind == 2:
        return g.rwkv_wkv7(
            small(), small(), small(), small(), small(), small(), state
        ), 1e-11
    return g.gated_linear_attn(small(), small(), small(), small(), state, 0.2), 1e-11


def corrected(m: Maker) -> Case:
    g, size, heads, tokens, batch = (
        m.graph,
        m.below(40),
        m.below(3),
        m.below(5),
        m.below(3),
    )
    repeat = m.below(3)
    q, k = (g.scale(m.plain((batch, tokens, heads, size)), 0.2, 0.0) for _ in range(2))
    v = m.plain((batch, tokens, heads * repeat, size))
    gate = g.scale(
        m.plain((batch, tokens, heads * repeat, pick(m, 1, size))), 0.3, -0.5
    )
    beta = m.plain((batch, tokens, heads * repeat, 1))
    return g.gated_delta_net(
        q,
        k,
        v,
        gate,
        beta,
        m.plain((batch, heads * repeat, size, size)),
        m.below(tokens),
    ), 1e-11


def solved(m: Maker) -> Case:
    n, outer = m.below(30), pair(m, 3)
    values = np.tril(m.rng.uniform(-1, 1, (*outer, n, n))) + 4 * np.eye(n)
    a = m.leaf(values.astype(np.float32), Type.F32)
    return m.graph.solve_tri(a, m.plain((*outer, n, m.below(70)))), 1e-10


def mixed(m: Maker) -> Case:
    g, kind, tokens, size = m.graph, m.below(4), m.below(9), m.below(70)
    if kind == 1:
        return g.dsv4_hc_comb(
            m.plain((1, 1, tokens, 24)),
            m.plain((1, 1, 1, 3)),
            m.plain((1, 1, 1, 24)),
            1e-6,
            m.below(9),
        ), 1e-11
    if kind == 2:
        return g.dsv4_hc_pre(
            m.plain((1, tokens, 4, size)), m.plain((1, 1, tokens, 4))
        ), 1e-11
    if kind == 3:
        return g.dsv4_hc_post(m.plain((1, 1, tokens, size)), m.plain((1, tokens, 4, size)), m.plain((1, 1, tokens, 4)),
                              m.plain((1, tokens, 4, 4))), 1e-11  # fmt: skip
    heads, keys, batch = m.below(6), m.below(70), m.below(3)
    return g.lightning_indexer(
        m.plain((batch, tokens, heads, size)),
        m.plain((batch, keys, 1, size), pick(m, Type.F16, Type.F32)),
        m.plain((batch, 1, tokens, heads)),
        m.plain((pick(m, 1, batch), 1, tokens, keys), Type.F16),
    ), 1e-11


def summed(m: Maker) -> Case:
    g: Graph = m.graph
    shape = m.shape(axes=4)
    planes = shape[:2]
    columns, k = m.below(20), m.below(20)
    return pick(
        m,
        lambda: (g.l2_norm(m.operand(shape), eps=1e-5), 1e-9),
        lambda: (g.group_norm(m.plain(shape), m.below(shape[1]), eps=1e-5), 1e-9),
        lambda: (
            g.out_prod(
                m.operand((1, planes[1], k, columns)),
                m.operand((planes[0], planes[1], k, shape[2])),
            ),
            1e-10,
        ),
        lambda: (
            g.repeat_back(m.plain(tuple(n * m.below(3) for n in shape)), shape),
            1e-10,
        ),
        lambda: (g.count_equal(m.ids(shape, 3), m.ids(shape, 3)), 0.0),
    )()


CASES: dict[str, Callable[[Maker], Case]] = {
    f.__name__: f
    for f in (unfolded, convolved, volumes, spread, pooled, resized, padded, windowed, scanned, linear,
              corrected, solved, mixed, summed)
}  # fmt: skip
