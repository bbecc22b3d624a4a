"""Recurrences over tokens, their companions, and a few operators more, for numpy_reference.

Arrays have four axes, slowest first; every recurrence is a loop over its tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from headrace.op import Op
from numpy_reference import Array, Call


def l2_norm(c: Call) -> Array:
    """L2_NORM."""
    x = c.sources[0].astype(np.float64)
    return x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), c.real(0))


def group_norm(c: Call) -> Array:
    """GROUP_NORM."""
    x = c.sources[0].astype(np.float64)
    size = -(-x.shape[1] // c.word(0))
    for first in range(0, x.shape[1], size):
        part = x[:, first : first + size]
        part -= part.mean((1, 2, 3), keepdims=True)
        part /= np.sqrt((part * part).mean((1, 2, 3), keepdims=True) + c.real(1))
    return x


def out_prod(c: Call) -> Array:
    """OUT_PROD."""
    a, b = c.sources
    for axis in (0, 1):
        a = np.repeat(a, b.shape[axis] // a.shape[axis], axis)
    return np.einsum("zykm,zykn->zynm", a, b)


def repeat_back(c: Call) -> Array:
    """REPEAT_BACK."""
    x = c.sources[0].astype(np.float64)
    for axis, n in enumerate(c.node.ne[::-1]):
        x = x.reshape(*x.shape[:axis], -1, n, *x.shape[axis + 1 :]).sum(axis)
    return x


def ssm_conv(c: Call) -> Array:
    """SSM_CONV."""
    x, weights = c.sources
    taps = weights.shape[3]
    out = [
        np.einsum("bdk,dk->bd", x[0, :, :, t : t + taps], weights[0, 0])
        for t in range(c.node.ne[1])
    ]
    return np.stack(out, 1)[None]


def states_of(snapshots: list[Array], count: int) -> Array:
    """The newest `count` states, newest first."""
    return np.stack(snapshots[::-1][:count])


def ssm_scan(c: Call) -> Array:
    """SSM_SCAN."""
    state, x, dt, a, b, cc, ids = c.sources
    _, tokens, heads, _ = x.shape
    repeat = heads // b.shape[2]
    now = state[ids[0, 0, 0]].astype(np.float64)  # [B,H,D,N]
    dt = np.log1p(np.exp(dt[0].astype(np.float64)))  # [B,T,H]
    outputs, snapshots = [], []
    for t in range(tokens):
        step = dt[:, t, :, None, None]
        b_t, c_t = (np.repeat(v[:, t], repeat, 1)[:, :, None, :] for v in (b, cc))
        now = (
            now * np.exp(step * a[0, 0][None, :, None, :])
            + x[:, t][..., None] * step * b_t
        )
        outputs.append((now * c_t).sum(-1))
        snapshots.append(now)
    states = states_of(snapshots, c.word(0))
    return np.concatenate([np.stack(outputs, 1).ravel(), states.ravel()])


def linear(
    c: Call, step: Callable[[Array, list[Array]], tuple[Array, Array]], shared: int = -1
) -> Array:
    """Loops over the tokens of [T,H,S] sources; the last source is the state [B,H,S,S]."""
    *given, state = c.sources
    tokens, heads, size = given[0].shape[1:]
    sequences = state.shape[2]
    now = state.reshape(sequences, heads, size, size).astype(np.float64)
    outputs = []
    for t in range(tokens // sequences):
        at = [
            v[0, 0][None]
            if i == shared
            else v[0].reshape(sequences, -1, heads, size)[:, t]
            for i, v in enumerate(given)
        ]
        now, out = step(now, at)
        outputs.append(out)
    done = np.stack(outputs, 1) if outputs else np.zeros(0)
    return np.concatenate([done.ravel(), now.ravel()])


def wkv6(c: Call) -> Array:
    """RWKV_WKV6."""

    def step(now: Array, at: list[Array]) -> tuple[Array, Array]:
        k, v, r, bonus, decay = at
        kv = k[..., None] * v[..., None, :]
        out = np.einsum("bhi,bhij->bhj", r, now + bonus[..., None] * kv)
        return now * decay[..., None] + kv, out

    return linear(c, step, shared=3)


def wkv7(c: Call) -> Array:
    """RWKV_WKV7."""

    def step(now: Array, at: list[Array]) -> tuple[Array, Array]:
        r, w, k, v, a, b = at
        removed = np.einsum("bhij,bhj->bhi", now, a)
        now = (
            now * w[..., None, :]
            + v[..., None] * k[..., None, :]
            + removed[..., None] * b[..., None, :]
        )
        return now, np.einsum("bhij,bhj->bhi", now, r)

    return linear(c, step)


def gated(c: Call) -> Array:
    """GATED_LINEAR_ATTN."""

    def step(now: Array, at: list[Array]) -> tuple[Array, Array]:
        k, v, q, gate = at
        now = now * gate[..., None] + k[..., None] * v[..., None, :]
        return now, c.real(0) * np.einsum("bhi,bhij->bhj", q, now)

    return linear(c, step)


def delta_net(c: Call) -> Array:
    """GATED_DELTA_NET."""
    q, k, v, gate, beta, state = (x.astype(np.float64) for x in c.sources)
    heads, size = v.shape[2:]
    q, k = (
        np.repeat(
            np.tile(x, (1, 1, heads // x.shape[2], 1)), v.shape[0] // x.shape[0], 0
        )
        for x in (q, k)
    )
    now, outputs, snapshots = state, [], []
    for t in range(v.shape[1]):
        now = now * np.exp(gate[:, t])[:, :, None, :]
        change = (v[:, t] - np.einsum("bhij,bhj->bhi", now, k[:, t])) * beta[:, t]
        now = now + change[..., None] * k[:, t][:, :, None, :]
        outputs.append(np.einsum("bhij,bhj->bhi", now, q[:, t]) / np.sqrt(size))
        snapshots.append(now)
    return np.concatenate(
        [np.stack(outputs, 1).ravel(), states_of(snapshots, c.word(0)).ravel()]
    )


def indexer(c: Call) -> Array:
    """LIGHTNING_INDEXER."""
    q, k, weights, mask = c.sources
    scores = np.maximum(np.einsum("bthd,bkd->bthk", q, k[:, :, 0]), 0)
    out = np.einsum("bthk,bth->btk", scores, weights[:, 0])
    return (out + np.repeat(mask[:, 0], q.shape[0] // mask.shape[0], 0))[:, None]


def hc_comb(c: Call) -> Array:
    """DSV4_HC_COMB."""
    mixes, scale, base = (x.astype(np.float64) for x in c.sources)
    x = (mixes[0, 0, :, 8:] * scale[0, 0, 0, 2] + base[0, 0, 0, 8:]).reshape(-1, 4, 4)
    x = np.exp(x - x.max(-1, keepdims=True))
    x = x / x.sum(-1, keepdims=True) + c.real(0)
    x = x / (x.sum(1, keepdims=True) + c.real(0))
    for _ in range(1, c.word(1)):
        x = x / (x.sum(2, keepdims=True) + c.real(0))
        x = x / (x.sum(1, keepdims=True) + c.real(0))
    return x[None]


def hc_post(c: Call) -> Array:
    """DSV4_HC_POST."""
    x, residual, post, mixing = (s[0] for s in c.sources)
    return (
        x[0][:, None, :] * post[0][..., None]
        + np.einsum("tis,tid->tsd", mixing, residual)
    )[None]


OPS: dict[Op, Callable[[Call], Array]] = {
    Op.L2_NORM: l2_norm, Op.GROUP_NORM: group_norm, Op.OUT_PROD: out_prod, Op.REPEAT_BACK: repeat_back,
    Op.COUNT_EQUAL: lambda c: np.array((c.sources[0] == c.sources[1]).sum()),
    Op.SSM_CONV: ssm_conv, Op.SSM_SCAN: ssm_scan, Op.RWKV_WKV6: wkv6, Op.RWKV_WKV7: wkv7,
    Op.GATED_LINEAR_ATTN: gated, Op.GATED_DELTA_NET: delta_net,
    Op.SOLVE_TRI: lambda c: np.linalg.solve(np.tril(c.sources[0].astype(np.float64)), c.sources[1]),
    Op.LIGHTNING_INDEXER: indexer, Op.DSV4_HC_COMB: hc_comb,
    Op.DSV4_HC_PRE: lambda c: np.einsum("tsd,ts->td", c.sources[0][0], c.sources[1][0, 0])[None, None],
    Op.DSV4_HC_POST: hc_post,
}  # fmt: skip
