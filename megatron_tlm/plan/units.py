"""The model as a flat list of units, the smallest things a pipeline stage can own.

    embedding | layers.0.mixer | layers.0.mlp | layers.1.mixer | ... | head

A continuum memory of K levels has K units in the place of one MLP: layers.0.mlp.0 (the fastest), layers.0.mlp.1, ...

A unit takes the residual stream and gives it back, norm and residual included, so a cut may fall between any two.
"""

from dataclasses import dataclass
from typing import Literal

from megatron_tlm.plan.mixers import mixer_parameters
from megatron_tlm.plan.params import ParameterSpec, embedding_parameters, head_parameters, mlp_parameters
from megatron_tlm.plan.shape import ModelShape

UnitKind = Literal["embedding", "mixer", "mlp", "head"]


@dataclass(frozen=True)
class Unit:
    """One row of the list; `width` is the MLP's global width, that of one level where it has several."""

    name: str
    kind: UnitKind
    parameters: tuple[ParameterSpec, ...]
    layer: int | None = None
    width: int | None = None

    @property
    def num_parameters(self) -> int:
        return sum(parameter.size for parameter in self.parameters)


def build_units(shape: ModelShape) -> tuple[Unit, ...]:
    """`shape.num_units` units in the order in which a token meets them."""
    units = [Unit("embedding", "embedding", embedding_parameters(shape))]
    for layer, width in enumerate(shape.widths):
        units.append(Unit(f"layers.{layer}.mixer", "mixer", mixer_parameters(shape, layer), layer))
        if shape.cms_levels == 1:
            units.append(Unit(f"layers.{layer}.mlp", "mlp", mlp_parameters(shape, layer), layer, width))
            continue
        for level in range(shape.cms_levels):
            name, parameters = f"layers.{layer}.mlp.{level}", mlp_parameters(shape, layer, level)
            units.append(Unit(name, "mlp", parameters, layer, shape.level_width(layer, level)))
    units.append(Unit("head", "head", head_parameters(shape)))
    return tuple(units)
