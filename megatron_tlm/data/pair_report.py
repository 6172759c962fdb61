"""What a pair holds, and whether it is whole: read in blocks, so that a corpus of any size can be looked at."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.errors import DataError

BLOCK = 1 << 20  # entries of an index, tokens times 4
SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class LengthReport:
    """Tokens of the sequences: `quantiles` at SHARES, `histogram` [k] counts lengths of 2^k .. 2^(k+1) - 1."""

    shortest: int
    mean: float
    quantiles: tuple[int, ...]
    longest: int
    num_zero: int
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class Verified:
    """A pair that is whole. `unended`: documents with tokens whose last one is not the end-of-document id, if asked."""

    tokens: int
    largest_id: int
    empty_documents: int
    unended: int
    sha256: str


def report_lengths(lengths: NDArray[np.int32]) -> LengthReport | None:
    """None for no sequence."""
    if not len(lengths):
        return None
    places = [min(len(lengths) - 1, int(share * len(lengths))) for share in SHARES]
    sorted_there = np.partition(lengths, places)
    counts = np.zeros(32, np.int64)
    total = zero = 0
    for block in _blocks(lengths):
        total += int(block.sum(dtype=np.int64))
        zero += int((block == 0).sum())
        # frexp: length = m 2^e with m in [1/2, 1), so e - 1 is the power of two below it
        counts += np.bincount(np.frexp(block[block > 0])[1] - 1, minlength=32)
    return LengthReport(
        shortest=int(lengths.min()),
        mean=total / len(lengths),
        quantiles=tuple(int(sorted_there[place]) for place in places),
        longest=int(lengths.max()),
        num_zero=zero,
        histogram=tuple(np.trim_zeros(counts, "b").tolist()),
    )


def count_empty(dataset: IndexedDataset) -> int:
    """Documents without a sequence."""
    borders = dataset.document_borders
    return sum(int((np.diff(borders[start : start + BLOCK + 1]) == 0).sum()) for start in range(0, len(borders), BLOCK))


def verify(dataset: IndexedDataset, *, vocab_size: int | None = None, eod_id: int | None = None) -> Verified:
    """Reads the ids of a pair, whose index was checked when it was opened; DataError for the first that cannot be.

    An id of `vocab_size` or more is one; documents that do not end with `eod_id` are counted.
    """
    digest, largest, position = sha256(), -1, 0
    for ids in _blocks(dataset.tokens, 4 * BLOCK):
        digest.update(ids.data)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or (vocab_size is not None and high >= vocab_size):
            wrong = (ids < 0) | (ids >= vocab_size) if vocab_size is not None else ids < 0
            where = int(np.argmax(wrong))
            bound = "0" if low < 0 else f"0..{(vocab_size or 0) - 1}"
            raise DataError(
                f"{dataset.bin_path}: id {ids[where]} at token {position + where} is outside {bound}; "
                "give the tokenizer that made the corpus, or preprocess again"
            )
        largest, position = max(largest, high), position + len(ids)
    unended = _count_unended(dataset, eod_id) if eod_id is not None else 0
    return Verified(dataset.num_tokens, largest, count_empty(dataset), unended, digest.hexdigest())


def _count_unended(dataset: IndexedDataset, eod_id: int) -> int:
    itemsize, count = dataset.header.dtype.itemsize, 0
    for start in range(0, dataset.num_documents, BLOCK):
        borders = dataset.document_borders[start : start + BLOCK + 1]
        last = borders[1:][np.diff(borders) > 0] - 1
        ends = dataset.byte_offsets[last] // itemsize + dataset.lengths[last]
        ends = ends[dataset.lengths[last] > 0]
        count += int((dataset.tokens[ends - 1] != eod_id).sum())
    return count


def _blocks(values: NDArray[np.integer], size: int = BLOCK) -> Iterator[NDArray[np.integer]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]
