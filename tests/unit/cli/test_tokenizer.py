"""`megatron-tlm tokenizer train`."""

from pathlib import Path

import pytest

from megatron_tlm.cli import tokenizer
from megatron_tlm.data.tokenizers import load_tokenizer
from megatron_tlm.errors import ConfigError, DataError


def test_trains_under_either_name_of_the_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one two three\n" * 50)
    for flag in ("--model-prefix", "--output-prefix"):
        prefix = tmp_path / flag[2:] / "tok"
        command = ["train", "--input", f"{tmp_path}/a.txt", flag, str(prefix), "--vocab-size", "280"]
        assert tokenizer.main(command) == 0
        told = capsys.readouterr()
        assert told.out == f"{prefix}.model\n"
        assert "bytes a token" in told.err
        assert load_tokenizer(None, f"{prefix}.model").vocab_size == 280


def test_a_vocabulary_too_large_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three\n" * 50)
    with pytest.raises(DataError, match="vocab_size = 9999 is too large"):
        tokenizer.main(
            ["train", "--input", f"{tmp_path}/a.txt", "--model-prefix", f"{tmp_path}/t", "--vocab-size=9999"]
        )


def test_a_coverage_that_sentencepiece_would_not_take_is_told_before_any_work() -> None:
    command = ["train", "--input", "a.txt", "--model-prefix", "t", "--vocab-size=300", "--character-coverage", "0.5"]
    with pytest.raises(ConfigError, match=r"--character-coverage = 0.5 lies outside 0.98..1; give one inside"):
        tokenizer.main(command)
