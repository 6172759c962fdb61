"""What a pair is said to hold, and that ids which cannot be are found; a damaged index is not even opened."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.data import pair_report
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_report import count_empty, report_lengths, verify
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.errors import DataError


@pytest.fixture(autouse=True, params=[2, 1 << 20])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_report, "BLOCK", request.param)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Documents of 3, 0, 1 + 2, 5, 0 tokens; ids count on, the end of a document is 99."""
    with IndexedDatasetWriter(tmp_path / "a", np.dtype(np.uint16)) as writer:
        writer.add_document([0, 1, 99])
        writer.add_document([])
        writer.add_document([2, 3, 99], [1, 2])
        writer.add_document([4, 5, 6, 7, 8])
        writer.add_document([])
    return tmp_path / "a"


def test_lengths_are_summed_up() -> None:
    report = report_lengths(np.array([1, 2, 3, 4, 7, 8, 0, 1000], np.int32))
    assert report is not None
    assert (report.shortest, report.longest, report.num_zero, report.mean) == (0, 1000, 1, 1025 / 8)
    assert report.quantiles == (4, 1000, 1000)
    assert report.histogram == (1, 2, 2, 1, 0, 0, 0, 0, 0, 1)
    assert report_lengths(np.array([], np.int32)) is None
    longest = report_lengths(np.array([2**31 - 1], np.int32))
    assert longest is not None
    assert longest.histogram == (*[0] * 30, 1)


def test_a_whole_pair(prefix: Path) -> None:
    dataset = IndexedDataset(prefix)
    found = verify(dataset, vocab_size=100, eod_id=99)
    assert (found.tokens, found.largest_id, found.empty_documents, found.unended) == (11, 99, 2, 1)
    assert found.sha256 == sha256(dataset.bin_path.read_bytes()).hexdigest()
    assert count_empty(dataset) == 2


def test_an_empty_pair_is_whole(tmp_path: Path) -> None:
    with IndexedDatasetWriter(tmp_path / "a", np.dtype(np.uint16)):
        pass
    found = verify(IndexedDataset(tmp_path / "a"), vocab_size=100, eod_id=99)
    assert (found.tokens, found.largest_id, found.empty_documents) == (0, -1, 0)


def test_ids_outside_the_vocabulary_are_found(prefix: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.bin: id 99 at token 2 is outside 0\.\.98"):
        verify(IndexedDataset(prefix), vocab_size=99)
    with IndexedDatasetWriter(tmp_path / "b", np.dtype(np.int32)) as writer:
        writer.add_document([*range(20), -1])
    with pytest.raises(DataError, match=r"b\.bin: id -1 at token 20 is outside 0;"):
        verify(IndexedDataset(tmp_path / "b"))
