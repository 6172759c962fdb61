import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.grid import Coordinate, Grid


@given(pipe=st.integers(1, 4), data=st.integers(1, 4), tensor=st.integers(1, 4))
def test_rank_and_coordinate_are_inverse_and_groups_tile(pipe, data, tensor):
    grid = Grid(pipe, data, tensor)
    for rank in range(grid.size):
        assert grid.rank(grid.coordinate(rank)) == rank
    for axis, degree in (("pipe", pipe), ("data", data), ("tensor", tensor)):
        groups = grid.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(grid.size))
        assert {len(group) for group in groups} == {degree}


def test_order_is_deepspeeds():
    grid = Grid(pipe=2, data=1, tensor=2)
    assert grid.coordinate(1) == Coordinate(pipe=0, data=0, tensor=1)
    assert grid.groups("tensor") == ((0, 1), (2, 3))
    assert grid.groups("pipe") == ((0, 2), (1, 3))
    assert Grid(pipe=1, data=2, tensor=2).groups("data") == ((0, 2), (1, 3))


def test_outside_the_grid():
    with pytest.raises(PlanError, match="rank = 4 lies outside the grid of 4 ranks"):
        Grid(2, 1, 2).coordinate(4)
    with pytest.raises(PlanError, match=r"grid.data = 0"):
        Grid(data=0)
