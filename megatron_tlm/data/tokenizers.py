"""Text to token ids and back, under Megatron's names of tokenizer types.

A tokenizer can be saved into a folder (`tokenizer.*`) and loaded from there, so that a checkpoint carries its own.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.huggingface_tokenizer import HuggingFaceTokenizer
from megatron_tlm.data.sentencepiece_tokenizer import SentencePieceTokenizer, train_sentencepiece
from megatron_tlm.data.tokenizer_files import META_FILE, check_ids, read_saved, save_tokenizer
from megatron_tlm.errors import DataError

__all__ = [
    "ByteTokenizer",
    "HuggingFaceTokenizer",
    "NullTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "load_saved_tokenizer",
    "load_tokenizer",
    "train_sentencepiece",
]

TYPE_NAMES = {
    "SentencePieceTokenizer": "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer": "SentencePieceTokenizer",
    "Llama2Tokenizer": "SentencePieceTokenizer",
    "HuggingFaceTokenizer": "HuggingFaceTokenizer",
    "ByteTokenizer": "ByteTokenizer",
    "ByteLevelTokenizer": "ByteTokenizer",
    "NullTokenizer": "NullTokenizer",
}
"""What a user may write -> the type it means."""


class Tokenizer(Protocol):
    """`vocab_size` ids, of which `eod_id` ends a document (DataError where there is none)."""

    type_name: str

    @property
    def vocab_size(self) -> int: ...

    @property
    def eod_id(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]: ...

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """As `encode_batch` on one thread, if it can without a Python number for every id."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def save_to(self, directory: str | Path) -> None: ...


class ByteTokenizer:
    """UTF-8 bytes as ids 0..255, and 256 to end a document."""

    type_name = "ByteTokenizer"
    vocab_size = 257
    eod_id = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        return [np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Ends of documents vanish; bytes that are no UTF-8, as a model may produce, become U+FFFD."""
        check_ids(ids, self.vocab_size)
        return bytes(id_ for id_ in ids if id_ != self.eod_id).decode("utf-8", errors="replace")

    def save_to(self, directory: str | Path) -> None:
        save_tokenizer(directory, self.type_name, None, b"", {})


class NullTokenizer:
    """Numbers as text, for made-up data: ids 0..n-1 stand for themselves, n ends a document (Megatron's rule)."""

    type_name = "NullTokenizer"

    def __init__(self, vocab_size: int) -> None:
        self.eod_id = vocab_size
        self.vocab_size = vocab_size + 1

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        return [np.array(self.encode(text), np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(id_) for id_ in ids)

    def save_to(self, directory: str | Path) -> None:
        save_tokenizer(directory, self.type_name, None, b"", {"vocab_size": self.eod_id})


def load_tokenizer(
    tokenizer_type: str | None, tokenizer_model: str | Path | None = None, *, vocab_size: int | None = None
) -> Tokenizer:
    """The tokenizer of a type and file; None as type goes by the file, a folder may be one that `save_to` wrote.

    `vocab_size` is for NullTokenizer alone. Raises DataError for an unknown type or an unusable file.
    """
    name = _resolve_type(tokenizer_type, tokenizer_model)
    if tokenizer_model is not None and _is_saved(tokenizer_model):
        saved = load_saved_tokenizer(tokenizer_model)
        if tokenizer_type is not None and saved.type_name != name:
            raise DataError(
                f"tokenizer_type = {tokenizer_type} but {tokenizer_model} holds a {saved.type_name}; drop the type"
            )
        return saved
    if name == "ByteTokenizer":
        return ByteTokenizer()
    if name == "NullTokenizer":
        if vocab_size is None:
            raise DataError("tokenizer_type = NullTokenizer has no vocabulary of its own; give --vocab-size")
        return NullTokenizer(vocab_size)
    if tokenizer_model is None:
        raise DataError(f"tokenizer_type = {tokenizer_type} needs a file; give --tokenizer-model")
    return (
        HuggingFaceTokenizer(tokenizer_model)
        if name == "HuggingFaceTokenizer"
        else SentencePieceTokenizer(tokenizer_model)
    )


def load_saved_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokenizer that `save_to` put into a folder."""
    meta, model = read_saved(directory)
    name = meta["tokenizer_type"]
    if name == "ByteTokenizer":
        return ByteTokenizer()
    if name == "NullTokenizer":
        return NullTokenizer(int(meta["vocab_size"]))
    if model is not None and name == "HuggingFaceTokenizer":
        return HuggingFaceTokenizer(model, end_token=meta.get("end_token"))
    if model is not None and name == "SentencePieceTokenizer":
        return SentencePieceTokenizer(model)
    raise DataError(f"{Path(directory) / META_FILE}: tokenizer_type = {name!r} is unknown; save the tokenizer again")


def _is_saved(path: str | Path) -> bool:
    return (Path(path) / META_FILE).is_file()


def _resolve_type(tokenizer_type: str | None, path: str | Path | None) -> str:
    if tokenizer_type in TYPE_NAMES:
        return TYPE_NAMES[tokenizer_type]
    if tokenizer_type is not None:
        lower = {name.lower(): name for name in TYPE_NAMES}
        near = difflib.get_close_matches(tokenizer_type.lower(), lower, n=1)
        hint = f"did you mean {lower[near[0]]}? " if near else ""
        raise DataError(f"tokenizer_type = {tokenizer_type!r} is unknown; {hint}known are {', '.join(TYPE_NAMES)}")
    if path is None:
        raise DataError(
            f"tokenizer_type = None names no tokenizer; give --tokenizer-type, one of {', '.join(TYPE_NAMES)}"
        )
    is_json = Path(path).suffix == ".json" or (Path(path) / "tokenizer.json").is_file()
    return "HuggingFaceTokenizer" if is_json else "SentencePieceTokenizer"
