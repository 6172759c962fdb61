"""Samples of a corpus: the right tokens, and no ids the model does not have."""

from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.data.gpt_dataset import GPTDataset, check_vocabulary
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.data.samples import SampleIndex
from megatron_tlm.errors import DataError


@pytest.fixture
def indexed(tmp_path: Path) -> IndexedDataset:
    """Token ids count on from document to document, so each tells where it came from."""
    with IndexedDatasetWriter(tmp_path / "a", np.dtype(np.uint16)) as writer:
        start = 0
        for length in (5, 9, 1, 14, 3, 0, 7, 11, 2, 8):
            writer.add_document(np.arange(start, start + length))
            start += length
    return IndexedDataset(tmp_path / "a")


@pytest.mark.parametrize("num_samples", [None, 5, 23, 50])
def test_samples_are_slices_of_the_shuffled_documents(indexed: IndexedDataset, num_samples: int | None) -> None:
    dataset = GPTDataset(indexed, range(9), num_samples, 6, 1234)
    stream = np.concatenate([indexed[i] for i in dataset.index.documents])
    for sample in range(len(dataset)):
        row = int(dataset.index.shuffle[sample])
        assert dataset[sample].dtype == np.int64
        assert dataset[sample].tolist() == stream[6 * row : 6 * row + 7].tolist()


def test_a_sample_inside_one_document(indexed: IndexedDataset) -> None:
    dataset = GPTDataset(indexed, range(3, 4), None, 4, 1)
    assert sorted(dataset[i].tolist() for i in range(len(dataset))) == [
        [15, 16, 17, 18, 19],
        [19, 20, 21, 22, 23],
        [23, 24, 25, 26, 27],
    ]


def test_ids_beyond_the_vocabulary_are_refused_when_read(indexed: IndexedDataset) -> None:
    assert len(GPTDataset(indexed, range(9), None, 59, 1, vocab_size=60)[0]) == 60
    with pytest.raises(DataError, match="token id 59 is beyond the model's vocab_size = 59"):
        GPTDataset(indexed, range(9), None, 59, 1, vocab_size=59)[0]


def test_a_corpus_of_another_tokenizer_is_refused_at_once(indexed: IndexedDataset) -> None:
    check_vocabulary(indexed, 60)
    with pytest.raises(DataError, match="token id 59 is beyond the model's vocab_size = 32"):
        check_vocabulary(indexed, 32)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_negative_ids_are_refused(dtype: type[np.integer], tmp_path: Path) -> None:
    with IndexedDatasetWriter(tmp_path / "n", np.dtype(np.int32)) as writer:
        writer.add_document([1, 2, 3, 4])
    raw = bytearray((tmp_path / "n.idx").read_bytes())
    raw[17] = {np.int8: 2, np.int32: 4, np.int64: 5}[dtype]
    (tmp_path / "n.bin").write_bytes(np.array([1, -7, 3, 4], dtype).tobytes())
    (tmp_path / "n.idx").write_bytes(bytes(raw))
    indexed = IndexedDataset(tmp_path / "n")
    with pytest.raises(DataError, match=r"token id -7 is below 0, the first of the model's vocab_size = 60; the"):
        check_vocabulary(indexed, 60)
    with pytest.raises(DataError, match="token id -7 is below 0"):
        GPTDataset(indexed, range(1), None, 3, 1, vocab_size=60)[0]


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ((0, 2), r"sample 0 takes 3 tokens where seq_length \+ 1 = 7 make one: the order is not of this corpus"),
        ((1, 2), r"sample 0 takes 17 tokens where seq_length \+ 1 = 7"),
        ((0, 99), r"sample 0 \(tokens 0..100 are outside the 14 of sequence 3\): the order"),
    ],
)
def test_a_sample_that_is_not_whole_is_refused(end: tuple[int, int], message: str, indexed: IndexedDataset) -> None:
    dataset = GPTDataset(indexed, range(9), None, 6, 1234)
    order, samples = np.array([3, 0], np.int32), np.array([(0, 0), end], np.int64)
    dataset.index = SampleIndex(order, samples, np.array([0]), 1)
    with pytest.raises(DataError, match=message):
        dataset[0]


def test_a_corpus_that_is_too_short_is_named(indexed: IndexedDataset) -> None:
    with pytest.raises(DataError, match=rf"seq_length = 64 .* {indexed.prefix} holds 60"):
        GPTDataset(indexed, range(9), None, 64, 1)


def test_a_cached_order_is_the_order(indexed: IndexedDataset, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    plain = GPTDataset(indexed, range(9), 23, 6, 1234)
    for _ in range(2):
        cached = GPTDataset(indexed, range(9), 23, 6, 1234, cache=cache)
        assert [cached[i].tolist() for i in range(len(cached))] == [plain[i].tolist() for i in range(len(plain))]
        assert cached.index.num_epochs == plain.index.num_epochs
    for other in (
        GPTDataset(indexed, range(8), 23, 6, 1234, cache=cache),
        GPTDataset(indexed, range(9), 24, 6, 1234, cache=cache),
        GPTDataset(indexed, range(9), 23, 5, 1234, cache=cache),
        GPTDataset(indexed, range(9), 23, 6, 1235, cache=cache),
    ):
        assert len(other) > 0
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 5


def test_the_digest_is_of_what_the_corpus_holds(indexed: IndexedDataset, tmp_path: Path) -> None:
    def digest(lengths: list[int], first: int, dtype: type[np.integer] = np.uint16) -> str:
        prefix = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        with IndexedDatasetWriter(prefix, np.dtype(dtype)) as writer:
            for length in lengths:
                writer.add_document(np.arange(first, first + length))
        return IndexedDataset(prefix).digest

    assert digest([5, 9], 0) == digest([5, 9], 0)
    others = [digest([5, 9], 0), digest([9, 5], 0), digest([5, 9], 1), digest([5, 9], 0, np.int32), digest([5], 0)]
    assert len(set(others)) == 5
    assert digest([], 0) == digest([], 1)
