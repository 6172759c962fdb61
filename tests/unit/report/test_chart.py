"""What a chart draws, read back from its SVG."""

import html
import json
import math
import re
from itertools import product

import pytest

from megatron_tlm.report.chart import Mark, Series, line_chart
from tests.unit.report.test_page import Outline


def points_of(chart: str) -> list[list[tuple[float, float]]]:
    paths = re.findall(r'<path [^>]*d="M([^"]*)"', chart)
    return [[tuple(map(float, point.split())) for point in path.split("L")] for path in paths]  # type: ignore[misc]


def data_of(chart: str) -> dict[str, object]:
    found = re.search(r'data-chart="([^"]*)"', chart)
    assert found is not None
    data: dict[str, object] = json.loads(html.unescape(found[1]))
    return data


def test_a_curve_runs_from_edge_to_edge_and_up_is_more() -> None:
    [points] = points_of(line_chart("t", [Series("a", [1, 2, 3], [0.0, 5.0, 10.0])]))
    assert [x for x, _ in points] == [52, 301, 550]
    heights = [y for _, y in points]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] - heights[1] == heights[1] - heights[2]


def test_what_is_no_number_is_left_out_and_a_lone_point_is_a_dot() -> None:
    chart = line_chart("t", [Series("a", [1, 2, 3], [math.nan, 5.0, math.inf])])
    assert points_of(chart) == []
    assert chart.count("<circle") == 1
    assert data_of(chart)["series"] == [["a", "var(--c0)", [2], [5]]]
    assert "nothing was logged" in line_chart("t", [Series("a", [1], [math.nan])])
    assert "nothing was logged" in line_chart("t", [Series("a", [1], [-1.0])], log_y=True)


def test_values_under_the_pointer_belong_to_the_curves_that_are_named() -> None:
    faint = Series("raw", [1, 2], [1, 2], 0, faint=True)
    chart = line_chart("t", [faint, Series("mean", [1, 2], [1.23456789, 2], 0), Series("b", [1, 2], [2, 1])])
    series = data_of(chart)["series"]
    assert series == [["mean", "var(--c0)", [1, 2], [1.2346, 2]], ["b", "var(--c2)", [1, 2], [2, 1]]]
    assert len(points_of(chart)) == 3
    assert "raw" not in chart


def test_marks_stand_where_they_belong() -> None:
    marks = [Mark(2, "here"), Mark(9, "outside"), Mark(1, "<bad>", bad=True)]
    chart = line_chart("t", [Series("a", [1, 3], [0, 1])], marks=marks)
    assert re.findall(r'class="(mark[^"]*)" x1="([\d.]+)"', chart) == [("mark", "301.0"), ("mark bad", "52.0")]
    assert "&lt;bad&gt;" in chart
    assert "outside" not in chart


def test_a_long_curve_is_thinned_and_its_peak_stays() -> None:
    ys = [0.0] * 100_000
    ys[77_777] = 1.0
    [points] = points_of(line_chart("t", [Series("a", range(100_000), ys)]))
    assert len(points) <= 800
    assert min(y for _, y in points) == 8


def test_powers_of_ten_are_evenly_apart() -> None:
    [points] = points_of(line_chart("t", [Series("a", [1, 2, 3], [1, 10, 100])], log_y=True))
    assert points[0][1] - points[1][1] == points[1][1] - points[2][1]


def test_names_are_text_and_tags_are_closed() -> None:
    chart = line_chart("<t>", [Series("<a>", [1, 2], [1, 2]), Series("b", [1, 2], [1, 2], dots=True)], unit="<u>")
    assert "<a>" not in chart
    assert "<t>" not in chart
    assert Outline(chart).open == []


@pytest.mark.parametrize("log_y", [False, True])
def test_values_that_hardly_differ_or_leave_the_floats_have_a_chart(log_y: bool) -> None:
    """A learning rate of 1e-3, and once of the float behind it, is an everyday curve."""
    odd = [1e-3, 0.0010000000000000002, 5e-324, 0.0, -1.7e308, 1.7e308, 1e300, -1e-300, 1.0]
    for pair in product(odd, repeat=2):
        assert "<figure" in line_chart("a", [Series("s", [1, 2], pair)], log_y=log_y)
