"""What a loop is tested with: an engine that only counts, a log and a saver that keep what they are told."""

import math
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from megatron_tlm.comm.groups import single_mesh
from megatron_tlm.config.schema import CheckpointConfig, Config, ModelConfig, OptimizerConfig, TrainingConfig
from megatron_tlm.data.mock_dataset import MockDataset
from megatron_tlm.plan.build import build_plan
from megatron_tlm.train.engines.engine import MicroBatches, StepResult
from megatron_tlm.train.engines.gate import Judge, accept
from megatron_tlm.train.engines.schedule import build_schedule
from megatron_tlm.train.logs.events import EventKind
from megatron_tlm.train.logs.log import StepReport
from megatron_tlm.train.run import GoBack, Run
from megatron_tlm.train.saving.resume import Progress
from megatron_tlm.train.survival.bad_steps import StepJudge

CONFIG = Config(
    ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=2, seq_length=8, vocab_size=32),
    training=TrainingConfig(global_batch_size=2, train_iters=6, eval_interval=4, eval_iters=1),
    optimizer=OptimizerConfig(lr=1.0, lr_decay_style="linear"),
    checkpoint=CheckpointConfig(save="ck"),
)


@dataclass
class CountingEngine:
    """Notes the first id of every sample it is given; `losses` are those of single steps, by their first sample."""

    stage: Any = None
    parameters: dict[str, Any] = field(default_factory=dict)
    deepspeed: Any = None
    trained: list[list[int]] = field(default_factory=list)
    evaluated: list[list[int]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)

    def train_step(self, micro_batches: MicroBatches, learning_rate: float, judge: Judge = accept) -> StepResult:
        samples = [int(batch[0, 0]) for batch in islice(micro_batches, 2)]
        loss = self.losses.get(samples[0], 1.0)
        if not math.isfinite(loss) or not judge(loss, 0.5):
            return StepResult(loss, 0.5, applied=False)
        self.trained.append(samples)
        self.rates.append(learning_rate)
        return StepResult(loss, 0.5)

    def evaluate(self, micro_batches: MicroBatches, count: int) -> float:
        self.evaluated.append([int(batch[0, 0]) for batch in islice(micro_batches, count)])
        return 2.0


@dataclass
class Notes:
    """A log that keeps what it is told."""

    said: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    events: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, report: StepReport) -> None:
        self.steps.append(report.step)

    def evaluation(self, step: int, samples: int, loss: float, name: str = "") -> None:
        self.evaluations.append((step, loss))
        self.named.append(name)

    def event(self, kind: EventKind, step: int, **facts: Any) -> None:
        self.events.append((kind, step, facts))

    def go_back(self, step: int, samples: int) -> None:
        self.steps = [taken for taken in self.steps if taken <= step]

    def close(self) -> None:
        return


@dataclass
class SlowSaver:
    """Notes what it is asked for; a save is done at the second poll after its start."""

    saved_step: int = 0
    started: list[tuple[int, bool]] = field(default_factory=list)
    polls: int = 0
    finished: int = 0
    pending: int | None = None

    def start(self, progress: Progress, *, last: bool) -> None:
        self.finish()
        self.started.append((progress.step, last))
        self.pending, self.polls = progress.step, 0
        if last:
            self.finish()

    def poll(self) -> None:
        self.polls += 1
        if self.polls == 2:
            self.finish()

    def finish(self) -> None:
        if self.pending is not None:
            self.saved_step, self.pending = self.pending, None
            self.finished += 1


class FirstId(MockDataset):
    """Sample n is n, n, n, ..."""

    def __getitem__(self, sample: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.full(self.seq_length + 1, sample, dtype=np.int64)


def run_of(
    config: Config, engine: CountingEngine, notes: Notes, saver: SlowSaver | None, go_back: GoBack | None = None
) -> Run:
    steps = config.training.train_iters or 0
    return Run(
        config=config,
        plan=build_plan(config, 32),
        mesh=single_mesh(),
        engine=engine,
        schedule=build_schedule(config.optimizer, steps),
        train_steps=steps,
        train=FirstId(100, 8, 32, 0),
        valid=FirstId(2, 8, 32, 0),
        log=notes,
        saver=saver,
        judge=StepJudge(config.resilience),
        go_back=go_back,
    )
