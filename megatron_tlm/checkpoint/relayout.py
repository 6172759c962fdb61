"""A checkpoint rewritten for another layout: the same tensors, cut into the parts that the target's ranks hold.

    source pieces            target pieces of one rank
    +----+----+              +---------+
    |    |    |    read      | block   |  a few MB of rows at a time: source file -> block -> hash, target file
    +----+----+   ------>    | block   |
    |    |    |              +---------+
    +----+----+

Nothing about the model is built and nothing of it need fit in memory. All that can be refused is refused before the
first byte is written; the source is only read; the target appears by rename.
"""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from megatron_tlm.checkpoint.blocks import ByteCounter, Progress, row_blocks
from megatron_tlm.checkpoint.load import Reader, find
from megatron_tlm.checkpoint.lock import FolderLock
from megatron_tlm.checkpoint.manifest import TensorId
from megatron_tlm.checkpoint.root import step_directories, step_name, step_of
from megatron_tlm.checkpoint.save import Piece, begin, commit, write_part
from megatron_tlm.checkpoint.target import Target, plan_target
from megatron_tlm.checkpoint.tensor_file import DTYPES
from megatron_tlm.checkpoint.tiling import Box
from megatron_tlm.checkpoint.verify import verify as verify
from megatron_tlm.checkpoint.widen import TensorSource, Widened, padded_widths
from megatron_tlm.errors import CheckpointError

_SPARE_BYTES = 16 << 20


def convert(
    source_root: Path,
    target_root: Path,
    *,
    tensor: int,
    pipe: int,
    data: int | None = None,
    stages: tuple[range, ...],
    zero: int | None = None,
    pad_widths: bool = False,
    step: int | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    hashes: bool = True,
) -> Path:
    """Rewrites one checkpoint (by default the newest complete) of `source_root` under `target_root`; returns it.

    `progress(done, all)` counts bytes and is called from the writing threads. Memory: `workers` blocks of a few MB.
    `stages` are as in `plan_target`. With `pad_widths` every MLP gets the neurons of zeros that the tensor degree asks
    for. The source's hashes are checked first, for damage would be given new ones; `hashes` off where they just were.
    PlanError or CheckpointError before a byte is written; after an error the target is as it was before.
    """
    source = find(source_root, step, hashes=hashes)
    target_root = Path(target_root)
    with Reader(source) as reader:
        shape = reader.manifest.facts.shape
        tensors = Widened(reader, padded_widths(shape, tensor)) if pad_widths else reader
        target = plan_target(
            tensors.manifest, source.name, tensor=tensor, pipe=pipe, data=data, zero=zero, stages=stages
        )
        size_bytes = sum(record.size_bytes for record in tensors.manifest.tensors.values())
        _check_target(source, source_root, target_root, target.facts.step, size_bytes)
        count = ByteCounter(size_bytes, progress)
        had_root = target_root.exists()
        try:
            with FolderLock(target_root):
                return _write(target, target_root, tensors, count, workers or min(4, os.cpu_count() or 1))
        except BaseException:
            if not had_root and target_root.is_dir() and not any(target_root.iterdir()):
                target_root.rmdir()
            raise


def _write(target: Target, root: Path, tensors: TensorSource, count: ByteCounter, workers: int) -> Path:
    """All parts and the commit; nothing is left of them after an error."""
    partial = begin(root, target.facts.step)
    try:
        with ThreadPoolExecutor(workers) as pool:
            written = [
                pool.submit(write_part, partial, number, [_moved(tensors, *held, count) for held in part])
                for number, part in enumerate(target.parts)
            ]
            try:
                for part_written in written:
                    part_written.result()
            except BaseException:
                count.stop()
                pool.shutdown(cancel_futures=True)
                raise
        return commit(partial, target.facts, parts=target.facts.grid.size, tokenizer=tensors.tokenizer)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@dataclass(frozen=True)
class _MovedPiece(Piece):
    """A piece that goes from a reader to a part block by block."""

    reader: TensorSource
    count: ByteCounter

    def blocks(self) -> Iterator[torch.Tensor]:
        buffer = None
        for offset, size in row_blocks((self.offset, self.size), self.dtype.itemsize):
            self.count.add(prod(size) * self.dtype.itemsize)
            # One buffer for all: the allocator would keep several blocks per thread. The first block is the largest.
            buffer = torch.empty(prod(size), dtype=self.dtype) if buffer is None else buffer
            yield self.reader.read(self.name, self.role, offset, size, into=buffer)


def _moved(reader: TensorSource, tensor: TensorId, box: Box, count: ByteCounter) -> Piece:
    record = reader.record(*tensor)
    name, role = tensor
    offset, size = box

    def load() -> torch.Tensor:
        return reader.read(name, role, offset, size)

    return _MovedPiece(name, role, record.shape, offset, size, DTYPES[record.dtype], load, reader, count)


def _check_target(source: Path, source_root: Path, target_root: Path, step: int, size_bytes: int) -> None:
    place = target_root.resolve()
    for taken in (Path(source_root).resolve(), source.resolve()):
        if place == taken or taken in place.parents:
            raise CheckpointError(f"save_dir = {target_root} is the source itself or inside it; give another directory")
    if any(step_of(directory) == step for directory in step_directories(target_root)):
        raise CheckpointError(f"save_dir = {target_root} already has {step_name(step)}; give another directory")
    existing = next(parent for parent in (place, *place.parents) if parent.exists())
    if not existing.is_dir():
        raise CheckpointError(f"save_dir = {target_root} is not a directory; give another one")
    free = shutil.disk_usage(existing).free
    if free < size_bytes + _SPARE_BYTES:
        raise CheckpointError(
            f"save_dir = {target_root} has {free} bytes free but {size_bytes + _SPARE_BYTES} are needed; make room"
        )
