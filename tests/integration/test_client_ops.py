"""Recorded operator cases through the whole daemon: builder, wire, validation, plan, run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import client_tools
import numpy as np
import pytest
import recorded
from test_graph import rebuild
from test_reference import floats, nmse

import headrace
from headrace import errors
from headrace.models.gguf_file import GgufFile
from headrace.op import LeafKind
from headrace.types import Type, as_shape, tensor_bytes

PLACE = recorded.folder()
FAMILIES = sorted(path.stem for path in PLACE.glob("*.gguf")) if PLACE else []
FULL = bool(os.environ.get("HEADRACE_FULL"))


@pytest.fixture(scope="module")
def client() -> Iterator[headrace.Client]:
    """A client of a daemon with one device."""
    with client_tools.client_of() as made:
        yield made


# Their encoders search; a good one gives other bytes than the recorded ones. golden_ops judges them by
# their error against the source.
ROUNDED = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"}


def is_searched(t: Any) -> bool:
    number = Type(t.type)
    return number.dtype is None and number.name not in ROUNDED | {"F16", "BF16"}


def check(client: headrace.Client, case: recorded.GoldenCase, file: GgufFile) -> str:
    """What is wrong with the daemon's results; empty when nothing is."""
    graph, tensors, _ = rebuild(case)
    wanted = [t for t in case.tensors if t.op != "NONE" and t.stored and t.role == "O"]
    if any(t.op in ("CPY", "SET_ROWS", "ADD") and is_searched(t) for t in wanted):
        raise NotImplementedError
    outputs = []
    for t in wanted:
        ours = tensors[t.index]
        outputs.append(graph.output(ours if ours.is_contiguous else graph.cont(ours)))
    inputs: list[Any] = []
    for t, ours in zip(case.tensors, tensors, strict=True):
        if ours.kind is LeafKind.INPUT:
            name = f"c{case.number}.t{t.index}"
            raw = np.array(file.read(name)) if t.stored else np.zeros(0, np.uint8)
            number = Type(t.type)
            assert raw.nbytes == tensor_bytes(number, t.ne)
            if number.dtype is not None:
                raw = raw.view(number.dtype).reshape(as_shape(t.ne, 4))
            inputs.append(raw)
    handle = client.submit(graph)
    result = handle.run(inputs)
    handle.release()
    place = {id(t): i for i, t in enumerate(handle.outputs)}
    for t, ours in zip(wanted, outputs, strict=True):
        want = floats(file.read(f"c{case.number}.t{t.index}"), Type(t.type))
        got = result[place[id(ours)]]
        got = floats(np.ascontiguousarray(got).view(np.uint8), Type(t.type))
        if case.metric == "rowset":
            rows = (-1, t.ne[0])
            error = float((np.sort(want.reshape(rows)) != np.sort(got.reshape(rows))).sum())
        else:
            error = nmse(want, got)
        if not error <= case.tolerance:
            return f"{case.family} {case.number} t{t.index} {t.op} {error:.3g}: {case.label}"
    return ""


@pytest.mark.parametrize("family", FAMILIES or ["none"])
def test_family(client: headrace.Client, family: str) -> None:
    if PLACE is None:
        pytest.skip("no recorded cases here")
    pytest.importorskip("gguf")
    file = GgufFile(PLACE / f"{family}.gguf")
    counts: Counter[str] = Counter()
    wrong = []
    cases = recorded.cases(PLACE, family)
    with np.errstate(all="ignore"):
        for case in cases if FULL else cases[::3]:
            try:
                problem = check(client, case, file)
            except errors.Unsupported:
                counts["unsupported"] += 1
                continue
            except NotImplementedError:  # gguf lacks the type, or its encoder searches
                counts["left out"] += 1
                continue
            counts["checked"] += 1
            if problem:
                wrong.append(problem)
    assert wrong == []
    if not counts["checked"]:
        pytest.skip(f"no device supports any of them: {dict(counts)}")


@pytest.mark.parametrize("gap", [0, 3])
def test_conv_2d_dw_with_channels_innermost(client: headrace.Client, gap: int) -> None:
    """Whether or not the pixels lie close together, the result's channels are innermost, too."""
    random = np.random.default_rng(7)
    channels, height, width = 5, 6, 7
    image = random.standard_normal((height, width, channels + gap)).astype(np.float32)
    kernel = random.standard_normal((channels, 1, 3, 3)).astype(np.float32)
    graph = headrace.Graph()
    pixels = graph.input("image", image.shape)
    window = graph.view(pixels, (height, width, channels), pixels.strides)
    made = graph.conv_2d_dw(
        graph.input("kernel", kernel.shape), graph.permute(window, (2, 0, 1)), padding=(1, 1)
    )
    assert made.nb[2] < made.nb[0] < made.nb[1]
    graph.output(graph.cont(made))
    result = client.submit(graph).run({"image": image, "kernel": kernel})[0]
    padded = np.pad(image[:, :, :channels], ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))
    expected = np.einsum("hwckl,ckl->chw", windows, kernel[:, 0])
    np.testing.assert_allclose(np.squeeze(result), expected, rtol=1e-4, atol=1e-5)
