"""Which checkpoint a run starts from, and the tokenizer that goes along."""

from pathlib import Path

import pytest

from megatron_tlm.config.schema import CheckpointConfig, Config, ModelConfig
from megatron_tlm.data.tokenizers import ByteTokenizer
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.train.saving.resume import Progress, damage, find_resume, saved_facts, tokenizer_file
from tests.unit.checkpoint.made import facts, flip, model_shape, save, values

SHAPE = model_shape(widths=(8,))
TENSORS = values(SHAPE)


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


def test_a_file_is_no_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"file is not a directory") as caught:
        find_resume(CheckpointConfig(load=str(tmp_path / "file"), allow_fresh_start=True), [])
    assert "--allow-fresh-start" not in str(caught.value)


def test_a_step_caught_while_being_replaced_is_no_fresh_start(tmp_path: Path) -> None:
    save(tmp_path, TENSORS, facts(SHAPE, step=5)).rename(tmp_path / ".step-00000005.replaced")
    found = find_resume(CheckpointConfig(load=str(tmp_path), allow_fresh_start=True), [])
    assert found == tmp_path / ".step-00000005.replaced"


def test_damage_is_found_once_and_passed_over_from_then_on(tmp_path: Path) -> None:
    former, newest = (save(tmp_path, TENSORS, facts(SHAPE, step=step)) for step in (5, 10))
    flip(newest / "part-00001.safetensors")
    config, told = CheckpointConfig(load=str(tmp_path)), []
    assert find_resume(config, told) == newest
    assert told == []
    fault = damage(newest, 0, 1)
    assert fault is not None
    assert "damaged since" in fault
    assert find_resume(config, told, {newest: fault}) == former
    assert told[0] == f"passed over step-00000010: {fault}"
    assert damage(former, 0, 1) is None


def test_another_model_is_refused_from_the_manifest_alone(tmp_path: Path) -> None:
    config = Config(ModelConfig(num_layers=1, hidden_size=8, num_attention_heads=4, seq_length=8, vocab_size=32))
    path = save(tmp_path, TENSORS, facts(SHAPE))
    (path / "part-00000.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"a checkpoint of another model: .*vocab_size = 37 \(not 32\)"):
        saved_facts(path, build_plan(config, 32))


def test_progress_counts_steps_samples_and_tokens() -> None:
    assert Progress().after_step(4, 64).after_step(4, 64) == Progress(2, 8, 128, 2)


def test_a_tokenizer_known_by_name_has_no_file() -> None:
    for tokenizer in (None, ByteTokenizer()):
        with tokenizer_file(tokenizer) as file:
            assert file is None
