from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.schedule import in_flight
from megatron_tlm.plan.simulate import PARTNERS, StageTime, simulate

TICKS = st.integers(0, 20)
STAGES = st.lists(st.builds(StageTime, TICKS, TICKS, TICKS, TICKS), min_size=1, max_size=6)
MICRO_BATCHES = st.integers(1, 9)


@given(stages=STAGES, micro_batches=MICRO_BATCHES, message=st.integers(0, 3), tied=st.integers(0, 3))
def test_everything_runs_once_in_order_and_nothing_overlaps(stages, micro_batches, message, tied):
    timeline = simulate(stages, micro_batches, message=message, tied=tied)
    for stage in range(len(stages)):
        events = timeline.stage_events(stage)
        for kind in ("forward", "backward"):
            assert [e.micro_batch for e in events if e.kind == kind] == list(range(micro_batches))
        assert all(before.end == after.posted for before, after in pairwise(events))
        assert all(event.posted <= event.start <= event.end for event in events)
        assert timeline.in_flight(stage) == in_flight(stage, len(stages), micro_batches)
        assert timeline.compute(stage) == micro_batches * (stages[stage].forward + stages[stage].backward)


@given(stages=STAGES, micro_batches=MICRO_BATCHES, message=st.integers(0, 3))
def test_a_message_occupies_both_ends_at_once_and_follows_what_it_carries(stages, micro_batches, message):
    timeline = simulate(stages, micro_batches, message=message)
    at = {(e.stage, e.kind, e.micro_batch): e for e in timeline.events}
    for (stage, kind, number), event in at.items():
        if kind in PARTNERS:
            side, answer = PARTNERS[kind]
            other = at[stage + side, answer, number]
            assert (event.start, event.end) == (other.start, other.end)
    for stage in range(1, len(stages)):
        for number in range(micro_batches):
            assert at[stage, "forward", number].start >= at[stage - 1, "forward", number].end + message
            assert at[stage - 1, "backward", number].start >= at[stage, "backward", number].end + message


@given(stages=STAGES, micro_batches=MICRO_BATCHES)
def test_never_below_the_busiest_stage(stages, micro_batches):
    times = [stage.forward + stage.backward for stage in stages]
    assert simulate(stages, micro_batches).pipeline_time >= max(sum(times), micro_batches * max(times))


@given(forwards=st.lists(TICKS, min_size=1, max_size=6), ratio=st.integers(1, 3), micro_batches=MICRO_BATCHES)
def test_never_above_the_textbook_where_backward_is_a_multiple_of_forward(forwards, ratio, micro_batches):
    times = [forward * (1 + ratio) for forward in forwards]
    pipeline = simulate([StageTime(forward, ratio * forward) for forward in forwards], micro_batches).pipeline_time
    assert pipeline <= sum(times) + (micro_batches - 1) * max(times)


@pytest.mark.parametrize(("num_stages", "micro_batches"), [(1, 1), (2, 1), (4, 8), (8, 3), (5, 64)])
def test_even_stages_take_the_textbook_time_and_bubble(num_stages, micro_batches):
    timeline = simulate([StageTime(1, 2, reduce=4, update=5)] * num_stages, micro_batches)
    assert timeline.pipeline_time == 3 * (micro_batches + num_stages - 1)
    assert timeline.step_time == timeline.pipeline_time + 4 + 5
    assert timeline.mean_bubble == pytest.approx((num_stages - 1) / (micro_batches + num_stages - 1))


def test_the_tied_sum_waits_for_both_ends_and_the_update_for_all():
    timeline = simulate([StageTime(1, 2, reduce=3), StageTime(1, 2, reduce=50), StageTime(1, 2)], 2, tied=7)
    tied = [event for event in timeline.events if event.kind == "reduce_tied" and event.end > event.start]
    assert [(event.stage, event.start) for event in tied] == [(0, timeline.pipeline_time), (2, timeline.pipeline_time)]
    updates = {event.start for event in timeline.events if event.kind == "update"}
    assert updates == {max(event.end for event in timeline.events if event.kind == "reduce")}


def test_stages_that_cost_nothing():
    assert simulate([StageTime(0, 0)] * 3, 2).step_time == 0
    assert simulate([StageTime(0, 0)] * 3, 2).mean_bubble == 0


def test_nothing_to_run_is_refused():
    with pytest.raises(PlanError, match="stages = 0"):
        simulate([], 1)
    with pytest.raises(PlanError, match="micro_batches = 0"):
        simulate([StageTime(1, 1)], 0)
