"""Which checkpoint a run starts from, and the tokenizer that goes along."""

from pathlib import Path

import pytest

from megatron_tlm.config.schema import CheckpointConfig
from megatron_tlm.data.tokenizers import ByteTokenizer
from megatron_tlm.errors import CheckpointError
from megatron_tlm.train.saving import Progress, find_resume, tokenizer_file


def test_without_load_a_run_starts_from_scratch() -> None:
    assert find_resume(CheckpointConfig(save="ck"), []) is None


def test_load_of_nothing_is_refused_with_the_way_out(tmp_path: Path) -> None:
    config = CheckpointConfig(load=str(tmp_path / "absent"))
    with pytest.raises(CheckpointError, match=r"not a directory, .* --allow-fresh-start starts from scratch"):
        find_resume(config, [])


def test_a_first_start_may_be_allowed(tmp_path: Path) -> None:
    told: list[str] = []
    config = CheckpointConfig(load=str(tmp_path / "absent"), allow_fresh_start=True)
    assert find_resume(config, told) is None
    assert told == [f"{tmp_path / 'absent'} holds no checkpoint yet: starting from scratch"]


def test_a_damaged_checkpoint_is_no_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "step-00000003").mkdir()
    with pytest.raises(CheckpointError, match="no complete checkpoint") as caught:
        find_resume(CheckpointConfig(load=str(tmp_path), allow_fresh_start=True), [])
    assert "--allow-fresh-start" not in str(caught.value)


def test_progress_counts_steps_samples_and_tokens() -> None:
    assert Progress().after_step(4, 64).after_step(4, 64) == Progress(2, 8, 128, 2)


def test_a_tokenizer_known_by_name_has_no_file() -> None:
    for tokenizer in (None, ByteTokenizer()):
        with tokenizer_file(tokenizer) as file:
            assert file is None
