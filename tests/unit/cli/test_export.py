"""`export` end to end: a run's folder in, a directory that transformers loads out."""

import json
from pathlib import Path

import pytest
import torch

from megatron_tlm.cli.export import parse_size
from megatron_tlm.cli.main import main
from megatron_tlm.data.tokenizers import SentencePieceTokenizer
from megatron_tlm.errors import ConfigError
from tests.unit.export.texts import TEXTS, train_like
from tests.unit.export.trained import logits_of, save_model, small_config

transformers = pytest.importorskip("transformers")


def export(tmp_path: Path, *flags: str) -> int:
    return main(
        ["export", "--format", "hf", "--load", str(tmp_path / "ck"), "--save-dir", str(tmp_path / "hf"), *flags]
    )


def test_model_and_tokenizer_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = train_like("ours", tmp_path)
    vocab = SentencePieceTokenizer(file).vocab_size
    _, stage, plan = save_model(tmp_path / "ck", small_config(schedule="uniform"), vocab=vocab, tokenizer=file)
    assert export(tmp_path, "--max-shard-size", "100kB") == 0
    out, err = capsys.readouterr()
    assert f"target  {tmp_path / 'hf'}: plain, " in out
    assert "tokenizer.json" in out
    assert err == ""
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")(TEXTS[0], return_tensors="pt").input_ids
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, logits_of(stage, plan, ids), rtol=1e-5, atol=1e-5)
    assert model.generation_config.eos_token_id == model.config.eos_token_id == 2


def test_flavour_and_dtype_are_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tmp_path / "ck", small_config(tokenizer_type="ByteTokenizer"), vocab=257)
    assert export(tmp_path, "--flavour", "padded", "--dtype", "bfloat16") == 0
    assert "note    padding every MLP to 192 adds" in capsys.readouterr().out
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["architectures"], config["torch_dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert (config["bos_token_id"], config["eos_token_id"]) == (None, 256)


def test_a_model_without_a_tokenizer_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tmp_path / "ck", small_config())
    assert export(tmp_path) == 0
    assert "note: no tokenizer was saved with this checkpoint" in capsys.readouterr().err
    assert not list((tmp_path / "hf").glob("tokenizer*"))
    assert "No tokenizer was saved with this model" in (tmp_path / "hf" / "README.md").read_text()


def test_an_unknown_format_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--format", "onnx", "--load", "x", "--save-dir", "y"]) == 2
    assert "--format: invalid choice: 'onnx'" in capsys.readouterr().err


def test_sizes() -> None:
    assert [parse_size(text, "--x") for text in ("5GB", "500MB", "7k", "12")] == [5 * 10**9, 500 * 10**6, 7000, 12]
    for text in ("0", "5TB", "-1", "GB"):
        with pytest.raises(ConfigError, match=r"--x = .* is not a size; give one such as 5GB"):
            parse_size(text, "--x")


def test_a_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = train_like("ours", tmp_path)
    save_model(tmp_path / "ck", small_config(), vocab=SentencePieceTokenizer(file).vocab_size, tokenizer=file)
    flags = ["export", "--format", "gguf", "--load", str(tmp_path / "ck"), "--output", str(tmp_path / "m.gguf")]
    assert main([*flags, "--dtype", "float16"]) == 0
    assert f"target  {tmp_path / 'm.gguf'}: deci, " in capsys.readouterr().out
    assert (tmp_path / "m.gguf").read_bytes().startswith(b"GGUF\x03\0\0\0")
    assert main([*flags, "--flavour", "padded"]) == 2
    assert "--flavour = padded is of --format hf alone" in capsys.readouterr().err
