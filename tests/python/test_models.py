"""GGUF metadata, tokenizers, sampling and the Llama graphs, without a model file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace import cli
from headrace.cli.arguments import layer_split
from headrace.models import llama
from headrace.models.gguf_file import GgufError, GgufFile, parse_metadata
from headrace.models.safetensors_file import SafetensorsError, SafetensorsFile
from headrace.models.sample import Sampler
from headrace.models.tokenizer import TextStream, Tokenizer, UnsupportedTokenizer, byte_alphabet
from headrace.types import TensorInfo, Type
from numpy_reference import Evaluator


def packed(text: str) -> bytes:
    """A GGUF string."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    """A key-value pair."""
    return packed(key) + struct.pack("<I", kind) + value


PAIRS = [
    pair("a.u8", 0, b"\x07"), pair("a.i32", 5, struct.pack("<i", -3)),
    pair("a.f32", 6, struct.pack("<f", 0.5)), pair("a.yes", 7, b"\x01"),
    pair("a.text", 8, packed("grüße")), pair("a.u64", 10, struct.pack("<Q", 1 << 40)),
    pair("a.f64", 12, struct.pack("<d", 0.1)),
    pair("a.ints", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
    pair("a.texts", 9, struct.pack("<IQ", 8, 2) + packed("x") + packed("")),
]  # fmt: skip


def test_metadata() -> None:
    raw = b"".join(PAIRS)
    m = parse_metadata(raw, len(PAIRS))
    assert (m["a.u8"], m["a.i32"], m["a.f32"], m["a.yes"]) == (7, -3, 0.5, True)
    assert (m["a.text"], m["a.u64"], m["a.f64"]) == ("grüße", 1 << 40, 0.1)
    assert m["a.ints"].tolist() == [1, -2, 3] and m["a.texts"] == ["x", ""]


def test_every_truncation_of_metadata_is_refused() -> None:
    raw = b"".join(PAIRS)
    for length in range(len(raw)):
        with pytest.raises(GgufError):
            parse_metadata(raw[:length], len(PAIRS))
    for bad in (
        pair("k", 13, b""),
        pair("k", 9, struct.pack("<IQ", 5, 1 << 60)),
        pair("k", 9, struct.pack("<IQ", 8, 1 << 60)),
        struct.pack("<Q", 1 << 63),
    ):
        with pytest.raises(GgufError):
            parse_metadata(bad, 1)


def gguf_bytes(tensors: dict[str, tuple[Type, tuple[int, ...], bytes]]) -> bytes:
    """A small file."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(PAIRS)) + b"".join(PAIRS)
    data = b""
    for name, (number, shape, raw) in tensors.items():
        head += packed(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack(
            "<IQ", number, len(data)
        )
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def test_file_and_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / "m.gguf"
    path.write_bytes(
        gguf_bytes({"w": (Type.F32, (2, 3), values.tobytes()), "q": (Type.Q4_0, (32,), bytes(18))})
    )
    file = GgufFile(path)
    assert file["w"] == TensorInfo("w", Type.F32, (2, 3)) and list(file) == ["w", "q"]
    assert (file.read("w").view(np.float32) == values).all() and file.read("q").shape == (18,)
    assert cli.main(["inspect", str(path), "--tensors"]) == 0
    out = capsys.readouterr().out
    assert "a.text = 'grüße'" in out and "q4_0" in out and "(2, 3)" in out
    assert cli.main(["inspect", str(path), "--tensor", "w"]) == 0
    assert "mean 2.5" in capsys.readouterr().out
    assert cli.main(["inspect", str(path), "--tensor", "nothing"]) == cli.BAD_FILE
    assert cli.main(["inspect", str(tmp_path / "none")]) == cli.BAD_FILE
    path.write_bytes(b"GGUF\x03")
    assert cli.main(["inspect", str(path)]) == cli.BAD_FILE


def test_cut_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the daemon does not load is not inspected as if it were whole, whatever lacks."""
    path = tmp_path / "cut.gguf"
    whole = gguf_bytes({"w": (Type.F32, (3,), bytes(12)), "q": (Type.Q4_0, (32,), b"q" * 18)})
    end = whole.rindex(b"q" * 18) + 18
    for size in range(1, end):
        path.write_bytes(whole[:size])
        with pytest.raises(GgufError):
            GgufFile(path)
    assert cli.main(["inspect", str(path)]) == cli.BAD_FILE
    said = capsys.readouterr()
    assert "q ends at byte" in said.err and not said.out
    path.write_bytes(whole[:end])
    assert cli.main(["inspect", str(path)]) == 0


@pytest.mark.parametrize(
    ("places", "words"),
    [((0, 33), "not aligned to 32"), ((32, 0), "precedes"), ((0, 0), "precedes")],
)
def test_contents_that_lie_wrong(tmp_path: Path, places: tuple[int, int], words: str) -> None:
    """Offsets are as the daemon wants them: aligned, one behind the other."""
    path = tmp_path / "places.gguf"
    whole = bytearray(gguf_bytes({n: (Type.F32, (2,), bytes(8)) for n in ("first", "second")}))
    for name, place in zip((b"first", b"second"), places, strict=True):
        at = whole.index(name) + len(name) + 4 + 8 + 4  # dimensions, one extent, type
        whole[at : at + 8] = struct.pack("<Q", place)
    path.write_bytes(whole)
    with pytest.raises(GgufError, match=words):
        GgufFile(path)


def test_names_are_there_once(tmp_path: Path) -> None:
    """Of two tensors, or two keys, of one name only one could be found."""
    path = tmp_path / "twice.gguf"
    whole = gguf_bytes({n: (Type.F32, (2,), bytes(8)) for n in ("one", "two")})
    path.write_bytes(whole.replace(b"two", b"one"))
    with pytest.raises(GgufError, match="one occurs twice"):
        GgufFile(path)
    one = pair("k", 4, struct.pack("<I", 7))
    assert parse_metadata(one, 1) == {"k": 7}
    with pytest.raises(GgufError, match="k occurs twice"):
        parse_metadata(one * 2, 2)


def safetensors_bytes(header: object, data: bytes) -> bytes:
    """A small file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_safetensors_and_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / "m.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [2, 26]},
        "h": {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]},
    }
    path.write_bytes(safetensors_bytes(header, bytes(2) + values.tobytes()))
    file = SafetensorsFile(path)
    assert file["w"] == TensorInfo("w", Type.F32, (2, 3)) and list(file) == ["w", "h"]
    assert file.metadata == {"format": "pt"}
    assert (np.frombuffer(file.read("w").tobytes(), np.float32) == values.ravel()).all()
    assert file.read("h").shape == (2,)
    assert cli.main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "safetensors, 2 tensors" in out and "format = 'pt'" in out and "(2, 3)" in out
    assert cli.main(["inspect", str(path), "--tensor", "w"]) == 0
    assert "mean 2.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":1}',
        b'{"a":{"dtype":"F32","shape":[1]}}',
        b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
        b'{"a":{},"a":{}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},'
        b'"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"__metadata__":3}',
        b"[" * 100_000,
    ],
)
def test_safetensors_that_are_none(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(safetensors_bytes(header, bytes(8)))
    with pytest.raises(SafetensorsError):
        SafetensorsFile(path)
    assert cli.main(["inspect", str(path)]) == cli.BAD_FILE
    path.write_bytes(path.read_bytes()[:7])
    assert cli.main(["inspect", str(path)]) == cli.BAD_FILE


def test_command_line_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = ["--connect", f"unix:{tmp_path}/nobody"]
    assert cli.main(["devices", *nobody]) == cli.NO_DAEMON
    assert cli.main([*nobody, "devices"]) == cli.NO_DAEMON
    for model in (["m.gguf"], ["--model", "m.gguf"]):
        assert cli.main(["generate", *model, "--prompt", "p", *nobody]) == cli.NO_DAEMON
    assert cli.main(["stats", "--connect", "http://x"]) == cli.USAGE
    assert layer_split("cpu0:15,cpu1:3") == {"cpu0": 15, "cpu1": 3}
    for bad in (
        ["generate"],
        ["nothing"],
        ["generate", "m", "--model", "m", "--prompt", "p"],
        ["generate", "--model", "m", "--prompt", "p", "--tokens", "0"],
        ["generate", "--model", "m", "--prompt", "p", "--devices", "a:x"],
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(bad)
        assert caught.value.code == cli.USAGE
    capsys.readouterr()


# ---- tokenizers ----------------------------------------------------------------------------------


def byte_pairs(**extra: Any) -> Tokenizer:
    """A vocabulary of all bytes, a few merges and two special tokens."""
    tokens = list(byte_alphabet().values())
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3"]
    tokens += [merge.replace(" ", "") for merge in merges] + ["<|im_start|>", "<|im_end|>"]
    types = [1] * (len(tokens) - 2) + [3, 3]
    return Tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.eos_token_id": len(tokens) - 1,
            "tokenizer.ggml.bos_token_id": len(tokens) - 2,
            **extra,
        }
    )


def shown(tokenizer: Tokenizer, text: str, **options: Any) -> list[str]:
    """Tokens as the vocabulary writes them."""
    return [tokenizer.tokens[i] for i in tokenizer.encode(text, **options)]


def test_byte_pairs() -> None:
    t = byte_pairs()
    assert shown(t, "hello w123") == ["hello", "Ġw", "123"]
    smollm = byte_pairs(**{"tokenizer.ggml.pre": "smollm"})
    assert shown(smollm, "hello w123") == ["hello", "Ġw", "1", "2", "3"]
    assert shown(t, "<|im_start|>hello<|im_end|>") == ["<|im_start|>", "hello", "<|im_end|>"]
    assert len(t.encode("<|im_start|>", special=False)) > 1
    assert shown(t, "h", bos=True) == ["<|im_start|>", "h"]
    for text in ("", "grüße 日本 😀\n\t x  ", "hello"):
        assert t.decode(t.encode(text)) == text
    assert t.decode(t.encode("a<|im_end|>")) == "a"
    assert t.decode(t.encode("a<|im_end|>"), special=True) == "a<|im_end|>"
    assert t.ends == {len(t.tokens) - 1}


def test_text_stream_gives_whole_characters() -> None:
    t = byte_pairs()
    stream = TextStream(t)
    pieces = [stream.push(token) for token in t.encode("ü😀")]
    assert pieces == ["", "ü", "", "", "", "😀"] and stream.close() == ""
    stream.push(t.encode("ü")[0])
    assert stream.close() == "\ufffd"


def test_sentence_pieces() -> None:
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        "\u2581",
        "h",
        "i",
        "hi",
        "\u2581hi",
        "\u2581h",
    ]
    types = [2, 3, 3, *[6] * 256, *[1] * 6]
    scores = [0.0] * 259 + [-5.0, -6.0, -7.0, -1.0, -2.0, -3.0]
    meta = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    t = Tokenizer(meta)
    assert shown(t, "hi") == ["<s>", "\u2581hi"]
    assert shown(t, "hih", bos=False) == ["\u2581hi", "h"]
    assert shown(t, "ü", bos=False) == ["\u2581", "<0xC3>", "<0xBC>"]
    assert t.decode(t.encode("hi ü")) == " hi ü"


def test_chat_template() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    t = byte_pairs(**{"tokenizer.chat_template": template})
    assert (
        t.chat([{"role": "user", "content": "hello"}])
        == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(UnsupportedTokenizer):
        byte_pairs().chat([])
    with pytest.raises(Exception):  # noqa: B017 - whatever the sandbox calls it
        byte_pairs(**{"tokenizer.chat_template": "{{ ''.__class__.__mro__ }}"}).chat([])
    for bad in ({"tokenizer.ggml.model": "bert"}, {"tokenizer.ggml.pre": "unheard-of"}):
        with pytest.raises(UnsupportedTokenizer):
            byte_pairs(**bad)


# ---- sampling ------------------------------------------------------------------------------------


def test_sampler() -> None:
    logits = np.log(np.array([0.1, 0.5, 0.2, 0.15, 0.05], np.float32))
    assert Sampler()(logits) == 1

    def count(**options: Any) -> list[float]:
        sampler = Sampler(seed=3, **options)
        drawn = np.bincount([sampler(logits) for _ in range(4000)], minlength=5)
        return [float(n) for n in drawn / 4000]

    assert np.allclose(count(temperature=1.0), [0.1, 0.5, 0.2, 0.15, 0.05], atol=0.03)
    assert np.allclose(count(temperature=1.0, top_k=2), [0, 5 / 7, 2 / 7, 0, 0], atol=0.03)
    assert np.allclose(count(temperature=1.0, top_p=0.69), [0, 5 / 7, 2 / 7, 0, 0], atol=0.03)
    assert count(temperature=1.0, top_p=0.5)[1] == 1
    assert count(temperature=0.01)[1] == 1
    assert count(temperature=0.7) == count(temperature=0.7)
    for bad in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}):
        with pytest.raises(ValueError):
            Sampler(**bad)


# ---- Llama graphs --------------------------------------------------------------------------------


def tiny(architecture: str = "llama", **extra: Any) -> tuple[llama.LlamaConfig, dict[str, Any]]:
    """A two-layer model with random f32 weights."""
    prefix = architecture
    config = llama.LlamaConfig.from_metadata(
        {
            "general.architecture": architecture,
            f"{prefix}.block_count": 2,
            f"{prefix}.embedding_length": 32,
            f"{prefix}.attention.head_count": 4,
            f"{prefix}.attention.head_count_kv": 2,
            f"{prefix}.context_length": 512,
            f"{prefix}.attention.layer_norm_rms_epsilon": 1e-5,
            **extra,
        }
    )
    rng = np.random.default_rng(11)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (50, 32),
        "output_norm.weight": (32,),
    }
    for i in range(2):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (32,),
            f"blk.{i}.ffn_norm.weight": (32,),
            f"blk.{i}.attn_q.weight": (32, 32),
            f"blk.{i}.attn_k.weight": (16, 32),
            f"blk.{i}.attn_v.weight": (16, 32),
            f"blk.{i}.attn_output.weight": (32, 32),
            f"blk.{i}.ffn_up.weight": (64, 32),
            f"blk.{i}.ffn_gate.weight": (64, 32),
            f"blk.{i}.ffn_down.weight": (32, 64),
        }
        if architecture == "qwen2":
            shapes |= {
                f"blk.{i}.attn_q.bias": (32,),
                f"blk.{i}.attn_k.bias": (16,),
                f"blk.{i}.attn_v.bias": (16,),
            }
    return config, {
        name: rng.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()
    }


class Tiny:
    """Evaluates the tiny model with numpy through its graphs."""

    def __init__(self, architecture: str = "llama", flash: bool = True, **extra: Any) -> None:
        self.config, self.weights = tiny(architecture, **extra)
        self.infos = {n: TensorInfo(n, Type.F32, w.shape) for n, w in self.weights.items()}
        self.state = {
            name: np.zeros(shape, np.float16)
            for name, (_, shape) in llama.kv_state(self.config, 512).items()
        }
        self.flash = flash
        self.past = 0

    def __call__(self, tokens: list[int]) -> Any:
        """Logits of the last token."""
        n, past = len(tokens), self.past
        n_kv = llama.padded_kv(past + n, 512)
        built = llama.LlamaGraph(
            self.config, self.infos, n_tokens=n, n_kv=n_kv, n_ctx=512, flash=self.flash
        )
        cells = np.arange(past, past + n)
        mask = np.where(np.arange(n_kv) <= cells[:, None], 0, -np.inf).astype(np.float16)
        inputs = {
            "tokens": np.array(tokens, np.int32),
            "positions": cells.astype(np.int32),
            "cells": cells,
            "mask": mask,
            "outputs": np.array([n - 1], np.int32),
        }
        assert {t.name for t in built.graph.inputs} <= set(inputs)
        (logits,) = Evaluator(built.graph.encode(), self.weights, self.state).run(inputs)
        self.past += n
        return logits.reshape(-1)


def test_prefill_equals_step_by_step() -> None:
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    whole = Tiny()(tokens)
    stepwise = Tiny()
    for token in tokens:
        logits = stepwise(token if isinstance(token, list) else [token])
    assert np.allclose(whole, logits, atol=2e-3)
    chunked = Tiny()
    chunked(tokens[:3])
    assert np.allclose(whole, chunked(tokens[3:]), atol=2e-3)


def test_plain_attention_equals_flash() -> None:
    tokens = [7, 7, 0, 49]
    assert np.allclose(Tiny()(tokens), Tiny(flash=False)(tokens), atol=1e-3)


def test_families_differ_as_they_should() -> None:
    tokens = [1, 2, 3, 4]
    base = Tiny()(tokens)
    assert not np.allclose(base, Tiny("qwen2")(tokens), atol=1e-2)
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    scaled = Tiny(**linear)
    assert scaled.config.rope_scale == 0.25
    assert not np.allclose(base, scaled(tokens), atol=1e-3)
    with pytest.raises(llama.UnsupportedModel):
        tiny("bert")
    with pytest.raises(llama.UnsupportedModel):
        tiny(**{"llama.expert_count": 8})
    config, weights = tiny()
    infos = {n: TensorInfo(n, Type.F32, w.shape) for n, w in weights.items()}
    infos.pop("blk.1.ffn_up.weight")
    with pytest.raises(llama.UnsupportedModel):
        llama.LlamaGraph(config, infos, n_tokens=1, n_kv=256, n_ctx=512)


def test_topology_is_the_same_from_token_to_token() -> None:
    config, weights = tiny()
    infos = {n: TensorInfo(n, Type.F32, w.shape) for n, w in weights.items()}
    assert [llama.padded_kv(n, 600) for n in (1, 256, 257, 512, 513)] == [256, 256, 512, 512, 600]
    one, other = (
        llama.LlamaGraph(config, infos, n_tokens=1, n_kv=256, n_ctx=512).graph for _ in range(2)
    )
    assert one.encode() == other.encode()


def test_layer_placement() -> None:
    from fnmatch import fnmatchcase

    rules = llama.layer_placement(None, {"a": 1, "b": 10, "c": 0})

    def device(name: str) -> str:
        return next(device for pattern, device in rules if fnmatchcase(name, pattern))

    assert [device(f"blk.{i}.ffn_up.weight") for i in (0, 1, 10, 11, 99)] == list("abbcc")
    assert device("kv.0.k") == "a" and device("kv.11.v") == "c"
    assert device("token_embd.weight") == "a" and device("output_norm.weight") == "c"
    config, _ = tiny()  # of two layers
    rules = llama.layer_placement(config, {"a": 15, "b": 15})
    assert (device("blk.0.attn_q.weight"), device("kv.1.k")) == ("a", "b")
    for bad in ({}, {"a": 0}, {"a": -1, "b": 9}):
        with pytest.raises(ValueError):
            llama.layer_placement(config, bad)
