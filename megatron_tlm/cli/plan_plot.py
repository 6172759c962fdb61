"""A plan as a picture: the taper over depth coloured by stage, and a step as a Gantt chart."""

from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.setting import TICKS_PER_SECOND
from megatron_tlm.plan.simulate import PARTNERS, Timeline, simulate

SHOWN_MICRO_BATCHES = 12  # more would be too narrow to read
KINDS = {"forward": "#7aa6d8", "backward": "#2f5d9b", "messages": "#e0a030", "reduce": "#7a9a50", "update": "#4c6b2f"}


def write_plan_plot(plan: Plan, target: Path) -> None:
    """A PNG, SVG or PDF, by the name."""
    figure = Figure(figsize=(12, 4 + 0.45 * len(plan.stages)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=(3, 1 + len(plan.stages) * 0.45))
    _draw_taper(above, plan)
    _draw_timeline(below, plan)
    figure.savefig(target)


def stage_color(stage: int, num_stages: int) -> tuple[float, float, float, float]:
    """Neighbours are told apart, and the order is seen."""
    color: tuple[float, float, float, float] = colormaps["viridis"](stage / max(num_stages - 1, 1) * 0.9)
    return color


def _draw_taper(axes: Axes, plan: Plan) -> None:
    """A bar per unit in the order of the depth: its work, with the MLPs' widths on top."""
    count = len(plan.stages)
    for stage, indices in enumerate(plan.stages):
        heights = [(plan.pieces[i].forward + plan.pieces[i].backward) / _unit(plan) for i in indices]
        axes.bar(list(indices), heights, width=0.9, color=stage_color(stage, count), label=f"stage {stage}")
    for index, unit in enumerate(plan.units):
        if unit.width and len(plan.units) <= 70:
            top = (plan.pieces[index].forward + plan.pieces[index].backward) / _unit(plan)
            axes.annotate(str(unit.width), (index, top), ha="center", va="bottom", fontsize=6, rotation=90)
    axes.margins(y=0.18)
    axes.set(
        ylabel=f"work per micro-batch [{'ms' if plan.setting.in_seconds else 'GFLOP'}]",
        xlabel="unit: embedding, then mixer and MLP (its width above) of each layer, head",
        title=f"{plan.shape.num_layers} layers, widths {plan.shape.widths[0]} to {plan.shape.widths[-1]}, "
        f"in {count} stage{'s' if count > 1 else ''}",
    )
    axes.legend(fontsize=8, ncols=min(count, 8))


def _unit(plan: Plan) -> float:
    """Ticks of what the axes count: milliseconds, or billions of FLOPs."""
    return TICKS_PER_SECOND / 1000 if plan.setting.in_seconds else 1e9


def _shown(plan: Plan) -> Timeline:
    pipeline = plan.setting.pipeline
    batches = min(max(plan.micro_batches, 1), max(SHOWN_MICRO_BATCHES, len(plan.stages)))
    return simulate(plan.stage_times, batches, message=pipeline.message, tied=pipeline.tied)


def _draw_timeline(axes: Axes, plan: Plan) -> None:
    timeline, scale = _shown(plan), _unit(plan)
    for event in timeline.events:
        kind = "messages" if event.kind in PARTNERS or event.kind == "reduce_tied" else event.kind
        if kind not in KINDS or event.end == event.start:
            continue
        left, width = event.start / scale, (event.end - event.start) / scale
        axes.barh(event.stage, width, left=left, height=0.8, color=KINDS[kind], edgecolor="white", linewidth=0.3)
        if kind in ("forward", "backward") and width > timeline.step_time / scale / 90:
            color = "white" if kind == "backward" else "black"
            middle = left + width / 2
            axes.text(middle, event.stage, str(event.micro_batch), ha="center", va="center", fontsize=6, color=color)
    axes.set_yticks(range(len(plan.stages)), [f"stage {stage}" for stage in range(len(plan.stages))])
    axes.invert_yaxis()
    all_shown = timeline.micro_batches == max(plan.micro_batches, 1)
    part = "" if all_shown else f", {timeline.micro_batches} of {plan.micro_batches} micro-batches"
    axes.set(
        xlabel="time [ms]" if plan.setting.in_seconds else "time [GFLOP of one rank]",
        title=f"one step{part}; white is waiting: bubble {plan.timeline.mean_bubble:.1%}",
    )
    handles = [Patch(color=color, label=kind) for kind, color in KINDS.items()]
    axes.legend(handles=handles, fontsize=8, ncols=5, loc="upper right", bbox_to_anchor=(1, -0.12), frameon=False)
