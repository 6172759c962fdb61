"""From what the user asked for to micro-batches: which corpora, which split, and each data rank's share of a step."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.config.schema import DataConfig
from megatron_tlm.data.blend import Blend, BlendedDataset, parse_blend
from megatron_tlm.data.gpt_dataset import GPTDataset, SampleDataset, check_vocabulary
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.mock_dataset import MockDataset
from megatron_tlm.data.samples import SPLIT_NAMES, split_documents
from megatron_tlm.errors import DataError

MOCK_EPOCH = 1024  # samples of made-up data where one epoch is asked for


class Datasets(NamedTuple):
    """The three splits; None where no sample of it is wanted."""

    train: SampleDataset | None
    valid: SampleDataset | None
    test: SampleDataset | None


def build_datasets(
    data: DataConfig,
    *,
    num_samples: tuple[int | None, int | None, int | None],
    seq_length: int,
    seed: int,
    vocab_size: int,
) -> Datasets:
    """Open the corpora and lay out at least `num_samples` samples of train, valid and test.

    0 means the split is not wanted, None one epoch of it. Raises DataError for a missing corpus, a wanted but empty
    split, a sequence longer than the split, ids beyond `vocab_size`.
    """
    if data.mock_data:
        return Datasets(*(_mock(n, seq_length, vocab_size, seed + i) for i, n in enumerate(num_samples)))
    split_paths = _split_paths(data)
    opened: dict[str, IndexedDataset] = {}
    built: list[SampleDataset | None] = [None, None, None]
    for which, wanted in enumerate(num_samples):
        if wanted == 0:
            continue
        own = split_paths is not None
        address = f"data.{SPLIT_NAMES[which]}_data_path" if own else "data.data_path"
        blend = parse_blend(split_paths[which] if split_paths else data.data_path, address)
        for prefix in blend.prefixes:
            if prefix not in opened:
                opened[prefix] = IndexedDataset(prefix)
                check_vocabulary(opened[prefix], vocab_size)
        pieces = [
            _Piece(opened[prefix], range(len(opened[prefix])) if own else _cut(opened[prefix], data.split, which))
            for prefix in blend.prefixes
        ]
        built[which] = _build_split(blend, pieces, wanted, seq_length, seed, vocab_size)
    return Datasets(*built)


class _Piece(NamedTuple):
    """The sequences of one corpus that belong to one split."""

    indexed: IndexedDataset
    documents: range


def _mock(num_samples: int | None, seq_length: int, vocab_size: int, seed: int) -> SampleDataset | None:
    if num_samples == 0:
        return None
    return MockDataset(MOCK_EPOCH if num_samples is None else num_samples, seq_length, vocab_size, seed)


def _split_paths(data: DataConfig) -> tuple[tuple[str, ...], ...] | None:
    """The corpora of each split, where they are given apart; None where `data_path` is cut by shares."""
    paths = (data.train_data_path, data.valid_data_path, data.test_data_path)
    if not any(paths):
        return None
    if data.data_path:
        own = next(path for path in paths if path)
        raise DataError(
            f"data.data_path = {' '.join(data.data_path)!r} stands beside a path for one split, {' '.join(own)!r}; "
            "give the one or the others"
        )
    return paths


def _cut(indexed: IndexedDataset, split: str, which: int) -> range:
    documents = split_documents(split, len(indexed))[which]
    if not documents:
        raise DataError(
            f"data.split = {split!r} leaves 0 of the {len(indexed)} sequences of {indexed.prefix} for "
            f"{SPLIT_NAMES[which]}; raise its share, or set eval_iters to 0 where it is for evaluation"
        )
    return documents


def _build_split(
    blend: Blend, pieces: list[_Piece], wanted: int | None, seq_length: int, seed: int, vocab_size: int
) -> SampleDataset:
    def build(piece: _Piece, samples: int | None) -> GPTDataset:
        return GPTDataset(piece.indexed, piece.documents, samples, seq_length, seed, vocab_size=vocab_size)

    if blend.weights is None:
        return build(pieces[0], wanted)
    if wanted is None:
        raise DataError(
            f"num_samples = None, one epoch, has no meaning for {len(pieces)} blended corpora; give a number"
        )
    datasets = [build(piece, samples) for piece, samples in zip(pieces, blend.sizes(wanted), strict=True)]
    return BlendedDataset(datasets, blend.weights, sum(blend.targets(wanted)))


def micro_batches(
    dataset: SampleDataset,
    *,
    start_sample: int,
    micro_batch_size: int,
    global_batch_size: int,
    data_rank: int = 0,
    data_size: int = 1,
) -> Iterator[NDArray[np.int64]]:
    """This data rank's micro-batches, int64 [micro_batch_size, seq_length + 1], from `start_sample` on, for ever.

    The order depends on consumed samples alone: sample g of a step belongs to micro-batch g // (micro x data) on data
    rank (g // micro) % data. After the last sample the dataset starts again.
    """
    across = micro_batch_size * data_size
    if global_batch_size % across:
        raise DataError(
            f"training.global_batch_size = {global_batch_size} is no multiple of micro_batch_size {micro_batch_size} x "
            f"data degree {data_size}; {_nearest(global_batch_size, across)} would work"
        )
    first = start_sample + data_rank * micro_batch_size
    while True:
        rows = (dataset[sample % len(dataset)] for sample in range(first, first + micro_batch_size))
        yield np.stack(list(rows))
        first += across


def _nearest(value: int, step: int) -> str:
    below = value // step * step
    return f"{below} or {below + step}" if below else str(step)
