"""When a loop evaluates, saves, leaves: with an engine that only counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_tlm.config.resilience import ResilienceConfig
from megatron_tlm.config.schema import CheckpointConfig, Config
from megatron_tlm.train.engines.engine import MicroBatches, StepResult
from megatron_tlm.train.engines.gate import Judge, accept
from megatron_tlm.train.loop import train_loop
from megatron_tlm.train.saving.resume import Progress
from megatron_tlm.train.survival.stop import LOST_LAUNCHER, LostLauncherError, StopRequest
from tests.unit.train.loop_parts import CONFIG, CountingEngine, FirstId, Notes, SlowSaver, run_of

UNSAVED = replace(CONFIG, checkpoint=CheckpointConfig())


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


def test_an_exit_interval_saves_and_says_how_to_go_on() -> None:
    engine, notes, saved, end = go(replace(CONFIG, training=replace(CONFIG.training, exit_interval=5)))
    assert (saved, end.step, len(engine.trained)) == ([5], 5, 5)
    assert (
        notes.said[-1] == "stopped by exit interval 5 after step 5 of 6, saved; --load ck continues with 1 steps to go"
    )


def test_a_run_that_saves_nothing_says_so() -> None:
    config = replace(CONFIG, checkpoint=CheckpointConfig(), training=replace(CONFIG.training, exit_interval=5))
    _, notes, saved, _ = go(config)
    assert saved == []
    assert notes.said[-1].startswith("stopped by exit interval 5 after step 5 of 6, not saved: no --save DIR was given")


def test_sets_with_a_name_are_evaluated_beside_the_other_one_and_by_themselves() -> None:
    engine, notes = CountingEngine(), Notes()
    further = {"b": FirstId(6, 8, 32, 0), "a": FirstId(4, 8, 32, 0)}
    train_loop(replace(run_of(UNSAVED, engine, notes, None), named=further), Progress())
    assert notes.named == ["", "b", "a"] * 2
    assert engine.evaluated == [[0, 1]] * 6
    assert [step for step, _ in notes.evaluations] == [4, 4, 4, 6, 6, 6]


def test_full_validation_takes_every_full_batch_of_each_set() -> None:
    engine, config = CountingEngine(), replace(UNSAVED, training=replace(CONFIG.training, full_validation=True))
    run = replace(run_of(config, engine, Notes(), None), named={"b": FirstId(7, 8, 32, 0)})
    train_loop(run, Progress())
    assert engine.evaluated == [[0, 1], [0, 1, 2, 3, 4, 5]] * 2


def test_evaluation_can_be_switched_off() -> None:
    _, notes, _, _ = go(replace(CONFIG, training=replace(CONFIG.training, eval_iters=0)))
    assert notes.evaluations == []


def test_a_stop_file_ends_a_run_after_its_step_and_before_its_first(tmp_path: Path) -> None:
    config = replace(CONFIG, resilience=ResilienceConfig(stop_file=str(tmp_path / "stop")))

    class Impatient(CountingEngine):
        def train_step(self, micro_batches: MicroBatches, learning_rate: float, judge: Judge = accept) -> StepResult:
            if len(self.trained) == 2:
                (tmp_path / "stop").touch()
            return super().train_step(micro_batches, learning_rate, judge)

    notes, saver = Notes(), SlowSaver()
    end = train_loop(run_of(config, Impatient(), notes, saver), Progress())
    assert (end.step, saver.started) == (3, [(3, True)])
    cause = f"stop file {tmp_path / 'stop'}"
    assert notes.said[-1] == f"stopped by {cause} after step 3 of 6, saved; --load ck continues with 3 steps to go"
    assert notes.events[-1] == ("stop", 3, {"cause": cause})
    saver = SlowSaver()
    end = train_loop(run_of(config, CountingEngine(), notes, saver), end)
    assert (end.step, saver.started) == (3, [])
    assert notes.said[-1] == f"stopped by {cause} after step 3 of 6, before a step was taken, with 3 steps to go"


def test_ranks_of_a_torchrun_that_is_gone_save_and_end_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, notes, saver = CountingEngine(), Notes(), SlowSaver()
    monkeypatch.setattr(StopRequest, "agreed", lambda self: LOST_LAUNCHER if len(engine.trained) == 3 else None)
    sentence = r"^torchrun of a node = gone after step 3 of 6, saved; start it again$"
    with pytest.raises(LostLauncherError, match=sentence):
        train_loop(run_of(CONFIG, engine, notes, saver), Progress())
    assert saver.started == [(3, True)]
    assert not notes.events, "no `stop`, which would be told as a wish"
