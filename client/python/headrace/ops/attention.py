"""Matrix products, attention and positions."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from headrace.op import Op
from headrace.ops.base import GraphBase, Tensor, f32_word
from headrace.types import Type

PRECISION_F32 = 10


class RopeMode(enum.IntEnum):
    """How ROPE pairs the elements of a row."""

    NORMAL = 0
    NEOX = 2
    MROPE = 8
    VISION = 24
    IMROPE = 40


class AttentionOps(GraphBase):
    """MUL_MAT and its kin, SOFT_MAX, ROPE, FLASH_ATTN_EXT, masks and generators."""

    def mul_mat(
        self, a: Tensor, b: Tensor, *, precise: bool = False, hadamard: bool = False
    ) -> Tensor:
        """b @ a.T: a any type (.., m, k), b f32 or f16 (.., n, k) -> f32 (.., n, m).

        a's leading dimensions divide b's (grouped heads). `hadamard` says that a is a Hadamard
        matrix.
        """
        if a.ne[0] != b.ne[0] or _broken(b.ne[2], a.ne[2]) or _broken(b.ne[3], a.ne[3]):
            raise ValueError(f"mul_mat: {a.shape} and {b.shape}")
        words = (PRECISION_F32 if precise else 0, 1) if hadamard else (PRECISION_F32,) * precise
        return self.node(Op.MUL_MAT, Type.F32, (a.ne[1], *b.ne[1:]), (a, b), words)

    def mul_mat_id(self, experts: Tensor, b: Tensor, ids: Tensor) -> Tensor:
        """Row u of token t by expert ids[t, u].

        experts (E, m, k), b (T, U or 1, k), ids i32 (T, U) -> f32 (T, U, m).
        """
        fits = (
            experts.ne[0] == b.ne[0]
            and experts.ne[3] == 1
            and b.ne[3] == 1
            and ids.ne[1] == b.ne[2]
            and not _broken(ids.ne[0], b.ne[1])
        )
        if not fits:
            raise ValueError(f"mul_mat_id: {experts.shape}, {b.shape}, ids {ids.shape}")
        return self.node(
            Op.MUL_MAT_ID, Type.F32, (experts.ne[1], ids.ne[0], b.ne[2], 1), (experts, b, ids)
        )

    def out_prod(self, a: Tensor, b: Tensor) -> Tensor:
        """b.T @ a: a (.., k, m), b (.., k, n) -> f32 (.., n, m)."""
        if a.ne[1] != b.ne[1] or _broken(b.ne[2], a.ne[2]) or _broken(b.ne[3], a.ne[3]):
            raise ValueError(f"out_prod: {a.shape} and {b.shape}")
        return self.node(Op.OUT_PROD, Type.F32, (a.ne[0], b.ne[0], b.ne[2], b.ne[3]), (a, b))

    def solve_tri(self, a: Tensor, b: Tensor) -> Tensor:
        """x with a @ x = b, a lower triangular f32 (.., n, n), b (.., n, k) -> (.., n, k)."""
        if a.ne[0] != a.ne[1] or a.ne[1] != b.ne[1] or a.ne[2:] != b.ne[2:]:
            raise ValueError(f"solve_tri: {a.shape} and {b.shape}")
        return self.node(Op.SOLVE_TRI, Type.F32, b.ne, (a, b), ndim=b.ndim)

    def soft_max(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        sinks: Tensor | None = None,
        scale: float = 1.0,
        max_bias: float = 0.0,
        inplace: bool = False,
    ) -> Tensor:
        """softmax(scale * x + slope(head) * mask) over the last axis: x f32 (B, H, N, KV).

        mask f32 or f16 (b, h, N or more, KV), its leading dimensions repeat. sinks f32 (H) join
        each row's maximum and sum.
        """
        sources: tuple[Tensor | None, ...] = (x,)
        if sinks is not None:
            sources = (x, mask, sinks)
        elif mask is not None:
            sources = (x, mask)
        if mask is not None and (mask.ne[0] != x.ne[0] or mask.ne[1] < x.ne[1]):
            raise ValueError(f"soft_max: mask {mask.shape} for {x.shape}")
        return self.like(
            Op.SOFT_MAX, x, sources, (f32_word(scale), f32_word(max_bias)), inplace=inplace
        )

    def rope(
        self,
        x: Tensor,
        positions: Tensor,
        factors: Tensor | None = None,
        *,
        n_dims: int,
        mode: RopeMode = RopeMode.NORMAL,
        n_ctx_orig: int = 0,
        base: float = 10000.0,
        scale: float = 1.0,
        ext_factor: float = 0.0,
        attn_factor: float = 1.0,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        sections: Sequence[int] = (0, 0, 0, 0),
        n_offs: int = 0,
        back: bool = False,
        inplace: bool = False,
    ) -> Tensor:
        """Rotary positions: x (B, T, H, d), positions i32 (T) (4T for the M modes), factors f32
        (n_dims/2). `back` rotates the other way (ROPE_BACK).
        """
        wanted = x.ne[2] * (4 if mode & RopeMode.MROPE else 1)
        if positions.ne[0] != wanted:
            raise ValueError(f"rope: {positions.ne[0]} positions, expected {wanted}")
        floats = (base, scale, ext_factor, attn_factor, beta_fast, beta_slow)
        words = [0, n_dims, mode, 0, n_ctx_orig, *(f32_word(value) for value in floats), *sections]
        if n_offs:
            words.append(n_offs)
        sources = (x, positions) if factors is None else (x, positions, factors)
        return self.like(Op.ROPE_BACK if back else Op.ROPE, x, sources, words, inplace=inplace)

    def flash_attn_ext(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        sinks: Tensor | None = None,
        scale: float,
        max_bias: float = 0.0,
        softcap: float = 0.0,
        precise: bool = True,
    ) -> Tensor:
        """Attention in one operator: q f32 (B, H, N, D), k (B, Hk, KV, D), v (B, Hk, KV, DV),
        mask f16 (.., N or more, KV), sinks f32 (H) -> f32 (B, N, H, DV), already permuted.
        """
        sources: tuple[Tensor | None, ...] = (q, k, v)
        if sinks is not None:
            sources = (q, k, v, mask, sinks)
        elif mask is not None:
            sources = (q, k, v, mask)
        fits = (
            q.ne[0] == k.ne[0]
            and k.ne[1] == v.ne[1]
            and k.ne[2] == v.ne[2]
            and not _broken(q.ne[2], k.ne[2])
            and not _broken(q.ne[3], k.ne[3])
        )
        if not fits:
            raise ValueError(f"flash_attn_ext: {q.shape}, {k.shape}, {v.shape}")
        if mask is not None and (mask.ne[0] != k.ne[1] or mask.ne[1] < q.ne[1]):
            raise ValueError(f"flash_attn_ext: mask {mask.shape} for {q.shape}, {k.shape}")
        words = (
            f32_word(scale),
            f32_word(max_bias),
            f32_word(softcap),
            PRECISION_F32 if precise else 0,
        )
        return self.node(
            Op.FLASH_ATTN_EXT,
            Type.F32,
            (v.ne[0], q.ne[2], q.ne[1], q.ne[3]),
            sources,
            words,
            ndim=max(q.ndim, 3),
        )

    # ---- masks and generators ------------------------------------------------------------------

    def diag_mask_inf(self, x: Tensor, n_past: int, *, inplace: bool = False) -> Tensor:
        """-inf where column > n_past + row."""
        return self.like(Op.DIAG_MASK_INF, x, (x,), (n_past,), inplace=inplace)

    def diag_mask_zero(self, x: Tensor, n_past: int, *, inplace: bool = False) -> Tensor:
        """0 where column > n_past + row."""
        return self.like(Op.DIAG_MASK_ZERO, x, (x,), (n_past,), inplace=inplace)

    def diag(self, x: Tensor) -> Tensor:
        """x (.., 1, n) on the diagonal of (.., n, n)."""
        if x.ne[1] != 1:
            raise ValueError(f"diag: {x.shape} has more than one row")
        return self.node(Op.DIAG, x.type, (x.ne[0], x.ne[0], x.ne[2], x.ne[3]), (x,))

    def tri(self, x: Tensor, kind: int) -> Tensor:
        """A triangle of x: 0 upper with diagonal, 1 upper, 2 lower with diagonal, 3 lower."""
        return self.like(Op.TRI, x, (x,), (kind,))

    def fill(self, x: Tensor, value: float, *, inplace: bool = False) -> Tensor:
        """x's shape filled with a value."""
        return self.like(Op.FILL, x, (x,), (f32_word(value),), inplace=inplace)

    def arange(self, start: float, stop: float, step: float = 1.0) -> Tensor:
        """f32: start, start + step, ... below stop; start < stop, step > 0."""
        if not (start < stop and step > 0):
            raise ValueError(f"arange: from {start} to {stop} in steps of {step}")
        count = math.ceil((stop - start) / step)
        words = (f32_word(start), f32_word(stop), f32_word(step))
        return self.node(Op.ARANGE, Type.F32, (count, 1, 1, 1), (), words, ndim=1)

    def timestep_embedding(self, x: Tensor, size: int, max_period: int = 10000) -> Tensor:
        """x f32 (n) -> f32 (n, size): cosines, then sines."""
        return self.node(
            Op.TIMESTEP_EMBEDDING, Type.F32, (size, x.ne[0], 1, 1), (x,), (size, max_period), ndim=2
        )


def _broken(whole: int, part: int) -> bool:
    return whole % part != 0 if part else whole != 0
