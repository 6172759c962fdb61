"""What a run says of its layout before the first step."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron_tlm.config.schema import Config, DataConfig, ModelConfig, ParallelConfig, TrainingConfig
from megatron_tlm.train.opening import opening
from megatron_tlm.train.prepare import prepare
from megatron_tlm.train.saving.resume import Progress

CONFIG = Config(
    ModelConfig(num_layers=4, hidden_size=32, num_attention_heads=2, seq_length=8, vocab_size=300),
    training=TrainingConfig(train_iters=10),
    data=DataConfig(mock_data=True),
)


def layout_line(config: Config, ranks: int) -> str:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    engine: Any = SimpleNamespace(
        deepspeed=SimpleNamespace(basic_optimizer=optimizer, zero_optimization_stage=lambda: 1)
    )
    told = opening(prepare(config, ranks), engine, Progress(), finetune=False)
    return next(line for line in told if line.startswith("layout: "))


@pytest.mark.parametrize(
    ("ranks", "batch", "said"),
    [
        (1, 1, "tensor 1 x pipe 1 x data 1 = 1 rank, 1 micro-batch per step"),
        (2, 4, "tensor 1 x pipe 1 x data 2 = 2 ranks, 2 micro-batches per step"),
    ],
)
def test_one_of_a_thing_is_one(ranks: int, batch: int, said: str) -> None:
    config = replace(CONFIG, training=replace(CONFIG.training, global_batch_size=batch))
    assert layout_line(config, ranks) == f"layout: {said}"


def test_how_even_stages_are_is_said_with_its_measure() -> None:
    config = replace(CONFIG, parallel=ParallelConfig(pipeline_model_parallel_size=2))
    plan = prepare(config, 2).plan
    line = layout_line(config, 2)
    assert line.endswith(f"1 micro-batch per step, slowest stage {plan.slowest / plan.mean:.3f} x the mean by FLOPs")
    timed = replace(config, parallel=replace(config.parallel, hardware="cpu"))
    assert layout_line(timed, 2).endswith("x the mean by predicted time")
