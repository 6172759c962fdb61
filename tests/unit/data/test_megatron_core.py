"""Beside the real megatron-core, where it is installed: files both ways, every token type, the same sample stream.

Its golden bytes and arrays are in the other tests of this room, which need nothing installed.
"""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from megatron_tlm.data.gpt_dataset import GPTDataset
from megatron_tlm.data.index_format import TOKEN_CODES
from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_copy import merge
from megatron_tlm.data.pair_writer import IndexedDatasetWriter
from megatron_tlm.data.samples import split_documents

theirs: Any = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="megatron-core is not installed")
torch: Any = pytest.importorskip("torch")

DOCUMENTS = [[3], [1, 2], [], [5], [4]]
"""Lengths of the sequences of each."""


def write_ours(prefix: Path, dtype: np.dtype[np.integer], first: int = 0) -> None:
    with IndexedDatasetWriter(prefix, dtype) as writer:
        for lengths in DOCUMENTS:
            writer.add_document(np.arange(first, first + sum(lengths)), lengths)
            first += sum(lengths)


def write_theirs(prefix: Path, dtype: np.dtype[np.integer], first: int = 0) -> None:
    builder = theirs.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype.type)
    for lengths in DOCUMENTS:
        builder.add_document(torch.arange(first, first + sum(lengths)), lengths)
        first += sum(lengths)
    builder.finalize(f"{prefix}.idx")


def pair(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


@pytest.mark.parametrize("dtype", TOKEN_CODES.values(), ids=str)
def test_the_bytes_are_the_same_for_every_type(tmp_path: Path, dtype: np.dtype[np.integer]) -> None:
    write_ours(tmp_path / "ours", dtype)
    write_theirs(tmp_path / "theirs", dtype)
    assert pair(tmp_path / "ours") == pair(tmp_path / "theirs")
    read = theirs.IndexedDataset(str(tmp_path / "ours"))
    ours = IndexedDataset(tmp_path / "theirs")
    assert [read[i].tolist() for i in range(len(read))] == [ours[i].tolist() for i in range(len(ours))]
    assert read.document_indices.tolist() == ours.document_borders.tolist()


def test_a_merge_is_theirs(tmp_path: Path) -> None:
    dtype = np.dtype(np.uint16)
    for name, first in (("a", 0), ("b", 100)):
        write_ours(tmp_path / name, dtype, first)
    merge([str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "ours"))
    builder = theirs.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    builder.add_index(str(tmp_path / "a"))
    builder.add_index(str(tmp_path / "b"))
    builder.finalize(str(tmp_path / "theirs.idx"))
    assert pair(tmp_path / "ours") == pair(tmp_path / "theirs")


class Tokens:
    """What a GPTDatasetConfig asks of a tokenizer."""

    unique_identifiers: ClassVar = {"class": "tests"}
    eod, pad, vocab_size = 0, -1, 1000


@pytest.mark.parametrize("num_samples", [None, 10, 100, 250, 400])
@pytest.mark.parametrize("which", [0, 1])
def test_the_sample_stream_is_theirs(tmp_path: Path, which: int, num_samples: int | None) -> None:
    from megatron.core.datasets.gpt_dataset import GPTDataset as TheirDataset
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    chance = np.random.RandomState(0)
    with IndexedDatasetWriter(tmp_path / "a", np.dtype(np.uint16)) as writer:
        for _ in range(120):
            writer.add_document(chance.randint(1, 1000, chance.randint(1, 60)))
    indexed, split = IndexedDataset(tmp_path / "a"), "80,20,0"
    documents = split_documents(split, len(indexed))[which]
    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=16,
        split=split,
        path_to_cache=str(tmp_path / "cache"),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        tokenizer=Tokens(),
    )
    numbers = np.arange(documents.start, documents.stop, dtype=np.int32)
    low_level = theirs.IndexedDataset(str(tmp_path / "a"))
    expected = TheirDataset(low_level, str(tmp_path / "a"), numbers, num_samples, Split(which), config)
    dataset = GPTDataset(indexed, documents, num_samples, 16, 1234)
    assert len(dataset) == len(expected)
    for sample in range(len(dataset)):
        item = expected[sample]
        assert dataset[sample].tolist() == [*item["tokens"].tolist(), int(item["labels"][-1])]
