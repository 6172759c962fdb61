"""What each stage takes: time, waiting, memory by kind; and what its neighbours' rules would have taken."""

from collections.abc import Sequence

from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.compare import Rival
from megatron_tlm.plan.refusal import gibibytes
from megatron_tlm.plan.search import Found, Layout


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def stage_lines(plan: Plan) -> list[str]:
    """A row per stage, then the step as a whole. Times are shares of the slowest stage's where no device is known."""
    times = [stage.forward + stage.backward for stage in plan.stage_times]
    slowest = max(times) or 1
    known = plan.setting.in_seconds
    lines = [
        f"{'stage':>5}  {'forward':>8} {'backward':>8}  {'idle':>6}  {'in flight':>9}  {'weights':>9} "
        f"{'gradients':>9} {'optimizer':>9} {'activations':>11} {'buffers':>9} {'or after':>9} {'peak':>9}"
    ]
    for stage, (time, use) in enumerate(zip(plan.stage_times, plan.memory, strict=True)):
        forward, backward = (
            duration(plan.setting.seconds(ticks) or 0) if known else f"{ticks / slowest:.3f}"
            for ticks in (time.forward, time.backward)
        )
        state = (use.weights, use.gradients, use.optimizer)
        sizes = (*state, use.activations + use.working, use.messages + use.buffers, use.after, use.total)
        cells = " ".join(f"{gibibytes(size):>{11 if i == 3 else 9}}" for i, size in enumerate(sizes))
        lines.append(
            f"{stage:5}  {forward:>8} {backward:>8}  {plan.timeline.bubble(stage):6.1%}  "
            f"{plan.setting.pipeline.held(stage):>9}  {cells}"
        )
    lines.append(
        "peak = weights + gradients + optimizer + (activations + buffers, or if larger `or after`: the buffers that"
    )
    lines.append("reduce gradients after the last backward, when the activations are gone); all of one rank")
    return [*lines, _step(plan)]


def _step(plan: Plan) -> str:
    seconds, rate = plan.step_seconds, plan.tokens_per_second
    bubble = f"bubble {plan.timeline.mean_bubble:.1%}"
    if seconds is None or rate is None:
        return f"{bubble}; give --hardware or --hardware-profile for seconds"
    return f"{bubble}; predicted step {duration(seconds)}, {rate:,.0f} tokens/s"


def compare_lines(rivals: Sequence[Rival]) -> list[str]:
    """A row per rule, ours last: how far its slowest stage is from the mean, its step against ours, its peak."""
    ours = rivals[-1]
    lines = [f"{'rule':28} {'slowest/mean':>12}  {'step time':>9}  {'peak memory':>12}  stages begin with"]
    for rival in rivals:
        if rival.plan is None:
            lines.append(f"{rival.name:28} {'-':>12}  {'-':>9}  {'-':>12}  {rival.reason}")
            continue
        begins = " ".join(rival.plan.stage_units(stage)[0].name for stage in range(1, len(rival.plan.stages)))
        relative = rival.step_time / ours.step_time if ours.step_time else 1.0
        lines.append(
            f"{rival.name:28} {rival.slowest_over_mean:12.3f}  {relative:9.3f}  {gibibytes(rival.peak_bytes):>12}  "
            f"{begins if len(begins) <= 50 else begins[:47] + '...'}"
        )
    return [*lines, "slowest/mean is of simulated time, not of FLOPs; step times are simulated, over ours"]


def search_lines(found: Found, shown: int) -> list[str]:
    """The fastest layouts, then the refused ones by reason."""
    lines = [f"{'':>3} {'step':>9}  {'tokens/s':>12}  {'peak':>10}  flags"]
    for place, layout in enumerate(found.ranked[:shown], start=1):
        about = "" if layout.simulated else ">"
        peak = gibibytes(layout.peak_bytes) if layout.peak_bytes is not None else ""
        rate = f"{layout.tokens_per_second(found.tokens):,.0f}"
        lines.append(f"{place:3} {about + duration(layout.step_seconds):>9}  {rate:>12}  {peak:>10}  {layout.flags}")
    if len(found.ranked) > shown:
        lines.append(f"    and {len(found.ranked) - shown} slower ones that fit; --json has all of them")
    lines.append(
        "assumed: ZeRO 0 and 1 reduce gradients once a step, 2 every micro-batch, unhidden; 3 talks behind the work"
    )
    if found.refused:
        lines += ["", f"{len(found.refused)} refused:", *_refused_lines(found.refused)]
    return lines


def _where(layout: Layout) -> str:
    grid = layout.grid
    place = f"tensor {grid.tensor} x pipeline {grid.pipe} x data {grid.data}"
    if "needs" not in layout.refused:
        return place
    recompute = layout.recompute or "none"
    return f"{place}, micro-batch {layout.micro_batch_size}, ZeRO {layout.zero_stage}, recompute {recompute}"


def _refused_lines(refused: Sequence[Layout], most: int = 12) -> list[str]:
    """A line for each reason, with how many layouts share it; the counts add up to all of them."""
    by_reason: dict[str, list[Layout]] = {}
    for layout in refused:
        by_reason.setdefault(layout.refused, []).append(layout)
    shown = list(by_reason.items())[:most]
    lines = []
    for reason, layouts in shown:
        others = len(layouts) - 1
        more = f" and {others} other{'s' * (others > 1)}" if others else ""
        lines.append(f"    {_where(layouts[0])}{more}: {reason}")
    left = len(refused) - sum(len(layouts) for _, layouts in shown)
    return [*lines, f"    and {left} more; --json has all of them"] if left else lines
