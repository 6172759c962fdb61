"""A corpus of token ids on disk: `{prefix}.bin` with the ids, `{prefix}.idx` with where each sequence lies."""

from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.index_format import read_header
from megatron_tlm.errors import DataError

DIGEST_BLOCKS, DIGEST_BLOCK_TOKENS = 64, 4096
CHECK_BLOCK = 1 << 20  # rows of the index checked at once, some 30 MB


def pair_paths(prefix: str | Path) -> tuple[Path, Path]:
    """`(.bin, .idx)` of a prefix; a prefix given with either suffix means the same pair."""
    text = str(prefix)
    if text.endswith((".bin", ".idx")):
        text = text[:-4]
    return Path(f"{text}.bin"), Path(f"{text}.idx")


class IndexedDataset:
    """A memory-mapped corpus; `dataset[i]` is the ids of sequence i, read-only, in the type they are stored in.

    Every array handed out keeps its map alive, so it may outlive this object. Raises DataError for a missing, cut or
    mismatched pair.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.bin_path, self.idx_path = pair_paths(prefix)
        self.prefix = str(self.bin_path)[: -len(".bin")]
        for path in (self.idx_path, self.bin_path):
            if not path.is_file():
                raise DataError(f"{path} does not exist; give the prefix of a .bin/.idx pair, without its suffix")
        self.header = read_header(self.idx_path)
        raw = np.memmap(self.idx_path, dtype=np.uint8, mode="r").view(np.ndarray)
        header = self.header
        self.lengths: NDArray[np.int32] = raw[header.lengths_at : header.offsets_at].view(np.int32)
        self._offsets: NDArray[np.int64] = raw[header.offsets_at : header.borders_at].view(np.int64)
        self.document_borders: NDArray[np.int64] = raw[header.borders_at : header.file_bytes].view(np.int64)
        self._check_sequences()
        self._check_borders()
        self.tokens = self._map_tokens()

    def _map_tokens(self) -> NDArray[np.integer]:
        """The whole `.bin` as one flat array, once its size is known to be what the index expects."""
        itemsize = self.header.dtype.itemsize
        bin_bytes = self.bin_path.stat().st_size
        expected = int(self._offsets[-1]) + int(self.lengths[-1]) * itemsize if self.header.num_sequences else 0
        if bin_bytes != expected:
            raise DataError(
                f"{self.bin_path} has {bin_bytes} bytes where {self.idx_path.name} expects {expected}; "
                "the two are not of one run, preprocess again"
            )
        if bin_bytes == 0:  # an empty file cannot be mapped
            return np.empty(0, self.header.dtype)
        return np.memmap(self.bin_path, dtype=self.header.dtype, mode="r").view(np.ndarray)

    def _check_sequences(self) -> None:
        """Sequences lie end to end from byte 0 on, as in every file of Megatron's: one pass, block by block."""
        itemsize, expected = self.header.dtype.itemsize, 0
        for start in range(0, self.header.num_sequences, CHECK_BLOCK):
            lengths = self.lengths[start : start + CHECK_BLOCK].astype(np.int64)
            offsets = self._offsets[start : start + CHECK_BLOCK]
            ends = expected + np.cumsum(lengths * itemsize)
            wrong = (lengths < 0) | (offsets != ends - lengths * itemsize)
            if wrong.any():
                row = int(wrong.argmax())
                raise DataError(
                    f"{self.idx_path}: sequence {start + row} has {lengths[row]} tokens at byte {offsets[row]} where "
                    f"the one before ends at {ends[row] - lengths[row] * itemsize}; the index is damaged, preprocess "
                    "again"
                )
            expected = int(ends[-1])

    def _check_borders(self) -> None:
        borders, sequences = self.document_borders, self.header.num_sequences
        if len(borders) == 0 or borders[0] != 0 or borders[-1] != sequences:
            shown = (int(borders[0]), int(borders[-1])) if len(borders) else ()
            raise DataError(
                f"{self.idx_path}: document borders {shown} do not run from 0 to its {sequences} sequences; "
                "the index is damaged, preprocess again"
            )
        for start in range(0, len(borders) - 1, CHECK_BLOCK):
            block = borders[start : start + CHECK_BLOCK + 1]
            falls = block[1:] < block[:-1]
            if falls.any():
                row = int(falls.argmax())
                raise DataError(
                    f"{self.idx_path}: document border {start + row + 1} at sequence {block[row + 1]} lies before the "
                    f"one at {block[row]}; the index is damaged, preprocess again"
                )

    def __len__(self) -> int:
        return self.header.num_sequences

    @property
    def num_documents(self) -> int:
        return self.header.num_borders - 1

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def __getitem__(self, sequence: int) -> NDArray[np.integer]:
        return self.get(sequence)

    @property
    def byte_offsets(self) -> NDArray[np.int64]:
        """Where each sequence starts in the `.bin`."""
        return self._offsets

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> NDArray[np.integer]:
        """Ids `offset .. offset + length` of a sequence (to its end by default), without copying."""
        if not 0 <= sequence < len(self):
            raise IndexError(f"sequence = {sequence} is outside 0..{len(self) - 1} of {self.prefix}")
        available = int(self.lengths[sequence])
        stop = available if length is None else offset + length
        if not 0 <= offset <= stop <= available:
            raise IndexError(f"tokens {offset}..{stop} are outside the {available} of sequence {sequence}")
        start = int(self._offsets[sequence]) // self.header.dtype.itemsize
        return self.tokens[start + offset : start + stop]

    @cached_property
    def digest(self) -> str:
        """Tells corpora apart: of all lengths, and of 64 blocks of ids spread over the whole; no path, no date."""
        digest = blake2b(digest_size=16)
        digest.update(f"{self.header.dtype} {len(self)} {self.num_tokens}".encode())
        digest.update(self.lengths.data)
        step = max(1, self.num_tokens // DIGEST_BLOCKS)
        for start in range(0, self.num_tokens, step):
            digest.update(self.tokens[start : start + min(step, DIGEST_BLOCK_TOKENS)].data)
        return digest.hexdigest()

    def __reduce__(self) -> tuple[type["IndexedDataset"], tuple[str]]:
        """Pickled as its prefix: another process maps the files itself."""
        return IndexedDataset, (self.prefix,)
