"""The header of an .idx file: golden bytes, and every way in which one can be wrong."""

import struct
from pathlib import Path

import numpy as np
import pytest

from megatron_tlm.data.index_format import IndexHeader, pack_header, read_header, token_dtype
from megatron_tlm.errors import DataError

GOLDEN = bytes.fromhex("4d4d494449445800000100000000000000080400000000000000" + "0400000000000000")


def test_header_is_megatrons_bytes() -> None:
    assert pack_header(IndexHeader(np.dtype(np.uint16), 4, 4)) == GOLDEN


def test_header_reads_back(tmp_path: Path) -> None:
    header = IndexHeader(np.dtype(np.int32), 3, 2)
    path = tmp_path / "a.idx"
    path.write_bytes(pack_header(header) + bytes(12 * 3 + 8 * 2))
    assert read_header(path) == header
    assert (header.lengths_at, header.offsets_at, header.borders_at, header.file_bytes) == (34, 46, 70, 86)


def test_modes_of_a_multimodal_set_are_read_over(tmp_path: Path) -> None:
    path = tmp_path / "a.idx"
    path.write_bytes(pack_header(IndexHeader(np.dtype(np.int32), 3, 2)) + bytes(12 * 3 + 8 * 2 + 3))
    assert read_header(path).num_sequences == 3


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(256, np.uint16), (65499, np.uint16), (65500, np.int32), (128256, np.int32)]
)
def test_token_type_changes_at_megatrons_border(vocab_size: int, dtype: type) -> None:
    assert token_dtype(vocab_size) == dtype


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not with"),
        (b"PK\x03\x04" + bytes(40), "not with"),
        (b"TNTIDX\x00\x00" + bytes(40), "old format"),
        (GOLDEN[:20], r"has 20 bytes, fewer than its header's 34"),
        (struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 2, 8, 0, 1) + bytes(8), "has version 2, not 1"),
        (struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 6, 0, 1) + bytes(8), "type code 6, floating-point numbers, not"),
        (struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 99, 0, 1) + bytes(8), "type code 99, an unknown type, not"),
        (GOLDEN + bytes(79), r"has 113 bytes where its 4 sequences and 4 borders take 114"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.idx"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_header(path)
