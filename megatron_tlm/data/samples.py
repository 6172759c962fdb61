"""Which tokens make which sample: Megatron's GPTDataset, bit for bit, from the table of lengths alone.

The documents of a split are repeated for as many epochs as the samples need, shuffled, laid end to end and cut every
`seq_length` tokens; a sample reads `seq_length + 1` tokens, so it shares one with its neighbour. The samples are then
shuffled as well. Everything random comes from one `RandomState(seed)`, in Megatron's order.
"""

import math
import os
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.errors import DataError

SPLIT_NAMES = ("train", "valid", "test")
BYTES_PER_DOCUMENT, BYTES_PER_SAMPLE = 20, 48  # at the peak, while an order is made
SEPARATE_BELOW = 0.8  # a last epoch used to less than this share is shuffled apart, so early steps see no rare repeats


@dataclass(frozen=True, eq=False)
class SampleIndex:
    """The three arrays of Megatron's cache: sample i is row `shuffle[i]` of `samples`.

    documents: int32 [E * documents], sequence ids; samples: int [n + 1, 2], (position in documents, token offset);
    shuffle: uint32 [n].
    """

    documents: NDArray[np.int32]
    samples: NDArray[np.integer]
    shuffle: NDArray[np.integer]
    num_epochs: int

    def __len__(self) -> int:
        return len(self.shuffle)


def split_documents(split: str, num_sequences: int) -> tuple[range, range, range]:
    """Train, valid and test sequences for a string such as `969,30,1`: contiguous, in file order."""
    words = re.split(r"\s*[,/]\s*|\s+", split.strip())
    shares = [float(word) for word in words if re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", word)]
    if len(shares) < len(words) or len(shares) > 3 or not 0 < sum(shares) < math.inf:
        raise DataError(f"data.split = {split!r} is not one to three shares with a positive sum; give e.g. 969,30,1")
    vector = np.array(shares + [0.0] * (3 - len(shares)), dtype=np.float64)
    borders = [0.0]
    for share in (vector / vector.sum()).tolist():
        borders.append(borders[-1] + share)
    cuts = [round(border * float(num_sequences)) for border in borders]
    return range(cuts[0], cuts[1]), range(cuts[1], cuts[2]), range(cuts[2], cuts[3])


def build_sample_index(
    lengths: NDArray[np.int32],
    documents: range,
    *,
    num_samples: int | None,
    seq_length: int,
    seed: int,
    corpus: str = "the corpus",
) -> SampleIndex:
    """At least `num_samples` samples (one epoch for None) of the given sequences.

    lengths: int32 [N], tokens of every sequence of the corpus. Raises DataError where the sequences together hold no
    whole sample.
    """
    tokens_per_epoch = int(lengths[documents.start : documents.stop].sum(dtype=np.int64))
    if tokens_per_epoch < seq_length + 1:
        raise DataError(
            f"model.seq_length = {seq_length} is too long: a sample takes {seq_length + 1} tokens and this split of "
            f"{corpus} holds {tokens_per_epoch} in {len(documents)} sequences; give more text, a larger share of "
            "data.split or a shorter seq_length"
        )
    num_epochs = 1
    if num_samples is not None:
        num_epochs = max(1, -(-(num_samples * seq_length + 1) // tokens_per_epoch))
        _check_memory(num_samples, seq_length, num_epochs, len(documents), tokens_per_epoch, corpus)
    border = (
        None
        if num_samples is None or num_epochs == 1
        else _last_epoch_border(num_samples, num_epochs, tokens_per_epoch, seq_length)
    )

    random = np.random.RandomState(seed)
    ids = np.arange(documents.start, documents.stop, dtype=np.int32)
    if border is None:
        order = np.tile(ids, num_epochs)
        random.shuffle(order)
    else:
        first, last = np.tile(ids, num_epochs - 1), ids
        random.shuffle(first)
        random.shuffle(last)
        order = np.concatenate([first, last])

    samples = _cut_samples(lengths, order, seq_length)
    return SampleIndex(order, samples, _shuffle_samples(len(samples) - 1, border, random), num_epochs)


def _check_memory(
    num_samples: int, seq_length: int, num_epochs: int, documents: int, tokens_per_epoch: int, corpus: str
) -> None:
    """DataError for an order that this machine cannot hold while it is made."""
    made = num_epochs * tokens_per_epoch // seq_length
    needed, present = BYTES_PER_DOCUMENT * num_epochs * documents + BYTES_PER_SAMPLE * made, memory_bytes()
    if needed > present:
        raise DataError(
            f"num_samples = {num_samples} of {seq_length} tokens are {num_epochs} epochs of {corpus}, whose order "
            f"takes {needed / 1e9:.0f} GB where this machine has {present / 1e9:.0f}; lower train_iters or eval_iters, "
            "or give more text"
        )


def memory_bytes() -> int:
    """Of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _last_epoch_border(num_samples: int, num_epochs: int, tokens_per_epoch: int, seq_length: int) -> int | None:
    """Samples before the last epoch, if that epoch is to be shuffled apart."""
    before = ((num_epochs - 1) * tokens_per_epoch - 1) // seq_length
    per_epoch = (tokens_per_epoch - 1) // seq_length
    return before if num_samples - before < int(SEPARATE_BELOW * per_epoch) else None


def _cut_samples(lengths: NDArray[np.int32], order: NDArray[np.int32], seq_length: int) -> NDArray[np.integer]:
    """Where token `j * seq_length` of the concatenated stream lies, for every j."""
    document_lengths = lengths[order]
    ends = np.cumsum(document_lengths, dtype=np.int64)
    num_samples = (int(ends[-1]) - 1) // seq_length
    starts = np.arange(num_samples + 1, dtype=np.int64) * seq_length
    positions = np.searchsorted(ends, starts, side="right")
    offsets = starts - (ends[positions] - document_lengths[positions])
    largest = max(len(order), int(lengths.max()))
    dtype = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    return np.stack([positions, offsets], axis=1).astype(dtype)


def _shuffle_samples(total: int, border: int | None, random: np.random.RandomState) -> NDArray[np.integer]:
    dtype = np.dtype(np.int64 if total >= np.iinfo(np.uint32).max - 1 else np.uint32)
    order: NDArray[np.integer] = np.arange(total, dtype=dtype)
    if border is None:
        border = total
    random.shuffle(order[:border])
    if border < total:
        random.shuffle(order[border:])
    return order
