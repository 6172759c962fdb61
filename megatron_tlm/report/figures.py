"""Which figures of a run are drawn, how, and under what name; the same for one run and for several over each other."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from megatron_tlm.report.chart import Mark, Series, line_chart
from megatron_tlm.report.page import Html
from megatron_tlm.report.read import Curve, Logged
from megatron_tlm.report.scale import smoothed

GIB = 2.0**30
LONG = 300  # steps from which on a curve is smoothed
SPANS = 150  # that a running mean cuts a curve into


@dataclass(frozen=True)
class Figure:
    """A chart of `parts`: name in metrics.jsonl -> name in the legend; each value times `factor`."""

    title: str
    parts: dict[str, str]
    unit: str = ""
    factor: float = 1.0
    log_y: bool = False
    from_zero: bool = False


FIGURES = (
    Figure("Learning rate", {"lr": "learning rate"}, from_zero=True),
    Figure("Gradient norm", {"grad_norm": "gradient norm"}, "before clipping", log_y=True),
    Figure("Throughput", {"tokens_per_second": "tokens/s"}, "tokens/s", from_zero=True),
    Figure("Compute", {"tflops_per_device": "FLOP/s"}, "model FLOP/s per device", 1e12, from_zero=True),
    Figure("Utilisation", {"mfu": "MFU"}, "MFU, % of the device's peak", 100, from_zero=True),
    Figure("Time of a step", {"seconds": "step", "data_wait_seconds": "of it waiting for data"}, "s", from_zero=True),
    Figure(
        "Forward of a rank",
        {
            "forward-compute-time-max": "slowest rank",
            "forward-compute-time-median": "median rank",
            "forward-compute-time-min": "fastest rank",
        },
        "s of a step, waiting left out",
        from_zero=True,
    ),
    Figure(
        "Slowest rank",
        {"straggler-ratio": "slowest rank"},
        "forward passes, times the median rank of its stage",
    ),
    Figure("Waiting for data", {"data-wait-time-max": "slowest rank"}, "s of a step", from_zero=True),
    Figure(
        "Memory",
        {
            "mem-reserved-bytes": "reserved",
            "mem-max-allocated-bytes": "allocated, peak",
            "mem-allocated-bytes": "allocated",
            "mem-max-rss-bytes": "resident, peak",
            "mem-rss-bytes": "resident",
        },
        "GiB, fullest rank",
        1 / GIB,
        from_zero=True,
    ),
    Figure("Pipeline bubble", {"pipeline-bubble": "measured"}, "% of the pipeline's time", 100, from_zero=True),
)
# Not drawn as "other": what other curves say better, or what counts up evenly.
IMPLIED = ("ppl", "samples", "tokens", "valid_ppl", "pipeline-steps", "pipeline-micro-batches", "pipeline-seconds")
STAGED = "stage-"


def loss_figures(runs: Sequence[Logged], marks: Sequence[Mark] = ()) -> Iterator[Html]:
    """Training loss, each step faint under its running mean, and every validation set's; a colour a run.

    A run of some length is shown once more without its steep beginning.
    """
    yield _loss_figure("Loss", runs, marks, 0.0)
    last = max((run.last_step for run in runs), default=0)
    if last >= LONG:
        yield _loss_figure(f"Loss from step {last // 5:,} on", runs, marks, last / 5)


def _loss_figure(title: str, runs: Sequence[Logged], marks: Sequence[Mark], first: float) -> Html:
    series: list[Series] = []
    alone = len(runs) == 1
    for index, run in enumerate(runs):
        losses = run.curve("loss")
        if losses:
            series += _noisy("training" if alone else run.name, losses.xs, losses.ys, index, alone=alone)
        for place, (key, curve) in enumerate(sorted(run.named("valid_loss").items())):
            name = f"validation{key.removeprefix('valid_loss').replace('/', ' ')}"
            color = 1 + place if alone else index
            series.append(Series(name if alone else f"{run.name}, {name}", curve.xs, curve.ys, color, dots=True))
    return line_chart(title, [_from(item, first) for item in series], unit="nats per token", marks=marks, wide=True)


def _noisy(name: str, xs: Sequence[float], ys: Sequence[float], color: int, *, alone: bool) -> Iterator[Series]:
    """A curve of many steps is drawn by its running mean, over the steps themselves where it is alone."""
    if len(ys) < LONG:
        yield Series(name, xs, ys, color)
        return
    if alone:
        yield Series(name, xs, ys, color, faint=True)
    yield Series(f"{name}, running mean" if alone else name, xs, smoothed(ys, len(ys) // SPANS), color)


def _from(item: Series, first: float) -> Series:
    start = bisect_left(item.xs, first)
    return replace(item, xs=item.xs[start:], ys=item.ys[start:])


def figures(runs: Sequence[Logged], marks: Sequence[Mark] = ()) -> Iterator[Html]:
    """Every chart of `FIGURES` that some run has a value for."""
    for figure in FIGURES:
        series = list(_series(figure, runs))
        if series:
            yield line_chart(
                figure.title,
                series,
                unit=figure.unit,
                log_y=figure.log_y and _spread(series),
                from_zero=figure.from_zero,
                marks=marks,
            )


TITLES = {"tokens_by_source": "tokens by corpus", "straggler-rank": "which rank is the slowest"}


def grouped_figures(run: Logged) -> Iterator[Html]:
    """Tokens by corpus, and what no other chart shows, names that differ in their end together."""
    drawn = {key for figure in FIGURES for key in figure.parts} | set(IMPLIED) | {"loss", "valid_loss"}
    groups: dict[str, dict[str, Curve]] = {}
    for key, curve in run.curves.items():
        if key in drawn or key.startswith((STAGED, "valid_")):
            continue
        group, _, member = key.partition("/")  # a corpus is named with its folders
        groups.setdefault(TITLES.get(group, group), {})[member] = curve
    for group, members in sorted(groups.items()):
        yield line_chart(group, [Series(name, curve.xs, curve.ys) for name, curve in members.items()])


def _series(figure: Figure, runs: Sequence[Logged]) -> Iterator[Series]:
    for index, run in enumerate(runs):
        parts = {key: name for key, name in figure.parts.items() if run.curve(key)}
        if len(runs) > 1:  # one curve a run: the first part that it has
            parts = dict(list(parts.items())[:1])
        alone = len(runs) == 1
        for place, (key, name) in enumerate(parts.items()):
            curve = run.curve(key)
            ys = [y * figure.factor for y in curve.ys]
            yield from _noisy(name if alone else run.name, curve.xs, ys, place if alone else index, alone=alone)


def _spread(series: Sequence[Series]) -> bool:
    """Whether values lie so far apart that a straight axis would hide the small ones."""
    values = [y for item in series for y in item.ys if y > 0]
    return bool(values) and max(values) > 30 * min(values)
