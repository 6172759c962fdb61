"""The two ends of the vocabulary, each rank holding the rows [r v, (r + 1) v) of the padded table.

Padding rows are zero and stay so: no token asks for them, and the loss leaves their logits out.

Shapes: B microbatch, S sequence, s this rank's share of it, D model width, V padded vocabulary, v this rank's share.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_tlm.layers.linear import column_product
from megatron_tlm.layers.placement import Placement
from megatron_tlm.plan.shards import local_width


class VocabularyEmbedding(nn.Module):
    """Token ids -> vectors; PlanError where the tensor degree does not divide the padded vocabulary."""

    def __init__(self, padded_vocab_size: int, width: int, placement: Placement) -> None:
        super().__init__()
        self.placement = placement
        rows = local_width(padded_vocab_size, placement.tensor.size, "padded vocabulary")
        self.first_row = placement.tensor.rank * rows
        self.weight = placement.parameter((rows, width), sharded=True)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """[B, S] of ids -> [B, s, D]."""
        if self.placement.tensor.size == 1:
            return F.embedding(tokens_BS, self.weight)
        rows_BS = tokens_BS - self.first_row
        absent_BS = (rows_BS < 0) | (rows_BS >= self.weight.shape[0])
        vectors_BSD = F.embedding(rows_BS.masked_fill(absent_BS, 0), self.weight)
        return self.placement.leave(vectors_BSD.masked_fill(absent_BS.unsqueeze(-1), 0.0))


class VocabularyOutput(nn.Module):
    """Vectors -> this rank's logits; `weight` may be the embedding's."""

    def __init__(self, padded_vocab_size: int, width: int, placement: Placement) -> None:
        super().__init__()
        self.placement = placement
        rows = local_width(padded_vocab_size, placement.tensor.size, "padded vocabulary")
        self.weight = placement.parameter((rows, width), sharded=True)

    def forward(self, h_BsD: Tensor) -> Tensor:
        """[B, s, D] -> [B, S, v]."""
        h_BSD, kept = self.placement.enter(h_BsD)
        return column_product(h_BSD, self.weight, kept)
