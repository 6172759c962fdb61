"""A study expanded into runs, each an ordinary configuration; what all arms must share is checked before the first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from megatron_tlm.config.check import check_training, global_batch_size
from megatron_tlm.config.load import build, merge
from megatron_tlm.config.schema import Config
from megatron_tlm.config.study import Group, StudyFile
from megatron_tlm.config.values import Layer, Setting
from megatron_tlm.data.tokenizers import load_tokenizer
from megatron_tlm.errors import ConfigError
from megatron_tlm.plan.build import Plan, build_plan

RUNS = "runs"
SAVES_PER_RUN = 5  # where the file says nothing of it


@dataclass(frozen=True, order=True)
class RunId:
    """One training run; `group` is empty where the study has no groups."""

    group: str
    arm: str
    learning_rate: float
    seed: int

    @property
    def path(self) -> str:
        """Its folder, below that of all runs."""
        parts = (self.group, self.arm, f"lr-{self.learning_rate:g}", f"seed-{self.seed}")
        return "/".join(part for part in parts if part)


@dataclass(frozen=True)
class Budget:
    """What an arm may spend: parameters, FLOPs of one token forward and backward, tokens of one run.

    `seconds` are those that the planner predicts for a run on a described device, evaluations left out; None without.
    """

    parameters: int
    flops_per_token: int
    tokens: int
    widths: tuple[int, ...]
    non_embedding: int
    seconds: float | None


@dataclass(frozen=True)
class Design:
    """A study in a folder: its runs, their configurations and their budgets."""

    file: StudyFile
    folder: Path

    def run_folder(self, run: RunId) -> Path:
        return self.folder / RUNS / run.path

    def group(self, name: str) -> Group:
        return next(group for group in self.file.groups if group.name == name)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every arm of every group."""
        return tuple((group.name, arm) for group in self.file.groups for arm in self.file.arms)

    def tuning_runs(self) -> Iterator[RunId]:
        """Every arm tries every rate; a cut anywhere leaves arms that tried equally much, give or take one."""
        for seed in self.file.tuning_seeds:
            for rate in self.file.learning_rates:
                yield from (RunId(group, arm, rate, seed) for group, arm in self.pairs)

    def seed_runs(self, rates: Mapping[tuple[str, str], float]) -> Iterator[RunId]:
        """Every seed of the arms whose rate is known, seed by seed over all arms."""
        for seed in self.file.seeds:
            yield from (RunId(*pair, rates[pair], seed) for pair in self.pairs if pair in rates)

    def config(self, run: RunId) -> Config:
        """What `megatron-tlm train --config` gets: the file's settings, the arm's, and the run's own."""
        file, group = self.file, self.group(run.group)
        settings = merge([file.preset, group.preset, file.layer, group.layer, file.arms[run.arm]])
        return build([settings, self._own(run, settings)])

    def _own(self, run: RunId, settings: Layer) -> Layer:
        folder = self.run_folder(run)
        values: dict[tuple[str, str], Any] = {
            ("optimizer", "lr"): run.learning_rate,
            ("optimizer", "min_lr"): float(f"{run.learning_rate * min_lr_ratio(settings):.12g}"),
            ("training", "seed"): run.seed,
            ("checkpoint", "save"): str(folder / "checkpoints"),
            ("checkpoint", "load"): str(folder / "checkpoints"),
            ("checkpoint", "allow_fresh_start"): True,
            ("logging", "log_dir"): str(folder / "log"),
        }
        if ("checkpoint", "keep_last") not in settings:
            values["checkpoint", "keep_last"] = 1
        steps = settings.get(("training", "train_iters"))
        if ("checkpoint", "save_interval") not in settings and steps is not None:
            values["checkpoint", "save_interval"] = max(1, int(steps.value) // SAVES_PER_RUN)
        return {key: Setting(value, f"study {self.file.name}: {'.'.join(key)}") for key, value in values.items()}

    @cached_property
    def train_steps(self) -> dict[tuple[str, str], int]:
        """Optimizer steps of a run of every arm; neither rate nor seed changes them."""
        return {pair: steps_of(self.config(self.example(*pair)), self.file.ranks) for pair in self.pairs}

    def example(self, group: str, arm: str) -> RunId:
        """Any run of an arm, for what all of them share."""
        return RunId(group, arm, self.file.learning_rates[0], self.file.seeds[0])

    @cached_property
    def budgets(self) -> dict[tuple[str, str], Budget]:
        """Of every arm; ConfigError or PlanError for one that cannot be built, or spends more or less than its
        group's reference."""
        found = {pair: self._budget(*pair) for pair in self.pairs}
        for (group, arm), budget in found.items():
            reference = found[group, self.file.reference]
            for name in ("parameters", "flops_per_token", "tokens"):
                ours, theirs = getattr(budget, name), getattr(reference, name)
                if ours != theirs:
                    where = f"{group}: " if group else ""
                    raise ConfigError(
                        f"study.arms.{arm} = {where}{ours} {name.replace('_', ' ')} and {self.file.reference} has "
                        f"{theirs}; arms are compared at one budget, so give it sizes that come to the same"
                    )
        return found

    def _budget(self, group: str, arm: str) -> Budget:
        config = self.config(self.example(group, arm))
        if config.training.eval_iters == 0:
            raise ConfigError(
                "training.eval_iters = 0 and arms are compared by validation loss; give the global batches of one "
                "evaluation"
            )
        plan = plan_of(config, self.file.ranks)
        steps = steps_of(config, self.file.ranks)
        degree = check_training(config, self.file.ranks)
        inner = [cost.parameters for unit, cost in zip(plan.units, plan.costs, strict=True) if "layers." in unit.name]
        return Budget(
            parameters=plan.parameters,
            flops_per_token=plan.flops_per_token,
            tokens=steps * global_batch_size(config, degree) * config.model.seq_length,
            seconds=None if plan.step_seconds is None else plan.step_seconds * steps,
            widths=plan.shape.widths,
            non_embedding=sum(inner),
        )


def min_lr_ratio(settings: Layer) -> float:
    """The last rate over the peak, as the file has them: it is kept when the peak is varied."""
    peak, last = settings.get(("optimizer", "lr")), settings.get(("optimizer", "min_lr"))
    if last is None or not last.value:
        return 0.0
    if peak is None or not peak.value:
        raise ConfigError(
            f"{last.address} = {last.value:g} has no optimizer.lr beside it; give both, the study keeps their ratio"
        )
    return float(last.value) / float(peak.value)


def steps_of(config: Config, ranks: int) -> int:
    """Optimizer steps of a whole run."""
    training = config.training
    batch = global_batch_size(config, check_training(config, ranks))
    return training.train_iters or (training.train_samples or 0) // batch


def plan_of(config: Config, ranks: int) -> Plan:
    """The plan that the run itself will make."""
    degree = check_training(config, ranks)
    vocab_size = config.model.vocab_size
    if vocab_size is None:
        vocab_size = load_tokenizer(config.data.tokenizer_type, config.data.tokenizer_model).vocab_size
    return build_plan(config, vocab_size, data=degree)
