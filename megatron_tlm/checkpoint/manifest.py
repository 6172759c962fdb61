"""What a checkpoint is: the run's facts, the files with their hashes, and where each tensor's pieces lie.

    root/latest                            name of the checkpoint saved last
    root/step-00000010/manifest.json       this, as JSON; written last
    root/step-00000010/part-00000.safetensors ...    one per rank that saved
    root/step-00000010/tokenizer.model

A tensor is known by its global name and its role ("weight", "master", "exp_avg", ... : any optimizer's state is just
another role). Its pieces are boxes of the global tensor that tile it exactly once, whatever layout saved them.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from megatron_tlm.checkpoint.facts import FACT_NAMES, Facts, facts_from_json, facts_to_json
from megatron_tlm.checkpoint.fields import Field, parse
from megatron_tlm.checkpoint.tensor_file import DTYPES, Entry, FileRecord
from megatron_tlm.checkpoint.tiling import Extent, box_text, tiling_fault
from megatron_tlm.errors import CheckpointError
from megatron_tlm.plan.units import build_units

FORMAT = "megatron_tlm checkpoint"
FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
LARGEST_MANIFEST_BYTES = 1 << 30
LARGEST_DIMS = 8

PART_PATTERN = r"part-\d{5,9}\.safetensors"
TOKENIZER_PATTERN = r"tokenizer(\.[a-z]{1,12})?"
NAME_PATTERN = r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*"
ROLE_PATTERN = r"[a-z][a-z0-9_]*"

TensorId = tuple[str, str]


def part_name(number: int) -> str:
    return f"part-{number:05d}.safetensors"


def piece_key(name: str, role: str, global_shape: Extent, offset: Extent, size: Extent) -> str:
    """The key inside a tensor file: `exp_avg/head.norm.weight`, with the slice behind it unless it is the whole."""
    box = "" if size == global_shape else box_text(offset, size)
    return f"{role}/{name}{box}"


@dataclass(frozen=True)
class PieceRecord:
    """The box [offset, offset + size) of a global tensor, and the file that holds it."""

    file: str
    offset: Extent
    size: Extent


@dataclass(frozen=True)
class TensorRecord:
    """One global tensor: dtype code ("BF16"), global shape without padding, pieces that tile it."""

    dtype: str
    shape: Extent
    pieces: tuple[PieceRecord, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Manifest:
    """`ordinal` counts a root's saves: once a run went back to an older step, step numbers do not tell what is new."""

    facts: Facts
    ordinal: int
    files: Mapping[str, FileRecord]
    tokenizer: str | None
    tensors: Mapping[TensorId, TensorRecord]

    @property
    def size_bytes(self) -> int:
        return sum(record.size_bytes for record in self.files.values())

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(name for name in self.files if name != self.tokenizer)

    def entry(self, tensor: TensorId, piece: PieceRecord) -> Entry:
        """What the piece's file must say of it."""
        record = self.tensors[tensor]
        return Entry(piece_key(*tensor, record.shape, piece.offset, piece.size), record.dtype, piece.size)

    def to_bytes(self) -> bytes:
        """JSON, the facts first, then one line per file and per tensor, so that it can be read and compared."""
        head = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "ordinal": self.ordinal,
            **facts_to_json(self.facts),
            "tokenizer": self.tokenizer,
        }
        tables = {
            "files": {name: file_to_json(record) for name, record in self.files.items()},
            "tensors": tensors_to_json(self.tensors),
        }
        lines = [f'"{key}": {json.dumps(value, allow_nan=False)}' for key, value in head.items()]
        for key, table in tables.items():
            rows = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
            lines.append(f'"{key}": {{\n  ' + ",\n  ".join(rows) + "\n }")
        return ("{\n " + ",\n ".join(lines) + "\n}\n").encode()

    @classmethod
    def from_bytes(cls, text: bytes, address: str) -> "Manifest":
        """The inverse of `to_bytes`; CheckpointError names the first field that cannot be meant."""
        root = parse(text, address)
        members = root.object()
        for name, wanted in (("format", FORMAT), ("format_version", FORMAT_VERSION)):
            given = members.get(name, Field(f"{address}: {name}", None))
            if type(given.value) is not type(wanted) or given.value != wanted:
                given.refuse(f"is not {wanted!r}, the one this version reads")
        record = root.record("format", "format_version", "ordinal", *FACT_NAMES, "tokenizer", "files", "tensors")
        tokenizer = record["tokenizer"]
        files = record["files"].object()
        if tokenizer.value is not None and tokenizer.text(TOKENIZER_PATTERN) not in files:
            tokenizer.refuse("is not among the files")
        for name, given in files.items():
            if name != tokenizer.value:
                Field(f"{given.address} (key)", name).text(PART_PATTERN)
        manifest = cls(
            facts=facts_from_json(record),
            ordinal=record["ordinal"].integer(),
            files={name: file_from_json(given) for name, given in files.items()},
            tokenizer=tokenizer.value,
            tensors=tensors_from_json(record["tensors"], files),
        )
        check_contents(manifest, address)
        return manifest


def read_manifest(directory: Path) -> Manifest:
    """The manifest of one checkpoint directory, every field checked; the tensor files are not looked at."""
    path = directory / MANIFEST_NAME
    try:
        size_bytes = path.stat().st_size
        if size_bytes > LARGEST_MANIFEST_BYTES:
            raise CheckpointError(
                f"{path} has {size_bytes} bytes, above {LARGEST_MANIFEST_BYTES}; it is not a manifest, use another step"
            )
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); use another step") from error
    return Manifest.from_bytes(text, f"{directory.name}/{MANIFEST_NAME}")


def check_contents(manifest: Manifest, address: str) -> None:
    """Refuse tensors that are not whole, not this model's, or larger than the files that should hold them."""
    claimed = dict.fromkeys(manifest.parts, 0)
    for (name, role), record in manifest.tensors.items():
        fault = tiling_fault(record.shape, [(piece.offset, piece.size) for piece in record.pieces])
        if fault:
            raise CheckpointError(
                f"{address}: tensors.{role}/{name} = {fault} but each element must be stored exactly once; "
                "a rank left a piece out or two wrote the same, use another step"
            )
        for piece in record.pieces:
            claimed[piece.file] += prod(piece.size) * DTYPES[record.dtype].itemsize
    for file, size_bytes in claimed.items():
        if size_bytes > manifest.files[file].size_bytes:
            raise CheckpointError(
                f"{address}: tensors in {file} = {size_bytes} bytes but the file has "
                f"{manifest.files[file].size_bytes}; the manifest is damaged or foreign, use another step"
            )
    for unit in build_units(manifest.facts.shape):
        for spec in unit.parameters:
            weight = manifest.tensors.get((spec.name, "weight"))
            if weight is None or weight.shape != spec.shape:
                found = "absent" if weight is None else list(weight.shape)
                raise CheckpointError(
                    f"{address}: tensors.weight/{spec.name} = {found} but the model's shape asks for "
                    f"{list(spec.shape)}; save every parameter, unpadded, under its global name"
                )


def file_to_json(record: FileRecord) -> dict[str, Any]:
    return {"bytes": record.size_bytes, "sha256": record.sha256}


def file_from_json(given: Field) -> FileRecord:
    members = given.record("bytes", "sha256")
    return FileRecord(members["bytes"].integer(), members["sha256"].text(r"[0-9a-f]{64}"))


def tensors_to_json(tensors: Mapping[TensorId, TensorRecord]) -> dict[str, Any]:
    """`role/name` -> dtype, shape and pieces, each [file, offset, size]."""
    return {
        f"{role}/{name}": {
            "dtype": record.dtype,
            "shape": record.shape,
            "pieces": [[piece.file, piece.offset, piece.size] for piece in record.pieces],
        }
        for (name, role), record in tensors.items()
    }


def tensors_from_json(given: Field, files: Collection[str]) -> dict[TensorId, TensorRecord]:
    """The inverse of `tensors_to_json`; pieces may lie in `files` only."""
    tensors = {}
    for key, record in given.object().items():
        role, _, name = Field(f"{record.address} (key)", key).text(f"{ROLE_PATTERN}/{NAME_PATTERN}").partition("/")
        tensors[name, role] = _tensor_from_json(record, files)
    return tensors


def _tensor_from_json(given: Field, files: Collection[str]) -> TensorRecord:
    members = given.record("dtype", "shape", "pieces")
    dtype = members["dtype"].text()
    if dtype not in DTYPES:
        members["dtype"].refuse(f"is not one of {', '.join(DTYPES)}")
    shape = members["shape"].integers(1)
    if len(shape) > LARGEST_DIMS:
        members["shape"].refuse(f"has more than {LARGEST_DIMS} dims")
    pieces = []
    for item in members["pieces"].items():
        file, offset, size = item.items(3)
        if file.text(PART_PATTERN) not in files:
            file.refuse("is not among the files")
        pieces.append(PieceRecord(file.value, offset.integers(), size.integers(1)))
    return TensorRecord(dtype, shape, tuple(pieces))
