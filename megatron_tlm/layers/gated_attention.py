"""Attention whose output is gated by the block's input, head by head, before the output projection (arXiv:2505.06708).

    y = (softmax(q k^T / sqrt(H)) v * sigmoid(x W_gate)) W_o        a gate per channel or one per head

The gate reads what q, k and v read, and multiplies local heads, so it communicates nothing. Its weight is a parameter
of its own: packed into the query's, it would be cut at the wrong rows by some layout. Initial gates are near 1/2; the
halved branch is not compensated for.

Shapes: B microbatch, S sequence, D model width, H head width, n this rank's query heads.
"""

from typing import Any

import torch
from torch import Tensor

from megatron_tlm.layers.attention import Attention
from megatron_tlm.layers.linear import ColumnLinear
from megatron_tlm.layers.placement import Kept


class GatedAttention(Attention):
    """`gate_size` is N * H for a gate per channel, N for one per head."""

    def __init__(self, width: int, num_heads: int, *args: Any, gate_size: int, **options: Any) -> None:
        super().__init__(width, num_heads, *args, **options)
        self.gate = ColumnLinear(width, gate_size, self.placement)

    def gated(self, y_BSnH: Tensor, x_BSD: Tensor, kept: Kept | None) -> Tensor:
        """The sigmoid is taken in float32, the product in the activation's dtype."""
        logits_BSn_ = self.gate(x_BSD, kept=kept).unflatten(-1, (self.heads.num_queries, -1))
        gate_BSn_ = torch.sigmoid(logits_BSn_.to(torch.promote_types(logits_BSn_.dtype, torch.float32)))
        return y_BSnH * gate_BSn_.to(y_BSnH.dtype)
