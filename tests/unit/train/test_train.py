"""What a run refuses, or settles, before any rank talks to another."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_tlm.config.schema import CheckpointConfig, Config, DataConfig, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.errors import CheckpointError, ConfigError
from megatron_tlm.train.train import prepare

CONFIG = Config(
    ModelConfig(num_layers=2, hidden_size=32, num_attention_heads=2, seq_length=8, vocab_size=300),
    training=TrainingConfig(global_batch_size=4, train_samples=43),
    data=DataConfig(mock_data=True),
)


def test_samples_become_steps_and_ranks_a_plan() -> None:
    config = replace(CONFIG, parallel=ParallelConfig(tensor_model_parallel_size=2))
    prepared = prepare(config, world_size=4)
    assert prepared.train_steps == 10
    assert (prepared.plan.grid.tensor, prepared.plan.grid.data, prepared.plan.micro_batches) == (2, 2, 2)
    assert prepared.schedule.decay_steps == 10
    assert prepared.source is None


def test_the_tokenizer_gives_the_vocabulary() -> None:
    config = replace(
        CONFIG,
        model=replace(CONFIG.model, vocab_size=None),
        data=DataConfig(mock_data=True, tokenizer_type="ByteTokenizer"),
    )
    assert prepare(config, 1).plan.shape.vocab_size == 257


def test_a_tokenizer_with_more_ids_than_the_model_is_refused() -> None:
    config = replace(
        CONFIG,
        model=replace(CONFIG.model, vocab_size=200),
        data=DataConfig(mock_data=True, tokenizer_type="ByteTokenizer"),
    )
    with pytest.raises(ConfigError, match=r"vocab_size = 200 is below the tokenizer's 257 ids; leave --vocab-size out"):
        prepare(config, 1)


def test_a_missing_checkpoint_is_told_before_any_rank_waits(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--allow-fresh-start"):
        prepare(replace(CONFIG, checkpoint=CheckpointConfig(load=str(tmp_path / "none"))), 1)


def test_a_pipeline_with_zero_2_is_refused() -> None:
    config = replace(CONFIG, parallel=ParallelConfig(pipeline_model_parallel_size=2, zero_stage=2))
    with pytest.raises(ConfigError, match=r"zero_stage = 2 cannot .* pipeline_model_parallel_size = 2"):
        prepare(config, 2)
