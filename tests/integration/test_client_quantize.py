"""headrace quantize through a real daemon: every type it can write, and a real model."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_tools import ONE, ROOT, Array, Daemon, nmse, random

from headrace.types import Type

gguf = pytest.importorskip("gguf")
pytest.importorskip("rich")

# The error, normalised and squared, that each type's rounding may make of normal numbers: a third
# above what a careful quantiser makes. The exact bytes are a matter of tests/golden.
ERROR = {
    "f32": 0.0, "f16": 6e-8, "bf16": 4e-6, "q8_0": 4e-5, "q6_K": 4e-4, "q5_K": 1.6e-3,
    "q5_1": 2e-3, "q5_0": 2.4e-3, "q4_K": 6.6e-3, "q4_1": 8.1e-3, "q4_0": 9.8e-3,
    "iq4_nl": 8.3e-3, "iq4_xs": 7.4e-3, "mxfp4": 1.7e-2, "nvfp4": 8.8e-3, "q3_K": 2.8e-2,
    "q2_K": 9.2e-2, "tq1_0": 0.25, "tq2_0": 0.25,
}  # fmt: skip
NOT_IN_THE_PACKAGE = ("q1_0", "q2_0")
"""Types the package cannot decode."""

ROWS, WIDE, NARROW = 48, 512, 96


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon with one device."""
    with Daemon(devices=ONE) as running:
        yield running


def values() -> dict[str, Array]:
    """The weights of the test's file."""
    return {
        "token_embd.weight": random(ROWS, WIDE, seed=1),
        "blk.0.attn_norm.weight": random(WIDE, seed=2),
        "blk.0.attn_q.weight": random(7, WIDE, seed=3),
        "blk.0.ffn_up_exps.weight": random(3, 5, WIDE, seed=4),
        "blk.0.attn_k.weight": random(ROWS, NARROW, seed=5),
        "blk.0.odd.weight": random(4, 33, seed=6),
        "output.weight": random(5000, WIDE, seed=7),  # more than one piece
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file with every kind of metadata."""
    path = tmp_path_factory.mktemp("quantize") / "source.gguf"
    kind = gguf.GGUFValueType
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_file_type(0)
    writer.add_uint8("a.u8", 7)
    writer.add_int64("a.i64", -(1 << 40))
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_string("a.text", "grüße")
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.texts", ["x", "", "yz"])
    writer.add_key_value("a.narrow", [1, 2, 3], kind.ARRAY, sub_type=kind.UINT16)
    for name, value in values().items():
        if name == "blk.0.attn_q.weight":
            writer.add_tensor(name, value.astype(np.float16))
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def headrace_command(daemon: Daemon, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command line."""
    path = os.pathsep.join(
        filter(None, (str(ROOT / "client/python"), os.environ.get("PYTHONPATH")))
    )
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *map(str, arguments)],
        env={**os.environ, "HEADRACE_ADDRESS": daemon.address, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def metadata(reader: Any) -> dict[str, tuple[Any, bytes]]:
    """Types and bytes of the key-value pairs, in order, without the file's type."""
    return {
        key: (field.types, b"".join(part.tobytes() for part in field.parts))
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.") and key != "general.file_type"
    }


def decoded(tensor: Any) -> Array:
    """A tensor's values by the package's own decoder."""
    got = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return np.asarray(got, np.float32).reshape(tuple(reversed(tensor.shape.tolist())))


@pytest.mark.parametrize("name", ERROR)
def test_every_type(daemon: Daemon, source: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target.gguf"
    done = headrace_command(daemon, "quantize", source, target, name)
    assert done.returncode == 0, done.stderr
    assert not done.stdout and "Writing" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["target.gguf"]
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(target)
    assert list(metadata(after).items()) == list(metadata(before).items())
    assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
    wanted = gguf.GGMLQuantizationType[name.upper()]
    file_type = gguf.LlamaFileType(after.fields["general.file_type"].contents())
    assert wanted.name in file_type.name
    block = Type[name.upper()].block_elements
    for tensor in after.tensors:
        value = values()[tensor.name]
        assert tuple(reversed(tensor.shape.tolist())) == value.shape
        if value.ndim == 1:
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
            assert (tensor.data == value).all()
            continue
        if value.shape[-1] % block == 0:
            assert tensor.tensor_type == wanted
            limit = ERROR[name]
        else:
            assert tensor.tensor_type != wanted
            limit = ERROR["f16"] if value.shape[-1] % 32 else ERROR["q4_0"]
        if tensor.name == "blk.0.attn_q.weight":  # f16 in the source
            limit = max(limit, ERROR["f16"])
        assert nmse(value, decoded(tensor)) <= limit, (tensor.name, tensor.tensor_type)


@pytest.mark.parametrize("name", NOT_IN_THE_PACKAGE)
def test_types_that_only_the_daemon_knows(
    daemon: Daemon, source: Path, tmp_path: Path, name: str
) -> None:
    there, back = tmp_path / "there.gguf", tmp_path / "back.gguf"
    assert headrace_command(daemon, "quantize", source, there, name).returncode == 0
    assert name in headrace_command(daemon, "inspect", there, "--no-tensors").stdout
    assert headrace_command(daemon, "quantize", there, back, "f32").returncode == 0
    shown = headrace_command(daemon, "inspect", there, "--tensor", "output.weight")
    assert shown.returncode == 4 and name in shown.stderr
    tensor = next(t for t in gguf.GGUFReader(back).tensors if t.name == "output.weight")
    value = values()["output.weight"]
    # Signs survive: one bit and two bits keep them where the value is not small.
    large = np.abs(value) > 1.5
    assert (np.sign(tensor.data[large]) == np.sign(value[large])).all()


@pytest.mark.parametrize("name", ["iq2_xxs", "iq1_s", "q8_K"])
def test_a_type_without_a_quantiser(
    daemon: Daemon, source: Path, tmp_path: Path, name: str
) -> None:
    done = headrace_command(daemon, "quantize", source, tmp_path / "t.gguf", name)
    assert done.returncode == 1 and name.lower() in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_block_types_are_a_source(daemon: Daemon, source: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    assert headrace_command(daemon, "quantize", source, first, "q8_0").returncode == 0
    done = headrace_command(
        daemon, "quantize", first, second, "q4_0", "--keep", "output*", "--type", "*norm*=f16"
    )
    assert done.returncode == 0 and "rounded before" in done.stderr, done.stderr
    kind = gguf.GGMLQuantizationType
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(second).tensors}
    original = {tensor.name: tensor for tensor in gguf.GGUFReader(first).tensors}
    assert tensors["output.weight"].tensor_type == kind.Q8_0
    assert (tensors["output.weight"].data == original["output.weight"].data).all()
    assert tensors["blk.0.attn_norm.weight"].tensor_type == kind.F16
    embedding = tensors["token_embd.weight"]
    assert embedding.tensor_type == kind.Q4_0
    # The package quantises what it decodes from the same bytes: the same blocks come out.
    want = gguf.quants.quantize(decoded(original["token_embd.weight"]), kind.Q4_0)
    assert (embedding.data == want).mean() > 0.999


def test_files_are_not_overwritten(daemon: Daemon, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(b"precious")
    refused = headrace_command(daemon, "quantize", source, target, "q8_0")
    assert refused.returncode == 4 and target.read_bytes() == b"precious"
    done = headrace_command(daemon, "quantize", source, target, "q8_0", "--force")
    assert done.returncode == 0 and "Writing" in done.stderr  # the bar
    assert target.read_bytes().startswith(b"GGUF")
    nowhere = headrace_command(daemon, "quantize", source, tmp_path / "no" / "x.gguf", "q8_0")
    assert nowhere.returncode == 4, nowhere.stderr


def test_values_are_shown(daemon: Daemon, source: Path) -> None:
    value = values()["output.weight"].astype(np.float64)  # several pieces: a bar on stderr
    shown = headrace_command(daemon, "inspect", source, "--tensor", "output.weight")
    assert shown.returncode == 0 and "output.weight" in shown.stderr
    assert (
        f"least {value.min():.6g}, greatest {value.max():.6g}, mean {value.mean():.6g}, "
        f"deviation {value.std():.6g}, zeros 0" in shown.stdout
    )
    whole = headrace_command(daemon, "inspect", source).stdout
    for expected in ("types: 6 f32 (", "1 f16 (", "a.text = 'grüße'", "(3, 5, 512)"):
        assert expected in whole, whole


def long_file(path: Path, megabytes: int) -> Path:
    """A GGUF file of one tensor of zeros that takes no room on the disk."""
    count = megabytes << 18
    name = b"zeros"
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name
    head += struct.pack("<IQIQ", 1, count, 0, 0)
    head += bytes(-len(head) % 32)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 4 * count)
    return path


def test_reading_a_long_file_shows_a_bar(daemon: Daemon, source: Path, tmp_path: Path) -> None:
    long = long_file(tmp_path / "long.gguf", 65)
    shown = headrace_command(daemon, "inspect", long)
    assert shown.returncode == 0, shown.stderr
    assert "Reading" in shown.stderr and "1 tensors" in shown.stdout
    short = headrace_command(daemon, "inspect", source)
    assert short.returncode == 0 and "Reading" not in short.stderr


@pytest.mark.parametrize("suffix", ["gguf", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + bytes(20), b"\xff" * 64, bytes(4096)])
def test_odd_files_are_refused_in_words(
    daemon: Daemon, tmp_path: Path, suffix: str, content: bytes
) -> None:
    odd = tmp_path / f"odd.{suffix}"
    odd.write_bytes(content)
    for command in (("inspect", odd), ("quantize", odd, tmp_path / "out.gguf", "q8_0")):
        done = headrace_command(daemon, *command)
        assert done.returncode == 4, (command, done)
        assert done.stderr.count(str(odd)) == 1, (command, done)
        assert "Traceback" not in done.stderr and not (tmp_path / "out.gguf").exists()


def test_files_that_cannot_be_opened_are_named_once(daemon: Daemon, tmp_path: Path) -> None:
    absent = tmp_path / "absent.gguf"
    for command in (
        ("inspect", absent),
        ("quantize", absent, tmp_path / "out.gguf", "q8_0"),
        ("history", "-o", absent / "history.json"),
    ):
        done = headrace_command(daemon, *command)
        assert done.returncode == 4 and done.stderr.count(str(absent)) == 1, (command, done)
        assert "Errno" not in done.stderr and "No such file" in done.stderr, (command, done)


def test_small_limits(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    sections: dict[str, dict[str, object]] = {"limits": {"tensor_bytes": 8192}}
    with Daemon(devices=ONE, sections=sections) as small:
        done = headrace_command(small, "quantize", source, target, "q4_1")
        assert done.returncode == 0, done.stderr
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    assert (
        nmse(values()["token_embd.weight"], decoded(tensors["token_embd.weight"])) <= ERROR["q4_1"]
    )


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def test_a_real_model_still_talks(tmp_path: Path) -> None:
    path = Path(os.environ.get("HEADRACE_TEST_MODEL") or CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not path.exists():
        pytest.skip(f"no {path}")
    with Daemon(devices=ONE, models=[tmp_path]) as daemon:
        done = headrace_command(daemon, "quantize", path, tmp_path / "model.gguf", "q8_0")
        assert done.returncode == 0, done.stderr
        text = headrace_command(
            daemon, "generate", "model.gguf", "--prompt", "The capital of France is",
            "--tokens", "12",
        )  # fmt: skip
        assert text.returncode == 0, text.stderr
        assert "Paris" in text.stdout
