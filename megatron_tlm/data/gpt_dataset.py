"""Samples of one split of one corpus: `seq_length + 1` tokens each, documents packed end to end."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.index_cache import Arrays, cached_arrays
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.samples import SampleIndex, build_sample_index
from megatron_tlm.errors import DataError

SCANNED_TOKENS = 1 << 25
SCAN_BLOCKS = 256
CACHE_FORMAT = 1


class SampleDataset(Protocol):
    """Anything that answers sample i as int64 [seq_length + 1], the same whenever it is asked."""

    def __len__(self) -> int: ...

    def __getitem__(self, sample: int) -> NDArray[np.int64]: ...


class GPTDataset:
    """Samples of the sequences `documents` of a corpus, in Megatron's order.

    num_samples None means one epoch. With `vocab_size`, a sample with an id beyond it raises DataError. `cache`: the
    folder where the order lies once it is built.
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
        cache: Path | None = None,
    ) -> None:
        self.indexed = indexed
        self.seq_length = seq_length
        self.vocab_size = vocab_size
        self.documents = documents
        self.index = self._build_index(num_samples, seed, cache)

    def _build_index(self, num_samples: int | None, seed: int, cache: Path | None) -> SampleIndex:
        def build() -> SampleIndex:
            return build_sample_index(
                self.indexed.lengths,
                self.documents,
                num_samples=num_samples,
                seq_length=self.seq_length,
                seed=seed,
                corpus=self.indexed.prefix,
            )

        def build_arrays() -> Arrays:
            index = build()
            epochs = np.array([index.num_epochs])
            return {"documents": index.documents, "samples": index.samples, "shuffle": index.shuffle, "epochs": epochs}

        if cache is None:
            return build()
        description = {
            "format": CACHE_FORMAT,
            "corpus": self.indexed.digest,
            "documents": [self.documents.start, self.documents.stop],
            "num_samples": num_samples,
            "seq_length": self.seq_length,
            "seed": seed,
        }
        arrays = cached_arrays(cache, description, build_arrays)
        return SampleIndex(arrays["documents"], arrays["samples"], arrays["shuffle"], int(arrays["epochs"][0]))

    @property
    def tokens_per_epoch(self) -> int:
        return int(self.indexed.lengths[self.documents.start : self.documents.stop].sum(dtype=np.int64))

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, sample: int) -> NDArray[np.int64]:
        row = int(self.index.shuffle[sample])
        (first, offset), (last, last_offset) = self.index.samples[row : row + 2].tolist()
        ids = np.empty(self.seq_length + 1, np.int64)
        filled = 0
        for position in range(first, last + 1):
            length = last_offset + 1 - offset if position == last else None
            try:
                piece = self.indexed.get(int(self.index.documents[position]), offset, length)
            except IndexError as error:
                raise self._misfit(sample, f"({error})") from None
            ids[filled : filled + len(piece)] = piece[: len(ids) - filled]
            filled += len(piece)
            offset = 0
        if filled != len(ids):  # what is not filled would be whatever the memory held
            raise self._misfit(sample, f"takes {filled} tokens where seq_length + 1 = {len(ids)} make one")
        if self.vocab_size is not None:
            _check_ids(ids, self.vocab_size, self.indexed.prefix)
        return ids

    def _misfit(self, sample: int, reason: str) -> DataError:
        return DataError(
            f"{self.indexed.prefix}: sample {sample} {reason}: the order is not of this corpus; empty the folder of "
            "data_cache_path, or preprocess again"
        )


def check_vocabulary(indexed: IndexedDataset, vocab_size: int) -> None:
    """Refuse a corpus of another tokenizer before training: scans 32 M tokens, spread over the whole.

    A larger id between them is found when its sample is read; `data verify` reads all.
    """
    step = max(SCANNED_TOKENS // SCAN_BLOCKS, indexed.num_tokens // SCAN_BLOCKS)
    for start in range(0, indexed.num_tokens, step):
        block = indexed.tokens[start : start + SCANNED_TOKENS // SCAN_BLOCKS]
        _check_ids(block, vocab_size, indexed.prefix)


def _check_ids(ids: NDArray[np.integer], vocab_size: int, prefix: str) -> None:
    largest = int(ids.max())
    if largest >= vocab_size:
        raise DataError(
            f"{prefix}: token id {largest} is beyond the model's vocab_size = {vocab_size}; "
            "give the tokenizer that made the corpus, or preprocess again"
        )
    smallest = int(ids.min())
    if smallest < 0:
        raise DataError(
            f"{prefix}: token id {smallest} is below 0, the first of the model's vocab_size = {vocab_size}; "
            "the .bin is damaged, preprocess again"
        )
