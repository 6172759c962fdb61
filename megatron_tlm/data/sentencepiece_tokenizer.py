"""SentencePiece: the tokenizer, and training one that loses nothing of a text."""

import io
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from megatron_tlm.data.documents import read_texts
from megatron_tlm.data.inputs import expand_inputs
from megatron_tlm.data.tokenizer_files import END_PIECES, check_ids, read_model, replace_file, save_tokenizer
from megatron_tlm.errors import DataError

SPACE_MARK = "\u2581"  # how sentencepiece writes a space inside a piece
TRAINER_THREADS = 8  # stored in the model, so a constant: the same text gives the same file on every machine
SENTENCE_CHARACTERS = 4000


class SentencePieceTokenizer:
    """A sentencepiece `.model`. Control pieces spelt out in a text stay text."""

    type_name = "SentencePieceTokenizer"

    def __init__(self, path: str | Path) -> None:
        self._model = read_model(path)
        try:
            self._processor = SentencePieceProcessor(model_proto=self._model)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"tokenizer_model = {path} is no sentencepiece model ({error}); give a .model") from None
        self._mark_ids = self._find_mark_ids()

    def _find_mark_ids(self) -> list[int] | None:
        """The bytes of U+2581 as ids, for models that keep all else: sentencepiece would decode it as a space."""
        processor = self._processor
        ids = [int(processor.piece_to_id(f"<0x{byte:02X}>")) for byte in SPACE_MARK.encode()]
        probe = "  a \n\n b\t "
        keeps_all = all(map(processor.is_byte, ids)) and processor.decode(processor.encode(probe)) == probe
        return ids if keeps_all else None

    @property
    def vocab_size(self) -> int:
        return int(self._processor.get_piece_size())

    @property
    def eod_id(self) -> int:
        candidates = [self._processor.eos_id(), *(self._processor.piece_to_id(piece) for piece in END_PIECES)]
        known = [int(id_) for id_ in candidates if id_ >= 0 and id_ != self._processor.unk_id()]
        if not known:
            raise DataError(
                "tokenizer_model = a model without an end piece (eos) cannot end a document; train one with it"
            )
        return known[0]

    def encode(self, text: str) -> list[int]:
        if self._mark_ids and SPACE_MARK in text:
            first, *others = (self._encode_plain(part) for part in text.split(SPACE_MARK))
            return first + [id_ for part in others for id_ in (*self._mark_ids, *part)]
        return self._encode_plain(text)

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(text)
        return ids

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        if threads == 1:
            return [self.encode(text) for text in texts]
        batch: list[list[int]] = self._processor.encode(list(texts), num_threads=threads)
        return [self.encode(text) if SPACE_MARK in text else ids for text, ids in zip(texts, batch, strict=True)]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        return [
            np.array(self.encode(text), np.int32)
            if self._mark_ids and SPACE_MARK in text
            else self._processor.encode(text, return_type="numpy")
            for text in texts
        ]

    def decode(self, ids: Sequence[int]) -> str:
        check_ids(ids, self.vocab_size)
        return str(self._processor.decode([int(id_) for id_ in ids]))

    def save_to(self, directory: str | Path) -> None:
        save_tokenizer(directory, self.type_name, "tokenizer.model", self._model, {})


def train_sentencepiece(
    inputs: Sequence[str],
    model_prefix: str | Path,
    vocab_size: int,
    *,
    json_keys: Sequence[str] = ("text",),
    character_coverage: float = 0.9995,
    max_documents: int | None = None,
    report: Callable[[str], None] | None = None,
) -> Path:
    """Train byte-pair pieces on the texts and write `{model_prefix}.model` and `.vocab`; returns the former.

    Ids 0..3 are <unk>, <s>, </s> (which ends a document) and <pad>, then come 256 bytes. Nothing is normalised, so
    decoding gives back every text. `max_documents` trains on a fixed random choice of them.
    """
    tell = report or (lambda line: None)
    sources = expand_inputs(inputs, tell)
    tell(f"reading {len(sources)} file(s)")
    texts = _choose(read_texts(sources, json_keys), max_documents)
    num_bytes = sum(len(text.encode()) for text in texts)
    if not num_bytes:
        raise DataError(f"input = {' '.join(inputs)} holds no text under {', '.join(json_keys)}; give more")
    tell(f"training {vocab_size} pieces on {len(texts)} texts, {num_bytes / 1e6:.1f} MB")
    model = _train(texts, vocab_size, character_coverage)

    target = Path(f"{model_prefix}.model")
    target.parent.mkdir(parents=True, exist_ok=True)
    processor = SentencePieceProcessor(model_proto=model)
    replace_file(Path(f"{model_prefix}.vocab"), _list_pieces(processor).encode())
    replace_file(target, model)
    tell(f"wrote {target}: {vocab_size} pieces, {_bytes_per_token(processor, texts[:1000]):.2f} bytes a token")
    return target


def _train(texts: list[str], vocab_size: int, character_coverage: float) -> bytes:
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=(part for text in texts for part in _cut(text)),
            model_writer=model,
            vocab_size=vocab_size,
            model_type="bpe",
            character_coverage=character_coverage,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            byte_fallback=True,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=3,
            max_sentence_length=8 * SENTENCE_CHARACTERS,
            num_threads=TRAINER_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(_explain(str(error), vocab_size)) from None
    return model.getvalue()


def _explain(message: str, vocab_size: int) -> str:
    """sentencepiece names the bound it missed in two different sentences."""
    if too_high := re.search(r"too high.*<= (\d+)", message):
        return (
            f"vocab_size = {vocab_size} is too large for this text, which yields {too_high[1]} pieces; "
            f"give at most {too_high[1]} or more text"
        )
    if too_low := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"vocab_size = {vocab_size} is too small for the {too_low[1]} control pieces, bytes and characters; "
            f"give more than {too_low[1]} or a lower character coverage"
        )
    return f"vocab_size = {vocab_size} could not be trained: {message}"


def _choose(texts: Iterator[str], limit: int | None) -> list[str]:
    """All texts, or `limit` of them, each equally likely, without holding the others."""
    if limit is None:
        return list(texts)
    chance = random.Random(0)
    chosen: list[str] = []
    for number, text in enumerate(texts):
        if number < limit:
            chosen.append(text)
        elif (place := chance.randrange(number + 1)) < limit:
            chosen[place] = text
    return chosen


def _cut(text: str) -> Iterator[str]:
    """Pieces of bounded length with their newlines inside: the trainer skips what is longer, and trims the ends."""
    for start in range(0, len(text), SENTENCE_CHARACTERS):
        yield text[start : start + SENTENCE_CHARACTERS]


def _list_pieces(processor: SentencePieceProcessor) -> str:
    """The `.vocab`, for people: a piece and its score a line, a newline in a piece escaped."""
    pieces = (json.dumps(processor.id_to_piece(id_), ensure_ascii=False)[1:-1] for id_ in range(len(processor)))
    return "".join(f"{piece}\t{processor.get_score(id_):g}\n" for id_, piece in enumerate(pieces))


def _bytes_per_token(processor: SentencePieceProcessor, texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / sum(len(processor.encode(text)) for text in texts)
