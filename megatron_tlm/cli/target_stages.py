"""The stages that a run at another layout would cut, from the configuration in a checkpoint."""

from dataclasses import replace

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.config.dump import from_mapping
from megatron_tlm.errors import TlmError
from megatron_tlm.plan.build import build_plan
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.shape import ModelShape


def target_stages(facts: Facts, shape: ModelShape, grid: Grid, zero: int | None) -> tuple[range, ...] | None:
    """Training's own stages for `grid`; None where the configuration is not understood, or its devices not known here.

    Any stages can be loaded: training's spare its ranks from reading each other's parts.
    """
    try:
        config = from_mapping(dict(facts.config), "manifest.json")
        parallel = replace(
            config.parallel,
            tensor_model_parallel_size=grid.tensor,
            pipeline_model_parallel_size=grid.pipe,
            zero_stage=min(facts.zero_stage if zero is None else zero, 1 if grid.pipe > 1 else 3),
            gpu_memory=None,
        )
        if grid.pipe != facts.grid.pipe:
            parallel = replace(
                parallel,
                decoder_first_pipeline_num_layers=None,
                decoder_last_pipeline_num_layers=None,
                pipeline_model_parallel_layout=None,
                pipeline_cuts=(),
            )
        plan = build_plan(replace(config, parallel=parallel), shape.vocab_size, data=grid.data, shape=shape)
    except TlmError:
        return None
    return plan.stages
