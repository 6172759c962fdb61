"""A sentencepiece `.model` read without its library: pieces, scores and how text is normalised.

The file is a protocol buffer (sentencepiece_model.proto). Of its wire format four kinds of field occur: varint, eight
bytes, a length and that many bytes, four bytes. Fields that are not needed are passed over.
"""

import struct
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_tlm.errors import ExportError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
SPACE_MARK = "\u2581"


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; `kind` is one of the six above."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """`pieces` by id. `charsmap` is the compiled normalisation, empty for none; ids are None where there is none."""

    pieces: tuple[Piece, ...]
    model_type: int
    unk_id: int | None
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    byte_fallback: bool

    def text(self, piece_id: int | None) -> str | None:
        """The spelling of a piece that may not exist."""
        return None if piece_id is None else self.pieces[piece_id].text


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """The model in a file; ExportError for one that is damaged or of a kind that only the library runs."""
    try:
        model = _fields(path.read_bytes())
        pieces = tuple(_piece(_fields(item)) for item in model[1])
        trainer, normalizer = (_fields(model[number][-1]) if model[number] else {} for number in (2, 3))
    except (OSError, ValueError, IndexError, struct.error, TypeError) as error:
        raise ExportError(f"{path} is no sentencepiece model ({error!r}); give a .model file") from None
    model_type = _last(trainer, 3, UNIGRAM)
    if model_type not in (UNIGRAM, BPE) or not pieces:
        raise ExportError(f"{path}: model_type = {model_type} is neither {UNIGRAM} (unigram) nor {BPE} (BPE); use one")
    return SentencePieceModel(
        pieces,
        model_type,
        unk_id=_id(_last(trainer, 40, 0), pieces),
        bos_id=_id(_last(trainer, 41, 1), pieces),
        eos_id=_id(_last(trainer, 42, 2), pieces),
        pad_id=_id(_last(trainer, 43, -1), pieces),
        charsmap=bytes(_last(normalizer, 2, b"")),
        add_dummy_prefix=bool(_last(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_last(normalizer, 4, 1)),
        byte_fallback=any(piece.kind == BYTE for piece in pieces),
    )


def merges(model: SentencePieceModel) -> list[tuple[str, str]]:
    """Which two pieces make one, the first to be tried first: what sentencepiece's BPE reads off the scores."""
    ids = {piece.text: index for index, piece in enumerate(model.pieces)}
    ranked = []
    for piece in model.pieces:
        if piece.kind not in (NORMAL, USER_DEFINED) or len(piece.text) < 2:
            continue
        for cut in range(1, len(piece.text)):
            left, right = piece.text[:cut], piece.text[cut:]
            if left in ids and right in ids:
                ranked.append((-piece.score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _piece(fields: dict[int, list[Any]]) -> Piece:
    score = struct.unpack("<f", fields[2][-1])[0] if fields[2] else 0.0
    return Piece(bytes(fields[1][-1]).decode(), score, _last(fields, 3, NORMAL))


def _id(value: int, pieces: tuple[Piece, ...]) -> int | None:
    """Negative numbers mean none, and are stored as 64-bit complements."""
    return value if 0 <= value < len(pieces) else None


def _last(fields: dict[int, list[Any]], number: int, default: Any) -> Any:
    """The value that counts of a field given any number of times."""
    found = fields.get(number)
    return found[-1] if found else default


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Field number -> its values: integers, or bytes."""
    found: dict[int, list[Any]] = defaultdict(list)
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        value: Any
        if kind == 0:
            value, place = _varint(data, place)
        elif kind in (1, 2, 5):
            size = 8 if kind == 1 else 4
            if kind == 2:
                size, place = _varint(data, place)
            if place + size > len(data):
                raise ValueError(f"field {key >> 3} ends behind the file")
            value, place = data[place : place + size], place + size
        else:
            raise ValueError(f"field {key >> 3} is of wire type {kind}")
        found[key >> 3].append(value)
    return found


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError(f"a number of more than 64 bits at byte {place}")
