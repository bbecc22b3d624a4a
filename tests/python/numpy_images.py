"""Convolutions, pooling, resizing, padding and windows of images, for numpy_reference.

Arrays have four axes, slowest first. A convolution is written as what it means: every window of a padded
source, element by element.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from headrace.op import Op
from numpy_reference import Array, Call


def windows(
    x: Array,
    kernel: tuple[int, ...],
    places: tuple[int, ...],
    steps: list[tuple[int, int, int]],
) -> Array:
    """x[N,C,D,H,W] -> [N,C,KD,KH,KW,OD,OH,OW]; steps: stride, pad and dilation of W, H, D."""
    stride, pad, dilation = (tuple(step[i] for step in steps)[::-1] for i in range(3))
    ends = [
        (o - 1) * s + (k - 1) * g + 1
        for o, s, k, g in zip(places, stride, kernel, dilation, strict=True)
    ]
    wide = [
        (p, max(0, end - p - n))
        for p, end, n in zip(pad, ends, x.shape[2:], strict=True)
    ]
    padded = np.pad(x, [(0, 0), (0, 0), *wide])
    out = np.zeros((*x.shape[:2], *kernel, *places), x.dtype)
    for at in np.ndindex(*kernel):
        first = [k * g for k, g in zip(at, dilation, strict=True)]
        cut = tuple(
            slice(f, f + (o - 1) * s + 1, s)
            for f, o, s in zip(first, places, stride, strict=True)
        )
        out[(slice(None), slice(None), *at)] = padded[(slice(None), slice(None), *cut)]
    return out


def steps_of(c: Call, axes: int) -> list[tuple[int, int, int]]:
    """Of axes 0, 1, 2; one that is not there stands still."""
    given = max(axes, 2)
    found = [(c.word(i), c.word(given + i), c.word(2 * given + i)) for i in range(axes)]
    return found + [(1, 0, 1)] * (3 - axes)


def im2col(c: Call) -> Array:
    """IM2COL."""
    kernel, x = c.sources
    if not c.word(6):
        _, channels, width = kernel.shape[1:]
        image = x[0][:, :, None, None, :]
        found = windows(image, (1, 1, width), (1, 1, c.node.ne[1]), steps_of(c, 1))
        return found.reshape(x.shape[1], channels * width, -1).transpose(0, 2, 1)[None]
    found = windows(
        x[:, :, None],
        (1, *kernel.shape[2:]),
        (1, c.node.ne[2], c.node.ne[1]),
        steps_of(c, 2),
    )
    n, ic, _, kh, kw, _, oh, ow = found.shape
    return found.reshape(n, ic * kh * kw, oh, ow).transpose(0, 2, 3, 1)


def im2col_3d(c: Call) -> Array:
    """IM2COL_3D."""
    kernel, x = c.sources
    channels = c.word(9)
    images = x.reshape(-1, channels, *x.shape[1:])
    depth = c.node.ne[3] // images.shape[0]
    found = windows(
        images, kernel.shape[1:], (depth, c.node.ne[2], c.node.ne[1]), steps_of(c, 3)
    )
    n, ic, kd, kh, kw, od, oh, ow = found.shape
    return (
        found.reshape(n, ic * kd * kh * kw, od, oh, ow)
        .transpose(0, 2, 3, 4, 1)
        .reshape(n * od, oh, ow, -1)
    )


def conv_2d(c: Call) -> Array:
    """CONV_2D."""
    kernel, x = c.sources
    found = windows(
        x[:, :, None],
        (1, *kernel.shape[2:]),
        (1, c.node.ne[1], c.node.ne[0]),
        steps_of(c, 2),
    )
    return np.einsum("ncdijzyx,ocij->noyx", found, kernel)


def conv_2d_dw(c: Call) -> Array:
    """CONV_2D_DW."""
    kernel, x = c.sources
    found = windows(
        x[:, :, None],
        (1, *kernel.shape[2:]),
        (1, c.node.ne[1], c.node.ne[0]),
        steps_of(c, 2),
    )
    return np.einsum("ncdijzyx,cij->ncyx", found, kernel[:, 0])


def conv_3d(c: Call) -> Array:
    """CONV_3D."""
    kernel, x = c.sources
    channels = c.word(9)
    images = x.reshape(-1, channels, *x.shape[1:])
    filters = kernel.reshape(-1, channels, *kernel.shape[1:])
    found = windows(images, kernel.shape[1:], tuple(c.node.ne[2::-1]), steps_of(c, 3))
    out = np.einsum("nckijzyx,ockij->nozyx", found, filters)
    return out.reshape(-1, *out.shape[2:])


def conv_transpose_1d(c: Call) -> Array:
    """CONV_TRANSPOSE_1D."""
    kernel, x = c.sources
    out = np.zeros((1, 1, kernel.shape[2], c.node.ne[0]))
    for t in range(x.shape[3]):
        first = t * c.word(0)
        out[0, 0, :, first : first + kernel.shape[3]] += np.einsum(
            "ick,i->ck", kernel[0], x[0, 0, :, t]
        )
    return out


def conv_transpose_2d(c: Call) -> Array:
    """CONV_TRANSPOSE_2D."""
    kernel, x = c.sources
    out = np.zeros(c.node.ne[::-1])
    for y, z in np.ndindex(*x.shape[2:]):
        patch = np.einsum("ioyx,ni->noyx", kernel, x[:, :, y, z])
        first = (y * c.word(0), z * c.word(0))
        out[
            :,
            :,
            first[0] : first[0] + kernel.shape[2],
            first[1] : first[1] + kernel.shape[3],
        ] += patch
    return out


def col2im_1d(c: Call) -> Array:
    """COL2IM_1D."""
    x, stride, channels, pad = c.sources[0][0, 0], c.word(0), c.word(1), c.word(2)
    taps = x.shape[1] // channels
    out = np.zeros((channels, (x.shape[0] - 1) * stride + taps))
    for t, column in enumerate(x):
        out[:, t * stride : t * stride + taps] += column.reshape(channels, taps)
    return out[None, None, :, pad : out.shape[1] - pad]


def pool(c: Call) -> Array:
    """POOL_1D, POOL_2D."""
    x = c.sources[0]
    if c.node.op == Op.POOL_1D:
        sizes, steps = (
            (1, 1, c.word(1)),
            [(c.word(2), c.word(3), 1), (1, 0, 1), (1, 0, 1)],
        )
    else:
        sizes = (1, c.word(2), c.word(1))
        steps = [(c.word(3), c.word(5), 1), (c.word(4), c.word(6), 1), (1, 0, 1)]
    ones = windows(
        np.ones_like(x)[:, :, None], sizes, (1, c.node.ne[1], c.node.ne[0]), steps
    )
    found = windows(x[:, :, None], sizes, (1, c.node.ne[1], c.node.ne[0]), steps)
    if c.word(0) == 0:
        found = np.where(ones > 0, found, -np.inf)
        return np.maximum(found.max((2, 3, 4))[:, :, 0], -np.finfo(np.float32).max)
    inside = (
        ones.sum((2, 3, 4))[:, :, 0] if c.node.op == Op.POOL_1D else sizes[1] * sizes[2]
    )
    return found.sum((2, 3, 4))[:, :, 0] / inside


def upscale(c: Call) -> Array:
    """UPSCALE, nearest and bilinear."""
    x, shape = c.sources[0], c.node.ne[::-1]
    corners = bool(c.word(0) & 256)
    for axis in range(4):
        n, wanted = x.shape[axis], shape[axis]
        factor = wanted / n
        if c.word(0) & 255 == 0 or axis < 2:
            if corners and axis >= 2 and wanted > 1 and n > 1:
                factor = (wanted - 1) / (n - 1)
            places = np.minimum((np.arange(wanted) / factor + 1e-6).astype(int), n - 1)
            x = x.take(places, axis)
            continue
        centre = 0.0 if corners else 0.5
        if corners and wanted > 1 and n > 1:
            factor = (wanted - 1) / (n - 1)
        at = np.clip((np.arange(wanted) + centre) / factor - centre, 0, n - 1)
        low = np.floor(at).astype(int)
        share = (at - low).reshape([-1 if a == axis else 1 for a in range(4)])
        x = (
            x.take(low, axis) * (1 - share)
            + x.take(np.minimum(low + 1, n - 1), axis) * share
        )
    return x


def pad(c: Call) -> Array:
    """PAD."""
    widths = [(c.word(2 * d), c.word(2 * d + 1)) for d in range(4)][::-1]
    return np.pad(c.sources[0], widths, mode="wrap" if c.word(8) else "constant")


def win_part(c: Call) -> Array:
    """WIN_PART."""
    _, height, width, channels = c.sources[0].shape
    across, down, w = c.word(0), c.word(1), c.word(2)
    x = np.zeros((down * w, across * w, channels))
    x[:height, :width] = c.sources[0][0]
    return (
        x.reshape(down, w, across, w, channels)
        .transpose(0, 2, 1, 3, 4)
        .reshape(-1, w, w, channels)
    )


def win_unpart(c: Call) -> Array:
    """WIN_UNPART."""
    channels, width, height, _ = c.node.ne
    w = c.word(0)
    down, across = -(-height // w), -(-width // w)
    x = c.sources[0].reshape(down, across, w, w, channels).transpose(0, 2, 1, 3, 4)
    return x.reshape(down * w, across * w, channels)[None, :height, :width]


def get_rel_pos(c: Call) -> Array:
    """GET_REL_POS."""
    k = c.node.ne[1]
    rows = (k - 1 - np.arange(k))[None, :] + np.arange(k)[:, None]
    return c.sources[0][0, 0][rows][None]


def add_rel_pos(c: Call) -> Array:
    """ADD_REL_POS."""
    a, width, height = c.sources
    k = width.shape[3]
    rows = a.reshape(a.shape[1], -1, k, k)
    w, h = (x.reshape(a.shape[1], -1, k) for x in (width, height))
    return (rows + w[:, :, None, :] + h[:, :, :, None]).reshape(a.shape)


OPS: dict[Op, Callable[[Call], Array]] = {
    Op.IM2COL: im2col, Op.IM2COL_3D: im2col_3d, Op.CONV_2D: conv_2d, Op.CONV_2D_DW: conv_2d_dw,
    Op.CONV_3D: conv_3d, Op.CONV_TRANSPOSE_1D: conv_transpose_1d,
    Op.CONV_TRANSPOSE_2D: conv_transpose_2d, Op.COL2IM_1D: col2im_1d, Op.POOL_1D: pool,
    Op.POOL_2D: pool, Op.UPSCALE: upscale, Op.PAD: pad,
    Op.PAD_REFLECT_1D: lambda c: np.pad(c.sources[0], [(0, 0)] * 3 + [(c.word(0), c.word(1))], mode="reflect"),
    Op.ROLL: lambda c: np.roll(c.sources[0], [c.word(d) for d in range(4)], (3, 2, 1, 0)),
    Op.WIN_PART: win_part, Op.WIN_UNPART: win_unpart, Op.GET_REL_POS: get_rel_pos,
    Op.ADD_REL_POS: add_rel_pos,
}  # fmt: skip
