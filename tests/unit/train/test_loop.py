"""When a loop evaluates, saves, leaves: with an engine that only counts."""

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from megatron_tlm.comm.groups import single_mesh
from megatron_tlm.config.schema import CheckpointConfig, Config, ModelConfig, OptimizerConfig, TrainingConfig
from megatron_tlm.data.mock_dataset import MockDataset
from megatron_tlm.plan.build import build_plan
from megatron_tlm.train.agree import AgreedError
from megatron_tlm.train.engine import MicroBatches, StepResult
from megatron_tlm.train.log import StepReport
from megatron_tlm.train.loop import Run, check_finite, train_loop
from megatron_tlm.train.saving import Progress
from megatron_tlm.train.schedule import build_schedule

CONFIG = Config(
    ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=2, seq_length=8, vocab_size=32),
    training=TrainingConfig(global_batch_size=2, train_iters=6, eval_interval=4, eval_iters=1),
    optimizer=OptimizerConfig(lr=1.0, lr_decay_style="linear"),
    checkpoint=CheckpointConfig(save="ck"),
)


@dataclass
class CountingEngine:
    """Notes the first id of every sample it is given."""

    parameters: dict[str, Any] = field(default_factory=dict)
    deepspeed: Any = None
    trained: list[list[int]] = field(default_factory=list)
    evaluated: list[list[int]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    loss: float = 1.0

    def train_step(self, micro_batches: MicroBatches, learning_rate: float) -> StepResult:
        self.trained.append([int(batch[0, 0]) for batch in islice(micro_batches, 2)])
        self.rates.append(learning_rate)
        return StepResult(self.loss, 0.5)

    def evaluate(self, micro_batches: MicroBatches, count: int) -> float:
        self.evaluated.append([int(batch[0, 0]) for batch in islice(micro_batches, count)])
        return 2.0


@dataclass
class Notes:
    """A log that keeps what it is told."""

    said: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, report: StepReport) -> None:
        self.steps.append(report.step)

    def evaluation(self, step: int, samples: int, loss: float) -> None:
        self.evaluations.append((step, loss))

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


def run_of(config: Config, engine: CountingEngine, notes: Notes, saver: SlowSaver | None) -> Run:
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
    )


def go(config: Config, start: Progress = Progress()) -> tuple[CountingEngine, Notes, list[int], Progress]:  # noqa: B008
    engine, notes, saver = CountingEngine(), Notes(), SlowSaver(start.step)
    end = train_loop(run_of(config, engine, notes, saver if config.checkpoint.save else None), start)
    assert saver.pending is None
    return engine, notes, [step for step, _ in saver.started], end


def test_a_run_takes_every_sample_once_and_follows_the_schedule() -> None:
    engine, notes, saved, end = go(CONFIG)
    assert engine.trained == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert engine.rates == pytest.approx([1 - step / 6 for step in range(6)])
    assert notes.steps == [1, 2, 3, 4, 5, 6]
    assert notes.evaluations == [(4, 2.0), (6, 2.0)]
    assert engine.evaluated == [[0, 1], [0, 1]]
    assert saved == [6]
    assert end == Progress(6, 12, 96, 6)
    assert notes.said[-1] == "finished 6 steps, 96 tokens"


def test_a_resumed_run_starts_behind_the_consumed_samples() -> None:
    engine, notes, _, end = go(CONFIG, Progress(4, 8, 64, 1))
    assert engine.trained == [[8, 9], [10, 11]]
    assert engine.rates == pytest.approx([2 / 6, 1 / 6])
    assert notes.steps == [5, 6]
    assert end.optimizer_steps == 3


def test_saves_fall_on_their_interval_and_on_the_end() -> None:
    config = replace(CONFIG, checkpoint=CheckpointConfig(save="ck", save_interval=4))
    saver = SlowSaver()
    train_loop(run_of(config, CountingEngine(), Notes(), saver), Progress())
    assert saver.started == [(4, False), (6, True)]


def test_a_loss_that_is_no_number_waits_for_the_save_to_go_back_to() -> None:
    config = replace(CONFIG, checkpoint=CheckpointConfig(save="ck", save_interval=3))

    class Diverging(CountingEngine):
        def train_step(self, micro_batches: MicroBatches, learning_rate: float) -> StepResult:
            self.loss = float("nan") if len(self.trained) == 3 else 1.0
            return super().train_step(micro_batches, learning_rate)

    saver = SlowSaver()
    with pytest.raises(AgreedError, match=r"step 4: loss = nan .* continue from the checkpoint of step 3"):
        train_loop(run_of(config, Diverging(), Notes(), saver), Progress())
    assert (saver.finished, saver.saved_step) == (1, 3)


def test_an_exit_interval_saves_and_says_how_to_go_on() -> None:
    engine, notes, saved, end = go(replace(CONFIG, training=replace(CONFIG.training, exit_interval=5)))
    assert (saved, end.step, len(engine.trained)) == ([5], 5, 5)
    assert notes.said[-1] == "exit interval 5 after step 5 of 6, saved; --load ck continues with 1 steps to go"


def test_a_run_that_saves_nothing_says_so() -> None:
    config = replace(CONFIG, checkpoint=CheckpointConfig(), training=replace(CONFIG.training, exit_interval=5))
    _, notes, saved, _ = go(config)
    assert saved == []
    assert notes.said[-1].startswith("exit interval 5 after step 5 of 6, not saved: no --save DIR was given")


def test_evaluation_can_be_switched_off() -> None:
    _, notes, _, _ = go(replace(CONFIG, training=replace(CONFIG.training, eval_iters=0)))
    assert notes.evaluations == []


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (float("inf"), 1.0), (1.0, float("inf"))])
def test_numbers_that_are_none_name_their_step(loss: float, norm: float) -> None:
    with pytest.raises(AgreedError, match=r"step 7: loss = .* is not finite; lower --lr .* checkpoint of step 5"):
        check_finite(StepResult(loss, norm), 7, 5)
    with pytest.raises(AgreedError, match=r"raise --lr-warmup-iters$"):
        check_finite(StepResult(loss, norm), 7, 0)
