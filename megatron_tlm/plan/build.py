"""A configuration decided into integers: widths, units, costs, stages. The floors above only carry it out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from megatron_tlm.config.schema import Config
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.costs import UnitCost, unit_cost
from megatron_tlm.plan.cut import Cut, Objective, best_cut
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.hardware import Hardware, find_hardware, load_profile, parse_bytes
from megatron_tlm.plan.manual import check_stages, manual_stages
from megatron_tlm.plan.memory import MemoryUse, TrainingState
from megatron_tlm.plan.params import ParameterSpec
from megatron_tlm.plan.pieces import Piece
from megatron_tlm.plan.refusal import check_memory, refuse_overfull
from megatron_tlm.plan.resolve import build_shape, check_divisible, is_divisible
from megatron_tlm.plan.setting import Setting, glue, merge
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.shards import Shard, padded_vocab_size, shard
from megatron_tlm.plan.simulate import StageTime, Timeline, simulate
from megatron_tlm.plan.units import Unit, build_units
from megatron_tlm.plan.workload import Workload

__all__ = [
    "Plan",
    "build_plan",
    "build_setting",
    "build_shape",
    "check_divisible",
    "cut_units",
    "is_divisible",
]


@dataclass(frozen=True)
class Plan:
    """A model on a grid: which units each stage owns, and what they cost.

    `stages[p]` indexes `units`; `costs` runs beside `units`; `workload` is what a micro-batch brings to one rank.
    `setting` is all that the cut depends on, `cut` what its search found; None where the stages were given.
    """

    shape: ModelShape
    grid: Grid
    workload: Workload
    micro_batches: int
    units: tuple[Unit, ...]
    costs: tuple[UnitCost, ...]
    stages: tuple[range, ...]
    setting: Setting
    cut: Cut | None = None

    @property
    def padded_vocab_size(self) -> int:
        return self.workload.padded_vocab_size

    @property
    def seq_length(self) -> int:
        return self.workload.seq_length

    @property
    def parameters(self) -> int:
        """Parameters of the model, each once, vocabulary padding left out."""
        return sum(cost.parameters for cost in self.costs)

    @property
    def flops_per_token(self) -> int:
        """Forward and backward, without recompute (see `plan.costs` for what is counted)."""
        return sum(cost.flops for cost in self.costs)

    @cached_property
    def parameter_specs(self) -> dict[str, ParameterSpec]:
        """The whole parameter table by global name, in the order of the units."""
        return {spec.name: spec for unit in self.units for spec in unit.parameters}

    def stage_units(self, stage: int) -> tuple[Unit, ...]:
        return tuple(self.units[index] for index in self.stages[stage])

    def stage_cost(self, stage: int) -> int:
        """FLOPs per token of a stage, forward and backward."""
        return sum(self.costs[index].flops for index in self.stages[stage])

    def shard(self, spec: ParameterSpec, tensor_rank: int) -> Shard:
        """The box of a parameter that one tensor rank holds."""
        return shard(spec, self.grid.tensor, tensor_rank, self.padded_vocab_size if spec.padded else None)

    @property
    def slowest(self) -> int:
        return max(self.stage_cost(stage) for stage in range(len(self.stages)))

    @property
    def mean(self) -> float:
        return self.flops_per_token / len(self.stages)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Each unit in ticks and bytes (see `plan.setting` for what a tick is)."""
        return tuple(self.setting.unit_piece(unit) for unit in self.units)

    @cached_property
    def stage_times(self) -> tuple[StageTime, ...]:
        """Ticks of each stage."""
        names = ("forward", "backward", "reduce", "update")
        return tuple(
            StageTime(*(sum(getattr(self.pieces[index], name) for index in indices) for name in names))
            for indices in self.stages
        )

    @cached_property
    def timeline(self) -> Timeline:
        """The simulated step."""
        pipeline = self.setting.pipeline
        return simulate(self.stage_times, max(self.micro_batches, 1), message=pipeline.message, tied=pipeline.tied)

    @cached_property
    def memory(self) -> tuple[MemoryUse, ...]:
        """Bytes of one rank of each stage, by kind."""
        return tuple(self.setting.stage_memory(stage, self.stage_units(stage)) for stage in range(len(self.stages)))

    @property
    def step_seconds(self) -> float | None:
        """The predicted time of an optimizer step; None where the device is not known."""
        return self.setting.seconds(self.timeline.step_time)

    @property
    def tokens_per_second(self) -> float | None:
        """Predicted, over all data ranks."""
        seconds = self.step_seconds
        tokens = self.workload.tokens * max(self.micro_batches, 1) * self.grid.data
        return tokens / seconds if seconds else None

    def with_stages(self, stages: Sequence[range]) -> "Plan":
        """The same plan, cut as given."""
        return replace(self, stages=tuple(stages), cut=None)

    def to_json(self) -> dict[str, Any]:
        """What `megatron-tlm plan --json` prints: FLOPs are per token, forward and backward; memory is one rank's."""
        units = [
            {"name": unit.name, "flops": cost.flops, "parameters": cost.parameters}
            | {"activation_bytes": cost.activation_bytes}
            for unit, cost in zip(self.units, self.costs, strict=True)
        ]
        stages = [
            {
                "first_unit": self.units[indices[0]].name,
                "last_unit": self.units[indices[-1]].name,
                "cost": self.stage_cost(stage),
                "parameters": sum(self.costs[index].parameters for index in indices),
                "memory_bytes": asdict(self.memory[stage]) | {"total": self.memory[stage].total},
                "forward": self.stage_times[stage].forward,
                "backward": self.stage_times[stage].backward,
                "bubble": self.timeline.bubble(stage),
                "in_flight": self.setting.pipeline.held(stage),
            }
            for stage, indices in enumerate(self.stages)
        ]
        return {
            "widths": list(self.shape.widths),
            "parameters": self.parameters,
            "flops_per_token": self.flops_per_token,
            "units": units,
            "stages": stages,
            "slowest": self.slowest,
            "mean": self.mean,
            "imbalance": self.slowest / self.mean,
            "micro_batches": self.micro_batches,
            "tick": "picosecond" if self.setting.in_seconds else "FLOP of one rank",
            "step_time": self.timeline.step_time,
            "step_seconds": self.step_seconds,
            "tokens_per_second": self.tokens_per_second,
            "bubble": self.timeline.mean_bubble,
            "proven": self.cut.proven if self.cut else None,
            "gap": self.cut.gap if self.cut else None,
        }


def build_plan(
    config: Config,
    vocab_size: int,
    *,
    data: int = 1,
    shape: ModelShape | None = None,
    hardware: Hardware | None = None,
    memory_limit: int | None = None,
) -> Plan:
    """The plan of a run on `data` data ranks; `shape`, `hardware` and `memory_limit` override what the configuration
    says of them.

    Stages given by hand are taken as they are; else they are those with the smallest `pipeline_objective` whose ranks
    fit into memory. PlanError where heads, a layer's width or the units cannot be shared out as asked, or no cut fits.
    """
    setting = build_setting(config, vocab_size, data=data, shape=shape, hardware=hardware, memory_limit=memory_limit)
    units = build_units(setting.shape)
    by_hand = manual_stages(config.parallel, units)
    if by_hand is None:
        return plan_of(setting, units, cut_units(setting, units, config.parallel.pipeline_objective))
    check_stages(by_hand, glue(units, setting), units)
    plan = plan_of(setting, units, (by_hand, None))
    check_memory(plan.memory, setting.memory_limit)
    return plan


def build_setting(
    config: Config,
    vocab_size: int,
    *,
    data: int = 1,
    shape: ModelShape | None = None,
    hardware: Hardware | None = None,
    memory_limit: int | None = None,
) -> Setting:
    """All that a configuration decides before the cut; PlanError for a tensor degree that does not divide the model."""
    parallel, training = config.parallel, config.training
    shape = shape or build_shape(config, vocab_size)
    grid = Grid(pipe=parallel.pipeline_model_parallel_size, data=data, tensor=parallel.tensor_model_parallel_size)
    check_divisible(shape, grid.tensor)
    global_batch = training.global_batch_size or training.micro_batch_size * data
    return Setting(
        shape=shape,
        grid=grid,
        workload=Workload(
            seq_length=config.model.seq_length,
            micro_batch_size=training.micro_batch_size,
            padded_vocab_size=padded_vocab_size(
                shape.vocab_size, config.model.make_vocab_size_divisible_by, grid.tensor
            ),
            element_bytes=2 if training.bf16 else 4,
            tensor_degree=grid.tensor,
            sequence_parallel=parallel.sequence_parallel,
            recompute=parallel.recompute_granularity,
        ),
        micro_batches=global_batch // (training.micro_batch_size * data),
        state=TrainingState(parallel.zero_stage, data, training.bf16, pipelined=grid.pipe > 1),
        hardware=hardware or (find_hardware(parallel.hardware) if parallel.hardware else None),
        profile=load_profile(Path(parallel.hardware_profile)) if parallel.hardware_profile else None,
        memory_limit=memory_limit or (parse_bytes(parallel.gpu_memory) if parallel.gpu_memory else None),
    )


def plan_of(setting: Setting, units: tuple[Unit, ...], cut: tuple[tuple[range, ...], Cut | None]) -> Plan:
    """The plan of a setting whose units are cut in a given way."""
    stages, found = cut
    return Plan(
        shape=setting.shape,
        grid=setting.grid,
        workload=setting.workload,
        micro_batches=setting.micro_batches,
        units=units,
        costs=tuple(unit_cost(unit, setting.shape, setting.workload) for unit in units),
        stages=stages,
        setting=setting,
        cut=found,
    )


def cut_units(
    setting: Setting, units: tuple[Unit, ...], objective: Objective = "step-time"
) -> tuple[tuple[range, ...], Cut]:
    """The best stages, as ranges of unit indices, and what the search says of them; PlanError where none fit."""
    ranges = glue(units, setting)
    if setting.grid.pipe > len(ranges):
        raise PlanError(
            f"pipeline_model_parallel_size = {setting.grid.pipe} exceeds the {len(ranges)} pieces that {len(units)} "
            f"units can be cut into; use at most {len(ranges)} stages or more layers"
        )
    pieces = merge([setting.unit_piece(unit) for unit in units], ranges)
    refuse_overfull(setting, units, ranges)
    # An evaluation has no global batch to share out, but it has a plan.
    pipeline = replace(setting.pipeline, micro_batches=max(setting.micro_batches, 1))
    cut = best_cut(pieces, pipeline, objective)
    starts = [ranges[border].start for border in cut.borders[:-1]]
    return tuple(range(a, b) for a, b in pairwise([*starts, len(units)])), cut
