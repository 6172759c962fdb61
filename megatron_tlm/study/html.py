"""A study's report as one page that opens in any browser without a network."""

from collections.abc import Sequence

from megatron_tlm.report.chart import Series, color_of, line_chart
from megatron_tlm.report.page import Html, element, page, section, table, text
from megatron_tlm.report.scale import Axis, nice_ticks, short_number
from megatron_tlm.study.parts import Intervals, Part, Section, Table, Words

_WIDE, _LEFT, _RIGHT, _EACH = 1130, 150, 20, 34


def write_page(title: str, subtitle: str, parts: Sequence[Section]) -> str:
    """The whole file."""
    return page(title, *(section(own.title, *map(_block, own.parts)) for own in parts), subtitle=subtitle)


def _block(part: Part) -> Html:
    if isinstance(part, Words):
        return element("p", part.text)
    if isinstance(part, Table):
        return table(part.header, part.rows, right=set(range(len(part.header))) - set(part.left))
    if isinstance(part, Intervals):
        return _interval_chart(part)
    return line_chart(
        part.title,
        [Series(line.name, line.xs, line.ys, color=line.color, dots=line.dots) for line in part.lines],
        unit=part.unit,
        x_name=part.x_name,
        log_x=part.log_x,
        wide=True,
    )


def _interval_chart(part: Intervals) -> Html:
    """A row per estimate: a bar for its interval, dots for the values that it is made of."""
    ends = [0.0]
    for row in part.rows:
        reach = row.half_width or 0.0
        ends += [row.mean - reach, row.mean + reach, *row.values]
    ticks = nice_ticks(min(ends), max(ends), 9)
    axis = Axis(ticks[0], ticks[-1], _LEFT, _WIDE - _RIGHT)
    base = _EACH * len(part.rows) + 8
    drawn = []
    for tick in ticks:
        x, kind = f"{axis(tick):.1f}", "axis" if tick == 0 else "grid"
        drawn.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="0" y2="{base}"/>')
        drawn.append(f'<text x="{x}" y="{base + 17}" text-anchor="middle">{short_number(tick)}</text>')
    for place, row in enumerate(part.rows):
        y, color = place * _EACH + _EACH / 2, color_of(place + 1)
        drawn.append(f'<text x="{_LEFT - 14}" y="{y}" dy=".35em" text-anchor="end">{text(row.name)}</text>')
        if row.half_width is not None:
            low, high = axis(row.mean - row.half_width), axis(row.mean + row.half_width)
            drawn.append(
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" '
                f'style="stroke:{color};stroke-width:7;opacity:.35"/>'
            )
        drawn += [f'<circle cx="{axis(v):.1f}" cy="{y}" r="2.6" style="fill:{color}"/>' for v in row.values]
        x = f"{axis(row.mean):.1f}"
        drawn.append(f'<line x1="{x}" x2="{x}" y1="{y - 9}" y2="{y + 9}" style="stroke:{color};stroke-width:2.5"/>')
    svg = element("svg", Html("".join(drawn)), viewBox=f"0 0 {_WIDE} {base + 24}", role="img", aria_label=part.title)
    return element("figure", element("figcaption", part.title, element("span", f"  {part.unit}")), svg)
