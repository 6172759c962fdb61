"""Saving so that a kill at any moment leaves the former checkpoint in force.

    begin       root/.step-00000010.partial/                   one rank
    write_part  ... /part-00000.safetensors and its .json      every rank, its own
    commit      ... /manifest.json                             one rank, once all parts are there
                root/step-00000010/                            by rename: whole or absent
                root/latest                                    by rename, last

Nothing here talks to other ranks: the caller puts a barrier after begin and another before commit. All ranks must see
the same file system.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from megatron_tlm.checkpoint.facts import Facts
from megatron_tlm.checkpoint.fields import parse
from megatron_tlm.checkpoint.folder import way_out
from megatron_tlm.checkpoint.manifest import (
    MANIFEST_NAME,
    NAME_PATTERN,
    ROLE_PATTERN,
    TOKENIZER_PATTERN,
    Manifest,
    PieceRecord,
    TensorId,
    TensorRecord,
    check_contents,
    file_from_json,
    file_to_json,
    part_name,
    piece_key,
    tensors_from_json,
    tensors_to_json,
)
from megatron_tlm.checkpoint.root import (
    POINTER_NAME,
    partial_path,
    read_ordinal,
    replaced_path,
    step_directories,
    step_name,
    write_durably,
)
from megatron_tlm.checkpoint.tensor_file import (
    Entry,
    FileRecord,
    TensorFileWriter,
    dtype_code,
    hash_file,
    in_file_order,
    sync_directory,
    volume,
)
from megatron_tlm.checkpoint.tiling import Extent
from megatron_tlm.errors import CheckpointError


@dataclass(frozen=True)
class Piece:
    """The box [offset, offset + size) of a global tensor that this rank writes, described before it is loaded.

    `load()` gives the tensor of shape `size`, on any device; it is called when its turn comes and its result dropped
    after writing. A piece without elements (a rank that holds padding only) is skipped.
    """

    name: str
    role: str
    global_shape: Extent
    offset: Extent
    size: Extent
    dtype: torch.dtype
    load: Callable[[], torch.Tensor]

    def __post_init__(self) -> None:
        for what, value, pattern in (("name", self.name, NAME_PATTERN), ("role", self.role, ROLE_PATTERN)):
            if not re.fullmatch(pattern, value):
                raise CheckpointError(f"piece.{what} = {value!r} does not match {pattern}; rename the tensor")

    @property
    def entry(self) -> Entry:
        key = piece_key(self.name, self.role, tuple(self.global_shape), tuple(self.offset), tuple(self.size))
        return Entry(key, dtype_code(self.dtype), tuple(self.size))

    def blocks(self) -> Iterator[torch.Tensor]:
        """The piece as consecutive blocks of rows: here in one."""
        tensor = self.load()
        if tuple(tensor.shape) != tuple(self.size):
            raise CheckpointError(
                f"{self.entry.key} is a tensor of {list(tensor.shape)} but {list(self.size)} was announced; "
                "describe the tensor as it will be loaded"
            )
        yield tensor


def begin(root: Path, step: int) -> Path:
    """A new, empty, hidden directory for the parts of one step; what a killed save of that step left is removed."""
    partial = partial_path(Path(root), step)
    with _disk_faults(partial):
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
    return partial


def write_part(partial: Path, part_number: int, pieces: Iterable[Piece]) -> FileRecord:
    """One rank's share: all `pieces` are looked at, then loaded and written one by one.

    The .json beside the file appears by rename once the file is on the disk, so a part is either whole or missing.
    """
    held = [piece for piece in pieces if volume(piece.size)]
    entries = in_file_order([piece.entry for piece in held])
    by_key = {piece.entry.key: piece for piece in held}
    path = partial / part_name(part_number)
    with _disk_faults(path), TensorFileWriter(path, entries) as writer:
        for entry in entries:
            for block in by_key[entry.key].blocks():
                writer.append(entry.key, block)
                del block  # else it would live on while the next tensor is loaded
        record = writer.finish()
    tensors: dict[TensorId, TensorRecord] = {}
    for piece in held:
        found = PieceRecord(path.name, tuple(piece.offset), tuple(piece.size))
        tensor = TensorRecord(dtype_code(piece.dtype), tuple(piece.global_shape), (found,))
        _add(tensors, (piece.name, piece.role), tensor, path.name)
    table = {"file": file_to_json(record), "tensors": tensors_to_json(tensors)}
    with _disk_faults(path):
        write_durably(_table_path(path), json.dumps(table).encode())
    return record


def commit(partial: Path, facts: Facts, *, parts: int, tokenizer: Path | None = None) -> Path:
    """Makes `parts` written parts the checkpoint of a step and points `latest` at it; returns its directory.

    CheckpointError, with nothing renamed, for a part that is missing or cut, for pieces that do not tile their
    tensors exactly once and for weights that are not the shape's. The tokenizer's file is copied in as tokenizer.*.
    """
    root = partial.parent
    if partial != partial_path(root, facts.step):
        raise CheckpointError(f"facts.step = {facts.step} but {partial.name} was begun; commit the step that was begun")
    files, tensors = _gather(partial, parts)
    with _disk_faults(partial):
        copied = _copy_tokenizer(partial, tokenizer) if tokenizer is not None else None
        if copied:
            files[copied] = hash_file(partial / copied)
        saved_before = [read_ordinal(directory) for directory in step_directories(root)]
        manifest = Manifest(facts, max(saved_before, default=-1) + 1, files, copied, dict(sorted(tensors.items())))
        check_contents(manifest, partial.name)
        for number in range(parts):
            _table_path(partial / part_name(number)).unlink()
        write_durably(partial / MANIFEST_NAME, manifest.to_bytes())
        return _put_in_place(partial, root / step_name(facts.step))


def _put_in_place(partial: Path, final: Path) -> Path:
    """The renames, in the order that leaves a checkpoint to find between any two of them."""
    former = replaced_path(final)
    if final.exists():
        shutil.rmtree(former, ignore_errors=True)
        os.rename(final, former)
    os.rename(partial, final)
    sync_directory(final.parent)
    write_durably(final.parent / POINTER_NAME, f"{final.name}\n".encode())
    shutil.rmtree(former, ignore_errors=True)
    return final


@contextmanager
def _disk_faults(path: Path) -> Iterator[None]:
    """A full or forbidden disk is the user's to mend: told as a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written ({error.strerror}); {way_out(error)}") from error


def _gather(partial: Path, parts: int) -> tuple[dict[str, FileRecord], dict[TensorId, TensorRecord]]:
    files: dict[str, FileRecord] = {}
    tensors: dict[TensorId, TensorRecord] = {}
    for number in range(parts):
        path = partial / part_name(number)
        table = _table_path(path)
        if not table.exists():
            raise CheckpointError(
                f"{partial} lacks part {number} of {parts}; rank {number} did not finish writing or writes to "
                "another file system, save where all ranks see the same files"
            )
        members = parse(table.read_bytes(), f"{partial.name}/{table.name}").record("file", "tensors")
        files[path.name] = file_from_json(members["file"])
        on_disk = path.stat().st_size if path.exists() else 0
        if on_disk != files[path.name].size_bytes:
            raise CheckpointError(
                f"{path} has {on_disk} bytes but {files[path.name].size_bytes} were written; "
                "the disk lost some, save again"
            )
        for tensor, record in tensors_from_json(members["tensors"], {path.name}).items():
            _add(tensors, tensor, record, path.name)
    return files, tensors


def _add(tensors: dict[TensorId, TensorRecord], tensor: TensorId, record: TensorRecord, file: str) -> None:
    former = tensors.get(tensor)
    if former is None:
        tensors[tensor] = record
    elif (former.dtype, former.shape) == (record.dtype, record.shape):
        tensors[tensor] = TensorRecord(record.dtype, record.shape, former.pieces + record.pieces)
    else:
        name, role = tensor
        raise CheckpointError(
            f"{role}/{name} = {record.dtype} {list(record.shape)} in {file} but {former.dtype} {list(former.shape)} "
            f"in {former.pieces[0].file}; all ranks must agree on a tensor's dtype and global shape"
        )


def _table_path(part: Path) -> Path:
    return part.with_suffix(".json")


def _copy_tokenizer(partial: Path, tokenizer: Path) -> str:
    name = f"tokenizer{tokenizer.suffix}"
    if not tokenizer.is_file() or not re.fullmatch(TOKENIZER_PATTERN, name):
        raise CheckpointError(f"tokenizer = {tokenizer} is not a file with a plain suffix; give the tokenizer's file")
    shutil.copyfile(tokenizer, partial / name)
    with open(partial / name, "rb") as file:
        os.fsync(file.fileno())
    return name
