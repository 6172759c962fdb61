"""Merging and splitting: nothing lost, nothing twice, the same bytes as if written in one go."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_tlm.data import pair_copy
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_copy import find_pairs, merge, split_by_shares, split_evenly
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.errors import DataError

Documents = list[list[int]]
"""Lengths of the sequences of each document."""


def write(prefix: Path, documents: Documents, dtype: type[np.integer] = np.uint16, first: int = 0) -> str:
    with IndexedDatasetWriter(prefix, np.dtype(dtype)) as writer:
        for lengths in documents:
            writer.add_document(np.arange(first, first + sum(lengths)), lengths)
            first += sum(lengths)
    return str(prefix)


def pair(prefix: Path) -> tuple[bytes, bytes]:
    return prefix.with_suffix(".bin").read_bytes(), prefix.with_suffix(".idx").read_bytes()


documents = st.lists(st.lists(st.integers(1, 5), max_size=3), max_size=8)


@settings(max_examples=30, deadline=None)
@given(st.lists(documents, min_size=1, max_size=4), st.sampled_from([1, 3, 1 << 16]))
def test_merging_is_writing_in_one_go(
    tmp_path_factory: pytest.TempPathFactory, parts: list[Documents], block: int
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    first = 0
    for number, part in enumerate(parts):
        write(folder / "in" / f"{number}", part, first=first)
        first += sum(map(sum, part))
    write(folder / "whole", [document for part in parts for document in part])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_copy, "BLOCK_DOCUMENTS", block)
        merge(find_pairs([str(folder / "in")]), str(folder / "merged"))
    assert pair(folder / "merged") == pair(folder / "whole")


@settings(max_examples=50, deadline=None)
@given(documents.filter(any), st.integers(1, 6), st.booleans())
def test_the_parts_of_a_split_merge_to_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lengths: Documents, shards: int, shares: bool
) -> None:
    folder = tmp_path_factory.mktemp("split")
    whole = IndexedDataset(write(folder / "whole", lengths))
    if shares:
        parts = split_by_shares(str(folder / "whole"), "5,3,2", str(folder / "part"))
    else:
        parts = split_evenly(str(folder / "whole"), min(shards, len(whole)), str(folder / "part"))
    merged = merge([name for name, part in parts.items() if part], str(folder / "merged"))
    assert merged.tokens.tolist() == whole.tokens.tolist()
    assert merged.lengths.tolist() == whole.lengths.tolist()
    # A cut inside a document makes two of it; every other border stays, empty documents among them.
    assert set(whole.document_borders.tolist()) <= set(merged.document_borders.tolist())
    assert len(merged.document_borders) - len(whole.document_borders) < len(parts)


def test_shards_are_nearly_equal(tmp_path: Path) -> None:
    parts = split_evenly(write(tmp_path / "a", [[7]] * 100), 4, str(tmp_path / "s"))
    assert list(parts) == [f"{tmp_path}/s_0000{number}" for number in range(4)]
    assert [part.num_tokens for part in parts.values() if part] == [175] * 4


def test_shares_are_those_of_training(tmp_path: Path) -> None:
    parts = split_by_shares(write(tmp_path / "a", [[2]] * 10), "9,1,0", str(tmp_path / "s"))
    assert [part and part.num_documents for part in parts.values()] == [9, 1, None]
    assert not (tmp_path / "s_test.bin").exists()


def test_what_cannot_be_merged_or_split_is_refused(tmp_path: Path) -> None:
    small, large = write(tmp_path / "a", [[3]]), write(tmp_path / "b", [[3]], np.int32)
    with pytest.raises(DataError, match=r"b has int32 tokens where .*a has uint16;"):
        merge([small, large], str(tmp_path / "c"))
    with pytest.raises(DataError, match="is one of the 2 inputs"):
        merge([small, large], large)
    with pytest.raises(DataError, match=r"output_prefix = .*/\.\./.*/b\.bin is one of the 2 inputs; give another"):
        merge([small, large], f"{tmp_path}/../{tmp_path.name}/b.bin")
    train = write(tmp_path / "c_train", [[3]])
    with pytest.raises(DataError, match=r"output_prefix = .*c_train is one of the 1 inputs; give another"):
        split_by_shares(train, "1,1", str(tmp_path / "c"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no \.bin/\.idx pair"):
        find_pairs([str(tmp_path / "empty")])
    with pytest.raises(DataError, match=r"shards = 2 is not 1 to the 1 sequences"):
        split_evenly(small, 2, str(tmp_path / "c"))
    (tmp_path / "a.idx").write_bytes((tmp_path / "a.idx").read_bytes() + b"\x00")
    with pytest.raises(DataError, match="1 modes of a multimodal set"):
        merge([small], str(tmp_path / "c"))
    (tmp_path / "a.idx").unlink()
    with pytest.raises(DataError, match=r"a\.idx does not exist"):
        merge(find_pairs([str(tmp_path)]), str(tmp_path / "c"))


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write(tmp_path / "a", [[3], [4]])
    (tmp_path / "out").mkdir()

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(IndexedDatasetWriter, "add_documents", fail)
    told = r"output_prefix = .*out/b\S* cannot be written \(No space left on device\); make room"
    with pytest.raises(DataError, match=told):
        merge([whole], str(tmp_path / "out" / "b"))
    with pytest.raises(DataError, match=told):
        split_evenly(whole, 2, str(tmp_path / "out" / "b"))
    assert list((tmp_path / "out").iterdir()) == []
