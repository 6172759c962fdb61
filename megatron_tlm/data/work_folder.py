"""What a preprocessing run keeps while it goes, so that the next one takes over where it was killed.

    .{prefix}.preprocess/journal          the settings, then one line per finished part, flushed as it is written
    .{prefix}.preprocess/{n}.tokens ...   the growing pair of each key; quarantine: the bad lines

A part is some consecutive chunks of the input. Its line holds a digest of that text and of what it added to every
file. The next run reads the input again, and keeps part after part while text and files are what the line says; the
first that differs is cut off with all that follow. So nothing is taken on trust: not a name, a size or a date.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from megatron_tlm.data.documents import Chunk
from megatron_tlm.data.encode import EncodedChunk, chunk_digest
from megatron_tlm.data.pair_stream import DIGEST_BYTES, Mark, PairStream, publish, sync
from megatron_tlm.data.pair_writer import lock
from megatron_tlm.data.progress import Counts
from megatron_tlm.errors import DataError

PART_BYTES = 64 << 20
FORMAT = 1
FILES = ("tokens", "lengths", "borders")


@dataclass(frozen=True)
class Part:
    """Where a run stood when a part was finished; `text` and `added` are digests of that part alone."""

    counts: Counts
    marks: dict[str, Mark]
    quarantine_bytes: int
    text: str
    added: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: bytes) -> "Part":
        given = json.loads(line)
        marks = {key: Mark(**mark) for key, mark in given.pop("marks").items()}
        return cls(counts=Counts(**given.pop("counts")), marks=marks, **given)


class WorkFolder:
    """The files of one run, as a context manager: they stay behind only where a finished part is worth keeping."""

    def __init__(
        self,
        prefix: str,
        keys: Sequence[str],
        dtype: np.dtype[np.integer],
        settings: Mapping[str, Any],
        *,
        on_bad_line: str,
        restart: bool,
    ) -> None:
        base = Path(prefix)
        self.path = base.with_name(f".{base.name}.preprocess")
        self._keys, self._dtype, self._settings = tuple(keys), dtype, {"format": FORMAT, **settings}
        self._on_bad_line, self._restart = on_bad_line, restart
        self._refused = False
        self._parts: list[Part] = []
        self._finished = False
        self._text = blake2b(digest_size=DIGEST_BYTES)
        self._part_bytes = 0
        self.counts = Counts()

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._journal = stack.enter_context((self.path / "journal").open("a+b"))
            lock(self._journal, self.path)
            stack.callback(self._tidy)
            found = self._read_journal()
            self.streams = {key: self._open_pair(number, stack) for number, key in enumerate(self._keys)}
            self._quarantine = stack.enter_context(_open(self.path / "quarantine"))
            self._parts = self._whole_parts(found)
            self._cut()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open_pair(self, number: int, stack: ExitStack) -> PairStream:
        files = [stack.enter_context(_open(self.path / f"{number}.{name}")) for name in FILES]
        return PairStream(files[0], files[1], files[2], self._dtype)

    def _read_journal(self) -> list[Part]:
        """The parts of an earlier run with the same settings; DataError where finished work has others."""
        if self._restart:
            return []
        self._journal.seek(0)
        lines = [line for line in self._journal.read().split(b"\n")[:-1] if line]
        try:
            settings = json.loads(lines[0]) if lines else {}
            parts = [Part.from_json(line) for line in lines[1:]]
        except (ValueError, KeyError, TypeError):  # a line that a kill cut short, or another program's
            return []
        wanted = self._all_settings
        if not (parts and parts[-1].counts.num_bad):
            settings["on_bad_line"] = self._on_bad_line  # what to do with bad lines may change before the first
        other = [name for name in wanted if settings.get(name) != wanted[name]]
        if parts and other:
            self._refused = True
            raise DataError(
                f"{self.path} keeps {parts[-1].counts.documents} documents of a run with another {', '.join(other)}; "
                "repeat its command to continue it, or start anew with --restart"
            )
        return parts

    @property
    def _all_settings(self) -> dict[str, Any]:
        return {**self._settings, "on_bad_line": self._on_bad_line}

    def _whole_parts(self, found: list[Part]) -> list[Part]:
        """Those, up to the first, whose results still are in the files."""
        before, quarantine = dict.fromkeys(self._keys, Mark()), 0
        for number, part in enumerate(found):
            added = {key: self.streams[key].digest_between(before[key], part.marks[key]) for key in self._keys}
            self._quarantine.seek(quarantine)
            added["quarantine"] = _digest(self._quarantine.read(part.quarantine_bytes - quarantine))
            if added != part.added:
                return found[:number]
            before, quarantine = part.marks, part.quarantine_bytes
        return found

    def _cut(self) -> None:
        """Back to the last part that counts."""
        last = self._parts[-1] if self._parts else None
        for key, stream in self.streams.items():
            stream.cut(last.marks[key] if last else Mark())
        self._quarantine.truncate(last.quarantine_bytes if last else 0)
        self._quarantine.seek(0, 2)
        self.counts = last.counts if last else Counts()
        self._text, self._part_bytes = blake2b(digest_size=DIGEST_BYTES), 0
        self._journal.truncate(0)
        for line in (json.dumps(self._all_settings), *(part.to_json() for part in self._parts)):
            self._journal.write(line.encode() + b"\n")
        self._journal.flush()

    def remaining(self, read: Callable[[], Iterator[Chunk]], *, rereadable: bool) -> Iterator[Chunk]:
        """The chunks that no part covers yet. Text that a part was not made of undoes that part and the rest."""
        chunks = read()
        for number, part in enumerate(self._parts):
            before = self._parts[number - 1].counts.chunks if number else 0
            text = blake2b(digest_size=DIGEST_BYTES)
            for chunk in islice(chunks, part.counts.chunks - before):
                text.update(chunk_digest(chunk))
            if text.hexdigest() == part.text:
                continue
            if not rereadable:
                raise DataError(
                    f"standard input is other text than the {part.counts.documents} documents kept in {self.path}; "
                    "give the same again, or start anew with --restart"
                )
            self._parts = self._parts[:number]
            self._cut()
            yield from islice(read(), before, None)
            return
        yield from chunks

    def add(self, chunk: EncodedChunk, quarantine: bytes) -> None:
        """The next chunk in order; finishes a part when there is enough for one."""
        empty = 0
        for key, encoded in chunk.by_key.items():
            self.streams[key].add_documents(encoded.tokens, encoded.lengths, encoded.sequences)
            empty += int((encoded.sequences == 0).sum())
        self._quarantine.write(quarantine)
        self._text.update(chunk.digest)
        self._part_bytes += chunk.text_bytes
        bad = dict(self.counts.bad_lines)
        for line in chunk.bad_lines:
            bad[line.kind] = bad.get(line.kind, 0) + 1
        now = self.counts
        self.counts = Counts(
            chunks=now.chunks + 1,
            documents=now.documents + chunk.documents,
            empty_documents=now.empty_documents + empty,
            tokens=now.tokens + sum(len(encoded.tokens) for encoded in chunk.by_key.values()),
            text_bytes=now.text_bytes + chunk.text_bytes,
            input_bytes=now.input_bytes + chunk.input_bytes,
            bad_lines=bad,
        )
        if self._part_bytes >= PART_BYTES:
            self._finish_part()

    def _finish_part(self) -> None:
        start = self._parts[-1].quarantine_bytes if self._parts else 0
        self._quarantine.seek(start)
        fresh = self._quarantine.read()
        for stream in self.streams.values():
            stream.flush()
        self._quarantine.flush()
        added = {key: stream.take_digest() for key, stream in self.streams.items()} | {"quarantine": _digest(fresh)}
        marks = {key: stream.mark for key, stream in self.streams.items()}
        part = Part(self.counts, marks, start + len(fresh), self._text.hexdigest(), added)
        self._journal.write(part.to_json().encode() + b"\n")
        self._journal.flush()
        self._parts.append(part)
        self._text, self._part_bytes = blake2b(digest_size=DIGEST_BYTES), 0

    def publish(self, pairs: Mapping[str, tuple[Path, Path]], quarantine: Path | None) -> None:
        """All pairs, and the bad lines if there are any, under their names."""
        for number, key in enumerate(self._keys):
            with (self.path / f"{number}.idx").open("wb") as index:
                self.streams[key].write_index(index)
                sync(index)
            self.streams[key].sync()
        sync(self._quarantine)
        for number, key in enumerate(self._keys):
            publish(self.path / f"{number}.tokens", self.path / f"{number}.idx", *pairs[key])
        if quarantine is not None:
            quarantine.unlink(missing_ok=True)
            if self._quarantine.tell():
                (self.path / "quarantine").replace(quarantine)
        self._finished = True

    def _tidy(self) -> None:
        """Runs when the files are closed: what is behind the last finished part goes, and all where there is none."""
        if self._refused:
            return
        if self._finished or not self._parts:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        last = self._parts[-1]
        for number, key in enumerate(self._keys):
            sizes = self.streams[key].sizes(last.marks[key])
            for name, size in zip(FILES, sizes, strict=True):
                os.truncate(self.path / f"{number}.{name}", size)

    @property
    def is_kept(self) -> bool:
        """Whether leaving now would leave finished parts behind."""
        return bool(self._parts) and not self._finished


def _open(path: Path) -> IO[bytes]:
    path.touch()
    return path.open("r+b")


def _digest(raw: bytes) -> str:
    return blake2b(raw, digest_size=DIGEST_BYTES).hexdigest()
