"""The stages that a run at another layout would cut, from the configuration in a checkpoint."""

from dataclasses import replace
from typing import NamedTuple

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.config.dump import from_mapping
from megatron_tlm.config.schema import Config, ParallelConfig
from megatron_tlm.errors import ConfigError, PlanError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.shape import ModelShape


class TargetStages(NamedTuple):
    """Unit ranges, and what is to be said of how they were found."""

    stages: tuple[range, ...]
    note: str | None = None


def target_stages(facts: Facts, shape: ModelShape, grid: Grid, zero: int | None) -> TargetStages:
    """Training's own stages for `grid`, which spare its ranks from reading each other's parts; any can be loaded.

    PlanError where the units cannot be cut so, or where a checkpoint whose configuration is not understood would need
    it for another number of stages.
    """
    try:
        config = from_mapping(dict(facts.config), "manifest.json")
    except ConfigError as error:
        if grid.pipe == facts.grid.pipe:
            return TargetStages(facts.stages)
        if grid.pipe == 1:
            return TargetStages((range(shape.num_units),))
        raise PlanError(
            f"target_pipeline_parallel_size = {grid.pipe} needs the run's configuration, which is not understood "
            f"({error}); give {facts.grid.pipe} as saved, or 1: any layout can load them"
        ) from error
    config = replace(config, parallel=_relaid(config, facts, grid, zero))
    parallel = config.parallel
    try:
        return TargetStages(build_plan(config, shape.vocab_size, data=grid.data, shape=shape).stages)
    except PlanError as error:
        # A profile stays behind on the machine that trained, and holds for one tensor degree.
        if parallel.hardware is None and parallel.hardware_profile is None:
            raise
        plain = replace(config, parallel=replace(parallel, hardware=None, hardware_profile=None))
        stages = build_plan(plain, shape.vocab_size, data=grid.data, shape=shape).stages
        return TargetStages(stages, f"stages are cut by FLOPs, training would cut by its device: {error}")


def _relaid(config: Config, facts: Facts, grid: Grid, zero: int | None) -> ParallelConfig:
    parallel = replace(
        config.parallel,
        tensor_model_parallel_size=grid.tensor,
        pipeline_model_parallel_size=grid.pipe,
        zero_stage=min(facts.zero_stage if zero is None else zero, 1 if grid.pipe > 1 else 3),
        gpu_memory=None,
    )
    if grid.pipe == facts.grid.pipe:
        return parallel
    # Stages that were given by hand say nothing of another number of stages.
    return replace(
        parallel,
        decoder_first_pipeline_num_layers=None,
        decoder_last_pipeline_num_layers=None,
        pipeline_model_parallel_layout=None,
        pipeline_cuts=(),
    )
