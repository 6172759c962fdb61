"""A configuration decided into integers: widths, units, costs, stages. The floors above only carry it out."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import lcm
from typing import Any

from megatron_tlm.config.schema import Config
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.costs import UnitCost, Workload, unit_cost
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.mixers import excess_matrices, find_mixer
from megatron_tlm.plan.params import ParameterSpec
from megatron_tlm.plan.partition import partition
from megatron_tlm.plan.shape import ModelShape
from megatron_tlm.plan.shards import Shard, padded_vocab_size, shard
from megatron_tlm.plan.taper import taper_widths
from megatron_tlm.plan.units import Unit, build_units

PAPER_MULTIPLE = 16


@dataclass(frozen=True)
class Plan:
    """A model on a grid: which units each stage owns, and what they cost.

    `stages[p]` indexes `units`; `costs` runs beside `units`; `workload` is what a micro-batch brings to one rank.
    """

    shape: ModelShape
    grid: Grid
    workload: Workload
    micro_batches: int
    units: tuple[Unit, ...]
    costs: tuple[UnitCost, ...]
    stages: tuple[range, ...]

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

    def to_json(self) -> dict[str, Any]:
        """What `megatron-tlm plan --json` prints: FLOPs are per token, forward and backward."""
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
        }


def build_shape(config: Config, vocab_size: int) -> ModelShape:
    """The model a configuration asks for; the tensor degree matters only through the default width multiple."""
    model, taper, kind = config.model, config.taper, config.architecture
    multiple = taper.width_multiple or lcm(PAPER_MULTIPLE, config.parallel.tensor_model_parallel_size)
    gated, memory = kind.mixer == "gated_attention", find_mixer(kind.mixer).has_memory
    unmatched = ModelShape(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.query_groups,
        kv_channels=model.head_width,
        vocab_size=vocab_size,
        widths=(model.baseline_width,) * model.num_layers,
        tied_embeddings=not model.untie_embeddings_and_output_weights,
        rotary_base=model.rotary_base,
        norm_epsilon=model.norm_epsilon,
        mixer=kind.mixer,
        attention_gate=kind.attention_gate if gated else "none",
        qk_norm=kind.qk_norm,
        attention_window=kind.attention_window if kind.mixer == "titans_mag" else 0,
        cms_levels=kind.cms_levels,
        cms_multiple=multiple if kind.cms_levels > 1 else 1,
        memory_chunk_size=kind.memory_chunk_size if memory else 0,
        memory_expansion=kind.memory_expansion if memory else 0,
        memory_conv_width=kind.memory_conv_width if memory else 0,
        memory_persistent_tokens=kind.memory_persistent_tokens if memory else 0,
        memory_max_step=kind.memory_max_step if memory else 0.0,
    )
    baseline = matched_width(unmatched, model.baseline_width, multiple) if kind.match_params else model.baseline_width
    widths = taper_widths(
        model.num_layers,
        baseline,
        schedule=taper.taper_schedule,
        start=taper.taper_start,
        end=taper.taper_end,
        multiple=multiple,
    )
    return replace(unmatched, widths=widths)


def matched_width(shape: ModelShape, baseline: int, multiple: int) -> int:
    """The MLP width with which a layer has attention's parameters and `baseline`'s, as near as multiples allow.

    A multiple of twice `multiple`, so that 1.5 and 0.5 of it are multiples. PlanError where nothing would be left.
    """
    excess = Fraction(excess_matrices(shape), 3 * shape.hidden_size)
    if excess == 0:
        return baseline
    width = round((baseline - excess) / (2 * multiple)) * 2 * multiple
    if width <= 0:
        raise PlanError(
            f"architecture.match_params = true leaves {shape.mixer} an MLP of {width}: its matrices weigh "
            f"{float(excess):.0f} of the baseline width {baseline}; widen --ffn-hidden-size or give --no-match-params"
        )
    return width


def build_plan(config: Config, vocab_size: int, *, data: int = 1, shape: ModelShape | None = None) -> Plan:
    """The plan of a run on `data` data ranks; `shape` overrides the model the configuration asks for.

    PlanError where heads, a layer's width or the units cannot be shared out as asked.
    """
    parallel, training = config.parallel, config.training
    shape = shape or build_shape(config, vocab_size)
    grid = Grid(pipe=parallel.pipeline_model_parallel_size, data=data, tensor=parallel.tensor_model_parallel_size)
    check_divisible(shape, grid.tensor)
    workload = Workload(
        seq_length=config.model.seq_length,
        micro_batch_size=training.micro_batch_size,
        padded_vocab_size=padded_vocab_size(shape.vocab_size, config.model.make_vocab_size_divisible_by, grid.tensor),
        element_bytes=2 if training.bf16 else 4,
        tensor_degree=grid.tensor,
        sequence_parallel=parallel.sequence_parallel,
        recompute=parallel.recompute_granularity,
    )
    units = build_units(shape)
    costs = tuple(unit_cost(unit, shape, workload) for unit in units)
    global_batch = training.global_batch_size or training.micro_batch_size * data
    return Plan(
        shape=shape,
        grid=grid,
        workload=workload,
        micro_batches=global_batch // (training.micro_batch_size * data),
        units=units,
        costs=costs,
        stages=cut_stages([cost.flops for cost in costs], grid.pipe, shape.tied_embeddings),
    )


def cut_stages(costs: list[int], num_stages: int, tied: bool) -> tuple[range, ...]:
    """The stages' unit ranges, with the embedding kept beside the first mixer and a tied head beside the last MLP.

    DeepSpeed needs on every stage a decayed and an undecayed parameter that count in the gradient norm: an embedding
    alone has only the former, a tied head alone only a copy.
    """
    if num_stages == 1:
        return (range(len(costs)),)
    last = len(costs) - (2 if tied else 1)
    glued = [costs[0] + costs[1], *costs[2:last], sum(costs[last:])]
    if num_stages > len(glued):
        raise PlanError(
            f"pipeline_model_parallel_size = {num_stages} exceeds the {len(glued)} pieces that {len(costs)} units can "
            f"be cut into; use at most {len(glued)} stages or more layers"
        )
    borders = [0, *(part.stop + 1 for part in partition(glued, num_stages))]
    borders[-1] = len(costs)
    return tuple(range(first, stop) for first, stop in pairwise(borders))


def check_divisible(shape: ModelShape, degree: int) -> None:
    """PlanError naming all heads and layers that `degree` tensor ranks cannot share, and the degrees that could."""
    faults = []
    if shape.num_attention_heads % degree:
        faults.append(f"num_attention_heads = {shape.num_attention_heads}")
    if shape.num_query_groups % degree and degree % shape.num_query_groups:
        faults.append(f"num_query_groups = {shape.num_query_groups}")
    faults += [f"{address} width {width}" for address, width in shape.mlp_widths() if width % degree]
    if not faults:
        return
    works = [other for other in range(1, max(degree, shape.num_attention_heads) + 1) if is_divisible(shape, other)]
    raise PlanError(
        f"tensor_model_parallel_size = {degree} does not divide {', '.join(faults)}; use one of {works}, "
        f"or a width_multiple that {degree} divides"
    )


def is_divisible(shape: ModelShape, degree: int) -> bool:
    """Whether `degree` tensor ranks can share every head and width of the model."""
    groups_fit = shape.num_query_groups % degree == 0 or degree % shape.num_query_groups == 0
    widths_fit = all(width % degree == 0 for _, width in shape.mlp_widths())
    return shape.num_attention_heads % degree == 0 and groups_fit and widths_fit
