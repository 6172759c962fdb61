"""Documents packed into one sample: which of its positions belong together, and where each document begins.

    tokens     a  b  E  c  d  E  e        E ends a document and belongs to it
    documents  0  0  0  1  1  1  2
    positions  0  1  2  0  1  2  0

Shapes: B microbatch, S sequence.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """What attention has to know; None where it is as without packing: 0..S-1, and all that came before."""

    positions_BS: Tensor | None
    mask_B1SS: Tensor | None  # True: the query sees the key


def read_packing(tokens_BS: Tensor, eod_id: int, *, positions: bool, attention: bool) -> Packing:
    """The packing that the end-of-document ids among the tokens tell."""
    ends_BS = tokens_BS == eod_id
    documents_BS = ends_BS.cumsum(dim=1) - ends_BS.long()
    mask_B1SS = None
    if attention:
        same_BSS = documents_BS.unsqueeze(2) == documents_BS.unsqueeze(1)
        mask_B1SS = same_BSS.tril().unsqueeze(1)
    if not positions:
        return Packing(None, mask_B1SS)
    places_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
    starts_BS = torch.where(ends_BS.roll(1, dims=1), places_S, 0)
    starts_BS[:, 0] = 0
    return Packing(places_S - starts_BS.cummax(dim=1).values, mask_B1SS)
