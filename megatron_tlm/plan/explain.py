"""Why the stages are what they are, in sentences: what limits the step, what a border's move would cost, what fills."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from megatron_tlm.plan import lattice
from megatron_tlm.plan.build import Plan
from megatron_tlm.plan.cut import best_cut
from megatron_tlm.plan.lattice import StageTicks
from megatron_tlm.plan.refusal import gibibytes
from megatron_tlm.plan.setting import glue, merge

Stages = tuple[range, ...]

EVENNESS_EFFORT = 1_000_000  # the slowest stage itself takes none


def explain(plan: Plan) -> tuple[str, ...]:
    """A sentence or two for each thing worth knowing; few for a single stage."""
    sentences = [_fullest(plan)]
    if len(plan.stages) > 1:
        sentences = [_limit(plan), _bubble(plan), _moves(plan), _proof(plan), _messages(plan), *sentences]
    return tuple(sentence for sentence in sentences if sentence)


def step_times(plan: Plan, cuts: Sequence[Stages]) -> list[int]:
    """The simulated step time of the plan's model in each of these cuts, in ticks.

    All at once and without events: those of 16 stages and 1,536 micro-batches take a second a cut.
    """
    if not cuts:
        return []
    ticks = (
        np.array([[sum(getattr(plan.pieces[i], name) for i in stage) for stage in cut] for cut in cuts], dtype=np.int64)
        for name in StageTicks._fields
    )
    pipeline = plan.setting.pipeline
    batches = max(plan.micro_batches, 1)
    found = lattice.step_times(StageTicks(*ticks), batches, message=pipeline.message, tied=pipeline.tied)
    return [int(time) for time in found]


def moved_borders(plan: Plan) -> Iterator[tuple[str, int, Stages]]:
    """Every cut that differs by one piece: what moves, to which stage, and the stages then."""
    pieces = glue(plan.units, plan.setting)
    starts = [piece.start for piece in pieces]
    borders = [own.start for own in plan.stages] + [len(plan.units)]
    for index in range(1, len(borders) - 1):
        here = starts.index(borders[index]) if borders[index] in starts else None
        if here is None:
            continue
        for piece, border, stage in ((here, here + 1, index - 1), (here - 1, here - 1, index)):
            if 0 < border < len(starts) and borders[index - 1] < starts[border] < borders[index + 1]:
                changed = [*borders[:index], starts[border], *borders[index + 1 :]]
                name = " + ".join(plan.units[i].name for i in pieces[piece])
                yield name, stage, tuple(range(a, b) for a, b in pairwise(changed))


def counted(number: int, noun: str) -> str:
    """1 micro-batch, 2 micro-batches."""
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


def _limit(plan: Plan) -> str:
    times = [stage.forward + stage.backward for stage in plan.stage_times]
    slowest = max(range(len(times)), key=lambda stage: times[stage])
    mean = sum(times) / len(times)
    if not mean:
        return ""
    heaviest = max(plan.stages[slowest], key=lambda i: plan.pieces[i].forward + plan.pieces[i].backward)
    share = (plan.pieces[heaviest].forward + plan.pieces[heaviest].backward) / times[slowest]
    measure = (
        "predicted time"
        if plan.setting.in_seconds
        else "work really done (masked scores left out, recomputation counted)"
    )
    text = f"By {measure}, stage {slowest} sets the pace with {times[slowest] / mean:.3f} of the mean stage"
    if share > 0.5:
        text += f", {share:.0%} of it {plan.units[heaviest].name}, which no cut can part"
    even = plan.with_stages(_most_even(plan))
    smallest = max(stage.forward + stage.backward for stage in even.stage_times)
    if smallest < times[slowest]:
        than = f"its slowest stage {smallest / mean:.3f} of the mean"
        return f"{text}; a more even cut exists, {than}, {_price(plan, even)}."
    fitting = " that fits into memory" if plan.setting.memory_limit else ""
    return f"{text}; no cut{fitting} has a smaller slowest stage."


def _most_even(plan: Plan) -> Stages:
    """The cut within memory whose slowest stage is the fastest; found at once, ties may stay open."""
    ranges = glue(plan.units, plan.setting)
    pipeline = replace(plan.setting.pipeline, micro_batches=max(plan.micro_batches, 1))
    borders = best_cut(merge(plan.pieces, ranges), pipeline, "slowest-stage", effort=EVENNESS_EFFORT).borders
    starts = [*(ranges[border].start for border in borders[:-1]), len(plan.units)]
    return tuple(range(a, b) for a, b in pairwise(starts))


def _price(plan: Plan, even: Plan) -> str:
    """What the more even cut's step costs, and why."""
    change = even.timeline.step_time / plan.timeline.step_time - 1
    if change <= 0:
        return f"and its step is {-change:.2%} shorter" if change else "and its step takes just as long"
    with_batches = f"with {counted(max(plan.micro_batches, 1), 'micro-batch')}"
    if even.timeline.pipeline_time > plan.timeline.pipeline_time:
        cause = f"{with_batches} filling and draining the pipeline decide"
    else:
        cause = f"{with_batches} reducing gradients and updating weights decide"
    return f"but its step is {change:.2%} longer: {cause}"


def _bubble(plan: Plan) -> str:
    timeline, stages, batches = plan.timeline, len(plan.stages), max(plan.micro_batches, 1)
    ideal = (stages - 1) / (batches + stages - 1)
    return (
        f"Stages idle {timeline.mean_bubble:.1%} of the pipeline's time; {stages} perfectly even ones would idle "
        f"{ideal:.1%} with {counted(batches, 'micro-batch')}"
        + (": more of them would help most." if ideal > 0.1 else ".")
    )


def _moves(plan: Plan) -> str:
    now = plan.timeline.step_time
    moves = list(moved_borders(plan))
    if not moves or not now:
        return ""
    times = step_times(plan, [stages for *_, stages in moves])
    time, name, stage = min((time, name, stage) for time, (name, stage, _) in zip(times, moves, strict=True))
    change = time / now - 1
    if change < 0:
        return f"Moving {name} to stage {stage} would make the step {-change:.2%} faster."
    if change == 0:
        return f"Moving {name} to stage {stage} would change nothing; of equals the one with less peak memory is taken."
    return f"The nearest other cut, {name} on stage {stage}, makes the step {change:.2%} slower."


def _proof(plan: Plan) -> str:
    if plan.cut is None:
        return "The stages were given by hand."
    if plan.cut.proven:
        return "The search is complete: no cut that fits is better."
    if plan.cut.gap == 0:
        return "No cut has a shorter simulated step; among equally fast ones the search was cut short."
    return f"The search was cut short: a better cut could save at most {plan.cut.gap:.2%} of the step."


def _messages(plan: Plan) -> str:
    setting = plan.setting
    if setting.profile is None or setting.hardware is not None or setting.profile.message_bandwidth:
        return ""
    return (
        "Messages between stages count as free: the profile has none; measure it under torchrun, or give --hardware "
        "too for what they take by a description."
    )


def _fullest(plan: Plan) -> str:
    totals = [use.total for use in plan.memory]
    stage = max(range(len(totals)), key=lambda index: totals[index])
    use = plan.memory[stage]
    at_peak = use.by_kind()
    kind, size = max(at_peak.items(), key=lambda entry: entry[1])
    held = plan.setting.pipeline.held(stage)
    flight = f", with {held} micro-batches in flight" if held > 1 else ""
    if use.activations and not at_peak["activations"]:
        # The peak comes when the activations are gone.
        kind = "buffers that reduce gradients after the last backward" if kind == "buffers" else kind
        flight = f"; its activations, {gibibytes(use.activations + use.working)}, are gone by then"
    limit = plan.setting.memory_limit
    bound = f" of {gibibytes(limit)}" if limit else ""
    total = f"{gibibytes(use.total)}{bound} a rank"
    return f"Stage {stage} is the fullest: {total}, most of it {kind} ({gibibytes(size)}){flight}."
