"""Which files an input names, of what kind they are, and their bytes unpacked.

kind        suffixes             packing
lines       .jsonl .json         none, .gz, .zst
text        .txt                 none, .gz, .zst
parquet     .parquet             its own
"""

import gzip
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import IO, Any, Literal

from megatron_tlm.errors import DataError

Kind = Literal["lines", "text", "parquet"]
Packing = Literal["", ".gz", ".zst"]

KINDS: dict[str, Kind] = {".jsonl": "lines", ".json": "lines", ".txt": "text", ".parquet": "parquet"}
PACKINGS: tuple[Packing, ...] = (".gz", ".zst")
KNOWN = ".jsonl, .json, .txt (each also .gz or .zst) and .parquet"
STANDARD_INPUT = "-"
MAGIC: dict[bytes, Packing] = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
BUFFER_BYTES = 1 << 20
PACKED_BYTES = 1 << 15  # unpacked at once, a thousand times as much at worst


@dataclass(frozen=True)
class Source:
    """One file of text, or standard input."""

    path: Path
    kind: Kind
    packing: Packing = ""

    @property
    def is_stream(self) -> bool:
        return str(self.path) == STANDARD_INPUT

    @property
    def size_bytes(self) -> int:
        """As it lies on disk; 0 where nobody knows."""
        return 0 if self.is_stream else self.path.stat().st_size

    def __str__(self) -> str:
        return "standard input" if self.is_stream else str(self.path)


def expand_inputs(patterns: Sequence[str], tell: Callable[[str], None] = lambda text: None) -> tuple[Source, ...]:
    """The files that paths, globs and folders name, each pattern's in sorted order; every file once, under
    whatever names; `-` is lines.

    A folder stands for the files of a known kind at any depth below it, hidden ones left out. `tell` hears of files
    named more than once.
    """
    sources: dict[Path, Source] = {}  # by what a path leads to, whichever way it is written
    again: dict[Path, None] = {}
    for pattern in patterns:
        if pattern == STANDARD_INPUT:
            sources[Path(pattern)] = Source(Path(pattern), "lines")
            continue
        matches = sorted(glob(pattern, recursive=True)) if has_magic(pattern) else [pattern]
        found = [source for match in matches for source in _sources(Path(match))]
        if not found:
            raise DataError(f"input = {pattern!r} matches no file of text; give files, globs or folders of {KNOWN}")
        for source in found:
            first = sources.setdefault(source.path.resolve(), source)
            if first is not source:
                again[first.path] = None
    if again:
        more = f" and {len(again) - 1} more" if len(again) > 1 else ""
        tell(f"input: {next(iter(again))}{more} named more than once, read once")
    return tuple(sources.values())


def _sources(path: Path) -> list[Source]:
    if path.is_dir():
        inside = (file for file in sorted(path.rglob("*")) if not _is_hidden(file.relative_to(path)))
        return [source for file in inside if file.is_file() and (source := _source(file))]
    if not path.exists():
        return []
    source = _source(path)
    if source is None:
        raise DataError(f"input = {str(path)!r} is not one of {KNOWN}; rename it")
    return [source]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _source(path: Path) -> Source | None:
    packing: Packing = next((packing for packing in PACKINGS if path.suffix == packing), "")
    kind = KINDS.get(path.with_suffix("").suffix if packing else path.suffix)
    return None if kind is None or (packing and kind == "parquet") else Source(path, kind, packing)


@contextmanager
def open_source(source: Source) -> Iterator[tuple[IO[bytes], IO[bytes] | None]]:
    """`(its unpacked bytes, the file that they are read from)`; the latter is None for standard input.

    Standard input is unpacked where it starts as packed data does.
    """
    with ExitStack() as stack:
        if source.is_stream:
            stdin = io.BufferedReader(sys.stdin.buffer.raw) if hasattr(sys.stdin.buffer, "raw") else sys.stdin.buffer
            start = stdin.peek(4)[:4] if isinstance(stdin, io.BufferedReader) else b""
            packing = next((packing for magic, packing in MAGIC.items() if start.startswith(magic)), "")
            yield _unpack(stdin, packing, stack), None
            return
        raw = stack.enter_context(source.path.open("rb"))
        yield _unpack(raw, source.packing, stack), raw


def _unpack(raw: IO[bytes], packing: str, stack: ExitStack) -> IO[bytes]:
    if packing == ".gz":
        # GzipFile's own small reads are several times slower.
        return io.BufferedReader(stack.enter_context(gzip.GzipFile(fileobj=raw)), BUFFER_BYTES)
    if packing == ".zst":
        return io.BufferedReader(_Zstandard(raw), BUFFER_BYTES)
    return raw


class _Zstandard(io.RawIOBase):
    """Frame after frame. The package's own reader takes a file cut short for a whole one; this one does not."""

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError:
            raise DataError(
                "input = .zst needs the package zstandard, which is not installed; pip install zstandard"
            ) from None
        self._raw = raw
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._error = zstandard.ZstdError
        self._frame: Any = None
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if not self._packed:
                self._packed = self._raw.read(PACKED_BYTES)
                if not self._packed:
                    if self._frame is not None:
                        raise EOFError("it ends inside a frame")
                    return 0
            self._frame = self._frame or self._new_frame()
            try:
                self._ready = memoryview(self._frame.decompress(self._packed))
            except self._error as error:
                raise EOFError(str(error)) from None
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
