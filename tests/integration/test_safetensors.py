"""Safetensors files as weight sets: like GGUF files, wherever their tensors lie; hostile ones are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import raw
from raw import INVALID, NOT_FOUND, Conn, pb

import headrace
from headrace.models.safetensors_file import SafetensorsFile

pytestmark = pytest.mark.usefixtures("guarded")

RNG = np.random.default_rng(11)
TENSORS: dict[str, tuple[str, Any]] = {
    "f32": ("F32", RNG.standard_normal((5, 7)).astype(np.float32)),
    "f16": ("F16", RNG.standard_normal((3, 4, 2)).astype(np.float16)),
    "i8": ("I8", RNG.integers(-128, 128, (9,)).astype(np.int8)),
    "i16": ("I16", RNG.integers(-999, 999, (2, 2)).astype(np.int16)),
    "i32": ("I32", RNG.integers(-9999, 9999, (11,)).astype(np.int32)),
    "i64": ("I64", RNG.integers(-(2**40), 2**40, (3,)).astype(np.int64)),
    "bf16": ("BF16", RNG.integers(0, 2**15, (6,)).astype(np.uint16)),
    "scalar": ("F32", np.float32(2.5)),
    "nothing": ("F32", np.zeros((4, 0), np.float32)),
}


def header_of(tensors: dict[str, tuple[str, Any]], padding: int) -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    data = b""
    for name, (dtype, value) in tensors.items():
        content = np.asarray(value).tobytes()
        content += bytes(-len(content) % padding if padding > 1 else 0)
        size = np.asarray(value).nbytes
        header[name] = {
            "dtype": dtype,
            "shape": list(np.asarray(value).shape),
            "data_offsets": [len(data), len(data) + size],
        }
        data += content
        if len(content) > size:  # no gaps: what pads is a tensor
            header[f"{name}.pad"] = {
                "dtype": "I8",
                "shape": [len(content) - size],
                "data_offsets": [len(data) - len(content) + size, len(data)],
            }
    return header, data


def file_bytes(header: Any, data: bytes, start: int = 8) -> bytes:
    """Contents begin at a multiple of `start`, at an odd place for 1."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if start > 1:
        text += b" " * (-(8 + len(text)) % start)
    elif (8 + len(text)) % 2 == 0:
        text += b" "
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("start, padding", [(64, 64), (8, 8), (8, 1), (1, 1)])
@pytest.mark.parametrize("device", ["host", "cpu1"])
def test_load_then_use(
    daemon: Any, model_folder: Path, device: str, start: int, padding: int
) -> None:
    """Aligned files are used where they are mapped, others are copied; the values are the same."""
    header, data = header_of(TENSORS, padding)
    name = f"t-{start}-{padding}.safetensors"
    (model_folder / name).write_bytes(file_bytes(header, data, start))
    with headrace.connect(daemon.address) as client:
        weights = client.load(name, placement={"*": device})
        assert weights.info.source == "file" and weights.metadata_count == 0
        local = SafetensorsFile(model_folder / name)
        assert {n: t.type for n, t in weights.items()} == {n: t.type for n, t in local.items()}
        assert weights["f16"].shape == (3, 4, 2)
        (share,) = weights.devices
        assert share.device == device
        assert (share.held_bytes == 0) == (device == "host" and padding >= 8)
        g = headrace.Graph()
        for tensor in ("f32", "f16", "i32", "scalar", "bf16"):
            info = weights[tensor]
            g.output(g.cont(g.weight(tensor, info.shape, info.type)), tensor)
        result = client.submit(g, weights=[weights]).run()
        for tensor in ("f32", "f16", "i32", "scalar", "bf16"):
            want = np.asarray(TENSORS[tensor][1])
            assert np.asarray(result[tensor]).tobytes() == want.tobytes(), tensor
        again = client.load(name, placement={"*": device})
        assert again.already


def good() -> tuple[dict[str, Any], bytes]:
    return header_of({"a": TENSORS["f32"], "b": TENSORS["i8"]}, 1)


def changed(name: str, **members: Any) -> bytes:
    header, data = good()
    header[name] |= members
    return file_bytes(header, data)


HEADER, DATA = good()
BAD: dict[str, bytes] = {
    "empty": b"",
    "short": b"\x01\x02",
    "length 0": bytes(8) + DATA,
    "length 2^64-1": b"\xff" * 8 + json.dumps(HEADER).encode() + DATA,
    "length beyond": struct.pack("<Q", 10**6) + json.dumps(HEADER).encode() + DATA,
    "gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64),
    "no json": file_bytes(b"{" + b"\xff" * 40, DATA),
    "not ended": file_bytes(json.dumps(HEADER).encode()[:-1], DATA),
    "two": file_bytes(json.dumps(HEADER).encode() * 2, DATA),
    "list": file_bytes(b"[]", DATA),
    "deep": file_bytes(b'{"a":{"shape":' + b"[" * 100_000, DATA),
    "dtype": changed("a", dtype="F64"),
    "dtype none": changed("a", dtype=None),
    "negative": changed("a", shape=[-5, -7]),
    "fraction": changed("a", shape=[5.0, 7]),
    "huge": changed("a", shape=[2**62, 2**62]),
    "many dimensions": changed("a", shape=[1, 1, 1, 5, 7]),
    "backwards": changed("a", data_offsets=[140, 0]),
    "beyond": changed("b", data_offsets=[140, 2**63]),
    "wraps": changed("b", data_offsets=[2**64 - 1, 2**64 - 1]),
    "too few": changed("a", shape=[5, 6]),
    "overlap": changed("b", data_offsets=[100, 109]),
    "gap": changed("b", data_offsets=[141, 150]),
    "more": changed("a", strides=[1]),
    "cut": file_bytes(HEADER, DATA[:-1]),
    "left over": file_bytes(HEADER, DATA + b"x"),
    "twice": file_bytes(b'{"a":{"dtype":"I8","shape":[0],"data_offsets":[0,0]},'
                        b'"a":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}}', b""),
    "nothing": file_bytes({"__metadata__": {}}, b""),
    "metadata": file_bytes(HEADER | {"__metadata__": {"a": 1}}, DATA),
    "name": file_bytes({"a\x00b": HEADER["a"]} | {"b": HEADER["b"]}, DATA),
    "long name": file_bytes({"a" * 256: HEADER["a"]} | {"b": HEADER["b"]}, DATA),
}  # fmt: skip


def test_the_unchanged_one_is_taken(address: str, model_folder: Path) -> None:
    (model_folder / "good.safetensors").write_bytes(file_bytes(HEADER, DATA))
    with Conn(address) as conn:
        reply, metadata = conn.call(raw.LOAD, pb.WeightsLoad(path="good.safetensors"))
        assert (reply.set.tensors, reply.metadata_count, metadata) == (2, 0, b"")


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_none(address: str, model_folder: Path, kind: str) -> None:
    name = f"bad-{kind.replace(' ', '-').replace('^', '')}.safetensors"
    (model_folder / name).write_bytes(BAD[kind])
    with Conn(address) as conn:
        error = conn.fails(raw.LOAD, pb.WeightsLoad(path=name))
        assert error.code == INVALID, error
        assert error.reason in ("SAFETENSORS", "GGUF", "DTYPE", "SHAPE", "SIZE", "NAME"), error
        assert str(model_folder) not in error.words
        conn.ping()


def test_every_cut_of_a_small_file(daemon: Any, model_folder: Path) -> None:
    whole = file_bytes(HEADER, DATA)
    path = model_folder / "cut.safetensors"
    with Conn(daemon.address) as conn:
        for size in range(0, len(whole), 5):
            path.write_bytes(whole[:size])
            assert conn.fails(raw.LOAD, pb.WeightsLoad(path="cut.safetensors")).code == INVALID
        path.unlink()
        assert conn.fails(raw.LOAD, pb.WeightsLoad(path="cut.safetensors")).code == NOT_FOUND
