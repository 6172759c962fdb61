"""A study's report as Markdown with pictures beside it, for a repository."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from megatron_tlm.study.parts import Chart, Intervals, Section, Table, Words
from megatron_tlm.study.runs import replace_text

# The same numbers give the same bytes: no date, no random ids.
_SVG: dict[Any, Any] = {"svg.hashsalt": "study", "svg.fonttype": "none"}


def write_markdown(title: str, subtitle: str, parts: Sequence[Section], target: Path) -> None:
    """`target` and its pictures, in the same folder."""
    lines = [f"# {title}", "", subtitle, ""]
    for own in parts:
        lines += [f"## {own.title}", ""]
        for part in own.parts:
            if isinstance(part, Words):
                lines += [_plain(part.text), ""]
            elif isinstance(part, Table):
                lines += [*_table(part), ""]
            else:
                picture = target.with_name(f"{part.file}.svg")
                _draw(part, picture)
                lines += [f"![{part.title}]({picture.name})", ""]
    replace_text(target, "\n".join(lines).rstrip() + "\n")


def _table(part: Table) -> Iterator[str]:
    yield f"| {' | '.join(part.header)} |"
    yield f"|{'|'.join('---' if column in part.left else '---:' for column in range(len(part.header)))}|"
    for row in part.rows:
        yield f"| {' | '.join(_plain(cell).replace('|', chr(92) + '|') for cell in row)} |"


def _plain(text: str) -> str:
    """Markdown lets tags through, and the last words of a failed run are whatever it printed."""
    return text.replace("<", "&lt;")


def _draw(part: Chart | Intervals, target: Path) -> None:
    size = (8.0, 4.5) if isinstance(part, Chart) else (8.0, 1.2 + 0.45 * len(part.rows))
    with matplotlib.rc_context(_SVG):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        if isinstance(part, Chart):
            _draw_lines(part, axes)
        else:
            _draw_intervals(part, axes)
        axes.set_title(part.title, fontsize=11)
        axes.grid(alpha=0.3)
        figure.savefig(target, metadata={"Date": None})


def _draw_lines(part: Chart, axes: Axes) -> None:
    for line in part.lines:
        color = None if line.color is None else f"C{line.color}"
        axes.plot(line.xs, line.ys, marker="o" if line.dots else "", markersize=4, label=line.name, color=color)
    if part.log_x:
        axes.set_xscale("log")
        ticks = sorted({x for line in part.lines for x in line.xs})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.minorticks_off()
    axes.set(xlabel=part.x_name, ylabel=part.unit)
    if part.lines:
        axes.legend()


def _draw_intervals(part: Intervals, axes: Axes) -> None:
    axes.axvline(0, color="0.4", linewidth=1)
    for place, row in enumerate(part.rows):
        color = f"C{place + 1}"
        if row.half_width is not None:
            ends = (row.mean - row.half_width, row.mean + row.half_width)
            axes.plot(ends, (place, place), linewidth=7, alpha=0.35, color=color, solid_capstyle="butt")
        axes.plot(row.values, [place] * len(row.values), "o", markersize=4, color=color)
        axes.plot([row.mean], [place], "|", markersize=18, markeredgewidth=2.5, color=color)
    axes.set_yticks(range(len(part.rows)), [row.name for row in part.rows])
    axes.invert_yaxis()
    axes.set_xlabel(part.unit)
