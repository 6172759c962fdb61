import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.plan.bounds import Tables, paths
from megatron_tlm.plan.pieces import Piece, Pieces, Pipeline

ANY = st.integers(0, 50)
NEAR = st.integers(100, 150)
MICRO_BATCHES = st.integers(1, 14)


def largest_bound(pieces, pipeline):
    tables = Tables(Pieces(pieces), pipeline, len(pieces), slowest_stage=False)
    return max(int(tables.time[stage][stage, 0]) for stage in range(len(pieces)))


@given(
    pieces=st.lists(st.builds(Piece, ANY, ANY, ANY), min_size=1, max_size=7),
    micro_batches=MICRO_BATCHES,
    message=st.integers(0, 9),
    tied=st.integers(0, 9),
)
def test_never_above_the_simulated_step_time(pieces, micro_batches, message, tied):
    pipeline = Pipeline(len(pieces), micro_batches, message=message, tied=tied)
    (time,) = Pieces(pieces).step_times(np.arange(len(pieces) + 1)[None], pipeline)
    assert largest_bound(pieces, pipeline) <= time


@given(loads=st.lists(NEAR, min_size=1, max_size=8), micro_batches=MICRO_BATCHES)
def test_reached_by_stages_that_are_nearly_even(loads, micro_batches):
    pieces = [Piece(load, 2 * load) for load in loads]
    pipeline = Pipeline(len(pieces), micro_batches)
    (time,) = Pieces(pieces).step_times(np.arange(len(pieces) + 1)[None], pipeline)
    assert largest_bound(pieces, pipeline) == time


def test_the_first_stage_runs_all_its_micro_batches_between_two_excursions():
    first, *_ = paths(0, 4, 16)
    assert (first.forward, first.backward, first.later) == (16, 16, 0)
    assert any((path.forward, path.backward, path.later) == (13, 13, 2) for path in paths(0, 4, 16))
