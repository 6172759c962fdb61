"""Writing a pair in one go: both files appear by rename, or neither."""

import fcntl
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megatron_tlm.data.indexed_dataset import pair_paths
from megatron_tlm.data.pair_stream import PairStream, publish, sync
from megatron_tlm.errors import DataError


class IndexedDatasetWriter:
    """Writes a pair byte for byte as Megatron's builder does, as a context manager.

    Ids, lengths and borders are streamed to disk, so memory does not grow with the corpus. Both files appear by rename
    when the block ends; an error inside it leaves nothing behind. Two writers of one prefix are refused.
    """

    def __init__(self, prefix: str | Path, dtype: np.dtype[np.integer]) -> None:
        self.bin_path, self.idx_path = pair_paths(prefix)
        self.dtype = np.dtype(dtype)
        self._partial_bin = self.bin_path.with_name(f".{self.bin_path.name}.partial")
        self._partial_idx = self.idx_path.with_name(f".{self.idx_path.name}.partial")
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        folder = self.bin_path.parent
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as cleanup:  # from the first file on, whatever ends this run removes what it made
            self._bin: IO[bytes] = cleanup.enter_context(self._partial_bin.open("a+b"))
            lock(self._bin, self._partial_bin)
            self._bin.truncate(0)
            cleanup.callback(self._partial_bin.unlink, missing_ok=True)
            cleanup.callback(self._partial_idx.unlink, missing_ok=True)
            # Nameless files: the system removes them even when this process is killed.
            lengths = cleanup.enter_context(tempfile.TemporaryFile(dir=folder))
            borders = cleanup.enter_context(tempfile.TemporaryFile(dir=folder))
            self._stream = PairStream(self._bin, lengths, borders, self.dtype)
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
        self._stream.add_documents(tokens, lengths, sequences)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._cleanup:
            if kind is None:
                self._commit()

    def _commit(self) -> None:
        with self._partial_idx.open("wb") as index:
            self._stream.write_index(index)
            sync(index)
        sync(self._bin)
        publish(self._partial_bin, self._partial_idx, self.bin_path, self.idx_path)


def lock(file: IO[bytes], path: Path) -> None:
    """Take over what a killed run may have left, unless a living run still holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DataError(f"{path} is held by another run; wait for it or give another --output-prefix") from None
