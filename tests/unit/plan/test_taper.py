import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.errors import PlanError
from megatron_tlm.plan.taper import FALLS, SCHEDULES, taper_widths

PAPER_440M = (6144, 6064, 5824, 5440, 4944, 4384, 3808, 3248, 2752, 2368, 2128, 2048)


def test_paper_440m_widths():
    assert taper_widths(12, 4096) == PAPER_440M


def test_reverse_is_the_mirror():
    assert taper_widths(12, 4096, start=0.5, end=1.5) == PAPER_440M[::-1]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "sigmoid"])
@given(
    layers=st.integers(2, 60),
    units=st.integers(1, 40),
    multiple=st.sampled_from([1, 2, 16, 24, 64, 256, 4096]),
    ends=st.sampled_from([(1.5, 0.5), (1.25, 0.75), (1.75, 0.25), (1.0, 1.0), (0.5, 1.5)]),
)
def test_budget_ends_multiples_and_order_hold(schedule, layers, units, multiple, ends):
    baseline = units * multiple * 4
    start, end = ends
    widths = taper_widths(layers, baseline, schedule=schedule, start=start, end=end, multiple=multiple)
    assert len(widths) == layers
    assert sum(widths) == layers * baseline
    assert (widths[0], widths[-1]) == (start * baseline, end * baseline)
    assert all(width % multiple == 0 for width in widths)
    assert list(widths) == sorted(widths, reverse=start >= end)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "sigmoid"])
@given(layers=st.integers(2, 60), baseline=st.integers(1, 50).map(lambda n: 64 * n))
def test_symmetric_schedules_are_the_nearest_multiples(schedule, layers, baseline):
    """The paper's rounding: never further than half a step from the ideal width, so no repair was needed."""
    widths = taper_widths(layers, baseline, schedule=schedule)
    for layer, width in enumerate(widths[1:-1], 1):
        ideal = baseline * (0.5 + FALLS[schedule](layer / (layers - 1)))
        assert abs(width - ideal) <= 8 + 1e-3


@given(
    layers=st.integers(2, 40),
    start=st.integers(4, 12).map(lambda n: n / 8),
    end=st.integers(2, 12).map(lambda n: n / 8),
    schedule=st.sampled_from(["cosine", "linear", "sigmoid"]),
)
def test_asymmetric_requests_meet_the_budget_or_are_refused(layers, start, end, schedule):
    high, low = max(start, end) * 1024, min(start, end) * 1024
    feasible = (layers - 2) * low <= layers * 1024 - high - low <= (layers - 2) * high
    if not feasible:
        with pytest.raises(PlanError, match="cannot have the mean width 1024"):
            taper_widths(layers, 1024, schedule=schedule, start=start, end=end)
        return
    widths = taper_widths(layers, 1024, schedule=schedule, start=start, end=end)
    assert sum(widths) == layers * 1024
    assert (widths[0], widths[-1]) == (start * 1024, end * 1024)
    assert list(widths) == sorted(widths, reverse=start >= end)


def test_uniform_and_single_layer_have_the_baseline():
    assert taper_widths(3, 64, schedule="uniform") == (64, 64, 64)
    assert taper_widths(1, 64) == (64,)
    assert taper_widths(2, 64) == (96, 32)
    assert taper_widths(3, 64) == (96, 64, 32)


@pytest.mark.parametrize(("schedule", "wide"), [("wider-early", 0), ("wider-middle", 1), ("wider-late", 2)])
@pytest.mark.parametrize("layers", [3, 12, 13, 14])
def test_groups_keep_the_total(schedule, wide, layers):
    widths = taper_widths(layers, 4096, schedule=schedule)
    assert sum(widths) == layers * 4096
    middle = (2 * wide + 1) * layers // 6
    assert widths[middle] == 6144
    narrow = [width for width in widths if width != 6144]
    assert max(narrow) - min(narrow) <= 16
    assert all(width % 16 == 0 for width in widths)


def test_paper_experiment_one():
    assert taper_widths(12, 4096, schedule="wider-early") == (6144,) * 4 + (3072,) * 8


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((12, 5500), {}, "8250.*2750.*baseline width of 5472 or 5504, or width_multiple = 2"),
        ((12, 4096), {"multiple": 4096}, "baseline width of 8192, or width_multiple = 2048"),
        ((12, 4096), {"start": 1.5, "end": 1.25}, "interior would need .*; use taper_end = 0.5"),
        ((4, 384), {"start": 3.0, "end": 1.0}, "between the ends 1152 and 384 .*; use a taper_end from 0.001 to 0.333"),
        ((4, 384), {"start": 5.0, "end": 1.0}, "use a taper_start of less than 4, as many as there are layers"),
        ((4, 384), {"start": 0.5, "end": 0.25}, "use taper_start = 1.5: one of the two has to be 1 or more"),
        ((4, 384), {"start": 1.0, "end": 3.0}, "taper_end = 3 and taper_start = 1 .*; use a taper_start from 0.001"),
        ((12, 4096), {"start": 0.0}, "taper_start = 0 is not a positive ratio"),
        ((12, 4096), {"end": float("nan")}, "taper_end = nan is not a positive ratio"),
        ((12, 4096), {"schedule": "cosin"}, f"taper_schedule = 'cosin' is not known; choose one of {SCHEDULES[0]}"),
        ((12, 4096), {"schedule": "wider-early", "start": 3.0}, "at most 2.99"),
        ((2, 4096), {"schedule": "wider-late"}, "num_layers = 2 cannot form three groups"),
        ((3, 100), {"schedule": "uniform"}, "baseline = 100.*use a baseline width of 96 or 112"),
        ((0, 4096), {}, "num_layers = 0"),
    ],
)
def test_impossible_requests_name_the_nearest_that_works(arguments, options, message):
    with pytest.raises(PlanError, match=message):
        taper_widths(*arguments, **options)
