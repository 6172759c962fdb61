"""`novelty`: a table, JSON and a picture of a checkpoint, and the same numbers from its Hugging Face export."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.cli.main import main
from megatron_tlm.errors import ConfigError


def measure(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["novelty", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_checkpoint_its_picture_and_its_export(
    checkpoint: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ["--data-path", str(corpus), "--num-tokens", "320", "--seq-length", "16"]
    ours = measure(["--load", str(checkpoint), *text, "--plot", str(tmp_path / "n.svg")], capsys)
    assert ours["num_tokens"] == 320
    assert (tmp_path / "n.svg").stat().st_size > 1000
    pytest.importorskip("transformers")
    assert main(["export", "--format", "hf", "--load", str(checkpoint), "--output", str(tmp_path / "hf")]) == 0
    capsys.readouterr()
    theirs = measure(["--hugging-face", str(tmp_path / "hf"), "--trust-remote-code", *text], capsys)
    for name in ("rho_block", "rho_mlp", "pearson_mlp"):
        assert theirs[name] == pytest.approx(ours[name], abs=1e-5)


def test_the_table(checkpoint: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["novelty", "--load", str(checkpoint), "--data-path", str(corpus), "--num-tokens", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["layer", "rho_block", "rho_mlp"]
    # Two points always lie on a line.
    assert lines[-1] == "r with depth: rho_block none, rho_mlp none; 3 layers are the fewest that have one"


def test_a_text_is_read_by_the_checkpoints_tokenizer(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "some words to read"}\n{"text": "and some more"}\n')
    words = ["--load", str(checkpoint), "--text", str(tmp_path / "a.jsonl"), "--seq-length", "8"]
    assert measure(words, capsys)["num_tokens"] == 32


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trust-remote-code"], "--trust-remote-code = true does nothing with --load"),
        (
            ["--plot", "o.xyz"],
            r"--plot = o.xyz cannot be written: '.xyz' is none of the endings .png, .svg, .pdf; give a",
        ),
        (["--json", "."], "--json = . cannot be written: it is a folder; give a file in a folder that is there"),
        (["--json-key", "text"], "--json-key = text does nothing without --text; leave it out"),
        (["--num-tokens", "0"], "--num-tokens = 0 is below 1"),
        (["--seq-length", "4096"], "--seq-length = 4096 exceeds the model's max_position_embeddings = 32"),
    ],
)
def test_mistakes_are_told(flags: list[str], message: str, checkpoint: Path, corpus: Path) -> None:
    from megatron_tlm.cli.novelty import main as novelty

    with pytest.raises(ConfigError, match=message):
        novelty(["--load", str(checkpoint), "--data-path", str(corpus), *flags])


def test_flags_of_a_checkpoint_mean_nothing_to_a_hugging_face_model() -> None:
    from megatron_tlm.cli.novelty import main as novelty

    with pytest.raises(
        ConfigError, match="--ckpt-step, --no-check-hashes do nothing with --hugging-face; leave them out"
    ):
        novelty(["--hugging-face", "there", "--text", "a.txt", "--no-check-hashes"])
    with pytest.raises(ConfigError, match="runs on one process, not on tensor 1 x pipeline 2; leave the flags of a"):
        novelty(["--hugging-face", "there", "--text", "a.txt", "--pipeline-model-parallel-size", "2"])
