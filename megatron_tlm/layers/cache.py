"""Keys and values of the tokens seen so far, so that decoding computes one position at a time.

Shapes: B batch, C capacity in tokens, S new tokens, k this rank's key/value heads, H head width.
"""

import torch
from torch import Tensor

from megatron_tlm.errors import PlanError


class KeyValueCache:
    """One attention block's cache, [B, k, C, H] twice; it grows by being written, and never by itself."""

    def __init__(
        self, batch: int, heads: int, capacity: int, head_width: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.keys_BkCH = torch.zeros(batch, heads, capacity, head_width, dtype=dtype, device=device)
        self.values_BkCH = torch.zeros_like(self.keys_BkCH)

    def write(self, k_BkSH: Tensor, v_BkSH: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Store the tokens from `position` on; all keys and values up to the last of them. PlanError when full."""
        end = position + k_BkSH.shape[2]
        if end > self.capacity:
            raise PlanError(
                f"cache position = {end} exceeds the capacity of {self.capacity} tokens; make the cache longer"
            )
        self.keys_BkCH[:, :, position:end] = k_BkSH
        self.values_BkCH[:, :, position:end] = v_BkSH
        return self.keys_BkCH[:, :, :end], self.values_BkCH[:, :, :end]
