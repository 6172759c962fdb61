"""Initial weights that no layout can change: each parameter is drawn whole by its own generator, then sliced.

normal   N(0, std)
output   N(0, std / sqrt(2 L)), what writes into the residual stream (GPT-2's rule, Megatron's scaled init);
         with K levels of MLPs a layer writes 1 + K times, and (1 + K) L stands for 2 L
ones     1

and, with the specification's own `init_scale` s: constant s, gaussian N(0, s), uniform on [-s, s].
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from megatron_tlm.comm.rng import hashed_seed
from megatron_tlm.model.stage import Stage
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.params import ParameterSpec


def draw_parameter(spec: ParameterSpec, *, seed: int, std: float, num_branches: int) -> Tensor:
    """The whole tensor in float32 on the CPU, a function of (seed, global name) alone."""
    if spec.init == "ones":
        return torch.ones(spec.shape)
    if spec.init == "constant":
        return torch.full(spec.shape, spec.init_scale)
    generator = torch.Generator().manual_seed(hashed_seed("init", seed, spec.name))
    if spec.init == "uniform":
        return torch.empty(spec.shape).uniform_(-spec.init_scale, spec.init_scale, generator=generator)
    if spec.init == "gaussian":
        std = spec.init_scale
    if spec.init == "output":
        std = std / math.sqrt(num_branches)
    return torch.empty(spec.shape).normal_(0.0, std, generator=generator)


def init_parameters(
    parameters: Mapping[str, nn.Parameter], plan: Plan, tensor_rank: int, *, seed: int, std: float
) -> None:
    """Fill one tensor rank's parameters, by global name; padding rows of the vocabulary become zero."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            spec = plan.parameter_specs[name]
            share = plan.shard(spec, tensor_rank)
            whole = draw_parameter(spec, seed=seed, std=std, num_branches=plan.shape.num_branches)
            parameter.zero_()
            parameter[tuple(slice(extent) for extent in share.size)] = whole[
                tuple(slice(start, start + extent) for start, extent in zip(share.offset, share.size, strict=True))
            ]


def init_stage(stage: Stage, plan: Plan, seed: int, std: float = 0.02) -> None:
    """Fill a stage's parameters with the initial weights of `seed`."""
    init_parameters(stage.global_parameters(), plan, stage.tensor.rank, seed=seed, std=std)
