"""What a run refuses, or settles, before any rank talks to another."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.config.schema import (
    CheckpointConfig,
    Config,
    DataConfig,
    LoggingConfig,
    ModelConfig,
    ParallelConfig,
    TrainingConfig,
)
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.errors import CheckpointError, ConfigError, DataError
from megatron_tlm.train.opening import check_log_folders
from megatron_tlm.train.prepare import prepare

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


def test_a_missing_checkpoint_is_told_before_any_rank_waits(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--allow-fresh-start"):
        prepare(replace(CONFIG, checkpoint=CheckpointConfig(load=str(tmp_path / "none"))), 1)


def test_a_used_save_folder_is_refused_before_any_rank_waits(tmp_path: Path) -> None:
    (tmp_path / "step-00000005").mkdir()
    with pytest.raises(CheckpointError, match=r"the newest of step 5, and this run starts from scratch; add --load"):
        prepare(replace(CONFIG, checkpoint=CheckpointConfig(save=str(tmp_path))), 1)


def test_a_save_folder_that_cannot_be_is_told_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, cause in (("file", "File exists"), ("file/x", "Not a directory")):
        with pytest.raises(ConfigError, match=rf"checkpoint.save = \S+{place} cannot be written \({cause}\); a file"):
            prepare(replace(CONFIG, checkpoint=CheckpointConfig(save=str(tmp_path / place))), 1)


def test_a_log_folder_that_cannot_be_is_told_by_the_rank_that_writes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = replace(CONFIG, logging=LoggingConfig(log_dir=str(tmp_path / "file")))
    with pytest.raises(ConfigError, match=r"logging.log_dir = \S+/file cannot be written"):
        check_log_folders(config, 0)
    check_log_folders(config, 1)


def test_a_missing_corpus_is_told_before_any_rank_waits(tmp_path: Path) -> None:
    paths = {"data_path": (str(tmp_path / "none"),)}, {"train_data_path": ("1", str(tmp_path / "none"))}
    for path in paths:
        with pytest.raises(DataError, match=r"none.idx does not exist; give the prefix of a .bin/.idx pair"):
            prepare(replace(CONFIG, data=DataConfig(**path)), 1)


def test_a_corpus_of_another_vocabulary_is_told_before_any_rank_waits(tmp_path: Path) -> None:
    with IndexedDatasetWriter(tmp_path / "corpus", np.dtype(np.uint16)) as writer:
        writer.add_document(np.array([1, 300, 2]))
    data = DataConfig(train_data_path=(str(tmp_path / "corpus"),), valid_data_path=(str(tmp_path / "none"),))
    with pytest.raises(DataError, match=r"corpus: token id 300 is beyond the model's vocab_size = 300"):
        prepare(replace(CONFIG, data=data, training=replace(CONFIG.training, eval_iters=0)), 1)


def test_a_pipeline_with_zero_2_is_refused() -> None:
    config = replace(CONFIG, parallel=ParallelConfig(pipeline_model_parallel_size=2, zero_stage=2))
    with pytest.raises(ConfigError, match=r"zero_stage = 2 cannot .* pipeline_model_parallel_size = 2"):
        prepare(config, 2)
