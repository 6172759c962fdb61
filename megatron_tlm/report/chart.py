"""Curves as inline SVG, with values under the pointer; no library, no network.

    line_chart("Loss", [Series("training", steps, losses), Series("validation", at, values, dots=True)], unit="nats")

Points that are not finite or beyond 1e100, and on a logarithmic axis those at or below 1e-100, are left out. What is
drawn is thinned to what a screen can show, extremes kept.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_tlm.report.facts import LARGEST
from megatron_tlm.report.page import Html, element, text
from megatron_tlm.report.scale import Axis, log_ticks, nice_ticks, short_number, thin
from megatron_tlm.report.style import NUM_COLORS

SMALLEST = 1 / LARGEST
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 8, 26  # room around the drawing for ticks


@dataclass(frozen=True)
class Series:
    """A curve, drawn in the order of x. `color` counts through the palette (default: its place in the chart).

    `faint` is for what a smoother curve is drawn over, and keeps out of the legend; `dots` marks every point.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    color: int | None = None
    faint: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line at `x`; `bad` draws it as trouble."""

    x: float
    name: str
    bad: bool = False


def color_of(index: int) -> str:
    """The n-th colour of the palette, for CSS."""
    return f"var(--c{index % NUM_COLORS})"


def shade_of(place: int, count: int) -> str:
    """The colour of one of `count` things in a row, such as stages: neighbours are told apart, the order is seen."""
    hue = 212 - 190 * place / max(count - 1, 1)
    return f"hsl({hue:.0f} 42% {52 + 6 * (place % 2)}%)"


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    unit: str = "",
    x_name: str = "step",
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = False,
    marks: Sequence[Mark] = (),
    wide: bool = False,
) -> Html:
    """A figure; where no series has a point to draw, one that says so."""
    drawn = [_drawable(item, index, log_x, log_y) for index, item in enumerate(series)]
    drawn = [item for item in drawn if item.xs]
    caption = element("figcaption", title, element("span", f"  {unit}") if unit else "")
    if not drawn:
        return element("figure", caption, element("p", "nothing was logged", _class="detail"))
    width, height = (1130, 330) if wide else (560, 250)
    x_axis, x_ticks = _axis([x for item in drawn for x in item.xs], LEFT, width - RIGHT, log_x, exact=True)
    values = [y for item in drawn for y in item.ys] + ([0.0] if from_zero and not log_y else [])
    y_axis, y_ticks = _axis(values, height - BOTTOM, TOP, log_y)
    parts = [_grid(x_axis, y_axis, x_ticks, y_ticks)]
    parts += [_mark(mark, x_axis, height) for mark in marks if x_axis.first <= mark.x <= x_axis.last]
    parts += [_curve(item, x_axis, y_axis) for item in drawn]
    parts.append(Html(f'<line class="cross" x1="0" x2="0" y1="{TOP}" y2="{height - BOTTOM}"/>'))
    label = f"{title}: {', '.join(item.name for item in drawn if not item.faint)}"
    size = {"viewBox": f"0 0 {width} {height}", "_class": "wide" if wide else ""}
    svg = element("svg", *parts, **size, role="img", aria_label=label)
    # A logarithmic x keeps its picture; the pointer's values read a straight axis.
    data = {} if log_x else {"data_chart": _data(drawn, x_axis), "data_x": x_name}
    return element("figure", caption, _legend(drawn), svg, **data)


def _drawable(item: Series, index: int, log_x: bool, log_y: bool) -> Series:
    points = sorted(
        (float(x), float(y))
        for x, y in zip(item.xs, item.ys, strict=True)
        if abs(x) < LARGEST and abs(y) < LARGEST and not (log_y and y <= SMALLEST) and not (log_x and x <= SMALLEST)
    )
    xs, ys = thin([x for x, _ in points], [y for _, y in points])
    return Series(item.name, xs, ys, index if item.color is None else item.color, item.faint, item.dots)


def _axis(
    values: Sequence[float], start: float, stop: float, log: bool, *, exact: bool = False
) -> tuple[Axis, list[float]]:
    """From the first tick to the last; `exact`: from the first value to the last, with the ticks between."""
    low, high = min(values), max(values)
    ticks = log_ticks(low, high) if log else nice_ticks(low, high)
    if exact and high > low:
        return Axis(low, high, start, stop, log), [tick for tick in ticks if low <= tick <= high]
    return Axis(ticks[0], ticks[-1], start, stop, log), ticks


def _grid(x_axis: Axis, y_axis: Axis, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> Html:
    lines = []
    for tick in y_ticks:
        y = f"{y_axis(tick):.1f}"
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{x_axis.stop}" y1="{y}" y2="{y}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y}" dy=".35em" text-anchor="end">{short_number(tick)}</text>')
    for tick in x_ticks:
        x = f"{x_axis(tick):.1f}"
        lines.append(f'<text x="{x}" y="{y_axis.start + 17}" text-anchor="middle">{short_number(tick)}</text>')
    base = y_axis.start
    lines.append(f'<line class="axis" x1="{LEFT}" x2="{x_axis.stop}" y1="{base}" y2="{base}"/>')
    return Html("".join(lines))


def _mark(mark: Mark, x_axis: Axis, height: int) -> Html:
    x, kind = f"{x_axis(mark.x):.1f}", "mark bad" if mark.bad else "mark"
    line = f'<line class="{kind}" x1="{x}" x2="{x}" y1="{TOP}" y2="{height - BOTTOM}">'
    return Html(f"{line}<title>{text(mark.name)}</title></line>")


def _curve(item: Series, x_axis: Axis, y_axis: Axis) -> Html:
    points = [(f"{x_axis(x):.1f}", f"{y_axis(y):.1f}") for x, y in zip(item.xs, item.ys, strict=True)]
    color = color_of(item.color or 0)
    path = "M" + "L".join(f"{x} {y}" for x, y in points)
    kind = "curve faint" if item.faint else "curve"
    made = f'<path class="{kind}" style="stroke:{color}" d="{path}"/>' if len(points) > 1 else ""
    if item.dots or len(points) == 1:
        made += "".join(f'<circle cx="{x}" cy="{y}" r="2.6" style="fill:{color}"/>' for x, y in points)
    return Html(made)


def _legend(drawn: Sequence[Series]) -> Html:
    named = [item for item in drawn if not item.faint]
    if len(named) < 2:
        return Html("")
    keys = (
        element(
            "span",
            element("i", _class="dot" if item.dots else "", style=f"background:{color_of(item.color or 0)}"),
            item.name,
        )
        for item in named
    )
    return element("div", *keys, _class="legend")


def _data(drawn: Sequence[Series], x_axis: Axis) -> str:
    series = [
        [item.name, color_of(item.color or 0), [_digits(x, 10) for x in item.xs], [_digits(y, 5) for y in item.ys]]
        for item in drawn
        if not item.faint
    ]
    return json.dumps({"x": [LEFT, x_axis.stop, x_axis.first, x_axis.last], "series": series}, separators=(",", ":"))


def _digits(value: float, digits: int) -> float:
    """Fewer digits, and no `.0` behind whole numbers."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
