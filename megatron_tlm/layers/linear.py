"""Matrices shared out over tensor ranks (Megatron-LM, arXiv:1909.08053). None has a bias.

Shapes: B microbatch, S sequence, s this rank's share of it, D model width, F inner width; f this rank's share of F.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_tlm.comm.collectives import copy_to
from megatron_tlm.layers.placement import GatheredAgain, Kept, Placement
from megatron_tlm.plan.shards import local_width


class _ShardKeepingLinear(torch.autograd.Function):
    """y = x W^T that keeps x's sequence shard for backward; gathering it anew runs beside the input's gradient."""

    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, weight_fD: Tensor, shard_BsD: Tensor, again: GatheredAgain) -> Tensor:
        again.expect_user()
        ctx.again = again
        ctx.save_for_backward(weight_fD, shard_BsD)
        return F.linear(x_BSD, weight_fD)

    @staticmethod
    def backward(ctx: Any, grad_BSf: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weight_fD, shard_BsD = ctx.saved_tensors
        ctx.again.start(shard_BsD)
        grad_BSD = grad_BSf @ weight_fD
        grad_fD = grad_BSf.flatten(0, 1).T @ ctx.again.whole().flatten(0, 1)
        return grad_BSD, grad_fD, None, None


def column_product(x_BSD: Tensor, weight_fD: Tensor, kept: Kept | None) -> Tensor:
    """[B, S, D], [f, D] -> [B, S, f]: this rank's columns of the product."""
    if kept is None:
        return F.linear(x_BSD, weight_fD)
    product_BSf: Tensor = _ShardKeepingLinear.apply(x_BSD, weight_fD, *kept)  # type: ignore[no-untyped-call]
    return product_BSf


class ColumnLinear(nn.Module):
    """Rank r computes columns [r f, (r + 1) f) of the output; the input has passed `placement.enter`.

    PlanError where the tensor degree does not divide the output size.
    """

    def __init__(self, in_size: int, out_size: int, placement: Placement) -> None:
        super().__init__()
        local_size = local_width(out_size, placement.tensor.size, "column linear's output size")
        self.weight = placement.parameter((local_size, in_size), sharded=True)

    def forward(self, x_BSD: Tensor, *, kept: Kept | None = None) -> Tensor:
        """[B, S, D] -> [B, S, f]."""
        return column_product(x_BSD, self.weight, kept)


class RowLinear(nn.Module):
    """Rank r multiplies rows [r f, (r + 1) f) of the input; the ranks' partial sums leave added up.

    PlanError where the tensor degree does not divide the input size.
    """

    def __init__(self, in_size: int, out_size: int, placement: Placement) -> None:
        super().__init__()
        self.placement = placement
        local_size = local_width(in_size, placement.tensor.size, "row linear's input size")
        self.weight = placement.parameter((out_size, local_size), sharded=True)

    def forward(self, x_BSf: Tensor) -> Tensor:
        """[B, S, f] -> [B, s, D]."""
        return self.placement.leave(F.linear(x_BSf, self.weight))


class ReplicatedLinear(nn.Module):
    """Every rank holds the whole weight and computes `rows` of it: keys and values of fewer heads than ranks.

    The gradient is summed over the tensor ranks, so that the copies stay equal and count as one parameter.
    """

    def __init__(self, in_size: int, out_size: int, rows: range, placement: Placement) -> None:
        super().__init__()
        self.placement = placement
        self.rows = rows
        self.weight = placement.parameter((out_size, in_size), sharded=False)

    def forward(self, x_BSD: Tensor, *, kept: Kept | None = None) -> Tensor:
        """[B, S, D] -> [B, S, len(rows)]."""
        weight = copy_to(self.weight, self.placement.tensor)[self.rows.start : self.rows.stop]
        return column_product(x_BSD, weight, kept)
