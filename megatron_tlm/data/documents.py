"""Text on disk to documents: which files an input names, their lines, and what a line says.

`.jsonl`, `.json` (one object a line) and `.txt` (the whole file is one document), each also with `.gz`.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import IO

from megatron_tlm.errors import DataError

SUFFIXES = (".jsonl", ".json", ".txt")
CHUNK_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Document = dict[str, tuple[str, ...]]
"""key -> its sequences: one for a text, several for a list of texts."""


@dataclass(frozen=True)
class Chunk:
    """Some consecutive lines of one file."""

    path: Path
    first_line: int
    lines: tuple[bytes, ...]
    input_bytes: int  # bytes of the file as it lies on disk, compressed or not, that were read for them

    def documents(self, keys: Sequence[str]) -> Iterator[Document]:
        """What the lines say; blank lines are passed over. Raises DataError naming file and line."""
        for number, line in enumerate(self.lines, self.first_line):
            if is_plain_text(self.path):
                yield {key: (_decode(line, f"{self.path}"),) for key in keys}
            elif line.strip():
                yield parse_line(line, keys, f"{self.path}:{number}")


def expand_inputs(patterns: Sequence[str]) -> tuple[Path, ...]:
    """The files that paths and globs name, each pattern's in sorted order; every file once."""
    paths: dict[Path, None] = {}
    for pattern in patterns:
        matches = sorted(glob(pattern, recursive=True)) if has_magic(pattern) else [pattern]
        files = [Path(match) for match in matches if Path(match).is_file()]
        if not files:
            raise DataError(f"input = {pattern!r} matches no file; give paths or globs of {', '.join(SUFFIXES)} (.gz)")
        paths |= dict.fromkeys(files)
    for path in paths:
        if _suffix(path) not in SUFFIXES:
            raise DataError(f"input = {str(path)!r} is not one of {', '.join(SUFFIXES)}, plain or .gz; rename it")
    return tuple(paths)


def is_plain_text(path: Path) -> bool:
    return _suffix(path) == ".txt"


def read_chunks(paths: Sequence[Path], chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The lines of all files in order, in chunks of about `chunk_bytes` of text."""
    for path in paths:
        number, start, position = 1, 1, 0
        lines: list[bytes] = []
        size = 0
        try:
            with ExitStack() as stack:
                raw = stack.enter_context(path.open("rb"))
                for line in _read_lines(path, raw, stack):
                    lines.append(line)
                    size += len(line)
                    number += 1
                    if size >= chunk_bytes:
                        yield Chunk(path, start, tuple(lines), raw.tell() - position)
                        lines, size, start, position = [], 0, number, raw.tell()
                if lines:
                    yield Chunk(path, start, tuple(lines), raw.tell() - position)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path}:{number} = no whole gzip file ({error}); copy it again") from error
        except OSError as error:
            raise DataError(f"{path}:{number} = cannot be read ({error.strerror}); mend it or leave it out") from error


def _read_lines(path: Path, raw: IO[bytes], stack: ExitStack) -> Iterator[bytes]:
    file: IO[bytes] = raw
    if path.suffix == ".gz":
        unpacked = stack.enter_context(gzip.GzipFile(fileobj=raw))
        file = io.BufferedReader(unpacked, 1 << 20)  # GzipFile's own readline is several times slower
    if is_plain_text(path):
        yield file.read()
        return
    first = file.readline()
    if first:
        yield first.removeprefix(BYTE_ORDER_MARK)
        yield from file


def parse_line(line: bytes, keys: Sequence[str], address: str) -> Document:
    """One JSON object: its value under every key, a text or a list of texts."""
    text = _decode(line, address)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{address} = {_shorten(text)} is no JSON ({error}); mend or remove the line") from None
    if not isinstance(record, dict):
        raise DataError(f"{address} = {_shorten(text)} is no JSON object; write {{{json.dumps(keys[0])}: ...}}")
    document: Document = {}
    for key in keys:
        if key not in record:
            found = ", ".join(map(repr, record)) or "none"
            raise DataError(f"{address} = no key {key!r} among its keys ({found}); choose with --json-keys")
        value = record[key]
        sequences = value if isinstance(value, list) else [value]
        for sequence in sequences:
            if not isinstance(sequence, str):
                raise DataError(
                    f"{address} = {key!r} holds {type(sequence).__name__}, not text; give a text or a list of texts"
                )
            _check_unicode(sequence, address)
        document[key] = tuple(sequences)
    return document


def _decode(raw: bytes, address: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{address} = byte 0x{raw[error.start]:02x} at offset {error.start} is not UTF-8; convert the text"
        ) from None


def _check_unicode(text: str, address: str) -> None:
    """JSON can spell half a surrogate pair, which no tokenizer takes."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{address} = lone surrogate U+{ord(text[error.start]):04X} at character {error.start} is no text; "
            "mend or remove the line"
        ) from None


def _shorten(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _suffix(path: Path) -> str:
    name = path.with_suffix("") if path.suffix == ".gz" else path
    return name.suffix
