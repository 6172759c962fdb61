"""A study in numbers: each arm at the rate that suits it, its seeds, and how it differs from the reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from megatron_tlm.checkpoint.manifest import read_manifest
from megatron_tlm.checkpoint.root import step_directories, step_of
from megatron_tlm.config.schema import Config
from megatron_tlm.data.fingerprint import PREFIX, Scalar
from megatron_tlm.errors import TlmError
from megatron_tlm.study.choice import Pair, Snapshot, snapshot
from megatron_tlm.study.design import Budget, Design, RunId
from megatron_tlm.study.runs import RunResult, State
from megatron_tlm.study.statistics import Interval, interval


@dataclass(frozen=True)
class ArmResult:
    """One arm of one group. `runs` are its seeds at `rate`, in the file's order; `difference` is its loss minus the
    reference's, over the seeds that both have finished."""

    pair: Pair
    config: Config
    budget: Budget
    rate: float | None
    at_edge: bool
    runs: tuple[RunResult, ...]
    tuning: Mapping[float, tuple[RunResult, ...]]
    difference: Interval | None

    @property
    def arm(self) -> str:
        return self.pair[1]

    @property
    def losses(self) -> dict[int, float]:
        """Validation loss at the end, by seed."""
        return {result.run.seed: result.loss for result in self.runs if result.loss is not None}

    @property
    def summary(self) -> Interval | None:
        return interval(list(self.losses.values())) if self.losses else None

    @property
    def failures(self) -> tuple[RunResult, ...]:
        every = {result.run: result for results in (self.runs, *self.tuning.values()) for result in results}
        return tuple(result for result in every.values() if result.state is State.FAILED)


@dataclass(frozen=True)
class Samples:
    """Whether arms read the same samples, by what their last checkpoints keep of their data: (group, seed) with more
    than one fingerprint are `differing`; a run whose checkpoint is not there is not among the `checked`."""

    checked: int
    finished: int
    differing: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class StudyResults:
    """All that a report tells; nothing in it depends on when, or in how many pieces, the study was run."""

    design: Design
    now: Snapshot
    arms: tuple[ArmResult, ...]
    samples: Samples

    def of_group(self, group: str) -> tuple[ArmResult, ...]:
        return tuple(arm for arm in self.arms if arm.pair[0] == group)

    @property
    def is_complete(self) -> bool:
        """Every run has been finished or has failed, and none is to come."""
        return all(result.state in (State.FINISHED, State.FAILED) for result in self.now.results.values())


def gather(design: Design) -> StudyResults:
    """Read from the study's folder."""
    now = snapshot(design)
    arms = {pair: _arm(design, now, pair) for pair in design.pairs}
    compared = []
    for (group, name), arm in arms.items():
        reference = arms[group, design.file.reference]
        difference = None if name == design.file.reference else paired(arm.losses, reference.losses)
        compared.append(replace(arm, difference=difference))
    return StudyResults(design, now, tuple(compared), check_samples(design, list(now.results.values())))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """The differences over the seeds that both have; None where there is none."""
    shared = [seed for seed in ours if seed in theirs]
    return interval([ours[seed] - theirs[seed] for seed in shared]) if shared else None


def _arm(design: Design, now: Snapshot, pair: Pair) -> ArmResult:
    file, rate = design.file, now.rates.get(pair)
    own = {run: result for run, result in now.results.items() if (run.group, run.arm) == pair}
    tuning = {
        learning_rate: tuple(own[RunId(*pair, learning_rate, seed)] for seed in file.tuning_seeds)
        for learning_rate in file.learning_rates
    }
    return ArmResult(
        pair=pair,
        config=design.config(design.example(*pair)),
        budget=design.budgets[pair],
        rate=rate,
        at_edge=len(file.learning_rates) > 1 and rate in (file.learning_rates[0], file.learning_rates[-1]),
        runs=() if rate is None else tuple(own[RunId(*pair, rate, seed)] for seed in file.seeds),
        tuning=tuning,
        difference=None,
    )


def check_samples(design: Design, results: Sequence[RunResult]) -> Samples:
    """Compares what runs of one group and seed have kept of their data."""
    found: dict[tuple[str, int], set[str]] = {}
    finished = [result for result in results if result.state is State.FINISHED]
    checked = 0
    for result in finished:
        kept = _data_of(design.run_folder(result.run) / "checkpoints", result.train_steps)
        if kept is not None:
            checked += 1
            found.setdefault((result.run.group, result.run.seed), set()).add(repr(sorted(kept.items())))
    differing = tuple(sorted(key for key, kinds in found.items() if len(kinds) > 1))
    return Samples(checked, len(finished), differing)


def _data_of(root: Path, step: int) -> dict[str, Scalar] | None:
    """What the checkpoint of the last step keeps of its data."""
    for path in step_directories(root):
        if step_of(path) == step:
            try:
                extra = read_manifest(path).facts.extra
            except TlmError:
                return None
            return {name: value for name, value in extra.items() if name.startswith(PREFIX)}
    return None


def tuning_means(arm: ArmResult) -> dict[float, float | None]:
    """Mean validation loss of each rate over the tuning seeds; None where one is missing."""
    means: dict[float, float | None] = {}
    for rate, results in arm.tuning.items():
        losses = [result.loss for result in results if result.loss is not None]
        means[rate] = fmean(losses) if len(losses) == len(results) else None
    return means
