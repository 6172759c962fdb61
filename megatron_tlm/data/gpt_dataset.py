"""Samples of one split of one corpus: `seq_length + 1` tokens each, documents packed end to end."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.samples import build_sample_index
from megatron_tlm.errors import DataError

SCANNED_TOKENS = 1 << 25


class SampleDataset(Protocol):
    """Anything that answers sample i as int64 [seq_length + 1], the same whenever it is asked."""

    def __len__(self) -> int: ...

    def __getitem__(self, sample: int) -> NDArray[np.int64]: ...


class GPTDataset:
    """Samples of the sequences `documents` of a corpus, in Megatron's order.

    num_samples None means one epoch. With `vocab_size`, a sample with an id beyond it raises DataError.
    """

    def __init__(
        self,
        indexed: IndexedDataset,
        documents: range,
        num_samples: int | None,
        seq_length: int,
        seed: int,
        *,
        vocab_size: int | None = None,
    ) -> None:
        self.indexed = indexed
        self.seq_length = seq_length
        self.vocab_size = vocab_size
        self.index = build_sample_index(
            indexed.lengths,
            documents,
            num_samples=num_samples,
            seq_length=seq_length,
            seed=seed,
            corpus=indexed.prefix,
        )

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, sample: int) -> NDArray[np.int64]:
        row = int(self.index.shuffle[sample])
        (first, offset), (last, last_offset) = self.index.samples[row : row + 2].tolist()
        ids = np.empty(self.seq_length + 1, np.int64)
        filled = 0
        for position in range(first, last + 1):
            length = last_offset + 1 - offset if position == last else None
            piece = self.indexed.get(int(self.index.documents[position]), offset, length)
            ids[filled : filled + len(piece)] = piece
            filled += len(piece)
            offset = 0
        if self.vocab_size is not None:
            _check_ids(ids, self.vocab_size, self.indexed.prefix)
        return ids


def check_vocabulary(indexed: IndexedDataset, vocab_size: int) -> None:
    """Refuse a corpus of another tokenizer before training: scans its first 32 M tokens.

    A larger id further on is found when its sample is read.
    """
    if indexed.num_tokens:
        _check_ids(indexed.tokens[:SCANNED_TOKENS], vocab_size, indexed.prefix)


def _check_ids(ids: NDArray[np.integer], vocab_size: int, prefix: str) -> None:
    largest = int(ids.max())
    if largest >= vocab_size:
        raise DataError(
            f"{prefix} = token id {largest} is beyond the model's vocab_size = {vocab_size}; "
            "give the tokenizer that made the corpus, or preprocess again"
        )
