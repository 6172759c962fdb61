"""RMSNorm (arXiv:1910.07467): y = x / sqrt(mean(x^2) + epsilon) * weight, in float32 whatever the dtype.

NVIDIA apex's fused kernel is used on GPUs where it is installed. The package called `apex` on the public index is
another project, so the kernel itself is looked for, not the name.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_tlm.comm.collectives import copy_to
from megatron_tlm.layers.placement import Placement
from megatron_tlm.plan.shards import local_width

FusedNorm = Callable[[Tensor, Tensor, tuple[int, ...], float], Tensor]


@cache
def apex_rms_norm() -> FusedNorm | None:
    """NVIDIA apex's `fused_rms_norm_affine`, None where that apex or its compiled kernel is absent."""
    try:
        normalization = importlib.import_module("apex.normalization")
        importlib.import_module("fused_layer_norm_cuda")
    except ImportError:
        return None
    if not hasattr(normalization, "FusedRMSNorm"):
        return None
    functional: FusedNorm = importlib.import_module("apex.normalization.fused_layer_norm").fused_rms_norm_affine
    return functional


class _RMSNorm(torch.autograd.Function):
    """What a fused kernel does, in plain torch: autograd over the formula would keep two to five more copies of x.

    With r = 1 / sqrt(mean(x^2) + epsilon), n = x r and g the output's gradient:
    dw = sum over rows of g n,  dx = r (g w - n mean(g n w)).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = torch.linalg.vecdot(wide, wide).unsqueeze(-1).div_(x.shape[-1])
        scale = torch.rsqrt(mean_square.add_(epsilon))
        ctx.save_for_backward(x, weight_D, scale)
        return (wide * scale).mul_(weight_D).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight_D, scale = ctx.saved_tensors
        normalised = x * scale  # of the wide dtype, as scale is
        wide_grad = grad.to(scale.dtype)
        product = (wide_grad * normalised).flatten(0, -2)
        grad_weight_D = product.sum(dim=0).to(weight_D.dtype)
        mean = torch.mv(product, weight_D.to(scale.dtype)).view(scale.shape).div_(x.shape[-1])
        grad_x = torch.addcmul(wide_grad * weight_D, normalised, mean, value=-1.0).mul_(scale)
        return grad_x.to(x.dtype), grad_weight_D, None


def rms_norm(x: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """[..., D] -> [..., D] in the dtype of x; on GPUs by apex's kernel, else by torch's where it has one."""
    if x.is_cuda:
        fused = apex_rms_norm()
        if fused is not None:
            return fused(x, weight_D, tuple(weight_D.shape), epsilon)
        if hasattr(torch.ops.aten, "_fused_rms_norm"):
            return F.rms_norm(x, tuple(weight_D.shape), weight_D, epsilon)
    result: Tensor = _RMSNorm.apply(x, weight_D, epsilon)  # type: ignore[no-untyped-call]
    return result


class RMSNorm(nn.Module):
    """Normalises the residual stream, on sequence shards where that is sharded."""

    def __init__(self, width: int, epsilon: float, placement: Placement) -> None:
        super().__init__()
        self.placement = placement
        self.epsilon = epsilon
        self.weight = placement.parameter((width,), sharded=False)

    def forward(self, x_BsD: Tensor) -> Tensor:
        """[B, s, D] -> [B, s, D]."""
        return rms_norm(x_BsD, self.placement.shared(self.weight), self.epsilon)


class SharedHeadNorm(nn.Module):
    """One weight [H] for all heads: each tensor rank sees only its own heads' part of the gradient, so it is summed."""

    def __init__(self, head_width: int, epsilon: float, placement: Placement) -> None:
        super().__init__()
        self.tensor = placement.tensor
        self.epsilon = epsilon
        self.weight = placement.parameter((head_width,), sharded=False)

    def forward(self, x_BSnH: Tensor) -> Tensor:
        """[B, S, n, H] -> [B, S, n, H], each head by itself."""
        return rms_norm(x_BSnH, copy_to(self.weight, self.tensor), self.epsilon)


class HeadNorm(nn.Module):
    """A weight [n, H] of its own for every head, shared out with the heads."""

    def __init__(self, num_heads: int, head_width: int, epsilon: float, placement: Placement) -> None:
        super().__init__()
        self.epsilon = epsilon
        local_heads = local_width(num_heads, placement.tensor.size, "num_attention_heads")
        self.weight = placement.parameter((local_heads, head_width), sharded=True)

    def forward(self, x_BSnH: Tensor) -> Tensor:
        """[B, S, n, H] -> [B, S, n, H], in the dtype of the weight."""
        wide = x_BSnH.to(torch.promote_types(x_BSnH.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale * self.weight).to(self.weight.dtype)
