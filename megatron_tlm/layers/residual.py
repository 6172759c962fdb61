"""What every block between two cuts of a pipeline is: h + dropout(branch(norm(h))), recomputed in backward if asked.

Shapes: B microbatch, S sequence, s this rank's share of it, D model width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megatron_tlm.config.schema import Recompute
from megatron_tlm.layers.dropout import residual_dropout
from megatron_tlm.layers.norm import RMSNorm
from megatron_tlm.layers.placement import Placement


@dataclass(frozen=True)
class BlockOptions:
    """What a block does in training only; the defaults are those of evaluation."""

    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    recompute: Recompute | None = None
    compile_memory: bool = False

    @property
    def draws(self) -> bool:
        """Whether a forward takes random numbers, which a recomputation has to take again."""
        return self.hidden_dropout > 0.0 or self.attention_dropout > 0.0


class ResidualBlock(nn.Module):
    """A pre-norm block; a subclass gives `branch`. Its parameters are named as in the parameter table."""

    def __init__(self, width: int, epsilon: float, placement: Placement, options: BlockOptions) -> None:
        super().__init__()
        self.placement = placement
        self.options = options
        self.norm = RMSNorm(width, epsilon, placement)

    def branch(self, x_BsD: Tensor, **state: Any) -> Tensor:
        """[B, s, D], normalised -> what is added to the residual stream, [B, s, D]."""
        raise NotImplementedError

    def new_cache(self, batch: int, capacity: int) -> Any:
        """What `branch` remembers of `batch` sequences while decoding up to `capacity` tokens; None for nothing."""
        return None

    def forward(self, h_BsD: Tensor, **state: Any) -> Tensor:
        """[B, s, D] -> [B, s, D]."""
        if self.options.recompute == "full" and self.training and torch.is_grad_enabled() and "cache" not in state:
            recomputed: Tensor = checkpoint(
                self._block, h_BsD, use_reentrant=False, preserve_rng_state=self.options.draws, **state
            )
            return recomputed
        return self._block(h_BsD, **state)

    def _block(self, h_BsD: Tensor, **state: Any) -> Tensor:
        added_BsD = self.branch(self.norm(h_BsD), **state)
        if self.training:
            added_BsD = residual_dropout(added_BsD, self.options.hidden_dropout, self.placement)
        return h_BsD + added_BsD
