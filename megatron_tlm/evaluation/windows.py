"""A corpus as windows to measure perplexity on: its tokens in file order, each but the first predicted once."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.indexed_dataset import IndexedDataset


def count_windows(num_tokens: int, seq_length: int, batch: int) -> int:
    """How many arrays `windows` gives: full batches, then what is left of full windows, then a shorter one."""
    full, rest = divmod(max(num_tokens - 1, 0), seq_length)
    return -(-full // batch) + (rest > 0)


def windows(indexed: IndexedDataset, sequences: range, seq_length: int, batch: int) -> Iterator[NDArray[np.int64]]:
    """int64 [B, S + 1], B <= batch, S <= seq_length: neighbours share one token, the last label of one and the first
    input of the next. Documents follow each other as in training; only the last window may be shorter."""
    size = batch * seq_length + 1
    pieces: list[NDArray[np.int64]] = []
    held_tokens = 0
    for sequence in sequences:
        pieces.append(indexed.get(sequence).astype(np.int64))
        held_tokens += len(pieces[-1])
        if held_tokens < size:
            continue
        held = np.concatenate(pieces)
        while len(held) >= size:
            yield _stack(held[:size], seq_length)
            held = held[size - 1 :]
        pieces, held_tokens = [held], len(held)
    held = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
    full = max(len(held) - 1, 0) // seq_length * seq_length
    if full:
        yield _stack(held[: full + 1], seq_length)
    if len(held) - full > 1:
        yield held[None, full:]


def _stack(ids: NDArray[np.int64], seq_length: int) -> NDArray[np.int64]:
    """n S + 1 ids as n windows of S + 1."""
    return np.array(np.lib.stride_tricks.sliding_window_view(ids, seq_length + 1)[::seq_length])
