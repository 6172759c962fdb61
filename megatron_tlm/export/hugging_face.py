"""A checkpoint as a directory that `from_pretrained` loads: it appears whole, by rename."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatron_tlm.checkpoint.blocks import Progress
from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.checkpoint.tensor_file import DTYPES, sync_directory
from megatron_tlm.checkpoint.widen import Widened
from megatron_tlm.errors import ExportError
from megatron_tlm.export.card import model_card
from megatron_tlm.export.families import tensor_names
from megatron_tlm.export.flavours import Ids, Written, write_as
from megatron_tlm.export.shards import WEIGHT, write_weights
from megatron_tlm.export.tokenizers import TokenizerFiles

ORIGIN_NAME = "megatron_tlm.json"
MAX_FILE_BYTES = 5 * 10**9


@dataclass(frozen=True)
class Exported:
    """What was written, for the caller to tell."""

    path: Path
    flavour: str
    files: tuple[str, ...]
    weight_bytes: int
    notes: tuple[str, ...]


def export_hugging_face(
    source: Path,
    target: Path,
    *,
    flavour: str | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: TokenizerFiles | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    progress: Progress | None = None,
) -> Exported:
    """Writes the weights of checkpoint `source` as a new directory `target`; by default in the dtype they have.

    ExportError before a byte is written for a model that no class of the library computes, or a target that exists.
    """
    target = Path(target)
    with Reader(source) as reader:
        facts = reader.manifest.facts
        saved_dtype = DTYPES[reader.record("embedding.weight", WEIGHT).dtype]
        ids = tokenizer.ids if tokenizer is not None else Ids()
        stored = dtype or saved_dtype
        written = write_as(
            facts.shape, flavour, positions=positions_of(facts.config), dtype=_torch_name(stored), ids=ids
        )
        weights = Widened(reader, written.shape.widths) if written.shape != facts.shape else reader
        names = tensor_names(written.shape)
        with whole_directory(target) as partial:
            size_bytes = write_weights(
                partial, weights, names, dtype=dtype, max_file_bytes=max_file_bytes, progress=progress
            )
            if tokenizer is not None:
                tokenizer.write_to(partial)
            card = model_card(target.name, facts, written, has_tokenizer=tokenizer is not None)
            (partial / "README.md").write_text(card, encoding="utf-8")
            _write_settings(partial, written, ids, reader, _torch_name(stored))
            files = tuple(sorted(path.name for path in partial.iterdir()))
    return Exported(target, written.flavour, files, size_bytes, written.notes)


def positions_of(config: Mapping[str, Any]) -> int:
    """The longest sequence that the run's configuration speaks of; ExportError where it speaks of none."""
    model = config.get("model")
    sizes = [model.get(name) for name in ("max_position_embeddings", "seq_length")] if isinstance(model, dict) else []
    known = [size for size in sizes if isinstance(size, int)]
    if not known:
        raise ExportError("config.model.seq_length = absent, so the longest sequence is unknown; save with a config")
    return known[0]


@contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """A hidden directory that takes `target`'s name at the end; an error or a kill leaves no `target`."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"{target} is already there; give a new directory")
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        if target.exists():
            target.rmdir()
        os.rename(partial, target)
        sync_directory(target.parent)
    except OSError as error:
        raise ExportError(
            f"{error.filename or target} cannot be written ({error.strerror}); make room there or write elsewhere"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_settings(directory: Path, written: Written, ids: Ids, reader: Reader, dtype: str) -> None:
    """config.json, what generation needs, the remote code, and where the model came from, for the way back."""
    facts = reader.manifest.facts
    generation = {name: value for name, value in ids.to_json().items() if value is not None}
    origin = {
        "format": "megatron_tlm export",
        "flavour": written.flavour,
        "dtype": dtype,
        "step": facts.step,
        "consumed_tokens": facts.consumed_tokens,
        "shape": facts.shape.to_json(),
        "config": dict(facts.config),
    }
    documents = {"config.json": written.config, "generation_config.json": generation, ORIGIN_NAME: origin}
    for name, document in documents.items():
        text = json.dumps(document, indent=2)
        (directory / name).write_text(text + "\n", encoding="utf-8")
    for name, code in written.code.items():
        (directory / name).write_text(code, encoding="utf-8")


def _torch_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
