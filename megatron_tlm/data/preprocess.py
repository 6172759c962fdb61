"""Text to a Megatron `.bin/.idx` pair per key: `{output_prefix}_{key}_document`, the same bytes for any workers."""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

from megatron_tlm.data.documents import MAX_LINE_BYTES, Chunk, TextUnit, read_chunks
from megatron_tlm.data.encode import EncodedChunk, Encoder
from megatron_tlm.data.index_format import token_dtype
from megatron_tlm.data.indexed_dataset import pair_paths
from megatron_tlm.data.inputs import Source, expand_inputs
from megatron_tlm.data.lines import BadLine
from megatron_tlm.data.progress import Counts, Progress
from megatron_tlm.data.tokenizers import Tokenizer
from megatron_tlm.data.work_folder import WorkFolder
from megatron_tlm.data.workers import ordered_map
from megatron_tlm.errors import DataError

OnBadLine = Literal["stop", "skip", "quarantine"]


@dataclass(frozen=True)
class Options:
    """How text is read and written; `restart`: do not continue what a killed run left."""

    json_keys: Sequence[str] = ("text",)
    append_eod: bool = False
    workers: int | None = None
    text_unit: TextUnit = "file"
    on_bad_line: OnBadLine = "stop"
    max_line_bytes: int = MAX_LINE_BYTES
    restart: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise DataError(f"workers = {self.workers} is below 1; give 1 or more")
        if self.max_line_bytes < 1:
            raise DataError(f"max_line_bytes = {self.max_line_bytes} is below 1; give a positive size")
        for key in self.keys:
            if "/" in key:
                raise DataError(
                    f"json_keys = {key!r} holds a '/' and would name a folder in PREFIX_{key}_document; rename it"
                )

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.json_keys))


@dataclass(frozen=True)
class Result:
    """What a run wrote: the prefix of every key, for `--data-path`, and the bad lines if they were kept."""

    prefixes: dict[str, str]
    counts: Counts
    quarantine: Path | None
    elapsed_seconds: float


@dataclass(frozen=True)
class Listener:
    """Who wants to know: how far the run is, and single lines of news."""

    progress: Callable[[Progress], None] = lambda progress: None
    tell: Callable[[str], None] = lambda text: None
    interval: int = 1000  # documents between two calls of `progress`


def preprocess(
    inputs: Sequence[str],
    output_prefix: str,
    tokenizer: Tokenizer,
    options: Options = Options(),
    listener: Listener = Listener(),
) -> Result:
    """Tokenise all documents of the inputs in order.

    A run that ended early, however it did, is continued from its last finished part. Raises DataError for a bad line
    (file and line) unless told otherwise, a dying worker, a full disk, or inputs without a document; then no output
    appears.
    """
    if not output_prefix:
        raise DataError("output_prefix = '' names no file; give the start of its path, such as corpus")
    sources = expand_inputs(inputs, listener.tell)
    if options.append_eod:
        _ = tokenizer.eod_id  # raises before any work where there is none
    try:
        return _preprocess(sources, output_prefix, tokenizer, options, listener)
    except OSError as error:
        raise DataError(
            f"output_prefix = {output_prefix} cannot be written ({error.strerror}); make room, and repeat the command"
        ) from error


def _preprocess(
    sources: tuple[Source, ...], output_prefix: str, tokenizer: Tokenizer, options: Options, listener: Listener
) -> Result:
    keys, started = options.keys, time.monotonic()
    prefixes = {key: f"{output_prefix}_{key}_document" for key in keys}
    quarantine = Path(f"{output_prefix}_bad_lines.jsonl") if options.on_bad_line == "quarantine" else None
    read = partial(read_chunks, sources, keys=keys, text_unit=options.text_unit, max_line_bytes=options.max_line_bytes)
    encoder = Encoder(tokenizer, keys, options.append_eod, stop=options.on_bad_line == "stop")
    with _work_folder(output_prefix, tokenizer, options) as work:
        progress = Progress(work.counts, work.counts, sum(source.size_bytes for source in sources), 0.0)
        if work.counts.documents:
            listener.tell(f"continuing: {work.counts.documents} documents are kept in {work.path}")
        try:
            chunks = work.remaining(read, rereadable=not any(source.is_stream for source in sources))
            for far in _take_in(work, encoder, chunks, options, listener, progress):
                listener.progress(replace(far, elapsed_seconds=time.monotonic() - started))
            if work.counts.documents == 0:
                raise DataError(
                    f"input = {' '.join(map(str, sources))} holds no document; give files with text in them"
                )
            work.publish({key: pair_paths(prefix) for key, prefix in prefixes.items()}, quarantine)
        except BaseException:
            if work.is_kept:
                listener.tell(f"finished parts are kept in {work.path}: the same command continues behind them")
            raise
    kept_lines = quarantine if quarantine is not None and work.counts.num_bad else None
    return Result(prefixes, work.counts, kept_lines, time.monotonic() - started)


def _work_folder(output_prefix: str, tokenizer: Tokenizer, options: Options) -> WorkFolder:
    settings = {
        "tokenizer": tokenizer_digest(tokenizer),
        "json_keys": list(options.keys),
        "append_eod": options.append_eod,
        "text_unit": options.text_unit,
        "max_line_bytes": options.max_line_bytes,
    }
    return WorkFolder(
        output_prefix,
        options.keys,
        token_dtype(tokenizer.vocab_size),
        settings,
        on_bad_line=options.on_bad_line,
        restart=options.restart,
    )


def _take_in(
    work: WorkFolder,
    encoder: Encoder,
    chunks: Iterator[Chunk],
    options: Options,
    listener: Listener,
    progress: Progress,
) -> Iterator[Progress]:
    """All chunks through the workers into the folder; yields when it is time to tell how far it is, and at the end."""
    due, told = work.counts.documents + listener.interval, None
    encoded = ordered_map(encoder, chunks, workers=options.workers or available_cores())
    with contextlib.closing(encoded):
        for chunk in encoded:
            for line in chunk.bad_lines:
                listener.tell(f"bad line: {line.reason}")
            work.add(chunk, _quarantined(chunk) if options.on_bad_line == "quarantine" else b"")
            if work.counts.documents >= due:
                yield replace(progress, counts=work.counts)
                due, told = work.counts.documents + listener.interval, work.counts
    if work.counts != told:
        yield replace(progress, counts=work.counts)


def _quarantined(chunk: EncodedChunk) -> bytes:
    return b"".join(_quarantine_record(line) for line in chunk.bad_lines)


def _quarantine_record(line: BadLine) -> bytes:
    """`raw` is the line itself; bytes that are no UTF-8 stand in it as lone surrogates, Python's surrogateescape."""
    raw = line.raw.decode("utf-8", errors="surrogateescape")
    record = {"address": line.address, "kind": line.kind, "reason": line.reason, "raw": raw}
    return json.dumps(record).encode() + b"\n"


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Equal for tokenizers that are saved as the same files."""
    with tempfile.TemporaryDirectory(prefix="tokenizer-") as folder:
        tokenizer.save_to(folder)
        digest = sha256()
        for path in sorted(Path(folder).iterdir()):
            digest.update(path.read_bytes())
        return digest.hexdigest()


def available_cores() -> int:
    """Cores this process may use, which on a shared node are fewer than it has."""
    return len(os.sched_getaffinity(0))
