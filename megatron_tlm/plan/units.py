"""The model as a flat list of units, the smallest things a pipeline stage can own.

    embedding | layers.0.mixer | layers.0.mlp | layers.1.mixer | ... | head

A unit takes the residual stream and gives it back, norm and residual included, so a cut may fall between any two.
"""

from dataclasses import dataclass
from typing import Literal

from megatron_tlm.plan.params import (
    ParameterSpec,
    embedding_parameters,
    head_parameters,
    mixer_parameters,
    mlp_parameters,
)
from megatron_tlm.plan.shape import ModelShape

UnitKind = Literal["embedding", "mixer", "mlp", "head"]


@dataclass(frozen=True)
class Unit:
    """One row of the list; `width` is the MLP's global width."""

    name: str
    kind: UnitKind
    parameters: tuple[ParameterSpec, ...]
    layer: int | None = None
    width: int | None = None

    @property
    def num_parameters(self) -> int:
        return sum(parameter.size for parameter in self.parameters)


def build_units(shape: ModelShape) -> tuple[Unit, ...]:
    """2 L + 2 units in the order in which a token meets them."""
    units = [Unit("embedding", "embedding", embedding_parameters(shape))]
    for layer, width in enumerate(shape.widths):
        units.append(Unit(f"layers.{layer}.mixer", "mixer", mixer_parameters(shape, layer), layer))
        units.append(Unit(f"layers.{layer}.mlp", "mlp", mlp_parameters(shape, layer), layer, width))
    units.append(Unit("head", "head", head_parameters(shape)))
    return tuple(units)
