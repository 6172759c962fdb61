"""A Hugging Face directory as a checkpoint to train on: weights as they are, no optimizer state, step 0."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from megatron_tlm.checkpoint.blocks import ByteCounter, Progress, row_blocks
from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.checkpoint.lock import FolderLock
from megatron_tlm.checkpoint.root import step_directories
from megatron_tlm.checkpoint.save import Piece, begin, commit, write_part
from megatron_tlm.checkpoint.tensor_file import DTYPES
from megatron_tlm.config.architecture import HOPE_PERIODS, ArchitectureConfig
from megatron_tlm.config.dump import as_mapping, dump, from_mapping
from megatron_tlm.config.schema import (
    CheckpointConfig,
    Config,
    DataConfig,
    LoggingConfig,
    ModelConfig,
    ParallelConfig,
    TaperConfig,
)
from megatron_tlm.errors import ExportError, TlmError
from megatron_tlm.export.families import tensor_names
from megatron_tlm.export.foreign import ForeignWeights, NamedWeights, foreign_shape, read_json
from megatron_tlm.export.hugging_face import ORIGIN_NAME
from megatron_tlm.export.shards import WEIGHT
from megatron_tlm.export.universal import FOLDER, UniversalWeights
from megatron_tlm.plan.grid import Grid
from megatron_tlm.plan.resolve import build_shape
from megatron_tlm.plan.shape import ModelShape

_LONGEST_SAMPLE = 4096  # of a foreign model whose positions say nothing of how it was trained


@dataclass(frozen=True)
class Imported:
    """The new checkpoint, its model, and the YAML that trains it on."""

    path: Path
    shape: ModelShape
    config_file: Path
    weight_bytes: int


def import_hugging_face(
    source: Path, root: Path, *, config_file: Path | None = None, progress: Progress | None = None
) -> Imported:
    """Writes `root`/step-00000000 and `root`/config.yaml; ExportError before that for what cannot be had.

    `source` may also be a DeepSpeed universal checkpoint of such a model; config.json is then wherever `config_file`
    says. Memory is a few MB. An export of ours brings its run's configuration back, any other gets the defaults.
    """
    source, root = Path(source), Path(root)
    config_file = config_file or source / "config.json"
    foreign = read_json(config_file)
    with _open(source) as weights:
        shape = foreign_shape(foreign, config_file, weights)
        names = tensor_names(shape)
        config = _config(source, foreign, shape, weights.entry(names["embedding.weight"]).dtype == "BF16")
        size_bytes = sum(weights.entry(name).size_bytes for name in names.values())
        count = ByteCounter(size_bytes, progress)
        facts = Facts(
            step=0,
            consumed_samples=0,
            consumed_tokens=0,
            optimizer_steps=0,
            shape=shape,
            config=as_mapping(config),
            grid=Grid(),
            zero_stage=config.parallel.zero_stage,
            stages=(range(shape.num_units),),
            extra={"imported_from": f"{foreign['model_type']} {source.resolve().name}"},
        )
        tokenizer = None if config.data.tokenizer_type == "ByteTokenizer" else _tokenizer(source)
        had_root = root.exists()
        try:
            with FolderLock(root):
                pieces = [_piece(weights, ours, theirs, count) for ours, theirs in names.items()]
                path, config_file = _write(root, pieces, facts, tokenizer, config)
        except BaseException:
            if not had_root and root.is_dir() and not any(root.iterdir()):
                root.rmdir()
            raise
    return Imported(path, shape, config_file, size_bytes)


def _write(root: Path, pieces: list[Piece], facts: Facts, tokenizer: Path | None, config: Config) -> tuple[Path, Path]:
    """The checkpoint and the YAML beside it; nothing is left of them after an error."""
    if former := step_directories(root):
        raise ExportError(f"save_dir = {root} already has {former[0].name}; give another directory")
    partial = begin(root, facts.step)
    try:
        write_part(partial, 0, pieces)
        path = commit(partial, facts, parts=1, tokenizer=tokenizer)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    saved = list(path.glob("tokenizer.*"))
    if saved:
        config = replace(config, data=replace(config.data, tokenizer_model=str(saved[0])))
    config_file = root / "config.yaml"
    config_file.write_text(dump(config), encoding="utf-8")
    return path, config_file


@dataclass(frozen=True)
class _ForeignPiece(Piece):
    """A whole tensor that goes over block by block."""

    weights: NamedWeights
    foreign_name: str
    count: ByteCounter

    def blocks(self) -> Iterator[torch.Tensor]:
        for offset, size in row_blocks((self.offset, self.size), self.dtype.itemsize):
            self.count.add(prod(size) * self.dtype.itemsize)
            yield self.weights.read(self.foreign_name, offset, size)


def _piece(weights: NamedWeights, ours: str, theirs: str, count: ByteCounter) -> Piece:
    entry = weights.entry(theirs)
    whole = (0,) * len(entry.shape)

    def load() -> torch.Tensor:
        return weights.read(theirs, whole, entry.shape)

    return _ForeignPiece(
        ours, WEIGHT, entry.shape, whole, entry.shape, DTYPES[entry.dtype], load, weights, theirs, count
    )


def _open(source: Path) -> NamedWeights:
    return UniversalWeights(source) if (source / FOLDER).is_dir() else ForeignWeights(source)


def _config(source: Path, foreign: Mapping[str, Any], shape: ModelShape, bf16: bool) -> Config:
    """The configuration whose model this is: that of the run it came from, where that still says so."""
    origin = source / ORIGIN_NAME
    if origin.exists():
        try:
            told = from_mapping(read_json(origin)["config"], ORIGIN_NAME)
            told = replace(
                told,
                parallel=ParallelConfig(),
                checkpoint=CheckpointConfig(),
                logging=LoggingConfig(),
                model=replace(told.model, vocab_size=shape.vocab_size),
                data=DataConfig(tokenizer_type="ByteTokenizer")
                if told.data.tokenizer_type == "ByteTokenizer"
                else DataConfig(),
            )
            if build_shape(told, shape.vocab_size) == shape:
                return told
        except (TlmError, KeyError, AttributeError):
            pass  # written by another version: what the model itself says is enough
    return _plain_config(foreign, shape, bf16)


def _plain_config(foreign: Mapping[str, Any], shape: ModelShape, bf16: bool) -> Config:
    positions = foreign.get("max_position_embeddings")
    positions = positions if type(positions) is int and positions > 0 else _LONGEST_SAMPLE
    model = ModelConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.kv_channels,
        seq_length=min(positions, _LONGEST_SAMPLE),
        max_position_embeddings=positions,
        ffn_hidden_size=round(sum(shape.widths) / shape.num_layers),
        vocab_size=shape.vocab_size,
        untie_embeddings_and_output_weights=not shape.tied_embeddings,
        rotary_base=shape.rotary_base,
        norm_epsilon=shape.norm_epsilon,
    )
    taper = TaperConfig(layer_widths=shape.widths, width_multiple=shape.cms_multiple if shape.cms_levels > 1 else None)
    config = Config(model, _architecture(shape), taper)
    return replace(config, training=replace(config.training, bf16=bf16))


def _architecture(shape: ModelShape) -> ArchitectureConfig:
    """The section that makes this model; how often a level moves is of training, and no shape says it."""
    if shape.cms_levels not in (1, len(HOPE_PERIODS)):
        raise ExportError(
            f"cms_levels = {shape.cms_levels} have no default periods, and those they were trained with stand in the "
            f"export's {ORIGIN_NAME}; put it beside config.json"
        )
    names = {item.name for item in fields(ArchitectureConfig)}
    sizes = {name: value for name, value in shape.to_json().items() if name in names}
    if shape.memory_chunk_size:
        sizes["memory_persistent_tokens"] = shape.memory_persistent_tokens
    return ArchitectureConfig(**sizes)


def _tokenizer(source: Path) -> Path | None:
    """A sentencepiece model tells the ids exactly, so it comes first."""
    candidates = (source / name for name in ("tokenizer.model", "tokenizer.json"))
    return next((path for path in candidates if path.is_file()), None)
