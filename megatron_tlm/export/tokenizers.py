"""Tokenizers as Hugging Face reads them: tokenizer.json and tokenizer_config.json, made without its libraries.

A sentencepiece model becomes the same vocabulary with the merges its scores imply; its own file is laid beside. Two
differences remain, both the format's: a special token spelt out in a text becomes its id, and U+2581 a space.
"""

import base64
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_tlm.errors import ExportError
from megatron_tlm.export.flavours import Ids
from megatron_tlm.export.sentencepiece_model import (
    BPE,
    BYTE,
    CONTROL,
    SPACE_MARK,
    UNKNOWN,
    SentencePieceModel,
    merges,
    read_sentencepiece,
)

END_OF_BYTES = "<|endoftext|>"


@dataclass(frozen=True)
class TokenizerFiles:
    """What goes into the folder: file name -> contents, or the file to copy. `special`: role -> spelling."""

    ids: Ids
    texts: Mapping[str, str]
    copies: Mapping[str, Path]

    def write_to(self, directory: Path) -> None:
        for name, text in self.texts.items():
            (directory / name).write_text(text, encoding="utf-8")
        for name, path in self.copies.items():
            shutil.copyfile(path, directory / name)


def tokenizer_files(kind: str | None, file: Path | None, end_id: int | None, positions: int) -> TokenizerFiles | None:
    """The files of a tokenizer of ours; None for made-up tokens. `end_id` ends a document."""
    if kind == "ByteTokenizer":
        return _with_config(byte_tokenizer(), {}, Ids(end=256), {"eos_token": END_OF_BYTES}, positions)
    if file is None:
        return None
    if file.suffix == ".json":
        return _copied(file, end_id, positions)
    model = read_sentencepiece(file)
    ids = Ids(model.bos_id, end_id if end_id is not None else model.eos_id, model.pad_id)
    spelt = {"bos_token": ids.begin, "eos_token": ids.end, "pad_token": ids.pad, "unk_token": model.unk_id}
    special = {name: model.text(id_) for name, id_ in spelt.items()}
    return _with_config(sentencepiece_json(model), {"tokenizer.model": file}, ids, special, positions)


def _copied(file: Path, end_id: int | None, positions: int) -> TokenizerFiles:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        added = {item["id"]: item["content"] for item in content.get("added_tokens", [])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ExportError(f"{file} is no tokenizer.json ({error!r}); give one") from None
    special = {"eos_token": added.get(end_id)}
    made = _with_config(content, {"tokenizer.json": file}, Ids(end=end_id), special, positions)
    return TokenizerFiles(made.ids, {"tokenizer_config.json": made.texts["tokenizer_config.json"]}, made.copies)


def _with_config(
    content: Mapping[str, Any],
    copies: Mapping[str, Path],
    ids: Ids,
    special: Mapping[str, str | None],
    positions: int,
) -> TokenizerFiles:
    settings = {
        # The class that takes tokenizer.json as it is. Llama's own would rebuild it, and put a space in front.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions,
        **{name: text for name, text in special.items() if text is not None},
    }
    texts = {"tokenizer.json": json.dumps(content, ensure_ascii=False), "tokenizer_config.json": json.dumps(settings)}
    return TokenizerFiles(ids, {name: f"{text}\n" for name, text in texts.items()}, copies)


def sentencepiece_json(model: SentencePieceModel) -> dict[str, Any]:
    """tokenizer.json of a BPE or unigram model."""
    core: dict[str, Any]
    if model.model_type == BPE:
        core = {
            "type": "BPE",
            "dropout": None,
            "unk_token": model.text(model.unk_id),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": model.byte_fallback,
            "ignore_merges": False,
            "vocab": {piece.text: index for index, piece in enumerate(model.pieces)},
            "merges": [list(pair) for pair in merges(model)],
        }
    else:
        core = {
            "type": "Unigram",
            "unk_id": model.unk_id,
            "vocab": [[piece.text, piece.score] for piece in model.pieces],
            "byte_fallback": model.byte_fallback,
        }
    special = [index for index, piece in enumerate(model.pieces) if piece.kind in (UNKNOWN, CONTROL)]
    return _document(core, _normalizer(model), _decoder(model), {index: model.pieces[index].text for index in special})


def _normalizer(model: SentencePieceModel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE_MARK})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK})
    return {"type": "Sequence", "normalizers": steps}


def _decoder(model: SentencePieceModel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}]
    if any(piece.kind == BYTE for piece in model.pieces):
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.add_dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def byte_tokenizer() -> dict[str, Any]:
    """Ids 0..255 are bytes, in the format's own spelling of a byte as a printable character; 256 ends a document."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    spelt = {chr(byte if byte in printable else next(others)): byte for byte in range(256)}
    core: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {**spelt, END_OF_BYTES: 256},
        "merges": [],
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return _document(core, None, byte_level, {256: END_OF_BYTES}) | {"pre_tokenizer": byte_level}


def _document(
    core: Mapping[str, Any], normalizer: Any, decoder: Mapping[str, Any], special: Mapping[int, str]
) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": text, **flags} for index, text in special.items()],
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": core,
    }
