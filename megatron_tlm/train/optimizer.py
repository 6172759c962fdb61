"""AdamW: its parameter groups, the fastest implementation at hand, its state before the first step, and clipping.

DeepSpeed wraps what is built here; where it does not (ZeRO 0), gradients are clipped here too.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from megatron_tlm.comm.groups import Mesh, all_reduce_sum
from megatron_tlm.config.schema import OptimizerConfig
from megatron_tlm.errors import PlanError
from megatron_tlm.plan.params import ParameterSpec

MOMENTS = ("exp_avg", "exp_avg_sq")


def parameter_groups(
    parameters: Mapping[str, nn.Parameter], specs: Mapping[str, ParameterSpec], weight_decay: float
) -> list[dict[str, Any]]:
    """Two groups, decayed and not, by each parameter's specification; PlanError where one would be empty.

    ZeRO reduces the gradient norm group by group over all stages, so a stage that lacks a group would hang the rest.
    """
    groups = []
    for decay in (True, False):
        chosen = [parameter for name, parameter in parameters.items() if specs[name].decay is decay]
        if not chosen:
            kind = "decayed" if decay else "undecayed"
            raise PlanError(
                f"stage = {len(parameters)} parameters, 0 of them {kind}, and each stage needs 1 or more; "
                "use fewer pipeline stages"
            )
        groups.append({"params": chosen, "weight_decay": weight_decay if decay else 0.0})
    return groups


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


def build_optimizer(groups: list[dict[str, Any]], config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW over the groups: apex's fused kernel where present, else torch's fused one."""
    betas = (config.adam_beta1, config.adam_beta2)
    fused = apex_fused_adam()
    if fused is not None:
        return fused(groups, lr=config.lr, betas=betas, eps=config.adam_eps, adam_w_mode=True)  # type: ignore[call-arg]
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.adam_eps, fused=True)


def set_learning_rate(optimizer: Any, learning_rate: float) -> None:
    """What the next step uses; `optimizer` is torch's or DeepSpeed's around it."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def begin_state(optimizer: torch.optim.Optimizer, tensors: Iterable[Tensor], steps: int) -> None:
    """Zero moments for each tensor that will be stepped, as after `steps` steps, for a resume to fill in.

    torch keeps the count beside each tensor's moments, apex in the group.
    """
    counts_in_group = not isinstance(optimizer, torch.optim.AdamW)
    for tensor in tensors:
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
