"""Sample order: equal to Megatron's own arrays, and to its C++ loop written out in Python."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from megatron_tlm.data.samples import build_sample_index, split_documents
from megatron_tlm.errors import DataError

LENGTHS = np.array([5, 9, 1, 14, 3, 7, 11, 2, 8], np.int32)

# What megatron-core 0.16.1 built for LENGTHS with seed 1234 and sequence length 6, asked for 6 samples.
DOCUMENTS = [8, 2, 1, 0, 7, 4, 5, 6, 3]
SAMPLES = [[0, 0], [0, 6], [2, 3], [3, 0], [4, 1], [6, 2], [7, 1], [7, 7], [8, 2], [8, 8]]
SHUFFLE = [6, 4, 0, 5, 3, 2, 8, 7, 1]

# Hashes of its three arrays by number of samples: one epoch; three, the last shuffled apart; four, shuffled together.
HASHES = {
    6: ("6b30ce4e3b23fe0d", "eeb8534d0af5c6de", "4f8380445333da29"),
    20: ("e18715ce63b8363d", "568140e3aed62eb3", "c4cb710f3fa14c12"),
    33: ("41336fc65ee8fb1e", "be262ba9f12bab38", "20e83f81dc0d76e5"),
}


def test_arrays_are_megatrons() -> None:
    index = build_sample_index(LENGTHS, range(9), num_samples=6, seq_length=6, seed=1234)
    assert index.documents.tolist() == DOCUMENTS
    assert index.samples.tolist() == SAMPLES
    assert index.shuffle.tolist() == SHUFFLE


@pytest.mark.parametrize("num_samples", HASHES)
def test_arrays_of_several_epochs_are_megatrons(num_samples: int) -> None:
    index = build_sample_index(LENGTHS, range(9), num_samples=num_samples, seq_length=6, seed=1234)
    arrays = (index.documents, index.samples, index.shuffle)
    assert tuple(hashlib.sha256(array.tobytes()).hexdigest()[:16] for array in arrays) == HASHES[num_samples]
    assert tuple(array.dtype for array in arrays) == (np.int32, np.int32, np.uint32)
    assert len(index) >= num_samples


def walk(lengths: NDArray[np.int32], order: NDArray[np.int32], seq_length: int) -> list[list[int]]:
    """Megatron's build_sample_idx: document by document."""
    rows, position, offset = [[0, 0]], 0, 0
    for _ in range((int(lengths[order].sum()) - 1) // seq_length):
        remaining = seq_length + 1
        while remaining:
            available = int(lengths[order[position]]) - offset
            remaining -= available
            if remaining <= 0:
                offset += remaining + available - 1
                remaining = 0
            else:
                position, offset = position + 1, 0
        rows.append([position, offset])
    return rows


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
    st.integers(1, 12),
    st.none() | st.integers(1, 120),
    st.integers(0, 2**32 - 1),
)
def test_samples_equal_a_walk_over_the_documents(
    lengths: list[int], seq_length: int, num_samples: int | None, seed: int
) -> None:
    table = np.array(lengths, np.int32)
    if table.sum() <= seq_length:
        return
    index = build_sample_index(table, range(len(table)), num_samples=num_samples, seq_length=seq_length, seed=seed)
    assert index.samples.tolist() == walk(table, index.documents, seq_length)
    assert sorted(index.shuffle.tolist()) == list(range(len(index)))
    assert np.bincount(index.documents, minlength=len(table)).tolist() == [index.num_epochs] * len(table)
    if num_samples is None:
        assert index.num_epochs == 1
    else:
        tokens = int(table.sum())
        assert index.num_epochs * tokens >= num_samples * seq_length + 1
        assert index.num_epochs == 1 or (index.num_epochs - 1) * tokens < num_samples * seq_length + 1


def test_a_last_epoch_used_to_less_than_four_fifths_comes_after_the_others() -> None:
    index = build_sample_index(LENGTHS, range(9), num_samples=20, seq_length=6, seed=1)
    assert index.num_epochs == 3
    before = (2 * 60 - 1) // 6
    assert sorted(index.shuffle[:before].tolist()) == list(range(before))


def test_only_the_documents_of_the_split_are_read() -> None:
    index = build_sample_index(LENGTHS, range(3, 6), num_samples=None, seq_length=6, seed=1)
    assert sorted(index.documents.tolist()) == [3, 4, 5]


def test_splits_are_cut_at_rounded_borders() -> None:
    assert [len(part) for part in split_documents("969,30,1", 26223)] == [25410, 787, 26]
    assert [len(part) for part in split_documents("969,30,1", 113)] == [109, 4, 0]  # MDS and NeoX: 110, 3, 0


@pytest.mark.parametrize("split", ["98,2", "98 2", "98.,2.", "0.98,0.02,0", "98/2", " 98, 2 , 0 "])
def test_splits_can_be_written_in_several_ways(split: str) -> None:
    assert split_documents(split, 100) == (range(98), range(98, 100), range(100, 100))


@pytest.mark.parametrize(
    "split", ["", "0,0,0", "1,2,3,4", "-1,2,0", "train", "1;2", "1.2.3", "1,,1", "1,", "1 . 2", "9" * 400]
)
def test_a_split_that_is_none_is_refused(split: str) -> None:
    with pytest.raises(DataError, match=r"data\.split = .* is not one to three shares"):
        split_documents(split, 10)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=3).filter(any), st.integers(0, 10**7))
def test_splits_cover_every_document_once(shares: list[int], num_sequences: int) -> None:
    train, valid, test = split_documents(",".join(map(str, shares)), num_sequences)
    assert (train.start, train.stop, valid.stop, test.stop) == (0, valid.start, test.start, num_sequences)


def test_a_sequence_longer_than_the_corpus_is_refused_with_both_numbers() -> None:
    assert len(build_sample_index(LENGTHS, range(9), num_samples=None, seq_length=59, seed=1)) == 1
    with pytest.raises(DataError, match=r"seq_length = 60 .* takes 61 tokens .* holds 60 in 9 sequences"):
        build_sample_index(LENGTHS, range(9), num_samples=None, seq_length=60, seed=1)


@pytest.mark.parametrize("num_samples", [10**18, 10**9])
def test_an_order_that_no_memory_holds_is_refused_with_numbers(
    num_samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_tlm.data.samples.memory_bytes", lambda: 8 * 10**9)
    epochs = (6 * num_samples + 60) // 60
    message = (
        rf"num_samples = {num_samples} of 6 tokens are {epochs} epochs of c, whose order takes \d+ GB .* has 8; lower"
    )
    with pytest.raises(DataError, match=message):
        build_sample_index(LENGTHS, range(9), num_samples=num_samples, seq_length=6, seed=1, corpus="c")
