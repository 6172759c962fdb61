"""What one line of a corpus says, and what is wrong with a bad one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from megatron_tlm.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BadKind = Literal[
    "not UTF-8",
    "no JSON",
    "cut short",
    "several values",
    "no object",
    "missing key",
    "no text",
    "surrogate",
    "too long",
]

Document = dict[str, tuple[str, ...]]
"""key -> its sequences: one for a text, several for a list of texts."""


@dataclass(frozen=True)
class BadLine:
    """A line that is no document: `reason` is a whole sentence for people; `raw` is empty for one too long to keep."""

    address: str
    kind: BadKind
    reason: str
    raw: bytes

    def error(self) -> DataError:
        return DataError(self.reason)


class _Bad(Exception):
    def __init__(self, kind: BadKind, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind, text


def read_line(line: bytes, keys: Sequence[str], address: str) -> Document | BadLine:
    """One JSON object: its value under every key, a text or a list of texts. A byte order mark before it is nothing."""
    try:
        return _read_object(decode(line.removeprefix(BYTE_ORDER_MARK)), keys)
    except _Bad as bad:
        return BadLine(address, bad.kind, f"{address} = {bad.text}", line)


def read_text(raw: bytes, keys: Sequence[str], address: str) -> Document | BadLine:
    """A text as it stands, under every key, but for a byte order mark before it."""
    try:
        text = decode(raw.removeprefix(BYTE_ORDER_MARK))
    except _Bad as bad:
        return BadLine(address, bad.kind, f"{address} = {bad.text}", raw)
    return dict.fromkeys(keys, (text,))


def too_long(address: str, num_bytes: int, limit: int) -> BadLine:
    reason = f"{address} = {num_bytes} bytes exceed the {limit} of a line; raise --max-line-mb, or mend the line"
    return BadLine(address, "too long", reason, b"")


def _read_object(text: str, keys: Sequence[str]) -> Document:
    record = _load(text)
    if not isinstance(record, dict):
        raise _Bad("no object", f"{_shorten(text)} is no JSON object; write {{{json.dumps(keys[0])}: ...}}")
    document: Document = {}
    for key in keys:
        if key not in record:
            found = ", ".join(map(repr, record)) or "none"
            raise _Bad(
                "missing key",
                f"{_shorten(text)} has no key {key!r} among its keys ({found}); choose the one that holds the text",
            )
        value = record[key]
        sequences = value if isinstance(value, list) else [value]
        for sequence in sequences:
            if not isinstance(sequence, str):
                name = type(sequence).__name__
                raise _Bad("no text", f"{_shorten(text)} holds {name} as {key!r}; give a text or a list of texts")
            _check_unicode(sequence)
        document[key] = tuple(sequences)
    return document


def _load(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        kind: BadKind = "no JSON"
        if isinstance(error, json.JSONDecodeError):
            if error.msg == "Extra data":
                kind = "several values"
            elif error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
                kind = "cut short"
        raise _Bad(kind, f"{_shorten(text)} is no JSON ({error}); mend or remove the line") from None


def decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        text = f"byte 0x{raw[error.start]:02x} at offset {error.start} is not UTF-8; convert the text"
        raise _Bad("not UTF-8", text) from None


def _check_unicode(text: str) -> None:
    """JSON can spell half a surrogate pair, which no tokenizer takes."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        reason = f"lone surrogate U+{code:04X} at character {error.start} is no text; mend or remove the line"
        raise _Bad("surrogate", reason) from None


def _shorten(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")
