"""AdamW: its parameter groups, the fastest implementation at hand, its state before the first step, and clipping.

DeepSpeed wraps what is built here; where it does not (ZeRO 0), gradients are clipped here too.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megatron_tlm.comm.groups import Mesh, all_reduce_sum
from megatron_tlm.config.schema import Config, OptimizerConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.params import ParameterSpec
from megatron_tlm.train.engines.multi_frequency import (
    WINDOW,
    LevelReport,
    MultiFrequencyAdamW,
    Update,
    fresh_state,
    level_periods,
)

MOMENTS = ("exp_avg", "exp_avg_sq")
# What an optimizer may keep beside a tensor and a checkpoint has to hold; `WINDOW` for slow levels alone.
STATE_ROLES = (*MOMENTS, WINDOW)


def parameter_groups(
    parameters: Mapping[str, nn.Parameter],
    specs: Mapping[str, ParameterSpec],
    weight_decay: float,
    *,
    periods: Sequence[int] = (1,),
    tensor_rank: int = 0,
) -> list[dict[str, Any]]:
    """Two groups, decayed and not, by each parameter's specification; PlanError where one would be empty.

    Each level of a continuum memory has two more, with its own period. ZeRO reduces the gradient norm group by group
    over all stages, so a stage that lacks a group would hang the rest. `specs` are the whole model's.
    """
    groups = []
    by_level = level_periods(periods)
    for level in sorted({spec.level for spec in specs.values()}):
        for decay in (True, False):
            chosen = [
                parameter
                for name, parameter in parameters.items()
                if specs[name].decay is decay and specs[name].level == level
            ]
            if not chosen:
                kind = "decayed" if decay else "undecayed"
                of_level = f" of level {level - 1}" if level else ""
                raise PlanError(
                    f"stage = {len(parameters)} parameters, 0 of them {kind}{of_level}, and each stage needs 1 or "
                    "more; use fewer pipeline stages"
                )
            group: dict[str, Any] = {"params": chosen, "weight_decay": weight_decay if decay else 0.0}
            if len(by_level) > 1:
                # What is undecayed in a level is its norm, which all tensor ranks hold.
                group |= {"level": level, "period": by_level.get(level, 1), "counted": decay or tensor_rank == 0}
            groups.append(group)
    return groups


def level_groups(
    parameters: Mapping[str, nn.Parameter], config: Config, plan: Plan, mesh: Mesh
) -> list[dict[str, Any]]:
    """The groups of this rank's parameters in a run."""
    return parameter_groups(
        parameters,
        plan.parameter_specs,
        config.optimizer.weight_decay,
        periods=run_periods(config, plan),
        tensor_rank=mesh.tensor.rank,
    )


def run_periods(config: Config, plan: Plan) -> tuple[int, ...]:
    """Steps between the updates of each level of MLPs, the fastest first."""
    samples = plan.micro_batches * plan.workload.micro_batch_size * plan.grid.data
    return config.architecture.periods(samples * plan.seq_length)


def read_levels(optimizer: torch.optim.Optimizer, config: Config, plan: Plan, mesh: Mesh) -> tuple[LevelReport, ...]:
    """What each level did in the step just taken; empty where there are no levels. Collective."""
    if not isinstance(optimizer, MultiFrequencyAdamW):
        return ()
    by_level = level_periods(run_periods(config, plan))
    return optimizer.meters.read(by_level, mesh, whole_on_data_ranks=config.parallel.zero_stage == 0)


def check_stages(plan: Plan) -> None:
    """PlanError, on every rank, where some stage lacks a level: for one rank to find out would hang the rest."""
    for stage in range(plan.grid.pipe):
        held = {spec.name: spec for unit in plan.stage_units(stage) for spec in unit.parameters}
        missing = {spec.level for spec in plan.parameter_specs.values()} - {spec.level for spec in held.values()}
        if missing:
            raise PlanError(
                f"pipeline stage {stage} = {len(held)} parameters, 0 of them of level {min(missing) - 1}, and each "
                "stage needs 1 or more of every level; use fewer pipeline stages"
            )


def apex_fused_adam() -> type[torch.optim.Optimizer] | None:
    """NVIDIA apex's FusedAdam where it can run, else None.

    The package called `apex` on the public index is another project, and NVIDIA's own may lack its CUDA kernels:
    `amp_C` is the extension that FusedAdam calls.
    """
    if not torch.cuda.is_available() or importlib.util.find_spec("amp_C") is None:
        return None
    try:
        optimizers = importlib.import_module("apex.optimizers")
    except ImportError:
        return None
    found: type[torch.optim.Optimizer] | None = getattr(optimizers, "FusedAdam", None)
    return found


def build_optimizer(
    groups: list[dict[str, Any]], config: OptimizerConfig, update: Update = "mean"
) -> torch.optim.Optimizer:
    """AdamW over the groups: apex's fused kernel where present, else torch's fused one.

    Groups with levels get our own, by `update`: see `train.multi_frequency`.
    """
    betas = (config.adam_beta1, config.adam_beta2)
    if any("period" in group for group in groups):
        return MultiFrequencyAdamW(groups, lr=config.lr, betas=betas, eps=config.adam_eps, update=update)
    fused = apex_fused_adam()
    if fused is not None:
        return fused(groups, lr=config.lr, betas=betas, eps=config.adam_eps, adam_w_mode=True)  # type: ignore[call-arg]
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.adam_eps, fused=True)


def set_learning_rate(optimizer: Any, learning_rate: float) -> None:
    """What the next step uses; `optimizer` is torch's or DeepSpeed's around it."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def begin_state(optimizer: torch.optim.Optimizer, tensors: Iterable[tuple[Tensor, int]], steps: int) -> None:
    """Zero moments for each (tensor that will be stepped, period), as after `steps` steps, for a resume to fill in.

    torch keeps the count beside each tensor's moments, apex in the group.
    """
    counts_in_group = not isinstance(optimizer, torch.optim.AdamW)
    if isinstance(optimizer, MultiFrequencyAdamW):
        for tensor, period in tensors:
            optimizer.state[tensor] = fresh_state(tensor, steps, period, optimizer.window_update)
        return
    for tensor, _ in tensors:
        state: dict[str, Tensor] = {role: torch.zeros_like(tensor) for role in MOMENTS}
        if not counts_in_group:
            # A fused step reads its count on the device.
            state["step"] = torch.tensor(float(steps), dtype=torch.float32, device=tensor.device)
        optimizer.state[tensor] = state
    if counts_in_group:
        for group in optimizer.param_groups:
            group["step"] = steps


def clip_gradients(parameters: Iterable[nn.Parameter], mesh: Mesh, largest: float) -> float:
    """The L2 norm of the whole model's gradient, which is scaled down to `largest` where that is positive.

    Each element counts once: replicated parameters on tensor rank 0, a tied copy not at all. Data ranks agree already.
    """
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in with_gradient if parameter.grad is not None]
    counted = [
        parameter.grad
        for parameter in with_gradient
        if parameter.grad is not None
        and not getattr(parameter, "ds_pipe_replicated", False)
        and (mesh.tensor.rank == 0 or getattr(parameter, "tensor_model_parallel", False))
    ]
    square = sum(float(norm) ** 2 for norm in torch._foreach_norm(counted)) if counted else 0.0
    for axis in (mesh.tensor, mesh.pipe):
        (square,) = all_reduce_sum([square], axis)
    norm = float(square**0.5)
    if largest > 0 and norm + 1e-6 > largest:
        torch._foreach_mul_(gradients, largest / (norm + 1e-6))
    return norm
