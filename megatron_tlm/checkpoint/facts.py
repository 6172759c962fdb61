"""What a run knows of itself at a step, beside its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from megatron_tlm.checkpoint.fields import Field
from megatron_tlm.errors import CheckpointError, PlanError
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.shape import ModelShape

Scalar = int | float | str | bool | None


@dataclass(frozen=True)
class Facts:
    """What the run knows of itself at this step; `extra` is the training loop's own numbers, kept as they are."""

    step: int
    consumed_samples: int
    consumed_tokens: int
    optimizer_steps: int
    shape: ModelShape
    config: Mapping[str, Any]
    grid: Grid
    zero_stage: int
    stages: tuple[range, ...]
    extra: Mapping[str, Scalar] = field(default_factory=dict)


FACT_NAMES = (
    "step",
    "consumed_samples",
    "consumed_tokens",
    "optimizer_steps",
    "extra",
    "layout",
    "stages",
    "shape",
    "config",
)


def facts_to_json(facts: Facts) -> dict[str, Any]:
    """Plain values, one per FACT_NAMES."""
    grid = facts.grid
    return {
        "step": facts.step,
        "consumed_samples": facts.consumed_samples,
        "consumed_tokens": facts.consumed_tokens,
        "optimizer_steps": facts.optimizer_steps,
        "extra": dict(facts.extra),
        "layout": {"tensor": grid.tensor, "pipe": grid.pipe, "data": grid.data, "zero": facts.zero_stage},
        "stages": [[stage.start, stage.stop] for stage in facts.stages],
        "shape": facts.shape.to_json(),
        "config": dict(facts.config),
    }


def facts_from_json(record: Mapping[str, Field]) -> Facts:
    """The inverse of `facts_to_json`, every value checked; CheckpointError names the first that cannot be meant."""
    layout = record["layout"].record("tensor", "pipe", "data", "zero")
    grid = Grid(*(layout[axis].integer(1, 1 << 20) for axis in ("pipe", "data", "tensor")))
    shape = _shape_from_json(record["shape"])
    record["config"].object()
    return Facts(
        step=record["step"].integer(),
        consumed_samples=record["consumed_samples"].integer(),
        consumed_tokens=record["consumed_tokens"].integer(),
        optimizer_steps=record["optimizer_steps"].integer(),
        shape=shape,
        config=record["config"].value,
        grid=grid,
        zero_stage=layout["zero"].integer(0, 3),
        stages=_stages_from_json(record["stages"], grid.pipe, shape.num_units),
        extra={name: given.scalar() for name, given in record["extra"].object().items()},
    )


def _shape_from_json(given: Field) -> ModelShape:
    members = given.object()
    declared: dict[str, Any] = {item.name: item.type for item in fields(ModelShape)}
    kinds = {bool: bool, float: int | float, str: str}
    for name, member in members.items():
        kind = declared.get(name, int)
        if name == "widths":
            member.integers(1)
        elif kind is int:
            member.integer(1)
        elif not isinstance(member.value, kinds[kind]) or (kind is float and isinstance(member.value, bool)):
            member.refuse("is of the wrong type")
    try:
        return ModelShape.from_json({name: member.value for name, member in members.items()})
    except (PlanError, TypeError) as error:
        raise CheckpointError(f"{given.address} is of no model ({error}); use another step") from error


def _stages_from_json(given: Field, num_stages: int, num_units: int) -> tuple[range, ...]:
    pairs = [item.integers() for item in given.items(num_stages)]
    start = 0
    for item, pair in zip(given.items(), pairs, strict=True):
        if len(pair) != 2 or pair[0] != start or pair[1] <= pair[0]:
            item.refuse(f"is not [first unit, end] of a stage that starts at unit {start}")
        start = pair[1]
    if start != num_units:
        given.refuse(f"ends at unit {start}, the model has {num_units}")
    return tuple(range(*pair) for pair in pairs)
