"""State-space and linear attention, and operators of single models."""

from __future__ import annotations

from headrace.op import Op
from headrace.ops.base import GraphBase, Tensor, f32_word
from headrace.types import Type


class RecurrentOps(GraphBase):
    """SSM_*, RWKV_*, GATED_*, LIGHTNING_INDEXER, DSV4_*: f32."""

    def ssm_conv(self, x: Tensor, weight: Tensor) -> Tensor:
        """x (S, D, N+K-1), weight (D, K) -> (S, N, D)."""
        return self.node(
            Op.SSM_CONV,
            Type.F32,
            (x.ne[1], x.ne[0] - weight.ne[0] + 1, x.ne[2], 1),
            (x, weight),
            ndim=3,
        )

    def ssm_scan(
        self,
        state: Tensor,
        x: Tensor,
        dt: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        ids: Tensor,
        snapshots: int = 1,
    ) -> Tensor:
        """state (n, H, P, N), x (S, T, H, P), dt (S, T, H), a (H, N or 1), b and c (S, T, G, N),
        ids i32 (S) -> one dimension: y, then `snapshots` states per sequence, newest first.
        """
        size = x.size + snapshots * state.ne[0] * state.ne[1] * state.ne[2] * ids.ne[0]
        return self.node(
            Op.SSM_SCAN,
            Type.F32,
            (size, 1, 1, 1),
            (state, x, dt, a, b, c, ids),
            (snapshots,),
            ndim=1,
        )

    def rwkv_wkv6(
        self, k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor
    ) -> Tensor:
        """k, v, r, td (T, H, D), tf (H, D), state (S, D*D*H) -> (T + D*S, D*H)."""
        return self._linear(Op.RWKV_WKV6, (k, v, r, tf, td), state)

    def rwkv_wkv7(
        self, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
    ) -> Tensor:
        """All (T, H, D), state (S, D*D*H) -> (T + D*S, D*H)."""
        return self._linear(Op.RWKV_WKV7, (r, w, k, v, a, b), state)

    def gated_linear_attn(
        self, k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor, scale: float
    ) -> Tensor:
        """All (T, H, D), state (S, D*D*H) -> (T + D*S, D*H)."""
        return self._linear(Op.GATED_LINEAR_ATTN, (k, v, q, g), state, (f32_word(scale),))

    def _linear(
        self, op: Op, sources: tuple[Tensor, ...], state: Tensor, words: tuple[int, ...] = ()
    ) -> Tensor:
        first = sources[0]
        ne = (first.ne[0] * first.ne[1], first.ne[2] + first.ne[0] * state.ne[1], 1, 1)
        return self.node(op, Type.F32, ne, (*sources, state), words, ndim=2)

    def gated_delta_net(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        snapshots: int = 1,
    ) -> Tensor:
        """q, k (S, T, Hq, D), v (S, T, H, D), g and beta (S, T, H, 1 or D), state (S, H, D, D) ->
        (T*S + D*S*snapshots, D*H): outputs, then states, newest first.
        """
        d, heads, tokens, sequences = v.ne
        ne = (d * heads, tokens * sequences + d * sequences * snapshots, 1, 1)
        return self.node(
            Op.GATED_DELTA_NET, Type.F32, ne, (q, k, v, g, beta, state), (snapshots,), ndim=2
        )

    def lightning_indexer(self, q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """sum over heads of relu(q.k) * weights, + mask.

        q (S, T, H, D), k (S, KV, 1, D), weights (S, 1, T, H), mask f16 (s, 1, T, KV) -> (S, 1, T,
        KV).
        """
        return self.node(
            Op.LIGHTNING_INDEXER, Type.F32, (k.ne[2], q.ne[2], 1, q.ne[3]), (q, k, weights, mask)
        )

    def dsv4_hc_comb(
        self, x: Tensor, scale: Tensor, bias: Tensor, eps: float, iterations: int
    ) -> Tensor:
        """Mixing matrices: x (T, (2+n)*n) -> (T, n, n), n = 4 streams."""
        streams = 4
        return self.node(
            Op.DSV4_HC_COMB,
            Type.F32,
            (streams, streams, x.ne[1], 1),
            (x, scale, bias),
            (f32_word(eps), iterations),
            ndim=3,
        )

    def dsv4_hc_pre(self, x: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum over streams: x (T, n, e), weights (T, n) -> (T, e)."""
        return self.node(Op.DSV4_HC_PRE, Type.F32, (x.ne[0], x.ne[2], 1, 1), (x, weights), ndim=2)

    def dsv4_hc_post(self, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """Streams after a layer: x (T, e), residual (T, n, e), post (T, n), comb (T, n, n)."""
        return self.like(Op.DSV4_HC_POST, residual, (x, residual, post, comb))
