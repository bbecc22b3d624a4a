"""Views, copies and rows: operators that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.op import Op
from headrace.ops.base import GraphBase, Quad, Tensor, contiguous, u64_words
from headrace.types import Type, TypeLike, as_ne, as_shape, as_type


def dimension(x: Tensor, axis: int) -> int:
    """The dimension, counted from the fastest, of a numpy axis of x."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis {axis} of a tensor with {x.ndim} dimensions")
    return x.ndim - 1 - axis % x.ndim


class LayoutOps(GraphBase):
    """VIEW RESHAPE PERMUTE TRANSPOSE, DUP CONT CPY, GET_ROWS SET_ROWS, CONCAT REPEAT, SET ACC."""

    def view(
        self, x: Tensor, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0
    ) -> Tensor:
        """A window on x's memory: strides in bytes (None: contiguous), offset in bytes."""
        ne = as_ne(shape)
        nb = contiguous(x.type, ne)
        if strides is not None:
            if len(strides) != len(shape):
                raise ValueError("view: as many strides as extents")
            given = [int(stride) for stride in reversed(strides)]
            while len(given) < 4:
                given.append(given[-1] * ne[len(given) - 1])
            nb = (given[0], given[1], given[2], given[3])
        return self.node(
            Op.VIEW,
            x.type,
            ne,
            (x,),
            u64_words(offset),
            ndim=len(shape),
            over=x,
            offset=offset,
            nb=nb,
        )

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x's elements under another shape; one extent may be -1. x must be contiguous."""
        extents = [int(extent) for extent in shape]
        if extents.count(-1) == 1:
            rest = 1
            for extent in extents:
                rest *= extent if extent != -1 else 1
            extents[extents.index(-1)] = x.size // rest if rest else 0
        ne = as_ne(extents)
        if ne[0] * ne[1] * ne[2] * ne[3] != x.size:
            raise ValueError(f"reshape: {x.shape} has not the size of {tuple(shape)}")
        if not x.is_contiguous:
            raise ValueError(f"reshape: {x!r} is not contiguous")
        return self.node(Op.RESHAPE, x.type, ne, (x,), ndim=len(extents), over=x)

    def permute(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """numpy.transpose(x, axes): axis i of the result is axis axes[i] of x. A view."""
        if sorted(axis % x.ndim for axis in axes) != list(range(x.ndim)):
            raise ValueError(f"permute: {tuple(axes)} is no permutation of {x.ndim} axes")
        target = [0, 1, 2, 3]
        for i, axis in enumerate(axes):
            target[dimension(x, axis)] = x.ndim - 1 - i
        return self._permuted(Op.PERMUTE, x, target, target)

    def transpose(self, x: Tensor) -> Tensor:
        """The last two axes exchanged. A view."""
        return self._permuted(Op.TRANSPOSE, x, [1, 0, 2, 3], [])

    def _permuted(self, op: Op, x: Tensor, target: Sequence[int], params: Sequence[int]) -> Tensor:
        ne, nb = [1] * 4, [0] * 4
        for i in range(4):
            ne[target[i]], nb[target[i]] = x.ne[i], x.nb[i]
        return self.node(
            op,
            x.type,
            ne,
            (x,),
            params,
            ndim=max(x.ndim, 2) if not params else x.ndim,
            over=x,
            nb=(nb[0], nb[1], nb[2], nb[3]),
        )

    def dup(self, x: Tensor) -> Tensor:
        """A contiguous copy."""
        return self.like(Op.DUP, x, (x,))

    def cont(self, x: Tensor) -> Tensor:
        """A contiguous copy (what reshape() after permute() needs)."""
        return self.like(Op.CONT, x, (x,))

    def cpy(self, x: Tensor, target: Tensor) -> Tensor:
        """Writes x's elements, in their order, into target, converting. The result is target."""
        if x.size != target.size:
            raise ValueError(f"cpy: {x.shape} has not the size of {target.shape}")
        return self.node(
            Op.CPY, target.type, target.ne, (x, target), ndim=target.ndim, over=target, nb=target.nb
        )

    def cast(self, x: Tensor, type: TypeLike) -> Tensor:
        """x as another type: CPY without a target."""
        return self.node(Op.CPY, as_type(type), x.ne, (x,), ndim=x.ndim)

    def get_rows(self, x: Tensor, ids: Tensor) -> Tensor:
        """x[..., ids, :]: x (b2, b1, r, c), ids i32 (b2, b1, n) -> f32 (b2, b1, n, c).

        The result of an i32 x stays i32.
        """
        if x.ne[2] != ids.ne[1] or x.ne[3] != ids.ne[2] or ids.ne[3] != 1:
            raise ValueError(f"get_rows: ids {ids.shape} do not fit {x.shape}")
        number = Type.I32 if x.type is Type.I32 else Type.F32
        return self.node(
            Op.GET_ROWS, number, (x.ne[0], *ids.ne[:3]), (x, ids), ndim=max(x.ndim, ids.ndim + 1)
        )

    def set_rows(self, target: Tensor, values: Tensor, ids: Tensor) -> Tensor:
        """target[..., ids, :] = values, converting; ids i32 or i64 (n). The result is target.

        ids repeat over the leading dimensions of values.
        """
        if values.ne[0] != target.ne[0] or values.ne[1] != ids.ne[0]:
            raise ValueError(f"set_rows: {values.shape}, ids {ids.shape} into {target.shape}")
        return self.node(
            Op.SET_ROWS,
            target.type,
            target.ne,
            (values, ids, target),
            ndim=target.ndim,
            over=target,
            nb=target.nb,
        )

    def concat(self, a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
        """a and b joined along an axis."""
        if a.ndim != b.ndim:
            raise ValueError(f"concat: {a.ndim} and {b.ndim} dimensions")
        d = dimension(a, axis)
        ne = list(a.ne)
        ne[d] += b.ne[d]
        if any(a.ne[i] != b.ne[i] for i in range(4) if i != d) or a.type is not b.type:
            raise ValueError(f"concat: {a!r} and {b!r} differ elsewhere")
        return self.node(Op.CONCAT, a.type, ne, (a, b), (d,))

    def repeat(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x tiled to a shape whose extents are multiples of x's."""
        ne = as_ne(shape)
        if any(n % m if m else n for n, m in zip(ne, x.ne, strict=True)):
            raise ValueError(f"repeat: {x.shape} does not tile {tuple(shape)}")
        return self.node(Op.REPEAT, x.type, ne, (x,), ndim=len(shape))

    def repeat_back(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The sum over the tiles of x: the adjoint of repeat()."""
        ne = as_ne(shape)
        if any(n % m if m else n for n, m in zip(x.ne, ne, strict=True)):
            raise ValueError(f"repeat_back: {tuple(shape)} does not tile {x.shape}")
        return self.node(Op.REPEAT_BACK, x.type, ne, (x,), ndim=len(shape))

    def set(
        self,
        x: Tensor,
        y: Tensor,
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
        inplace: bool = False,
    ) -> Tensor:
        """A copy of x in which a window is y; strides in bytes, numpy's order (None: x's)."""
        return self._window(Op.SET, x, y, strides, offset, inplace)

    def acc(
        self,
        x: Tensor,
        y: Tensor,
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
        inplace: bool = False,
    ) -> Tensor:
        """A copy of x with y added to a window of it. Strides as in set()."""
        return self._window(Op.ACC, x, y, strides, offset, inplace)

    def _window(
        self,
        op: Op,
        x: Tensor,
        y: Tensor,
        strides: Sequence[int] | None,
        offset: int,
        inplace: bool,
    ) -> Tensor:
        nb: Quad = x.nb
        if strides is not None:
            given = [int(stride) for stride in reversed(strides)]
            while len(given) < 4:
                given.append(given[-1] * x.ne[len(given) - 1])
            nb = (given[0], given[1], given[2], given[3])
        return self.like(op, x, (x, y), (nb[1], nb[2], nb[3], offset, inplace), inplace=inplace)

    def slice(self, x: Tensor, axis: int, start: int, stop: int) -> Tensor:
        """x[start:stop] along an axis, as a VIEW (of a permuted x: a VIEW and a PERMUTE)."""
        d = dimension(x, axis)
        if not 0 <= start <= stop <= x.ne[d]:
            raise ValueError(f"slice: {start}:{stop} of an extent of {x.ne[d]}")
        if d == 0 and x.type.is_block and start % x.type.block_elements:
            raise ValueError("slice: inside a block")
        offset = (start // x.type.block_elements if d == 0 else start) * x.nb[d]
        ne = list(x.ne)
        ne[d] = stop - start
        # A VIEW's rows are dense: where x's are not, it is cut in the order of memory.
        order = list(range(4))
        if x.nb[0] != x.type.block_bytes:
            order[: x.ndim] = sorted(order[: x.ndim], key=lambda i: x.nb[i])
        cut = self.node(
            Op.VIEW,
            x.type,
            [ne[i] for i in order],
            (x,),
            u64_words(offset),
            ndim=x.ndim,
            over=x,
            offset=offset,
            nb=(x.nb[order[0]], x.nb[order[1]], x.nb[order[2]], x.nb[order[3]]),
        )
        return cut if order == [0, 1, 2, 3] else self._permuted(Op.PERMUTE, cut, order, order)
