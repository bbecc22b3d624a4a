"""Which tensors quantize converts, to what, and in how large pieces; without a daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace import cli
from headrace.handles import Limits
from headrace.types import TensorInfo, Type

pytest.importorskip("gguf")
from headrace.models.quantize import Choice, choose, fitting, piece_rows, replacing  # noqa: E402

WEIGHTS = [
    TensorInfo("token_embd.weight", Type.F16, (100, 512)),
    TensorInfo("blk.0.attn_norm.weight", Type.F32, (512,)),
    TensorInfo("blk.0.attn_q.weight", Type.F32, (64, 512)),
    TensorInfo("blk.0.attn_q.bias", Type.F32, (1, 64)),
    TensorInfo("blk.0.attn_k.weight", Type.Q8_0, (64, 96)),
    TensorInfo("blk.0.attn_v.weight", Type.F32, (64, 33)),
    TensorInfo("blk.0.ffn_gate_inp.weight", Type.F32, (8, 512)),
    TensorInfo("blk.0.ffn_up_exps.weight", Type.BF16, (8, 64, 256)),
    TensorInfo("table.weight", Type.I32, (8, 256)),
]


def targets(choices: list[Choice]) -> dict[str, Type]:
    """Types by name, of what changes."""
    return {c.target.name: c.target.type for c in choices if not c.kept}


def test_weights_of_two_dimensions_change_and_the_rest_is_kept() -> None:
    assert targets(choose(WEIGHTS, Type.Q4_K)) == {
        "token_embd.weight": Type.Q4_K,
        "blk.0.attn_q.weight": Type.Q4_K,
        "blk.0.attn_k.weight": Type.Q5_0,  # 96 is a multiple of 32 and not of 256
        "blk.0.attn_v.weight": Type.F16,  # 33 of neither
        "blk.0.ffn_up_exps.weight": Type.Q4_K,
    }
    assert all(c.source.shape == c.target.shape for c in choose(WEIGHTS, Type.Q4_K))


def test_a_tensor_that_has_the_type_is_kept() -> None:
    assert "blk.0.attn_k.weight" not in targets(choose(WEIGHTS, Type.Q8_0))


def test_patterns() -> None:
    found = targets(
        choose(
            WEIGHTS,
            Type.Q4_0,
            keep=["token_*", "*attn_v*"],
            types=[("*_norm.weight", Type.F16), ("*attn_?.weight", Type.Q6_K), ("*", Type.Q8_0)],
        )
    )
    assert found == {
        "blk.0.attn_norm.weight": Type.F16,
        "blk.0.attn_q.weight": Type.Q6_K,
        "blk.0.attn_q.bias": Type.Q8_0,
        "blk.0.ffn_gate_inp.weight": Type.Q8_0,
        "blk.0.ffn_up_exps.weight": Type.Q8_0,
    }  # attn_k falls back from q6_K to q8_0, which it is; a table of integers is never touched


@pytest.mark.parametrize("number", [Type.I32, Type.F64, Type.I8])
def test_numbers_are_no_type_of_weights(number: Type) -> None:
    with pytest.raises(ValueError):
        choose(WEIGHTS, number)
    with pytest.raises(ValueError):
        choose(WEIGHTS, Type.Q4_0, types=[("*", number)])


@pytest.mark.parametrize("number", [number for number in Type if number.is_block])
def test_every_type_finds_one_that_fits(number: Type) -> None:
    assert fitting(number, 256) is number
    for row in (1, 31, 32, 96, 320, 576):
        assert row % fitting(number, row).block_elements == 0


def limits(**changed: int) -> Limits:
    """A daemon's limits, all large but those."""
    return Limits(**({name: 1 << 40 for name in Limits.__dataclass_fields__} | changed))


def test_pieces_respect_the_daemons_limits() -> None:
    assert piece_rows(limits(), 1024) == 2048  # 8 MiB of f32
    assert piece_rows(limits(tensor_bytes_max=10 * 4096), 1024) == 10
    assert piece_rows(limits(run_bytes_max=3 * 4096 + 1), 1024) == 3
    assert piece_rows(limits(output_queue_bytes_max=8 * 4096), 1024) == 4
    assert piece_rows(limits(tensor_bytes_max=1), 1024) == 1


def test_nothing_appears_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    with pytest.raises(RuntimeError), replacing(path, False) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with replacing(path, False) as temporary:
        temporary.write_bytes(b"whole")
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"] and path.read_bytes() == b"whole"
    with pytest.raises(FileExistsError), replacing(path, False) as temporary:
        temporary.write_bytes(b"other")
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"] and path.read_bytes() == b"whole"
    with replacing(path, True) as temporary:
        temporary.write_bytes(b"other")
    assert path.read_bytes() == b"other"


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    for extra in (["q4_9"], ["q4_0", "--type", "q8_0"], ["q4_0", "--type", "*=what"]):
        with pytest.raises(SystemExit) as exit:
            cli.main(["quantize", str(source), str(target), *extra])
        assert exit.value.code == cli.USAGE
    arguments = ["quantize", str(source), str(target), "q4_0"]
    assert cli.main(arguments) == cli.BAD_FILE
    source.write_bytes(b"GGUF\x03")
    assert cli.main(arguments) == cli.BAD_FILE
    target.write_bytes(b"precious")
    assert cli.main(arguments) == cli.BAD_FILE
    assert "--force" in capsys.readouterr().err and target.read_bytes() == b"precious"
