"""A conversion's stages are those of the run that will load it."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.cli.main import main
from megatron_tlm.cli.target_stages import target_stages
from megatron_tlm.config.schema import ParallelConfig
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.grid import Grid
from tests.unit.export.trained import VOCAB, save_model, small_config


@pytest.mark.parametrize("pipe", [1, 2, 3])
def test_converted_stages_are_training_s(pipe: int, tmp_path: Path) -> None:
    config = small_config()
    save_model(tmp_path / "a", config)
    command = ["convert", "--load-dir", str(tmp_path / "a"), "--save-dir", str(tmp_path / "b"), "--no-verify"]
    sizes = ["--target-tensor-parallel-size", "2", "--target-pipeline-parallel-size", str(pipe)]
    assert main([*command, *sizes]) == 0
    parallel = ParallelConfig(tensor_model_parallel_size=2, pipeline_model_parallel_size=pipe)
    with Reader(find(tmp_path / "b")) as reader:
        assert reader.manifest.facts.stages == build_plan(replace(config, parallel=parallel), VOCAB).stages


def test_a_configuration_that_is_not_understood_leaves_it_to_the_conversion(tmp_path: Path) -> None:
    path, *_ = save_model(tmp_path / "a", small_config())
    with Reader(path) as reader:
        facts = reader.manifest.facts
    assert target_stages(replace(facts, config={"model": {}}), facts.shape, Grid(pipe=2), None) is None
