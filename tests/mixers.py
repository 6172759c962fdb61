"""One mixer alone, from whole weights by local name: for tests of what it computes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from megatron_tlm.comm.groups import AxisGroup
from megatron_tlm.layers.residual import ResidualBlock
from megatron_tlm.model.units import build_unit
from megatron_tlm.plan.build import Plan
from tests.tiny_model import random_weights, set_weights

PREFIX = "layers.0.mixer."
Outcome = tuple[Tensor, dict[str, Tensor]]


def local_weights(plan: Plan, seed: int = 0) -> dict[str, Tensor]:
    """Random float64 weights of the first layer's mixer."""
    whole = random_weights(plan, seed)
    return {name.removeprefix(PREFIX): tensor for name, tensor in whole.items() if name.startswith(PREFIX)}


def build(plan: Plan, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float64) -> ResidualBlock:
    module = build_unit(plan.units[1], plan, AxisGroup.single(), dtype, torch.device("cpu"))
    named = {PREFIX + name: parameter for name, parameter in module.named_parameters()}
    set_weights(named, {PREFIX + name: tensor for name, tensor in weights.items()}, plan, 0)
    assert isinstance(module, ResidualBlock)
    return module


def random_input(plan: Plan, batch: int = 2, length: int = 8, seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, plan.shape.hidden_size, generator=generator, dtype=torch.float64)


def branch_and_gradients(function: Any, x: Tensor, weights: Mapping[str, Tensor], seed: int = 6) -> Outcome:
    """The output and, for a random gradient of it, the gradients of the input ("x") and of all weights."""
    x = x.clone().requires_grad_()
    weights = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    y = function(x, weights)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=y.dtype))
    return y.detach(), {"x": x.grad} | {name: tensor.grad for name, tensor in weights.items()}  # type: ignore[dict-item]


def through_module(plan: Plan) -> Any:
    """The module's branch as a function of input and weights, by `torch.func`'s swap of its parameters."""

    def run(x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        module = build(plan, {name: tensor.detach() for name, tensor in weights.items()})
        result: Tensor = torch.func.functional_call(_Branch(module), {f"b.{n}": t for n, t in weights.items()}, (x,))
        return result

    return run


class _Branch(torch.nn.Module):
    def __init__(self, block: ResidualBlock) -> None:
        super().__init__()
        self.b = block

    def forward(self, x: Tensor) -> Tensor:
        return self.b.branch(x)
