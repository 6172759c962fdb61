"""Which box of a global tensor one tensor rank holds, and where two boxes meet.

A box is (offset, size), one number per dim. Layouts are converted by intersecting boxes, nothing else.
"""

from dataclasses import dataclass

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.params import ParameterSpec

Extent = tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """The global box [offset, offset + size) in the leading corner of a local tensor of `local_shape`.

    `local_shape` exceeds `size` only for vocabulary rows that pad: zero, without gradient, never stored.
    """

    offset: Extent
    size: Extent
    local_shape: Extent


def padded_vocab_size(vocab_size: int, divisible_by: int, degree: int) -> int:
    """The vocabulary rounded up to a multiple of `divisible_by * degree` (Megatron's rule)."""
    multiple = divisible_by * degree
    return -(-vocab_size // multiple) * multiple


def local_width(width: int, degree: int, address: str = "width") -> int:
    """This rank's share of a width; PlanError where the degree does not divide it."""
    if width % degree:
        works = [candidate for candidate in range(1, degree + 1) if width % candidate == 0]
        raise PlanError(
            f"{address} = {width} is not a multiple of the tensor degree {degree}; "
            f"use a tensor degree of {works} or a width of {-(-width // degree) * degree}"
        )
    return width // degree


def shard(spec: ParameterSpec, degree: int, rank: int, padded_rows: int | None = None) -> Shard:
    """The box of tensor rank `rank` out of `degree`; `padded_rows` is the padded vocabulary for padded tensors."""
    whole = (0,) * len(spec.shape)
    dim = spec.split_at(degree)
    if dim is None and not spec.padded:
        return Shard(whole, spec.shape, spec.shape)
    dim = dim or 0
    if spec.padded:
        share = local_width(padded_rows or spec.shape[0], degree, "padded vocabulary")
    else:
        pieces = local_width(spec.parts, degree, f"{spec.name} split into parts")
        share = spec.shape[dim] // spec.parts * pieces
    start = min(rank * share, spec.shape[dim])
    held = min(share, spec.shape[dim] - start)
    return Shard(
        offset=_replaced(whole, dim, start),
        size=_replaced(spec.shape, dim, held),
        local_shape=_replaced(spec.shape, dim, share),
    )


def overlap(offset: Extent, size: Extent, other_offset: Extent, other_size: Extent) -> tuple[Extent, Extent] | None:
    """The box common to two boxes as (offset, size), None where they do not meet."""
    start = tuple(max(a, b) for a, b in zip(offset, other_offset, strict=True))
    ends = zip(offset, size, other_offset, other_size, strict=True)
    stop = tuple(min(a + n, b + m) for a, n, b, m in ends)
    common = tuple(last - first for first, last in zip(start, stop, strict=True))
    return (start, common) if all(extent > 0 for extent in common) else None


def _replaced(extent: Extent, dim: int, value: int) -> Extent:
    return (*extent[:dim], value, *extent[dim + 1 :])
