"""Files of text to documents: blocks of whole lines, cut at the same places whenever a file is read, and their lines.

The process that reads cuts blocks and no more; what the lines say is worked out by whoever gets the block.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Literal

from megatron_tlm.data.inputs import Source, open_source
from megatron_tlm.data.lines import BadLine, Document, read_line, read_text, too_long
from megatron_tlm.errors import DataError

CHUNK_BYTES = 1 << 20  # the package tokenizers takes a tenth more time for texts in batches of a quarter of this
MAX_LINE_BYTES = 64_000_000  # sentencepiece takes some 50 bytes of memory for each of a text's
PARQUET_ROWS = 256

TextUnit = Literal["file", "paragraph"]
"""What is one document of a .txt: all of it, or every run of lines between blank ones."""


@dataclass(frozen=True)
class Chunk:
    """Some consecutive lines of one source; `lost_bytes` > 0: one line too long to keep, and no data."""

    name: str
    unit: Literal["line", "file", "paragraph"]
    first_line: int
    data: bytes
    input_bytes: int  # of the file as it lies on disk, compressed or not, that were read for them
    lost_bytes: int = 0
    max_line_bytes: int = MAX_LINE_BYTES

    def __str__(self) -> str:
        return f"{self.name}:{self.first_line}"

    def entries(self, keys: Sequence[str]) -> Iterator[Document | BadLine]:
        """What the lines say; blank lines are passed over."""
        if self.lost_bytes:
            yield too_long(str(self), self.lost_bytes, self.max_line_bytes)
        elif self.unit == "file":
            yield read_text(self.data, keys, self.name)
        elif self.unit == "paragraph":
            for number, paragraph in _paragraphs(self.data, self.first_line):
                yield read_text(paragraph, keys, f"{self.name}:{number}")
        else:
            for number, line in enumerate(self.data.split(b"\n"), self.first_line):
                if line and not line.isspace():
                    yield read_line(line, keys, f"{self.name}:{number}")

    def documents(self, keys: Sequence[str]) -> Iterator[Document]:
        """As `entries`, but DataError for a bad line, naming file and line."""
        for entry in self.entries(keys):
            if isinstance(entry, BadLine):
                raise entry.error()
            yield entry


def read_chunks(
    sources: Sequence[Source],
    chunk_bytes: int = CHUNK_BYTES,
    *,
    keys: Sequence[str] = ("text",),
    text_unit: TextUnit = "file",
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Chunk]:
    """The lines of all sources in order, in blocks of about `chunk_bytes` of text; a longer line is a block.

    `keys` are the columns to take of a Parquet file. Raises DataError for what cannot be read or unpacked.
    """
    for source in sources:
        number = 1
        try:
            if source.kind == "parquet":
                yield from _read_rows(source, keys)
                continue
            with open_source(source) as (file, raw):
                position = 0
                for unit, data, lost_bytes in _read_blocks(source, file, chunk_bytes, text_unit, max_line_bytes):
                    end = raw.tell() if raw is not None else position + len(data) + lost_bytes
                    yield Chunk(str(source), unit, number, data, end - position, lost_bytes, max_line_bytes)
                    number += 1 if lost_bytes else data.count(b"\n")
                    position = end
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            kind = "zstandard" if source.packing == ".zst" else "gzip"
            raise DataError(
                f"{source}:{number} is where the file stops being whole {kind} ({error}); copy it again"
            ) from error
        except OSError as error:
            raise DataError(
                f"{source}:{number} cannot be read ({error.strerror}); mend the file or leave it out"
            ) from error


def read_texts(sources: Sequence[Source], keys: Sequence[str]) -> Iterator[str]:
    """All texts that are not empty, in order."""
    for chunk in read_chunks(sources, keys=keys):
        for document in chunk.documents(keys):
            for sequences in document.values():
                yield from (text for text in sequences if text)


Block = tuple[Literal["line", "file", "paragraph"], bytes, int]


def _read_blocks(source: Source, file: IO[bytes], size: int, text_unit: TextUnit, limit: int) -> Iterator[Block]:
    """`(unit, whole lines, bytes of one too long to keep)`."""
    if source.kind == "lines":
        yield from _read_lines(file, min(size, limit), limit)
    elif text_unit == "paragraph":
        yield from _read_paragraphs(source, file, size, limit)
    else:
        data = file.read(limit + 1)
        if len(data) > limit:
            lost_bytes = len(data)
            while skipped := file.read(size):
                lost_bytes += len(skipped)
            yield "file", b"", lost_bytes
        else:
            yield "file", data, 0


def _read_lines(file: IO[bytes], size: int, limit: int) -> Iterator[Block]:
    rest: list[bytes] = []  # the start of a line, without its newline
    rest_bytes = 0
    while block := file.read(size):
        first = block.find(b"\n")
        if rest_bytes + (first if first >= 0 else len(block)) > limit:
            while first < 0:
                rest_bytes += len(block)
                block = file.read(size)
                first = block.find(b"\n") if block else 0
            yield "line", b"", rest_bytes + first
            rest, rest_bytes, block = [], 0, block[first + 1 :]
        cut = block.rfind(b"\n") + 1
        if cut:
            yield "line", b"".join([*rest, memoryview(block)[:cut]]), 0
            rest, rest_bytes = [], 0
        if cut < len(block):
            rest.append(block[cut:])
            rest_bytes += len(block) - cut
    if rest:
        yield "line", b"".join(rest), 0


def _read_paragraphs(source: Source, file: IO[bytes], size: int, limit: int) -> Iterator[Block]:
    """Cut behind blank lines."""
    rest = b""
    while block := file.read(size):
        rest += block
        cut = max(rest.rfind(b"\n\n") + 2, rest.rfind(b"\n\r\n") + 3)
        if cut > 2:
            yield "paragraph", rest[:cut], 0
            rest = rest[cut:]
        if len(rest) > limit:
            raise DataError(f"{source} has {len(rest)} bytes without a blank line, above {limit}; raise --max-line-mb")
    if rest:
        yield "paragraph", rest, 0


def _paragraphs(data: bytes, first_line: int) -> Iterator[tuple[int, bytes]]:
    """`(number of its first line, text)`: what stands between blank lines, without its last newline."""
    start, kept = first_line, list[bytes]()
    for number, line in enumerate((*data.split(b"\n"), b""), first_line):
        if line and not line.isspace():
            start = start if kept else number
            kept.append(line)
        elif kept:
            yield start, b"\n".join(kept).removesuffix(b"\r")
            kept = []


def _name_type(value: object) -> dict[str, None]:
    """Whatever JSON cannot spell is no text either."""
    return {type(value).__name__: None}


def _read_rows(source: Source, keys: Sequence[str]) -> Iterator[Chunk]:
    """The rows of a Parquet file, each as the JSON line that it stands for."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            "input = .parquet needs the package pyarrow, which is not installed; pip install pyarrow"
        ) from None
    try:
        file = parquet.ParquetFile(source.path)
        names = file.schema_arrow.names
        for key in keys:
            if key not in names:
                raise DataError(
                    f"{source} has no column {key!r} among {', '.join(names)}; choose the key that holds the text"
                )
        number, told = 1, 0
        for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=list(dict.fromkeys(keys))):
            data = b"".join(json.dumps(row, default=_name_type).encode() + b"\n" for row in batch.to_pylist())
            number += batch.num_rows
            done = source.size_bytes * (number - 1) // file.metadata.num_rows
            yield Chunk(str(source), "line", number - batch.num_rows, data, done - told)
            told = done
    except pyarrow.ArrowException as error:
        raise DataError(f"{source} is no whole Parquet file ({error}); copy it again") from error
