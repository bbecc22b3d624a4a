"""The builder: shapes, strides, encoding, refusals, and the recorded cases' inference."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import recorded
import numpy as np
import pytest
from headrace import headrace_pb2 as pb
from headrace.graph import Glu, Graph, Op, RopeMode, Tensor, Unary
from headrace.op import LeafKind
from headrace.types import Type, as_bytes, as_shape, as_type
from numpy_reference import evaluate, parse

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(7)


def random(*shape: int) -> Any:
    """f32 normal numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


def test_numbers_are_those_of_the_contract() -> None:
    text = (ROOT / "core" / "op.def").read_text()
    table = {name: int(number) for name, number in re.findall(r"^X\((\w+), (\d+),", text, re.M)}
    assert {op.name: int(op) for op in Op} == table
    header = (ROOT / "core" / "type.h").read_text()
    types = {name: int(n) for name, n in re.findall(r"HR_TYPE_(\w+) = (\d+)", header)}
    types.pop("LIMIT")
    assert {t.name: int(t) for t in Type} == types


def test_every_operator_has_a_method() -> None:
    special = {"NONE": "input", "ROPE_BACK": "rope"}
    for op in Op:
        assert callable(getattr(Graph, special.get(op.name, op.name.lower()))), op.name


def test_columns_decode_as_protobuf() -> None:
    g = Graph()
    w = g.weight("w", (5, 32), "q4_0")
    x = g.input("x", (3, 32))
    c = g.constant([1.0, 2.0, 3.0], name="c")
    y = g.mul_mat(w, x, precise=True)
    g.output(g.cont(g.transpose(y)), "out")
    m = pb.Graph.FromString(g.encode())
    assert m.leaf_count == 3 and list(m.op) == [Op.MUL_MAT, Op.TRANSPOSE, Op.CONT]
    assert list(m.type) == [Type.Q4_0, Type.F32, Type.F32, Type.F32, Type.F32, Type.F32]
    assert list(m.flags) == [0, 1, 0, 0, 0, 2]
    assert list(m.ne)[:8] == [32, 5, 1, 1, 32, 3, 1, 1]
    assert list(m.leaf_kind) == [1, 3, 4]
    assert list(m.source_count) == [2, 1, 1] and list(m.source) == [0, 1, 3, 4]
    assert list(m.param_count) == [1, 0, 0] and list(m.param) == [10]
    assert list(m.view_tensor) == [4] and list(m.view_base) == [3] and list(m.view_offset) == [0]
    assert list(m.stride_tensor) == [4] and list(m.stride) == [20, 4, 60, 60]
    assert m.names == b"wxcout" and list(m.name_length) == [1, 1, 1, 0, 0, 3]
    assert m.constants == c.data.tobytes() and list(m.constant_bytes) == [12]
    assert g.encode() is g.encode() and len(g.digest) == 32
    with pytest.raises(RuntimeError):
        g.silu(x)


def test_a_leaf_made_late_moves_ids() -> None:
    g = Graph()
    a = g.input("a", (4,))
    y = g.sqr(a)
    b = g.input("b", (4,))
    g.output(g.add(y, b), "z")
    (z,) = evaluate(g.encode(), {"a": np.arange(4, dtype=np.float32), "b": np.ones(4, np.float32)})
    assert z.ravel().tolist() == [1, 2, 5, 10]
    assert g.tensor(2) is y and [t.name for t in g.inputs] == ["a", "b"]


def run(build: Callable[[Graph, list[Tensor]], Tensor], *inputs: Any) -> Any:
    """The value of a graph over inputs, with the shape that the builder declares."""
    g = Graph()
    leaves = [g.input(f"i{n}", v.shape, v.dtype) for n, v in enumerate(inputs)]
    y = g.output(build(g, leaves))
    (value,) = evaluate(g.encode(), {f"i{n}": v for n, v in enumerate(inputs)})
    return value.reshape(y.shape)


def test_views_mean_what_numpy_means() -> None:
    x = random(2, 3, 4, 5)
    assert (
        run(lambda g, i: g.cont(g.permute(i[0], (2, 0, 3, 1))), x) == x.transpose(2, 0, 3, 1)
    ).all()
    assert (run(lambda g, i: g.cont(g.transpose(i[0])), x) == np.swapaxes(x, -1, -2)).all()
    assert (run(lambda g, i: g.reshape(i[0], (6, -1)), x) == x.reshape(6, 20)).all()
    assert (
        run(lambda g, i: g.cont(g.slice(g.permute(i[0], (0, 2, 1, 3)), 2, 1, 3)), x)
        == x.transpose(0, 2, 1, 3)[:, :, 1:3]
    ).all()
    assert (run(lambda g, i: g.cont(g.slice(i[0], -1, 2, 5)), x) == x[..., 2:5]).all()
    for axis in range(4):  # rows that are not dense
        got = run(lambda g, i, a=axis: g.cont(g.slice(g.permute(i[0], (3, 0, 2, 1)), a, 1, 2)), x)
        assert (got == np.take(x.transpose(3, 0, 2, 1), [1], axis)).all()
    got = run(lambda g, i: g.cont(g.slice(g.transpose(i[0]), 0, 2, 5)), x[0, 0])
    assert (got == x[0, 0].T[2:]).all()
    assert (run(lambda g, i: g.cont(g.view(i[0], (4, 5), offset=x.strides[1])), x) == x[0, 1]).all()
    assert (
        run(lambda g, i: g.concat(i[0], i[1], 1), x, x[:, :1]) == np.concatenate([x, x[:, :1]], 1)
    ).all()
    assert (run(lambda g, i: g.repeat(i[0], (2, 6, 8, 5)), x) == np.tile(x, (1, 2, 2, 1))).all()
    assert (run(lambda g, i: g.permute(g.permute(i[0], (1, 2, 0)), (2, 0, 1)), x[0]) == x[0]).all()


@pytest.mark.parametrize(
    ("value", "type"),
    [
        ([2**40], "i32"),
        ([-(2**31) - 1], "i32"),
        (np.array([2**31], np.uint32), "i32"),
        (np.array([2**63], np.uint64), "i64"),
    ],
)
def test_an_integer_beyond_its_type_is_refused(value: Any, type: str) -> None:
    with pytest.raises(ValueError, match="a value is beyond"):
        as_bytes(np.asarray(value), as_type(type), (1,), "x")


def test_what_numbers_of_one_kind_become() -> None:
    for value, type, want in [
        (np.array([-np.inf, 1e300, 1 / 3]), "f32", np.float32),
        (np.array([2**31 - 1, -(2**31)]), "i32", np.int32),
        (np.array([1e-300, 16777217.0]), "f32", np.float32),
        (np.zeros(0, np.int64), "i32", np.int32),
        (np.array([1.5, -2.0], ">f4"), "f32", np.float32),
    ]:
        with np.errstate(over="ignore"):
            got = as_bytes(value, as_type(type), value.shape, "x")
            assert bytes(got) == value.astype(want).tobytes()


def test_products_and_rows() -> None:
    w, x, ids = random(7, 8), random(3, 8), np.array([6, 0, 3, 3], np.int32)
    assert np.allclose(run(lambda g, i: g.mul_mat(i[0], i[1]), w, x), x @ w.T, atol=1e-5)
    assert (run(lambda g, i: g.get_rows(i[0], i[1]), w, ids) == w[ids]).all()
    experts, b = random(4, 5, 8), random(2, 1, 8)
    chosen = np.array([[0, 3], [2, 2]], np.int32)
    got = run(lambda g, i: g.mul_mat_id(*i), experts, b, chosen)
    want = np.einsum("tumk,tk->tum", experts[chosen], b[:, 0])
    assert np.allclose(got, want, atol=1e-5)


def test_set_rows_writes_through() -> None:
    g = Graph()
    cache = g.state("cache", (6, 4), "f16")
    rows = g.set_rows(cache, g.input("x", (2, 4)), g.input("ids", (2,), "i64"))
    g.output(g.cast(g.view(rows, (3, 4), offset=8), "f32"), "y")
    memory = np.zeros((6, 4), np.float16)
    x = random(2, 4)
    (y,) = evaluate(g.encode(), {"x": x, "ids": np.array([3, 1])}, states={"cache": memory})
    assert (memory[3] == x[0].astype(np.float16)).all() and not memory[0].any()
    assert (y.reshape(3, 4) == memory[1:4]).all()


def test_attention_two_ways() -> None:
    q, k, v = random(6, 5, 8), random(2, 16, 8), random(2, 16, 8)
    mask = np.where(np.arange(16) <= np.arange(5)[:, None] + 3, 0, -np.inf).astype(np.float16)
    fused = run(lambda g, i: g.flash_attn_ext(*i, scale=0.3), q, k, v, mask)

    def plain(g: Graph, i: list[Tensor]) -> Tensor:
        scores = g.soft_max(g.mul_mat(i[1], i[0]), i[3], scale=0.3)
        return g.cont(g.permute(g.mul_mat(g.cont(g.transpose(i[2])), scores), (1, 0, 2)))

    assert fused.shape == (5, 6, 8)
    assert np.allclose(run(plain, q, k, v, mask), fused, atol=1e-5)


def test_rope_and_norms() -> None:
    x, positions = random(3, 2, 8), np.array([0, 5, 9], np.int32)
    for mode in (RopeMode.NORMAL, RopeMode.NEOX):
        y = run(lambda g, i, m=mode: g.rope(*i, n_dims=8, mode=m), x, positions)
        assert np.allclose(y[0], x[0]) and not np.allclose(y[1], x[1])
        assert np.allclose((y**2).sum(-1), (x**2).sum(-1), rtol=1e-4)
        back = run(lambda g, i, m=mode: g.rope(*i, n_dims=8, mode=m, back=True), y, positions)
        assert np.allclose(back, x, atol=1e-5)
    n = run(lambda g, i: g.rms_norm(i[0], 1e-6), x)
    assert np.allclose((n**2).mean(-1), 1, atol=1e-4)


def test_types() -> None:
    assert as_type("q4_K") is Type.Q4_K is as_type(12) and as_type(np.float16) is Type.F16
    assert as_type(np.dtype(">i8")) is Type.I64 and as_type(float) is Type.F64
    for bad in ("q9", np.complex64, "uint8", 5):
        with pytest.raises(ValueError):
            as_type(bad)  # type: ignore[arg-type]
    assert Type.Q6_K.row_bytes(512) == 420
    g = Graph()
    assert g.constant([1, 2]).type is Type.I32 and g.constant([1.5]).type is Type.F32
    assert g.constant(np.zeros(2)).type is Type.F64
    block = g.constant(np.zeros(18, np.uint8), "q4_0", shape=(32,))
    assert block.shape == (32,) and block.nbytes == 18


@pytest.mark.parametrize(
    "bad",
    [
        lambda g, x: g.mul_mat(x, g.input("b", (3, 5))),
        lambda g, x: g.add(x, g.input("b", (3, 5))),
        lambda g, x: g.reshape(x, (5, 5)),
        lambda g, x: g.reshape(g.transpose(x), (24,)),
        lambda g, x: g.permute(x, (0, 0)),
        lambda g, x: g.concat(x, g.input("b", (5, 5)), 0),
        lambda g, x: g.get_rows(x, g.input("b", (2, 2), "i32")),
        lambda g, x: g.rope(x, g.input("p", (9,), "i32"), n_dims=2),
        lambda g, x: g.output(g.transpose(x)),
        lambda g, x: g.input("x", (1,)),
        lambda g, x: g.weight("w", (5, 31), "q4_0"),
        lambda g, x: g.input("y", (1, 1, 1, 1, 1)),
        lambda g, x: g.sqr(Graph().input("z", (2,))),
        lambda g, x: g.constant(["a"]),
        lambda g, x: g.constant([[1], [2, 3]]),
        lambda g, x: g.slice(x, 0, 3, 9),
        lambda g, x: g.arange(0, 1, 0),
        lambda g, x: g.arange(1, 0, -0.25),
        lambda g, x: g.arange(1, 1),
        lambda g, x: g.top_k(x, 7),
        lambda g, x: g.name(x, "other"),
    ],
)
def test_refusals(bad: Callable[[Graph, Tensor], object]) -> None:
    g = Graph()
    with pytest.raises((ValueError, TypeError)):
        bad(g, g.input("x", (4, 6)))


def chain_calls(nodes: int) -> int:
    """How many functions are called to build and encode a chain of so many nodes."""
    calls = 0

    def count(frame: object, event: str, value: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        g = Graph()
        x = g.input("x", (4,))
        for _ in range(nodes):
            x = g.silu(x)
        g.output(x)
        encoded = g.encode()
    finally:
        sys.setprofile(before)
    assert len(parse(encoded)[0]) == nodes + 1
    return calls


def test_thousands_of_nodes_take_as_much_each() -> None:
    few, many = chain_calls(1_000), chain_calls(8_000)
    assert many < 8.1 * few


# ---- recorded cases ------------------------------------------------------------------------------


def f32(t: recorded.GoldenTensor, i: int) -> float:
    """Parameter word i as float."""
    return float(np.array([word(t, i)], np.uint32).view(np.float32)[0])


def word(t: recorded.GoldenTensor, i: int) -> int:
    """Parameter word i, unsigned; trailing zeros are not recorded."""
    return t.params[i] if i < len(t.params) else 0


def i32(t: recorded.GoldenTensor, i: int) -> int:
    """Parameter word i as int32."""
    return int(np.array([word(t, i)], np.uint32).view(np.int32)[0])


def ints(t: recorded.GoldenTensor, start: int, stop: int) -> tuple[int, ...]:
    """A range of words, in numpy's order."""
    return tuple(i32(t, i) for i in range(start, stop))[::-1]


Rebuild = Callable[[Graph, recorded.GoldenTensor, list[Any]], Tensor]


def elementwise(name: str, *words: int) -> Rebuild:
    """An operator on its sources with leading float parameters, in place when recorded so."""

    def build(g: Graph, t: recorded.GoldenTensor, s: list[Any]) -> Tensor:
        extra = {"inplace": True} if t.view_of >= 0 else {}
        return getattr(g, name)(*s, *(f32(t, w) for w in words), **extra)  # type: ignore[no-any-return]

    return build


def rope(g: Graph, t: recorded.GoldenTensor, s: list[Any]) -> Tensor:
    """ROPE and ROPE_BACK."""
    return g.rope(
        *s,
        n_dims=i32(t, 1),
        mode=RopeMode(i32(t, 2)),
        n_ctx_orig=i32(t, 4),
        base=f32(t, 5),
        scale=f32(t, 6),
        ext_factor=f32(t, 7),
        attn_factor=f32(t, 8),
        beta_fast=f32(t, 9),
        beta_slow=f32(t, 10),
        sections=ints(t, 11, 15)[::-1],
        n_offs=i32(t, 15),
        back=t.op == "ROPE_BACK",
        inplace=t.view_of >= 0,
    )


def unary(g: Graph, t: recorded.GoldenTensor, s: list[Any]) -> Tensor:
    """UNARY; xIELU was recorded with the parameters 4, 20, 0.5, 1e-7."""
    if i32(t, 0) == Unary.XIELU:
        return g.xielu(s[0], 4.0, 20.0, 0.5, 1e-7)
    return g.unary(*s, Unary(i32(t, 0)), inplace=t.view_of >= 0)


def window(name: str) -> Rebuild:
    """SET and ACC."""

    def build(g: Graph, t: recorded.GoldenTensor, s: list[Any]) -> Tensor:
        strides = (i32(t, 2), i32(t, 1), i32(t, 0), s[0].nb[0])
        made: Tensor = getattr(g, name)(
            *s, strides=strides, offset=i32(t, 3), inplace=bool(i32(t, 4))
        )
        return made

    return build


def pads(g: Graph, t: recorded.GoldenTensor, s: list[Any]) -> Tensor:
    """PAD."""
    sides = [(i32(t, 2 * i), i32(t, 2 * i + 1)) for i in range(4)]
    return g.pad(s[0], sides[s[0].ndim - 1 :: -1], circular=bool(i32(t, 8)))


def im2col(g: Graph, t: recorded.GoldenTensor, s: list[Any]) -> Tensor:
    """IM2COL."""
    if i32(t, 6):
        return g.im2col(
            *s, stride=ints(t, 0, 2), padding=ints(t, 2, 4), dilation=ints(t, 4, 6), type=t.type
        )
    return g.im2col_1d(*s, stride=i32(t, 0), padding=i32(t, 2), dilation=i32(t, 4), type=t.type)


def attention(g: Graph, t: recorded.GoldenTensor, s: list[Any]) -> Tensor:
    """FLASH_ATTN_EXT."""
    q, k, v, mask, sinks = (*s, None, None)[:5]
    return g.flash_attn_ext(
        q,
        k,
        v,
        mask,
        sinks=sinks,
        scale=f32(t, 0),
        max_bias=f32(t, 1),
        softcap=f32(t, 2),
        precise=i32(t, 3) == 10,
    )


def soft_max(g: Graph, t: recorded.GoldenTensor, s: list[Any]) -> Tensor:
    """SOFT_MAX."""
    x, mask, sinks = (*s, None, None)[:3]
    return g.soft_max(
        x, mask, sinks=sinks, scale=f32(t, 0), max_bias=f32(t, 1), inplace=t.view_of >= 0
    )


def conv(name: str) -> Rebuild:
    """CONV_2D and CONV_2D_DW."""
    return lambda g, t, s: getattr(g, name)(
        *s, stride=ints(t, 0, 2), padding=ints(t, 2, 4), dilation=ints(t, 4, 6)
    )


REBUILD: dict[str, Rebuild] = {
    **{name: elementwise(name.lower()) for name in (
        "ADD", "SUB", "MUL", "DIV", "ADD1", "SQR", "SQRT", "LOG", "SIN", "COS")},
    "ADD_ID": lambda g, t, s: g.add_id(*s),
    "SCALE": elementwise("scale", 0, 1), "CLAMP": elementwise("clamp", 0, 1),
    "LEAKY_RELU": elementwise("leaky_relu", 0), "FILL": elementwise("fill", 0),
    "NORM": elementwise("norm", 0), "RMS_NORM": elementwise("rms_norm", 0),
    "L2_NORM": elementwise("l2_norm", 0),
    "GROUP_NORM": lambda g, t, s: g.group_norm(*s, i32(t, 0), f32(t, 1), inplace=t.view_of >= 0),
    "UNARY": unary,
    "GLU": lambda g, t, s: g.glu(Glu(i32(t, 0)), *s, swapped=bool(i32(t, 1)), alpha=f32(t, 2),
                                 limit=f32(t, 3)),
    "SUM": lambda g, t, s: g.sum(*s), "SUM_ROWS": lambda g, t, s: g.sum_rows(*s),
    "MEAN": lambda g, t, s: g.mean(*s), "CUMSUM": lambda g, t, s: g.cumsum(*s),
    "ARGMAX": lambda g, t, s: g.argmax(*s),
    "ARGSORT": lambda g, t, s: g.argsort(*s, descending=bool(i32(t, 0))),
    "TOP_K": lambda g, t, s: g.top_k(*s, t.ne[0]),
    "COUNT_EQUAL": lambda g, t, s: g.count_equal(*s),
    "REPEAT": lambda g, t, s: g.repeat(*s, as_shape(t.ne, 4)),
    "REPEAT_BACK": lambda g, t, s: g.repeat_back(*s, as_shape(t.ne, 4)),
    "CONCAT": lambda g, t, s: g.concat(*s, -1 - i32(t, 0)),
    "DUP": lambda g, t, s: g.dup(*s), "GET_ROWS": lambda g, t, s: g.get_rows(*s),
    "SET_ROWS": lambda g, t, s: g.set_rows(s[2], s[0], s[1]),
    "SET": window("set"), "ACC": window("acc"), "PAD": pads,
    "MUL_MAT": lambda g, t, s: g.mul_mat(*s, precise=i32(t, 0) == 10, hadamard=i32(t, 1) == 1),
    "MUL_MAT_ID": lambda g, t, s: g.mul_mat_id(*s), "OUT_PROD": lambda g, t, s: g.out_prod(*s),
    "SOLVE_TRI": lambda g, t, s: g.solve_tri(*s), "SOFT_MAX": soft_max, "ROPE": rope,
    "ROPE_BACK": rope, "FLASH_ATTN_EXT": attention,
    "DIAG_MASK_INF": lambda g, t, s: g.diag_mask_inf(*s, i32(t, 0), inplace=t.view_of >= 0),
    "DIAG_MASK_ZERO": lambda g, t, s: g.diag_mask_zero(*s, i32(t, 0), inplace=t.view_of >= 0),
    "DIAG": lambda g, t, s: g.diag(*s), "TRI": lambda g, t, s: g.tri(*s, i32(t, 0)),
    "ARANGE": lambda g, t, s: g.arange(f32(t, 0), f32(t, 1), f32(t, 2)),
    "TIMESTEP_EMBEDDING": lambda g, t, s: g.timestep_embedding(*s, i32(t, 0), i32(t, 1)),
    "IM2COL": im2col,
    "IM2COL_3D": lambda g, t, s: g.im2col_3d(
        *s, i32(t, 9), stride=ints(t, 0, 3), padding=ints(t, 3, 6), dilation=ints(t, 6, 9),
        type=t.type),
    "CONV_2D": conv("conv_2d"), "CONV_2D_DW": conv("conv_2d_dw"),
    "CONV_3D": lambda g, t, s: g.conv_3d(
        *s, channels=i32(t, 9), stride=ints(t, 0, 3), padding=ints(t, 3, 6),
        dilation=ints(t, 6, 9)),
    "CONV_TRANSPOSE_1D": lambda g, t, s: g.conv_transpose_1d(*s, stride=i32(t, 0)),
    "CONV_TRANSPOSE_2D": lambda g, t, s: g.conv_transpose_2d(*s, stride=i32(t, 0)),
    "COL2IM_1D": lambda g, t, s: g.col2im_1d(*s, i32(t, 1), stride=i32(t, 0), padding=i32(t, 2)),
    "POOL_1D": lambda g, t, s: g.pool_1d(*s, i32(t, 1), stride=i32(t, 2), padding=i32(t, 3),
                                         average=bool(i32(t, 0))),
    "POOL_2D": lambda g, t, s: g.pool_2d(*s, ints(t, 1, 3), stride=ints(t, 3, 5),
                                         padding=ints(t, 5, 7), average=bool(i32(t, 0))),
    "UPSCALE": lambda g, t, s: g.upscale(*s, as_shape(t.ne, 4), i32(t, 0)),
    "PAD_REFLECT_1D": lambda g, t, s: g.pad_reflect_1d(*s, i32(t, 0), i32(t, 1)),
    "ROLL": lambda g, t, s: g.roll(*s, ints(t, 0, 4)),
    "WIN_PART": lambda g, t, s: g.win_part(*s, i32(t, 2)),
    "WIN_UNPART": lambda g, t, s: g.win_unpart(*s, t.ne[2], t.ne[1], i32(t, 0)),
    "GET_REL_POS": lambda g, t, s: g.get_rel_pos(*s, t.ne[2], t.ne[1]),
    "ADD_REL_POS": lambda g, t, s: g.add_rel_pos(*s, inplace=bool(i32(t, 0))),
    "SSM_CONV": lambda g, t, s: g.ssm_conv(*s),
    "SSM_SCAN": lambda g, t, s: g.ssm_scan(*s, i32(t, 0)),
    "RWKV_WKV6": lambda g, t, s: g.rwkv_wkv6(*s), "RWKV_WKV7": lambda g, t, s: g.rwkv_wkv7(*s),
    "GATED_LINEAR_ATTN": lambda g, t, s: g.gated_linear_attn(*s, f32(t, 0)),
    "GATED_DELTA_NET": lambda g, t, s: g.gated_delta_net(*s, i32(t, 0)),
    "LIGHTNING_INDEXER": lambda g, t, s: g.lightning_indexer(*s),
    "DSV4_HC_COMB": lambda g, t, s: g.dsv4_hc_comb(*s, f32(t, 0), i32(t, 1)),
    "DSV4_HC_PRE": lambda g, t, s: g.dsv4_hc_pre(*s),
    "DSV4_HC_POST": lambda g, t, s: g.dsv4_hc_post(*s),
    "RESHAPE": lambda g, t, s: g.reshape(*s, as_shape(t.ne, 4)),
    "TRANSPOSE": lambda g, t, s: g.transpose(*s),
}  # fmt: skip


def trimmed(params: tuple[int, ...]) -> tuple[int, ...]:
    """Without trailing zeros."""
    last = len(params)
    while last and params[last - 1] == 0:
        last -= 1
    return params[:last]


def rebuild(case: recorded.GoldenCase) -> tuple[Graph, list[Tensor], Counter[str]]:
    """The case as a graph of ours: operators by their methods, other nodes as recorded."""
    g = Graph()
    tensors: list[Tensor] = []
    used: Counter[str] = Counter()
    for t in case.tensors:
        sources = [None if s < 0 else tensors[s] for s in t.sources if s < t.index]
        if t.op == "NONE":
            tensors.append(g.input(f"t{t.index}", as_shape(t.ne, 4), t.type))
        elif t.op == "CPY":
            target = t.sources[1] if len(t.sources) > 1 and t.sources[1] != t.index else -1
            tensors.append(
                g.cpy(tensors[t.sources[0]], tensors[target])
                if target >= 0
                else g.cast(tensors[t.sources[0]], t.type)
            )
            used["CPY"] += 1
        elif t.op == "CONT" and t.ne == tensors[t.sources[0]].ne:
            tensors.append(g.cont(tensors[t.sources[0]]))
            used["CONT"] += 1
        elif t.op in REBUILD:
            tensors.append(REBUILD[t.op](g, t, sources))
            used[t.op] += 1
        else:
            tensors.append(
                g.node(
                    Op[t.op],
                    Type(t.type),
                    t.ne,
                    sources,
                    t.params,
                    nb=t.nb,
                    ndim=4,
                    over=tensors[t.view_of] if t.view_of >= 0 else None,
                    offset=t.view_offset,
                )
            )
    return g, tensors, used


def test_inference_equals_the_recorded_cases() -> None:
    place = recorded.folder()
    if place is None:
        pytest.skip("no recorded cases here")
    used: Counter[str] = Counter()
    wrong: list[str] = []
    for file in sorted(place.glob("*.txt")):
        for case in recorded.cases(place, file.stem):
            graph, tensors, seen = rebuild(case)
            used += seen
            for t, ours in zip(case.tensors, tensors, strict=True):
                theirs = (t.op, t.type, t.ne, t.nb, t.params, t.view_of >= 0, t.view_offset)
                got = (
                    ours.op.name,
                    ours.type,
                    ours.ne,
                    ours.nb,
                    trimmed(ours.params),
                    ours.base is not None,
                    ours.offset,
                )
                if t.op == "NONE":
                    theirs, got = theirs[1:4], got[1:4]
                if theirs != got:
                    wrong.append(f"{case.family} {case.number} t{t.index}: {got}, not {theirs}")
            graph.encode()
    assert wrong[:20] == []
    assert set(REBUILD) - set(used) <= {"ROPE_BACK"}


def test_leaf_kinds() -> None:
    g = Graph()
    kinds = [g.weight("w", (1,)), g.state("s", (1,)), g.input("i", (1,)), g.constant([1])]
    assert [t.kind for t in kinds] == list(LeafKind)
