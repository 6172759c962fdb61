"""`generate`: text as it comes, whole characters only."""

import io
from pathlib import Path

import pytest

from megatron_tlm.cli.generate import decoded
from megatron_tlm.cli.main import main
from megatron_tlm.data.tokenizers import ByteTokenizer
from tests.unit.cli.conftest import damage, save_tiny, tiny_config


def generate(checkpoint: Path, *words: str) -> list[str]:
    return ["generate", "--load", str(checkpoint), "--max-new-tokens", "8", *words]


def test_a_character_waits_for_all_its_bytes() -> None:
    tokenizer = ByteTokenizer()
    pieces = list(decoded(tokenizer.encode("a€ä"), tokenizer.encode("x"), tokenizer))
    assert pieces == ["a", "€", "ä", ""]


def test_what_never_becomes_a_character_is_shown_at_the_end() -> None:
    tokenizer = ByteTokenizer()
    assert "".join(decoded(tokenizer.encode("a€")[:-1], tokenizer.encode("x"), tokenizer)) == "a\ufffd"


def test_the_prompt_is_continued(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(generate(checkpoint, "--prompt", "wide", "--greedy")) == 0
    first = capsys.readouterr().out
    assert first.startswith("wide")
    assert first.endswith("\n")
    assert main(generate(checkpoint, "--prompt", "wide", "--temperature", "0", "--no-echo")) == 0
    assert f"wide{capsys.readouterr().out}" == first


def test_a_seed_decides_the_text(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        assert main(generate(checkpoint, "--prompt", "w", "--seed", seed, "--temperature", "3", "--top-k", "90")) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_a_prompt_can_come_through_a_pipe_or_be_empty(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("wide"))
    assert main(generate(checkpoint, "--prompt", "-", "--greedy")) == 0
    assert capsys.readouterr().out.startswith("wide")
    assert main(generate(checkpoint, "--prompt", "", "--greedy")) == 0


@pytest.mark.parametrize(
    ("errors", "told"), [("strict", "byte 1 of standard input"), ("surrogateescape", "holds bytes")]
)
def test_a_prompt_of_other_bytes_is_told(
    errors: str, told: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="utf-8", errors=errors))
    assert main(generate(checkpoint, "--prompt", "-")) == 2
    assert told in capsys.readouterr().err


def test_new_tokens_end_where_the_model_does(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(generate(checkpoint, "--prompt", "x" * 30)) == 0
    assert "--max-new-tokens = 8 is cut to 2: the model was made for 32 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt", "x" * 32], "--prompt = 32 tokens fills the model's max_position_embeddings = 32"),
        (["--prompt", "x", "--top-p", "0"], "top_p = 0 lies outside (0, 1]"),
        (["--prompt", "x", "--temperature", "1e-320"], "is below 1e-06 and not 0; give 0 for greedy"),
        (["--prompt", "x", "--seed", str(10**30)], f"seed = {10**30} lies outside 0..{2**64 - 1}; give a smaller"),
        (["--prompt", "x", "--top-k", "-1"], "--top-k = -1 is below 0"),
        (["--prompt", "x", "--temperature", "hot"], "--temperature = 'hot' is not a finite number"),
        (["--prompt", "x", "--greedy", "--temperature", "2"], "--temperature: not allowed with argument --greedy"),
        (["--greedy"], "the following arguments are required: --prompt"),
        (["--promt", "x"], "required: --prompt"),
    ],
)
def test_a_mistake_is_told(
    flags: list[str], message: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(generate(checkpoint, *flags)) == 2
    assert message in capsys.readouterr().err


def test_a_run_without_tokenizer_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path, tiny_config(mock_data=True))
    assert main(generate(tmp_path, "--prompt", "x")) == 2
    assert "which was trained without a tokenizer; give the --load of a run that had one" in capsys.readouterr().err


def test_hashes_are_checked_unless_not_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path, tiny_config(tokenizer_type="ByteTokenizer"))
    damage(tmp_path)
    assert main(generate(tmp_path, "--prompt", "wide")) == 2
    assert "the file was damaged since" in capsys.readouterr().err
    assert main(generate(tmp_path, "--prompt", "wide", "--no-check-hashes")) == 0
