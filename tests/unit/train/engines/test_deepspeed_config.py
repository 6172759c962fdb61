"""Our configuration as DeepSpeed's JSON, and what happens when a user brings JSON of their own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron_tlm.config.schema import Config, ModelConfig, OptimizerConfig, ParallelConfig, TrainingConfig
from megatron_tlm.errors import ConfigError
from megatron_tlm.train.engines.deepspeed_config import check_deepspeed, deepspeed_config

TINY = Config(ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=2, seq_length=8))


def with_json(tmp_path: Path, settings: Any, **parallel: Any) -> Config:
    path = tmp_path / "ds.json"
    path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return replace(TINY, parallel=ParallelConfig(deepspeed_config=str(path), **parallel))


def test_every_number_comes_from_the_configuration() -> None:
    config = replace(
        TINY,
        parallel=ParallelConfig(zero_stage=2),
        training=TrainingConfig(micro_batch_size=3, bf16=True),
        optimizer=OptimizerConfig(clip_grad=0.5),
    )
    settings = deepspeed_config(config, micro_batches=4, data=2)
    assert settings["train_batch_size"] == 24
    assert settings["gradient_accumulation_steps"] == 4
    assert settings["train_micro_batch_size_per_gpu"] == 3
    assert settings["zero_optimization"]["stage"] == 2
    assert settings["bf16"] == {"enabled": True}
    assert settings["data_types"] == {"grad_accum_dtype": "fp32"}
    assert settings["gradient_clipping"] == 0.5
    assert settings["pipeline"] == {"pipe_partitioned": False, "grad_partitioned": False}
    assert "optimizer" not in settings


def test_without_zero_the_clipping_is_ours() -> None:
    config = replace(TINY, parallel=ParallelConfig(zero_stage=0))
    assert deepspeed_config(config, micro_batches=1, data=1)["gradient_clipping"] == 0.0


def test_a_users_json_adds_and_tunes(tmp_path: Path) -> None:
    own = {"zero_optimization": {"stage": 1, "reduce_bucket_size": 7}, "steps_per_print": 5, "train_batch_size": "auto"}
    settings = deepspeed_config(with_json(tmp_path, own), micro_batches=2, data=1)
    assert settings["steps_per_print"] == 5
    assert settings["zero_optimization"]["reduce_bucket_size"] == 7
    assert settings["zero_optimization"]["stage"] == 1
    assert settings["train_batch_size"] == 2


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"zero_optimization": {"stage": 2}}, r"ds.json: zero_optimization.stage = 2 contradicts .*zero_stage = 1"),
        ({"zero_optimization": "x"}, r'ds.json: zero_optimization = "x" is not an object; write'),
        ({"bf16": 1}, r"ds.json: bf16 = 1 is not an object"),
        ({"zero_optimization": {"reduce_bucket_size": -5}}, r"reduce_bucket_size = -5 is not an integer of 0 or more"),
        ({"zero_optimization": {"sub_group_size": "big"}}, r'sub_group_size = "big" is not an integer of 0 or more'),
        ({"zero_optimization": {"allgather_bucket_size": 1.5}}, r"allgather_bucket_size = 1.5 is not an integer"),
        ({"steps_per_print": 0}, r"steps_per_print = 0 is not an integer of 1 or more; give one, or leave it out"),
        ({"gradient_clipping": 3.0}, r"gradient_clipping = 3.0 contradicts optimizer.clip_grad = 1.0"),
        ({"bf16": {"enabled": True}}, r"bf16.enabled = true contradicts training.bf16 = false"),
        ({"bfloat16": {"enabled": True}}, r"bf16.enabled = true contradicts training.bf16 = false"),
        ({"train_micro_batch_size_per_gpu": 8}, r"_per_gpu = 8 contradicts training.micro_batch_size = 1"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, r'grad_accum_dtype = "bf16" contradicts .* = "fp32"'),
        ({"optimizer": {"type": "Lamb"}}, r'optimizer.type = "Lamb" is not ours to hand over; the optimizer is built'),
        ({"fp16": {"enabled": True}}, r"fp16.enabled = true is not ours to hand over; use --bf16"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, r"offload_optimizer.device = \"cpu\" is not"),
    ],
)  # fmt: skip
def test_a_contradiction_names_both_values_and_both_places(tmp_path: Path, own: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_deepspeed(with_json(tmp_path, own))


def test_equal_values_in_another_spelling_are_no_contradiction(tmp_path: Path) -> None:
    own = {"zero_optimization": {"reduce_bucket_size": 5e8}, "bf16": {}}
    check_deepspeed(with_json(tmp_path, own))
    own = {"data_types": {"grad_accum_dtype": "float32"}, "fp16": {"enabled": False}, "gradient_clipping": 1}
    check_deepspeed(with_json(tmp_path, own))


def test_a_batch_that_only_the_ranks_decide_is_compared_once_they_are_known(tmp_path: Path) -> None:
    config = with_json(tmp_path, {"gradient_accumulation_steps": 3})
    check_deepspeed(config)
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps = 3 contradicts .* = 2; change one"):
        deepspeed_config(config, micro_batches=2, data=1)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[1]", "holds a list; DeepSpeed wants an object")]
)
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_deepspeed(with_json(tmp_path, text))


def test_an_absent_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"deepspeed_config = nowhere.json cannot be read \(No such file"):
        check_deepspeed(replace(TINY, parallel=ParallelConfig(deepspeed_config="nowhere.json")))


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_2_and_3_are_refused_with_a_pipeline(stage: int) -> None:
    parallel = ParallelConfig(zero_stage=stage, pipeline_model_parallel_size=2)
    with pytest.raises(
        ConfigError, match=rf"zero_stage = {stage} .* pipeline_model_parallel_size = 2, .* stages 0 and 1"
    ):
        check_deepspeed(replace(TINY, parallel=parallel))


def test_bf16_is_refused_where_gradients_cannot_accumulate_in_float32() -> None:
    config = replace(TINY, parallel=ParallelConfig(zero_stage=0), training=TrainingConfig(bf16=True))
    with pytest.raises(ConfigError, match=r"zero_stage = 0 cannot go with bf16 = True, .* use --zero-stage 1"):
        check_deepspeed(config)
