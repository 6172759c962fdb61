"""Proof that two checkpoints hold the same tensors, from what is on the disk."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import torch

from megatron_tlm.checkpoint.blocks import ByteCounter, Progress, row_blocks
from megatron_tlm.checkpoint.load import Reader, check_hashes
from megatron_tlm.checkpoint.manifest import TensorId
from megatron_tlm.checkpoint.tensor_file import DTYPES, tensor_bytes
from megatron_tlm.checkpoint.widen import TensorSource, Widened
from megatron_tlm.errors import CheckpointError, few


def verify(
    source: Path,
    target: Path,
    *,
    widths: Sequence[int] | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> int:
    """Re-reads two checkpoints from disk and compares every global tensor by hash; returns how many there are.

    The source's files are first compared with the hashes of the day they were written. `widths` are those that a
    conversion padded the MLPs to: then the source is seen with as many zeros. CheckpointError names the tensors that
    differ.
    """
    with Reader(source) as reader, Reader(target) as theirs:
        check_hashes(source, reader.manifest)
        ours = reader if widths is None else Widened(reader, widths)
        odd = sorted("/".join(key[::-1]) for key in ours.manifest.tensors.keys() ^ theirs.manifest.tensors.keys())
        if odd:
            raise CheckpointError(f"{target} and {source} do not share {', '.join(odd[:8])}; convert again")
        count = ByteCounter(sum(record.size_bytes for record in ours.manifest.tensors.values()), progress)

        def same(tensor: TensorId) -> bool:
            return tensor_hash(ours, *tensor, count=count) == tensor_hash(theirs, *tensor)

        with ThreadPoolExecutor(workers or min(4, os.cpu_count() or 1)) as pool:
            names = list(ours.manifest.tensors)
            differ = [
                f"{role}/{name}" for (name, role), equal in zip(names, pool.map(same, names), strict=True) if not equal
            ]
    if differ:
        raise CheckpointError(f"{target} holds other bytes than {source} for {few(differ, 8)}; convert again")
    return len(names)


def tensor_hash(reader: TensorSource, name: str, role: str, *, count: ByteCounter | None = None) -> str:
    """SHA-256 of a global tensor's dtype, shape and row-major bytes: equal whatever layout stores it."""
    record = reader.record(name, role)
    digest = hashlib.sha256(f"{record.dtype} {list(record.shape)}".encode())
    whole = ((0,) * len(record.shape), record.shape)
    dtype = DTYPES[record.dtype]
    buffer = None
    for offset, size in row_blocks(whole, dtype.itemsize):
        buffer = torch.empty(prod(size), dtype=dtype) if buffer is None else buffer
        digest.update(tensor_bytes(reader.read(name, role, offset, size, into=buffer)))
        if count:
            count.add(prod(size) * dtype.itemsize)
    return digest.hexdigest()
