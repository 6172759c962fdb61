"""A corpus of token ids on disk: `{prefix}.bin` with the ids, `{prefix}.idx` with where each sequence lies."""

import fcntl
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megatron_tlm.data.index_format import IndexHeader, pack_header, read_header
from megatron_tlm.errors import DataError

COPY_ENTRIES = 1 << 20


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
                raise DataError(f"{path} = no such file; give the prefix of a .bin/.idx pair, without its suffix")
        self.header = read_header(self.idx_path)
        raw = np.memmap(self.idx_path, dtype=np.uint8, mode="r").view(np.ndarray)
        header = self.header
        self.lengths: NDArray[np.int32] = raw[header.lengths_at : header.offsets_at].view(np.int32)
        self._offsets: NDArray[np.int64] = raw[header.offsets_at : header.borders_at].view(np.int64)
        self.document_borders: NDArray[np.int64] = raw[header.borders_at : header.file_bytes].view(np.int64)
        self.tokens = self._map_tokens()
        self._check_borders()

    def _map_tokens(self) -> NDArray[np.integer]:
        """The whole `.bin` as one flat array, once its size is known to be what the index expects."""
        itemsize = self.header.dtype.itemsize
        bin_bytes = self.bin_path.stat().st_size
        expected = int(self._offsets[-1]) + int(self.lengths[-1]) * itemsize if self.header.num_sequences else 0
        if bin_bytes != expected:
            raise DataError(
                f"{self.bin_path} = {bin_bytes} bytes where {self.idx_path.name} expects {expected}; "
                "the two are not of one run, preprocess again"
            )
        if bin_bytes == 0:  # an empty file cannot be mapped
            return np.empty(0, self.header.dtype)
        return np.memmap(self.bin_path, dtype=self.header.dtype, mode="r").view(np.ndarray)

    def _check_borders(self) -> None:
        borders, sequences = self.document_borders, self.header.num_sequences
        if len(borders) == 0 or borders[0] != 0 or borders[-1] != sequences:
            shown = (int(borders[0]), int(borders[-1])) if len(borders) else ()
            raise DataError(
                f"{self.idx_path} = document borders {shown} do not run from 0 to its {sequences} sequences; "
                "the index is damaged, preprocess again"
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

    def __reduce__(self) -> tuple[type["IndexedDataset"], tuple[str]]:
        """Pickled as its prefix: another process maps the files itself."""
        return IndexedDataset, (self.prefix,)


class IndexedDatasetWriter:
    """Writes a pair byte for byte as Megatron's builder does, as a context manager.

    Ids, lengths and borders are streamed to disk, so memory does not grow with the corpus. Both files appear by rename
    when the block ends; an error inside it leaves nothing behind. Two writers of one prefix are refused.
    """

    def __init__(self, prefix: str | Path, dtype: np.dtype[np.integer]) -> None:
        self.bin_path, self.idx_path = pair_paths(prefix)
        self.dtype = np.dtype(dtype)
        self.num_sequences = 0
        self.num_documents = 0
        self.num_tokens = 0
        self._partial_bin = self.bin_path.with_name(f".{self.bin_path.name}.partial")
        self._partial_idx = self.idx_path.with_name(f".{self.idx_path.name}.partial")
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        folder = self.bin_path.parent
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as cleanup:  # from the first file on, whatever ends this run removes what it made
            self._bin: IO[bytes] = cleanup.enter_context(self._partial_bin.open("ab"))
            _lock(self._bin, self._partial_bin)
            cleanup.callback(self._partial_bin.unlink, missing_ok=True)
            cleanup.callback(self._partial_idx.unlink, missing_ok=True)
            # Nameless files: the system removes them even when this process is killed.
            self._lengths: IO[bytes] = cleanup.enter_context(tempfile.TemporaryFile(dir=folder))
            self._borders: IO[bytes] = cleanup.enter_context(tempfile.TemporaryFile(dir=folder))
            self._borders.write(np.zeros(1, np.int64).tobytes())
            self._cleanup = cleanup.pop_all()
        return self

    def add_document(self, tokens: ArrayLike, lengths: ArrayLike | None = None) -> None:
        """One document; `lengths` cuts it into sequences. No tokens: a border is added but no sequence."""
        ids = np.asarray(tokens, dtype=self.dtype)
        parts = np.asarray(([len(ids)] if len(ids) else []) if lengths is None else lengths, np.int32)
        self.add_documents(ids, parts, np.array([len(parts)]))

    def add_documents(
        self, tokens: NDArray[np.integer], lengths: NDArray[np.int32], sequences: NDArray[np.integer]
    ) -> None:
        """Many documents at once: all ids, the length of each sequence, the sequences of each document."""
        assert tokens.dtype == self.dtype
        assert lengths.dtype == np.int32
        assert lengths.sum(dtype=np.int64) == len(tokens)
        assert sequences.sum() == len(lengths)
        self._bin.write(tokens.tobytes())
        self._lengths.write(lengths.tobytes())
        self._borders.write((self.num_sequences + np.cumsum(sequences, dtype=np.int64)).tobytes())
        self.num_tokens += len(tokens)
        self.num_sequences += len(lengths)
        self.num_documents += len(sequences)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._cleanup:
            if kind is None:
                self._commit()

    def _commit(self) -> None:
        with self._partial_idx.open("wb") as index:
            self._write_index(index)
            _sync(index)
        _sync(self._bin)
        # The old index goes first: at no moment does an index stand beside a .bin that is not its own.
        self.idx_path.unlink(missing_ok=True)
        self._partial_bin.rename(self.bin_path)
        self._partial_idx.rename(self.idx_path)

    def _write_index(self, index: IO[bytes]) -> None:
        index.write(pack_header(IndexHeader(self.dtype, self.num_sequences, self.num_documents + 1)))
        self._lengths.seek(0)
        shutil.copyfileobj(self._lengths, index)
        self._lengths.seek(0)
        offset = 0
        while raw := self._lengths.read(4 * COPY_ENTRIES):
            ends = offset + np.cumsum(np.frombuffer(raw, np.int32), dtype=np.int64) * self.dtype.itemsize
            index.write(np.concatenate([[np.int64(offset)], ends[:-1]]).tobytes())
            offset = int(ends[-1])
        self._borders.seek(0)
        shutil.copyfileobj(self._borders, index)


def _lock(file: IO[bytes], path: Path) -> None:
    """Take over what a killed run may have left, unless a living run still holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DataError(f"{path} = held by another run; wait for it or give another --output-prefix") from None
    file.truncate(0)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
