"""From what the user asked for to micro-batches: which corpora, which split, and each data rank's share of a step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.config.named import named_sets
from megatron_tlm.config.schema import DataConfig
from megatron_tlm.data.blend import Blend, BlendedDataset, BlendState, parse_blend
from megatron_tlm.data.fingerprint import PLANNED, Fingerprint, Scalar, build_fingerprint
from megatron_tlm.data.gpt_dataset import GPTDataset, SampleDataset, check_vocabulary
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.mock_dataset import MockDataset
from megatron_tlm.data.samples import SPLIT_NAMES, split_documents
from megatron_tlm.errors import DataError

MOCK_EPOCH = 1024  # samples of made-up data where one epoch is asked for
BLEND_STATE = "data.blend_state"


@dataclass(frozen=True)
class Datasets:
    """The three splits, None where no sample of it is wanted or there; `notes` tell what a person should know."""

    train: SampleDataset | None
    valid: SampleDataset | None
    test: SampleDataset | None
    fingerprint: Fingerprint  # of the training samples
    notes: tuple[str, ...]
    named: Mapping[str, SampleDataset] = field(default_factory=dict)  # validation sets beside `valid`


def build_datasets(
    data: DataConfig,
    *,
    num_samples: tuple[int | None, int | None, int | None],
    seq_length: int,
    seed: int,
    vocab_size: int,
    before: Mapping[str, Scalar] | None = None,
) -> Datasets:
    """Open the corpora and lay out at least `num_samples` samples of train, valid and test.

    0 means the split is not wanted, None one epoch of it; named validation sets get as many as `valid`. `before` is
    what a checkpoint kept of its data: the order made for that run's length is kept, and a blend goes on where it was.
    An empty valid or test split is told and left out. Raises DataError for a missing corpus, an empty train split, a
    sequence longer than the split, ids beyond `vocab_size`.
    """
    builder = _Builder(data, seq_length, seed, vocab_size, before or {})
    train, valid, test = (builder.split(which, wanted) for which, wanted in enumerate(num_samples))
    fingerprint = builder.fingerprint(num_samples[0] or 0)
    return Datasets(train, valid, test, fingerprint, tuple(builder.notes), builder.named(num_samples[1]))


def check_corpora(data: DataConfig, vocab_size: int, *, valid: bool) -> None:
    """DataError for a corpus of train, or of `valid`, that is missing, damaged or has ids beyond `vocab_size`."""
    for prefix in corpora(data, valid=valid):
        check_vocabulary(IndexedDataset(prefix), vocab_size)


def corpora(data: DataConfig, *, valid: bool) -> tuple[str, ...]:
    """The prefixes of all pairs that train, and `valid`, read; made-up data stands for all but named sets."""
    paths = () if data.mock_data else _split_paths(data) or (data.data_path,)
    found = {prefix for words in paths[: 1 + valid] if words for prefix in parse_blend(words).prefixes}
    named = named_sets(data.eval_data, "data.eval_data").values() if valid else ()
    return tuple(sorted(found.union(named)))


def data_facts(datasets: Datasets, consumed_samples: int) -> dict[str, Scalar]:
    """What a checkpoint keeps of its data, for `build_datasets` and the fingerprint's `check`."""
    facts = dict(datasets.fingerprint.values)
    if isinstance(datasets.train, BlendedDataset):
        facts[BLEND_STATE] = datasets.train.state(consumed_samples % len(datasets.train)).to_text()
    return facts


def samples_by_source(dataset: SampleDataset, num_samples: int) -> dict[str, int]:
    """How many of the first samples come from each corpus, by prefix; empty for made-up data."""
    if isinstance(dataset, GPTDataset):
        return {dataset.indexed.prefix: num_samples}
    if not isinstance(dataset, BlendedDataset):
        return {}
    rounds, rest = divmod(num_samples, len(dataset))
    whole, part = dataset.taken(len(dataset)) if rounds else (0,) * len(dataset.datasets), dataset.taken(rest)
    names = [source.indexed.prefix for source in dataset.datasets if isinstance(source, GPTDataset)]
    return {name: rounds * a + b for name, a, b in zip(names, whole, part, strict=True)}


class _Piece(NamedTuple):
    """The sequences of one corpus that belong to one split, and its weight if there are several."""

    indexed: IndexedDataset
    documents: range
    weight: float


class _Builder:
    def __init__(
        self, data: DataConfig, seq_length: int, seed: int, vocab_size: int, before: Mapping[str, Scalar]
    ) -> None:
        self._data, self._seq_length, self._seed, self._vocab_size = data, seq_length, seed, vocab_size
        self._before = before
        self._planned = before.get(PLANNED)
        self._opened: dict[str, IndexedDataset] = {}
        self._cache = Path(data.data_cache_path) if data.data_cache_path else None
        self._paths = None if data.mock_data else _split_paths(data)
        self._trained: tuple[Blend, list[_Piece]] | None = None
        self.notes: list[str] = []

    def split(self, which: int, wanted: int | None) -> SampleDataset | None:
        if wanted == 0:
            return None
        if self._data.mock_data:
            size = MOCK_EPOCH if wanted is None else wanted
            return MockDataset(size, self._seq_length, self._vocab_size, self._seed + which)
        address = f"data.{SPLIT_NAMES[which]}_data_path" if self._paths else "data.data_path"
        words = self._paths[which] if self._paths else self._data.data_path
        if self._paths and which and not words:
            self.notes.append(f"no {SPLIT_NAMES[which]} samples: {address} names no corpus")
            return None
        blend = parse_blend(words, address)
        pieces = self._pieces(blend, which)
        if not pieces:
            return None
        if which == 0:
            self._trained = (blend, pieces)
        return self._build(blend, pieces, wanted, tell=which == 0)

    def named(self, wanted: int | None) -> dict[str, SampleDataset]:
        """The whole of each, in an order that depends on nothing but itself, the seed and the number wanted."""
        if wanted == 0:
            return {}
        pairs = {
            name: self._open(prefix) for name, prefix in named_sets(self._data.eval_data, "data.eval_data").items()
        }
        return {name: self._corpus(_Piece(pair, range(len(pair)), 1.0), wanted) for name, pair in pairs.items()}

    def _open(self, prefix: str) -> IndexedDataset:
        if prefix not in self._opened:
            self._opened[prefix] = IndexedDataset(prefix)
            check_vocabulary(self._opened[prefix], self._vocab_size)
        return self._opened[prefix]

    def _pieces(self, blend: Blend, which: int) -> list[_Piece]:
        """What each corpus has for a split; one that has nothing is told and left out, for training refused."""
        pieces = []
        for prefix, weight in zip(blend.prefixes, blend.weights or (1.0,), strict=True):
            indexed = self._open(prefix)
            if self._paths is not None:
                pieces.append(_Piece(indexed, range(len(indexed)), weight))
                continue
            documents = split_documents(self._data.split, len(indexed))[which]
            if documents:
                pieces.append(_Piece(indexed, documents, weight))
                continue
            what = (
                f"data.split = {self._data.split!r} leaves 0 of the {len(indexed)} sequences of {indexed.prefix} "
                f"for {SPLIT_NAMES[which]}"
            )
            if which == 0:
                raise DataError(f"{what}; raise its share")
            self.notes.append(f"no {SPLIT_NAMES[which]} samples of it: {what}")
        return pieces

    def _build(self, blend: Blend, pieces: list[_Piece], wanted: int | None, *, tell: bool) -> SampleDataset:
        if blend.weights is None:
            dataset = self._corpus(pieces[0], self._plan(wanted) if tell and wanted is not None else wanted)
            if tell:
                self._tell_epochs(dataset, wanted)
            return dataset
        if wanted is None:
            raise DataError(
                f"num_samples = None, one epoch, has no meaning for {len(pieces)} blended corpora; give a number"
            )
        total = sum(piece.weight for piece in pieces)
        weights = tuple(piece.weight / total for piece in pieces)
        blend = Blend(tuple(piece.indexed.prefix for piece in pieces), weights)
        planned = self._plan(wanted) if tell else wanted
        datasets = [self._corpus(piece, n) for piece, n in zip(pieces, blend.sizes(planned), strict=True)]
        if tell:
            for dataset, target in zip(datasets, blend.targets(wanted), strict=True):
                self._tell_epochs(dataset, target)
        state = BlendState.from_text(str(self._before.get(BLEND_STATE, ""))) if tell else None
        return BlendedDataset(datasets, weights, sum(blend.targets(wanted)), state=state)

    def _plan(self, wanted: int) -> int:
        """The length of run that the order is made for: the first run's, or a longer one would read it all anew."""
        return self._planned if isinstance(self._planned, int) and self._planned > 0 else wanted

    def _corpus(self, piece: _Piece, wanted: int | None) -> GPTDataset:
        return GPTDataset(
            piece.indexed,
            piece.documents,
            wanted,
            self._seq_length,
            self._seed,
            vocab_size=self._vocab_size,
            cache=self._cache,
        )

    def _tell_epochs(self, dataset: GPTDataset, wanted: int | None) -> None:
        tokens = dataset.tokens_per_epoch
        samples = len(dataset) if wanted is None else wanted
        self.notes.append(
            f"data: {dataset.indexed.prefix}: {tokens} tokens in {len(dataset.documents)} sequences to train on, "
            f"{samples} samples of it are {samples * self._seq_length / tokens:.2f} epochs"
        )

    def fingerprint(self, planned_samples: int) -> Fingerprint:
        """Of what is trained on."""
        blend, pieces = self._trained or (Blend((), None), [])
        return build_fingerprint(
            "made-up" if self._data.mock_data else "corpora",
            [piece.indexed for piece in pieces],
            blend.weights,
            seed=self._seed,
            seq_length=self._seq_length,
            split="" if self._paths or self._data.mock_data else self._data.split,
            planned_samples=self._plan(planned_samples),
        )


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
