"""Which rate an arm gets, and which run is next: a function of what has been finished, the same after any cut."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from megatron_tlm.study.design import Design, RunId
from megatron_tlm.study.runs import RunResult, State, read_run

Pair = tuple[str, str]  # (group, arm)


@dataclass(frozen=True)
class Snapshot:
    """All runs of a study as they stand; `rates` are those chosen so far, by (group, arm)."""

    results: Mapping[RunId, RunResult]
    rates: Mapping[Pair, float]
    untunable: tuple[Pair, ...]
    to_come: int  # runs that wait for a rate to be chosen

    @property
    def pending(self) -> Iterator[RunId]:
        """Runs to start, in this order: every arm's tuning, then seed by seed over all arms."""
        waiting = (State.WAITING, State.INTERRUPTED)
        return (run for run, result in self.results.items() if result.state in waiting)


def snapshot(design: Design) -> Snapshot:
    """Read from the folder, in the order in which runs are started."""
    results = {run: read_run(design, run) for run in design.tuning_runs()}
    rates: dict[Pair, float] = {}
    untunable = []
    for pair in design.pairs:
        own = [result for run, result in results.items() if (run.group, run.arm) == pair]
        if any(result.state not in (State.FINISHED, State.FAILED) for result in own):
            continue
        best = best_rate(own)
        if best is None:
            untunable.append(pair)
        else:
            rates[pair] = best
    for run in design.seed_runs(rates):
        if run not in results:
            results[run] = read_run(design, run)
    seeds = set(design.file.seeds) - set(design.file.tuning_seeds)
    unknown = len(design.pairs) - len(rates) - len(untunable)
    return Snapshot(results, rates, tuple(untunable), unknown * len(seeds))


def best_rate(results: Sequence[RunResult]) -> float | None:
    """The rate with the smallest mean validation loss over the tuning seeds; one with a failed run does not count."""
    means = {}
    for rate in sorted({result.run.learning_rate for result in results}):
        losses = [result.loss for result in results if result.run.learning_rate == rate]
        found = [loss for loss in losses if loss is not None]
        if len(found) == len(losses):
            means[rate] = fmean(found)
    return min(means, key=lambda rate: means[rate]) if means else None
