"""Weights as Hugging Face lays them out: one safetensors file, or several of bounded size and an index.

Tensors go over in blocks of a few MB: from our pieces, through a cast, to their file.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch

from megatron_tlm.checkpoint.blocks import ByteCounter, Progress, row_blocks
from megatron_tlm.checkpoint.tensor_file import DTYPES, Entry, TensorFileWriter, dtype_code, in_file_order
from megatron_tlm.checkpoint.widen import TensorSource

WEIGHT = "weight"
INDEX_NAME = "model.safetensors.index.json"


def write_weights(
    directory: Path,
    source: TensorSource,
    names: Mapping[str, str],
    *,
    dtype: torch.dtype | None,
    max_file_bytes: int,
    progress: Progress | None = None,
) -> int:
    """Writes `names` (ours -> theirs) of `source`, as `dtype` if given, else as saved; returns the bytes of weights."""
    entries = {}
    for ours, theirs in names.items():
        record = source.record(ours, WEIGHT)
        entries[ours] = Entry(theirs, record.dtype if dtype is None else dtype_code(dtype), record.shape)
    files = _share_out(entries, max_file_bytes)
    size_bytes = sum(entry.size_bytes for entry in entries.values())
    count = ByteCounter(size_bytes, progress)
    weight_map: dict[str, str] = {}
    for number, held in enumerate(files, start=1):
        name = "model.safetensors" if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        _write_file(directory / name, source, held, count)
        weight_map |= {entry.key: name for entry in held.values()}
    if len(files) > 1:
        total = {"total_size": size_bytes, "total_parameters": sum(prod(entry.shape) for entry in entries.values())}
        index = {"metadata": total, "weight_map": dict(sorted(weight_map.items()))}
        (directory / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return size_bytes


def _share_out(entries: Mapping[str, Entry], max_file_bytes: int) -> list[dict[str, Entry]]:
    """In order, a new file where the next tensor would make one too large; a tensor is never cut."""
    files: list[dict[str, Entry]] = [{}]
    held_bytes = 0
    for ours, entry in entries.items():
        if held_bytes and held_bytes + entry.size_bytes > max_file_bytes:
            files.append({})
            held_bytes = 0
        files[-1][ours] = entry
        held_bytes += entry.size_bytes
    return files


def _write_file(path: Path, source: TensorSource, held: Mapping[str, Entry], count: ByteCounter) -> None:
    ours = {entry.key: name for name, entry in held.items()}
    ordered = in_file_order(list(held.values()))
    with TensorFileWriter(path, ordered) as writer:
        for entry in ordered:
            dtype = DTYPES[entry.dtype]
            for offset, size in row_blocks(((0,) * len(entry.shape), entry.shape), dtype.itemsize):
                writer.append(entry.key, source.read(ours[entry.key], WEIGHT, offset, size).to(dtype))
                count.add(prod(size) * dtype.itemsize)
        writer.finish()
