"""Boxes of a tensor: do some tile it exactly, and which boxes does a flat range make. Integers only.

A box is (offset, size), one number per dim; a scalar's box is ((), ()).
"""

from collections.abc import Sequence
from math import prod

Extent = tuple[int, ...]
Box = tuple[Extent, Extent]


def box_text(offset: Sequence[int], size: Sequence[int]) -> str:
    """`[0:64,128:256]`, as one would write the slice."""
    return "[" + ",".join(f"{start}:{start + extent}" for start, extent in zip(offset, size, strict=True)) + "]"


def tiling_fault(shape: Extent, boxes: Sequence[Box]) -> str | None:
    """Why the boxes do not cover every element of `shape` exactly once; None when they do.

    No two overlap, all lie inside, and the volumes add up: then nothing is left out. The sweep along dim 0 compares
    a box only with those open at its first row, so a tensor cut into n row blocks costs n log n, not n^2.
    """
    for offset, size in boxes:
        if len(offset) != len(shape) or len(size) != len(shape):
            return f"the piece at {list(offset)} of size {list(size)} has another number of dims than {list(shape)}"
        if any(a < 0 or n < 1 or a + n > whole for a, n, whole in zip(offset, size, shape, strict=True)):
            return f"{box_text(offset, size)} lies outside the shape {list(shape)}"
    covered = sum(prod(size) for _, size in boxes)
    if not shape:
        return None if len(boxes) == 1 else f"the scalar is given {len(boxes)} times"
    open_boxes: list[Box] = []
    for box in sorted(boxes):
        start = box[0][0]
        open_boxes = [other for other in open_boxes if other[0][0] + other[1][0] > start]
        for other in open_boxes:
            if _meet(box, other):
                return f"{box_text(*other)} and {box_text(*box)} overlap"
        open_boxes.append(box)
    if covered != prod(shape):
        return f"the pieces cover {covered} of {prod(shape)} elements"
    return None


def flat_range_boxes(shape: Sequence[int], start: int, stop: int) -> tuple[Box, ...]:
    """The row-major elements [start, stop) of a tensor as boxes, in order.

    A ZeRO rank owns such a range of each flattened parameter. It is at most 2 * dims - 1 boxes: in a matrix the end
    of a row, whole rows, the beginning of a row.
    """
    if start >= stop:
        return ()
    if not shape:
        return (((), ()),)
    if len(shape) == 1:
        return (((start,), (stop - start,)),)
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:
        return _in_row(shape, start // row, start % row, stop - start // row * row)
    boxes: list[Box] = []
    if start < first * row:
        boxes += _in_row(shape, first - 1, start % row, row)
    if first < last:
        rest = tuple(shape[1:])
        boxes.append(((first, *(0 for _ in rest)), (last - first, *rest)))
    if last * row < stop:
        boxes += _in_row(shape, last, 0, stop % row)
    return tuple(boxes)


def _in_row(shape: Sequence[int], index: int, start: int, stop: int) -> tuple[Box, ...]:
    inner = flat_range_boxes(shape[1:], start, stop)
    return tuple(((index, *offset), (1, *size)) for offset, size in inner)


def _meet(box: Box, other: Box) -> bool:
    return all(a < b + m and b < a + n for a, n, b, m in zip(box[0], box[1], other[0], other[1], strict=True))
