"""The report's sections, in the order in which a reader asks: what came out, how sure, how tuned, at what cost."""

import math
from collections.abc import Iterator
from statistics import fmean

from megatron_tlm.study.parts import Chart, Intervals, Line, Part, Row, Section, Table, Words
from megatron_tlm.study.results import ArmResult, StudyResults, tuning_means
from megatron_tlm.study.runs import Point, State
from megatron_tlm.study.statistics import CONFIDENCE, Interval

SMOOTHED_SHARE = 0.02  # of a run's steps, averaged for one point of a training curve


def sections(results: StudyResults) -> Iterator[Section]:
    """All of them; a study that is not complete, or of which runs failed, says so first."""
    yield Section("State", tuple(_state(results)))
    for group in results.design.file.groups:
        arms = results.of_group(group.name)
        chapters = {
            "Result": tuple(_outcome(results, arms, group.name)),
            "Curves": tuple(_curves(arms, group.name)),
            "Schedule and range": tuple(_ranges(arms, group.name)),
            "Learning rates": tuple(_tuning(results, arms, group.name)),
            "Budgets": (_budgets(arms),),
        }
        prefix = f"{group.name}: " if group.name else ""
        yield from (Section(prefix + title, parts) for title, parts in chapters.items() if parts)
    yield Section("Runs", (_runs(results),))


def _state(results: StudyResults) -> Iterator[Part]:
    counts = dict.fromkeys(State, 0)
    for result in results.now.results.values():
        counts[result.state] += 1
    told = ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    if results.is_complete:
        yield Words(f"Complete: {told}.")
    else:
        file = results.design.file
        missing = [
            f"{'/'.join(filter(None, arm.pair))} ({len(arm.losses)} of {len(file.seeds)} seeds)"
            for arm in results.arms
            if len(arm.losses) < len(file.seeds)
        ]
        yield Words(f"Not complete: {told}. Missing: {', '.join(missing)}. `megatron-tlm study run` goes on.")
    for arm in results.arms:
        for failure in arm.failures:
            yield Words(f"FAILED: {failure.run.path} at step {failure.step}: {failure.reason}")
    for pair in results.now.untunable:
        yield Words(f"FAILED: {'/'.join(filter(None, pair))} finished at no learning rate, so no seeds of it were run.")
    yield Words(_samples(results))


def _samples(results: StudyResults) -> str:
    samples = results.samples
    if samples.differing:
        where = ", ".join(f"{group} seed {seed}".strip() for group, seed in samples.differing)
        return f"NOT COMPARABLE: arms read different samples: {where}."
    return (
        f"Arms of one seed read the same samples in the same order, by the fingerprints in the checkpoints of "
        f"{samples.checked} of {samples.finished} finished runs."
    )


def _outcome(results: StudyResults, arms: tuple[ArmResult, ...], group: str) -> Iterator[Part]:
    reference = results.design.file.reference
    seeds = results.design.file.seeds
    header: tuple[str, ...] = ("arm", "rate", "seeds", "validation loss", "spread", "perplexity")
    header += (f"minus {reference}", f"{CONFIDENCE:.0%} interval", "verdict")
    yield Table(header, tuple(_outcome_row(arm, reference) for arm in arms), left=(0, 8))
    yield Words(
        "Validation loss in nats per token after the last step, mean over seeds; spread is the standard deviation "
        "over seeds; perplexity is exp of the mean loss. Differences are paired by seed; the interval is Student's t, "
        'for each arm on its own. "Better" and "worse" are said where it excludes 0.'
    )
    yield Table(
        ("arm", *(f"seed {seed}" for seed in seeds)),
        tuple((arm.arm, *(_of_seed(arm, seed) for seed in seeds)) for arm in arms),
    )
    rows = tuple(
        Row(arm.arm, arm.difference.mean, arm.difference.half_width, _differences(arm, arms, reference))
        for arm in arms
        if arm.difference is not None
    )
    if rows:
        yield Intervals(_file(group, "differences"), f"Difference from {reference}", "nats per token", rows)


def _of_seed(arm: ArmResult, seed: int) -> str:
    failed = any(failure.run.seed == seed for failure in arm.failures)
    return _number(arm.losses.get(seed)) or ("failed" if failed else "")


def _outcome_row(arm: ArmResult, reference: str) -> tuple[str, ...]:
    summary, difference = arm.summary, arm.difference
    rate = "" if arm.rate is None else f"{arm.rate:g}"
    if summary is None:
        return (arm.arm, rate, "0", "", "", "", "", "", "failed" if arm.failures else "not run yet")
    told = (arm.arm, rate, str(summary.count), _number(summary.mean), _number(summary.spread))
    return (*told, f"{math.exp(summary.mean):.2f}", *_difference_cells(difference), _verdict(arm, reference))


def _difference_cells(difference: Interval | None) -> tuple[str, str]:
    if difference is None:
        return "", ""
    if difference.half_width is None:
        return f"{difference.mean:+.4f}", "one seed"
    low, high = difference.mean - difference.half_width, difference.mean + difference.half_width
    return f"{difference.mean:+.4f}", f"{low:+.4f} to {high:+.4f}"


def _verdict(arm: ArmResult, reference: str) -> str:
    difference, failed = arm.difference, "; has failed runs" if arm.failures else ""
    if arm.arm == reference:
        return f"reference{failed}"
    if difference is None or difference.half_width is None:
        return f"too few seeds{failed}"
    if not difference.excludes_zero:
        return f"no difference shown{failed}"
    return ("better" if difference.mean < 0 else "worse") + failed


def _differences(arm: ArmResult, arms: tuple[ArmResult, ...], reference: str) -> tuple[float, ...]:
    base = next(other for other in arms if other.arm == reference).losses
    return tuple(loss - base[seed] for seed, loss in arm.losses.items() if seed in base)


def _curves(arms: tuple[ArmResult, ...], group: str) -> Iterator[Part]:
    train, valid = [], []
    for color, arm in enumerate(arms):
        done = [result for result in arm.runs if result.state is State.FINISHED]
        if done:
            window = max(1, round(done[0].train_steps * SMOOTHED_SHARE))
            train.append(_mean_line(arm.arm, [result.train for result in done], window, color))
            valid.append(_mean_line(arm.arm, [result.valid for result in done], 1, color))
    title = "Validation loss, mean over finished seeds"
    yield Chart(_file(group, "validation"), title, "nats per token", "tokens", tuple(valid))
    title = "Training loss, mean over finished seeds"
    yield Chart(_file(group, "training"), title, "nats per token", "tokens", tuple(train))


def _mean_line(name: str, curves: list[tuple[Point, ...]], window: int, color: int) -> Line:
    """Point by point over the seeds, then over `window` steps that end at each point drawn."""
    columns = [
        (points[0].tokens, fmean(point.loss for point in points if point.loss is not None))
        for points in zip(*curves, strict=False)
        if any(point.loss is not None for point in points)
    ]
    blocks = [columns[start : start + window] for start in range(0, len(columns), window)]
    xs = [float(block[-1][0]) for block in blocks]
    return Line(name, xs, [fmean(loss for _, loss in block) for block in blocks], dots=window == 1, color=color)


def _ranges(arms: tuple[ArmResult, ...], group: str) -> Iterator[Part]:
    """Loss over the range of the taper, one curve a schedule, where a schedule has two ranges or more."""
    found: dict[str, list[tuple[float, ArmResult]]] = {}
    flat = None
    for arm in arms:
        taper = arm.config.taper
        if taper.taper_schedule == "uniform":
            flat = arm
        elif taper.taper_schedule in ("cosine", "linear", "sigmoid") and not taper.layer_widths:
            found.setdefault(taper.taper_schedule, []).append((taper.taper_start, arm))
    if all(len(of_schedule) < 2 for of_schedule in found.values()):
        return
    lines = []
    for schedule, entries in found.items():
        points = [(start, arm.summary.mean) for start, arm in sorted(entries, key=lambda e: e[0]) if arm.summary]
        lines.append(Line(schedule, [x for x, _ in points], [y for _, y in points], dots=True))
    starts = [start for entries in found.values() for start, _ in entries]
    if flat is not None and flat.summary is not None:
        mean = flat.summary.mean
        lines.append(Line("uniform", [min(starts), max(starts)], [mean, mean]))
    yield Chart(
        _file(group, "ranges"), "Loss over the taper's start", "nats per token", "start over the mean", tuple(lines)
    )
    rows = tuple(
        (schedule, f"{start:g} -> {arm.config.taper.taper_end:g}", _mean(arm), *_difference_cells(arm.difference))
        for schedule, entries in found.items()
        for start, arm in sorted(entries, key=lambda e: e[0])
    )
    yield Table(("schedule", "range", "validation loss", "difference", "interval"), rows, left=(0, 1))


def _tuning(results: StudyResults, arms: tuple[ArmResult, ...], group: str) -> Iterator[Part]:
    file = results.design.file
    rates = file.learning_rates
    seeds = ", ".join(map(str, file.tuning_seeds))
    if len(rates) == 1:
        yield Words(f"Every arm ran at the one rate {rates[0]:g}; nothing was tuned.")
    else:
        yield Words(
            f"Every arm tried the same {len(rates)} rates on seed {seeds}; its best by validation loss (*) ran all "
            "seeds. The tuning run is one of them, where its seed is. Rates are chosen on the text that results are "
            "told of."
        )
    rows = []
    for arm in arms:
        means = tuning_means(arm)
        cells = (_number(means[rate]) + ("*" if rate == arm.rate else "") for rate in rates)
        rows.append((arm.arm, *(cell or _missing(arm, rate) for cell, rate in zip(cells, rates, strict=True))))
    yield Table(("arm", *(f"{rate:g}" for rate in rates)), tuple(rows))
    edge = [arm.arm for arm in arms if arm.at_edge]
    if edge:
        yield Words(f"At the edge of the grid, where a better rate may lie beyond it: {', '.join(edge)}.")
    lines = []
    for arm in arms:
        points = [(rate, mean) for rate, mean in tuning_means(arm).items() if mean is not None]
        lines.append(Line(arm.arm, [x for x, _ in points], [y for _, y in points], dots=True))
    if len(rates) > 1:
        yield Chart(
            _file(group, "rates"),
            "Loss over the learning rate",
            "nats per token",
            "peak rate",
            tuple(lines),
            log_x=True,
        )


def _missing(arm: ArmResult, rate: float) -> str:
    return "failed" if any(result.state is State.FAILED for result in arm.tuning[rate]) else ""


def _budgets(arms: tuple[ArmResult, ...]) -> Table:
    header = ("arm", "parameters", "in layers", "FLOPs per token", "tokens a run", "MLP widths")
    return Table(
        header,
        tuple(
            (
                arm.arm,
                f"{arm.budget.parameters:,}",
                f"{arm.budget.non_embedding:,}",
                f"{arm.budget.flops_per_token:,}",
                f"{arm.budget.tokens:,}",
                " ".join(map(str, arm.budget.widths)),
            )
            for arm in arms
        ),
        left=(0, 5),
    )


def _runs(results: StudyResults) -> Table:
    rows = tuple(
        (run.path, result.state.value, f"{result.step}/{result.train_steps}", _number(result.loss))
        for run, result in results.now.results.items()
    )
    return Table(("run", "state", "step", "validation loss"), rows, left=(0, 1))


def _mean(arm: ArmResult) -> str:
    return _number(arm.summary.mean if arm.summary else None)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _file(group: str, name: str) -> str:
    return f"{group}-{name}" if group else name
