"""A conversion's stages are those of the run that will load it."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.cli.main import main
from megatron_tlm.cli.target_stages import target_stages
from megatron_tlm.config.dump import as_mapping
from megatron_tlm.config.schema import Config, ParallelConfig
from megatron_tlm.errors import PlanError
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


def facts_of(folder: Path, config: Config) -> Facts:
    path, *_ = save_model(folder, config)
    with Reader(path) as reader:
        return reader.manifest.facts


def test_a_configuration_that_is_not_understood_gives_one_stage_or_those_that_were_saved(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "a", small_config())
    strange = replace(facts, config={"model": {}})
    units = facts.shape.num_units
    assert target_stages(strange, facts.shape, Grid(tensor=2), None) == ((range(units),), None)
    saved = replace(strange, grid=Grid(pipe=2), stages=(range(3), range(3, units)))
    assert target_stages(saved, facts.shape, Grid(pipe=2, data=2), None).stages == saved.stages
    with pytest.raises(PlanError, match=r"target_pipeline_parallel_size = 2 needs the run's configuration"):
        target_stages(strange, facts.shape, Grid(pipe=2), None)


def test_more_stages_than_units_are_refused(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "a", small_config())
    with pytest.raises(PlanError, match=r"pipeline_model_parallel_size = 99 exceeds the \d+ pieces"):
        target_stages(facts, facts.shape, Grid(pipe=99), None)


def test_a_profile_that_stayed_behind_leaves_the_cut_to_flops(tmp_path: Path) -> None:
    config = small_config()
    timed = replace(config, parallel=replace(config.parallel, hardware_profile=str(tmp_path / "gone.json")))
    facts = replace(facts_of(tmp_path / "a", config), config=as_mapping(timed))
    stages, note = target_stages(facts, facts.shape, Grid(pipe=2), None)
    assert stages == target_stages(replace(facts, config=as_mapping(config)), facts.shape, Grid(pipe=2), None).stages
    assert note is not None
    assert note.startswith("stages are cut by FLOPs, training would cut by its device: profile = ")
