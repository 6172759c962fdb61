"""Where in the model numbers stopped being numbers: the step is repeated, without its update, and watched.

A step whose update was dropped has changed nothing, so that the same micro-batches with the same dropout give the same
gradients again; looking at every step instead would cost each of them its share. A repetition in which all is finite
tells something too: then it was not the data, but the machine.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from megatron_tlm.comm.groups import Mesh, gather_object
from megatron_tlm.model.stage import Stage
from megatron_tlm.train.engines.engine import Engine


@dataclass(frozen=True)
class Location:
    """The first unit, in depth order, whose output was not finite, and the first parameter whose gradient was not.

    Both None where the repeated step was finite throughout.
    """

    unit: str | None
    parameter: str | None

    def __str__(self) -> str:
        if self.unit is None and self.parameter is None:
            return "all finite when the step was repeated, so look for a fault of a machine"
        output = "every unit's output is finite" if self.unit is None else f"first in the output of {self.unit}"
        return f"{output}, first gradient that is not finite: {self.parameter or 'none'}"


@dataclass
class _Sightings:
    """One flag on the device for each name, in depth order, so that nothing is waited for while the step goes."""

    flags: dict[str, Tensor] = field(default_factory=dict)

    def look(self, name: str, values: Any) -> None:
        if isinstance(values, Tensor) and values.is_floating_point():
            broken = ~torch.isfinite(values.detach()).all()
            self.flags[name] = self.flags[name] | broken if name in self.flags else broken

    def first(self, order: Iterator[str]) -> str | None:
        return next((name for name in order if name in self.flags and bool(self.flags[name])), None)


def locate(engine: Engine, mesh: Mesh, repeat: Callable[[], object]) -> Location:
    """Watches `repeat()`, which takes the step again on every rank; collective, the same on all ranks."""
    stage = next(module for module in engine.deepspeed.module.modules() if isinstance(module, Stage))
    outputs, gradients = _Sightings(), _Sightings()
    with _watched(stage, engine.parameters, outputs, gradients):
        repeat()
    unit = outputs.first(unit.name for unit in stage.units)
    parameter = gradients.first(iter(engine.parameters))
    # Ranks are numbered with the stages slowest, so the first that saw something is of the first stage that did.
    seen = gather_object((mesh.coordinate.pipe, unit, parameter))
    seen.sort(key=lambda found: found[0])
    units = [found for _, found, _ in seen if found is not None]
    parameters = [found for _, _, found in seen if found is not None]
    return Location(next(iter(units), None), next(iter(parameters), None))


@contextmanager
def _watched(
    stage: Stage, parameters: Mapping[str, nn.Parameter], outputs: _Sightings, gradients: _Sightings
) -> Iterator[None]:
    def after(name: str, module: nn.Module, given: Any, output: Any) -> None:
        outputs.look(name, output)

    def arrived(name: str, gradient: Tensor) -> None:
        gradients.look(name, gradient)

    with ExitStack() as hooks:
        for unit, block in zip(stage.units, stage.blocks, strict=True):
            hooks.callback(block.register_forward_hook(partial(after, unit.name)).remove)
        for name, parameter in parameters.items():
            hook = parameter.register_hook(partial(arrived, name))  # type: ignore[no-untyped-call]
            hooks.callback(hook.remove)
        yield
