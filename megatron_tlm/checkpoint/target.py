"""Which rank of a grid holds which box of which tensor: a conversion in integers, before anything is written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.checkpoint.fields import Field
from megatron_tlm.checkpoint.manifest import Manifest, TensorId, TensorRecord
from megatron_tlm.checkpoint.tiling import Box, Extent
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.grid import Coordinate, Grid
from megatron_tlm.plan.params import ParameterSpec
from megatron_tlm.plan.resolve import check_divisible
from megatron_tlm.plan.shards import padded_vocab_size, shard
from megatron_tlm.plan.units import build_units

# Stages that were given by hand say nothing of another number of stages.
_BY_HAND: Mapping[str, Any] = MappingProxyType(
    {
        "decoder_first_pipeline_num_layers": None,
        "decoder_last_pipeline_num_layers": None,
        "pipeline_model_parallel_layout": None,
        "pipeline_cuts": [],
    }
)


@dataclass(frozen=True)
class Target:
    """Where everything goes: the facts of the new checkpoint, and the boxes of each of its parts."""

    facts: Facts
    parts: tuple[tuple[tuple[TensorId, Box], ...], ...]


def plan_target(
    manifest: Manifest,
    address: str,
    *,
    tensor: int,
    pipe: int,
    data: int | None = None,
    stages: tuple[range, ...],
    zero: int | None = None,
) -> Target:
    """The parts of the target grid, `stages` being unit ranges; data degree and ZeRO stage stay by default.

    PlanError lists every head count and layer width that the tensor degree does not divide and the degrees that would
    work, or says that the stages are not those of the grid.
    """
    source = manifest.facts
    grid = Grid(pipe=pipe, data=source.grid.data if data is None else data, tensor=tensor)
    zero = source.zero_stage if zero is None else zero
    zero = min(zero, 1) if grid.pipe > 1 else zero  # DeepSpeed has no pipeline with ZeRO 2 or 3
    check_divisible(source.shape, grid.tensor)
    model = Field(f"{address}: config.model", source.config.get("model")).object()
    divisible_by = model["make_vocab_size_divisible_by"].integer(1) if "make_vocab_size_divisible_by" in model else 1
    padded = padded_vocab_size(source.shape.vocab_size, divisible_by, grid.tensor)
    units = build_units(source.shape)
    _check_stages(stages, grid.pipe, len(units))
    homes = {
        spec.name: (spec, stage)
        for stage, indices in enumerate(stages)
        for index in indices
        for spec in units[index].parameters
    }
    parts: list[list[tuple[TensorId, Box]]] = [[] for _ in range(grid.size)]
    for tensor_id, record in manifest.tensors.items():
        spec, stage = homes.get(tensor_id[0], (None, 0))
        for place, box in _placements(record, spec, grid, stage, padded):
            parts[grid.rank(place)].append((tensor_id, box))
    facts = replace(
        source,
        grid=grid,
        zero_stage=zero,
        stages=stages,
        config=_relaid_config(source.config, grid, zero),
    )
    return Target(facts, tuple(tuple(part) for part in parts))


def _check_stages(stages: tuple[range, ...], pipe: int, num_units: int) -> None:
    borders = [0, *(stage.stop for stage in stages)]
    in_order = all(first == stage.start < stage.stop for first, stage in zip(borders, stages, strict=False))
    if len(stages) != pipe or borders[-1] != num_units or not in_order:
        told = ", ".join(f"{stage.start}..{stage.stop}" for stage in stages)
        raise PlanError(
            f"stages = {told} are not {pipe} runs that follow each other over {num_units} units; give one for each "
            "stage of the grid"
        )


def _placements(
    record: TensorRecord, spec: ParameterSpec | None, grid: Grid, stage: int, padded: int
) -> Iterator[tuple[Coordinate, Box]]:
    """Which boxes of a tensor go to which ranks of its stage.

    A state of the parameter's own shape is cut like the parameter; any other (a factored moment, a scalar) stays
    whole. What tensor ranks replicate is stored by the first. The data ranks take equal shares of the rows.
    """
    boxes: Mapping[int, Box] = {0: ((0,) * len(record.shape), record.shape)}
    if spec is not None and record.shape == spec.shape and (spec.padded or spec.split_at(grid.tensor) is not None):
        shards = (shard(spec, grid.tensor, rank, padded if spec.padded else None) for rank in range(grid.tensor))
        boxes = {rank: (held.offset, held.size) for rank, held in enumerate(shards) if prod(held.size)}
    for tensor_rank, (offset, size) in boxes.items():
        shares = grid.data if size and size[0] >= grid.data else 1
        for data_rank in range(shares):
            yield Coordinate(stage, data_rank, tensor_rank), _share(offset, size, data_rank, shares)


def _share(offset: Extent, size: Extent, rank: int, shares: int) -> Box:
    if shares == 1:
        return offset, size
    start, stop = size[0] * rank // shares, size[0] * (rank + 1) // shares
    return (offset[0] + start, *offset[1:]), (stop - start, *size[1:])


def _relaid_config(config: Mapping[str, Any], grid: Grid, zero: int) -> dict[str, Any]:
    """The resolved configuration with the target's degrees, where it has them."""
    parallel = config.get("parallel")
    if not isinstance(parallel, dict):
        return dict(config)
    degrees: dict[str, Any] = {"tensor_model_parallel_size": grid.tensor, "pipeline_model_parallel_size": grid.pipe}
    degrees["zero_stage"] = zero
    if parallel.get("pipeline_model_parallel_size") != grid.pipe:
        degrees |= _BY_HAND
    return {**config, "parallel": {**parallel, **{key: value for key, value in degrees.items() if key in parallel}}}
