"""A .bin/.idx pair: Megatron's bytes, reading what was written, and nothing half-written."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.errors import DataError

UINT16 = np.dtype(np.uint16)
# Written by Megatron's own builder for the documents [1 2 3], [4][5 6 7], [8 9].
GOLDEN_IDX = bytes.fromhex(
    "4d4d494449445800000100000000000000080400000000000000"
    "0400000000000000"
    "03000000010000000300000002000000"
    "0000000000000000060000000000000008000000000000000e00000000000000"
    "0000000000000000010000000000000003000000000000000400000000000000"
)
GOLDEN_BIN = bytes.fromhex("010002000300040005000600070008000900")


def write_golden(prefix: Path) -> None:
    with IndexedDatasetWriter(prefix, UINT16) as writer:
        writer.add_document([1, 2, 3])
        writer.add_document([4, 5, 6, 7], [1, 3])
        writer.add_document([8, 9])


def test_bytes_are_megatrons(tmp_path: Path) -> None:
    write_golden(tmp_path / "a")
    assert (tmp_path / "a.idx").read_bytes() == GOLDEN_IDX
    assert (tmp_path / "a.bin").read_bytes() == GOLDEN_BIN
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx"]


def test_reads_what_megatron_wrote(tmp_path: Path) -> None:
    (tmp_path / "a.idx").write_bytes(GOLDEN_IDX)
    (tmp_path / "a.bin").write_bytes(GOLDEN_BIN)
    for prefix in (tmp_path / "a", tmp_path / "a.bin", tmp_path / "a.idx"):
        dataset = IndexedDataset(prefix)
        assert [ids.tolist() for ids in dataset] == [[1, 2, 3], [4], [5, 6, 7], [8, 9]]
        assert (len(dataset), dataset.num_documents, dataset.num_tokens) == (4, 3, 9)
        assert dataset.document_borders.tolist() == [0, 1, 3, 4]


def test_an_empty_document_is_a_border_without_a_sequence(tmp_path: Path) -> None:
    with IndexedDatasetWriter(tmp_path / "a", UINT16) as writer:
        for tokens in ([1], [], [2, 3]):
            writer.add_document(tokens)
    dataset = IndexedDataset(tmp_path / "a")
    assert dataset.document_borders.tolist() == [0, 1, 1, 2]
    assert dataset.lengths.tolist() == [1, 2]


def test_a_corpus_of_nothing(tmp_path: Path) -> None:
    with IndexedDatasetWriter(tmp_path / "a", UINT16):
        pass
    dataset = IndexedDataset(tmp_path / "a")
    assert (len(dataset), dataset.num_documents, dataset.num_tokens) == (0, 0, 0)


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 65535), min_size=1, max_size=6), max_size=3), max_size=8),
    st.sampled_from([np.uint16, np.int32, np.int64]),
)
def test_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], dtype: type
) -> None:
    prefix = tmp_path_factory.mktemp("pair") / "a"
    with IndexedDatasetWriter(prefix, np.dtype(dtype)) as writer:
        for document in documents:
            writer.add_document([id_ for part in document for id_ in part], [len(part) for part in document])
    dataset = IndexedDataset(prefix)
    borders = dataset.document_borders.tolist()
    read = [[dataset[i].tolist() for i in range(*pair)] for pair in pairwise(borders)]
    assert read == documents


def test_a_slice_of_a_sequence(tmp_path: Path) -> None:
    write_golden(tmp_path / "a")
    dataset = IndexedDataset(tmp_path / "a")
    assert dataset.get(2, 1).tolist() == [6, 7]
    assert dataset.get(2, 1, 1).tolist() == [6]
    assert dataset.get(2, 3).tolist() == []
    with pytest.raises(IndexError, match=r"sequence = 4 is outside 0\.\.3"):
        dataset[4]
    with pytest.raises(IndexError, match=r"tokens 1\.\.4 are outside the 3 of sequence 2"):
        dataset.get(2, 1, 3)


def test_arrays_outlive_the_dataset(tmp_path: Path) -> None:
    write_golden(tmp_path / "a")
    lengths, ids = IndexedDataset(tmp_path / "a").lengths, IndexedDataset(tmp_path / "a")[2]
    gc.collect()
    assert lengths.tolist() == [3, 1, 3, 2]
    assert ids.tolist() == [5, 6, 7]
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_pickles_as_its_prefix(tmp_path: Path) -> None:
    write_golden(tmp_path / "a")
    packed = pickle.dumps(IndexedDataset(tmp_path / "a"))
    assert len(packed) < 500
    assert pickle.loads(packed)[3].tolist() == [8, 9]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.idx does not exist"):
        IndexedDataset(tmp_path / "a")
    write_golden(tmp_path / "a")
    (tmp_path / "a.bin").unlink()
    with pytest.raises(DataError, match=r"a\.bin does not exist"):
        IndexedDataset(tmp_path / "a")


def test_a_cut_bin_is_refused(tmp_path: Path) -> None:
    write_golden(tmp_path / "a")
    (tmp_path / "a.bin").write_bytes(GOLDEN_BIN[:-2])
    with pytest.raises(DataError, match=r"16 bytes where a\.idx expects 18"):
        IndexedDataset(tmp_path / "a")


def test_borders_that_do_not_end_with_the_sequences_are_refused(tmp_path: Path) -> None:
    write_golden(tmp_path / "a")
    (tmp_path / "a.idx").write_bytes(GOLDEN_IDX[:-8] + (3).to_bytes(8, "little"))
    with pytest.raises(DataError, match=r"borders \(0, 3\) do not run from 0 to its 4"):
        IndexedDataset(tmp_path / "a")


LENGTHS_AT, OFFSETS_AT, BORDERS_AT = 34, 34 + 4 * 4, 34 + 12 * 4


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("at", "number", "message"),
    [
        (LENGTHS_AT + 4, np.int32(-1), "sequence 1 has -1 tokens at byte 6 where the one before ends at 6"),
        (LENGTHS_AT, np.int32(7), "sequence 1 has 1 tokens at byte 6 where the one before ends at 14"),
        (OFFSETS_AT, np.int64(2), "sequence 0 has 3 tokens at byte 2 where the one before ends at 0"),
        (OFFSETS_AT + 16, np.int64(1 << 62), "sequence 2 has 3 tokens at byte 4611686018427387904 where .* ends at 8"),
        (OFFSETS_AT + 24, np.int64(-14), "sequence 3 has 2 tokens at byte -14 where the one before ends at 14"),
        (LENGTHS_AT + 12, np.int32(9), "18 bytes where a.idx expects 32"),
        (BORDERS_AT + 8, np.int64(4), "document border 2 at sequence 3 lies before the one at 4; the index is damaged"),
        (BORDERS_AT + 16, np.int64(-3), "document border 2 at sequence -3 lies before the one at 1"),
    ],
)
def test_a_damaged_index_hands_out_nothing(
    at: int, number: np.generic, message: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_tlm.data.indexed_dataset.CHECK_BLOCK", block)
    raw = number.tobytes()
    (tmp_path / "a.bin").write_bytes(GOLDEN_BIN)
    (tmp_path / "a.idx").write_bytes(GOLDEN_IDX)
    assert len(IndexedDataset(tmp_path / "a")) == 4
    (tmp_path / "a.idx").write_bytes(GOLDEN_IDX[:at] + raw + GOLDEN_IDX[at + len(raw) :])
    with pytest.raises(DataError, match=message):
        IndexedDataset(tmp_path / "a")


def test_an_error_leaves_nothing_and_keeps_the_old_pair(tmp_path: Path) -> None:
    def fail() -> None:
        with IndexedDatasetWriter(tmp_path / "a", UINT16) as writer:
            writer.add_document([7])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert os.listdir(tmp_path) == []
    write_golden(tmp_path / "a")
    with pytest.raises(RuntimeError):
        fail()
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx"]
    assert (tmp_path / "a.bin").read_bytes() == GOLDEN_BIN


def test_two_writers_of_one_prefix_are_refused(tmp_path: Path) -> None:
    with IndexedDatasetWriter(tmp_path / "a", UINT16) as writer:
        with pytest.raises(DataError, match="held by another run"), IndexedDatasetWriter(tmp_path / "a", UINT16):
            pass
        writer.add_document([1])
    assert IndexedDataset(tmp_path / "a")[0].tolist() == [1]


def test_a_killed_writer_leaves_no_pair_and_bars_no_successor(tmp_path: Path) -> None:
    program = (
        "import sys, time, numpy as np\n"
        "from megatron_tlm.data.pair_writer import IndexedDatasetWriter\n"
        "with IndexedDatasetWriter(sys.argv[1], np.dtype(np.uint16)) as writer:\n"
        "    writer.add_document(range(60000))\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "a")])
    partial = tmp_path / ".a.bin.partial"
    try:
        deadline = time.monotonic() + 30
        while not (partial.exists() and partial.stat().st_size):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert os.listdir(tmp_path) == [partial.name]
    write_golden(tmp_path / "a")
    assert (tmp_path / "a.bin").read_bytes() == GOLDEN_BIN
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx"]
