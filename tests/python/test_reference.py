"""The oracle against the recorded cases: numpy_reference agrees with them wherever it knows the
op.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import recorded
import numpy as np
import pytest
from headrace.models.gguf_file import GgufFile
from headrace.op import Op
from headrace.types import Type, as_shape, tensor_bytes
from numpy_reference import OPS, Evaluator, dequantise
from test_graph import rebuild

KNOWN = {op.name for op in OPS} | {"NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "SET_ROWS"}
FAMILIES = ["binary", "layout", "math", "unary", "glu", "norm", "reduce", "soft_max", "rope",
            "flash_attn", "get_rows", "set_rows", "cpy", "dup_cont", "mul_mat_float",
            "mul_mat_legacy", "mul_mat_kq", "mul_mat_id", "blocks", "moe"]  # fmt: skip


def floats(raw: Any, number: Type) -> Any:
    """Bytes of a tensor as float64."""
    if number.is_block:
        return dequantise(raw, number).astype(np.float64)
    if number is Type.BF16:
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.view(number.dtype).astype(np.float64)


def nmse(want: Any, got: Any) -> float:
    """Normalised error; equal infinities are skipped."""
    with np.errstate(invalid="ignore"):
        want, got = want.ravel(), got.ravel()
        same = np.isinf(want) & (want == got)
        want, got = want[~same], got[~same]
        if not want.size:
            return 0.0
        if not np.isfinite(got).all() or not np.isfinite(want).all():
            return float("inf")
        total = float((want * want).sum())
        error = float(((want - got) ** 2).sum())
        return error / total if total else (0.0 if error == 0 else float("inf"))


def evaluable(case: recorded.GoldenCase) -> bool:
    """The oracle knows all operators of the case and writes no block type."""
    for t in case.tensors:
        if t.op not in KNOWN or (t.op == "ROPE" and t.params[2:3] not in ((0,), (2,), ())):
            return False
        if (
            t.op not in ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
            and Type(t.type).is_block
        ):
            return False
        if t.op == "UNARY" and t.params[:1] == (17,):
            return False
        if t.type in (Type.Q1_0, Type.Q2_0):
            return False
    return True


def check(place: Path, case: recorded.GoldenCase, file: GgufFile) -> str:
    """What is wrong with the oracle's results; empty when nothing is."""
    graph, tensors, _ = rebuild(case)
    evaluator = Evaluator(graph.encode())
    inputs = {}
    for t in case.tensors:
        if t.op == "NONE":
            inputs[f"t{t.index}"] = (
                np.array(file.read(f"c{case.number}.t{t.index}"))
                if t.stored
                else np.zeros(tensor_bytes(Type(t.type), t.ne), np.uint8)
            )
    evaluator.run(inputs)
    leaves = len(graph.leaves)
    for t, ours in zip(case.tensors, tensors, strict=True):
        if t.op == "NONE" or not t.stored or t.role != "O":
            continue
        raw = file.read(f"c{case.number}.t{t.index}")
        want = floats(raw, Type(t.type)).reshape(as_shape(t.ne, 4))
        got = evaluator.value(ours.index + leaves).astype(np.float64)
        if case.metric == "rowset":
            error = float((np.sort(want, -1) != np.sort(got, -1)).sum())
        else:
            error = nmse(want, got)
        if not error <= max(case.tolerance, 1e-9):
            return f"{case.family} {case.number} t{t.index} {t.op} {error:.3g}: {case.label}"
    return ""


@pytest.mark.parametrize("family", FAMILIES)
def test_oracle(family: str) -> None:
    place = recorded.folder()
    if place is None:
        pytest.skip("no recorded cases here")
    pytest.importorskip("gguf")
    file = GgufFile(place / f"{family}.gguf")
    counts: Counter[str] = Counter()
    wrong = []
    with np.errstate(all="ignore"):
        for case in recorded.cases(place, family):
            if not evaluable(case):
                counts["left out"] += 1
                continue
            counts["checked"] += 1
            problem = check(place, case, file)
            if problem:
                wrong.append(problem)
    assert wrong == []
    assert counts["checked"] > counts["left out"] / 5, counts


def test_every_operator_of_the_oracle_is_one() -> None:
    assert all(op in Op for op in OPS)
