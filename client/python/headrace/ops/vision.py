"""Convolutions, pooling, resizing, padding and windows.

Pairs and triples (stride, padding, dilation, kernel) are in numpy's order: the last one belongs to
the last axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.op import Op
from headrace.ops.base import GraphBase, Quad, Tensor
from headrace.types import Type, TypeLike, as_ne, as_type

Pair = tuple[int, int]
Triple = tuple[int, int, int]

NEAREST, BILINEAR, BICUBIC = 0, 1, 2
ALIGN_CORNERS, ANTIALIAS = 256, 512


def conv_extent(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Places of a kernel along an axis; one where the kernel is a little too long (ggml's rule)."""
    return int((size + 2 * padding - dilation * (kernel - 1) - 1) / stride) + 1


def pool_extent(size: int, kernel: int, stride: int, padding: int) -> int:
    """Windows along an axis."""
    return (size + 2 * padding - kernel) // stride + 1


class VisionOps(GraphBase):
    """IM2COL, CONV_*, POOL_*, UPSCALE, PAD*, ROLL, WIN_*, *_REL_POS."""

    def im2col(
        self,
        kernel: Tensor,
        x: Tensor,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        type: TypeLike = Type.F32,
    ) -> Tensor:
        """kernel (OC, IC, KH, KW), x (N, IC, H, W) -> (N, OH, OW, IC*KH*KW)."""
        ow = conv_extent(x.ne[0], kernel.ne[0], stride[1], padding[1], dilation[1])
        oh = conv_extent(x.ne[1], kernel.ne[1], stride[0], padding[0], dilation[0])
        ne = (kernel.ne[2] * kernel.ne[1] * kernel.ne[0], ow, oh, x.ne[3])
        words = (*stride[::-1], *padding[::-1], *dilation[::-1], 1)
        return self.node(Op.IM2COL, as_type(type), ne, (kernel, x), words)

    def im2col_1d(
        self,
        kernel: Tensor,
        x: Tensor,
        *,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        type: TypeLike = Type.F32,
    ) -> Tensor:
        """kernel (OC, IC, K), x (N, IC, L) -> (N, OL, IC*K)."""
        ol = conv_extent(x.ne[0], kernel.ne[0], stride, padding, dilation)
        words = (stride, 0, padding, 0, dilation, 0, 0)
        return self.node(
            Op.IM2COL,
            as_type(type),
            (kernel.ne[1] * kernel.ne[0], ol, x.ne[2], 1),
            (kernel, x),
            words,
        )

    def im2col_3d(
        self,
        kernel: Tensor,
        x: Tensor,
        channels: int,
        *,
        stride: Triple = (1, 1, 1),
        padding: Triple = (0, 0, 0),
        dilation: Triple = (1, 1, 1),
        type: TypeLike = Type.F32,
    ) -> Tensor:
        """kernel (OC*IC, KD, KH, KW), x (N*IC, D, H, W) -> (N*OD, OH, OW, IC*KD*KH*KW)."""
        size = [
            conv_extent(x.ne[i], kernel.ne[i], stride[2 - i], padding[2 - i], dilation[2 - i])
            for i in range(3)
        ]
        ne = (
            channels * kernel.ne[0] * kernel.ne[1] * kernel.ne[2],
            size[0],
            size[1],
            size[2] * (x.ne[3] // channels),
        )
        words = (*stride[::-1], *padding[::-1], *dilation[::-1], channels)
        return self.node(Op.IM2COL_3D, as_type(type), ne, (kernel, x), words)

    def conv_2d(
        self,
        kernel: Tensor,
        x: Tensor,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
    ) -> Tensor:
        """kernel (OC, IC, KH, KW), x (N, IC, H, W) -> f32 (N, OC, OH, OW)."""
        return self._conv(Op.CONV_2D, kernel, x, kernel.ne[3], (stride, padding, dilation))

    def conv_2d_dw(
        self,
        kernel: Tensor,
        x: Tensor,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
    ) -> Tensor:
        """Per channel: kernel (C, 1, KH, KW), x (N, C, H, W) -> f32 (N, C, OH, OW).

        An x whose channels lie innermost in memory gives a result laid out likewise.
        """
        return self._conv(Op.CONV_2D_DW, kernel, x, x.ne[2], (stride, padding, dilation))

    def _conv(
        self, op: Op, kernel: Tensor, x: Tensor, channels: int, steps: tuple[Pair, Pair, Pair]
    ) -> Tensor:
        stride, padding, dilation = steps
        ow = conv_extent(x.ne[0], kernel.ne[0], stride[1], padding[1], dilation[1])
        oh = conv_extent(x.ne[1], kernel.ne[1], stride[0], padding[0], dilation[0])
        nb: Quad | None = None
        if op is Op.CONV_2D_DW and x.nb[2] == x.type.block_bytes < x.nb[0] < x.nb[1]:
            nb = (4 * channels, 4 * channels * ow, 4, 4 * channels * ow * oh)
        words = (*stride[::-1], *padding[::-1], *dilation[::-1])
        return self.node(op, Type.F32, (ow, oh, channels, x.ne[3]), (kernel, x), words, nb=nb)

    def conv_3d(
        self,
        kernel: Tensor,
        x: Tensor,
        *,
        channels: int,
        stride: Triple = (1, 1, 1),
        padding: Triple = (0, 0, 0),
        dilation: Triple = (1, 1, 1),
    ) -> Tensor:
        """kernel (OC*IC, KD, KH, KW), x (N*IC, D, H, W) -> f32 (N*OC, OD, OH, OW)."""
        size = [
            conv_extent(x.ne[i], kernel.ne[i], stride[2 - i], padding[2 - i], dilation[2 - i])
            for i in range(3)
        ]
        batch, filters = x.ne[3] // channels, kernel.ne[3] // channels
        words = (*stride[::-1], *padding[::-1], *dilation[::-1], channels, batch, filters)
        return self.node(Op.CONV_3D, Type.F32, (*size, filters * batch), (kernel, x), words)

    def conv_transpose_1d(self, kernel: Tensor, x: Tensor, *, stride: int = 1) -> Tensor:
        """kernel (IC, OC, K), x (IC, L) -> f32 (OC, (L-1)*stride + K)."""
        length = (x.ne[0] - 1) * stride + kernel.ne[0]
        return self.node(
            Op.CONV_TRANSPOSE_1D,
            Type.F32,
            (length, kernel.ne[1], x.ne[2], 1),
            (kernel, x),
            (stride, 0, 1),
            ndim=x.ndim,
        )

    def conv_transpose_2d(self, kernel: Tensor, x: Tensor, *, stride: int = 1) -> Tensor:
        """kernel (IC, OC, KH, KW), x (N, IC, H, W) -> f32 (N, OC, OH, OW)."""
        ne = (
            (x.ne[0] - 1) * stride + kernel.ne[0],
            (x.ne[1] - 1) * stride + kernel.ne[1],
            kernel.ne[2],
            x.ne[3],
        )
        return self.node(Op.CONV_TRANSPOSE_2D, Type.F32, ne, (kernel, x), (stride,))

    def col2im_1d(self, x: Tensor, channels: int, *, stride: int = 1, padding: int = 0) -> Tensor:
        """x (T, K*OC) -> (OC, (T-1)*stride + K - 2*padding): overlapping columns added."""
        kernel = x.ne[0] // channels
        length = (x.ne[1] - 1) * stride + kernel - 2 * padding
        return self.node(
            Op.COL2IM_1D,
            x.type,
            (length, channels, 1, 1),
            (x,),
            (stride, channels, padding),
            ndim=2,
        )

    def pool_1d(
        self,
        x: Tensor,
        kernel: int,
        *,
        stride: int | None = None,
        padding: int = 0,
        average: bool = False,
    ) -> Tensor:
        """Maxima or averages over windows of the last axis -> f32."""
        step = kernel if stride is None else stride
        length = pool_extent(x.ne[0], kernel, step, padding)
        return self.node(
            Op.POOL_1D, Type.F32, (length, *x.ne[1:]), (x,), (average, kernel, step, padding)
        )

    def pool_2d(
        self,
        x: Tensor,
        kernel: Pair,
        *,
        stride: Pair | None = None,
        padding: Pair = (0, 0),
        average: bool = False,
    ) -> Tensor:
        """Maxima or averages over windows of the last two axes -> f32."""
        step = kernel if stride is None else stride
        ne = (
            pool_extent(x.ne[0], kernel[1], step[1], padding[1]),
            pool_extent(x.ne[1], kernel[0], step[0], padding[0]),
            x.ne[2],
            x.ne[3],
        )
        words = (average, *kernel[::-1], *step[::-1], *padding[::-1])
        return self.node(Op.POOL_2D, Type.F32, ne, (x,), words)

    def upscale(self, x: Tensor, shape: Sequence[int], mode: int = NEAREST) -> Tensor:
        """x resampled to a shape. Modes NEAREST, BILINEAR, BICUBIC (+ ALIGN_CORNERS, ANTIALIAS)."""
        return self.node(Op.UPSCALE, x.type, as_ne(shape), (x,), (mode,), ndim=len(shape))

    def pad(self, x: Tensor, widths: Sequence[Pair], *, circular: bool = False) -> Tensor:
        """numpy.pad(x, widths): zeros, or wrapped round, before and after each axis."""
        if len(widths) != x.ndim:
            raise ValueError(f"pad: {len(widths)} widths for {x.ndim} axes")
        sides = [*widths[::-1], *[(0, 0)] * (4 - x.ndim)]
        ne = [extent + sum(side) for extent, side in zip(x.ne, sides, strict=True)]
        return self.node(Op.PAD, x.type, ne, (x,), (*(n for side in sides for n in side), circular))

    def pad_reflect_1d(self, x: Tensor, before: int, after: int) -> Tensor:
        """The last axis padded by reflection; the edge is not repeated."""
        if before >= x.ne[0] or after >= x.ne[0]:
            raise ValueError(f"pad_reflect_1d: {before}, {after} of {x.ne[0]}")
        return self.node(
            Op.PAD_REFLECT_1D, x.type, (x.ne[0] + before + after, *x.ne[1:]), (x,), (before, after)
        )

    def roll(self, x: Tensor, shifts: Sequence[int]) -> Tensor:
        """numpy.roll(x, shifts, all axes)."""
        if len(shifts) != x.ndim:
            raise ValueError(f"roll: {len(shifts)} shifts for {x.ndim} axes")
        return self.like(Op.ROLL, x, (x,), (*shifts[::-1], *[0] * (4 - x.ndim)))

    def win_part(self, x: Tensor, size: int) -> Tensor:
        """x (H, W, C) in padded windows -> (windows, size, size, C)."""
        columns, rows = -(-x.ne[1] // size), -(-x.ne[2] // size)
        return self.node(
            Op.WIN_PART,
            x.type,
            (x.ne[0], size, size, columns * rows),
            (x,),
            (columns, rows, size),
            ndim=4,
        )

    def win_unpart(self, x: Tensor, height: int, width: int, size: int) -> Tensor:
        """win_part()'s inverse -> (height, width, C)."""
        return self.node(Op.WIN_UNPART, x.type, (x.ne[0], width, height, 1), (x,), (size,), ndim=3)

    def get_rel_pos(self, x: Tensor, queries: int, keys: int) -> Tensor:
        """x (2*n-1, C) -> (queries, keys, C): row (keys-1-k)+q."""
        return self.node(Op.GET_REL_POS, x.type, (x.ne[0], keys, queries, 1), (x,), ndim=3)

    def add_rel_pos(
        self, x: Tensor, width: Tensor, height: Tensor, *, inplace: bool = False
    ) -> Tensor:
        """Attention scores plus relative positions along width and height."""
        return self.like(Op.ADD_REL_POS, x, (x, width, height), (inplace,), inplace=inplace)
