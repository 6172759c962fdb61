"""In what two checkpoints differ, tensor by tensor and by how much, whatever layouts they were saved in."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod, sqrt

import torch

from megatron_tlm.checkpoint.blocks import ByteCounter, Progress, row_blocks
from megatron_tlm.checkpoint.facts import Facts, facts_to_json
from megatron_tlm.checkpoint.load import Reader
from megatron_tlm.checkpoint.manifest import TensorId, TensorRecord
from megatron_tlm.checkpoint.tensor_file import DTYPES


@dataclass(frozen=True)
class Difference:
    """How one tensor differs; numbers are None where it is in one of the two only, or of two shapes.

    `differing` counts elements, `largest` is the largest absolute difference, `relative` the norm of the difference
    over the norm of ours.
    """

    name: str
    role: str
    reason: str
    elements: int | None = None
    differing: int | None = None
    largest: float | None = None
    relative: float | None = None


def differences(ours: Reader, theirs: Reader, *, progress: Progress | None = None) -> Iterator[Difference]:
    """Every tensor that is not the same in both, in our order; memory is two blocks of a few MB."""
    mine, others = ours.manifest.tensors, theirs.manifest.tensors
    count = ByteCounter(sum(record.size_bytes for record in mine.values()), progress)
    for tensor, record in mine.items():
        found = _compare(ours, theirs, tensor, record, others.get(tensor), count)
        if found is not None:
            yield found
    for name, role in others.keys() - mine.keys():
        yield Difference(name, role, f"only in {theirs.path}")


def fact_differences(ours: Facts, theirs: Facts) -> list[tuple[str, object, object]]:
    """(`layout.tensor`, ours, theirs) for every fact and every key of the configuration that is not the same."""
    return list(_walk("", facts_to_json(ours), facts_to_json(theirs)))


def _walk(address: str, ours: object, theirs: object) -> Iterator[tuple[str, object, object]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            yield from _walk(f"{address}.{key}".lstrip("."), ours.get(key), theirs.get(key))
    elif ours != theirs:
        yield address, ours, theirs


def _compare(
    ours: Reader,
    theirs: Reader,
    tensor: TensorId,
    record: TensorRecord,
    other: TensorRecord | None,
    count: ByteCounter,
) -> Difference | None:
    if other is None:
        return Difference(*tensor, reason=f"only in {ours.path}")
    if other.shape != record.shape:
        return Difference(*tensor, reason=f"shape {list(record.shape)} and {list(other.shape)}")
    differing, largest, difference, norm = 0, 0.0, 0.0, 0.0
    for offset, size in row_blocks(((0,) * len(record.shape), record.shape), 8):
        a, b = (reader.read(*tensor, offset, size).double() for reader in (ours, theirs))
        count.add(prod(size) * DTYPES[record.dtype].itemsize)
        unequal = (a != b) & ~(a.isnan() & b.isnan())
        differing += int(unequal.sum())
        norm += float(a.square().sum())
        if unequal.any():
            apart = (a - b)[unequal]
            largest = max(largest, float(apart.abs().nan_to_num(nan=inf, posinf=inf).max()))
            difference += float(apart.square().sum())
    if not differing and record.dtype == other.dtype:
        return None
    reason = "values" if record.dtype == other.dtype else f"dtype {record.dtype} and {other.dtype}"
    return Difference(*tensor, reason, prod(record.shape), differing, largest, _ratio(difference, norm))


def _ratio(difference: float, norm: float) -> float:
    if difference == 0:
        return 0.0
    return sqrt(difference / norm) if norm and torch.tensor(difference).isfinite() else inf
