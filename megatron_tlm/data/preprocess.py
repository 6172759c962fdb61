"""Text to a Megatron `.bin/.idx` pair per key: `{output_prefix}_{key}_document`, the same bytes for any workers."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.documents import Chunk, expand_inputs, read_chunks
from megatron_tlm.data.index_format import token_dtype
from megatron_tlm.data.indexed_dataset import IndexedDatasetWriter
from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.data.workers import ordered_map
from megatron_tlm.errors import DataError


@dataclass(frozen=True)
class Progress:
    """How far a run is; `str()` of it is the line to show."""

    documents: int
    tokens: int
    text_bytes: int  # of the lines read, uncompressed
    input_bytes: int  # of the files as they lie on disk
    total_input_bytes: int
    elapsed_seconds: float

    @property
    def eta_seconds(self) -> float:
        return self.elapsed_seconds * (self.total_input_bytes / max(1, self.input_bytes) - 1)

    def __str__(self) -> str:
        seconds = max(self.elapsed_seconds, 1e-9)
        return (
            f"{self.documents} documents, {self.tokens} tokens, {self.text_bytes / 1e6:.1f} MB | "
            f"{self.documents / seconds:.0f} documents/s, {self.text_bytes / 1e6 / seconds:.2f} MB/s, "
            f"{self.tokens / seconds:.0f} tokens/s | {self.input_bytes / max(1, self.total_input_bytes):.0%}, "
            f"ETA {_clock(self.eta_seconds)}"
        )


@dataclass(frozen=True)
class Result:
    """What a run wrote: the prefix of every key, for `--data-path`."""

    prefixes: dict[str, str]
    documents: int
    empty_documents: int  # under any key: they have a border but no sequence
    tokens: int
    elapsed_seconds: float


@dataclass(frozen=True)
class _Encoded:
    """The documents of one chunk under one key."""

    tokens: NDArray[np.integer]
    lengths: NDArray[np.int32]  # of its sequences
    sequences: NDArray[np.int32]  # of each document


@dataclass(frozen=True)
class _EncodedChunk:
    by_key: dict[str, _Encoded]
    documents: int
    text_bytes: int
    input_bytes: int


@dataclass(frozen=True)
class _Encoder:
    """Chunk to ids: a pure function, so it does not matter which process runs it."""

    tokenizer: Tokenizer
    keys: tuple[str, ...]
    append_eod: bool

    def __call__(self, chunk: Chunk) -> _EncodedChunk:
        documents = list(chunk.documents(self.keys))
        by_key = {key: self._encode([document[key] for document in documents]) for key in self.keys}
        return _EncodedChunk(by_key, len(documents), sum(map(len, chunk.lines)), chunk.input_bytes)

    def _encode(self, documents: list[tuple[str, ...]]) -> _Encoded:
        dtype = token_dtype(self.tokenizer.vocab_size)
        end = [self.tokenizer.eod_id] if self.append_eod else []
        pieces: list[NDArray[np.integer]] = [np.empty(0, dtype)]
        sequences: list[int] = []
        for texts in documents:
            encoded = [ids for text in texts if (ids := self.tokenizer.encode(text))]
            if encoded:  # Megatron's rule: an empty document gets no end either
                encoded[-1] = encoded[-1] + end
            pieces.extend(np.array(ids, dtype) for ids in encoded)
            sequences.append(len(encoded))
        lengths = np.array([len(piece) for piece in pieces[1:]], np.int32)
        return _Encoded(np.concatenate(pieces), lengths, np.array(sequences, np.int32))


def preprocess(
    inputs: Sequence[str],
    output_prefix: str,
    tokenizer: Tokenizer,
    *,
    json_keys: Sequence[str] = ("text",),
    append_eod: bool = False,
    workers: int | None = None,
    log_interval: int = 1000,
    report: Callable[[Progress], None] | None = None,
) -> Result:
    """Tokenise all documents of the inputs in order; workers None means one per core.

    `report` is called about every `log_interval` documents and at the end. Raises DataError for a bad line (file and
    line), a dying worker or inputs without a document; then no output appears.
    """
    if workers is not None and workers < 1:
        raise DataError(f"workers = {workers} is below 1; give 1 or more")
    keys = tuple(dict.fromkeys(json_keys))
    paths = expand_inputs(inputs)
    if append_eod:
        _ = tokenizer.eod_id  # raises before any work where there is none
    prefixes = {key: f"{output_prefix}_{key}_document" for key in keys}
    dtype = token_dtype(tokenizer.vocab_size)
    started = time.monotonic()
    progress = Progress(0, 0, 0, 0, sum(path.stat().st_size for path in paths), 0.0)
    empty, due = 0, log_interval
    with contextlib.ExitStack() as stack:
        writers = {key: stack.enter_context(IndexedDatasetWriter(prefix, dtype)) for key, prefix in prefixes.items()}
        encoded = ordered_map(
            _Encoder(tokenizer, keys, append_eod), read_chunks(paths), workers=workers or available_cores()
        )
        for chunk in stack.enter_context(contextlib.closing(encoded)):
            for key, part in chunk.by_key.items():
                writers[key].add_documents(part.tokens, part.lengths, part.sequences)
                empty += int((part.sequences == 0).sum())
            progress = _advance(progress, chunk, time.monotonic() - started)
            if report and progress.documents >= due:
                report(progress)
                due = progress.documents + log_interval
        if progress.documents == 0:
            raise DataError(f"input = {' '.join(inputs)} holds no document; give files with text in them")
    if report:
        report(progress)
    return Result(prefixes, progress.documents, empty, progress.tokens, time.monotonic() - started)


def available_cores() -> int:
    """Cores this process may use, which on a shared node are fewer than it has."""
    return len(os.sched_getaffinity(0))


def _advance(progress: Progress, chunk: _EncodedChunk, elapsed_seconds: float) -> Progress:
    return replace(
        progress,
        documents=progress.documents + chunk.documents,
        tokens=progress.tokens + sum(len(part.tokens) for part in chunk.by_key.values()),
        text_bytes=progress.text_bytes + chunk.text_bytes,
        input_bytes=progress.input_bytes + chunk.input_bytes,
        elapsed_seconds=elapsed_seconds,
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
