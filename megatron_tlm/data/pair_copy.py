"""Pairs out of pairs: many merged into one, one cut into several; blocks of a corpus in memory, never the whole."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.indexed_dataset import IndexedDataset, pair_paths
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.data.samples import SPLIT_NAMES, split_documents
from megatron_tlm.errors import DataError

BLOCK_DOCUMENTS = 1 << 16


def find_pairs(inputs: Sequence[str]) -> tuple[str, ...]:
    """The prefixes that folders (all pairs in one, by name) and prefixes mean; DataError for half a pair."""
    found: dict[str, None] = {}
    for given in inputs:
        if not Path(given).is_dir():
            found[str(pair_paths(given)[0])[: -len(".bin")]] = None
            continue
        names = sorted({str(path)[:-4] for path in Path(given).iterdir() if path.suffix in (".bin", ".idx")})
        if not names:
            raise DataError(f"input = {given} holds no .bin/.idx pair; give the folder that does, or prefixes")
        found |= dict.fromkeys(names)
    return tuple(found)


def merge(prefixes: Sequence[str], output_prefix: str) -> IndexedDataset:
    """All sequences and documents in the order given.

    DataError where the token types differ, an index is damaged, or the disk is full.
    """
    _spare_inputs(output_prefix, prefixes)
    first = _open(prefixes[0])
    for prefix in prefixes[1:]:  # before a byte is written
        other = _open(prefix)
        if other.header.dtype != first.header.dtype:
            raise DataError(
                f"{prefix} has {other.header.dtype} tokens where {prefixes[0]} has {first.header.dtype}; "
                "merge pairs of one tokenizer"
            )
    with _writer(output_prefix, first.header.dtype) as writer:
        for prefix in prefixes:
            dataset = IndexedDataset(prefix)
            _copy(dataset, range(len(dataset)), writer)
    return IndexedDataset(output_prefix)


def split_by_shares(prefix: str, split: str, output_prefix: str) -> dict[str, IndexedDataset | None]:
    """`{output_prefix}_train`, `_valid` and `_test` holding what `--split` gives them; None for no sequence."""
    dataset = _open(prefix)
    parts = split_documents(split, len(dataset))
    return _write_parts(
        dataset, {f"{output_prefix}_{name}": part for name, part in zip(SPLIT_NAMES, parts, strict=True)}
    )


def split_evenly(prefix: str, shards: int, output_prefix: str) -> dict[str, IndexedDataset | None]:
    """`{output_prefix}_00000` ...: parts of nearly equal tokens, in order, cut between sequences."""
    dataset = _open(prefix)
    if not 1 <= shards <= max(1, len(dataset)):
        raise DataError(f"shards = {shards} is not 1 to the {len(dataset)} sequences of {prefix}; give fewer")
    targets = np.arange(1, shards) * dataset.num_tokens // shards * dataset.header.dtype.itemsize
    cuts = np.searchsorted(dataset.byte_offsets, targets).tolist()
    ranges = [range(start, stop) for start, stop in pairwise([0, *cuts, len(dataset)])]
    return _write_parts(dataset, {f"{output_prefix}_{number:05d}": part for number, part in enumerate(ranges)})


def _open(prefix: str) -> IndexedDataset:
    dataset = IndexedDataset(prefix)
    if dataset.idx_path.stat().st_size != dataset.header.file_bytes:
        raise DataError(
            f"{dataset.idx_path} has {len(dataset)} modes of a multimodal set behind the index, which would be lost; "
            "copy it with the tool that made it"
        )
    return dataset


def _write_parts(dataset: IndexedDataset, parts: Mapping[str, range]) -> dict[str, IndexedDataset | None]:
    for prefix in parts:  # before a byte is written
        _spare_inputs(prefix, [dataset.prefix])
    return {prefix: _write_part(dataset, part, prefix) for prefix, part in parts.items()}


def _write_part(dataset: IndexedDataset, part: range, prefix: str) -> IndexedDataset | None:
    if not part:
        return None
    with _writer(prefix, dataset.header.dtype) as writer:
        _copy(dataset, part, writer)
    return IndexedDataset(prefix)


def _spare_inputs(output_prefix: str, prefixes: Sequence[str]) -> None:
    """DataError where an output would take the place of an input, however the two are spelt."""
    if pair_paths(output_prefix)[0].resolve() in {pair_paths(prefix)[0].resolve() for prefix in prefixes}:
        raise DataError(f"output_prefix = {output_prefix} is one of the {len(prefixes)} inputs; give another")


@contextmanager
def _writer(prefix: str, dtype: np.dtype[np.integer]) -> Iterator[IndexedDatasetWriter]:
    """Inputs are mapped, not read: what the system complains of is the output."""
    try:
        with IndexedDatasetWriter(prefix, dtype) as writer:
            yield writer
    except OSError as error:
        raise DataError(
            f"output_prefix = {prefix} cannot be written ({error.strerror}); make room, and repeat the command"
        ) from error


def _copy(dataset: IndexedDataset, part: range, writer: IndexedDatasetWriter) -> None:
    itemsize = dataset.header.dtype.itemsize
    for borders in _documents_of(dataset, part):
        start, stop = int(borders[0]), int(borders[-1])
        lengths = dataset.lengths[start:stop]
        first = int(dataset.byte_offsets[start]) // itemsize if start < stop else 0
        tokens = dataset.tokens[first : first + int(lengths.sum(dtype=np.int64))]
        writer.add_documents(tokens, lengths, np.diff(borders))


def _documents_of(dataset: IndexedDataset, part: range) -> Iterator[NDArray[np.int64]]:
    """Borders, in blocks, of the documents in a range of sequences; one that the range cuts counts as far as it goes.

    An empty document belongs to the sequence behind it, at the end of the corpus to the last one.
    """
    borders, last = dataset.document_borders, part.stop == len(dataset)
    first = int(np.searchsorted(borders, part.start, "left"))
    if first == len(borders) or borders[first] > part.start:  # the range starts inside a document
        first -= 1
    stop = len(borders) - 1 if last else int(np.searchsorted(borders, part.stop, "left"))
    for start in range(first, stop, BLOCK_DOCUMENTS):
        end = min(start + BLOCK_DOCUMENTS, stop)
        yield np.clip(borders[start : end + 1], part.start, part.stop)
