"""How a tokenizer lies in a folder: `tokenizer.meta.json`, and the model's own file beside it."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_tlm.errors import DataError

META_FILE = "tokenizer.meta.json"
END_PIECES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<eod>", "<EOD>")


def read_model(path: str | Path) -> bytes:
    """A model's file, whole."""
    try:
        model = Path(path).read_bytes()
    except OSError as error:
        raise DataError(
            f"tokenizer_model = {path} cannot be read ({error.strerror}); give the tokenizer's file"
        ) from None
    if not model:
        raise DataError(f"tokenizer_model = {path} is empty (0 bytes); give the tokenizer's file")
    return model


def save_tokenizer(
    directory: str | Path, type_name: str, model_name: str | None, model: bytes, settings: Mapping[str, Any]
) -> None:
    """Write model and description; the description comes last, by rename, and knows the model's hash."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    meta = {"tokenizer_type": type_name, "model": model_name, **settings}
    if model_name:
        meta["sha256"] = hashlib.sha256(model).hexdigest()
        replace_file(folder / model_name, model)
    replace_file(folder / META_FILE, (json.dumps(meta, indent=2) + "\n").encode())


def read_saved(directory: str | Path) -> tuple[dict[str, Any], Path | None]:
    """`(description, model's path)` of a saved tokenizer, its hash checked."""
    path = Path(directory) / META_FILE
    try:
        meta: dict[str, Any] = json.loads(read_model(path))
        model = Path(directory) / Path(meta["model"]).name if meta["model"] else None
        known_hash = meta["sha256"] if model else None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not describe a tokenizer ({error!r}); save the tokenizer again") from None
    found = hashlib.sha256(read_model(model)).hexdigest() if model else None
    if found != known_hash:
        raise DataError(f"{model} has the sha256 {found} where {META_FILE} says {known_hash}; save the tokenizer again")
    return meta, model


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Refuse to decode ids that the tokenizer does not have, such as those of padded vocabulary rows."""
    if len(ids) and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise DataError(f"token id = {wrong} is outside the tokenizer's 0..{vocab_size - 1}; mask it before sampling")


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)
