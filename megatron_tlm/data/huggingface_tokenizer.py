"""Hugging Face's `tokenizer.json`, without transformers."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_tlm.data.tokenizer_files import END_PIECES, check_ids, read_model, save_tokenizer
from megatron_tlm.errors import DataError


class HuggingFaceTokenizer:
    """A `tokenizer.json` (or the folder that holds it), run by the `tokenizers` package.

    No ids are added around a text. A special token spelt out in a text becomes its id, as everywhere with this format.
    """

    type_name = "HuggingFaceTokenizer"

    def __init__(self, path: str | Path, *, end_token: str | None = None) -> None:
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError:
            raise DataError(
                "tokenizer_type = HuggingFaceTokenizer needs the package tokenizers, which is not installed; "
                "pip install tokenizers"
            ) from None
        file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        self._model = read_model(file)
        try:
            self._backend = Backend.from_str(self._model.decode("utf-8"))
        except Exception as error:  # the package raises plain Exception
            raise DataError(f"tokenizer_model = {file} is no tokenizer.json ({error}); give one") from None
        self._backend.no_padding()
        self._backend.no_truncation()
        self._end_token = end_token or self._find_end_token(file.with_name("tokenizer_config.json"))

    def _find_end_token(self, config: Path) -> str | None:
        """What the neighbouring tokenizer_config.json calls eos, or else a usual name."""
        named: Any = json.loads(config.read_text("utf-8")).get("eos_token") if config.is_file() else None
        named = named.get("content") if isinstance(named, dict) else named
        known = (token for token in (named, *END_PIECES) if token and self._backend.token_to_id(token) is not None)
        return next(known, None)

    @cached_property  # the package makes a dict of the whole vocabulary: 10 ms for 32k pieces
    def vocab_size(self) -> int:
        """Largest id + 1: added tokens may leave holes below it."""
        return int(max(self._backend.get_vocab(with_added_tokens=True).values())) + 1

    @property
    def eod_id(self) -> int:
        id_ = self._backend.token_to_id(self._end_token) if self._end_token else None
        if id_ is None:
            raise DataError(
                f"tokenizer_model = no end-of-document token among {', '.join(END_PIECES)}; name it as eos_token in "
                "tokenizer_config.json beside the file"
            )
        return int(id_)

    def encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        with _parallelism(threads > 1):
            encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        return [np.array(ids, np.int32) for ids in self.encode_batch(texts)]

    def decode(self, ids: Sequence[int]) -> str:
        check_ids(ids, self.vocab_size)
        return str(self._backend.decode([int(id_) for id_ in ids], skip_special_tokens=True))

    def save_to(self, directory: str | Path) -> None:
        save_tokenizer(directory, self.type_name, "tokenizer.json", self._model, {"end_token": self._end_token})


@contextmanager
def _parallelism(wanted: bool) -> Iterator[None]:
    """The package reads this variable at every call. Its threads would fight with workers and not survive a fork."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "true" if wanted else "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
