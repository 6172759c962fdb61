from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.params import ParameterSpec
from megatron_tlm.plan.shards import overlap, padded_vocab_size, shard


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_shards_tile_the_tensor(dim, degree):
    spec = ParameterSpec("w", (8, 12), split_dim=dim, parts=4)
    boxes = [shard(spec, degree, rank) for rank in range(degree)]
    covered = [
        cell for box in boxes for cell in product(*(range(o, o + n) for o, n in zip(box.offset, box.size, strict=True)))
    ]
    assert sorted(covered) == list(product(range(8), range(12)))
    assert all(box.local_shape == box.size for box in boxes)


def test_padded_rows_are_local_only():
    spec = ParameterSpec("embedding.weight", (10, 3), split_dim=0, parts=10, padded=True)
    assert padded_vocab_size(10, 4, 2) == 16
    first, second = (shard(spec, 2, rank, 16) for rank in range(2))
    assert (first.offset, first.size, first.local_shape) == ((0, 0), (8, 3), (8, 3))
    assert (second.offset, second.size, second.local_shape) == ((8, 0), (2, 3), (8, 3))
    whole = shard(spec, 1, 0, 12)
    assert (whole.offset, whole.size, whole.local_shape) == ((0, 0), (10, 3), (12, 3))
    nothing = shard(spec, 4, 3, 16)
    assert nothing.size == (0, 3)


def test_few_heads_are_replicated_whole():
    spec = ParameterSpec("k", (8, 3), split_dim=0, parts=2, replicable=True)
    assert shard(spec, 2, 1).offset == (4, 0)
    assert shard(spec, 4, 3).size == (8, 3)
    assert spec.split_at(4) is None


def test_a_degree_that_does_not_divide_is_refused():
    spec = ParameterSpec("w", (6, 2), split_dim=0, parts=6)
    with pytest.raises(
        PlanError, match=r"w split into parts = 6 .* tensor degree 4; use a tensor degree of \[1, 2, 3\]"
    ):
        shard(spec, 4, 0)


boxes = st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 5), st.integers(1, 5))


@given(a=boxes, b=boxes)
def test_overlap_is_the_common_cells(a, b):
    def cells(box):
        return set(product(range(box[0], box[0] + box[1]), range(box[2], box[2] + box[3])))

    common = overlap((a[0], a[2]), (a[1], a[3]), (b[0], b[2]), (b[1], b[3]))
    expected = cells(a) & cells(b)
    if common is None:
        assert not expected
    else:
        (row, column), (rows, columns) = common
        assert cells((row, rows, column, columns)) == expected
