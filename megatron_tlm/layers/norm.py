"""RMSNorm (arXiv:1910.07467): y = x / sqrt(mean(x^2) + epsilon) * weight, in float32 whatever the dtype.

NVIDIA apex's fused kernel is used on GPUs where it is installed. The package called `apex` on the public index is
another project, so the kernel itself is looked for, not the name.
"""

import importlib
from collections.abc import Callable
from functools import cache

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_tlm.layers.placement import Placement

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


def rms_norm(x: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """[..., D] -> [..., D] in the dtype of x."""
    fused = apex_rms_norm() if x.is_cuda else None
    if fused is not None:
        return fused(x, weight_D, tuple(weight_D.shape), epsilon)
    return F.rms_norm(x, tuple(weight_D.shape), weight_D, epsilon)


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
