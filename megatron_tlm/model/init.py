"""Initial weights that no layout can change: each parameter is drawn whole by its own generator, then sliced.

normal   N(0, std)
output   N(0, std / sqrt(2 L)), what writes into the residual stream (GPT-2's rule, Megatron's scaled init)
ones     1
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from megatron_tlm.comm.rng import hashed_seed
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.params import ParameterSpec


def draw_parameter(spec: ParameterSpec, *, seed: int, std: float, num_layers: int) -> Tensor:
    """The whole tensor in float32 on the CPU, a function of (seed, global name) alone."""
    if spec.init == "ones":
        return torch.ones(spec.shape)
    if spec.init == "output":
        std = std / math.sqrt(2 * num_layers)
    generator = torch.Generator().manual_seed(hashed_seed("init", seed, spec.name))
    return torch.empty(spec.shape).normal_(0.0, std, generator=generator)


def init_parameters(
    parameters: Mapping[str, nn.Parameter], plan: Plan, tensor_rank: int, *, seed: int, std: float
) -> None:
    """Fill one tensor rank's parameters, by global name; padding rows of the vocabulary become zero."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            spec = plan.parameter_specs[name]
            share = plan.shard(spec, tensor_rank)
            whole = draw_parameter(spec, seed=seed, std=std, num_layers=plan.shape.num_layers)
            parameter.zero_()
            parameter[tuple(slice(extent) for extent in share.size)] = whole[
                tuple(slice(start, start + extent) for start, extent in zip(share.offset, share.size, strict=True))
            ]


def init_stage(stage: Stage, plan: Plan, seed: int, std: float = 0.02) -> None:
    """Fill a stage's parameters with the initial weights of `seed`."""
    init_parameters(stage.global_parameters(), plan, stage.tensor.rank, seed=seed, std=std)
