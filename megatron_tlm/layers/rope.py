"""Rotary positions (arXiv:2104.09864) in the Hugging Face Llama convention: the two halves of a head form the pairs.

    angle(p, i) = p * base^(-2 i / H),  i = 0..H/2-1
    (x_i, x_{i + H/2}) -> (x_i cos - x_{i + H/2} sin,  x_{i + H/2} cos + x_i sin)

Angles and products are float32 (float64 for float64 inputs), since bfloat16 cannot tell neighbouring positions apart.

Shapes: B microbatch, S sequence, n this rank's heads, H head width.
"""

import torch
from torch import Tensor, nn

Table = tuple[Tensor, Tensor]


def rope_table(length: int, head_width: int, base: float, dtype: torch.dtype, device: torch.device) -> Table:
    """cos and sin, each [length, 1, H / 2]."""
    exponents = torch.arange(0, head_width, 2, dtype=torch.int64, device=device).to(dtype) / head_width
    positions = torch.arange(length, dtype=torch.int64, device=device).to(dtype)
    angles = torch.outer(positions, 1.0 / (base**exponents)).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(x_BSnH: Tensor, table: Table) -> Tensor:
    """Turn each pair by its position's angle; the result has the dtype of x."""
    cos, sin = table
    first, second = x_BSnH.to(cos.dtype).chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x_BSnH.dtype)


class RotaryEmbedding(nn.Module):
    """Keeps the table of the longest sequence met so far; it has no parameters and nothing of it is saved."""

    def __init__(self, head_width: int, base: float) -> None:
        super().__init__()
        self.head_width = head_width
        self.base = base
        self._table: Table | None = None

    def forward(self, q_BSnH: Tensor, k_BSkH: Tensor, position: int | Tensor = 0) -> tuple[Tensor, Tensor]:
        """Queries and keys of positions position..position + S - 1, or [B, S] below S each, turned."""
        return self.turn(q_BSnH, position), self.turn(k_BSkH, position)

    def turn(self, x_BSnH: Tensor, position: int | Tensor = 0) -> Tensor:
        """Heads at positions position..position + S - 1, or [B, S] below S each, turned."""
        if isinstance(position, Tensor):
            cos, sin = self._rows(0, x_BSnH.shape[1], x_BSnH)
            return rotate(x_BSnH, (cos[position], sin[position]))
        return rotate(x_BSnH, self._rows(position, x_BSnH.shape[1], x_BSnH))

    def _rows(self, position: int, length: int, like: Tensor) -> Table:
        dtype = torch.promote_types(like.dtype, torch.float32)
        end, table = position + length, self._table
        if table is None or table[0].shape[0] < end or table[0].dtype != dtype or table[0].device != like.device:
            # Doubling keeps token-by-token decoding from building a table per token.
            size = end if position == 0 else 2 * end
            # Outside inference mode, or training after an evaluation would meet tensors it cannot save for backward.
            with torch.inference_mode(False), torch.no_grad():
                table = rope_table(size, self.head_width, self.base, dtype, like.device)
            self._table = table
        return table[0][position:end], table[1][position:end]
