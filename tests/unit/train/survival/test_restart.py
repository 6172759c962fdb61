"""A restarted run goes on from what it saved; a first start does as it was told."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from megatron_tlm.comm.meeting import Meeting
from megatron_tlm.config.schema import CheckpointConfig, Config, ModelConfig
from megatron_tlm.train.survival.restart import after_restart, agreed_starts, starts_before

ALONE = Meeting(0, 1, timedelta(seconds=1))
MODEL = ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=2, seq_length=8, vocab_size=32)


def run(save: Path | None, **changes: object) -> Config:
    return Config(MODEL, checkpoint=CheckpointConfig(save=str(save) if save else None, **changes))  # type: ignore[arg-type]


def test_starts_are_those_of_torchrun_and_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert starts_before({}) == 0
    assert starts_before({"TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "1"}) == 3
    assert starts_before({"SLURM_RESTART_COUNT": ""}) == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "4")
    assert agreed_starts(ALONE) == 4


def test_a_first_start_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step-00000010").mkdir()
    config = run(tmp_path, load="elsewhere", finetune=True)
    assert after_restart(config, ALONE, 0) == (config, ())


def test_a_restart_goes_on_from_its_own_newest_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "step-00000010").mkdir()
    first = run(tmp_path, load="elsewhere", finetune=True, ckpt_step=3, no_load_optim=True, keep_last=2)
    config, told = after_restart(first, ALONE, 1)
    assert config == replace(first, checkpoint=CheckpointConfig(save=str(tmp_path), load=str(tmp_path), keep_last=2))
    assert told == (f"start 2 of this run: it goes on from {tmp_path}",)


def test_a_restart_without_a_checkpoint_of_its_own_begins_again_and_says_so(tmp_path: Path) -> None:
    (tmp_path / ".step-00000010.partial").mkdir()
    config = run(tmp_path, load="elsewhere")
    same, told = after_restart(config, ALONE, 2)
    assert same == config
    assert told == (f"start 3 of this run: {tmp_path} holds no checkpoint yet, so it begins as it did at first",)
    _, told = after_restart(run(None), ALONE, 1)
    assert told == ("start 2 of this run: nothing is saved without --save DIR, so it begins as it did at first",)
