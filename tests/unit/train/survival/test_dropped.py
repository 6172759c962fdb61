"""What a loop makes of a bad step: stops, goes on behind it, or goes back and leaves its samples out."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from megatron_tlm.checkpoint.facts import Scalar
from megatron_tlm.config.resilience import ResilienceConfig
from megatron_tlm.config.schema import CheckpointConfig, Config
from megatron_tlm.train.loop import train_loop
from megatron_tlm.train.saving.resume import Progress
from megatron_tlm.train.survival import dropped
from megatron_tlm.train.survival.agree import AgreedError
from megatron_tlm.train.survival.locate import Location
from tests.unit.train.loop_parts import CONFIG, CountingEngine, Notes, SlowSaver, run_of

NAN = float("nan")


@pytest.fixture(autouse=True)
def located(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The engine that counts has no model to look into; what the repeated step is given is kept."""
    repeated: list[list[int]] = []

    def locate(engine: CountingEngine, mesh: Any, repeat: Any) -> Location:
        former = engine.losses
        engine.losses = {}
        repeat()
        repeated.append(list(engine.trained))
        engine.losses = former
        return Location("layers.1.mlp", "embedding.weight")

    monkeypatch.setattr(dropped, "locate", locate)
    return repeated


def asking(**resilience: Any) -> Config:
    checkpoint = CheckpointConfig(save="ck", save_interval=2)
    return replace(CONFIG, checkpoint=checkpoint, resilience=ResilienceConfig(**resilience))


def test_a_skipped_step_counts_and_its_samples_too_but_nothing_is_trained() -> None:
    engine, notes = CountingEngine(losses={4: NAN}), Notes()
    end = train_loop(run_of(asking(on_nonfinite="skip"), engine, notes, SlowSaver()), Progress())
    assert engine.trained == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]
    assert engine.rates == pytest.approx([1 - step / 6 for step in (0, 1, 3, 4, 5)])
    assert end == Progress(6, 12, 80, 5)
    assert notes.steps == [1, 2, 4, 5, 6]
    kind, step, facts = notes.events[0]
    assert (kind, step, facts["action"], facts["samples"]) == ("bad_step", 3, "skip", [4, 5])
    assert (facts["unit"], facts["parameter"]) == ("layers.1.mlp", "embedding.weight")
    assert notes.said[0] == (
        "step 3: loss = nan with gradient norm 0.5 is not finite, samples 4 to 5, first in the output of "
        "layers.1.mlp, first gradient that is not finite: embedding.weight"
    )
    assert notes.said[1] == "step 3: left out, 1 of at most 10"


def test_a_bad_step_is_repeated_without_its_update_to_find_the_place(located: list[list[int]]) -> None:
    engine = CountingEngine(losses={4: NAN})
    train_loop(run_of(asking(on_nonfinite="skip"), engine, Notes(), SlowSaver()), Progress())
    assert located == [[[0, 1], [2, 3]]]


def test_a_spike_is_skipped_without_a_second_look(located: list[list[int]]) -> None:
    engine, notes = CountingEngine(losses={8: 7.0}), Notes()
    config = asking(on_spike="skip", spike_window=4, spike_sigmas=3.0)
    end = train_loop(run_of(config, engine, notes, SlowSaver()), Progress())
    assert [8, 9] not in engine.trained
    assert end.optimizer_steps == 5
    assert located == []
    assert "step 5: loss = 7 is above 1.003, 3 standard deviations over the mean of the last 4 steps" in notes.said[0]


def test_a_spike_that_is_only_told_is_trained_on() -> None:
    engine, notes = CountingEngine(losses={8: 7.0}), Notes()
    train_loop(run_of(asking(on_spike="tell", spike_window=4), engine, notes, SlowSaver()), Progress())
    assert [8, 9] in engine.trained
    assert [(kind, step, facts["action"]) for kind, step, facts in notes.events[:1]] == [("bad_step", 5, "tell")]


def test_a_run_that_shall_stop_waits_for_the_save_to_go_back_to() -> None:
    saver = SlowSaver()
    with pytest.raises(AgreedError, match=r"step 3: loss = nan .* not finite; lower --lr .* checkpoint of step 2"):
        train_loop(run_of(asking(), CountingEngine(losses={4: NAN}), Notes(), saver), Progress())
    assert (saver.finished, saver.saved_step) == (1, 2)
    with pytest.raises(AgreedError, match=r"step 1: loss = inf .* raise --lr-warmup-iters$"):
        train_loop(run_of(asking(), CountingEngine(losses={0: float("inf")}), Notes(), SlowSaver()), Progress())


def test_too_many_bad_steps_stop_a_run() -> None:
    engine = CountingEngine(losses=dict.fromkeys((2, 4, 6), NAN))
    config = asking(on_nonfinite="skip", bad_step_limit=2)
    with pytest.raises(AgreedError, match=r"step 4: loss = nan .*, bad steps = 3 exceed --bad-step-limit 2; lower"):
        train_loop(run_of(config, engine, Notes(), SlowSaver()), Progress())


def test_a_rollback_takes_the_checkpoint_and_the_data_behind_the_bad_step() -> None:
    """Bad is step 6; of step 4 is the last checkpoint, so step 5 is taken again, on samples 12 and 13."""
    engine, notes, asked = CountingEngine(losses={10: NAN}), Notes(), []

    def go_back(step: int) -> tuple[Progress, Mapping[str, Scalar]]:
        asked.append(step)
        return Progress(step, 2 * step, 16 * step, step), {}

    saver = SlowSaver()
    end = train_loop(run_of(asking(on_nonfinite="rollback"), engine, notes, saver, go_back), Progress())
    assert asked == [4]
    assert engine.trained == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [12, 13], [14, 15]]
    assert engine.rates == pytest.approx([1 - step / 6 for step in (0, 1, 2, 3, 4, 4, 5)])
    assert notes.steps == [1, 2, 3, 4, 5, 6]
    assert end == Progress(6, 16, 96, 6)
    assert saver.started == [(2, False), (4, False), (6, True)], "what was due at step 4 is not done again"
    assert notes.evaluations == [(4, 2.0), (6, 2.0)]
    assert [(kind, step) for kind, step, _ in notes.events] == [("bad_step", 6), ("rollback", 6), ("finish", 6)]
    assert notes.events[1][2]["to_step"] == 4


def test_a_rollback_without_a_checkpoint_stops_the_run() -> None:
    engine = CountingEngine(losses={0: NAN})
    with pytest.raises(AgreedError, match=r"step 1: .* 0 checkpoints are there to go back to; lower --save-interval"):
        train_loop(run_of(asking(on_nonfinite="rollback"), engine, Notes(), SlowSaver()), Progress())


def test_named_steps_are_left_out() -> None:
    engine, notes = CountingEngine(), Notes()
    end = train_loop(run_of(asking(iterations_to_skip=(2, 6)), engine, notes, SlowSaver()), Progress())
    assert engine.trained == [[0, 1], [4, 5], [6, 7], [8, 9]]
    assert end == Progress(6, 12, 64, 4)
    assert notes.said[0] == "step 2: left out as asked, samples 2 to 3"
