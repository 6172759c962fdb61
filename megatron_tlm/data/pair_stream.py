"""A pair that grows: ids, lengths and borders go to three files as they come, the index is made of the latter two."""

import os
import shutil
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.index_format import IndexHeader, pack_header

COPY_ENTRIES = 1 << 20
READ_BYTES = 1 << 22
DIGEST_BYTES = 16


@dataclass(frozen=True)
class Mark:
    """How far a pair has grown."""

    tokens: int = 0
    sequences: int = 0
    documents: int = 0


class PairStream:
    """Three open files, readable and writable, that belong to the caller: memory does not grow with the corpus."""

    def __init__(self, tokens: IO[bytes], lengths: IO[bytes], borders: IO[bytes], dtype: np.dtype[np.integer]) -> None:
        self.dtype = np.dtype(dtype)
        self.mark = Mark()
        self._files = (tokens, lengths, borders)
        self._hashes = [blake2b(digest_size=DIGEST_BYTES) for _ in self._files]

    def add_documents(
        self, tokens: NDArray[np.integer], lengths: NDArray[np.int32], sequences: NDArray[np.integer]
    ) -> None:
        """Many documents at once: all ids, the length of each sequence, the sequences of each document."""
        assert tokens.dtype == self.dtype
        assert lengths.dtype == np.int32
        assert lengths.sum(dtype=np.int64) == len(tokens)
        assert sequences.sum() == len(lengths)
        mark = self.mark
        borders = mark.sequences + np.cumsum(sequences, dtype=np.int64)
        columns: tuple[NDArray[np.integer], ...] = (tokens, lengths, borders)
        for file, digest, values in zip(self._files, self._hashes, columns, strict=True):
            raw = np.ascontiguousarray(values).data.cast("B") if len(values) else b""
            file.write(raw)
            digest.update(raw)
        self.mark = Mark(mark.tokens + len(tokens), mark.sequences + len(lengths), mark.documents + len(sequences))

    def take_digest(self) -> str:
        """Of what was added since this was last asked."""
        taken = "".join(digest.hexdigest() for digest in self._hashes)
        self._hashes = [blake2b(digest_size=DIGEST_BYTES) for _ in self._files]
        return taken

    def digest_between(self, start: Mark, stop: Mark) -> str:
        """What `take_digest` said of these, read back from the files; of fewer bytes where the files are shorter."""
        digests = []
        for file, first, last in zip(self._files, self.sizes(start), self.sizes(stop), strict=True):
            digest = blake2b(digest_size=DIGEST_BYTES)
            file.seek(first)
            while first < last and (raw := file.read(min(READ_BYTES, last - first))):
                digest.update(raw)
                first += len(raw)
            digests.append(digest.hexdigest())
        return "".join(digests)

    def cut(self, mark: Mark) -> None:
        """Forget what came after a mark."""
        for file, size in zip(self._files, self.sizes(mark), strict=True):
            file.truncate(size)
            file.seek(size)
        self.mark = mark
        self.take_digest()

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def sync(self) -> None:
        """The ids, onto the disk; the other two files are not what is kept."""
        sync(self._files[0])

    def sizes(self, mark: Mark) -> tuple[int, int, int]:
        """Bytes of the three files at a mark."""
        return mark.tokens * self.dtype.itemsize, 4 * mark.sequences, 8 * mark.documents

    def write_index(self, index: IO[bytes]) -> None:
        """The whole `.idx`: header, lengths, byte offsets, borders."""
        _, lengths, borders = self._files
        index.write(pack_header(IndexHeader(self.dtype, self.mark.sequences, self.mark.documents + 1)))
        lengths.seek(0)
        shutil.copyfileobj(lengths, index, READ_BYTES)
        lengths.seek(0)
        offset = 0
        while raw := lengths.read(4 * COPY_ENTRIES):
            bytes_of = np.frombuffer(raw, np.int32).astype(np.int64) * self.dtype.itemsize
            ends = offset + np.cumsum(bytes_of)
            index.write((ends - bytes_of).tobytes())
            offset = int(ends[-1])
        index.write(np.zeros(1, np.int64).tobytes())
        borders.seek(0)
        shutil.copyfileobj(borders, index, READ_BYTES)


def sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def publish(partial_bin: Path, partial_idx: Path, bin_path: Path, idx_path: Path) -> None:
    """A finished pair under its names. The old index goes first: no index ever stands beside a .bin not its own."""
    idx_path.unlink(missing_ok=True)
    partial_bin.replace(bin_path)
    partial_idx.replace(idx_path)
