"""Growing files: offsets beyond 2^31 and 2^32 bytes, by lengths, without as many tokens."""

from pathlib import Path

import numpy as np

from megatron_tlm.data.indexed_dataset import IndexedDataset
from megatron_tlm.data.pair_stream import Mark, PairStream

LENGTHS = np.array([2**30, 2**29 + 1, 2**30, 2**31 - 1, 7], np.int32)  # some 9 GB of uint16, all of them holes


def test_offsets_pass_four_gigabytes(tmp_path: Path) -> None:
    total = int(LENGTHS.sum(dtype=np.int64))
    with (
        (tmp_path / "a.bin").open("w+b") as tokens,
        (tmp_path / "lengths").open("w+b") as lengths,
        (tmp_path / "borders").open("w+b") as borders,
    ):
        stream = PairStream(tokens, lengths, borders, np.dtype(np.uint16))
        tokens.truncate(2 * total)
        tokens.seek(2 * total - 14)
        tokens.write(np.arange(1, 8, dtype=np.uint16).tobytes())
        lengths.write(LENGTHS.tobytes())
        borders.write(np.arange(1, 6, dtype=np.int64).tobytes())
        stream.mark = Mark(total, 5, 5)
        with (tmp_path / "a.idx").open("wb") as index:
            stream.write_index(index)
    dataset = IndexedDataset(tmp_path / "a")
    expected = np.concatenate([[0], np.cumsum(LENGTHS[:-1], dtype=np.int64) * 2])
    assert dataset.byte_offsets.tolist() == expected.tolist()
    assert expected[-1] > 2**33
    assert dataset[4].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert dataset.get(3, 2**31 - 3).tolist() == [0, 0]
    assert dataset.num_tokens == total > 2**32
