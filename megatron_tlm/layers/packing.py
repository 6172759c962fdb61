"""Documents packed into one sample: which of its positions belong together, and where each document begins.

    tokens     a  b  E  c  d  E  e        E ends a document and belongs to it
    documents  0  0  0  1  1  1  2
    positions  0  1  2  0  1  2  0

Shapes: B microbatch, S sequence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

SHORT = 512  # tokens: shorter neighbours attend in one call, or many of them would be as many calls


@dataclass(frozen=True, eq=False)
class Span:
    """Neighbouring tokens of a row that see none outside; S are theirs alone."""

    row: int
    start: int
    stop: int
    mask_SS: Tensor | None  # True: the query sees the key; None for a single document, where all came before


@dataclass(frozen=True, eq=False)
class Packing:
    """What attention has to know; None where it is as without packing: 0..S-1, and all that came before."""

    positions_BS: Tensor | None
    spans: tuple[Span, ...] | None  # end to end, row after row


def read_packing(
    tokens_BS: Tensor, eod_id: int, *, positions: bool, attention: bool, device: torch.device | None = None
) -> Packing:
    """The packing that the end-of-document ids among the tokens tell; these lie in the host's memory."""
    ends_BS = tokens_BS == eod_id
    spans = tuple(_spans(ends_BS, device)) if attention else None
    if not positions:
        return Packing(None, spans)
    places_S = torch.arange(tokens_BS.shape[1])
    starts_BS = torch.where(ends_BS.roll(1, dims=1), places_S, 0)
    starts_BS[:, 0] = 0
    return Packing((places_S - starts_BS.cummax(dim=1).values).to(device), spans)


def _spans(ends_BS: Tensor, device: torch.device | None) -> Iterator[Span]:
    """One document each, or several that are not longer than SHORT together."""
    length = ends_BS.shape[1]
    documents_BS = ends_BS.cumsum(dim=1) - ends_BS.long()
    for row, (ends_S, documents_S) in enumerate(zip(ends_BS, documents_BS, strict=True)):
        borders = sorted({0, *(ends_S.nonzero().flatten() + 1).tolist(), length})
        cuts = [0]
        for start, stop in pairwise(borders):
            if start > cuts[-1] and stop - cuts[-1] > SHORT:
                cuts.append(start)
        for start, stop in pairwise([*cuts, length]):
            ids_S = documents_S[start:stop]
            alone = bool(ids_S[0] == ids_S[-1])
            yield Span(row, start, stop, None if alone else (ids_S[:, None] == ids_S).tril().to(device))
