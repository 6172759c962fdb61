"""SwiGLU (arXiv:2002.05202) of one layer's own width: down(silu(gate(x)) * up(x)).

Shapes: B microbatch, S sequence, s this rank's share of it, D model width, F this layer's MLP width, f this rank's
share of F.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_tlm.layers.linear import ColumnLinear, RowLinear
from megatron_tlm.layers.placement import Placement
from megatron_tlm.layers.residual import BlockOptions, ResidualBlock


class _SwiGLU(torch.autograd.Function):
    """silu(gate) * up, keeping only its two inputs for backward: autograd alone would keep silu(gate) as well."""

    @staticmethod
    def forward(ctx: Any, gate_BSf: Tensor, up_BSf: Tensor) -> Tensor:
        ctx.save_for_backward(gate_BSf, up_BSf)
        return F.silu(gate_BSf).mul_(up_BSf)

    @staticmethod
    def backward(ctx: Any, grad_BSf: Tensor) -> tuple[Tensor, Tensor]:
        gate_BSf, up_BSf = ctx.saved_tensors
        grad_gate_BSf = torch.ops.aten.silu_backward(grad_BSf * up_BSf, gate_BSf)
        return grad_gate_BSf, F.silu(gate_BSf).mul_(grad_BSf)


def swiglu(gate_BSf: Tensor, up_BSf: Tensor) -> Tensor:
    """[B, S, f], [B, S, f] -> silu(gate) * up."""
    result: Tensor = _SwiGLU.apply(gate_BSf, up_BSf)  # type: ignore[no-untyped-call]
    return result


class SwiGLU(ResidualBlock):
    """The MLP of one layer; PlanError where the tensor degree does not divide its width."""

    def __init__(
        self, width: int, inner_width: int, *, epsilon: float, placement: Placement, options: BlockOptions
    ) -> None:
        super().__init__(width, epsilon, placement, options)
        self.gate = ColumnLinear(width, inner_width, placement)
        self.up = ColumnLinear(width, inner_width, placement)
        self.down = RowLinear(inner_width, width, placement)

    def branch(self, x_BsD: Tensor, **state: Any) -> Tensor:
        x_BSD, kept = self.placement.enter(x_BsD)
        down_BsD: Tensor = self.down(swiglu(self.gate(x_BSD, kept=kept), self.up(x_BSD, kept=kept)))
        return down_BsD
