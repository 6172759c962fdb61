"""Matrices shared out over tensor ranks (Megatron-LM, arXiv:1909.08053). None has a bias.

Shapes: B microbatch, S sequence, s this rank's share of it, D model width, F inner width; f this rank's share of F.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_tlm.comm.collectives import copy_to
from megatron_tlm.layers.placement import Placement
from megatron_tlm.plan.shards import local_width


class ColumnLinear(nn.Module):
    """Rank r computes columns [r f, (r + 1) f) of the output; the input has passed `placement.enter`.

    PlanError where the tensor degree does not divide the output size.
    """

    def __init__(self, in_size: int, out_size: int, placement: Placement) -> None:
        super().__init__()
        local_size = local_width(out_size, placement.tensor.size, "column linear's output size")
        self.weight = placement.parameter((local_size, in_size), sharded=True)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, f]."""
        return F.linear(x_BSD, self.weight)


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

    def forward(self, x_BSD: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, len(rows)]."""
        return F.linear(x_BSD, copy_to(self.weight, self.placement.tensor)[self.rows.start : self.rows.stop])
