"""The shape of a model and the time of its stages, as inline SVG.

taper_picture(widths, stage_of_layer)     a layer per column, as high as its MLP is wide, coloured by stage
time_bars(rows, kinds)                    a bar per stage, its parts side by side
"""

from collections.abc import Mapping, Sequence

from megatron_tlm.report.chart import color_of, shade_of
from megatron_tlm.report.page import Html, element, text
from megatron_tlm.report.scale import short_number

_HIGH = 170


def taper_picture(widths: Sequence[int], stages: Sequence[int], *, title: str = "Widths") -> Html:
    """`stages[layer]` is the pipeline stage that holds the layer's MLP."""
    width, top, left = 1130, 22, 0
    each = (width - left) / max(len(widths), 1)
    gap = min(4.0, each * 0.15)
    middle, high = top + _HIGH / 2, max([1, *widths])
    parts, several, count = [], len(set(stages)) > 1, max(stages, default=0) + 1
    for layer, size in enumerate(widths):
        tall, x = _HIGH * size / high, left + layer * each
        told = f"layer {layer}: MLP {size}" + (f", stage {stages[layer]}" if several else "")
        parts.append(
            f'<rect x="{x + gap / 2:.1f}" y="{middle - tall / 2:.1f}" width="{each - gap:.1f}" height="{tall:.1f}" '
            f'rx="{min(3.0, each / 5):.1f}" style="fill:{shade_of(stages[layer], count)}">'
            f"<title>{text(told)}</title></rect>"
        )
        if layer in _labelled(len(widths)):
            at = f'x="{x + each / 2:.1f}" text-anchor="middle"'
            parts.append(f'<text {at} y="{middle - tall / 2 - 5:.1f}">{size}</text>')
            parts.append(f'<text {at} y="{top + _HIGH + 18}">{layer}</text>')
    svg = _wide(title, parts, width, top + _HIGH + 26)
    names = [(shade_of(stage, count), f"stage {stage}") for stage in dict.fromkeys(stages)] if several else []
    note = element("span", "  MLP width of each layer, input on the left")
    return element("figure", element("figcaption", title, note), _keys(names), svg)


def time_bars(title: str, unit: str, rows: Mapping[str, Sequence[float]], kinds: Sequence[str]) -> Html:
    """Each row's values belong to `kinds`, in order; a kind without a value anywhere is left out."""
    width, left, each = 1130, 78, 30
    longest = max((sum(values) for values in rows.values()), default=0.0) or 1.0
    shown = [place for place in range(len(kinds)) if any(values[place] > 0 for values in rows.values())]
    parts = []
    for row, (name, values) in enumerate(rows.items()):
        x, y = float(left), row * each
        parts.append(f'<text x="{left - 12}" y="{y + 15}" text-anchor="end">{text(name)}</text>')
        for place in shown:
            long = (width - left - 70) * values[place] / longest
            told = f"{name}: {kinds[place]} {short_number(values[place])} {unit}"
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(long, 0):.1f}" height="21" '
                f'style="fill:{color_of(shown.index(place))};opacity:.85"><title>{text(told)}</title></rect>'
            )
            x += long
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 15}">{short_number(sum(values))}</text>')
    svg = _wide(title, parts, width, each * len(rows))
    names = [(color_of(index), kinds[place]) for index, place in enumerate(shown)]
    return element("figure", element("figcaption", title, element("span", f"  {unit}")), _keys(names), svg)


def _wide(title: str, parts: list[str], width: int, height: int) -> Html:
    """A drawing that scrolls on narrow screens."""
    size = f"0 0 {width} {height}"
    return element("svg", Html("".join(parts)), viewBox=size, role="img", aria_label=title, _class="wide")


def _labelled(count: int) -> set[int]:
    """The layers that have room for their number."""
    every = max(1, -(-count // 28))
    return {*range(0, count, every), count - 1} - ({count - 2} if every > 1 and (count - 1) % every else set())


def _keys(names: Sequence[tuple[str, str]]) -> Html:
    keys = (element("span", element("i", style=f"background:{color}"), name) for color, name in names)
    return element("div", *keys, _class="legend") if names else Html("")
