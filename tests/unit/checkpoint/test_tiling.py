"""Boxes tile a tensor exactly, judged against a count of every element."""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.checkpoint.tiling import Box, box_text, flat_range_boxes, tiling_fault

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


def elements(box: Box) -> list[tuple[int, ...]]:
    return list(product(*(range(start, start + extent) for start, extent in zip(*box, strict=True))))


def split(shape: tuple[int, ...], data: st.DataObject) -> list[Box]:
    """Random tiling: boxes are cut in two again and again."""
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(data.draw(st.integers(0, 8))):
        offset, size = boxes.pop(data.draw(st.integers(0, len(boxes) - 1)))
        dim = data.draw(st.integers(0, len(shape) - 1))
        at = data.draw(st.integers(0, size[dim]))
        for start, extent in ((0, at), (at, size[dim] - at)):
            if extent:
                boxes.append(
                    (
                        tuple(o + start if d == dim else o for d, o in enumerate(offset)),
                        tuple(extent if d == dim else n for d, n in enumerate(size)),
                    )
                )
    return data.draw(st.permutations(boxes))


@given(shape=SHAPES, data=st.data())
def test_a_cut_tensor_is_tiled_until_a_piece_moves_goes_or_doubles(shape: tuple[int, ...], data: st.DataObject) -> None:
    boxes = split(shape, data)
    assert tiling_fault(shape, boxes) is None
    victim = data.draw(st.integers(0, len(boxes) - 1))
    assert "cover" in str(tiling_fault(shape, boxes[:victim] + boxes[victim + 1 :]))
    assert "overlap" in str(tiling_fault(shape, [*boxes, boxes[victim]]))


@given(shape=SHAPES, data=st.data())
def test_any_boxes_are_judged_as_counting_does(shape: tuple[int, ...], data: st.DataObject) -> None:
    boxes: list[Box] = []
    for _ in range(data.draw(st.integers(0, 4))):
        offset = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
        boxes.append((offset, tuple(data.draw(st.integers(1, n - o)) for n, o in zip(shape, offset, strict=True))))
    held = sorted(element for box in boxes for element in elements(box))
    exact = held == elements(((0,) * len(shape), shape))
    assert (tiling_fault(shape, boxes) is None) == exact


@pytest.mark.parametrize(
    ("shape", "boxes", "fault"),
    [
        ((4, 4), [((0, 0), (4, 5))], r"[0:4,0:5] lies outside the shape [4, 4]"),
        ((4, 4), [((-1, 0), (4, 4))], r"[-1:3,0:4] lies outside"),
        ((4, 4), [((0, 0), (0, 4))], r"[0:0,0:4] lies outside"),
        ((4, 4), [((0,), (4,))], "another number of dims"),
        ((4, 4), [((0, 0), (3, 4)), ((2, 0), (2, 4))], "[0:3,0:4] and [2:4,0:4] overlap"),
        ((4, 4), [((0, 0), (3, 4))], "cover 12 of 16 elements"),
        ((4, 4), [], "cover 0 of 16 elements"),
        ((), [], "the scalar is given 0 times"),
        ((), [((), ()), ((), ())], "the scalar is given 2 times"),
    ],
)
def test_the_fault_is_named(shape: tuple[int, ...], boxes: list[Box], fault: str) -> None:
    assert fault in str(tiling_fault(shape, boxes))


def test_a_scalar_is_tiled_by_one_piece() -> None:
    assert tiling_fault((), [((), ())]) is None


def test_many_row_blocks_are_judged_fast() -> None:
    boxes = [((row, column), (1, 64)) for row in range(4000) for column in (0, 64)]
    assert tiling_fault((4000, 128), boxes) is None


@given(shape=SHAPES, data=st.data())
def test_a_flat_range_is_its_boxes_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, prod(shape)))
    stop = data.draw(st.integers(start, prod(shape)))
    boxes = flat_range_boxes(shape, start, stop)
    assert [element for box in boxes for element in elements(box)] == elements(((0,) * len(shape), shape))[start:stop]
    assert len(boxes) <= 2 * len(shape) - 1


def test_a_flat_range_of_a_scalar() -> None:
    assert flat_range_boxes((), 0, 1) == (((), ()),)
    assert flat_range_boxes((), 0, 0) == ()


def test_a_box_reads_as_a_slice() -> None:
    assert box_text((0, 128), (64, 128)) == "[0:64,128:256]"
