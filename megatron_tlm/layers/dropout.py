"""Dropout whose mask is equal on tensor ranks where the activation is, and independent where it is shared out."""

import torch.nn.functional as F
from torch import Tensor

from megatron_tlm.comm.rng import shard_stream
from megatron_tlm.layers.placement import Placement


def residual_dropout(x_BsD: Tensor, probability: float, placement: Placement) -> Tensor:
    """Dropout on what a block adds to the residual stream: replicated, or a sequence shard. For training only."""
    if probability == 0.0:
        return x_BsD
    if not placement.shards_sequence:
        return F.dropout(x_BsD, probability)
    with shard_stream(placement.tensor, x_BsD.device):
        return F.dropout(x_BsD, probability)
