"""Ticks that hold their values, names that are short, fewer points with the same extremes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_tlm.report.scale import Axis, log_ticks, nice_ticks, short_number, size_text, smoothed, thin

NUMBERS = st.floats(-1e12, 1e12).filter(lambda value: value == 0 or abs(value) > 1e-9)


@given(NUMBERS, NUMBERS)
def test_ticks_are_few_round_and_hold_the_values(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return
    ticks = nice_ticks(low, high)
    step = ticks[1] - ticks[0]
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= low + step * 1e-6
    assert ticks[-1] >= high - step * 1e-6


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 9.3, [0, 2, 4, 6, 8, 10]),
        (1.9, 4.1, [1.5, 2, 2.5, 3, 3.5, 4, 4.5]),
        (5, 5, [4.7, 4.8, 4.9, 5, 5.1, 5.2, 5.3]),
        (1e-3, 1e-3 + 2e-19, [9.4e-4, 9.6e-4, 9.8e-4, 1e-3, 1.02e-3, 1.04e-3, 1.06e-3]),
        (0, 5e-324, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_of_some_ranges(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(ticks)


@given(st.floats(1e-12, 1e12), st.floats(1, 1e9))
def test_logarithmic_ticks_hold_the_values(low: float, times: float) -> None:
    ticks = log_ticks(low, low * times)
    assert ticks[0] <= low * 1.00001
    assert ticks[-1] >= low * times * 0.99999
    assert 2 <= len(ticks) <= 10
    assert ticks == sorted(set(ticks))


def test_an_axis_maps_ends_on_ends() -> None:
    assert [Axis(0, 10, 100, 0)(value) for value in (0, 5, 10)] == [100, 50, 0]
    assert [Axis(1, 100, 0, 10, log=True)(value) for value in (1, 10, 100)] == [0, 5, 10]


SHORT = {0: "0", 150: "150", 1500: "1500", 12_500: "12.5k", 3.2e6: "3.2M", 4.7e9: "4.7G", 2e12: "2T", -20_000: "-20k"}
SMALL = {0.25: "0.25", 1e-6: "1e-06", math.inf: "inf"}


@pytest.mark.parametrize(("value", "name"), (SHORT | SMALL).items())
def test_numbers_are_short(value: float, name: str) -> None:
    assert short_number(value) == name


def test_sizes_are_in_binary_units() -> None:
    sizes = (12, 2048, 1_047_552, 3 * 2**29, 3 * 2**30, 5 * 2**40)
    assert [size_text(size) for size in sizes] == ["12 B", "2 KiB", "1023 KiB", "1.5 GiB", "3 GiB", "5 TiB"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 50))
def test_thinning_keeps_extremes_ends_and_order(ys: list[float], most: int) -> None:
    xs = [float(place) for place in range(len(ys))]
    few_xs, few_ys = thin(xs, ys, most)
    assert len(few_xs) <= most or len(ys) <= most
    assert (min(few_ys), max(few_ys)) == (min(ys), max(ys))
    assert (few_xs[0], few_xs[-1]) == (0, len(ys) - 1)
    assert few_xs == sorted(set(few_xs))
    assert all(ys[int(x)] == y for x, y in zip(few_xs, few_ys, strict=True))


def test_a_running_mean_lies_in_the_middle_and_keeps_a_straight_line() -> None:
    assert smoothed([3.0] * 5, 4) == pytest.approx([3.0] * 5)
    assert smoothed([0.0, 3.0, 0.0, 6.0], 2) == pytest.approx([1.5, 1.0, 3.0, 3.0])
    assert smoothed([1.0, 5.0], 1) == [1.0, 5.0]
    assert smoothed(range(99), 30)[15:-15] == pytest.approx(range(15, 84))
    assert smoothed([], 3) == []
